"""What a run was made with, for its log: versions, commit, hardware, threads."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

import ordnet


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
