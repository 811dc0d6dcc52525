"""Bilinear upsampling of any part of the scores, with the coordinates of the whole picture."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

STRIP = 8_000_000
"""Scores that are held at once at the picture's size: 32 MB."""


@dataclass(frozen=True)
class Axis:
    """For some pixels along one side of a picture: between which two positions of the map each lies."""

    positions: slice
    """The positions that are needed."""
    low: Tensor
    high: Tensor
    """Indices (n,) into `positions`."""
    weight: Tensor
    """How far each pixel is on its way from low to high (n,), in 0..1."""


def axis(pixels: slice, picture: int, positions: int, align_corners: bool) -> Axis:
    """`picture` and `positions` are the whole side in pixels and in positions; the rule is F.interpolate's."""
    at = torch.arange(pixels.start, pixels.stop, dtype=torch.float64)
    if align_corners:
        at = at * ((positions - 1) / max(picture - 1, 1))
    else:
        at = ((at + 0.5) * (positions / picture) - 0.5).clamp_(min=0)
    low = at.floor().long().clamp_(max=positions - 1)
    high = (low + 1).clamp_(max=positions - 1)
    first = int(low[0])
    return Axis(slice(first, int(high[-1]) + 1), low - first, high - first, at - low)


def strips(scores: Tensor, rows: Axis, columns: Axis) -> Iterator[tuple[slice, Tensor]]:
    """Scores (K, h, w) at the positions of both axes → (K, n, W) at their pixels, a few rows at a time."""
    wide = _lerp(scores, columns, dim=2)
    height = max(1, STRIP // (wide.shape[0] * wide.shape[2]))
    for start in range(0, len(rows.low), height):
        strip = slice(start, min(start + height, len(rows.low)))
        part = Axis(rows.positions, rows.low[strip], rows.high[strip], rows.weight[strip])
        yield strip, _lerp(wide, part, dim=1)


def _lerp(scores: Tensor, along: Axis, dim: int) -> Tensor:
    low, high = (scores.index_select(dim, index.to(scores.device)) for index in (along.low, along.high))
    weight = along.weight.to(scores)
    return low.lerp_(high, weight if dim == 2 else weight[:, None])
