"""What a data set holds: pixels of each class, counted once and kept between runs, and what follows from them.

Automatic splits, class weights and remarks to the user depend on the counts. Where counting takes more than two
seconds they are kept in the user's cache directory, each with a stamp of its label file, so that a changed label is
counted again.

`correlate` says how often two pixels share a class, inside patches of a label map and between them (the paper's
Eq. 3–4).
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.dataset import Dataset
from ordnet.data.labels import IGNORE
from ordnet.data.pictures import opened
from ordnet.data.shards import stamp
from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.progress import progress

_SLOW = 2.0
"""Seconds after which a progress bar appears and the counts are worth keeping."""

_Entry = list[Any]
"""Size and time of the label file, its classes and how many pixels each has."""


def label_counts(dataset: Dataset, seconds: float | None = None) -> tuple[np.ndarray, int]:
    """Pixels (N, 256) of each class id in each label, and how many labels were counted: as many as `seconds` allow.

    A label that cannot be read counts as one without pixels: `ordnet data check` names it.
    """
    store = _place(dataset)
    kept = _kept(store)
    counts = np.zeros((len(dataset.ids), 256), np.uint32)
    started, fresh, done = time.monotonic(), 0, 0
    with ExitStack() as stack:
        advance: Callable[[], object] | None = None
        for index in range(len(dataset.ids)):
            waited = time.monotonic() - started
            if seconds is not None and waited > seconds:
                break
            if advance is None and waited > _SLOW:
                bar = stack.enter_context(progress())
                task = bar.add_task("counting classes in labels", total=len(dataset.ids), completed=index)
                advance = partial(bar.advance, task)
            name = dataset.files(index)[1]
            now = list(stamp(name) or (-1, -1))
            entry = kept.get(name)
            if entry is None or entry[:2] != now:
                row = _count(dataset, index)
                present = np.flatnonzero(row)
                entry = [*now, present.tolist(), row[present].tolist()]
                kept[name] = entry
                fresh += 1
            counts[index, entry[2]] = entry[3]
            done += 1
            if advance is not None:
                advance()
    if fresh and store is not None and time.monotonic() - started > _SLOW:
        _keep(store, kept)
    return counts, done


def _count(dataset: Dataset, index: int) -> np.ndarray:
    """Pixels (256,) of each class id."""
    try:
        return np.bincount(dataset.label(index).ravel(), minlength=256)
    except OrdnetError:
        return np.zeros(256, np.int64)


def _place(dataset: Dataset) -> Path | None:
    """The file that keeps the counts of labels in this folder that are read in this way; none for generated labels."""
    name = dataset.files(0)[1] if len(dataset.ids) else ""
    if stamp(name) is None:
        return None
    read = getattr(dataset, "read", None)
    how = (repr(getattr(read, "func", read)).split(" at ")[0], repr(sorted(getattr(read, "keywords", {}).items())))
    mark = f"{Path(name).resolve().parent} {sorted(dataset.rule.raw_to_class.items())} {how}"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "ordnet", "counts", f"{hashlib.sha256(mark.encode(errors='replace')).hexdigest()[:24]}.json")


def _kept(store: Path | None) -> dict[str, _Entry]:
    if store is None:
        return {}
    try:
        entries = json.loads(store.read_bytes())
        sound = isinstance(entries, dict) and all(_is_entry(entry) for entry in entries.values())
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if sound else {}


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 4
        and isinstance(entry[2], list)
        and isinstance(entry[3], list)
        and len(entry[2]) == len(entry[3])
        and all(isinstance(c, int) and 0 <= c < 256 for c in entry[2])
        and all(isinstance(n, int) and 0 <= n < 2**32 for n in entry[3])
    )


def _keep(store: Path, entries: dict[str, _Entry]) -> None:
    try:
        write_text(store, json.dumps(entries))
    except (OSError, ValueError):  # read-only or full, or a name that is not text: the only loss is counting again
        return


_LARGE = 3
"""Pictures whose long side is this many crops are far larger than what training sees at once."""


def remarks(dataset: Dataset, pixels: np.ndarray, empty: int) -> list[str]:
    """Sentences for the user, from the pixels (256,) of each class id over all labels and the number of labels that are
    `empty`: no pixel of theirs counts."""
    names, split = dataset.classes.names, dataset.split
    present = [class_id for class_id in range(len(names)) if pixels[class_id]]
    told = []
    if len(names) == 1:
        told.append(
            f"there is one class only, {names[0]!r}: whatever is predicted is right. A second one, such as background, "
            "makes it a task"
        )
    elif len(present) == 1:
        told.append(f"all that counts in {split} is {names[present[0]]!r}: a score there says nothing")
    if present and len(present) < len(names):
        absent = ", ".join(name for class_id, name in enumerate(names) if class_id not in present)
        told.append(
            f"never in {split}: {absent}" + (" (no IoU there, or 0 if it is predicted)" if split != "train" else "")
        )
    if dataset.name == "folder" and present and 0 not in present and dataset.rule.raw_to_class.get(0) == 0:
        told.append(
            f"no label of {split} holds 0, which is {names[0]!r}: if your labels count from 1, write `ignore` as the "
            "first line of classes.txt"
        )
    if empty and present:
        has = "label of {} has" if empty == 1 else "labels of {} have"
        told.append(f"{empty:,} {has.format(split)} no pixel that counts")
    return told


def size_remark(sides: Sequence[int], crop: int) -> str | None:
    """Advice where the long sides of pictures are far larger than the `crop` that training sees at once."""
    if not sides or (middle := sorted(sides)[len(sides) // 2]) < _LARGE * crop:
        return None
    return (
        f"half of the pictures have a long side of {middle:,} pixels or more, and a training crop of {crop} shows a "
        f"small part of them; `--set data.long_side={2 * crop}` shrinks them while loading, which makes training "
        "faster too, and later while parsing"
    )


_SIZED = 100
"""Pictures whose sizes are read, evenly spread over the split."""
_LARGEST_WEIGHT = 10
"""Times the smallest class weight."""


def class_weights(dataset: Dataset) -> tuple[float, ...]:
    """The weights that balance the classes of its labels. Counts are remembered, see `label_counts`."""
    counts, _ = label_counts(dataset)
    return balancing_weights(counts[:, : len(dataset.classes)].sum(axis=0, dtype=np.int64))


def balancing_weights(pixels: np.ndarray) -> tuple[float, ...]:
    """Weights for the cross-entropy that make rare classes count more, from the pixels of each class.

    ENet's rule, 1 / ln(1.02 + share of the pixels), grows slower than one over the share. The largest weight is at most
    ten times the smallest: beyond that, a few pixels decide each step. The mean weight of a pixel is 1, so that the
    learning rate keeps its meaning; classes that never occur get 1.
    """
    if not pixels.any():
        return (1.0,) * len(pixels)
    share = pixels / pixels.sum()
    weights = 1 / np.log(1.02 + share)
    weights = np.minimum(weights, _LARGEST_WEIGHT * weights[share > 0].min())
    weights /= (share * weights).sum()
    return tuple(float(f"{weight:.4g}") for weight in np.where(share > 0, weights, 1.0))


def long_sides(dataset: Dataset) -> list[int]:
    """The long sides of pictures that are evenly spread over the data set; those that cannot be read are left out."""
    count = len(dataset.ids)
    sides = []
    for index in range(0, count, max(1, count // _SIZED)):
        file = dataset.files(index)[0]
        try:
            if stamp(file) is not None:
                with opened(file) as picture:  # its header is enough
                    sides.append(max(picture.size))
            else:  # drawn
                sides.append(max(dataset.image(index).size))
        except OrdnetError:
            continue  # broken pictures are reported elsewhere
    return sides


@dataclass(frozen=True)
class Correlation:
    """The mean over many label maps, each cut into patches x patches parts that are ordered by rows."""

    patches: int
    matrix: np.ndarray
    """(patches², patches²), 0..1: the chance that a pixel of patch m and one of patch n have the same class.
    NaN where no label map had both patches."""
    images: int

    @property
    def intra(self) -> float:
        """Mean over the patches with themselves; NaN without any."""
        return _mean(np.diagonal(self.matrix))

    @property
    def inter(self) -> float:
        """Mean over pairs of different patches; NaN without any."""
        return _mean(self.matrix[~np.eye(len(self.matrix), dtype=bool)])


def correlate(labels: Iterable[np.ndarray], patches: Sequence[int]) -> list[Correlation]:
    """One `Correlation` for each number in `patches`, over class ids (H, W), each read once.

    A patch of which every pixel is ignored (or that has no pixel) is left out of that label map's share of the mean.
    """
    if not patches or min(patches) < 1:
        raise OrdnetError(f"patches are counted along one side, 1 or more: got {list(patches)}")
    sums = [np.zeros((p * p, p * p)) for p in patches]
    counts = [np.zeros((p * p, p * p), dtype=np.int64) for p in patches]
    images = 0
    for label in labels:
        images += 1
        for matrix, total, count in zip(_matrices(label, patches), sums, counts, strict=True):
            known = ~np.isnan(matrix)
            total[known] += matrix[known]
            count += known
    means = [
        np.where(count > 0, total / np.maximum(count, 1), np.nan) for total, count in zip(sums, counts, strict=True)
    ]
    return [Correlation(p, mean, images) for p, mean in zip(patches, means, strict=True)]


def patch_correlation(histograms: np.ndarray) -> np.ndarray:
    """Eq. 3 of one label map, from its patches' class histograms: (patches², patches²), NaN where a patch is empty.

    Eq. 3 sums over pairs of pixels. Pairs that agree in class c number h_m(c) · h_n(c), with h a patch's class
    histogram, so that the sum over pairs is a product of histograms.
    """
    sizes = histograms.sum(axis=1, keepdims=True)
    shares = np.divide(histograms, sizes, out=np.full(histograms.shape, np.nan), where=sizes > 0)
    return shares @ shares.T


def patch_histograms(label: np.ndarray, patches: int) -> np.ndarray:
    """Pixels per class and patch (patches², 255), patches by rows, cut at i·H//patches; ignored pixels left out."""
    rows, columns = ([i * side // patches for i in range(patches + 1)] for side in label.shape)
    return np.stack(
        [
            np.bincount(label[rows[y] : rows[y + 1], columns[x] : columns[x + 1]].ravel(), minlength=256)[:IGNORE]
            for y in range(patches)
            for x in range(patches)
        ]
    )


def _matrices(label: np.ndarray, patches: Sequence[int]) -> list[np.ndarray]:
    """One correlation matrix for each number in `patches`. Pixels are counted only for numbers that divide no other."""
    counted: dict[int, np.ndarray] = {}
    for p in sorted(set(patches), reverse=True):
        finer = next((q for q in counted if q % p == 0), None)
        counted[p] = patch_histograms(label, p) if finer is None else _merged(counted[finer], finer, p)
    return [patch_correlation(counted[p]) for p in patches]


def _merged(histograms: np.ndarray, finer: int, patches: int) -> np.ndarray:
    """Histograms of finer² patches → of patches², where `patches` divides `finer`, so that their bounds coincide."""
    step = finer // patches
    return histograms.reshape(patches, step, patches, step, -1).sum(axis=(1, 3)).reshape(patches**2, -1)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
