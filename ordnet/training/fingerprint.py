"""What a data set looked like when a run began: a run resumed on other data would be neither the one nor the other."""

import hashlib
from collections.abc import Iterable
from typing import Any

from ordnet.data.dataset import Dataset
from ordnet.data.reading import stamp
from ordnet.errors import OrdnetError


def fingerprint(train_set: Dataset, val_set: Dataset, processes: int) -> dict[str, Any]:
    """Classes, ids and file sizes of both parts, and the number of processes, as plain values for the state."""
    return {
        "classes": list(train_set.classes.names),
        "processes": processes,
        "train": _part(train_set),
        "val": _part(val_set),
    }


def check_fingerprint(before: dict[str, Any] | None, now: dict[str, Any], force: bool) -> list[str]:
    """Refuse to resume where data or processes differ, or say how they differ if `force` is given.

    States that were written before there were fingerprints have None.
    """
    differences = _differences(before, now) if before else []
    if differences and not force:
        listed = "\n  ".join(differences)
        raise OrdnetError(
            f"the run was started with other data:\n  {listed}\n"
            "put it back as it was, or give --force-data to go on with what is there now"
        )
    return differences


def _part(dataset: Dataset) -> dict[str, Any]:
    """Digests rather than lists: a state must not grow with its data set."""
    files = (path for index in range(len(dataset.ids)) for path in dataset.files(index))
    return {
        "count": len(dataset.ids),
        "ids": _digest(dataset.ids),
        "ids_sorted": _digest(sorted(dataset.ids)),
        "sizes": _digest(f"{(stamp(path) or (-1,))[0]}" for path in files),
    }


def _digest(words: Iterable[str]) -> str:
    found = hashlib.sha256()
    for word in words:
        found.update(word.encode("utf-8", "surrogateescape") + b"\0")
    return found.hexdigest()


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    if before["classes"] != now["classes"]:
        found.append(f"classes: were {', '.join(before['classes'])}; are {', '.join(now['classes'])}")
    for part, words in (("train", "training part"), ("val", "evaluated part")):
        then, here = before[part], now[part]
        if then["count"] != here["count"]:
            found.append(f"{words}: had {then['count']:,} pictures, has {here['count']:,}")
        elif then["ids"] != here["ids"]:
            same = then["ids_sorted"] == here["ids_sorted"]
            found.append(f"{words}: its pictures {'come in another order' if same else 'have other names'}")
        elif then["sizes"] != here["sizes"]:
            found.append(f"{words}: files of its pictures or labels have other sizes")
    if before["processes"] != now["processes"]:
        found.append(f"processes: were {before['processes']}, are {now['processes']}")
    return found
