"""Decoder and heads. The decoder is nothing, as in the paper, or a light path through the backbone's finer maps.

The paper names low-level features as its future work: at an eighth or a sixteenth of the picture's size, a pole two
pixels wide has no position of its own. `FineDecoder` brings the block's map back to a quarter, step by step: enlarged
twofold, joined with the backbone's map of that size, smoothed by a 3x3 convolution, depthwise or dense.

Maps are enlarged by a factor, not to a size: a position has the same neighbours in a tile as in the whole picture, so
pictures can be streamed exactly. The heads turn features into class scores of the same size.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil

import torch.nn.functional as F
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.parts import Backbone, conv_norm


class Join(nn.Module):
    """A neck that takes several maps: the backbone's last one, enlarged, and the finer ones down to `stride`, added up.

    The block then works on a map that is as fine as a dilated backbone's and knows as much as a whole one's, at the
    price of a few 1x1 convolutions. It stands before the block; the decoder goes on from there.
    """

    def __init__(self, backbone: Backbone, stride: int, width: int) -> None:
        super().__init__()
        levels = _finer_levels(backbone, backbone.output_stride)
        self.levels = tuple(level for level in levels if backbone.strides[level] >= stride)
        """The finer maps it takes, fine to coarse."""
        self.stride = stride
        if not self.levels or backbone.strides[self.levels[0]] != stride:
            there = sorted({backbone.strides[level] for level in levels})
            raise OrdnetError(
                f"model.block_stride is {stride}: the backbone's last map has stride {backbone.output_stride}, its "
                f"finer ones {', '.join(map(str, there)) or 'do not exist'}"
            )
        strides = [*(backbone.strides[level] for level in self.levels), backbone.output_stride]
        self.factors = [coarse // fine for fine, coarse in pairwise(strides)]
        self.laterals = nn.ModuleList(
            nn.Sequential(*conv_norm(backbone.channels[level], width, 1)) for level in (*self.levels, -1)
        )

    def forward(self, last: Tensor, finer: Sequence[Tensor]) -> Tensor:
        """The last map (B, C, h, w) and the finer ones, fine to coarse → (B, width, H, W)."""
        *laterals, deepest = self.laterals
        x = deepest(last)
        for lateral, features, factor in zip(laterals[::-1], finer[::-1], self.factors[::-1], strict=True):
            x = _enlarged(x, factor, features) + lateral(features)
        return F.relu(x)


class Decoder(nn.Module):
    """The block's map and finer ones of the backbone → the map that the head reads."""

    levels: tuple[int, ...]
    """Which maps of the pyramid it takes besides the last one, fine to coarse."""
    stride: int
    """How much smaller than the picture its output is."""
    out_channels: int
    reach: int
    """How many positions of the block's map to each side an output depends on."""
    ends_in_convolution: bool
    """Whether a single 1x1 convolution suffices as the head."""

    def forward(self, x: Tensor, finer: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


class PlainDecoder(Decoder):
    """The paper's network: the head reads the block's map itself."""

    levels = ()
    reach = 0

    def __init__(self, channels: int, stride: int, mixed: bool) -> None:
        super().__init__()
        self.out_channels = channels
        self.stride = stride
        self.ends_in_convolution = mixed

    def forward(self, x: Tensor, finer: Sequence[Tensor]) -> Tensor:
        return x


class FineDecoder(Decoder):
    """Top-down through every map of the backbone that is finer than the block's: (B, C, h, w) → (B, width, H, W).

    With `dense` convolutions the last step is half as wide, to bound its time: the finest map has the most positions.
    """

    ends_in_convolution = True

    def __init__(self, channels: int, backbone: Backbone, stride: int, width: int = 128, dense: bool = False) -> None:
        """`channels` and `stride` are those of the block's map."""
        super().__init__()
        self.levels, self.out_channels = _finer_levels(backbone, stride), width
        strides = [stride, *(backbone.strides[level] for level in reversed(self.levels))]
        self.stride = strides[-1]
        self.steps = nn.ModuleList()
        seen = Fraction(0)
        for level, before, after in zip(reversed(self.levels), strides, strides[1:], strict=False):
            own = width // 2 if dense and after == strides[-1] else width
            self.steps.append(Step(channels, backbone.channels[level], own, before // after, dense))
            channels = self.out_channels = own
            # enlarging reaches one position of the coarser map to each side, the 3x3 convolution one of the finer
            seen += Fraction(before + after, strides[0])
        self.reach = ceil(seen)

    def forward(self, x: Tensor, finer: Sequence[Tensor]) -> Tensor:
        for step, features in zip(self.steps, reversed(finer), strict=True):
            x = step(x, features)
        return x


class Step(nn.Module):
    """The coarse map (B, C, h, w) enlarged and joined with a finer one (B, C', H, W) → (B, width, H, W)."""

    def __init__(self, coarse: int, fine: int, width: int, factor: int, dense: bool) -> None:
        super().__init__()
        self.factor = factor
        # a 1x1 convolution and bilinear enlargement commute; on the small map the convolution is cheaper
        self.reduce = nn.Sequential(*conv_norm(coarse, width, 1))
        self.lateral = nn.Sequential(*conv_norm(fine, width, 1))
        self.smooth = nn.Sequential(*conv_norm(width, width, 3, groups=1 if dense else width), nn.ReLU(inplace=True))
        if not dense:
            self.smooth.extend([*conv_norm(width, width, 1), nn.ReLU(inplace=True)])

    def forward(self, x: Tensor, finer: Tensor) -> Tensor:
        return self.smooth(F.relu(_enlarged(self.reduce(x), self.factor, finer) + self.lateral(finer)))


def _enlarged(x: Tensor, factor: int, like: Tensor) -> Tensor:
    """A map (B, C, h, w) enlarged to the size of a finer one, which has ceil(side / stride) positions."""
    x = F.interpolate(x, scale_factor=float(factor), mode="bilinear")
    return x[:, :, : like.shape[2], : like.shape[3]]


def _finer_levels(backbone: Backbone, stride: int) -> tuple[int, ...]:
    """The last map at every stride below this one; none for backbones that keep a single stride."""
    last_at = {own: level for level, own in enumerate(backbone.strides) if own < stride}
    return tuple(last_at.values())


class FCNHead(nn.Sequential):
    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        inner = max(channels // 4, 1)
        super().__init__(
            *conv_norm(channels, inner, 3),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(inner, classes, 1),
        )


class Classifier(nn.Sequential):
    """The head after blocks and decoders that end in a convolution of their own: dropout and a 1x1 convolution."""

    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        super().__init__(nn.Dropout(dropout), nn.Conv2d(channels, classes, 1))
