"""How many pixels of each class every label has: counted once, remembered between runs.

The counts decide automatic splits and class weights. Where counting takes more than two seconds they are kept in the
user's cache directory, each with a stamp of its label file, so that a changed label is counted again.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.dataset import Dataset
from ordnet.data.reading import stamp
from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.progress import progress

_SLOW = 2.0
"""Seconds after which a bar appears and the counts are worth keeping."""

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
    except (OSError, ValueError):  # read-only or full, or a name that is no text: counting again is all that is lost
        return
