"""Losses at a sample of the pixels: one in each cell of the small scores' grid, another one at every step.

Losses at the picture's size see every pixel, at a price: with scores at a quarter of its size, sixteen times as many
are made and compared. Losses at the scores' own places are cheap, but always see the same pixel of a cell; a network
then learns lines of one to three pixels as dots, and what upsampling makes between the dots is left to chance. A
sample that moves sees all pixels in time, at the price of the latter: its mean over all offsets is cross-entropy at
the picture's size.

Shapes: B images, K classes, H x W pixels, h x w small scores.
"""

import numpy as np
import torch
from torch import Tensor

from ordnet.inference.upsample import sources


def sample_pixels(size: tuple[int, int], stride: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """The rows and the columns of the pixels that count at this step, a function of the seed and the step alone."""
    # the last number keeps this stream apart from that of dropout
    rng = np.random.default_rng((seed, step, 0, 7))
    starts = rng.integers(0, np.minimum(stride, size))
    rows, columns = (torch.arange(int(start), side, stride) for start, side in zip(starts, size, strict=True))
    return rows, columns


def scores_at(scores: Tensor, size: tuple[int, int], rows: Tensor, columns: Tensor, align_corners: bool) -> Tensor:
    """Small scores (B, K, h, w) → what bilinear upsampling to H x W gives at these rows and columns, and no more."""
    for axis, side, places in ((2, size[0], rows), (3, size[1], columns)):
        low, high, share = _neighbours(scores.shape[axis], side, places.to(scores.device), align_corners)
        share = share.to(scores.dtype).view(-1, *[1] * (3 - axis))
        below, above = scores.index_select(axis, low), scores.index_select(axis, high)
        scores = torch.lerp(below, above, share.expand_as(below))
    return scores


def _neighbours(small: int, side: int, places: Tensor, align_corners: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Between which two of `small` values each pixel of a side lies, and how far towards the second."""
    where = sources(places, side, small, align_corners)
    low = where.floor().long().clamp(max=small - 1)
    return low, (low + 1).clamp(max=small - 1), where - low
