"""Writing annotations, whatever tool made them, as a `folder:`: pictures, label PNGs, classes.txt and split lists.

Shapes are painted from the largest area to the smallest, so that a small object on a large one stays visible; of two
that are equally large the later one lies on top. Shapes named `ignore` or `__ignore__` mark pixels that never count.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from ordnet.data.folder import divide
from ordnet.data.importers.regions import Region
from ordnet.data.labels import IGNORE
from ordnet.data.pictures import open_rgb, opened
from ordnet.errors import OrdnetError, is_printable
from ordnet.files import filled_folder

BACKGROUND = "background"
IGNORED_NAMES = ("ignore", "__ignore__")
_SHOWN = 10
_LONGEST_NAME = 240
"""Bytes: file systems take 255 with the ending."""


@dataclass(frozen=True)
class Shape:
    """An annotated area and its class."""

    name: str
    draw: Callable[[int, int], Region]
    """Height and width of the picture → the pixels it covers."""


@dataclass(frozen=True)
class Annotated:
    """One picture and what was drawn on it."""

    id: str
    origin: str
    """The file that messages name."""
    content: Callable[[], bytes]
    """Reads the picture's file."""
    size: tuple[int, int] | None
    """Width and height that the annotation was made for, where it says so."""
    shapes: list[Shape] = field(default_factory=list)
    split: str | None = None
    """The part it belongs to, where the tool has divided the pictures already."""


@dataclass
class Annotations:
    """A whole set, as a reader found it."""

    pictures: list[Annotated] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Class names in the order they get their ids."""
    problems: list[str] = field(default_factory=list)
    """What keeps the set from being converted."""
    left_out: Counter[str] = field(default_factory=Counter)
    """What cannot be painted and is left out → how often."""


@dataclass(frozen=True)
class Written:
    """What was written, for the user to read."""

    classes: list[str]
    splits: dict[str, int]
    """Split → pictures in it."""
    left_out: dict[str, int]


def identifier(path: Path) -> str:
    """A file's path without its ending, as one name, so that names from several folders do not clash."""
    # lists of ids are read without spaces around them, and folders without hidden files
    return "_".join(part for part in path.with_suffix("").parts if part not in (path.anchor, "..")).strip(" .")


def write_folder(
    found: Annotations,
    out: Path,
    background: bool,
    val: float,
    seed: int,
    advance: Callable[[], object] = lambda: None,
) -> Written:
    """Write everything to `out`, or nothing at all. `advance` is called after each picture.

    With `background` the pixels that nothing covers are class 0, "background"; otherwise they are ignored, and
    pictures without any shape are left out. A share of `val` of the pictures, drawn by `seed`, is the val split.
    """
    left_out = Counter(found.left_out)
    pictures = found.pictures
    if not background:
        pictures = [picture for picture in pictures if picture.shapes]
        left_out["pictures without any shape"] += len(found.pictures) - len(pictures)
    problems = [*found.problems, *_twice(pictures), *_unusable(pictures)]
    _refuse(problems)
    names = class_names(found.names, background)
    with _new_folder(out) as folder:
        classes: list[frozenset[int]] = []
        for picture in pictures:
            try:
                classes.append(_write_pair(picture, folder, names, background, left_out))
            except (OrdnetError, OSError) as error:
                problems.append(str(error) if picture.origin in str(error) else f"{picture.origin}: {error}")
            advance()
        _refuse(problems)
        splits = _splits(pictures, classes, val, seed)
        for name, ids in splits.items():
            (folder / f"{name}.txt").write_text("".join(f"{key}\n" for key in ids), encoding="utf-8")
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return Written(names, {name: len(ids) for name, ids in splits.items()}, dict(+left_out))


def class_names(names: Sequence[str], background: bool) -> list[str]:
    """Names in class id order: background first where it is wanted."""
    classes = [name for name in names if name not in IGNORED_NAMES]
    if background:
        classes = [BACKGROUND, *(name for name in classes if name != BACKGROUND)]
    if not 0 < len(classes) <= IGNORE:
        raise OrdnetError(f"found {len(classes)} class names: a data set has between 1 and {IGNORE}")
    # in classes.txt these give a class its colour and its value
    broken = [name for name in classes if "#" in name or "=" in name or len(name.splitlines()) != 1]
    if broken:
        raise OrdnetError(f"the class name {broken[0]!r} holds #, = or a line break: rename it in the annotations")
    return classes


def _splits(
    pictures: Sequence[Annotated], classes: Sequence[frozenset[int]], val: float, seed: int
) -> dict[str, list[str]]:
    """Split → ids: as the tool divided the pictures, or with every class in both parts where that is possible."""
    if pictures and all(picture.split for picture in pictures) and len({picture.split for picture in pictures}) > 1:
        parts: dict[str, list[str]] = {}
        for picture in pictures:
            parts.setdefault(str(picture.split), []).append(picture.id)
        return parts
    return divide([picture.id for picture in pictures], val, seed, classes)


def paint(regions: Sequence[tuple[Region, int]], height: int, width: int, unpainted: int) -> np.ndarray:
    """Regions with their class ids → class ids (height, width) uint8; `unpainted` where nothing was drawn."""
    label = np.full((height, width), unpainted, dtype=np.uint8)
    for region, class_id in sorted(regions, key=lambda pair: -pair[0].area):
        region.paint(label, class_id)
    return label


def _write_pair(
    picture: Annotated, folder: Path, names: Sequence[str], background: bool, left_out: Counter[str]
) -> frozenset[int]:
    """Write image and label; returns the class ids in the label."""
    content = picture.content()
    with opened(io.BytesIO(content)) as header:
        kind = header.format
    image = open_rgb(io.BytesIO(content))
    if picture.size not in (None, image.size):
        width, height = picture.size or (0, 0)
        raise OrdnetError(
            f"{picture.origin}: annotated at {width}x{height}, but the picture has {image.width}x{image.height}"
        )
    class_ids = {name: class_id for class_id, name in enumerate(names)} | dict.fromkeys(IGNORED_NAMES, IGNORE)
    regions = [(shape.draw(image.height, image.width), class_ids[shape.name]) for shape in picture.shapes]
    left_out["shapes that cover no pixel of their picture"] += sum(region.area == 0 for region, _ in regions)
    label = paint(regions, image.height, image.width, 0 if background else IGNORE)
    Image.fromarray(label).save(folder / "labels" / f"{picture.id}.png")
    if kind in ("JPEG", "PNG"):
        ending = ".jpg" if kind == "JPEG" else ".png"
        (folder / "images" / f"{picture.id}{ending}").write_bytes(content)
    else:
        image.save(folder / "images" / f"{picture.id}.png")
    return frozenset(np.unique(label[label != IGNORE]).tolist())


def _twice(pictures: Sequence[Annotated]) -> list[str]:
    seen: dict[str, str] = {}
    problems = []
    for picture in pictures:
        if picture.id in seen:
            problems.append(f"{seen[picture.id]} and {picture.origin} would both be called {picture.id}: rename one")
        seen.setdefault(picture.id, picture.origin)
    return problems


def _unusable(pictures: Sequence[Annotated]) -> list[str]:
    """Names that lists and file systems cannot hold."""
    return [
        f"{picture.origin!r:.200}: rename this picture: its name is empty, too long or cannot be shown"
        for picture in pictures
        if not picture.id or not is_printable(picture.id) or len(picture.id.encode()) > _LONGEST_NAME
    ]


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        more = f"\n  … and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        lines = "".join(f"\n  {problem}" for problem in problems[:_SHOWN])
        raise OrdnetError(f"nothing was written; mend these first ({len(problems)}):{lines}{more}")


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder. What it holds becomes `out` at the end, or is removed where something went wrong."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OrdnetError(f"{out} exists and is not an empty folder: name a new one")
    try:
        with filled_folder(out) as folder:
            for part in ("images", "labels"):
                (folder / part).mkdir()
            yield folder
    except OSError as error:
        raise OrdnetError(f"cannot write {out}: {error}") from None
