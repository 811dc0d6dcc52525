"""A run's folder: what it holds, who may write to it, and its log.

settings.yaml  log.jsonl  curves.png  best.safetensors  last.safetensors  report.html  state/

SIGTERM and Ctrl-C ask a run to save and end; a second Ctrl-C ends it at once.

What a run was made with, for its log: versions, commit, hardware, threads.
"""

import fcntl
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy
import torch

import ordnet
from ordnet.errors import OrdnetError

OWN = ("settings.yaml", "log.jsonl", "curves.png", "best.safetensors", "last.safetensors", "report.html", "state",
       "tensorboard")  # fmt: skip


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.yaml"
        self.log = path / "log.jsonl"
        self.curves = path / "curves.png"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.report = path / "report.html"
        self.state = path / "state"
        self._lock: IO[str] | None = None
        self._made: list[Path] = []

    def claim(self) -> None:
        """Keep every other process out until this one ends, however it ends."""
        self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise OrdnetError(f"the run folder {self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OrdnetError(f"another process is training in {self.path}; choose another --out") from None
        for left_over in self.path.rglob(".*.tmp.*"):  # files that a killed run was just writing
            left_over.unlink()

    def release(self) -> None:
        """Let others in; a run that failed before it wrote anything leaves no folder of its own behind."""
        if self._lock is None:
            return
        if [path.name for path in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()
            with suppress(OSError):  # another run has come into the folder above
                for path in self._made:
                    path.rmdir()
        self._lock.close()

    def clear(self) -> None:
        """Take away what an earlier run wrote, and nothing else."""
        for name in OWN:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def append(self, record: dict[str, Any]) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def cut_log(self, size: int) -> None:
        """Forget what was logged after the state that is resumed: it will be logged again."""
        if self.log_size() > size:
            with self.log.open("r+b") as file:
                file.truncate(size)

    def epochs(self) -> list[dict[str, Any]]:
        """The log's epoch records."""
        if not self.log.exists():
            return []
        records = (json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines())
        return [record for record in records if record["event"] == "epoch"]


class Stopped(OrdnetError):
    """The run was asked to end, and has saved its state."""

    def __init__(self, message: str, request: "StopRequest") -> None:
        super().__init__(message)
        # as a shell would report it; another process may have been the one that was asked
        self.exit_code = 128 + (request.signal or signal.SIGTERM)


class StopRequest:
    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Collects requests while the block is open. Outside the main thread (a notebook's worker) there are none."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(device: torch.device, processes: int) -> dict[str, Any]:
    return {
        "ordnet": ordnet.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def peak_megabytes() -> float:
    """The most memory that this process has held so far: the GPU's where there is one, else the computer's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _commit() -> str | None:
    """Of the source tree ordnet runs from, marked where it has changes; None for an installed package."""
    folder = Path(ordnet.__file__).parent
    if not (folder.parent / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=folder, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
