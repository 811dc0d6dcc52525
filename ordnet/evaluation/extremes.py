"""The pictures a network parses best and worst, picked out while all of them go by."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from ordnet.data.labels import IGNORE

_SIDE = 640
"""Kept pictures are made this small, so that a few of them take little memory."""


@dataclass(frozen=True)
class Seen:
    """One picture with its truth and its parse, small enough to be kept."""

    index: int
    """Its place in the data set."""
    accuracy: float
    """Share of its pixels that are right, of those that count."""
    mistake: tuple[int, int, float] | None
    """The most frequent one: the true class, what it was taken for, the share of the pixels that count."""
    image: np.ndarray
    truth: np.ndarray
    labels: np.ndarray


class Extremes:
    """Keeps the `count` pictures of the highest and of the lowest pixel accuracy."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        """Pictures that had pixels that count."""
        self._kept: list[Seen] = []

    def add(self, index: int, image: np.ndarray, truth: np.ndarray, labels: np.ndarray) -> None:
        """Image (H, W, 3), class ids (H, W) as they are and as they were parsed."""
        counting = truth != IGNORE
        total = int(counting.sum())
        if not total:
            return
        self.seen += 1
        wrong = counting & (truth != labels)
        accuracy = 1 - int(wrong.sum()) / total
        if len(self._kept) >= 2 * self.count:
            worst, best = self._kept[self.count - 1], self._kept[self.count]
            if worst.accuracy <= accuracy <= best.accuracy:
                return
        small, truth_small, labels_small = (_small(array) for array in (image, truth, labels))
        mistake = _most_frequent(truth[wrong], labels[wrong], total)
        self._kept.append(Seen(index, accuracy, mistake, small, truth_small, labels_small))
        self._kept.sort(key=lambda seen: (seen.accuracy, seen.index))
        if len(self._kept) > 2 * self.count:
            del self._kept[self.count]

    @property
    def worst(self) -> list[Seen]:
        """The worst first; never one that is among the best."""
        return self._kept[: len(self._kept) // 2]

    @property
    def best(self) -> list[Seen]:
        """The best first."""
        return self._kept[len(self._kept) // 2 :][::-1]


def _most_frequent(truth: np.ndarray, labels: np.ndarray, total: int) -> tuple[int, int, float] | None:
    if truth.size == 0:
        return None
    counts = np.bincount(truth.astype(np.int64) * 256 + labels)
    pair = int(counts.argmax())
    return pair // 256, pair % 256, float(counts[pair] / total)


def _small(array: np.ndarray) -> np.ndarray:
    """A copy whose longer side has at most _SIDE pixels; class ids are picked, colours are mixed."""
    height, width = array.shape[:2]
    if max(height, width) <= _SIDE:
        return array.copy()
    factor = _SIDE / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    how = Image.Resampling.BOX if array.ndim == 3 else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(array).resize(size, how))
