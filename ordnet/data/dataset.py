"""What every data set offers (ids, pictures, labels, classes), and the class behind all that are files on disk.

Folders are listed once; a missing file is named together with the place where it was expected.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from ordnet.data.label_files import read_index
from ordnet.data.labels import IGNORE, Classes, LabelRule, OutsideClasses
from ordnet.data.pictures import IMAGE_ENDINGS, UNREADABLE, open_rgb
from ordnet.data.reading import read_text
from ordnet.errors import OrdnetError, is_printable


class Dataset(Protocol):
    """One split of one data set. Reading is stateless, so that workers and processes may share it."""

    name: str
    """The name given on the command line, without the path: "ade20k", "folder", "scenes"."""
    split: str
    ids: Sequence[str]
    classes: Classes
    rule: LabelRule

    def image(self, index: int) -> Image.Image:
        """The picture as 8-bit RGB, upright."""
        ...

    def label(self, index: int) -> np.ndarray:
        """Class ids (H, W) uint8 of the picture's size; IGNORE where nothing counts."""
        ...

    def files(self, index: int) -> tuple[str, str]:
        """Where image and label come from, for messages; the label's is empty where the split has none."""
        ...


def read_pair(dataset: Dataset, index: int) -> tuple[Image.Image, np.ndarray]:
    """Image and label of one sample; an error where their sizes differ."""
    image, label = dataset.image(index), dataset.label(index)
    height, width = label.shape
    if image.size != (width, height):
        image_file, label_file = dataset.files(index)
        raise OrdnetError(
            f"image and label differ in size: {image_file} has {image.width} x {image.height} pixels, "
            f"{label_file} has {width} x {height}; {size_advice(image.size, (width, height))}"
        )
    return image, label


def size_advice(image: tuple[int, int], label: tuple[int, ...]) -> str:
    """What to do about a label of another size than its picture; both as (width, height)."""
    if image == label[::-1]:
        return (
            "the label lies on its side: if the picture has an EXIF rotation, remove that tag; otherwise turn the label"
        )
    if 2 * abs(image[0] * label[1] - image[1] * label[0]) <= max(image):  # but for rounding
        return f"the shape is the same: scale the label to {image[0]} x {image[1]} by nearest neighbour, never smoothly"
    return "they differ in shape too: see whether this is the label of another picture, or of a part of this one"


def notes_of(dataset: Dataset) -> tuple[str, ...]:
    """What a user should be told about how the data set was read, if there is anything."""
    return getattr(dataset, "notes", ())


def starts_of(dataset: Dataset) -> Sequence[int]:
    """Where each shard's samples begin; empty for a data set without shards."""
    return getattr(dataset, "starts", ())


def neighbours(count: int, rank: int, world: int) -> range:
    """Which of `count` items belong to one of `world` processes, if neighbours are to stay together."""
    return range(-(-rank * count // world), -(-(rank + 1) * count // world))


class Spread:
    """`count` samples of a split, evenly spread over its first `of` samples (by default over all)."""

    def __init__(self, dataset: Dataset, count: int, of: int | None = None) -> None:
        self._dataset = dataset
        of = min(of or len(dataset.ids), len(dataset.ids))
        self._indices = np.unique(np.linspace(0, of - 1, min(count, of)).round().astype(int))
        self.name, self.split, self.classes, self.rule = dataset.name, dataset.split, dataset.classes, dataset.rule
        self.ids: Sequence[str] = [dataset.ids[index] for index in self._indices]
        self.notes = notes_of(dataset)
        self.read = getattr(dataset, "read", None)  # kept counts of labels belong to one way of reading them

    def image(self, index: int) -> Image.Image:
        return self._dataset.image(int(self._indices[index]))

    def label(self, index: int) -> np.ndarray:
        return self._dataset.label(int(self._indices[index]))

    def files(self, index: int) -> tuple[str, str]:
        return self._dataset.files(int(self._indices[index]))


_SMOOTH = 8
"""This many values outside the classes come from smoothing, not from forgotten classes."""


@dataclass
class FileDataset:
    """One split whose images and labels are files, given as lists of equal length."""

    name: str
    split: str
    ids: Sequence[str]
    classes: Classes
    rule: LabelRule
    images: Sequence[str]
    labels: Sequence[str]
    """Empty where the split has none."""
    read: Callable[[str], np.ndarray] = read_index
    """The raw values (H, W) of a label file."""
    notes: tuple[str, ...] = ()
    """What a user should be told about how the files were read."""
    starts: Sequence[int] = ()
    """Where each shard's samples begin, if the data set is in shards."""

    def image(self, index: int) -> Image.Image:
        return open_rgb(self.images[index])

    def raw(self, index: int) -> np.ndarray:
        """The label's raw values (H, W), as stored."""
        if not self.labels:
            raise OrdnetError(f"the {self.split} split of {self.name} has no labels")
        return self.read(self.labels[index])

    def label(self, index: int) -> np.ndarray:
        raw = self.raw(index)
        try:
            return self.rule.encode(raw)
        except OutsideClasses as error:
            advice = self._advice(error, bool((raw == 0).any())) if self.name in ("folder", "tar") else ""
            raise OutsideClasses(error.values, error.expected, self.labels[index], advice) from None

    def _advice(self, error: OutsideClasses, zero: bool) -> str:
        """Advice on the commonest mistakes in users' own labels; `zero` is whether this one holds 0."""
        if set(error.values) == {len(self.classes)} and IGNORE in error.expected:
            if not zero:
                return "; if your labels count from 1, write `ignore` as the first line of classes.txt"
            return (
                f"; if {len(self.classes)} is one more class, add its name at the end of classes.txt; if 0 is none, "
                "write `ignore` as its first line"
            )
        if len(error.values) >= _SMOOTH:
            return (
                "; so many values come from smoothing: save masks with hard edges, and shrink or enlarge them by "
                "nearest neighbour"
            )
        return ""

    def files(self, index: int) -> tuple[str, str]:
        return self.images[index], self.labels[index] if self.labels else ""


class Files:
    """The files below a folder, by id: the path below the folder without its ending. Hidden files do not count."""

    def __init__(self, folder: Path, endings: Sequence[str], suffix: str = "", flat: bool = False) -> None:
        """`endings` are in lower case and match any case. `suffix` ends every name and is not part of the id. With
        `flat`, neither are the folders in between."""
        self.folder = folder
        self.endings = endings
        self.suffix = suffix
        self.paths: dict[str, str] = {}
        self.unreadable: Counter[str] = Counter()
        """Endings of pictures in formats that cannot be read here → how many files have them."""
        self._twice: dict[str, str] = {}
        for name in _walk(folder, "", ()):
            if not is_printable(name):
                raise OrdnetError(f"{folder}: the file name {name!r} has characters that cannot be shown: rename it")
            stem, dot, ending = name.rpartition(".")
            if (dot + ending).lower() in UNREADABLE:
                self.unreadable[(dot + ending).lower()] += 1
            if (dot + ending).lower() in endings and stem.endswith(suffix):
                # Macs write letters with marks in two characters, most others in one
                key = unicodedata.normalize("NFC", stem[: len(stem) - len(suffix)])
                key = key.rpartition("/")[2] if flat else key
                path = f"{folder}/{name}"
                if self.paths.setdefault(key, path) != path:
                    self._twice[key] = path

    def pick(self, ids: Iterable[str], what: str) -> list[str]:
        """The paths of these ids. `what` they are ("label") is for the message when some are missing."""
        ids = list(ids)
        missing = [key for key in ids if key not in self.paths]
        if missing:
            looked = f"{self.folder}/{missing[0]}{self.suffix}{'|'.join(self.endings)}"
            raise OrdnetError(
                f"{len(missing):,} of {len(ids):,} {what}s are missing: {first_few(missing)}; looked for {looked}"
            )
        for key in self._twice.keys() & set(ids):
            raise OrdnetError(f"two {what}s for {key!r}: {self.paths[key]} and {self._twice[key]}; remove one")
        return [self.paths[key] for key in ids]


def pair_folders(
    folders: Iterable[tuple[Path, Path | None]],
    problem: str,
    endings: Sequence[str] = IMAGE_ENDINGS,
    image_suffix: str = "",
    label_suffix: str = "",
) -> tuple[list[str], list[str], list[str]]:
    """Ids, images and labels of pairs of folders in which every image has a PNG of its id as label.

    A label folder of None stands for labels that are kept secret. `problem` is the error where there is no image at
    all.
    """
    ids: list[str] = []
    images: list[str] = []
    labels: list[str] = []
    for image_folder, label_folder in folders:
        found = Files(image_folder, endings, image_suffix)
        here = sorted(found.paths)
        ids += here
        images += found.pick(here, "image")
        if label_folder is not None:
            labels += Files(label_folder, (".png",), label_suffix).pick(here, "label")
    if not ids:
        raise OrdnetError(problem)
    return ids, images, labels


def _walk(folder: Path, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Files below `folder / below`; `above` are the folders on the way there: a link back to one would never end."""
    try:
        status = (folder / below).stat()
        if (status.st_dev, status.st_ino) in above:
            raise OrdnetError(f"{folder / below} is a link to a folder that it lies in: remove it")
        with os.scandir(folder / below) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise OrdnetError(f"cannot list {folder / below}: {error.strerror}") from None
    for name, is_folder in found:
        if is_folder:
            yield from _walk(folder, f"{below}{name}/", (*above, (status.st_dev, status.st_ino)))
        else:
            yield below + name


def search_root(path: str | None, inside: Sequence[str], holds: Sequence[str]) -> Path | None:
    """The folder that has all of `holds`: `path` itself, or a folder named in `inside` below it."""
    base = Path(path or "").expanduser()
    folders = (base, *(base / step for step in inside)) if path else ()
    return next((root for root in folders if all((root / part).is_dir() for part in holds)), None)


def find_root(name: str, path: str | None, inside: Sequence[str], holds: Sequence[str], tree: str) -> Path:
    """Like `search_root`, but finding none is an error that shows the expected `tree`."""
    root = search_root(path, inside, holds)
    if root is not None:
        return root
    if not path:
        raise OrdnetError(f"{name} is read from disk: say where, as {name}:PATH, with PATH the folder of\n{tree}")
    base = Path(path).expanduser()
    if not base.is_dir():
        raise OrdnetError(f"{name}: there is no folder {base}; expected\n{tree}")
    tried = ", ".join(str(base / step) for step in ("", *inside))
    raise OrdnetError(f"{name}: no {' and '.join(f'{part}/' for part in holds)} in {tried}; expected\n{tree}")


def first_folder(candidates: Iterable[Path]) -> Path | None:
    """The first candidate that exists."""
    return next((folder for folder in candidates if folder.is_dir()), None)


def read_ids(path: Path) -> list[str]:
    """One id per line; surrounding spaces and empty lines are ignored."""
    lines = read_text(path, f"no list of ids at {path}").splitlines()
    ids = [unicodedata.normalize("NFC", line.strip()) for line in lines if line.strip()]
    if not ids:
        raise OrdnetError(f"{path} is empty: expected one id per line")
    return ids


def check_split(name: str, split: str, splits: Iterable[str]) -> None:
    """Raise OrdnetError where the data set has no such split."""
    if split not in splits:
        raise OrdnetError(f"{name} has no split {split!r}; there are {', '.join(splits)}")


def first_few(words: Sequence[str]) -> str:
    """The first three words, and how many more there are."""
    return ", ".join(words[:3]) + (f" and {len(words) - 3:,} more" if len(words) > 3 else "")
