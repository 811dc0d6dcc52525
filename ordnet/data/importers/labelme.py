"""Annotations made with labelme: a folder of JSON files, each beside its picture or with the picture inside."""

import base64
import binascii
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, circle, polygon
from ordnet.data.pictures import IMAGE_ENDINGS
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
        content=_image(file, content),
        size=(width, height) if isinstance(width, int) and isinstance(height, int) else None,
        shapes=[shape for values in content["shapes"] if (shape := _shape(values, file, found)) is not None],
    )


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise OrdnetError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise OrdnetError(f"{file} is not a labelme file: it has no list of shapes")
    return content


def _image(file: Path, content: dict[str, Any]) -> Callable[[], bytes]:
    """How to read the picture: the file that `imagePath` names, one of the same name, or what is embedded."""
    named = str(content.get("imagePath") or "").replace("\\", "/")
    beside = [file.parent / named, file.parent / Path(named).name] if named else []
    for candidate in [*beside, *(file.with_suffix(ending) for ending in IMAGE_ENDINGS)]:
        if candidate.is_file():
            return candidate.read_bytes
    if content.get("imageData"):
        # kept in the file until it is needed: thousands of pictures do not fit into memory
        return partial(_embedded, file)
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
    if kind not in ("polygon", "rectangle", "circle"):
        found.left_out[f"{kind} shapes (only polygon, rectangle and circle cover an area)"] += 1
        return None
    try:
        points = np.asarray(values.get("points"), dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise OrdnetError(f"{file}: the {kind} {name!r} has no list of points x, y: got {values.get('points')!r:.80}")
    if len(points) < (3 if kind == "polygon" else 2):
        found.left_out[f"{kind} shapes of too few points"] += 1
        return None
    return Shape(name.strip(), _drawing(kind, points))


def _drawing(kind: str, points: np.ndarray) -> Callable[[int, int], Region]:
    if kind == "circle":
        return partial(circle, points[0], float(np.hypot(*(points[1] - points[0]))))
    if kind == "rectangle" and len(points) == 2:
        (x0, y0), (x1, y1) = points
        points = np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    return partial(polygon, [points])
