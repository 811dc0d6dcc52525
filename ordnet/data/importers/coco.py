"""Annotations in COCO's instances format: one JSON file with polygons or run lengths, and a folder of pictures."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, points, polygon, reader_of, run_lengths, somewhere_inside, unpack
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError

_BOXES = "annotations without a segmentation (boxes only)"


def read(file: Path, images: Path) -> Annotations:
    """Everything `file` lists. Class names in the order of the category ids; problems are collected, not raised."""
    content = _load(file)
    found = Annotations()
    groups = _groups(content)
    if groups:
        found.left_out["categories that only stand for all others (supercategories)"] += len(groups)
    names = {row["id"]: row["name"].strip() for row in content["categories"] if row["id"] not in groups}
    pictures: dict[int | str, Annotated] = {}
    for entry in content["images"]:
        name, width, height = entry["file_name"], entry.get("width"), entry.get("height")
        try:
            path = somewhere_inside(images, name)
        except OrdnetError as error:
            found.problems.append(f"{file}: {error}")
            path = images
        size = (width, height) if isinstance(width, int) and isinstance(height, int) else None
        pictures[entry["id"]] = Annotated(identifier(Path(name)), name, reader_of(path), size)
    found.pictures = list(pictures.values())
    # numbers before words, should a file mix them; two categories may share a name: they become one class
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    found.names = list(dict.fromkeys(names[key] for key in order))
    for annotation in content["annotations"]:
        where = f"{file}: annotation {annotation.get('id')!r:.40}"
        image_id, category_id = annotation.get("image_id"), annotation.get("category_id")
        if not isinstance(image_id, int | str) or image_id not in pictures:
            found.problems.append(f"{where} belongs to image {image_id!r:.40}, which is not listed")
        elif not isinstance(category_id, int | str) or category_id not in names:
            found.problems.append(f"{where} has category {category_id!r:.40}, which is not listed")
        else:
            _add(annotation, names[category_id], pictures[image_id], found, where)
    outlined = sum(len(picture.shapes) for picture in found.pictures)
    if found.left_out[_BOXES] and not outlined and not found.problems:
        raise OrdnetError(
            f"{file} has {found.left_out[_BOXES]:,} boxes and no outlines: a box does not say which pixels belong to a "
            "thing. Export with segmentations (polygons or masks), or outline the things first"
        )
    return found


def _groups(content: dict[str, Any]) -> set[int | str]:
    """Categories that are the supercategory of others and have no annotation, as Roboflow writes one."""
    pairs = [(row["name"], row.get("supercategory")) for row in content["categories"]]
    over = {group for name, group in pairs if isinstance(group, str) and group != name}
    used = {row.get("category_id") for row in content["annotations"] if isinstance(row.get("category_id"), int | str)}
    return {row["id"] for row in content["categories"] if row["name"] in over and row["id"] not in used}


def _load(file: Path) -> dict[str, Any]:
    content = load_json(file)
    for part, key in (("images", "file_name"), ("categories", "name"), ("annotations", None)):
        rows = content.get(part) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(_is_entry(row, key) for row in rows):
            wanted = f" of entries with id and {key}" if key else ""
            raise OrdnetError(f"{file} is not a COCO instances file: expected a list {part!r}{wanted}")
        twice = [entry for entry, times in Counter(row["id"] for row in rows if key).items() if times > 1]
        if twice:
            raise OrdnetError(f"{file}: the id {twice[0]!r:.40} occurs more than once among the {part}")
    if not content["images"]:
        raise OrdnetError(f"{file} lists no images")
    return dict(content)


def _is_entry(row: Any, key: str | None) -> bool:
    """Whether it is an object and, where `key` is given, has an id and a word under that key."""
    if not isinstance(row, dict) or key is None:
        return isinstance(row, dict)
    return isinstance(row.get("id"), int | str) and isinstance(row.get(key), str) and Path(row[key]).name != ""


def _add(annotation: dict[str, Any], name: str, picture: Annotated, found: Annotations, where: str) -> None:
    segmentation = annotation.get("segmentation")
    if not segmentation:
        found.left_out[_BOXES] += 1
        return
    try:
        drawing = _drawing(segmentation)
    except (OrdnetError, TypeError, ValueError, KeyError, OverflowError) as error:
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
        lengths = unpack(counts) if isinstance(counts, str) else counts
        if not isinstance(lengths, list) or not all(type(length) is int for length in (*lengths, height, width)):
            raise ValueError("run lengths are whole numbers")
        return partial(run_lengths, lengths, (height, width))
    outlines = [points(np.asarray(flat, dtype=np.float64).reshape(-1, 2)) for flat in segmentation]
    outlines = [outline for outline in outlines if len(outline) >= 3]
    return partial(polygon, outlines) if outlines else None
