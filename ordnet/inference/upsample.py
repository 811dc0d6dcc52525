"""Upsampling: small scores → scores and labels of any part of the picture, in the whole picture's coordinates.

150 classes at 1024x2048 take 1.2 GB, and a protocol adds up a dozen such maps. So a map is a function that computes any
of its rows (`RowMap`): maps are resized, summed and reduced to labels in bands of a few megabytes, and never held
whole. Streaming knows only a part of the scores at a time: `axis` and `strips` upsample that part. In both, a pixel has
the coordinates of the whole map (`sources`): the result is that of `F.interpolate` on all of it. `Places` says by the
same rule where the positions of a feature map lie in the picture.

Shapes: K classes · H x W map.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ordnet.errors import OrdnetError
from ordnet.model.branches import Patch

BAND = 2**21
"""Numbers in one band: small enough for the processor's cache, large enough to hide Python's overhead."""


@dataclass(frozen=True)
class RowMap:
    """A map (1, K, height, width) whose rows are computed on demand."""

    height: int
    width: int
    dtype: torch.dtype
    cost: float
    """Numbers that computing one row takes, from which the height of bands follows."""
    rows: Callable[[int, int], Tensor]
    """(first, end) → (1, K, end − first, width)."""


def numbers(scores: Tensor) -> Tensor:
    """The same scores; an error if some are not finite, which would look like the first class with certainty."""
    if not scores.isfinite().all():
        raise OrdnetError(
            "the network's scores are not finite: its weights are damaged or its training went wrong; "
            "use another checkpoint"
        )
    return scores


def held(scores: Tensor) -> RowMap:
    """The `RowMap` of a map (1, K, H, W) that is in memory already."""
    _, classes, height, width = scores.shape
    return RowMap(height, width, scores.dtype, classes * width, lambda first, end: scores[:, :, first:end])


def resized(source: RowMap, height: int, width: int, align_corners: bool) -> RowMap:
    """What `F.interpolate(…, (height, width), mode="bilinear")` would make of the whole of `source`."""
    if (source.height, source.width) == (height, width):
        return source

    def rows(first: int, end: int) -> Tensor:
        if source.height == height:
            return _widened(source.rows(first, end), width, align_corners)
        place = sources(torch.arange(first, end), height, source.height, align_corners, source.dtype)
        above = place.to(torch.int64).clamp(max=source.height - 1)
        below = (above + 1).clamp(max=source.height - 1)
        top, bottom = int(above[0]), int(below[-1]) + 1
        old = _widened(source.rows(top, bottom), width, align_corners)
        # Each new row mixes two old ones. A product with a narrow matrix does that in half the time of two look-ups.
        share = (place - above).clamp(0, 1)
        mixture = torch.zeros(end - first, bottom - top, dtype=torch.float64)
        mixture.scatter_add_(1, (above - top)[:, None], 1 - share[:, None])
        mixture.scatter_add_(1, (below - top)[:, None], share[:, None])
        return mixture.to(old) @ old

    cost = max(source.cost / source.width * width, source.cost * source.height / height)
    # the matrix of n rows has n² / scale numbers: for a picture one pixel wide it is all that counts, so it stays small
    cost = max(cost, math.sqrt(16 * BAND * source.height / height))
    return RowMap(height, width, source.dtype, cost, rows)


def sources(
    pixels: Tensor, side: int, positions: int, align_corners: bool, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Where pixels (n,) of a side lie among the positions it is upsampled from, with fractions: F.interpolate's rule.

    The step from pixel to pixel is rounded as F.interpolate rounds it, in the precision of the scores.
    """
    kind = np.float64 if dtype == torch.float64 else np.float32
    pixels = pixels.to(torch.float64)
    if align_corners:
        places = pixels * (float(kind(positions - 1) / kind(side - 1)) if side > 1 else 0.0)
    else:
        places = (pixels + 0.5) * float(kind(positions) / kind(side)) - 0.5
    return places.clamp_(0, positions - 1)


def _widened(scores: Tensor, width: int, align_corners: bool) -> Tensor:
    """The scores resized to another width; the height stays."""
    if scores.shape[3] == width:
        return scores
    return F.interpolate(scores, (scores.shape[2], width), mode="bilinear", align_corners=align_corners)


def bands(scores: RowMap) -> Iterator[tuple[int, Tensor]]:
    """The first row and the scores (1, K, n, W) of each band, from top to bottom."""
    step = max(1, int(BAND / scores.cost))
    for first in range(0, scores.height, step):
        yield first, scores.rows(first, min(first + step, scores.height))


def whole_map(scores: RowMap) -> Tensor:
    """The whole map (1, K, H, W) at once, for pictures whose scores fit into memory."""
    result: Tensor | None = None
    for first, band in bands(scores):
        if result is None:
            result = band.new_empty(1, band.shape[1], scores.height, scores.width)
        result[:, :, first : first + band.shape[2]] = band
    assert result is not None  # a map has at least one row
    return result


def best_classes(
    scores: RowMap, confidence: NDArray[np.float16] | None = None, logits: bool = True
) -> NDArray[np.uint8]:
    """The class with the highest score at every pixel (H, W); the first of equals.

    `confidence` (H, W) is filled with the probability of that class: under a softmax where the scores are `logits`,
    else as its share of the sum, for scores that are probabilities or sums of exponentials already.
    """
    labels = np.empty((scores.height, scores.width), np.uint8)
    for first, band in bands(scores):
        if band.shape[1] > 256:
            raise OrdnetError(f"a label map has at most 256 classes, the network has {band.shape[1]}")
        rows = slice(first, first + band.shape[2])
        labels[rows] = _best(band[0]).cpu().numpy()
        if confidence is not None:
            confidence[rows] = _probability_of_best(band[0], logits).cpu().numpy()
    return labels


def _best(scores: Tensor) -> Tensor:
    """(K, n, W) → the best class (n, W) as a byte. torch's argmax takes 3 to 30 times as long on a CPU."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=0).to(torch.uint8)
    best = scores[0].clone()
    label = torch.zeros_like(best, dtype=torch.uint8)
    for number, score in enumerate(scores[1:], start=1):
        # the numbers grow, so the larger of two labels is the later one
        torch.maximum(label, (score > best).view(torch.uint8).mul_(number), out=label)
        torch.maximum(best, score, out=best)
    return label


def _probability_of_best(scores: Tensor, logits: bool) -> Tensor:
    """(K, n, W) → (n, W) in 0..1."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    best = scores.amax(dim=0)
    # relative to the best score no exponential overflows, and the best one's own is 1
    return (scores - best).exp_().sum(dim=0).reciprocal_() if logits else best / scores.sum(dim=0)


STRIP = 8_000_000
"""Scores that are held at once at the picture's size: 32 MB."""


@dataclass(frozen=True)
class Axis:
    """Some pixels along one side of a picture, and between which two positions of the map each of them lies."""

    positions: slice
    """The positions that are needed."""
    low: Tensor
    high: Tensor
    """Indices (n,) into `positions`."""
    weight: Tensor
    """Where each pixel lies between low and high (n,), 0..1."""


def axis(pixels: slice, picture: int, positions: int, align_corners: bool) -> Axis:
    """`picture` and `positions` are the whole side in pixels and in positions; the rule is F.interpolate's."""
    return _axis(sources(torch.arange(pixels.start, pixels.stop), picture, positions, align_corners), positions)


def axis_of_part(pixels: slice, scale: float, part: slice, positions: int, align_corners: bool) -> Axis:
    """The same for positions that cover a `part` of a copy `scale` times as large as the picture."""
    places = (torch.arange(pixels.start, pixels.stop, dtype=torch.float64) + 0.5) * scale - 0.5 - part.start
    return _axis(sources(places, part.stop - part.start, positions, align_corners), positions)


def _axis(at: Tensor, positions: int) -> Axis:
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


Size = Sequence[int]
"""Height and width."""


@dataclass(frozen=True)
class Places:
    """Where positions lie in the picture, which was resized to `copy`, padded to `padded`, and gave `shape` positions.

    The rule is that by which the network upsamples its scores: a pixel belongs to the position that counts most in
    its scores.
    """

    picture: Size
    copy: Size
    padded: Size
    shape: Size
    align_corners: bool

    def position(self, x: int, y: int) -> tuple[int, int]:
        """Row and column of the position that the pixel belongs to."""
        return int(self._nearest(0)[y]), int(self._nearest(1)[x])

    def pixel(self, row: int, column: int) -> tuple[int, int]:
        """x and y of the middle one of the position's pixels, or of the nearest pixel if all of them are padding."""
        middles = []
        for side, place in ((1, column), (0, row)):
            nearest = self._nearest(side)
            first, end = np.searchsorted(nearest, [place, place + 1])
            middles.append(min(int(first + max(end - 1, first)) // 2, len(nearest) - 1))
        return middles[0], middles[1]

    def box(self, region: Patch) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the pixels whose positions lie in the region; the last two exclusive."""
        top, bottom = np.searchsorted(self._nearest(0), [region[0].start, region[0].stop])
        left, right = np.searchsorted(self._nearest(1), [region[1].start, region[1].stop])
        return int(left), int(top), int(right), int(bottom)

    def sample(self, values: np.ndarray, height: int, width: int) -> np.ndarray:
        """A map (h, w) upsampled to a drawing of the picture, (height, width); NaN stays where it is."""
        rows = self._along(0, (np.arange(height) + 0.5) * self.picture[0] / height - 0.5)
        columns = self._along(1, (np.arange(width) + 0.5) * self.picture[1] / width - 0.5)
        known = ~np.isnan(values)
        total = _bilinear(np.where(known, values, 0), rows, columns)
        share = _bilinear(known.astype(np.float32), rows, columns)
        inside = known[np.ix_(_rounded(rows), _rounded(columns))]
        return np.divide(total, share, out=np.full_like(total, np.nan), where=inside)

    def _nearest(self, side: int) -> np.ndarray:
        """The position of every pixel along a side."""
        return _rounded(self._along(side, np.arange(self.picture[side])))

    def _along(self, side: int, pixels: np.ndarray) -> np.ndarray:
        """Pixels along a side → positions with their fractions."""
        picture, copy, padded, positions = (size[side] for size in (self.picture, self.copy, self.padded, self.shape))
        if copy != picture:
            pixels = (pixels + 0.5) * copy / picture - 0.5
        return sources(torch.from_numpy(np.asarray(pixels)), padded, positions, self.align_corners).numpy()


def _rounded(places: np.ndarray) -> np.ndarray:
    return np.floor(places + 0.5).astype(np.int64)


def _bilinear(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Values (h, w) at rows and columns with fractions → (len(rows), len(columns)) float32."""
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    bottom, right = np.minimum(top + 1, values.shape[0] - 1), np.minimum(left + 1, values.shape[1] - 1)
    down, across = (rows - top)[:, None], columns - left
    high = values[np.ix_(top, left)] * (1 - across) + values[np.ix_(top, right)] * across
    low = values[np.ix_(bottom, left)] * (1 - across) + values[np.ix_(bottom, right)] * across
    return (high * (1 - down) + low * down).astype(np.float32)
