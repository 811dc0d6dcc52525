"""Maps with many classes, a band of rows at a time.

150 classes at 1024x2048 take 1.2 GB, and a protocol adds up a dozen such maps. So a map is a recipe for any of its rows
(`RowMap`): maps are upsampled, summed and reduced to labels in bands of a few megabytes, and never held whole.
A band's pixels have the coordinates of the whole map: the result is that of `F.interpolate` on all of it.

Shapes: K classes · H x W map.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

BAND = 2**21
"""Numbers in one band."""


@dataclass(frozen=True)
class RowMap:
    """A map (1, K, height, width) whose rows are made when they are asked for."""

    height: int
    width: int
    cost: float
    """Numbers computed for one row, so that bands can be cut to size."""
    rows: Callable[[int, int], Tensor]
    """(first, end) → (1, K, end − first, width)."""


def held(scores: Tensor) -> RowMap:
    """A map (1, K, H, W) that is there already."""
    _, classes, height, width = scores.shape
    return RowMap(height, width, classes * width, lambda first, end: scores[:, :, first:end])


def resized(source: RowMap, height: int, width: int, align_corners: bool) -> RowMap:
    """The map that `F.interpolate(…, (height, width), mode="bilinear")` would make of all of `source`."""

    def rows(first: int, end: int) -> Tensor:
        if source.height == height:
            return _widened(source.rows(first, end), width, align_corners)
        return between(*_neighbours(first, end))

    def _neighbours(first: int, end: int) -> tuple[Tensor, Tensor, Tensor, int, int]:
        raise NotImplementedError

    def between(*args: object) -> Tensor:
        raise NotImplementedError

    return RowMap(height, width, 0, rows)
