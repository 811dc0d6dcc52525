"""Annotations of tools that write a JSON file for each picture: labelme and Supervisely.

labelme: each file lies beside its picture or holds it. Supervisely: a project has meta.json, and for each data set the
folders img and ann; a figure is a bitmap (a PNG, zlib, base64) with its place, or polygons with holes, or a rectangle,
all in pixels.
"""

import base64
import binascii
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import (
    Region,
    circle,
    cut_to,
    inside,
    points,
    polygon,
    reader_of,
    rectangle,
    unpacked_mask,
)
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError


def read_labelme(folder: Path) -> Annotations:
    """Every JSON file below `folder`. Class names in alphabetical order; problems are collected, not raised."""
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise OrdnetError(f"no labelme files in {folder}: expected *.json, one for each picture")
    found = Annotations()
    for file in files:
        try:
            found.pictures.append(_labelme_picture(file, folder, found))
        except OrdnetError as error:
            found.problems.append(str(error))
    found.names = sorted({shape.name for picture in found.pictures for shape in picture.shapes})
    return found


def _labelme_picture(file: Path, folder: Path, found: Annotations) -> Annotated:
    content = _labelme_content(file)
    width, height = content.get("imageWidth"), content.get("imageHeight")
    return Annotated(
        id=identifier(file.relative_to(folder)),
        origin=str(file),
        content=_labelme_image(file, folder, content),
        size=(width, height) if isinstance(width, int) and isinstance(height, int) else None,
        shapes=[shape for values in content["shapes"] if (shape := _labelme_shape(values, file, found)) is not None],
    )


def _labelme_content(file: Path) -> dict[str, Any]:
    content = load_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise OrdnetError(f"{file} is not a labelme file: it has no list of shapes")
    return content


def _labelme_image(file: Path, folder: Path, content: dict[str, Any]) -> Callable[[], bytes]:
    """How to read the picture: the file that `imagePath` names, one of the same name, or what is embedded."""
    named = str(content.get("imagePath") or "").replace("\\", "/")
    beside = [file.parent / named, file.parent / Path(named).name] if named else []
    outside = False
    for candidate in [*beside, *(file.with_suffix(ending) for ending in IMAGE_ENDINGS)]:
        if candidate.is_file():
            if candidate.resolve().is_relative_to(folder.resolve()):
                return reader_of(candidate)
            outside = True
    if content.get("imageData"):
        # kept in the file until it is needed: thousands of pictures do not fit into memory
        return partial(_embedded, file)
    if outside:
        raise OrdnetError(f"{file}: its picture {named} leads out of {folder}: import the folder that holds both")
    raise OrdnetError(f"{file}: its picture {named or '(no imagePath)'} is missing and no imageData is embedded")


def _embedded(file: Path) -> bytes:
    try:
        return base64.b64decode(_labelme_content(file)["imageData"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise OrdnetError(f"{file}: the embedded imageData is broken: {error}") from None


def _labelme_shape(values: Any, file: Path, found: Annotations) -> Shape | None:
    """One shape, or None for a kind that covers no area, which is noted."""
    name = values.get("label") if isinstance(values, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise OrdnetError(f"{file}: a shape has no label")
    kind = values.get("shape_type") or "polygon"
    if kind not in ("polygon", "rectangle", "circle", "mask"):
        found.left_out[f"{str(kind)[:40]} shapes (only polygon, rectangle, circle and mask cover an area)"] += 1
        return None
    try:
        corners = points(values.get("points"))
    except OrdnetError as error:
        raise OrdnetError(f"{file}: the {kind} {name!r:.80} has no list of points: {error}") from None
    if len(corners) < (3 if kind == "polygon" else 2):
        found.left_out[f"{kind} shapes of too few points"] += 1
        return None
    return Shape(name.strip(), _labelme_drawing(kind, corners, values.get("mask")))


def _labelme_drawing(kind: str, corners: np.ndarray, mask: Any) -> Callable[[int, int], Region]:
    if kind == "mask":
        left, top = corners[0].astype(int).tolist()
        return partial(_labelme_mask, mask, top, left)
    if kind == "circle":
        return partial(circle, corners[0], float(np.hypot(*(corners[1] - corners[0]))))
    if kind == "rectangle" and len(corners) == 2:
        return partial(rectangle, corners[0], corners[1])
    return partial(polygon, [corners])


def _labelme_mask(text: Any, top: int, left: int, height: int, width: int) -> Region:
    """A mask drawn by labelme's AI tools: a PNG in base64 within its box."""
    return cut_to(unpacked_mask(text, compressed=False), top, left, height, width)


def read_supervisely(project: Path) -> Annotations:
    """Every annotation of the project. Classes in the order of meta.json; problems are collected, not raised."""
    if not (project / "meta.json").exists():
        raise OrdnetError(f"no meta.json in {project}: expected the unpacked project of Supervisely")
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
            found.pictures.append(_supervisely_picture(file, project, found))
        except OrdnetError as error:
            found.problems.append(str(error) if str(file) in str(error) else f"{file}: {error}")
    return found


def _supervisely_picture(file: Path, project: Path, found: Annotations) -> Annotated:
    content = load_json(file)
    objects = content.get("objects") if isinstance(content, dict) else None
    size = content.get("size") if isinstance(content, dict) else None
    if not isinstance(objects, list) or not isinstance(size, dict):
        raise OrdnetError(f"{file} is not a Supervisely annotation: expected `size` and a list `objects`")
    below = (file.parent.parent / "img" / file.name.removesuffix(".json")).relative_to(project)
    picture = inside(project, below.as_posix())
    width, height = size.get("width"), size.get("height")
    return Annotated(
        id=identifier(Path(*(part for part in below.parts if part != "img"))),
        origin=str(file),
        content=reader_of(picture),
        size=(width, height) if isinstance(width, int) and isinstance(height, int) else None,
        shapes=[shape for values in objects if (shape := _supervisely_shape(values, found)) is not None],
    )


def _supervisely_shape(values: Any, found: Annotations) -> Shape | None:
    name = values.get("classTitle") if isinstance(values, dict) else None
    if not isinstance(name, str) or name.strip() not in found.names:
        raise OrdnetError(f"an object has the class {name!r:.80}, which meta.json does not list")
    drawing = _supervisely_drawing(str(values.get("geometryType")), values, found)
    return None if drawing is None else Shape(name.strip(), drawing)


def _supervisely_drawing(kind: str, values: dict[str, Any], found: Annotations) -> Callable[[int, int], Region] | None:
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
