"""Label pictures of other tools: CVAT's "Segmentation mask 1.1" and Roboflow's "Semantic Segmentation Masks"."""

import csv
import io
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, inside, picture_for, reader_of
from ordnet.data.label_files import read_colours, read_index
from ordnet.data.labels import Colour
from ordnet.data.pictures import opened
from ordnet.data.reading import read_text
from ordnet.errors import OrdnetError

_BLACK = (0, 0, 0)
_UNLABELLED = 65535
"""The raw value of pixels in CVAT's black where no label has that colour."""
_SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}


def read_cvat(folder: Path, images: Path | None) -> Annotations:
    """SegmentationClass/*.png with the colours of labelmap.txt; the pictures lie in `images` or in the export
    itself."""
    masks = folder / "SegmentationClass"
    files = sorted(masks.rglob("*.png")) if masks.is_dir() else []
    if not files:
        raise OrdnetError(f"no masks in {masks}: expected the unpacked export `Segmentation mask 1.1` of CVAT")
    colours = _labelmap(folder / "labelmap.txt")
    places = [images] if images else [folder / "JPEGImages", folder / "images"]
    palette = {colour: value for value, colour in enumerate(colours.values())}
    palette.setdefault(_BLACK, _UNLABELLED)
    found = Annotations(names=list(colours))
    for file in files:
        below = file.relative_to(masks).with_suffix("")
        try:
            picture = picture_for(below.as_posix(), places, images or folder)
            inside(folder, file.relative_to(folder).as_posix())
        except OrdnetError as error:
            found.problems.append(str(error))
            continue
        if picture is None:
            looked = " and ".join(map(str, places))
            found.problems.append(
                f"no picture for {file} in {looked}: export with `Save images`, or name their folder with --images"
            )
            continue
        _add(found, file, picture, identifier(below.with_suffix(".png")), tuple(palette.items()), list(colours))
    return found


def read_roboflow(folder: Path) -> Annotations:
    """Folders train, valid and test, each with pictures, *_mask.png and _classes.csv; or one such folder."""
    parts = [part for part in (folder / name for name in _SPLITS) if part.is_dir()] or [folder]
    found = Annotations()
    for part in parts:
        files = sorted(part.glob("*_mask.png"))
        if not files:
            continue
        names = _classes_csv(part / "_classes.csv")
        found.names += [name for name in names.values() if name not in found.names]
        for file in files:
            stem = file.name.removesuffix("_mask.png")
            try:
                picture = picture_for(stem, [part], folder)
                inside(folder, file.relative_to(folder).as_posix())
            except OrdnetError as error:
                found.problems.append(str(error))
                continue
            if picture is None:
                found.problems.append(f"no picture beside {file}: expected {stem}.jpg")
                continue
            split = _SPLITS.get(part.name) if part is not folder else None
            _add(found, file, picture, stem.strip(" ."), None, names, split)
    if not found.pictures and not found.problems:
        raise OrdnetError(
            f"no *_mask.png in {folder}: expected the unpacked export `Semantic Segmentation Masks` of Roboflow"
        )
    return found


def _add(
    found: Annotations,
    file: Path,
    picture: Path,
    key: str,
    palette: tuple[tuple[Colour, int], ...] | None,
    names: list[str] | Mapping[int, str],
    split: str | None = None,
) -> None:
    """One picture with a shape for each class in its mask; raw value → name by `names`."""
    try:
        raw = _raw(str(file), palette)
    except OrdnetError as error:
        found.problems.append(str(error))
        return
    by_value = dict(enumerate(names)) if isinstance(names, list) else dict(names)
    shapes = []
    for value in np.unique(raw).tolist():
        if value in by_value:
            shapes.append(Shape(by_value[value], partial(_region, str(file), palette, value)))
        elif value != _UNLABELLED:
            found.problems.append(
                f"{file}: {(raw == value).sum():,} pixels have the value {value}, which no class has; there are "
                f"{', '.join(map(str, by_value))}"
            )
    size = (raw.shape[1], raw.shape[0])
    found.pictures.append(Annotated(key, str(picture), reader_of(picture), size, shapes, split))


def _region(file: str, palette: tuple[tuple[Colour, int], ...] | None, value: int, height: int, width: int) -> Region:
    return Region(0, 0, _raw(file, palette) == value)


@lru_cache(maxsize=1)
def _raw(file: str, palette: tuple[tuple[Colour, int], ...] | None) -> np.ndarray:
    """Raw values (H, W): through the palette, or those of a mask with one channel, in the order of the labels."""
    with opened(file) as image:
        coloured = image.mode in ("RGB", "RGBA", "P")
    return read_colours(file, dict(palette)) if palette and coloured else read_index(file)


def _labelmap(file: Path) -> dict[str, Colour]:
    """Name → colour, from lines such as `road:128,64,128::`."""
    colours: dict[str, Colour] = {}
    for number, line in enumerate(
        read_text(file, f"{file} is missing: it says which value is which class").splitlines(), 1
    ):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, rest = line.partition(":")
        values = [word.strip() for word in rest.partition(":")[0].split(",")]
        if len(values) != 3 or not all(map(_is_byte, values)):
            raise OrdnetError(
                f"{file}: line {number}: expected `name:red,green,blue::`, 0 to 255 each; got {line[:80]!r}"
            )
        red, green, blue = map(int, values)
        if name.strip() in colours or (red, green, blue) in colours.values():
            raise OrdnetError(f"{file}: line {number}: the name or the colour is there twice: {line[:80]!r}")
        colours[name.strip()] = (red, green, blue)
    if not colours:
        raise OrdnetError(f"{file} names no label")
    return colours


def _classes_csv(file: Path) -> dict[int, str]:
    """Raw value → name, from the columns `Pixel Value` and `Class`."""
    try:
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(
                io.StringIO(read_text(file, f"{file} is missing: it says which value is which class"))
            )
            if row
        ]
    except csv.Error as error:
        raise OrdnetError(f"{file} is not readable: {error}") from None
    names: dict[int, str] = {}
    for row in rows[1:]:
        if len(row) != 2 or not _is_byte(row[0]) or not row[1]:
            raise OrdnetError(f"{file}: expected the columns `Pixel Value` and `Class`, got {row!r:.80}")
        names[int(row[0])] = row[1]
    if not names:
        raise OrdnetError(f"{file} names no class")
    return names


def _is_byte(word: str) -> bool:
    """Whether a word is a number from 0 to 255. Python reads no number of more than 4,300 digits."""
    return word.isascii() and word.isdecimal() and len(word) < 5 and int(word) < 256
