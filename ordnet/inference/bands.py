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

from ordnet.errors import OrdnetError

BAND = 2**21
"""Numbers in one band: with a few of them at work the processor's cache is full."""


@dataclass(frozen=True)
class RowMap:
    """A map (1, K, height, width) whose rows are made when they are asked for."""

    height: int
    width: int
    cost: float
    """Numbers that one row takes to make, so that bands can be cut to size."""
    rows: Callable[[int, int], Tensor]
    """(first, end) → (1, K, end − first, width)."""


def held(scores: Tensor) -> RowMap:
    """A map (1, K, H, W) that is there already."""
    _, classes, height, width = scores.shape
    return RowMap(height, width, classes * width, lambda first, end: scores[:, :, first:end])


def resized(source: RowMap, height: int, width: int, align_corners: bool) -> RowMap:
    """What `F.interpolate(…, (height, width), mode="bilinear")` would make of the whole of `source`."""

    def rows(first: int, end: int) -> Tensor:
        lower, upper, share = _neighbours(first, end, source.height, height, align_corners)
        top, bottom = int(lower[0]), int(upper[-1]) + 1
        wide = source.rows(top, bottom)
        if wide.shape[3] != width:  # the number of rows stays, so this works along the rows only
            wide = F.interpolate(wide, (bottom - top, width), mode="bilinear", align_corners=align_corners)
        if source.height == height:
            return wide
        # each new row is a mixture of two: as a product with a matrix of few columns, three times as fast as looking
        # the rows up
        mixture = torch.zeros(end - first, bottom - top, dtype=torch.float64)
        index = torch.arange(end - first)
        mixture[index, lower - top] += 1 - share
        mixture[index, upper - top] += share
        return mixture.to(wide) @ wide

    cost = max(source.cost / source.width * width, source.cost * source.height / height)
    return RowMap(height, width, cost, rows)


def _neighbours(
    first: int, end: int, size: int, new_size: int, align_corners: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For new rows `first` to `end`: the old row above, the one below, and the share of the one below (0 to 1)."""
    place = torch.arange(first, end, dtype=torch.float64)
    if align_corners:
        place *= _ratio(size - 1, new_size - 1) if new_size > 1 else 0.0
    else:
        place = ((place + 0.5) * _ratio(size, new_size) - 0.5).clamp(min=0)
    lower = place.long().clamp(max=size - 1)
    upper = (lower + 1).clamp(max=size - 1)
    return lower, upper, (place - lower).clamp(0, 1)


def _ratio(size: int, new_size: int) -> float:
    return size / new_size


def combined(maps: list[RowMap], combine: Callable[[list[Tensor]], Tensor]) -> RowMap:
    raise NotImplementedError


def bands(scores: RowMap) -> Iterator[tuple[int, Tensor]]:
    """The first row and the scores (1, K, n, W) of each band, from top to bottom."""
    step = max(1, int(BAND / scores.cost))
    for first in range(0, scores.height, step):
        yield first, scores.rows(first, min(first + step, scores.height))


def whole_map(scores: RowMap) -> Tensor:
    """All rows at once (1, K, H, W), for pictures whose scores fit into memory."""
    result = None
    for first, band in bands(scores):
        if result is None:
            result = band.new_empty(1, band.shape[1], scores.height, scores.width)
        result[:, :, first : first + band.shape[2]] = band
    assert result is not None
    return result


def best_classes(scores: RowMap) -> NDArray[np.uint8]:
    """The class with the highest score at every pixel (H, W); of equals the first."""
    labels = np.empty((scores.height, scores.width), np.uint8)
    for first, band in bands(scores):
        labels[first : first + band.shape[2]] = _argmax(band[0]).cpu().numpy()
    return labels
