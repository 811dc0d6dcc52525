"""One confusion matrix over a whole set: every score derives from it, and so does what the scores leave out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError

_IDS = 256
"""A label or prediction is one byte."""


class Confusion:
    """Counts of (truth, prediction) pairs; its size does not grow with the number of images."""

    matrix: NDArray[np.int64]
    """(K, K): rows are the truth, columns the prediction."""

    def __init__(self, classes: int, matrix: NDArray[np.int64] | None = None) -> None:
        if not 0 < classes <= IGNORE:
            raise OrdnetError(f"a confusion matrix has between 1 and {IGNORE} classes, not {classes}")
        self.matrix = np.zeros((classes, classes), dtype=np.int64) if matrix is None else matrix
        if self.matrix.shape != (classes, classes):
            raise OrdnetError(f"a confusion matrix of shape {self.matrix.shape} does not hold {classes} classes")

    @property
    def classes(self) -> int:
        return len(self.matrix)

    def add(self, labels: Any, predictions: Any) -> None:
        """Count one or more label maps against their predictions: integer arrays or tensors of the same shape.

        Where the label is IGNORE nothing counts, whatever was predicted there.
        """
        truth, guess = _bytes(labels, "labels"), _bytes(predictions, "predictions")
        if truth.shape != guess.shape:
            raise OrdnetError(
                f"labels of shape {truth.shape} and predictions of shape {guess.shape}: expected the same"
            )
        # void is a row like any other until it is cut off: far faster than masking the pixels
        pairs = truth.astype(np.uint16) << 8
        pairs |= guess
        counts = np.bincount(pairs.ravel(), minlength=_IDS * _IDS).reshape(_IDS, _IDS)[:IGNORE]
        self._refuse(counts.sum(1), "labels", f", or {IGNORE} where nothing counts")
        self._refuse(counts.sum(0), "predictions", "")
        self.matrix += counts[: self.classes, : self.classes]

    def _refuse(self, counts: NDArray[np.int64], what: str, also: str) -> None:
        """`counts` of each id must be 0 beyond the classes."""
        outside = self.classes + np.flatnonzero(counts[self.classes :])
        if len(outside):
            found = ", ".join(f"{value} ({counts[value]:,} pixels)" for value in outside[:8])
            raise OrdnetError(f"{what} outside the classes: {found}; expected 0…{self.classes - 1}{also}")

    def __add__(self, other: "Confusion") -> "Confusion":
        if self.classes != other.classes:
            raise OrdnetError(f"confusion matrices of {self.classes} and {other.classes} classes cannot be added")
        return Confusion(self.classes, self.matrix + other.matrix)

    def iou(self) -> NDArray[np.float64]:
        """(K,) intersection over union, 0 to 1; NaN for a class that is neither in the truth nor predicted."""
        right = np.diagonal(self.matrix)
        return _ratio(right, self.matrix.sum(0) + self.matrix.sum(1) - right)

    def accuracy(self) -> NDArray[np.float64]:
        """(K,) part of each class's own pixels that is right, 0 to 1; NaN for a class that the truth does not have."""
        return _ratio(np.diagonal(self.matrix), self.matrix.sum(1))

    def precision(self) -> NDArray[np.float64]:
        """(K,) part of the pixels given to a class that are its own, 0 to 1; NaN for a class never predicted."""
        return _ratio(np.diagonal(self.matrix), self.matrix.sum(0))

    def recall(self) -> NDArray[np.float64]:
        """(K,) another name for `accuracy`."""
        return self.accuracy()

    def f1(self) -> NDArray[np.float64]:
        """(K,) harmonic mean of precision and recall, also called Dice: 2 IoU / (1 + IoU), and NaN where IoU is."""
        iou = self.iou()
        return 2 * iou / (1 + iou)

    def in_truth(self) -> NDArray[np.bool_]:
        """(K,) whether the truth has any pixel of the class."""
        return self.matrix.sum(1) > 0

    def predicted(self) -> NDArray[np.bool_]:
        """(K,) whether any pixel that counts was given to the class."""
        return self.matrix.sum(0) > 0

    def miou(self, absent_as_zero: bool = False) -> float:
        """Mean IoU over the classes that occur, in the truth or among the predictions. NaN if nothing was added.

        ADE20K's and EncNet's rule is `absent_as_zero`: the others count too, as 0.
        """
        iou = self.iou()
        return _mean(np.nan_to_num(iou) if absent_as_zero and self.matrix.any() else iou)

    def miou_by(self, groups: Sequence[str]) -> dict[str, float]:
        """Group → mean IoU over its classes that occur; `groups` has the group of each class, in class id order."""
        if len(groups) != self.classes:
            raise OrdnetError(f"{len(groups)} group names for {self.classes} classes: give each class one")
        iou = self.iou()
        return {name: _mean(iou[[group == name for group in groups]]) for name in dict.fromkeys(groups)}

    def pixel_accuracy(self) -> float:
        """Part of the pixels that count that is right, 0 to 1; NaN if there are none."""
        return float(_ratio(np.trace(self.matrix), self.matrix.sum()))

    def mean_accuracy(self) -> float:
        """Mean of `accuracy` over the classes that the truth has."""
        return _mean(self.accuracy())

    def final_score(self) -> float:
        """ADE20K's final score: the mean of pixel accuracy and mean IoU, here over the classes that occur."""
        return (self.pixel_accuracy() + self.miou()) / 2


def pascal_context_figures(confusion: Confusion, background: int = 0) -> dict[str, float]:
    """What papers call PASCAL-Context mIoU, each under its own name.

    `miou_59`: the 59 classes, background pixels left out. `miou_59_times_59_60`: the "60 classes with background" of
    EncNet's lineage, which counts background as always wrong and measures nothing new. `miou_60`: the true 60-class
    figure, only for a model that predicts background: 60 classes, of which `background` is the id.
    """
    if confusion.classes not in (59, 60):
        raise OrdnetError(f"PASCAL-Context has 59 classes, or 60 with background, not {confusion.classes}")
    figures = {}
    without = confusion
    if confusion.classes == 60:
        # background becomes void in the truth; predicted on a thing it is still a miss
        matrix = confusion.matrix.copy()
        matrix[background] = 0
        without = Confusion(60, matrix)
        figures["miou_60"] = confusion.miou()
    iou = without.iou()
    miou_59 = _mean(np.delete(iou, background) if confusion.classes == 60 else iou)
    return {"miou_59": miou_59, "miou_59_times_59_60": miou_59 * 59 / 60, **figures}


def _bytes(values: Any, what: str) -> NDArray[np.uint8]:
    """An array or a tensor on any device as uint8; a value that does not fit is an error, never wrapped around."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.integer):
        raise OrdnetError(f"{what} of type {array.dtype}: expected integers")
    if array.size and (array.min() < 0 or array.max() >= _IDS):
        raise OrdnetError(f"{what} lie between {array.min()} and {array.max()}: expected 0…{_IDS - 1}")
    return array.astype(np.uint8)


def _ratio(part: Any, whole: Any) -> NDArray[np.float64]:
    """Part / whole, NaN where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _mean(values: NDArray[np.float64]) -> float:
    """The mean of the values that are numbers; NaN if none is."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def miou_words(figures: dict[str, Any]) -> str:
    """ "mIoU 0.7100 over 7 of 8 classes"."""
    if figures.get("miou") is None:
        return "mIoU – (no pixel counts)"
    words = f"mIoU {figures['miou']:.4f}"
    if "miou_classes" in figures:
        words += f" over {classes_words(figures)}"
    return words


def classes_words(figures: dict[str, Any]) -> str:
    """ "7 of 8 classes": those that the mean is over."""
    total = len(figures["per_class_iou"])
    return f"{figures['miou_classes']} of {total} {'class' if total == 1 else 'classes'}"


def other_rule(figures: dict[str, Any]) -> str:
    """The mIoU by ADE20K's own rule, which counts absent classes as 0; empty where that is the same figure."""
    other = figures.get("miou_absent_as_zero")
    if other is None or other == figures.get("miou"):
        return ""
    return (
        f"mIoU {other:.4f} over all {len(figures['per_class_iou'])} classes, absent ones as 0 (ADE20K's and EncNet's)"
    )


def remarks(figures: dict[str, Any], limit: int = 8) -> list[str]:
    """Sentences about what these scores leave out; none where every class occurs and is predicted."""
    if "absent_classes" not in figures:
        return []
    found = []
    absent, total = figures["absent_classes"], len(figures["per_class_iou"])
    present = total - len(absent)
    if absent and present > 0:
        wrong = [name for name in absent if figures["per_class_iou"][name] is not None]
        found.append(
            f"not in the labels of {figures['split']}, so that nothing is known of {_them(absent)}: "
            f"{_listed(absent, limit)}"
            + (f"; predicted all the same, which counts as 0 in the mean: {_listed(wrong, limit)}" if wrong else "")
        )
    if present == 0:
        found.append(f"no pixel of {figures['split']} counts: there is nothing to score")
    elif present == 1:
        found.append(
            f"the labels of {figures['split']} have a single class: to call everything by its name is right "
            "everywhere, and the scores say nothing about telling classes apart"
        )
    if never := figures["never_predicted"]:
        found.append(f"never predicted: {_listed(never, limit)}")
    return found


def _listed(names: Sequence[str], limit: int) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"
