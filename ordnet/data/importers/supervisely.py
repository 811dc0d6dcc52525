"""Annotations of a Supervisely project: meta.json, and for each data set the folders img and ann.

A figure is a bitmap (a PNG, zlib, base64) with its place, or polygons with holes, or a rectangle, all in pixels.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, cut_to, inside, points, polygon, reader_of, rectangle, unpacked_mask
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError


def read(project: Path) -> Annotations:
    """Every annotation of the project. Classes in the order of meta.json; problems are collected, not raised."""
    meta = load_json(project / "meta.json")
    classes = meta.get("classes") if isinstance(meta, dict) else None
    if not isinstance(classes, list) or not all(
        isinstance(c, dict) and isinstance(c.get("title"), str) for c in classes
    ):
        raise OrdnetError(f"{project / 'meta.json'} is not Supervisely's: expected a list `classes` with titles")
    files = sorted(file for file in project.rglob("*.json") if file.parent.name == "ann")
    if not files:
        raise OrdnetError(f"no annotations in {project}: expected DATASET/ann/*.json beside DATASET/img")
    found = Annotations(names=list(dict.fromkeys(c["title"].strip() for c in classes)))
    for file in files:
        try:
            found.pictures.append(_picture(file, project, found))
        except OrdnetError as error:
            found.problems.append(str(error) if str(file) in str(error) else f"{file}: {error}")
    return found


def _picture(file: Path, project: Path, found: Annotations) -> Annotated:
    content = load_json(file)
    objects = content.get("objects") if isinstance(content, dict) else None
    size = content.get("size") if isinstance(content, dict) else None
    if not isinstance(objects, list) or not isinstance(size, dict):
        raise OrdnetError(f"{file} is not a Supervisely annotation: expected `size` and a list `objects`")
    picture = inside(file.parent.parent / "img", file.name.removesuffix(".json"))
    width, height = size.get("width"), size.get("height")
    below = picture.relative_to(project)
    return Annotated(
        id=identifier(Path(*(part for part in below.parts if part != "img"))),
        origin=str(file),
        content=reader_of(picture),
        size=(width, height) if isinstance(width, int) and isinstance(height, int) else None,
        shapes=[shape for values in objects if (shape := _shape(values, found)) is not None],
    )


def _shape(values: Any, found: Annotations) -> Shape | None:
    name = values.get("classTitle") if isinstance(values, dict) else None
    if not isinstance(name, str) or name.strip() not in found.names:
        raise OrdnetError(f"an object has the class {name!r:.80}, which meta.json does not list")
    drawing = _drawing(str(values.get("geometryType")), values, found)
    return None if drawing is None else Shape(name.strip(), drawing)


def _drawing(kind: str, values: dict[str, Any], found: Annotations) -> Callable[[int, int], Region] | None:
    if kind == "bitmap":
        bitmap = values.get("bitmap")
        if not isinstance(bitmap, dict):
            raise OrdnetError("an object of type bitmap has no bitmap")
        (left, top), *_ = points([bitmap.get("origin")], 1).astype(int).tolist()
        return partial(_bitmap, bitmap.get("data"), top, left)
    outline = values.get("points")
    if kind in ("polygon", "rectangle") and isinstance(outline, dict):
        corners = points(outline.get("exterior"), 2)
        if kind == "rectangle":
            # Supervisely's corners are the first and the last pixel
            return partial(rectangle, corners.min(axis=0), corners.max(axis=0) + 1)
        holes = [points(hole) for hole in outline.get("interior") or [] if len(hole) > 2]
        if len(corners) > 2:
            return partial(_with_holes, corners + 0.5, [hole + 0.5 for hole in holes])
        found.left_out["polygons of fewer than three points"] += 1
        return None
    found.left_out[f"{kind[:40]} objects (only bitmap, polygon and rectangle cover an area)"] += 1
    return None


def _bitmap(data: Any, top: int, left: int, height: int, width: int) -> Region:
    return cut_to(unpacked_mask(data, compressed=True), top, left, height, width)


def _with_holes(outline: np.ndarray, holes: list[np.ndarray], height: int, width: int) -> Region:
    whole = polygon([outline], height, width)
    mask = whole.mask.copy()
    for hole in holes:
        gap = np.zeros((height, width), np.uint8)
        polygon([hole], height, width).paint(gap, 1)
        mask &= gap[whole.top : whole.top + mask.shape[0], whole.left : whole.left + mask.shape[1]] == 0
    return Region(whole.top, whole.left, mask)
