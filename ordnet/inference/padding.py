"""Pictures smaller than the network can take are continued with their last row and column."""

import numpy as np

from ordnet.model.network import Network
from ordnet.model.omni_range import OmniRange


def least_side(net: Network) -> int:
    """The shortest side in pixels that gives every patch of the block a position."""
    patches = net.block.patches if isinstance(net.block, OmniRange) else 1
    return (patches - 1) * net.backbone.output_stride + 1


def padded(pixels: np.ndarray, side: int) -> np.ndarray:
    """A picture (H, W, 3) with at least `side` pixels each way; the same array where it has them already."""
    height, width = pixels.shape[:2]
    missing = [(0, max(0, side - height)), (0, max(0, side - width)), (0, 0)]
    return np.pad(pixels, missing, mode="edge") if any(after for _, after in missing) else pixels
