"""How every benchmark measures and prints: contestants take turns, peak memory comes from a fresh process each.

The result is one table, and on request the same rows as JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.progress import progress


@dataclass(frozen=True)
class Timing:
    seconds: float
    """The median over the repeats."""
    spread: float
    """Half the distance between the slowest and the fastest repeat, relative to the median."""


def interleaved(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Time the contestants in turns, after one untimed turn each.

    Turns make a busy or throttled machine slow everybody alike, so that the ratios hold even where the seconds do not.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    with progress() as bar:
        task = bar.add_task("", total=(repeats + 1) * len(contestants))
        for turn in range(repeats + 1):
            for name, run in contestants.items():
                bar.update(task, description=f"{'warm-up' if turn == 0 else f'turn {turn}/{repeats}'}: {name}")
                start = time.perf_counter()
                run()
                if turn > 0:
                    taken[name].append(time.perf_counter() - start)
                bar.advance(task)
    return {name: _timing(seconds) for name, seconds in taken.items()}


def _timing(seconds: list[float]) -> Timing:
    median = statistics.median(seconds)
    return Timing(median, (max(seconds) - min(seconds)) / 2 / median)


def peak_megabytes(prepare: str, **arguments: Any) -> float:
    """Peak memory of one call, above what was in use before it, in a process of its own.

    `prepare` is "module:function". The function receives `arguments` (JSON values), sets everything up (weights,
    input) and returns the call to measure.
    """
    command = [sys.executable, "-m", "ordnet.bench.measure", prepare, json.dumps(arguments)]
    # with one arena and no caching of large blocks, freed memory leaves the process: the peak is the program's own
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OrdnetError(f"measuring the memory of {prepare} {arguments} failed: {lines[-1]}")
    return float(done.stdout.split()[-1])


def _measure_here(prepare: str, arguments: dict[str, Any]) -> float:
    module, _, function = prepare.partition(":")
    run = getattr(import_module(module), function)(**arguments)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    run()
    return (_status("VmHWM") - before) / 1000


def _status(key: str) -> float:
    """A line of /proc/self/status, in kilobytes of 1000 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1.024
    raise OrdnetError(f"/proc/self/status has no {key}: peak memory can be measured on Linux only")


@dataclass(frozen=True)
class Measurement:
    """One row of a benchmark's table."""

    name: str
    seconds: float | None = None
    ratio: float | None = None
    """Seconds relative to the first row's method, which is ours: above 1 is slower than ours."""
    spread: float | None = None
    gflops: float | None = None
    peak_mb: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Columns that only this benchmark has."""

    def plain(self) -> dict[str, Any]:
        values = asdict(self)
        extra = values.pop("extra")
        return {**values, **extra}


_COLUMNS = {
    "seconds": ("time", lambda v: f"{v:.3f} s" if v >= 0.1 else f"{v * 1000:.1f} ms"),
    "spread": ("±", lambda v: f"{v:.0%}"),
    "ratio": ("x ours", lambda v: f"{v:.2f}"),
    "gflops": ("GFLOPs", lambda v: f"{v:,.1f}"),
    "peak_mb": ("peak MB", lambda v: f"{v:,.0f}"),
}


def show(title: str, rows: list[Measurement], json_path: Path | None) -> None:
    from rich.table import Table

    from ordnet.progress import plain_console

    table = Table(title=title, title_justify="left")
    table.add_column("method")
    columns = [key for key in _COLUMNS if any(getattr(row, key) is not None for row in rows)]
    extras = list(dict.fromkeys(key for row in rows for key in row.extra))
    for key in columns:
        table.add_column(_COLUMNS[key][0], justify="right")
    for key in extras:
        table.add_column(key.replace("_", " "), justify="right")
    for row in rows:
        cells = [_COLUMNS[key][1](getattr(row, key)) if getattr(row, key) is not None else "–" for key in columns]
        table.add_row(row.name, *cells, *(_cell(row.extra.get(key)) for key in extras))
    plain_console(pipe_width=160).print(table)
    if json_path:
        write_text(json_path, json.dumps([row.plain() for row in rows], indent=1) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    print(_measure_here(sys.argv[1], json.loads(sys.argv[2])))
