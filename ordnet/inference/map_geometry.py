"""Where the positions of a feature map lie in the picture it came from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ordnet.inference.upsample import sources
from ordnet.model.middle_range import Patch

Size = Sequence[int]
"""Height and width."""


@dataclass(frozen=True)
class Places:
    """The picture was made smaller to `copy`, continued to `padded`, and became a map of `shape` positions.

    Between positions and pixels stands the rule by which the network upsamples its scores: a pixel's position is the
    one that counts most in its scores.
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
        """x and y of the pixel in the middle of the position's own; of the nearest one, where padding has all."""
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
        """For every pixel along a side, its position."""
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
