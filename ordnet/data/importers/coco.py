"""Annotations in COCO's instances format: one JSON file with polygons or run lengths, and a folder of pictures."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, polygon, run_lengths, unpack
from ordnet.errors import OrdnetError


def read(file: Path, images: Path) -> Annotations:
    """Everything `file` lists. Class names in the order of the category ids; problems are collected, not raised."""
    content = _load(file)
    names = {category["id"]: category["name"].strip() for category in content["categories"]}
    pictures = {
        picture["id"]: Annotated(
            id=identifier(Path(picture["file_name"])),
            origin=picture["file_name"],
            content=(images / picture["file_name"]).read_bytes,
            size=(picture["width"], picture["height"]) if "width" in picture and "height" in picture else None,
        )
        for picture in content["images"]
    }
    found = Annotations(pictures=list(pictures.values()))
    # two categories may share a name: they become one class
    found.names = list(dict.fromkeys(names[key] for key in sorted(names)))
    for picture in found.pictures:
        if not (images / picture.origin).is_file():
            found.problems.append(f"{images / picture.origin} is missing")
    for annotation in content["annotations"]:
        where = f"{file}: annotation {annotation.get('id')}"
        if annotation.get("image_id") not in pictures:
            found.problems.append(f"{where} belongs to image {annotation.get('image_id')}, which is not listed")
        elif annotation.get("category_id") not in names:
            found.problems.append(f"{where} has category {annotation.get('category_id')}, which is not listed")
        else:
            _add(annotation, names[annotation["category_id"]], pictures[annotation["image_id"]], found, where)
    return found


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise OrdnetError(f"{file} is not readable as JSON: {error}") from None
    for part, key in (("images", "file_name"), ("categories", "name"), ("annotations", None)):
        rows = content.get(part) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(_is_entry(row, key) for row in rows):
            wanted = f" of entries with id and {key}" if key else ""
            raise OrdnetError(f"{file} is not a COCO instances file: expected a list {part!r}{wanted}")
        twice = [entry for entry, times in Counter(row["id"] for row in rows if key).items() if times > 1]
        if twice:
            raise OrdnetError(f"{file}: the id {twice[0]} occurs more than once among the {part}")
    if not content["images"]:
        raise OrdnetError(f"{file} lists no images")
    return content


def _is_entry(row: Any, key: str | None) -> bool:
    """Whether it is an object and, where `key` is given, has an id and a word under that key."""
    if not isinstance(row, dict) or key is None:
        return isinstance(row, dict)
    return isinstance(row.get("id"), int | str) and isinstance(row.get(key), str) and Path(row[key]).name != ""


def _add(annotation: dict[str, Any], name: str, picture: Annotated, found: Annotations, where: str) -> None:
    segmentation = annotation.get("segmentation")
    if not segmentation:
        found.left_out["annotations without a segmentation (boxes only)"] += 1
        return
    try:
        drawing = _drawing(segmentation)
    except (OrdnetError, TypeError, ValueError, KeyError) as error:
        reason = f": {error}" if isinstance(error, OrdnetError) else ""
        found.problems.append(f"{where}: its segmentation is neither a list of polygons nor run lengths{reason}")
        return
    if drawing is None:
        found.left_out["polygons of fewer than three points"] += 1
    else:
        picture.shapes.append(Shape(name, drawing))


def _drawing(segmentation: Any) -> Callable[[int, int], Region] | None:
    """How to paint one object, or None where it has no area."""
    if isinstance(segmentation, dict):
        counts, (height, width) = segmentation["counts"], segmentation["size"]
        lengths = np.array(unpack(counts) if isinstance(counts, str) else counts, dtype=np.int64).reshape(-1)
        return partial(run_lengths, lengths, (int(height), int(width)))
    outlines = [np.asarray(flat, dtype=np.float64).reshape(-1, 2) for flat in segmentation]
    if not all(np.isfinite(outline).all() for outline in outlines):
        raise ValueError("coordinates are finite numbers")
    outlines = [outline for outline in outlines if len(outline) >= 3]
    return partial(polygon, outlines) if outlines else None
