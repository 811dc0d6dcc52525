"""Attention drawn over its picture: numbers as colours, several maps side by side, one row for each position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from ordnet.picture.overlay import Colour, font, overlay, shortened, write_names

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels, the last two exclusive."""

_PAPER, _INK, _SOFT = (255, 255, 255), (28, 37, 41), (98, 110, 117)
_MARK = (60, 235, 90)
_AREA, _WIDEST, _HIGHEST = 400 * 300, 560, 420
"""Pixels of one picture of the figure, and its longest sides where a picture is very wide or tall."""
_COLUMN = 260
"""Room that the words above and below a picture need, in pixels."""
_GAP, _LINE, _BAR = 22, 20, 12
_ABOVE = 64
_BELOW = 10 + _BAR + 4 * _LINE
"""Room for a bar, its numbers, and three notes."""
_MOST = 0.95
"""From this share of a map's weight on, words say that all or nearly all of it is below zero."""

SIGNED = ((5, 48, 97), (33, 102, 172), (103, 169, 207), (238, 240, 241), (239, 138, 98), (178, 24, 43), (103, 0, 31))
"""Blue below zero, next to white at zero, red above."""
SHARES = ((238, 240, 241), (253, 212, 158), (253, 141, 60), (217, 71, 1), (127, 39, 4))
"""Next to white at zero, then orange and brown."""
LIGHT = ((49, 31, 96), (48, 86, 146), (31, 143, 138), (118, 198, 92), (250, 232, 80))
"""From dark to bright: how far something is let through."""


@dataclass(frozen=True)
class Scale:
    """Which number has which colour."""

    colours: Sequence[Colour]
    low: float
    high: float
    """The colours go from `low` to `high` in even steps, and stay the same beyond."""
    start: float
    end: float
    """What the bar below a map shows; the colours may change in a part of it only."""


@dataclass(frozen=True)
class HeatMap:
    """Numbers at every place of a picture, and the words around them."""

    title: str
    subtitle: str
    sample: Callable[[int, int], np.ndarray]
    """(height, width) of the drawing → the numbers there; NaN where there are none."""
    scale: Scale
    notes: Sequence[str] = ()
    """At most two lines; `panels` may add one."""
    box: Box | None = None
    """Part of the picture to draw a border around, in its own pixels."""
    stamp: str = ""
    """Words across the map, where it would be misread without them."""


@dataclass(frozen=True)
class AttentionRow:
    """A row of the figure: one position of a picture (H, W, 3) uint8 and the maps that belong to it."""

    pixels: np.ndarray
    x: int
    y: int
    maps: Sequence[HeatMap]
    notes: Sequence[str] = ()
    labels: np.ndarray | None = None
    """The parse (H, W); without it there is no such panel."""
    classes: Sequence[str] = ()
    colours: Sequence[Colour] = ()


def attention_figure(rows: Sequence[AttentionRow], across: int | None = None) -> Image.Image:
    """A row of panels for each position: the picture with a cross, the maps, the parse. Titles are above the first.

    All rows have the same kinds of maps, as positions of one model do. With `across`, that many panels are side by side
    and the others below them, for narrow screens; then every panel has its title.
    """
    if not rows:
        raise ValueError("a figure of attention needs at least one position")
    lines = [panels(row) for row in rows]
    across = across or len(lines[0])
    grid = [line[place : place + across] for line in lines for place in range(0, len(line), across)]
    titled = [place == 0 or across < len(lines[0]) for place in range(len(grid))]
    width = max(_COLUMN, *(panel.picture.width for row in grid for panel in row))
    heights = [max(panel.picture.height for panel in row) for row in grid]
    size = _GAP + (width + _GAP) * across, _ABOVE * sum(titled) + sum(heights) + (_BELOW + _GAP) * len(grid)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = 0
    for row, height, with_title in zip(grid, heights, titled, strict=True):
        top += _ABOVE if with_title else 0
        for place, panel in enumerate(row):
            left = _GAP + place * (width + _GAP)
            if with_title:
                draw.text((left, top - 34), panel.title, _INK, font(20, panel.title), anchor="ls")
                draw.text((left, top - 13), panel.subtitle, _SOFT, font(14, panel.subtitle), anchor="ls")
            sheet.paste(panel.picture, (left, top))
            _draw_below(sheet, panel, left, top + height + 10, width)
        top += height + _BELOW + _GAP
    return sheet


@dataclass(frozen=True)
class Panel:
    """One picture of the figure, and the words around it."""

    title: str
    subtitle: str
    picture: Image.Image
    notes: Sequence[str]
    scale: Scale | None = None
    swatch: Colour | None = None
    """The colour of what the first note names."""


def panels(row: AttentionRow) -> list[Panel]:
    """What the figure shows of one position, each part by itself."""
    height, width = row.pixels.shape[:2]
    factor = min((_AREA / (width * height)) ** 0.5, _WIDEST / width, _HIGHEST / height)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    at = (row.x + 0.5) * size[0] / width, (row.y + 0.5) * size[1] / height
    way = Image.Resampling.LANCZOS if factor < 4 else Image.Resampling.NEAREST  # tiny pictures show their pixels
    photo = Image.fromarray(row.pixels).resize(size, way)
    shown = [Panel("picture", "the position is marked", _marked(photo, at), row.notes)]
    for heat in row.maps:
        values = heat.sample(size[1], size[0])
        drawn = Image.fromarray(tinted(np.asarray(photo), values, heat.scale.low, heat.scale.high, heat.scale.colours))
        if heat.box is not None:
            _frame(drawn, heat.box, (size[0] / width, size[1] / height))
        if heat.stamp:
            _stamp(drawn, heat.stamp)
        shown.append(Panel(heat.title, heat.subtitle, _marked(drawn, at), [*heat.notes, *_mostly(values)], heat.scale))
    if row.labels is not None:
        labels = np.asarray(Image.fromarray(row.labels).resize(size, Image.Resampling.NEAREST))
        parse = Image.fromarray(overlay(np.asarray(photo), labels, row.colours, 0.6))
        write_names(parse, labels, row.classes)
        here = int(row.labels[row.y, row.x])
        found = [f"here: {row.classes[here]}"]
        shown.append(Panel("parse", "the class of every pixel", _marked(parse, at), found, swatch=row.colours[here]))
    return shown


def _mostly(values: np.ndarray) -> list[str]:
    """A note on a map of one colour, blue: it is no failure, and no lack of attention.

    A branch adds up a_j v_j over the places j. Without softmax a weight a_j may be negative: v_j is then subtracted.
    Weights that are shares, and gates, are never negative.
    """
    known = values[~np.isnan(values)]
    below, all_ = float(-known[known < 0].sum()), float(np.abs(known).sum())
    if below == 0 or below < _MOST * all_:
        return []
    return [f"{'all' if (known <= 0).all() else 'nearly all'} of its weight takes away"]


def tinted(
    photo: np.ndarray, values: np.ndarray, low: float, high: float, colours: Sequence[Colour] = LIGHT
) -> np.ndarray:
    """Values (H, W) as colours (H, W, 3) uint8 through which the photo's light and dark can be seen.

    Where there is no value (NaN), the photo alone is shown, in pale grey.
    """
    grey = np.asarray(Image.fromarray(photo).convert("L"), dtype=np.float32)[..., None] / 255
    known = coloured(values, low, high, colours) * (0.62 + 0.38 * grey)
    return np.where(np.isnan(values)[..., None], 255 * (0.72 + 0.22 * grey), known).astype(np.uint8)


def coloured(values: np.ndarray, low: float, high: float, colours: Sequence[Colour] = LIGHT) -> np.ndarray:
    """Values (…) → RGB (…, 3) float32 in 0..255: `colours` in even steps from `low` to `high`, the same beyond."""
    table = np.array(colours, dtype=np.float32)
    # a scale without extent has one colour, the middle one
    share = (values - low) / (high - low) if high > low else np.full(np.shape(values), 0.5)
    place = np.nan_to_num(share) * (len(table) - 1)
    return np.stack([np.interp(place, np.arange(len(table)), row) for row in table.T], axis=-1).astype(np.float32)


def number(value: float) -> str:
    """Two significant digits, as short as can be read."""
    mantissa, _, power = f"{value:.2g}".partition("e")
    return mantissa + (f"e{int(power)}" if power else "")


def _draw_below(sheet: Image.Image, panel: Panel, left: int, top: int, width: int) -> None:
    """The bar with its numbers, and the notes."""
    draw = ImageDraw.Draw(sheet)
    if panel.scale is not None:
        start, end = panel.scale.start, panel.scale.end
        bar_width = max(_COLUMN, panel.picture.width)
        values = np.linspace(start, end, bar_width)[None].repeat(_BAR, axis=0)
        ramp = coloured(values, panel.scale.low, panel.scale.high, panel.scale.colours)
        sheet.paste(Image.fromarray(ramp.astype(np.uint8)), (left, top))
        draw.rectangle((left, top, left + bar_width - 1, top + _BAR - 1), outline=_SOFT)
        top += _BAR
        for share, value, anchor in ((0.0, start, "ls"), (0.5, (start + end) / 2, "ms"), (1.0, end, "rs")):
            draw.text((left + share * bar_width, top + _LINE - 4), number(value), _SOFT, font(14), anchor=anchor)
        top += _LINE
    if panel.swatch is not None:
        draw.rectangle((left, top + 2, left + 15, top + 17), panel.swatch, _INK)
        left, width = left + 24, width - 24
    for line in panel.notes:
        draw.text((left, top + 15), shortened(line, width, 14), _INK, font(14, line), anchor="ls")
        top += _LINE


def _stamp(image: Image.Image, words: str) -> None:
    """Words on a dark band along the lower edge, over the whole width."""
    size = 16 if image.width >= 200 else 12
    shown = shortened(words, image.width - 8, size)
    top = max(0, image.height - 2 * size)
    band = image.crop((0, top, image.width, image.height))
    image.paste(Image.blend(band, Image.new("RGB", band.size, _INK), 0.85), (0, top))
    middle = image.width / 2, (top + image.height) / 2
    ImageDraw.Draw(image).text(middle, shown, _PAPER, font(size, shown), anchor="mm")


def _frame(image: Image.Image, box: Box, factor: tuple[float, float]) -> None:
    left, right = (round(side * factor[0]) for side in box[0::2])
    top, bottom = (round(side * factor[1]) for side in box[1::2])
    draw = ImageDraw.Draw(image)
    draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=_INK, width=2)


def _marked(image: Image.Image, at: tuple[float, float]) -> Image.Image:
    """A copy with a cross at the place."""
    marked = image.copy()
    draw = ImageDraw.Draw(marked)
    x, y = (min(int(place), side - 1) for place, side in zip(at, image.size, strict=True))
    for reach, width, colour in ((11, 5, _INK), (10, 3, _MARK)):
        draw.line((x - reach, y, x + reach, y), colour, width)
        draw.line((x, y - reach, x, y + reach), colour, width)
    return marked
