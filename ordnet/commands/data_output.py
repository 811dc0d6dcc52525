"""What `ordnet data` prints and draws."""

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ordnet.config import DataConfig
from ordnet.data.augment import augment, generator
from ordnet.data.check import Problem, Scan
from ordnet.data.dataset import Dataset, notes_of, read_pair
from ordnet.data.importers.convert import BACKGROUND, Written
from ordnet.data.labels import IGNORE
from ordnet.data.statistics import Correlation, remarks, size_remark
from ordnet.errors import OrdnetError, shown
from ordnet.files import write_text
from ordnet.picture.grid import contact_sheet
from ordnet.picture.overlay import overlay
from ordnet.progress import plain_console, progress
from ordnet.recipes import folder_default

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console
    from rich.table import Table

_SHOWN = 20


def checked(name: str, datasets: Sequence[Dataset], scans: Mapping[str, Scan], remarks: Sequence[str]) -> None:
    """Raw id → class → name → pixels → images over all splits, and notes on what is unusual without being wrong."""
    console = plain_console()
    total = Scan()
    for found in scans.values():
        total.add(found)
    first = datasets[0]
    counts = ", ".join(f"{dataset.split} {len(dataset.ids):,}" for dataset in datasets)
    _line(console, f"{name}: {counts}")
    table = _table(["raw id", "class", "name"], ["pixels", "share", "images"])
    for class_id, class_name in [*enumerate(first.classes.names), (IGNORE, "ignored")]:
        raw = [key for key, value in sorted(first.rule.raw_to_class.items()) if value == class_id]
        share = total.pixels[class_id] / max(total.pixels.sum(), 1)
        table.add_row(
            _listed(raw),
            "–" if class_id == IGNORE else str(class_id),
            shown(class_name),
            f"{total.pixels[class_id]:,}",
            f"{share:.2%}",
            f"{total.images[class_id]:,}",
        )
    console.print(table)
    told = (note for dataset in datasets for note in notes_of(dataset))
    for note in dict.fromkeys([*told, *_notes(datasets, scans), *remarks]):
        _line(console, f"note: {note}")


def problems(found: Sequence[Problem]) -> None:
    """The problems under their headings, at most twenty lines of them."""
    console = plain_console()
    if not found:
        _line(console, "nothing is wrong")
        return
    groups: dict[str, list[str]] = defaultdict(list)
    for problem in found:
        groups[problem.kind].append(problem.detail)
    each = max(1, _SHOWN // len(groups))
    for kind, details in groups.items():
        _line(console, f"{kind}: {len(details):,}", "bold red")
        for detail in details[:each]:
            _line(console, f"  {detail}")
        if len(details) > each:
            _line(console, f"  … and {len(details) - each:,} more")
    _line(console, f"{len(found):,} {'problem' if len(found) == 1 else 'problems'}")


def statistics(values: Mapping[str, Any]) -> None:
    console = plain_console()
    title = f"{values['data']}, {values['split']}: {values['images']:,} images"
    _line(console, title)
    table = _table(["class", "name"], ["pixels", "share", "images", "weight"])
    for class_id, row in enumerate(values["classes"]):
        cells = (f"{row['pixels']:,}", f"{row['share']:.2%}", f"{row['images']:,}", f"{row['weight']:.4g}")
        table.add_row(str(class_id), shown(row["name"]), *cells)
    console.print(table)
    ignored = values["ignored_pixels"] / max(values["pixels"], 1)
    _line(console, f"ignored: {values['ignored_pixels']:,} pixels ({ignored:.2%} of all)")
    for side in ("width", "height"):
        if (spread := values[side]) is not None:
            line = f"{side}: {spread['min']} to {spread['max']}, median {spread['median']:g}"
            _line(console, line)
    sizes = ", ".join(f"{row['width']}x{row['height']} ({row['images']:,})" for row in values["commonest_sizes"])
    _line(console, f"commonest sizes: {sizes}")
    _line(console, "what training.class_weights=auto takes, as a word for `ordnet train` that you can change:")
    weights = json.dumps(values["class_weights"], separators=(",", ":"))
    _line(console, f"--set training.class_weights={weights}")


def correlations(title: str, found: Sequence[Correlation]) -> None:
    console = plain_console()
    _line(console, title)
    table = _table(["patches"], ["inside patches", "between patches", "ratio"])
    for result in found:
        ratio = result.intra / result.inter if result.inter else float("nan")
        cells = (f"{value:.3f}" for value in (result.intra, result.inter, ratio))
        table.add_row(f"{result.patches} x {result.patches}", *(cell.replace("nan", "–") for cell in cells))
    console.print(table)


def imported(written: Written, out: Path, background: bool) -> None:
    console = plain_console()
    counts = ", ".join(f"{name} {count:,}" for name, count in written.splits.items())
    rest = f"class 0, {BACKGROUND}" if background else "ignored"
    _line(console, f"wrote {out}: {counts}; {len(written.classes)} classes")
    _line(console, f"classes: {', '.join(written.classes)}")
    _line(console, f"pixels that nothing covers are {rest}")
    for what, count in written.left_out.items():
        _line(console, f"left out: {count:,} {what}")
    check = f"ordnet data check {shlex.quote(f'folder:{out}')}"
    _line(console, f"next: {check}")


def sheet(dataset: Dataset, chosen: Sequence[int], seed: int, crop: int) -> "Image.Image":
    """The chosen samples as training sees them, with a key of the classes that occur in them."""
    tiles: list[np.ndarray] = []
    seen: set[int] = set()
    with progress() as bar:
        for index in bar.track(chosen, description="samples"):
            image, label = augment(*read_pair(dataset, index), generator(seed, 0, index), crop, DataConfig())
            tiles.append(overlay(image, label, dataset.classes.colours))
            seen.update(np.unique(label).tolist())
    names, colours = dataset.classes.names, dataset.classes.colours
    key: list[tuple[str, tuple[int, int, int] | None]] = [
        (names[c], colours[c]) for c in range(len(names)) if c in seen
    ]
    if any(class_id >= len(names) for class_id in seen):
        key.append(("ignored", None))
    return contact_sheet(tiles, min(4, len(tiles)), [dataset.ids[index] for index in chosen], key)


def plain(found: Sequence[Correlation]) -> list[dict[str, Any]]:
    """Plain values for JSON, which has no NaN."""

    def number(value: float) -> float | None:
        return None if math.isnan(value) else round(value, 6)

    return [
        {
            "patches": result.patches,
            "intra": number(result.intra),
            "inter": number(result.inter),
            "matrix": [[number(value) for value in row] for row in result.matrix.tolist()],
        }
        for result in found
    ]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OrdnetError(f"cannot write {path}: {error.strerror or error}") from None


def write_json(path: Path | None, values: dict[str, Any]) -> None:
    """The file of `--json`, where it was asked for."""
    if path is not None:
        with writing(path):
            write_text(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def _notes(datasets: Sequence[Dataset], scans: Mapping[str, Scan]) -> list[str]:
    notes = []
    for dataset in datasets:
        found = scans[dataset.split]
        notes += remarks(dataset, found.pixels, found.empty)
        long_sides = [max(size) for size, times in found.sizes.items() for _ in range(times)]
        if dataset.name == "folder" and (advice := size_remark(long_sides, folder_default().settings.training.crop)):
            notes.append(advice)
        copies = len(found.digests) - len(set(found.digests.values()))
        if copies:
            notes.append(f"{copies:,} pictures of {dataset.split} are copies of others in it")
    return notes


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:6])) + (f", … ({len(values)})" if len(values) > 6 else "") or "–"


def _line(console: "Console", text: str, style: str | None = None) -> None:
    """One line, however long: never folded. Names come from files, so control characters are escaped."""
    console.print(shown(text), style=style, soft_wrap=True)


def _table(words: Sequence[str], numbers: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for heading in words:
        table.add_column(heading)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table
