"""What a benchmark prints: one table, and on request the same rows as JSON."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ordnet.files import write_text


@dataclass(frozen=True)
class Row:
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


def show(title: str, rows: list[Row], json_path: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

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
    console = Console()
    # into a file or a pipe the table goes in full width
    (console if console.is_terminal else Console(width=160)).print(table)
    if json_path:
        write_text(json_path, json.dumps([row.plain() for row in rows], indent=1) + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
