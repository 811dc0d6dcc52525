"""Pictures arranged on one sheet, with a legend below.

`contact_sheet` puts any number of them side by side; `grid` has titled columns, as papers compare results.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from ordnet.picture.attention_map import coloured, number
from ordnet.picture.overlay import NO_CLASS, Colour, font, shortened

Size = tuple[int, int]
"""Width and height in pixels."""

_PAPER, _INK, _SOFT = (255, 255, 255), (28, 37, 41), (98, 110, 117)
_GAP = 8
_FONT_SIZE = 16
_SWATCH = 18
"""The side of a legend's squares."""
_LINE = 26


def contact_sheet(
    tiles: Sequence[np.ndarray],
    columns: int,
    captions: Sequence[str] | None = None,
    key: Sequence[tuple[str, Colour | None]] = (),
) -> Image.Image:
    """Pictures (H, W, 3) uint8 in a grid, by rows; cells are as large as the largest picture.

    `captions` are written below the pictures, shortened to fit. `key` lists the names and colours of the legend.
    """
    if not tiles:
        raise ValueError("a contact sheet needs at least one picture")
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    cell_height = max(tile.shape[0] for tile in tiles) + (_LINE if captions else 0) + _GAP
    cell_width = max(tile.shape[1] for tile in tiles) + _GAP
    width = columns * cell_width + _GAP
    below = legend(key, width - 2 * _GAP) if key else None
    sheet = Image.new("RGB", (width, rows * cell_height + _GAP + (below.height + _GAP if below else 0)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for place, tile in enumerate(tiles):
        left, top = _GAP + place % columns * cell_width, _GAP + place // columns * cell_height
        sheet.paste(Image.fromarray(tile), (left, top))
        if captions:
            text = shortened(captions[place], cell_width - _GAP, _FONT_SIZE)
            draw.text((left, top + tile.shape[0] + _LINE // 2), text, _INK, font(_FONT_SIZE, text), anchor="lm")
    if below:
        sheet.paste(below, (_GAP, rows * cell_height + _GAP))
    return sheet


def legend(key: Sequence[tuple[str, Colour | None]], width: int) -> Image.Image:
    """Names beside squares of their colour, by rows, in columns as wide as the longest name; `width` pixels wide.

    Rows are as few as there can be, and equally long, so that none has a single name below a full one.
    A name without a colour stands for ignored pixels: its square is striped.
    """
    names = [shortened(name, width - _SWATCH - 2 * _GAP, _FONT_SIZE) for name, _ in key]
    longest = max((round(font(_FONT_SIZE, name).getlength(name)) for name in names), default=0)
    column = longest + _SWATCH + 4 * _GAP
    rows = max(1, -(-len(names) // max(1, (width + 3 * _GAP) // column)))
    columns = max(1, -(-len(names) // rows))
    picture = Image.new("RGB", (width, rows * _LINE), _PAPER)
    draw = ImageDraw.Draw(picture)
    for place, (name, (_, colour)) in enumerate(zip(names, key, strict=True)):
        left, top = place % columns * column, place // columns * _LINE
        square = (left, top + (_LINE - _SWATCH) // 2, left + _SWATCH - 1, top + (_LINE + _SWATCH) // 2 - 1)
        draw.rectangle(square, fill=colour or _INK, outline=_INK)
        if colour is None:  # striped, as `overlay` marks it
            for shift in range(0, 2 * _SWATCH, 5):
                start, end = max(0, shift - _SWATCH + 1), min(shift, _SWATCH - 1)
                draw.line(
                    (square[0] + start, square[1] + shift - start, square[0] + end, square[1] + shift - end), NO_CLASS
                )
        draw.text((left + _SWATCH + _GAP, top + _LINE // 2), name, _INK, font(_FONT_SIZE, name), anchor="lm")
    return picture


_MARGIN, _BETWEEN = 20, 10
"""Pixels around a grid, and between its columns."""
_TITLE, _CAPTION, _NOTE = 20, 16, 15
_ABOVE, _BELOW = 36, 34
"""Room for the titles, and for the caption below each picture."""
_WIDTH = 1500
"""The width that the columns share, if their cells then lie within _CELL."""
_CELL = (180, 340)
_SHAPE = (0.4, 1.5)
"""The flattest and the tallest cell, height by width."""
_BAR = 12


@dataclass(frozen=True)
class Cell:
    """One picture of a grid, and the words below it."""

    picture: np.ndarray
    """(H, W, 3) uint8, not larger than `cell_size`."""
    caption: str = ""
    strong: bool = True
    """Whether the caption stands out."""


@dataclass(frozen=True)
class ScaleBar:
    """The scale of a column's heat maps, drawn below it."""

    column: int
    low: float
    high: float


def cell_size(sizes: Sequence[Size], columns: int) -> Size:
    """The room that every picture gets, in the pictures' median shape."""
    width = min(max(_WIDTH // columns, _CELL[0]), _CELL[1])
    shape = statistics.median(height / width for width, height in sizes)
    return width, round(width * min(max(shape, _SHAPE[0]), _SHAPE[1]))


def fitted(array: np.ndarray, cell: Size) -> np.ndarray:
    """A picture (H, W, 3) uint8 or class ids (H, W) uint8 as large as the cell allows, undistorted."""
    height, width = array.shape[:2]
    factor = min(cell[0] / width, cell[1] / height)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    # class ids cannot be mixed
    how = Image.Resampling.NEAREST if array.ndim == 2 else Image.Resampling.LANCZOS
    return np.asarray(Image.fromarray(array).resize(size, how))


def grid(
    rows: Sequence[Sequence[Cell]],
    titles: Sequence[str],
    width: int,
    key: Sequence[tuple[str, Colour | None]] = (),
    note: str = "",
    bar: ScaleBar | None = None,
) -> Image.Image:
    """Pictures centred in columns of one width, titles above, captions under the pictures, legend and note below all.

    `key` lists the names and colours of the legend; a name without a colour stands for ignored pixels. `bar` explains
    the colours of heat maps.
    """
    lefts = [_MARGIN + column * (width + _BETWEEN) for column in range(len(titles))]
    heights = [max(cell.picture.shape[0] for cell in row) for row in rows]
    bottom = _MARGIN + _ABOVE + sum(heights) + _BELOW * len(rows)
    inner = lefts[-1] + width - _MARGIN
    below = legend(key, inner) if key else None
    bar_height = _BAR + 2 * _NOTE if bar else 0
    total = bottom + bar_height + (below.height + _BETWEEN if below else 0) + (2 * _NOTE if note else 0) + _MARGIN
    sheet = Image.new("RGB", (inner + 2 * _MARGIN, total), _PAPER)
    for left, title in zip(lefts, titles, strict=True):
        _write(sheet, left + width / 2, _MARGIN + _ABOVE / 2 - 4, title, _TITLE, _INK, width)
    top = _MARGIN + _ABOVE
    for row, height in zip(rows, heights, strict=True):
        for left, cell in zip(lefts, row, strict=True):
            sheet.paste(Image.fromarray(cell.picture), (left + (width - cell.picture.shape[1]) // 2, top))
            ink = _INK if cell.strong else _SOFT
            _write(sheet, left + width / 2, top + height + _BELOW // 2 - 3, cell.caption, _CAPTION, ink, width)
        top += height + _BELOW
    if bar:
        _draw_bar(sheet, lefts[bar.column], bottom, width, bar)
    if below:
        sheet.paste(below, (_MARGIN, bottom + bar_height + _BETWEEN))
    if note:
        _write(sheet, _MARGIN, total - _MARGIN - _NOTE // 2, note, _NOTE, _SOFT, inner, "lm")
    return sheet


def _write(
    sheet: Image.Image, x: float, y: float, text: str, size: int, ink: Colour, room: int, anchor: str = "mm"
) -> None:
    text = shortened(text, room, size)
    ImageDraw.Draw(sheet).text((x, y), text, ink, font(size, text), anchor=anchor)


def _draw_bar(sheet: Image.Image, left: int, top: int, width: int, bar: ScaleBar) -> None:
    ramp = coloured(np.linspace(bar.low, bar.high, width)[None].repeat(_BAR, axis=0), bar.low, bar.high)
    sheet.paste(Image.fromarray(ramp.astype(np.uint8)), (left, top))
    for x, value, anchor in ((left, bar.low, "lm"), (left + width, bar.high, "rm")):
        _write(sheet, x, top + _BAR + _NOTE, number(value), _NOTE, _SOFT, width, anchor)
