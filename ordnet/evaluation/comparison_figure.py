"""The paper's figure of results: a row per picture, its truth, each model's parse, and on request Attn_g."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ordnet.evaluation.comparison import Compared, Comparison, Progress
from ordnet.picture.attention_map import tinted
from ordnet.picture.grid import Bar, Cell, Size, cell_size, fitted, grid
from ordnet.picture.overlay import Colour, overlay

_GATE_COLUMN = 1


@dataclass(frozen=True)
class _Row:
    """What is kept of a compared picture: little, whatever its size."""

    cells: list[Cell]
    gate: np.ndarray | None
    photo: np.ndarray
    classes: set[int]


def draw(
    comparison: Comparison,
    chosen: Sequence[int],
    strength: float = 0.6,
    gate: bool = False,
    note: str = "",
    progress: Progress = lambda done, total: None,
) -> Image.Image:
    """The pictures at the places `chosen`, in that order.

    `strength` of the colours goes from 0, the picture alone, to 1, the colours alone. With `gate`, Attn_g of the first
    model that has one stands beside the picture; all rows share its scale.
    """
    columns = ["picture", *([f"Attn_g of {comparison.titles[comparison.gated()]}"] if gate else []), "truth"]
    columns += comparison.titles
    cell = cell_size([comparison.dataset.image(index).size for index in chosen], len(columns))
    rows = []
    for done, index in enumerate(chosen, 1):
        rows.append(_row(comparison, comparison.look(index), cell, strength, gate))
        progress(done, len(chosen))
    bar = _add_gates(rows) if gate else None
    key = _key(comparison, set().union(*(row.classes for row in rows)))
    return grid([row.cells for row in rows], columns, cell[0], key, note, bar)


def _row(comparison: Comparison, seen: Compared, cell: Size, strength: float, gate: bool) -> _Row:
    photo, truth, *results = (fitted(array, cell) for array in (seen.pixels, seen.truth, *seen.results))
    colours = comparison.dataset.classes.colours
    cells = [Cell(photo, seen.id, strong=False), Cell(overlay(photo, truth, colours, strength))]
    figures = ["–" if np.isnan(accuracy) else f"{accuracy:.1%}" for accuracy in seen.accuracies]
    best = figures[int(np.argmax(seen.accuracies))]
    for labels, figure in zip(results, figures, strict=True):
        cells.append(Cell(overlay(photo, labels, colours, strength), figure, strong=figure == best))
    present = {int(class_id) for array in (seen.truth, *seen.results) for class_id in np.unique(array)}
    values = comparison.gate(seen.pixels, *photo.shape[:2]) if gate else None
    return _Row(cells, values, photo, present)


def _add_gates(rows: Sequence[_Row]) -> Bar:
    """Insert the column of Attn_g, drawn on the scale from the least to the largest value of all rows."""
    maps = [row.gate for row in rows if row.gate is not None]
    low, high = min(float(values.min()) for values in maps), max(float(values.max()) for values in maps)
    for row, values in zip(rows, maps, strict=True):
        row.cells.insert(_GATE_COLUMN, Cell(tinted(row.photo, values, low, high)))
    return Bar(_GATE_COLUMN, low, high)


def _key(comparison: Comparison, present: set[int]) -> list[tuple[str, Colour | None]]:
    classes = comparison.dataset.classes
    key: list[tuple[str, Colour | None]] = [
        (name, colour)
        for class_id, (name, colour) in enumerate(zip(classes.names, classes.colours, strict=True))
        if class_id in present
    ]
    ignored: list[tuple[str, Colour | None]] = [("ignored", None)] if max(present) >= len(classes) else []
    return key + ignored
