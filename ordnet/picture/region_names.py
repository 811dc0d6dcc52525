"""Class names written into the largest open spot of each class."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_CELLS = 240
"""The label map is looked at in about this many rows."""
_ASPECT = 3
"""Cells are this many times wider than high, as words are."""
_SMALLEST = 11
"""Letters below this many pixels cannot be read: the class then gets no name."""
_LARGEST = 160


def write_names(image: Image.Image, labels: np.ndarray, names: Sequence[str]) -> None:
    """Draw into the picture. `labels` (H, W) has its size; labels beyond the names (ignored pixels) stay unnamed."""
    draw = ImageDraw.Draw(image)
    wanted = min(_LARGEST, max(14, min(labels.shape) // 22))
    for class_id, (x, y, width, height) in open_spots(labels).items():
        if class_id >= len(names):
            continue
        text = names[class_id]
        size = min(wanted, int(height * 0.8))
        natural = ImageFont.load_default(100).getlength(text) / 100
        size = min(size, int(width * 0.95 / max(natural, 0.1)))
        if size < _SMALLEST:
            continue
        draw.text(
            (x, y), text, (255, 255, 255), ImageFont.load_default(size), anchor="mm",
            stroke_width=max(1, size // 12), stroke_fill=(20, 20, 20),
        )  # fmt: skip


def open_spots(labels: np.ndarray) -> dict[int, tuple[int, int, int, int]]:
    """For each class of the map (H, W): centre x, y, width and height of about the largest box inside it, in pixels."""
    down = max(1, -(-max(labels.shape) // _CELLS))
    across = down * _ASPECT
    cells = labels[down // 2 :: down, across // 2 :: across]
    if cells.size == 0:  # narrower than a cell: nothing could be written there
        return {}
    depth = _depth(cells)
    spots = {}
    for class_id in np.unique(cells):
        row, column = np.unravel_index(np.argmax(np.where(cells == class_id, depth, 0)), cells.shape)
        reach = 2 * int(depth[row, column]) - 1
        centre = int(column) * across + across // 2, int(row) * down + down // 2
        spots[int(class_id)] = (*centre, reach * across, reach * down)
    return spots


def _depth(cells: np.ndarray) -> np.ndarray:
    """How many cells away, diagonals included, the nearest cell of another class or the map's edge is."""
    padded = np.pad(cells.astype(np.int16), 1, constant_values=-1)
    inside = np.ones(cells.shape, dtype=bool)
    for neighbour in _neighbours(padded):
        inside &= neighbour == cells
    depth = np.ones(cells.shape, dtype=np.int32)
    while inside.any():
        depth += inside
        inside = np.logical_and.reduce([inside, *_neighbours(np.pad(inside, 1))])
    return depth


def _neighbours(padded: np.ndarray) -> list[np.ndarray]:
    """The eight neighbours of every cell of a map that carries one cell of padding."""
    rows, columns = padded.shape[0] - 2, padded.shape[1] - 2
    shifts = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    return [padded[y : y + rows, x : x + columns] for y, x in shifts]
