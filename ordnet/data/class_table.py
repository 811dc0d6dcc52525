"""The class facts of the benchmarks: raw id, class id, name and usual colour, one CSV file each in tables/."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ordnet.data.labels import IGNORE, Classes, Colour


@dataclass(frozen=True)
class Row:
    raw: int
    class_id: int
    """IGNORE where the raw id is no class of its own."""
    name: str
    colour: Colour


@cache
def read(name: str) -> tuple[Row, ...]:
    """The rows of tables/`name`.csv."""
    with (Path(__file__).with_name("tables") / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(int(line["raw_id"]), int(line["class_id"]), line["name"], parse_colour(line["colour"]))
            for line in csv.DictReader(file)
        )


def classes_of(rows: tuple[Row, ...]) -> Classes:
    """Names and colours of the rows that are classes, in class id order."""
    kept = sorted((row for row in rows if row.class_id != IGNORE), key=lambda row: row.class_id)
    return Classes(tuple(row.name for row in kept), tuple(row.colour for row in kept))


def raw_to_class(rows: tuple[Row, ...]) -> dict[int, int]:
    return {row.raw: row.class_id for row in rows}


def parse_colour(text: str) -> Colour:
    """ "#rrggbb" → red, green, blue, 0…255 each."""
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)
