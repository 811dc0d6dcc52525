"""What a data set holds and what is wrong with it, to be found before training.

`scan` reads every pair of a split, `quick_check` looks at a sample for two seconds. From a scan come class frequencies,
picture sizes and the class weights that balance a loss.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.dataset import Dataset, FileDataset, size_advice
from ordnet.data.labels import IGNORE, OutsideClasses
from ordnet.data.pictures import opened
from ordnet.data.reading import file_digest
from ordnet.data.shards import stamp
from ordnet.data.statistics import balancing_weights, label_counts, remarks
from ordnet.errors import OrdnetError

_CHUNK = 16
_SAMPLE = 32
_SECONDS = 2.0
"""How long a quick check may read pairs: huge pictures must not hold up a training."""
_DISJOINT = ("train", "val", "test")
"""Splits that must not share pictures. Others, such as trainval, are unions by design."""


@dataclass(frozen=True)
class Problem:
    kind: str
    """The heading it is listed under."""
    detail: str


@dataclass
class Scan:
    """What some pairs of one split hold. Arrays have 256 entries, one for each class id and IGNORE."""

    empty: int = 0
    """Labels without any pixel that counts."""
    pixels: np.ndarray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    images: np.ndarray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    """Pictures in which the class occurs."""
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Width and height → pictures."""
    digests: dict[str, str] = field(default_factory=dict)
    """Id → hash of the picture's file, where there are files."""
    problems: list[Problem] = field(default_factory=list)

    def add(self, other: "Scan") -> None:
        self.pixels += other.pixels
        self.images += other.images
        self.empty += other.empty
        self.sizes.update(other.sizes)
        self.digests.update(other.digests)
        self.problems.extend(other.problems)


def scan(
    dataset: Dataset, workers: int = 0, pictures: bool = True, advance: Callable[[int], object] = lambda done: None
) -> Scan:
    """Read every pair, in `workers` processes (0: in this one). `advance` is told how many pairs were just read.

    Without `pictures` only the labels are read.
    """
    total = Scan()
    chunks = [range(start, min(start + _CHUNK, len(dataset.ids))) for start in range(0, len(dataset.ids), _CHUNK)]
    for part, chunk in zip(_parts(dataset, chunks, workers, pictures), chunks, strict=True):
        total.add(part)
        advance(len(chunk))
    total.problems += [*_duplicates(dataset.ids), *_zeros_and_255(dataset, total), *_nothing_counts(dataset, total)]
    return total


def quick_check(dataset: Dataset) -> tuple[str, ...]:
    """Raise OrdnetError where a check of two seconds finds something wrong: missing files, or a bad pair in a sample.

    Otherwise remarks for the user, such as classes that never occur, where two more seconds suffice to count all
    labels.
    """
    total = Scan(problems=[problem for index in range(len(dataset.ids)) for problem in _missing(dataset, index)])
    total.problems += _duplicates(dataset.ids)
    end = time.monotonic() + _SECONDS
    for done, index in enumerate(random.Random(0).sample(range(len(dataset.ids)), len(dataset.ids))):
        # a sample may hold only class 0 and ignored pixels by chance: keep looking while it does
        enough = done >= _SAMPLE and not _zeros_and_255(dataset, total)
        if total.problems or enough or time.monotonic() > end:
            break
        total.add(look(dataset, index))
    total.problems += _zeros_and_255(dataset, total)
    counted = None if total.problems else _counted(dataset)
    if counted is not None:
        total.problems += _nothing_counts(dataset, counted)
    if total.problems:
        first = total.problems[0]
        more = f" (and {len(total.problems) - 1} more)" if len(total.problems) > 1 else ""
        raise OrdnetError(
            f"{dataset.name}, split {dataset.split}: {first.kind}: {first.detail}{more}; "
            "`ordnet data check` lists everything that is wrong"
        )
    return () if counted is None else tuple(remarks(dataset, counted.pixels, counted.empty))


def leaks(scans: dict[str, tuple[Sequence[str], Scan]]) -> list[Problem]:
    """Pictures that two of train, val and test share, by id or by the content of the file. Split → (ids, scan)."""
    problems = []
    for one, other in combinations([name for name in _DISJOINT if name in scans], 2):
        (ids, first), (other_ids, second) = scans[one], scans[other]
        shared = set(ids) & set(other_ids)
        problems += [Problem("in two splits", f"{key} is in {one} and in {other}") for key in ids if key in shared]
        by_digest = {digest: key for key, digest in first.digests.items() if key not in shared}
        problems += [
            Problem("in two splits", f"{key} in {other} is the same picture as {by_digest[digest]} in {one}")
            for key, digest in second.digests.items()
            if key not in shared and digest in by_digest
        ]
    return problems


def look(dataset: Dataset, index: int, pictures: bool = True) -> Scan:
    """One pair, read and compared."""
    found = Scan(problems=_missing(dataset, index, pictures))
    if found.problems:
        return found
    image_file, label_file = dataset.files(index)
    size = None
    if pictures:
        try:
            size = dataset.image(index).size
        except OrdnetError as error:
            found.problems.append(Problem("unreadable images", str(error)))
        if (path := _path(image_file)) is not None:
            found.digests[dataset.ids[index]] = file_digest(path)
    if not label_file:  # a test split whose labels are kept secret
        return found
    outside = 0
    try:
        label = dataset.label(index)
    except OrdnetError as error:
        found.problems.append(Problem(_label_problem(error, label_file), str(error)))
        if not isinstance(error, OutsideClasses) or not isinstance(dataset, FileDataset):
            return found
        # the classes that it has are counted all the same
        label, outside = dataset.rule.encode_known(dataset.raw(index)), sum(error.values.values())
    if size is not None and label.shape != size[::-1]:
        detail = (
            f"{label_file} has {label.shape[1]}x{label.shape[0]} pixels, {image_file} {size[0]}x{size[1]}"
            f"; {size_advice(size, label.shape[::-1])}"
        )
        found.problems.append(Problem("sizes that differ", detail))
        return found
    found.pixels += np.bincount(label.ravel(), minlength=256)
    found.pixels[IGNORE] -= outside
    found.images += found.pixels > 0
    found.empty += not outside and not found.pixels[:IGNORE].any()
    found.sizes[label.shape[1], label.shape[0]] += 1
    return found


def _parts(dataset: Dataset, chunks: list[range], workers: int, pictures: bool) -> Iterator[Scan]:
    """One Scan for each chunk of indices, in order."""
    # starting a process takes as long as reading a few dozen pairs
    workers = min(workers, len(chunks) // 2)
    if workers < 1:
        for chunk in chunks:
            yield _look_at(dataset, chunk, pictures)
        return
    # spawn: a fork would copy threads' locks, those of progress bars among them
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(_look_at, dataset, pictures=pictures), chunks)
        except BrokenProcessPool:
            raise OrdnetError("a worker process died, perhaps for want of memory: try fewer --workers") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _look_at(dataset: Dataset, chunk: range, pictures: bool) -> Scan:
    part = Scan()
    for index in chunk:
        part.add(look(dataset, index, pictures))
    return part


def _missing(dataset: Dataset, index: int, pictures: bool = True) -> list[Problem]:
    files = dataset.files(index)[0 if pictures else 1 :]
    return [Problem("missing files", name) for name in files if _path(name) and stamp(name) is None]


def _path(name: str) -> Path | None:
    """The file a data set names; generated samples have none and are named in words."""
    return Path(name) if "/" in name or os.sep in name else None


def _duplicates(ids: Sequence[str]) -> list[Problem]:
    return [
        Problem("duplicate ids", f"{key} is listed {times} times") for key, times in Counter(ids).items() if times > 1
    ]


def _label_problem(error: OrdnetError, label_file: str) -> str:
    if isinstance(error, OutsideClasses):
        return "values outside the classes"
    return "colour masks" if _in_colour(label_file) else "unreadable labels"


def _in_colour(name: str) -> bool:
    try:
        with opened(name) as picture:
            return picture.mode in ("RGB", "RGBA")
    except OrdnetError:
        return False


def _zeros_and_255(dataset: Dataset, total: Scan) -> list[Problem]:
    """Masks whose 255 was meant as a class: they read as class 0 and ignored pixels, without any error."""
    seen = set(np.flatnonzero(total.pixels).tolist())
    if seen != {0, IGNORE} or len(dataset.classes) < 2 or dataset.rule.raw_to_class.get(255) != IGNORE:
        return []
    zero, one = dataset.classes.names[:2]
    detail = (
        f"the labels of {dataset.split} hold only 0 and 255, and 255 is ignored, so that no pixel is {one!r}; "
        f"if 255 means {one!r}, write the values into classes.txt: `{zero} =0` and `{one} =255`"
    )
    return [Problem("masks of 0 and 255", detail)]


def _counted(dataset: Dataset) -> Scan | None:
    """Class counts of all labels, if they can be counted within the time of a quick check."""
    if not len(dataset.ids) or _path(dataset.files(0)[1]) is None:
        return None
    counts, done = label_counts(dataset, _SECONDS)
    if done < len(dataset.ids):
        return None
    counting = counts[:, :IGNORE].sum(axis=1)
    return Scan(empty=int((counting == 0).sum()), pixels=counts.sum(axis=0, dtype=np.int64))


def _nothing_counts(dataset: Dataset, found: Scan) -> list[Problem]:
    if found.pixels[:IGNORE].any() or not found.pixels.any():
        return []
    detail = f"every pixel of every label of {dataset.split} is 255 or `ignore`: there is nothing to learn or to score"
    return [Problem("labels in which nothing counts", detail)]


def summary(found: Scan, names: Sequence[str]) -> dict[str, Any]:
    """Everything `ordnet data stats` prints, as plain values."""
    counting = int(found.pixels[:IGNORE].sum())
    weights = balancing_weights(found.pixels[: len(names)])
    sides = np.array([size for size, times in sorted(found.sizes.items()) for _ in range(times)]).reshape(-1, 2)
    return {
        "images": found.sizes.total(),
        "pixels": int(found.pixels.sum()),
        "ignored_pixels": int(found.pixels[IGNORE]),
        "classes": [
            {
                "name": name,
                "pixels": int(found.pixels[class_id]),
                "share": int(found.pixels[class_id]) / max(counting, 1),
                "images": int(found.images[class_id]),
                "weight": weights[class_id],
            }
            for class_id, name in enumerate(names)
        ],
        "width": _spread(sides[:, 0]),
        "height": _spread(sides[:, 1]),
        "commonest_sizes": [{"width": w, "height": h, "images": n} for (w, h), n in found.sizes.most_common(5)],
        "class_weights": weights,
    }


def _spread(sides: np.ndarray) -> dict[str, float] | None:
    if sides.size == 0:
        return None
    return {"min": int(sides.min()), "median": float(np.median(sides)), "max": int(sides.max())}
