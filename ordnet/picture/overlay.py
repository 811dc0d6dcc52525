"""Label maps over pictures: as colours, with the wrong pixels marked, and with class names where a region has room.

Words on other pictures are written with the same fonts (`font`, `shortened`).
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Colour = tuple[int, int, int]

NO_CLASS = (128, 128, 128)
"""The grey of labels that have no colour, such as ignored pixels."""

QUICK_PNG: dict[str, Any] = {"compress_level": 3, "compress_type": zlib.Z_RLE}
"""How `Image.save` compresses what we draw. Runs of equal bytes are nearly all that there is to compress in photos and
label maps: looking for nothing else takes 0.6 of the time, and the files are as large."""

_DARKEN = 0.35
_STRIPE = 8
"""Ignored pixels carry diagonal stripes this many pixels apart."""
_BLENDED = 2**16
"""Pixels that are blended at once, so that intermediate results stay in the processor's cache."""


def colour_map(labels: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """Class ids (H, W) uint8 → (H, W, 3) uint8. Labels beyond the colours (ignored pixels) become NO_CLASS."""
    return _table(colours)[labels]


def overlay(image: np.ndarray, labels: np.ndarray, colours: Sequence[Colour], strength: float = 0.5) -> np.ndarray:
    """The picture (H, W, 3) uint8 with each class's colour blended over it, as (H, W, 3) uint8.

    `strength` goes from 0, the picture alone, to 1, the colours alone. Labels beyond the colours (ignored pixels)
    are darkened and striped, so that nobody takes them for a class.
    """
    if image.shape[:2] != labels.shape:
        raise ValueError(f"the picture has {image.shape[:2]} pixels, the labels {labels.shape}: they must be the same")
    if not 0 <= strength <= 1:
        raise ValueError(f"strength goes from 0 to 1, not {strength}")
    result = np.empty_like(image)
    # in whole numbers of 1/256, which are exact and half the size of floats
    weight = round(strength * 256)
    coloured = np.multiply(_table(colours), weight, dtype=np.uint16)
    # a multiple of the stripes' distance, so that they run on
    rows = max(1, _BLENDED // max(1, image.shape[1] * _STRIPE)) * _STRIPE
    for top in range(0, len(image), rows):
        part = slice(top, top + rows)
        blended = np.multiply(image[part], 256 - weight, dtype=np.uint16)
        blended += coloured.take(labels[part], axis=0)
        blended >>= 8
        result[part] = blended
        if strength > 0:
            _mark(result[part], image[part], labels[part] >= len(colours))
    return result


def _table(colours: Sequence[Colour]) -> np.ndarray:
    table = np.full((256, 3), NO_CLASS, dtype=np.uint8)
    table[: len(colours)] = np.asarray(colours, dtype=np.uint8).reshape(-1, 3)
    return table


def _mark(result: np.ndarray, image: np.ndarray, where: np.ndarray) -> None:
    """Darken the picture and draw stripes `where` (H, W) is true, in place."""
    rows, columns = np.nonzero(where)
    if rows.size == 0:
        return
    stripes = (rows + columns) % _STRIPE < 1
    result[rows, columns] = (image[rows, columns] * _DARKEN).astype(np.uint8)
    result[rows[stripes], columns[stripes]] = NO_CLASS


_PALE = (245, 245, 245)
_RED = (220, 20, 45)
_STRENGTH = 0.65


class Mistake(NamedTuple):
    """One class taken for another."""

    truth: int
    taken_for: int
    pixels: int


def most_frequent(matrix: np.ndarray, count: int) -> list[Mistake]:
    """The pairs of classes confused on the most pixels, most first. `matrix` (K, K) has the truth in its rows."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    found = (Mistake(int(i // len(wrong)), int(i % len(wrong)), int(wrong.flat[i])) for i in order)
    return [mistake for mistake in found if mistake.pixels]


def marked(image: np.ndarray, truth: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The picture (H, W, 3) pale and grey, its wrong pixels red; pixels without a true class dark and striped."""
    grey = np.repeat(image.mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2)
    codes = (truth != labels).astype(np.uint8)
    codes[truth >= classes] = 255
    return overlay(grey, codes, (_PALE, _RED), _STRENGTH)


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_ALSO = "…"
"""The only character outside ASCII that we write and that Pillow's own font has."""


def font(size: int, text: str = "") -> Font:
    """A font of this size in pixels that has all letters of `text`."""
    plain = text.replace(_ALSO, "").isascii()
    return _plain(size) if plain else _wide(size, font_file(text))


def shortened(text: str, width: float, size: int) -> str:
    """The text, or its beginning and an ellipsis where it is wider than `width` pixels."""
    letters = font(size, text)
    if letters.getlength(text) <= width:
        return text
    kept = bisect_right(range(len(text)), width, key=lambda count: letters.getlength(text[:count] + "…")) - 1
    return text[: max(0, kept)].rstrip() + "…"


@lru_cache(maxsize=16)
def _plain(size: int) -> Font:
    return ImageFont.load_default(size)


@lru_cache(maxsize=16)
def _wide(size: int, file: str) -> Font:
    return ImageFont.truetype(file, size)


@lru_cache(maxsize=1024)
def font_file(text: str) -> str:
    """The font that comes with matplotlib, which has Latin with all its accents, Greek, Cyrillic and more; for other
    letters, such as Chinese ones, a font of this computer that has them, if there is one."""
    from matplotlib import font_manager

    usual = font_manager.findfont("DejaVu Sans")
    needed = {ord(letter) for letter in text if not letter.isspace()} - {ord(_ALSO)}

    def lacks(file: str) -> int:
        try:
            return len(needed - font_manager.get_font(file).get_charmap().keys())
        except (OSError, RuntimeError):  # a damaged one
            return len(needed)

    if not lacks(usual):
        return usual
    # one font has a box with a number for every letter there is
    known = [
        entry for entry in font_manager.fontManager.ttflist if entry.style == "normal" and "Last" not in entry.name
    ]
    return min([usual, *(entry.fname for entry in known)], key=lacks)


_CELLS = 200
"""The label map is sampled at up to this many rows and columns."""
_SMALLEST = 11
"""Letters below this many pixels cannot be read: the region then gets no name."""
_LARGEST = 160
_FIRST, _FURTHER = 0.004, 0.05
"""The least share of the picture of a class's largest region, and of any other of its regions, that gets a name."""
_INSIDE = 0.98
"""The part of a name's box that must lie in its region: specks of other classes do no harm."""
_LEADING = 1.2
_AIR = (12, 9, 7, 5, 4, 3, 2, 1, 0.6)
"""Free space around a name in letter sizes, half on either side. A name goes where it has the most."""
_HALO = [min(215, round(value * 1.3)) for value in range(256)]
"""How dark a name's blurred outline makes what lies behind it."""
_SMALLER = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Sizes of letters to try where the wanted size does not fit."""


@dataclass(frozen=True)
class Name:
    """A class's name and where it is written, in pixels."""

    class_id: int
    text: str
    """Has line breaks where it does not fit in one line."""
    x: int
    y: int
    """The centre."""
    size: int
    """The height of the letters."""

    def extent(self) -> tuple[float, float]:
        """Width and height."""
        lines = self.text.split("\n")
        letters = font(self.size, self.text)
        return max(letters.getlength(line) for line in lines), len(lines) * self.size * _LEADING


def write_names(image: Image.Image, labels: np.ndarray, names: Sequence[str]) -> None:
    """Draw into the picture. `labels` (H, W) has its size; labels beyond the names (ignored pixels) stay unnamed."""
    for name in place_names(labels, names):
        _draw(image, name)


def place_names(labels: np.ndarray, names: Sequence[str]) -> list[Name]:
    """A name for each region of the map (H, W) that has room for it. Names lie in their regions, apart from one
    another and from the picture's edge."""
    step = max(1, -(-max(labels.shape) // _CELLS))
    cells = labels[step // 2 :: step, step // 2 :: step]
    wanted = min(_LARGEST, max(14, min(labels.shape) // 22))
    placed: list[Name] = []
    for class_id, region in _large_regions(cells, len(names)):
        name = _placed(class_id, names[class_id], wanted, region, step)
        if name is not None:
            placed.append(name)
    return placed


def _placed(class_id: int, text: str, wanted: int, region: np.ndarray, step: int) -> Name | None:
    """The name in its region, a map (h, w) of cells of `step` pixels; None where there is no room."""
    where = np.argwhere(region)
    first, last, middle = where.min(axis=0), where.max(axis=0), where.mean(axis=0)
    part = region[first[0] : last[0] + 1, first[1] : last[1] + 1]
    table = np.pad(part, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    for layout, size, air in _trials(text, wanted):
        width, height = Name(class_id, layout, 0, 0, size).extent()
        box = [-(-round(side + air * size) // step) for side in (height, width)]
        corners = np.argwhere(_sums(table, *box) >= _INSIDE * box[0] * box[1])
        if len(corners):
            centres = corners + first + np.array(box) / 2
            row, column = centres[np.argmin(((centres - middle) ** 2).sum(axis=1))] * step
            return Name(class_id, layout, round(column), round(row), size)
    return None


def _trials(text: str, wanted: int) -> Iterator[tuple[str, int, float]]:
    """Text, size of letters and the space around it, from the best to the barely readable."""
    layouts = [text, text.replace(" ", "\n")] if " " in text else [text]
    for layout in layouts:
        yield from ((layout, wanted, air) for air in _AIR)
    for part in _SMALLER:
        if int(part * wanted) >= _SMALLEST:
            yield from ((layout, int(part * wanted), _AIR[-1]) for layout in layouts)


def _sums(table: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The sums over all boxes of rows x columns cells, from a summed-area table (h + 1, w + 1); empty if none fits."""
    if rows >= table.shape[0] or columns >= table.shape[1]:
        return np.zeros((0, 0))
    return (
        table[rows:, columns:] - table[:-rows, columns:] - table[rows:, :-columns] + table[:-rows, :-columns]
    )  # fmt: skip


def _large_regions(cells: np.ndarray, classes: int) -> Iterator[tuple[int, np.ndarray]]:
    """Class and mask (h, w) of the connected regions that are large enough, largest first."""
    regions = connected(cells)
    ids, first, counts = np.unique(regions, return_index=True, return_counts=True)
    seen: set[int] = set()
    for place in np.argsort(-counts, kind="stable"):
        class_id = int(cells.flat[first[place]])
        share = counts[place] / cells.size
        if share < _FIRST:
            return
        if class_id < classes and (share >= _FURTHER or class_id not in seen):
            seen.add(class_id)
            yield class_id, regions == ids[place]


def connected(cells: np.ndarray) -> np.ndarray:
    """A map (h, w) of classes → a number for each region of one class whose cells touch at their sides."""
    index = np.arange(cells.size).reshape(cells.shape)
    beside, below = cells[:, 1:] == cells[:, :-1], cells[1:] == cells[:-1]
    one = np.concatenate([index[:, 1:][beside], index[1:][below]])
    other = np.concatenate([index[:, :-1][beside], index[:-1][below]])
    # every cell points to a cell of its region with a smaller number; neighbours join, then all point to the root
    root = index.ravel()
    while True:
        a, b = root[one], root[other]
        apart = a != b
        if not apart.any():
            return root.reshape(cells.shape)
        a, b = a[apart], b[apart]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while (root[root] != root).any():
            root = root[root]


def _draw(image: Image.Image, name: Name) -> None:
    """White letters in a soft dark halo: readable on any colour."""
    width, height = name.extent()
    blur = max(1.0, name.size / 9)
    reach_x, reach_y = round(width / 2 + 5 * blur), round(height / 2 + 5 * blur)
    letters = font(name.size, name.text)
    write = partial(
        ImageDraw.ImageDraw.multiline_text, text=name.text, font=letters, anchor="mm", align="center",
        spacing=name.size * (_LEADING - 1),
    )  # fmt: skip
    halo = Image.new("L", (2 * reach_x, 2 * reach_y))
    write(ImageDraw.Draw(halo), (reach_x, reach_y), fill=255, stroke_width=max(1, name.size // 9))
    halo = halo.filter(ImageFilter.GaussianBlur(blur)).point(_HALO)
    image.paste((12, 14, 18), (name.x - reach_x, name.y - reach_y), halo)
    write(ImageDraw.Draw(image), (name.x, name.y), fill=(255, 255, 255))
