"""Annotations made with Label Studio: its JSON export, with brush strokes, polygons and rectangles.

Brush strokes are packed bit by bit: 32 bits for the number of values, 5 for the size of a word less 1, four times 4 for
the sizes of a length less 1; then runs of one bit (repeated value or single values), two bits that choose the size of
the length, the length less 1, and the value or values. The values are those of an RGBA picture, whose last channel is
the mask.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from ordnet.data.importers.convert import Annotated, Annotations, Shape, identifier
from ordnet.data.importers.regions import Region, inside, points, polygon, reader_of
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError

_KINDS = ("brushlabels", "polygonlabels", "rectanglelabels")


def read(file: Path, images: Path) -> Annotations:
    """Every task of the export. Class names in alphabetical order; problems are collected, not raised."""
    tasks = load_json(file)
    if not isinstance(tasks, list) or not all(isinstance(t, dict) and isinstance(t.get("data"), dict) for t in tasks):
        raise OrdnetError(
            f"{file} is not Label Studio's JSON export: expected a list of tasks with data (not JSON-MIN)"
        )
    found = Annotations()
    for task in tasks:
        try:
            found.pictures.append(_picture(task, images, found))
        except OrdnetError as error:
            found.problems.append(f"{file}: task {task.get('id')!r:.40}: {error}")
    found.names = sorted({shape.name for picture in found.pictures for shape in picture.shapes})
    return found


def _picture(task: dict[str, Any], images: Path, found: Annotations) -> Annotated:
    picture = _image(task, images)
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
        shapes.append(_shape(str(result["type"]), result["value"], size))
    if len(sizes) > 1:
        raise OrdnetError(f"its results were made for pictures of several sizes: {sorted(sizes)}")
    return Annotated(
        id=identifier(Path(picture.relative_to(images))),
        origin=str(picture),
        content=reader_of(picture),
        size=next(iter(sizes), None),
        shapes=shapes,
    )


def _image(task: dict[str, Any], images: Path) -> Path:
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


def _shape(kind: str, value: dict[str, Any], size: tuple[int, int]) -> Shape:
    labels = value.get(kind)
    if not isinstance(labels, list) or len(labels) != 1 or not isinstance(labels[0], str) or not labels[0].strip():
        raise OrdnetError(f"a result has no single label: {labels!r:.80}")
    return Shape(labels[0].strip(), _drawing(kind, value, size))


def _drawing(kind: str, value: dict[str, Any], size: tuple[int, int]) -> Callable[[int, int], Region]:
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
