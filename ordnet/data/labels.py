"""Classes: names, colours, where they are listed, and what raw label values mean. `IGNORE` is defined here alone.

Benchmarks' classes are listed in tables that come with the package (tables/*.csv: raw id, class id, name and usual
colour), those of a user's own folder in its classes.txt: names, and where needed colours and raw label values.

Classes that come without colours get the usual one where everybody knows it (sky is blue); the others get colours that
differ from those and from one another as much as possible.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from ordnet.data.reading import read_text
from ordnet.errors import OrdnetError, repeated

IGNORE = 255
"""The class id of pixels that never count, from label loading to metric."""

Colour = tuple[int, int, int]

_STEP = 15
"""Candidates for new colours are this far apart along each of red, green and blue."""
_LIGHTNESS = (0.42, 0.92)
"""The OKLab lightness of new colours: darker and lighter ones are too close to black and white."""
_LARGEST_CHROMA = 0.21
"""The OKLab chroma of new colours: stronger ones glare on a screen."""


@dataclass(frozen=True)
class Classes:
    """What a data set distinguishes, in class id order."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    ranges: tuple[str, ...] | None = None
    """The range of context each class needs ("short", "middle", "long"), where a data set knows it."""

    def __post_init__(self) -> None:
        if not 0 < len(self.names) <= IGNORE:
            raise OrdnetError(f"a data set has between 1 and {IGNORE} classes, not {len(self.names)}")
        if len(self.colours) != len(self.names):
            raise OrdnetError(f"{len(self.names)} class names, but {len(self.colours)} colours: give each class one")
        if twice := repeated(self.names):
            raise OrdnetError(
                f"two classes are called {twice!r:.80}: every figure goes by their names, which must differ"
            )

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class LabelRule:
    """How raw label values become class ids: raw id → class id, where IGNORE means "never counts"."""

    raw_to_class: Mapping[int, int]
    _table: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # one look-up per pixel; -1 marks values that no rule names
        table = np.full(max(max(self.raw_to_class), 255) + 2, -1, dtype=np.int16)
        for raw, class_id in self.raw_to_class.items():
            table[raw] = class_id
        object.__setattr__(self, "_table", table)

    def encode(self, raw: np.ndarray) -> np.ndarray:
        """Raw values (H, W) of any integer type → class ids (H, W) uint8. A value no rule names is an error."""
        classes = self._looked_up(raw)
        if (classes < 0).any():
            raise OutsideClasses(self.outside(raw), sorted(self.raw_to_class))
        return classes.astype(np.uint8)

    def encode_known(self, raw: np.ndarray) -> np.ndarray:
        """The same, where values that no rule names are ignored."""
        classes = self._looked_up(raw)
        return np.where(classes < 0, IGNORE, classes).astype(np.uint8)

    def _looked_up(self, raw: np.ndarray) -> np.ndarray:
        # values beyond the table all land on its last entry, which is -1
        found: np.ndarray = self._table[np.clip(raw, -1, len(self._table) - 1)]
        return found

    def outside(self, raw: np.ndarray) -> dict[int, int]:
        """Values that no rule names → how many pixels have them."""
        values, counts = np.unique(raw, return_counts=True)
        return {int(v): int(n) for v, n in zip(values, counts, strict=True) if int(v) not in self.raw_to_class}

    def decode(self, class_ids: np.ndarray) -> np.ndarray:
        """Class ids → raw values, for servers that want the original ids back. Ignored pixels become raw 0."""
        raw_of = np.zeros(256, dtype=np.uint16)
        for raw, class_id in self.raw_to_class.items():
            if class_id != IGNORE:
                raw_of[class_id] = raw
        return raw_of[class_ids]


class OutsideClasses(OrdnetError):
    """A label holds values that no class has."""

    def __init__(self, values: dict[int, int], expected: Sequence[int], file: str = "", advice: str = "") -> None:
        self.values = values
        self.expected = expected
        self.file = file
        self.advice = advice
        found = ", ".join(f"{value} ({count:,} pixels)" for value, count in list(values.items())[:8])
        more = f" and {len(values) - 8} more values" if len(values) > 8 else ""
        span = _ranges(expected) if len(expected) > 8 else ", ".join(map(str, expected))
        where = f"{file}: " if file else ""
        super().__init__(f"{where}label values outside the classes: {found}{more}; expected {span}{advice}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return OutsideClasses, (
            self.values,
            self.expected,
            self.file,
            self.advice,
        )  # so that a worker process can send it


def _ranges(values: Sequence[int]) -> str:
    """Sorted numbers in a few words: 0…7, 255."""
    firsts = [value for value in values if value - 1 not in values]
    lasts = [value for value in values if value + 1 not in values]
    return ", ".join(str(a) if a == b else f"{a}…{b}" for a, b in zip(firsts, lasts, strict=True))


def identity_rule(count: int) -> LabelRule:
    """Raw value = class id, 255 ignored: the rule of `folder:` index labels."""
    return LabelRule({**{i: i for i in range(count)}, IGNORE: IGNORE})


def class_colours(names: Sequence[str]) -> tuple[Colour, ...]:
    """One colour per class, all different, the same on every machine.

    Names in tables/usual_colours.csv, in singular or plural, get the usual colour. Of several that share one (`tree`
    and `forest`) it goes to the name that comes first in the table; of two spellings of a name, to the first class.
    """
    known = {class_id: found for class_id, name in enumerate(names) if (found := _usual(name))}
    owners: dict[Colour, int] = {}
    for class_id, (_, colour) in sorted(known.items(), key=lambda item: item[1][0]):
        owners.setdefault(colour, class_id)
    colours = {class_id: colour for colour, class_id in owners.items()}
    others = [class_id for class_id in range(len(names)) if class_id not in colours]
    colours |= zip(others, distinct_colours(len(others), tuple(owners)), strict=True)
    return tuple(colours[class_id] for class_id in range(len(names)))


@cache
def distinct_colours(count: int, taken: tuple[Colour, ...] = ()) -> tuple[Colour, ...]:
    """`count` colours, the same on every machine; asking for more keeps the first ones.

    Each is the candidate farthest from all before it and from those `taken`, in OKLab, where distance is about what the
    eye sees, and far from black, white and grey, which pictures use for what does not count.
    """
    levels = np.arange(0, 256, _STEP)
    candidates = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, 3)
    places = _oklab(candidates)
    lightness, chroma = places[:, 0], np.linalg.norm(places[:, 1:], axis=1)
    usable = (lightness > _LIGHTNESS[0]) & (lightness < _LIGHTNESS[1]) & (chroma < _LARGEST_CHROMA)
    candidates, places = candidates[usable], places[usable]
    distance = np.full(len(candidates), np.inf)
    for place in _oklab(np.array([(0, 0, 0), (255, 255, 255), (128, 128, 128), *taken])):
        distance = np.minimum(distance, np.linalg.norm(places - place, axis=1))
    chosen: list[Colour] = []
    for _ in range(count):
        best = int(np.argmax(distance.round(6)))  # rounded, so that ties fall alike everywhere
        red, green, blue = candidates[best].tolist()
        chosen.append((red, green, blue))
        distance = np.minimum(distance, np.linalg.norm(places - places[best], axis=1))
    return tuple(chosen)


def _usual(name: str) -> tuple[int, Colour] | None:
    """The name's place among its synonyms and their colour, where the table knows it."""
    plain = re.sub(r"[\s_-]+", " ", name.lower()).strip()
    singular = (plain, plain.removesuffix("s"), plain.removesuffix("es"), re.sub("ies$", "y", plain))
    return next((found for form in singular if (found := _usual_colours().get(form))), None)


@cache
def _usual_colours() -> dict[str, tuple[int, Colour]]:
    """Name → its place among its synonyms, and their colour."""
    with (Path(__file__).with_name("tables") / "usual_colours.csv").open(encoding="utf-8", newline="") as file:
        return {
            name: (place, parse_colour(line["colour"]))
            for line in csv.DictReader(file)
            for place, name in enumerate(line["names"].split("|"))
        }


def _oklab(colours: np.ndarray) -> np.ndarray:
    """sRGB (N, 3), 0…255 → lightness 0…1 and the two OKLab colour axes (N, 3)."""
    value = colours / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    cones = linear @ np.array(
        [
            [0.4122214708, 0.2119034982, 0.0883024619],
            [0.5363325363, 0.6806995451, 0.2817188376],
            [0.0514459929, 0.1073969566, 0.6299787005],
        ]
    )
    return np.cbrt(cones) @ np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )


def parse_colour(text: str) -> Colour:
    """ "#rrggbb" → red, green, blue, 0…255 each."""
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


@dataclass(frozen=True)
class ClassRow:
    """One raw label value of a benchmark."""

    raw: int
    class_id: int
    """IGNORE where the raw id is not a class of its own."""
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
"""Limits that keep parsing fast, whatever the file holds; `ignore` may have many lines."""

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
    lines = [_parsed_line(number, line) for number, line in texts]
    named = [line for line in lines if line.name != _IGNORE_NAME]
    if not named:
        raise OrdnetError(f"{path} names no class\n{HELP}")
    _check_lines(lines, named, path)
    values = _raw_values(lines)
    class_ids = {line: class_id for class_id, line in enumerate(named)}
    rule = LabelRule({IGNORE: IGNORE} | {values[line]: class_ids.get(line, IGNORE) for line in lines})
    return ClassList(_listed_classes(named), rule, {line.colour: values[line] for line in lines if line.colour})


def _parsed_line(number: int, text: str) -> _Line:
    match = _LINE.fullmatch(text.strip())
    assert match is not None  # any text is a name
    colour, raw = match["colour"], match["raw"]
    return _Line(number, match["name"], parse_colour(colour) if colour else None, int(raw) if raw else None)


def _check_lines(lines: list[_Line], named: list[_Line], path: Path) -> None:
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


def _listed_classes(named: list[_Line]) -> Classes:
    names = tuple(line.name for line in named)
    colours = tuple(line.colour for line in named if line.colour)
    return Classes(names, colours or class_colours(names))


def _raw_values(lines: list[_Line]) -> dict[_Line, int]:
    """Line → raw value: the one it gives, or else its place among the lines."""
    if any(line.raw is not None for line in lines):
        # an `ignore` of a colour alone: a value that no label file can hold
        return {line: _LARGEST_RAW + 1 if line.raw is None else line.raw for line in lines}
    return {line: place for place, line in enumerate(lines)}
