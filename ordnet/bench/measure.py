"""How every benchmark measures and prints: contestants take turns, peak memory comes from a fresh process each.

The result is one table, and on request the same rows as JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.progress import progress

if TYPE_CHECKING:
    from rich.console import Console


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
_SCORES = ("mIoU", "mIoU_spread", "pixel_accuracy")
"""Columns whose numbers are compared digit by digit, so that all have as many."""


def show(title: str, rows: list[Measurement], json_path: Path | None) -> None:
    from ordnet.progress import plain_console

    columns = [key for key in _COLUMNS if any(getattr(row, key) is not None for row in rows)]
    extras = list(dict.fromkeys(key for row in rows for key in row.extra))
    headings = ["method", *(_COLUMNS[key][0] for key in columns), *(key.replace("_", " ") for key in extras)]
    shown = []
    for row in rows:
        cells = [_COLUMNS[key][1](getattr(row, key)) if getattr(row, key) is not None else "–" for key in columns]
        shown.append([row.name, *cells, *(_cell(key, row.extra.get(key)) for key in extras)])
    print_table(plain_console(pipe_width=160), title, headings, shown)
    if json_path:
        write_text(json_path, json.dumps([row.plain() for row in rows], indent=1) + "\n")


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key in _SCORES:
        return f"{value:.4f}"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


_TEXT = 26
"""A cell of several words may be broken into lines of this length."""


def print_table(
    console: "Console",
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    keys: int = 1,
    left: Sequence[str] = (),
    sections: Sequence[int] = (),
) -> None:
    """A table of which no name and no figure is ever cut, however narrow the console is.

    Where it does not fit, headings are broken between words, and cells after commas. Where that is not enough, its
    columns go into several tables, each with the first `keys` columns, which say what a row is; and where not even one
    column fits beside those, every row is printed as a list. `left` are headings of columns of words, `sections` the
    rows with a line above.
    """
    from rich.table import Table

    layouts = [_layout(headings, rows, keys, console.width, longest) for longest in (None, _TEXT, 0)]
    heads, cells, blocks = min(layouts, key=lambda layout: len(layout[2]) or len(headings))
    if not blocks:
        console.print(title, soft_wrap=True)
        for row in rows:
            console.print(", ".join(row[:keys]), soft_wrap=True)
            for heading, cell in zip(headings[keys:], row[keys:], strict=True):
                console.print(f"  {heading}: {cell.strip()}", soft_wrap=True)
    for block in blocks:
        table = Table(title=title if block is blocks[0] else None, title_justify="left")
        for place in block:
            words = place < keys or headings[place] in left
            table.add_column(heads[place], justify="left" if words else "right", no_wrap=True)
        for number, row in enumerate(cells):
            if number in sections:
                table.add_section()
            table.add_row(*(row[place] for place in block))
        console.print(table)


def _layout(
    headings: Sequence[str], rows: Sequence[Sequence[str]], keys: int, room: int, longest: int | None
) -> tuple[list[str], list[list[str]], list[list[int]]]:
    """Headings and cells, cells of several words in lines of up to `longest` (None: all in one line each), and which
    columns stand in which table; no tables at all where one column beside the keys is already too wide."""
    heads, cells = list(headings), [list(row) for row in rows]
    if longest is not None:
        cells = [[_broken(cell, ", ", longest) for cell in row] for row in cells]
        words = [_broken(heading, " ", 0) for heading in headings]
        # as few lines as the figures below leave room for
        heads = [_broken(heading, " ", width) for heading, width in zip(headings, _widths(words, cells), strict=True)]
    widths, blocks = _widths(heads, cells), [list(range(keys))]
    if any(_table_width([*widths[:keys], width]) > room for width in widths[keys:]):
        return heads, cells, []
    for place in range(keys, len(widths)):
        if _table_width([widths[column] for column in (*blocks[-1], place)]) > room:
            blocks.append(list(range(keys)))
        blocks[-1].append(place)
    return heads, cells, blocks


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    columns = zip(heads, *cells, strict=True)
    return [max(cell_len(line) for text in column for line in text.split("\n")) for column in columns]


def _table_width(widths: Sequence[int]) -> int:
    """Of a table with these columns: a space on both sides of each, and lines between and around."""
    return sum(width + 3 for width in widths) + 1


def _broken(text: str, between: str, width: int) -> str:
    """The text in lines of up to `width` where it can be broken so; pieces without `between` stay whole."""
    from rich.cells import cell_len

    first, *others = text.split(between)
    lines = [first]
    for piece in others:
        longer = f"{lines[-1]}{between}{piece}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines[-1] += between.rstrip()
            lines.append(piece)
    return "\n".join(lines)


if __name__ == "__main__":
    print(_measure_here(sys.argv[1], json.loads(sys.argv[2])))
