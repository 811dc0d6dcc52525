"""What a run was made with: versions, commit, hardware, threads. Written to its log, and shown in its report."""

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import ordnet


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
    """The environment as the log's records have it; where a resumed run found something else, both are named."""
    starts = [record for record in records if record["event"] != "epoch"]
    rows = []
    for key in _SHOWN:
        values = dict.fromkeys(str(record[key]) for record in starts if record.get(key) is not None)
        if values:
            rows.append((key, ", then ".join(values)))
    return rows


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
