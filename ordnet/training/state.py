"""The state a run resumes from: its parts, its files, and whether it may be resumed.

It is written atomically, the one before it is kept, and it is read without running any pickle.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import distributed, nn

from ordnet.config import Settings
from ordnet.data.dataset import Dataset
from ordnet.data.loader import is_dead_worker
from ordnet.data.reading import regular_file
from ordnet.data.shards import stamp
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically
from ordnet.model.network import Network
from ordnet.model.weights import load_plain, refuse_packed
from ordnet.training.run_folder import RunFolder
from ordnet.training.start import Averaged

VERSION = 1
HARMLESS = {"data.workers", "training.save_minutes", "training.tensorboard", "training.patience"}
"""Settings that may change when a run is resumed: the steps stay the same."""


@dataclass
class RunProgress:
    """How far a run has come."""

    epoch: int = 0
    """Whole epochs trained."""
    step: int = 0
    """Steps taken in the epoch under way."""
    best: float = -1.0
    """The best mIoU so far."""
    best_epoch: int = 0
    """The epoch it was reached in, from 1."""
    parts: dict[str, float] = field(default_factory=dict)
    """The loss and its parts, summed over the steps of the epoch under way."""
    vitals: dict[str, float] = field(default_factory=dict)
    """What was measured at the block in the epoch's last step (ordnet.training.monitor)."""
    finished: bool = False


def snapshot(
    settings: Settings,
    net: Network,
    optimizer: Any,
    averaged: Averaged | None,
    progress: RunProgress,
    log_size: int,
    class_weights: tuple[float, ...] | None,
    data: dict[str, Any],
    scaler: Any = None,
) -> dict[str, Any]:
    """The run's state: plain values and tensors only, so that it can be read back without running any code.

    `data` is the data set's fingerprint, `scaler` what scales the loss in 16-bit numbers, where there are such.
    """
    return {
        "settings": settings.model_dump(mode="json"),
        "net": net.state_dict(),
        "stride_on": net.config.stride_on,
        "optimizer": optimizer.state_dict(),
        "averaged": averaged.net.state_dict() if averaged else None,
        "progress": asdict(progress),
        "log_size": log_size,
        "class_weights": class_weights,
        "data": data,
        "scaler": scaler.state_dict() if scaler else None,
    }


def restore(
    state: dict[str, Any], net: nn.Module, optimizer: Any, averaged: Averaged | None, scaler: Any = None
) -> RunProgress:
    """Put everything back where `snapshot` took it from; returns how far the run had come."""
    try:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        if averaged:
            averaged.net.load_state_dict(state["averaged"])
        if scaler and state.get("scaler"):  # older states have none
            scaler.load_state_dict(state["scaler"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OrdnetError(
            f"the state is that of another network or optimizer ({reason}); start over with --force"
        ) from None
    return RunProgress(**state["progress"])


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write the state as state.pt; the state before it becomes previous.pt."""
    current, previous = folder / "state.pt", folder / "previous.pt"

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            torch.save({**state, "version": VERSION}, file)
        # the new state is complete: the old one may be replaced
        if current.exists():
            current.replace(previous)

    try:
        write_atomically(current, write)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        if is_dead_worker(error):
            raise
        raise OrdnetError(
            f"the state could not be written to {folder} ({error}); is the disk full? "
            f"The last good state is kept: make room and continue with --resume"
        ) from None


def load(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest readable state; None where there is none. A damaged one is skipped with a message."""
    for name in ("state.pt", "previous.pt"):
        path = folder / name
        if not path.exists():
            continue
        try:
            _check_sums(regular_file(path))
            state: dict[str, Any] = load_plain(path)
            _check_parts(state)
        except Exception as error:  # whatever the reader met in a damaged file
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            say(f"{path} is damaged ({reason}); trying the state before it")
            continue
        if state.get("version") != VERSION:
            raise OrdnetError(f"{path} was written by another version of ordnet (format {state.get('version')})")
        return state
    if any((folder / name).exists() for name in ("state.pt", "previous.pt")):
        raise OrdnetError(f"no state in {folder} can be read; start over with --force")
    return None


def _check_parts(state: Any) -> None:
    """Raise an error unless it is what `snapshot` returns, as far as that can be told without the network."""
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError("it holds no state of a run")
    if state["version"] != VERSION:
        return  # `load` reports it
    TypeAdapter(RunProgress).validate_python(asdict(RunProgress(**state["progress"])))
    sections = all(isinstance(values, dict) for values in state["settings"].values())
    counts = (state["settings"]["training"]["epochs"], state["log_size"])
    if not sections or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("it holds no state of a run")


def _check_sums(path: Path) -> None:
    """The file is a zip archive whose parts carry checksums, which torch writes but does not read."""
    with zipfile.ZipFile(path) as archive:
        refuse_packed(archive, path)  # or a few megabytes would be read as gigabytes
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")


def earlier_state(
    folder: RunFolder, settings: Settings, resume: bool, force: bool, say: Callable[[str], None], main: bool
) -> dict[str, Any] | None:
    """The state to resume from, or None for a fresh start, for which `make_room` decides about an earlier run."""
    if main:
        folder.refuse_foreign(settings.training.tensorboard)
    if force or not resume:
        return None
    found = load(folder.state, say)
    if found is None:
        say(f"{folder.path} has no state yet: starting from the beginning")
        return None
    remedy = "give the same settings again, name another folder with --out, or start over with --force"
    check_settings(found["settings"], settings, remedy)
    return found


def make_room(folder: RunFolder, settings: Settings, force: bool, say: Callable[[str], None], main: bool) -> None:
    """Refuse a folder that holds an earlier run, or remove that run with `force`: it is never overwritten unasked.

    This comes after all that may be wrong with a fresh run was looked at. A misspelt data set must not cost a trained
    model, and is worth more to its user than the news that the folder is taken.
    """
    if distributed.is_initialized():
        distributed.barrier()  # no process has found a mistake
    if not force and (found := load(folder.state, say)) is not None:
        raise OrdnetError(_taken(folder.path, found, settings))
    if force and main:
        folder.clear()


def _taken(path: Path, found: dict[str, Any], now: Settings) -> str:
    """What a folder holds, and what can be done about it."""
    done = found["progress"]["epoch"]
    epochs = f"{done} epoch{'s' * (done != 1)}"
    if not found["progress"]["finished"]:
        return f"{path} holds an unfinished run; continue it with --resume, or --force to start over"
    if is_finished(found, now):
        return f"{path} holds a finished run of {epochs}; choose another --out, or --force to overwrite it"
    held = f"{path} holds a run that finished after {epochs}"
    if settings_changed(found["settings"], now):  # then it cannot be resumed
        return f"{held}, with other settings; choose another --out, or --force to start over"
    longer = f"--resume takes it on to {now.training.epochs}"
    return f"{held}; {longer}, --out another folder, or --force starts over"


def check_settings(before: dict[str, Any], now: Settings, remedy: str = "") -> None:
    """Refuse to resume a run with other settings: it would be neither the one nor the other. `remedy`: what to do."""
    if changed := settings_changed(before, now):
        raise OrdnetError("\n  ".join(["the run was started with other settings:", *changed]) + f"\n{remedy}".rstrip())


def settings_changed(before: dict[str, Any], now: Settings) -> list[str]:
    """The settings that stand in the way of resuming a run. More epochs do not: the run goes on for longer."""
    asked = now.model_dump(mode="json")
    return [
        f"{section}.{key}: was {before.get(section, {}).get(key)!r}, now {value!r}"
        for section, values in asked.items()
        for key, value in values.items()
        if f"{section}.{key}" not in HARMLESS
        and before.get(section, {}).get(key, _default(section, key)) != value
        and not (key == "epochs" and value > before["training"]["epochs"])
    ]


def is_finished(state: dict[str, Any], now: Settings) -> bool:
    """Whether the run needs no more training. More epochs, or another patience after an early end, ask for more."""
    before, training = state["settings"]["training"], now.training
    if not state["progress"]["finished"]:
        return False
    if training.epochs > before["epochs"]:
        return False
    ended_early = state["progress"]["epoch"] < training.epochs
    return not (ended_early and training.patience != before.get("patience"))


def _default(section: str, key: str) -> Any:
    """The value of a setting that older states do not have."""
    return getattr(Settings(), section).model_dump(mode="json")[key]


def fingerprint(train_set: Dataset, val_set: Dataset, processes: int) -> dict[str, Any]:
    """Classes, ids and file sizes of both splits, and the number of processes, as plain values for the state."""
    return {
        "classes": list(train_set.classes.names),
        "processes": processes,
        "train": _part(train_set),
        "val": _part(val_set),
    }


def check_fingerprint(before: dict[str, Any] | None, now: dict[str, Any], force: bool) -> list[str]:
    """Refuse to resume where data or processes differ; with `force`, return how they differ.

    States from before there were fingerprints have None.
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
