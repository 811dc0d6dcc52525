"""Annotations made with labelme: a folder of JSON files, each beside its picture or with the picture inside."""

import base64
import binascii
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, circle, cut_to, points, polygon, reader_of, rectangle, unpacked_mask
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError


def read(folder: Path) -> Annotations:
    """Every JSON file below `folder`. Class names in alphabetical order; problems are collected, not raised."""
    files = sorted(folder.rglob("*.json"))
    if not files:
        raise OrdnetError(f"no labelme files in {folder}: expected *.json, one for each picture")
    found = Annotations()
    for file in files:
        try:
            found.pictures.append(_picture(file, folder, found))
        except OrdnetError as error:
            found.problems.append(str(error))
    found.names = sorted({shape.name for picture in found.pictures for shape in picture.shapes})
    return found


def _picture(file: Path, folder: Path, found: Annotations) -> Annotated:
    content = _load(file)
    width, height = content.get("imageWidth"), content.get("imageHeight")
    return Annotated(
        id=identifier(file.relative_to(folder)),
        origin=str(file),
        content=_image(file, folder, content),
        size=(width, height) if isinstance(width, int) and isinstance(height, int) else None,
        shapes=[shape for values in content["shapes"] if (shape := _shape(values, file, found)) is not None],
    )


def _load(file: Path) -> dict[str, Any]:
    content = load_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise OrdnetError(f"{file} is not a labelme file: it has no list of shapes")
    return content


def _image(file: Path, folder: Path, content: dict[str, Any]) -> Callable[[], bytes]:
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
        return base64.b64decode(_load(file)["imageData"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise OrdnetError(f"{file}: the embedded imageData is broken: {error}") from None


def _shape(values: Any, file: Path, found: Annotations) -> Shape | None:
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
    return Shape(name.strip(), _drawing(kind, corners, values.get("mask")))


def _drawing(kind: str, corners: np.ndarray, mask: Any) -> Callable[[int, int], Region]:
    if kind == "mask":
        left, top = corners[0].astype(int).tolist()
        return partial(_mask, mask, top, left)
    if kind == "circle":
        return partial(circle, corners[0], float(np.hypot(*(corners[1] - corners[0]))))
    if kind == "rectangle" and len(corners) == 2:
        return partial(rectangle, corners[0], corners[1])
    return partial(polygon, [corners])


def _mask(text: Any, top: int, left: int, height: int, width: int) -> Region:
    """A mask drawn by labelme's AI tools: a PNG in base64 within its box."""
    return cut_to(unpacked_mask(text, compressed=False), top, left, height, width)
