"""Pictures of any size in bounded memory, with exact global and patch context.

The network runs tile by tile, several times over the picture: first to add up what the omni-range block needs to know
of the whole map, last to give the scores. Tiles look beyond their edges by a halo, so that convolutions see what they
would see in the whole picture; at the picture's own edge the halo ends, and padding is what it always is.

The context is exact whatever the halo. The convolutions are exact where the halo covers the backbone's receptive field
(as it does for `tiny`); deep backbones see a thousand pixels and more, of which the outer ones hardly count: there the
halo ends at HALO, and scores near tile edges differ a little (docs/huge-pictures.md has the figures).

Blocks that attend with a softmax have no such sums. They are run on overlapping windows: what is further away than a
window they do not see, and a warning says so.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.inference.piecewise import PiecewiseBlock
from ordnet.inference.tiles import Area, grown, inside, receptive_field, tiles
from ordnet.inference.upsampling import axis, strips
from ordnet.model.network import Network
from ordnet.model.omni_range import OmniRange

TILE = 1024
"""Side of a tile in pixels, without its halo."""
HALO = 192
"""The widest halo in pixels that is taken without being asked for."""

Progress = Callable[[int, int], object]
"""Receives how many tiles are done, and of how many."""


def labels(
    net: Network, pixels: np.ndarray, tile: int = TILE, halo: int | None = None, progress: Progress | None = None
) -> np.ndarray:
    """RGB (H, W, 3) uint8 → class ids (H, W) uint8."""
    result = np.empty(pixels.shape[:2], dtype=np.uint8)
    with torch.inference_mode():
        for (rows, columns), scores in _scores_by_strip(net, pixels, tile, halo, progress):
            result[rows, columns] = scores.argmax(dim=0).to(torch.uint8).cpu().numpy()
    return result


def scores(
    net: Network, pixels: np.ndarray, tile: int = TILE, halo: int | None = None, progress: Progress | None = None
) -> Tensor:
    """RGB (H, W, 3) uint8 → scores (K, H, W), which need the memory for themselves: 4 K bytes per pixel."""
    result = torch.empty(net.classes, *pixels.shape[:2])
    with torch.inference_mode():
        for (rows, columns), part in _scores_by_strip(net, pixels, tile, halo, progress):
            result[:, rows, columns] = part.cpu()
    return result
