"""Label maps as colours: laid over their picture, or with the pixels marked that are wrong."""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Colour = tuple[int, int, int]

NO_CLASS = (128, 128, 128)
"""The grey of labels that have no colour, such as ignored pixels."""

QUICK_PNG: dict[str, Any] = {"compress_level": 3, "compress_type": zlib.Z_RLE}
"""How `Image.save` packs what we draw. Runs of equal bytes are nearly all there is to find in photos and label maps:
looking for nothing else takes 0.6 of the time, and the files are as large."""

_DARKEN = 0.35
_STRIPE = 8
"""Ignored pixels carry diagonal stripes this many pixels apart."""
_BLENDED = 2**16
"""Pixels that are blended at once: what lies between the picture and the result then stays in the processor's cache."""


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
    coloured = _table(colours) * np.uint16(weight)
    # a multiple of the stripes' distance, so that they run on
    rows = max(1, _BLENDED // max(1, image.shape[1] * _STRIPE)) * _STRIPE
    for top in range(0, len(image), rows):
        part = slice(top, top + rows)
        blended = image[part] * np.uint16(256 - weight)
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
