"""Where a parse is wrong, and which class was taken for which."""

from typing import NamedTuple

import numpy as np

from ordnet.picture.overlay import overlay

_PALE = (245, 245, 245)
_RED = (220, 20, 45)
_STRENGTH = 0.65


class Mistake(NamedTuple):
    truth: int
    taken_for: int
    pixels: int


def most_frequent(matrix: np.ndarray, count: int) -> list[Mistake]:
    """Of a confusion matrix (K, K), rows the truth: the pairs of different classes with the most pixels, most first."""
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
