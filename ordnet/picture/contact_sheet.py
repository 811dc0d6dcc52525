"""Many small pictures on one sheet, with a legend below."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from ordnet.picture.letters import font, shortened
from ordnet.picture.overlay import NO_CLASS, Colour

_PAPER = (255, 255, 255)
_INK = (30, 30, 30)
_GAP = 8
_FONT_SIZE = 16
_SWATCH = 18
_LINE = 26


def contact_sheet(
    tiles: Sequence[np.ndarray],
    columns: int,
    captions: Sequence[str] | None = None,
    key: Sequence[tuple[str, Colour | None]] = (),
) -> Image.Image:
    """Pictures (H, W, 3) uint8 in a grid, by rows; cells are as large as the largest picture.

    `captions` stand below the pictures, shortened to fit. `key` lists the names and colours of the legend.
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

    A name without a colour stands for ignored pixels: its square is striped.
    """
    names = [shortened(name, width - _SWATCH - 2 * _GAP, _FONT_SIZE) for name, _ in key]
    longest = max((round(font(_FONT_SIZE, name).getlength(name)) for name in names), default=0)
    column = longest + _SWATCH + 4 * _GAP
    columns = max(1, (width + 3 * _GAP) // column)
    picture = Image.new("RGB", (width, max(1, -(-len(names) // columns) * _LINE)), _PAPER)
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
