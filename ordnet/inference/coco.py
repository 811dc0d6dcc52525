"""Parses for other programs: COCO JSON (a mask for each class, as run lengths in COCO's own packing) and GeoJSON
(polygons, extra `geo`)."""

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.raster import library
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError
from ordnet.picture.overlay import Colour

_WRITTEN_BY = "parses of several pictures, by ordnet predict"


def coco_record(labels: np.ndarray, classes: tuple[str, ...], file_name: str, image_id: int = 1) -> dict[str, Any]:
    """One picture's class ids (H, W) uint8 as a COCO data set; category ids are class ids + 1, as COCO has no 0."""
    height, width = labels.shape
    annotations = []
    for class_id in np.unique(labels):
        if class_id >= len(classes):
            continue  # pixels without a class
        mask = labels == class_id
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
        annotations.append(
            {
                "id": 0,
                "image_id": image_id,
                "category_id": int(class_id) + 1,
                "segmentation": {"size": [height, width], "counts": packed(run_lengths(mask))},
                "area": int(mask.sum()),
                "bbox": [int(value) for value in box],
                "iscrowd": 0,
            }
        )
    return {
        "images": [{"id": image_id, "file_name": file_name, "width": width, "height": height}],
        "categories": [{"id": number, "name": name} for number, name in enumerate(classes, 1)],
        "annotations": _numbered(annotations),
    }


def merged(files: Iterable[Path]) -> dict[str, Any]:
    """Records of single pictures as one data set; pictures and annotations are numbered anew."""
    whole: dict[str, Any] = {"info": {"description": _WRITTEN_BY}, "images": [], "categories": [], "annotations": []}
    for image_id, file in enumerate(files, 1):
        record = load_json(file)
        try:
            whole["categories"] = record["categories"]
            whole["images"].append({**record["images"][0], "id": image_id})
            whole["annotations"] += [{**each, "image_id": image_id} for each in record["annotations"]]
        except (KeyError, IndexError, TypeError):
            raise OrdnetError(f"{file} does not hold the masks of a picture any more; --force writes it anew") from None
    return {**whole, "annotations": _numbered(whole["annotations"])}


def is_merged(file: Path) -> bool:
    """Whether a file holds what `merged` returned, rather than somebody else's data set."""
    try:
        content = load_json(file)
    except OrdnetError:
        return False
    info = content.get("info") if isinstance(content, dict) else None
    return isinstance(info, dict) and info.get("description") == _WRITTEN_BY


def _numbered(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "id": number} for number, each in enumerate(annotations, 1)]


def run_lengths(mask: np.ndarray) -> list[int]:
    """Lengths of the alternating runs of False and True, False first, down the columns of a mask (H, W)."""
    flat = np.asarray(mask, dtype=bool).T.ravel()
    if not flat.size:
        return []
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    lengths = np.diff(np.concatenate([[0], changes, [flat.size]])).tolist()
    return [0, *lengths] if flat[0] else lengths


def packed(lengths: list[int]) -> str:
    """COCO's text for run lengths, five bits a letter; from the fourth on, the difference to the length two before.

    The lowest five bits come first; the sixth says that more follow. The last letter's fifth bit is the sign.
    """
    letters = []
    for place, length in enumerate(lengths):
        value = length - lengths[place - 2] if place > 2 else length
        while True:
            bits = value & 0x1F
            value >>= 5
            more = value != (-1 if bits & 0x10 else 0)
            letters.append(chr(bits + (0x20 if more else 0) + 48))
            if not more:
                break
    return "".join(letters)


# ---- GeoJSON ----------------------------------------------------------------------------------------------------

_WORLD = "EPSG:4326"
"""Longitude and latitude, which RFC 7946 requires of every GeoJSON file."""


def write_polygons(
    path: Path,
    pieces: Iterable[tuple[np.ndarray, Any]],
    classes: tuple[str, ...],
    colours: Sequence[Colour],
    crs: Any = None,
) -> int:
    """Write every connected region of a class as a polygon with its holes; returns their number.

    `pieces` are class ids (H, W) uint8 and their transform from pixels to the coordinates of `crs`, which become
    longitude and latitude. Without a `crs` the coordinates stay as they are. A region that lies in two pieces is cut.
    """
    library()
    from rasterio.features import shapes
    from rasterio.warp import transform_geom

    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        for labels, transform in pieces:
            found = shapes(labels, mask=labels < len(classes), connectivity=4, transform=transform)
            while batch := list(itertools.islice(found, 5000)):
                shaped = [geometry for geometry, _ in batch]
                if crs:
                    try:
                        shaped = transform_geom(crs, _WORLD, shaped, precision=8)
                    except Exception as error:  # rasterio's and GDAL's own errors have no common class
                        raise OrdnetError(
                            f"its coordinates cannot be turned into longitude and latitude, which GeoJSON has: "
                            f"{str(error).strip().partition(' from ')[0]:.200}; leave polygons out of --save"
                        ) from None
                for geometry, (_, value) in zip(shaped, batch, strict=True):
                    number = int(value)
                    properties = {
                        "class": number, "name": classes[number],
                        "colour": "#{:02x}{:02x}{:02x}".format(*colours[number]),
                    }  # fmt: skip
                    rings = [_turned(ring, outer=not place) for place, ring in enumerate(geometry["coordinates"])]
                    polygon = {"type": "Polygon", "coordinates": rings}
                    feature = {"type": "Feature", "properties": properties, "geometry": polygon}
                    file.write(("," if count else "") + "\n" + json.dumps(feature, ensure_ascii=False))
                    count += 1
        file.write("\n]}\n")
    return count


def _turned(ring: Sequence[Sequence[float]], outer: bool) -> list[Sequence[float]]:
    """The ring anticlockwise if it is the outer one, clockwise if it is a hole."""
    x, y = np.asarray(ring, dtype=np.float64)[:, :2].T
    x, y = x - x[0], y - y[0]  # far from the origin the products would cancel to nothing
    anticlockwise = float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum()) > 0
    return list(ring) if anticlockwise == outer else list(ring)[::-1]
