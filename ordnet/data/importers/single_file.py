"""Annotations that come as a single JSON file beside a folder of pictures: COCO's instances and Label Studio's export.

COCO has polygons or run lengths, Label Studio brush strokes, polygons and rectangles. Brush strokes are packed bit by
bit: 32 bits for the number of values, 5 for the size of a word less 1, four times 4 for the sizes of a length less 1;
then runs of one bit (repeated value or single values), two bits that choose the size of the length, the length less 1,
and the value or values. The values are those of an RGBA picture, whose last channel is the mask.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import (
    Region,
    inside,
    points,
    polygon,
    reader_of,
    run_lengths,
    somewhere_inside,
    unpack,
)
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError

_BOXES = "annotations without a segmentation (boxes only)"


def read_coco(file: Path, images: Path) -> Annotations:
    """Everything `file` lists. Class names in the order of the category ids; problems are collected, not raised."""
    content = _coco_content(file)
    found = Annotations()
    groups = _coco_groups(content)
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


def _coco_groups(content: dict[str, Any]) -> set[int | str]:
    """Categories that are the supercategory of others and have no annotation, as Roboflow writes one."""
    pairs = [(row["name"], row.get("supercategory")) for row in content["categories"]]
    over = {group for name, group in pairs if isinstance(group, str) and group != name}
    used = {row.get("category_id") for row in content["annotations"] if isinstance(row.get("category_id"), int | str)}
    return {row["id"] for row in content["categories"] if row["name"] in over and row["id"] not in used}


def _coco_content(file: Path) -> dict[str, Any]:
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
        drawing = _coco_drawing(segmentation)
    except (OrdnetError, TypeError, ValueError, KeyError, OverflowError) as error:
        reason = f": {error}" if isinstance(error, OrdnetError) else ""
        found.problems.append(f"{where}: its segmentation is neither a list of polygons nor run lengths{reason}")
        return
    if drawing is None:
        found.left_out["polygons of fewer than three points"] += 1
    else:
        picture.shapes.append(Shape(name, drawing))


def _coco_drawing(segmentation: Any) -> Callable[[int, int], Region] | None:
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


_KINDS = ("brushlabels", "polygonlabels", "rectanglelabels")


def read_label_studio(file: Path, images: Path) -> Annotations:
    """Every task of the export. Class names in alphabetical order; problems are collected, not raised."""
    tasks = load_json(file)
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and isinstance(t.get("data"), dict) for t in tasks):
        raise OrdnetError(
            f"{file} is not Label Studio's JSON export: expected a list of tasks with data (not JSON-MIN)"
        )
    found = Annotations()
    for task in tasks:
        try:
            found.pictures.append(_task_picture(task, images, found))
        except OrdnetError as error:
            found.problems.append(f"{file}: task {task.get('id')!r:.40}: {error}")
    found.names = sorted({shape.name for picture in found.pictures for shape in picture.shapes})
    return found


def _task_picture(task: dict[str, Any], images: Path, found: Annotations) -> Annotated:
    picture = _task_image(task, images)
    done = [a for a in task.get("annotations") or [] if isinstance(a, dict) and not a.get("was_cancelled")]
    if len(done) > 1:
        found.left_out["further annotations of a task that has several (the first is taken)"] += len(done) - 1
    results = done[0].get("result") if done else []
    if not isinstance(results, list):
        raise OrdnetError("its annotation has no list of results")
    shapes: list[Shape] = []
    sizes: set[tuple[int, int]] = set()
    for result in results:
        if not (isinstance(result, dict) and isinstance(result.get("value"), dict)):
            raise OrdnetError("a result has no value")
        if result.get("type") not in _KINDS:
            found.left_out[f"{str(result.get('type'))[:40]} (only {', '.join(_KINDS)} are painted)"] += 1
            continue
        width, height = result.get("original_width"), result.get("original_height")
        if not (isinstance(width, int) and isinstance(height, int) and 0 < width < 10**6 and 0 < height < 10**6):
            raise OrdnetError("a result has no original_width and original_height")
        size = (width, height)
        sizes.add(size)
        shapes.append(_result_shape(str(result["type"]), result["value"], size))
    if len(sizes) > 1:
        raise OrdnetError(f"its results were made for pictures of several sizes: {sorted(sizes)}")
    return Annotated(
        id=identifier(Path(picture.relative_to(images))),
        origin=str(picture),
        content=reader_of(picture),
        size=next(iter(sizes), None),
        shapes=shapes,
    )


def _task_image(task: dict[str, Any], images: Path) -> Path:
    """The task's picture in the folder: by its name, or without the mark that an upload puts before it."""
    words = [task.get("file_upload"), *task["data"].values()]
    # /data/local-files/?d=photos/a.jpg has its path behind the question mark, other addresses have theirs before it
    paths = [word.replace("?d=", "/").partition("?")[0] for word in words if isinstance(word, str)]
    names = [PurePosixPath(unquote(path)).name for path in paths]
    names = [name for name in names if name.lower().endswith(IMAGE_ENDINGS)]
    for name in names:
        for candidate in (name, name.partition("-")[2]):
            if candidate and (images / candidate).is_file():
                return inside(images, candidate)
    raise OrdnetError(
        f"no picture {' or '.join(names) or '(data names none)'} in {images}; --images names another folder"
    )


def _result_shape(kind: str, value: dict[str, Any], size: tuple[int, int]) -> Shape:
    labels = value.get(kind)
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str) or not labels[0].strip():
        raise OrdnetError(f"a result has no single label: {labels!r:.80}")
    return Shape(labels[0].strip(), _result_drawing(kind, value, size))


def _result_drawing(kind: str, value: dict[str, Any], size: tuple[int, int]) -> Callable[[int, int], Region]:
    if kind == "brushlabels":
        packed = value.get("rle")
        if not isinstance(packed, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in packed):
            raise OrdnetError("a brush stroke has no list `rle` of bytes")
        return partial(_brush, bytes(packed))
    # places are percentages of the picture
    unit = np.array(size) / 100
    if kind == "polygonlabels":
        return partial(polygon, [points(value.get("points"), 3) * unit])
    sides = [value.get(name, 0) for name in ("x", "y", "width", "height", "rotation")]
    if not all(isinstance(side, int | float) and math.isfinite(side) and abs(side) < 1e7 for side in sides):
        raise OrdnetError(f"a rectangle has no x, y, width and height: {sides!r:.80}")
    x, y, width, height, rotation = map(float, sides)
    turn = math.radians(rotation)  # around its first corner, clockwise
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)]) * unit
    turned = corners @ np.array([(math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))])
    return partial(polygon, [turned + np.array([x, y]) * unit])


def _brush(packed: bytes, height: int, width: int) -> Region:
    values = decode_brush(packed, height * width * 4)
    return Region(0, 0, values.reshape(height, width, 4)[..., 3] > 127)


def decode_brush(packed: bytes, count: int) -> np.ndarray:
    """The `count` values of a brush stroke. Sizes are checked before anything is allocated."""
    stream = _Bits(packed)
    stored = stream.read(32)
    if stored != count:
        raise OrdnetError(f"a brush stroke has {stored:,} values, but its picture {count:,} (four for each pixel)")
    word = stream.read(5) + 1
    sizes = [stream.read(4) + 1 for _ in range(4)]
    if word > 8:
        raise OrdnetError(f"a brush stroke has values of {word} bits; expected up to 8")
    values = np.zeros(count, np.uint8)
    place = 0
    while place < count:
        repeated = stream.read(1)
        end = min(place + 1 + stream.read(sizes[stream.read(2)]), count)
        values[place:end] = stream.read(word) if repeated else stream.words(end - place, word)
        place = end
    return values


class _Bits:
    """Numbers of any size in a row, highest bit first."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.size = content, 0, 8 * len(content)

    def read(self, size: int) -> int:
        first, self.at = self.at, self.at + size
        if self.at > self.size:
            raise OrdnetError("a brush stroke breaks off")
        # at most 32 bits from any place lie in five bytes
        window = self.content[first // 8 : first // 8 + 5].ljust(5, b"\0")
        return int.from_bytes(window, "big") >> (40 - first % 8 - size) & ((1 << size) - 1)

    def words(self, count: int, size: int) -> np.ndarray:
        first, self.at = self.at, self.at + count * size
        if self.at > self.size:
            raise OrdnetError("a brush stroke breaks off")
        window = np.frombuffer(self.content[first // 8 : (self.at + 7) // 8], np.uint8)
        bits = np.unpackbits(window)[first % 8 : first % 8 + count * size].reshape(count, size)
        return bits @ (1 << np.arange(size)[::-1])
