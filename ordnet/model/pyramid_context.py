"""Context without attention, as blocks: DeepLabV3's dilated convolutions side by side, PSPNet's pooling pyramid.

Layer sizes are the papers'. Maps that are pooled to a few positions get no batch norm: with one picture in the batch it
would see a single value per channel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ordnet.model.parts import Block, conv_norm


class _Pooling(Block):
    """What the two have in common."""

    ends_in_convolution = True
    whole_only = "it pools over the whole picture, which no tile has"


class ASPP(_Pooling):
    """Atrous spatial pyramid pooling: a 1x1 and three dilated 3x3 convolutions and the map's mean, joined by a 1x1."""

    RATES = (6, 12, 18)
    """DeepLabV3's at output stride 16."""

    def __init__(self, channels: int, width: int = 256) -> None:
        super().__init__()
        self.out_channels = width
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
        self.out_channels = width
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


def _conv_relu(inputs: int, outputs: int, size: int, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(inputs, outputs, size, dilation=dilation), nn.ReLU(inplace=True))
