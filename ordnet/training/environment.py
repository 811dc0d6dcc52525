"""The computer and the process of a run: versions, commit, hardware, memory; and requests to stop.

SIGTERM and Ctrl-C ask a run to save and end; a second Ctrl-C ends it at once.
"""

import ctypes
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch

import ordnet
from ordnet.errors import OrdnetError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""mallopt's parameters, from glibc's malloc.h."""


def describe(device: torch.device, processes: int) -> dict[str, Any]:
    """The environment of this process, for the log."""
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


_SHOWN = ("ordnet", "commit", "python", "torch", "numpy", "system", "device", "cores", "threads", "processes",
          "init")  # fmt: skip


def environment_rows(records: list[dict[str, Any]]) -> Sequence[tuple[str, str]]:
    """The environment as the log's records have it; where a resumed run differs, both values are named."""
    starts = [record for record in records if record["event"] != "epoch"]
    rows = []
    for key in _SHOWN:
        values = dict.fromkeys(str(record[key]) for record in starts if record.get(key) is not None)
        if values:
            rows.append((key, ", then ".join(values)))
    return rows


def keep_memory() -> bool:
    """Let the C library keep freed memory for the next step; returns whether that was possible.

    glibc takes every tensor of more than 32 MB from the system and gives it back at once. The system zeroes such memory
    page by page, every time, which costs more than the arithmetic: a copy of 79 MB took 64 ms, one of 29 MB 4 ms.
    Steps of MobileNetV2 became 1.1 to 1.4 times as fast. No result changes; peak memory grows by up to 15 %. Other C
    libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    # each call returns 1 on success
    answers = [library.mallopt(_MMAP_MAX, 0), library.mallopt(_TRIM_THRESHOLD, -1), library.mallopt(_TOP_PAD, 64 << 20)]
    return all(answers)


def peak_megabytes() -> float:
    """The most memory that this process has held so far: the GPU's where there is one, else the computer's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _commit() -> str | None:
    """The commit of the source tree ordnet runs from, marked where it has changes; None for an installed package."""
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


class StopRequest:
    """True once a signal has asked the run to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class Stopped(OrdnetError):
    """The run was asked to end, and has saved its state."""

    def __init__(self, message: str, request: StopRequest) -> None:
        super().__init__(message)
        # as a shell reports it; without a signal, another process was asked
        self.exit_code = 128 + (request.signal or signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Collect requests while the block is open. Outside the main thread (a notebook's worker) there are none."""
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
