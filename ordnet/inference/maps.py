"""Maps and scans larger than memory: read in windows, parsed tile by tile, written block by block (extra `geo`).

The context is exact whatever the size: the streaming passes add up what the block needs over the whole map. Memory
holds one tile with its halo, the rows of the file that GDAL keeps for the next tile, and a few blocks of labels; none
of them grows with the height of the map or, if the file is tiled, with its width.

A map is not one scene: how large a house is on it depends on its resolution, not on its extent. So maps with a
georeference are seen at their own size unless --long-side says otherwise; pictures without one are seen at the scale
that the model knows, as all pictures are.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.labels import IGNORE
from ordnet.data.pictures import largest_pixels
from ordnet.data.raster import Raster, Smaller, open_file
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically, write_text
from ordnet.inference.coco import write_polygons
from ordnet.inference.parse import Parse, file_of, written_of
from ordnet.inference.stream import Progress
from ordnet.model.parts import Area, tiles
from ordnet.model.pixels import KnownSize, fitted_size
from ordnet.picture.overlay import QUICK_PNG, Colour

FORMS = ("labels", "palette", "overlay", "beside", "polygons")
"""What can be written for a map. Labels always are, and include the palette."""
BLOCK = 512
"""Side of the label file's tiles. Areas that are written begin at its multiples, so that no tile is written twice."""
_LOOK = 2000
"""The longest side in pixels of the copy that overlays are drawn on."""
_POLYGONS = 8192
"""Side of the pieces in which polygons are traced; those of larger maps are cut at the pieces' edges."""


def map_files(base: Path, save: Sequence[str]) -> list[Path]:
    """What `predict_map` writes besides the JSON."""
    others = [file_of(base, what) for what in save if what not in ("labels", "palette")]
    return [Path(f"{base}.labels.tif"), *others]


def predict_map(
    parser: Any,
    raster: Raster,
    base: Path,
    save: Sequence[str] = ("labels", "overlay"),
    *,
    strength: float = 0.5,
    about: dict[str, Any] | None = None,
    progress: Progress | None = None,
    long_side: int | None = None,
) -> dict[str, Any]:
    """Write BASE.labels.tif and what else `save` names, and BASE.json last; its content is returned.

    Labels have the map's georeference, and IGNORE where the map has no data. `long_side` is that of the copy that the
    network sees; None leaves the map at its own size.
    """
    if unknown := [what for what in save if what not in FORMS]:
        raise OrdnetError(
            f"{raster.path} is parsed in windows, of which no {unknown[0]} can be made: --save {','.join(FORMS)}"
        )
    height, width, _ = raster.shape
    counts = np.zeros(256, np.int64)
    labels = Path(f"{base}.labels.tif")
    parts = _label_parts(parser, raster, long_side, progress)
    write_atomically(labels, lambda path: _write_labels(path, raster, parts, parser.classes, parser.colours, counts))
    if "overlay" in save or "beside" in save:
        look = _look(parser, raster, labels, base.name)
        for what in ("overlay", "beside"):
            if what in save:
                drawn = look.overlay(strength) if what == "overlay" else look.beside(strength)
                write_atomically(file_of(base, what), lambda path, drawn=drawn: drawn.save(path, **QUICK_PNG))  # type: ignore[misc]
    polygons: dict[str, int] = {}
    if "polygons" in save:
        with Raster(labels) as file:
            pieces = _pieces(file)
            write_atomically(
                file_of(base, "polygons"),
                lambda path: polygons.update(
                    polygons=write_polygons(path, pieces, parser.classes, parser.colours, raster.file.crs)
                ),
            )
    seen = int(counts[: len(parser.classes)].sum())
    order = [number for number in np.argsort(-counts, kind="stable") if counts[number] and number < len(parser.classes)]
    record = {
        **(about or {}), "width": width, "height": height, "bands": list(raster.bands), "seen_pixels": seen, **polygons,
        "crs": raster.file.crs.to_string() if raster.file.crs else None,
        "areas": {parser.classes[number]: float(counts[number] / seen) for number in order},
        "files": written_of(base, map_files(base, save)),
    }  # fmt: skip
    write_text(Path(f"{base}.json"), json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def _label_parts(
    parser: Any, raster: Raster, long_side: int | None, progress: Progress | None
) -> Iterator[tuple[Area, np.ndarray]]:
    """Areas that begin at multiples of BLOCK, and their class ids."""
    height, width, _ = raster.shape
    small = fitted_size(height, width, KnownSize(long_side))
    if parser.streams and min(small) >= parser.least_side:
        seen = raster if small == (height, width) else Smaller(raster, *small)
        yield from parser.label_parts(seen, (height, width), BLOCK, progress)
        return
    if height * width > largest_pixels():
        raise OrdnetError(
            f"{raster.path} has {width:,} x {height:,} px: so large a picture takes a checkpoint and the protocol whole"
        )
    at_scale = copy.copy(parser)
    at_scale.known_size = KnownSize(long_side)
    everywhere = (slice(0, height), slice(0, width))
    yield everywhere, at_scale(raster[everywhere], progress).labels


def _write_labels(
    path: Path,
    raster: Raster,
    parts: Iterator[tuple[Area, np.ndarray]],
    classes: tuple[str, ...],
    colours: Sequence[Colour],
    counts: np.ndarray,
) -> None:
    """Labels as a tiled, compressed GeoTIFF with the classes' colours. `counts` (256,) receives each id's pixels."""
    from rasterio.windows import Window

    source = raster.file
    profile = {
        "driver": "GTiff", "width": source.width, "height": source.height, "count": 1, "dtype": "uint8",
        "tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK, "compress": "deflate", "bigtiff": "if_safer",
    }  # fmt: skip
    if len(classes) <= IGNORE:
        profile["nodata"] = IGNORE
    with raster.messages("written"), open_file(path, "w", **profile, **_georeference(source)) as file:
        file.write_colormap(1, {number: (*colour, 255) for number, colour in enumerate(colours)})
        file.update_tags(1, **{f"CLASS_{number}": name for number, name in enumerate(classes)})
        if point := source.tags().get("AREA_OR_POINT"):
            file.update_tags(AREA_OR_POINT=point)
        for area, ids in parts:
            valid = raster.valid(area)
            if valid is not None and not valid.all():
                if len(classes) > IGNORE:
                    raise OrdnetError(
                        f"{raster.path} has parts without data, for which {len(classes)} classes leave no id"
                    )
                ids = np.where(valid, ids, np.uint8(IGNORE))
            counts += _counted(ids)
            rows, columns = area
            file.write(ids, 1, window=Window(columns.start, rows.start, ids.shape[1], ids.shape[0]))
    _check_complete(path, counts, raster)


def _georeference(source: Any) -> dict[str, Any]:
    """A file's place on the earth as GDAL keeps it: a transform, ground control points, or a camera model."""
    gcps, gcps_crs = source.gcps
    if gcps:
        return {"gcps": gcps, "crs": gcps_crs}
    place = {} if source.transform.is_identity else {"transform": source.transform}
    return {**place, **({"crs": source.crs} if source.crs else {}), **({"rpcs": source.rpcs} if source.rpcs else {})}


def _check_complete(path: Path, counts: np.ndarray, raster: Raster) -> None:
    """Read the file once more: GDAL writes its last blocks while closing, and reports no full disk there."""
    found = np.zeros_like(counts)
    with Raster(path) as file, raster.messages("written"):
        for ids, _ in _pieces(file):
            found += _counted(ids)
    if not np.array_equal(found, counts):
        raise OrdnetError(f"the labels of {raster.path} could not be written completely; is the disk full?")


def _counted(ids: np.ndarray) -> np.ndarray:
    """How often each of 256 ids occurs in (H, W), a few rows at a time: numpy counts in a copy eight times as large."""
    step = max(1, 2**21 // ids.shape[1])
    bands = [np.bincount(ids[top : top + step].ravel(), minlength=256) for top in range(0, len(ids), step)]
    return np.sum(bands, axis=0)


def _pieces(labels: Raster) -> Iterator[tuple[np.ndarray, Any]]:
    """The label file's class ids, piece by piece, each with its transform."""
    from rasterio.windows import Window

    for rows, columns in tiles(*labels.shape[:2], _POLYGONS, BLOCK):
        window = Window(columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start)
        yield labels.file.read(1, window=window), labels.file.window_transform(window)


def _look(parser: Any, raster: Raster, labels: Path, name: str) -> Parse:
    """The map and its labels at a size fit for viewing."""
    height, width = fitted_size(*raster.shape[:2], KnownSize(_LOOK))
    everywhere = (slice(0, height), slice(0, width))
    with Raster(labels) as file:
        ids = file.file.read(1, out_shape=(height, width))

    def no_scores() -> np.ndarray:
        raise OrdnetError("a map's scores are not kept")

    return Parse(raster.read(everywhere, (height, width)), ids, parser.classes, parser.colours, name, no_scores)
