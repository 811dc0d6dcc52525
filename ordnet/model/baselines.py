"""Other methods' blocks: features (B, C, H, W) → context (B, width, H, W); the width is 512, ASPP's 256, at most C.

They were made to reduce 2048 channels. Where fewer come in than the width, behind a small backbone or a neck, the
context has as many: convolutions that widen the map would outweigh the rest of the network.

InterlacedSSA, DANet and Basic SA are those of the paper's compute table, with layer sizes whose operation counts give
the table's figures at 2048x128x128. All attend with softmax and build their maps, as the public code of each does.

DeepLabV3's dilated convolutions side by side and PSPNet's pooling pyramid are context without attention, with
the layer sizes of their papers. Maps pooled to a few positions get no batch norm: with one picture in the batch it
would see a single value per channel.

Shapes: B batch · D key channels · N positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ordnet.model.parts import Block, Explanation, Rows, conv_norm


def _conv_relu(inputs: int, outputs: int, size: int, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(inputs, outputs, size, dilation=dilation), nn.ReLU(inplace=True))


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
    """Softmax attention with the map built: (B, D, N), (B, D, N), (B, E, N) → (B, E, N)."""
    attn = (q.transpose(1, 2) @ k * scale).softmax(dim=2)
    return v @ attn.transpose(1, 2)


class _Attention(nn.Module):
    """Queries, keys and values, softmax attention over the whole map, and a 1x1 convolution on its output."""

    def __init__(self, channels: int, key_channels: int, value_channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, key_channels, 1)
        self.key = nn.Conv2d(channels, key_channels, 1)
        self.value = nn.Conv2d(channels, value_channels, 1)
        self.project = nn.Conv2d(value_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        return self.project(_attend(q, k, v, q.shape[1] ** -0.5).unflatten(2, x.shape[2:]))


class _Softmax(Block):
    """What the three methods with attention have in common."""

    builds_maps = True
    ends_in_convolution = True
    whole_only = "it attends with a softmax, which cannot be added up tile by tile"
    unexplained: str | None = None


class NonLocal(_Softmax):
    """The compute table's "Basic SA": reduce to 512 channels, attend (half as wide), fuse with the input."""

    def __init__(self, channels: int, width: int = 512) -> None:
        super().__init__()
        self.out_channels = width = min(width, channels)
        self.reduce = _conv_relu(channels, width, 3)
        self.attention = _Attention(width, width // 2, width // 2)
        self.fuse = _conv_relu(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduce(x)
        return self.fuse(torch.cat([x, self.attention(x)], dim=1))

    def explain(self, x: Tensor) -> Explanation:
        x, layers = self.reduce(x), self.attention
        return Explanation(Rows(layers.query(x), layers.key(x), layers.query.out_channels**-0.5, softmax=True))


class Interlaced(_Softmax):
    """InterlacedSSA: attention among positions 1/8 of the map apart, then inside blocks of 8 x 8 positions."""

    GROUP = 8
    builds_maps = False  # 64 groups of N/64 positions: no map is larger than N/64 x N/64
    unexplained = (
        "attends in two steps, the second to results of the first: "
        "no position has a row of attention of its own to show"
    )

    def __init__(self, channels: int, width: int = 512) -> None:
        super().__init__()
        self.out_channels = width = min(width, channels)
        self.reduce = _conv_relu(channels, width, 3)
        self.long = _Attention(width, width // 2, width)
        self.short = _Attention(width, width // 2, width)
        self.fuse = _conv_relu(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduce(x)
        b, c, h, w = x.shape
        g = self.GROUP
        context = F.pad(x, (0, -w % g, 0, -h % g))  # whole blocks only
        rows, columns = context.shape[2] // g, context.shape[3] // g
        # positions with the same place in their block form a group of rows x columns: far apart, g² groups
        context = context.view(b, c, rows, g, columns, g).permute(0, 3, 5, 1, 2, 4).reshape(-1, c, rows, columns)
        context = self.long(context)
        # and back the other way: the g x g positions of one block form a group
        context = context.view(b, g, g, c, rows, columns).permute(0, 4, 5, 3, 1, 2).reshape(-1, c, g, g)
        context = self.short(context)
        context = context.view(b, rows, columns, c, g, g).permute(0, 3, 1, 4, 2, 5).reshape(b, c, rows * g, columns * g)
        return self.fuse(torch.cat([x, context[:, :, :h, :w]], dim=1))


class DANet(_Softmax):
    """Position attention beside channel attention, each between two 3x3 convolutions, summed."""

    def __init__(self, channels: int, width: int = 512) -> None:
        super().__init__()
        self.out_channels = width = min(width, channels)
        self.reduce_position, self.reduce_channel = _conv_relu(channels, width, 3), _conv_relu(channels, width, 3)
        self.query = nn.Conv2d(width, max(width // 8, 1), 1)
        self.key = nn.Conv2d(width, max(width // 8, 1), 1)
        self.value = nn.Conv2d(width, width, 1)
        self.position_share = nn.Parameter(torch.zeros(1))
        self.channel_share = nn.Parameter(torch.zeros(1))
        self.out_position, self.out_channel = _conv_relu(width, width, 3), _conv_relu(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        position = self._position(self.reduce_position(x))
        channel = self._channel(self.reduce_channel(x))
        return self.out_position(position) + self.out_channel(channel)

    def explain(self, x: Tensor) -> Explanation:
        x = self.reduce_position(x)
        return Explanation(Rows(self.query(x), self.key(x), 1.0, softmax=True))

    def _position(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).flatten(2) for layer in (self.query, self.key, self.value))
        return x + self.position_share * _attend(q, k, v).unflatten(2, x.shape[2:])

    def _channel(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)  # (B, C, N)
        energy = flat @ flat.transpose(1, 2)  # (B, C, C)
        # channels that differ most attend most: the largest energy minus each
        attn = (energy.amax(dim=2, keepdim=True) - energy).softmax(dim=2)
        return x + self.channel_share * (attn @ flat).unflatten(2, x.shape[2:])


class _Pooling(Block):
    """What the two methods without attention have in common."""

    ends_in_convolution = True
    whole_only = "it pools over the whole picture, which no tile has"


class ASPP(_Pooling):
    """Atrous spatial pyramid pooling: a 1x1 and three dilated 3x3 convolutions and the map's mean, joined by a 1x1."""

    RATES = (6, 12, 18)
    """DeepLabV3's at output stride 16."""

    def __init__(self, channels: int, width: int = 256) -> None:
        super().__init__()
        self.out_channels = width = min(width, channels)
        self.near = _conv_relu(channels, width, 1)
        self.far = nn.ModuleList(_conv_relu(channels, width, 3, rate) for rate in self.RATES)
        self.mean = nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(inplace=True))
        self.fuse = _conv_relu((2 + len(self.RATES)) * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return self.fuse(torch.cat([self.near(x), *(layer(x) for layer in self.far), mean], dim=1))


class PyramidPooling(_Pooling):
    """The map's means over 1x1, 2x2, 3x3 and 6x6 parts, each enlarged again, joined with the map by a 3x3."""

    BINS = (1, 2, 3, 6)

    def __init__(self, channels: int, width: int = 512) -> None:
        super().__init__()
        self.out_channels = width = min(width, channels)
        inner = max(channels // len(self.BINS), 1)
        self.levels = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, inner, 1), nn.ReLU(inplace=True)) for _ in self.BINS
        )
        self.fuse = _conv_relu(channels + len(self.BINS) * inner, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        context = [
            F.interpolate(level(pooled(x, bins)), size=(h, w), mode="bilinear", align_corners=True)
            for level, bins in zip(self.levels, self.BINS, strict=True)
        ]
        return self.fuse(torch.cat([x, *context], dim=1))


def pooled(x: Tensor, bins: int) -> Tensor:
    """Means over bins x bins parts (B, C, bins, bins), as adaptive average pooling takes them: parts may overlap.

    As two products with small matrices, because ONNX has no such pooling for maps of any size.
    """
    rows, columns = (_shares(side, bins, x) for side in x.shape[2:])
    return rows @ x @ columns.transpose(0, 1)


def _shares(side: int, bins: int, like: Tensor) -> Tensor:
    """(bins, side): what each position contributes to each part's mean."""
    places, parts = torch.arange(side, device=like.device), torch.arange(bins, device=like.device)[:, None]
    inside = (places >= parts * side // bins) & (places < ((parts + 1) * side + bins - 1) // bins)
    inside = inside.to(like.dtype)
    return inside / inside.sum(1, keepdim=True)
