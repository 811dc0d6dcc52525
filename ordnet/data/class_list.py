"""Where classes are listed: the benchmarks' tables that come along, and the classes.txt of one's own folder.

A table (tables/*.csv) gives raw id, class id, name and usual colour. classes.txt gives names, and where needed colours
and raw label values.
"""

import csv
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ordnet.data.labels import IGNORE, Classes, Colour, LabelRule, class_colours, parse_colour
from ordnet.data.reading import read_text
from ordnet.errors import OrdnetError


@dataclass(frozen=True)
class ClassRow:
    """One raw label value of a benchmark."""

    raw: int
    class_id: int
    """IGNORE where the raw id is no class of its own."""
    name: str
    colour: Colour


@cache
def class_table(name: str) -> tuple[ClassRow, ...]:
    """The rows of tables/`name`.csv."""
    with (Path(__file__).with_name("tables") / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            ClassRow(int(line["raw_id"]), int(line["class_id"]), line["name"], parse_colour(line["colour"]))
            for line in csv.DictReader(file)
        )


def classes_of(rows: tuple[ClassRow, ...]) -> Classes:
    """Names and colours of the rows that are classes, in class id order."""
    kept = sorted((row for row in rows if row.class_id != IGNORE), key=lambda row: row.class_id)
    return Classes(tuple(row.name for row in kept), tuple(row.colour for row in kept))


def raw_to_class(rows: tuple[ClassRow, ...]) -> dict[int, int]:
    """Raw id → class id, for a `LabelRule`."""
    return {row.raw: row.class_id for row in rows}


_LINE = re.compile(r"(?P<name>.+?)(?:\s+(?P<colour>#[0-9a-fA-F]{6}))?(?:\s+=\s*(?P<raw>\d+))?")
_IGNORE_NAME = "ignore"
_LARGEST_RAW = 65535
_LONGEST_LINE = 300
_MOST_LINES = 2000
"""Bounds that keep the search for colours and values fast, whatever the file holds; `ignore` may have many lines."""

HELP = """\
classes.txt has one class per line, in the order of the label values 0, 1, 2, …:
  sky
  traffic light
A line may give the colour that stands for the class in RGB labels, and the raw value if it is not the line's number:
  road #804080
  person =255
The name `ignore` marks colours or values that never count; 255 never counts unless a line names it."""


@dataclass(frozen=True)
class ClassList:
    """What a classes.txt says."""

    classes: Classes
    rule: LabelRule
    palette: dict[Colour, int]
    """Colour → raw value, for labels in RGB; empty where classes.txt gives no colours."""


@dataclass(frozen=True)
class _Line:
    number: int
    name: str
    colour: Colour | None
    raw: int | None


def read_class_list(path: Path) -> ClassList:
    """Read a classes.txt; `HELP` describes its forms."""
    text = read_text(path, f"no class names at {path}: write them\n{HELP}")
    texts = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    longest = max((len(line) for _, line in texts), default=0)
    if longest > _LONGEST_LINE or len(texts) > _MOST_LINES:
        raise OrdnetError(
            f"{path} has {len(texts):,} lines, the longest of {longest:,} characters: a data set has between 1 and "
            f"{IGNORE} classes, and a line up to {_LONGEST_LINE} characters\n{HELP}"
        )
    lines = [_parse(number, line) for number, line in texts]
    named = [line for line in lines if line.name != _IGNORE_NAME]
    if not named:
        raise OrdnetError(f"{path} names no class\n{HELP}")
    _check(lines, named, path)
    values = _raw_values(lines)
    class_ids = {line: class_id for class_id, line in enumerate(named)}
    rule = LabelRule({IGNORE: IGNORE} | {values[line]: class_ids.get(line, IGNORE) for line in lines})
    return ClassList(_classes(named), rule, {line.colour: values[line] for line in lines if line.colour})


def _parse(number: int, text: str) -> _Line:
    match = _LINE.fullmatch(text.strip())
    assert match is not None  # any text is a name
    colour, raw = match["colour"], match["raw"]
    return _Line(number, match["name"], parse_colour(colour) if colour else None, int(raw) if raw else None)


def _check(lines: list[_Line], named: list[_Line], path: Path) -> None:
    for what, values in (
        ("name", [line.name for line in named]),
        ("colour", ["#{:02x}{:02x}{:02x}".format(*line.colour) for line in lines if line.colour]),
        ("value", [f"={line.raw}" for line in lines if line.raw is not None]),
    ):
        if twice := [value for value, times in Counter(values).items() if times > 1]:
            raise OrdnetError(f"{path}: the {what} {twice[0]} is there twice\n{HELP}")
    coloured = [line for line in named if line.colour]
    if coloured and len(coloured) < len(named):
        bare = next(line for line in named if not line.colour)
        raise OrdnetError(f"{path}: line {bare.number}, {bare.name!r}, has no colour but others do: give all or none")
    # an `ignore` that names only a colour needs no value
    valued = [line for line in lines if line.raw is not None]
    if valued and any(line.raw is None for line in named):
        bare = next(line for line in named if line.raw is None)
        raise OrdnetError(f"{path}: line {bare.number}, {bare.name!r}, has no =value but others do: give all or none")
    if valued and max(line.raw or 0 for line in valued) > _LARGEST_RAW:
        raise OrdnetError(f"{path}: label values go up to {_LARGEST_RAW}")


def _classes(named: list[_Line]) -> Classes:
    names = tuple(line.name for line in named)
    colours = tuple(line.colour for line in named if line.colour)
    return Classes(names, colours or class_colours(names))


def _raw_values(lines: list[_Line]) -> dict[_Line, int]:
    """Line → raw value: the one it gives, or else its place among the lines."""
    if any(line.raw is not None for line in lines):
        # an `ignore` of a colour alone: a value that no label file can hold
        return {line: _LARGEST_RAW + 1 if line.raw is None else line.raw for line in lines}
    return {line: place for place, line in enumerate(lines)}
