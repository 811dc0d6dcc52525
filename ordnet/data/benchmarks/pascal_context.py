"""PASCAL-Context: the 59 frequent classes of 459, on the pictures of VOC 2010.

The labels are read from whatever is there, in this order: index PNGs in SegmentationClassContext/ as other toolkits
convert them, the official LabelMap .mat files, trainval_merged.json of the Detail API as EncNet prepares it, the PNGs
of 59_context_labels with their own numbering. All that is not among the 59 is background: it never counts, or is class
0 in the form with 60 classes.

The Detail API's file holds the run lengths of every segment and takes gigabytes to load, so it is read once: the labels
are painted and kept as PNGs of the 459-class list's ids, beside the file or under the user's cache directory.
"""

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ordnet.data.dataset import FileDataset, Files, check_split, find_root, first_folder, read_ids
from ordnet.data.importers.regions import run_lengths, unpack
from ordnet.data.label_files import read_index, read_mat
from ordnet.data.labels import IGNORE, Classes, ClassRow, LabelRule, class_table
from ordnet.data.reading import load_json, read_text
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically, write_text
from ordnet.progress import progress

TREE = """\
  VOCdevkit/VOC2010/
    JPEGImages/*.jpg
    ImageSets/Main/train.txt, val.txt    (or ImageSets/SegmentationContext/train.txt, val.txt)
    trainval/*.mat                       (from trainval.tar.gz; or SegmentationClassContext/*.png;
                                          or trainval_merged.json; or 59_context/*.png with 59_labels.txt)"""

_SPLITS = {"train": ("train",), "val": ("val",), "trainval": ("train", "val")}
_RAW_CLASSES = 459
# as 59_labels.txt calls them
_OTHER_NAMES = {"diningtable": "table", "bedcloth": "bedclothes", "clothes": "cloth"}


def open_split(path: str | None, split: str) -> FileDataset:
    """59 classes, background ignored."""
    return _open("pascal-context", path, split, background=False)


def open_split_60(path: str | None, split: str) -> FileDataset:
    """60 classes: background is class 0, the others follow."""
    return _open("pascal-context-60", path, split, background=True)


@dataclass(frozen=True)
class _Labels:
    """One of the forms in which the labels come."""

    files: Files
    rule: dict[int, int]
    read: Callable[[str], np.ndarray] = read_index
    splits: dict[str, list[str]] | None = None
    """Split → ids, where the labels bring their own."""


def _open(name: str, path: str | None, split: str, background: bool) -> FileDataset:
    check_split(name, split, _SPLITS)
    root = find_root(name, path, ("VOC2010", "VOCdevkit/VOC2010"), ("JPEGImages",), TREE)
    rows = class_table("pascal_context")
    labels = _labels(name, root, rows, background)
    ids = [key for part in _SPLITS[split] for key in (labels.splits or {}).get(part) or _listed(name, root, part)]
    return FileDataset(
        name,
        split,
        ids,
        _classes(rows, background),
        LabelRule(labels.rule),
        Files(root / "JPEGImages", (".jpg",)).pick(ids, "image"),
        labels.files.pick(ids, "label"),
        labels.read,
    )


def _listed(name: str, root: Path, part: str) -> list[str]:
    lists = first_folder([root / "ImageSets/SegmentationContext", root / "ImageSets/Main"])
    if lists is None:
        raise OrdnetError(f"{name}: neither SegmentationContext/ nor Main/ in {root / 'ImageSets'}; expected\n{TREE}")
    return read_ids(lists / f"{part}.txt")


def _labels(name: str, root: Path, rows: tuple[ClassRow, ...], background: bool) -> _Labels:
    converted = root / "SegmentationClassContext"
    if converted.is_dir():
        return _Labels(Files(converted, (".png",)), _png_rule(rows, background))
    around = (root, root.parent, root.parent.parent)
    if folder := first_folder(place / "trainval" for place in around):
        return _Labels(Files(folder, (".mat",)), _mat_rule(rows, background), partial(read_mat, key="LabelMap"))
    if merged := next((file for place in around if (file := place / "trainval_merged.json").is_file()), None):
        folder, splits = unpacked(merged)
        return _Labels(Files(folder, (".png",)), _mat_rule(rows, background), splits=splits)
    if folder := first_folder(place / part for place in around for part in ("59_context", "59_context_labels")):
        numbers = next((file for place in (folder, *around) if (file := place / "59_labels.txt").is_file()), None)
        if numbers is None:
            raise OrdnetError(
                f"{name}: {folder} numbers the classes in an order of its own: put 59_labels.txt from the same page "
                "beside it"
            )
        return _Labels(Files(folder, (".png",)), _numbered_rule(rows, background, numbers))
    places = ", ".join(map(str, (converted, *(place / "trainval" for place in around))))
    raise OrdnetError(f"{name}: no labels in {places}, nor as trainval_merged.json or 59_context; expected\n{TREE}")


def _classes(rows: tuple[ClassRow, ...], background: bool) -> Classes:
    rest, *frequent = rows
    kept = [rest, *frequent] if background else frequent
    return Classes(tuple(row.name for row in kept), tuple(row.colour for row in kept))


def _mat_rule(rows: tuple[ClassRow, ...], background: bool) -> dict[int, int]:
    """Ids of the 459-class list → class ids."""
    rest = 0 if background else IGNORE
    every = dict.fromkeys(range(_RAW_CLASSES + 1), rest)
    return every | {row.raw: row.class_id + background for row in rows if row.class_id != IGNORE}


def _png_rule(rows: tuple[ClassRow, ...], background: bool) -> dict[int, int]:
    """Converted labels: 0 is background, the classes follow from 1 in the same order."""
    rest = 0 if background else IGNORE
    frequent = {row.class_id + 1: row.class_id + background for row in rows if row.class_id != IGNORE}
    return {0: rest, IGNORE: IGNORE} | frequent


def _numbered_rule(rows: tuple[ClassRow, ...], background: bool, file: Path) -> dict[int, int]:
    """The numbering of 59_labels.txt, whose lines are `1: aeroplane`; 0 is background."""
    class_ids = {row.name: row.class_id for row in rows if row.class_id != IGNORE}
    rule = {0: 0 if background else IGNORE, IGNORE: IGNORE}
    for line in read_text(file, f"{file} is missing").splitlines():
        match = re.fullmatch(r"(\d{1,2}):\s*(\S.*)", line.strip())
        name = "".join(match[2].split()) if match else ""
        name = _OTHER_NAMES.get(name, name)
        if match and name in class_ids:
            rule[int(match[1])] = class_ids[name] + background
        elif line.strip():
            raise OrdnetError(
                f"{file}: expected lines such as `1: aeroplane`, with the names of the 59 classes; got {line!r:.80}"
            )
    if len(set(rule.values()) - {IGNORE}) != len(class_ids) + background:
        raise OrdnetError(f"{file} does not name all 59 classes")
    return rule


_INDEX = "index.json"
_LARGEST_ID = 65535


def unpacked(file: Path) -> tuple[Path, dict[str, list[str]]]:
    """The folder of label PNGs, and the ids of the splits train and val."""

    status = file.stat()
    stamp = [status.st_size, status.st_mtime_ns]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    mark = hashlib.sha256(str(file.resolve()).encode(errors="replace")).hexdigest()[:16]
    places = [file.with_name(f"{file.stem}.png-cache"), Path(base, "ordnet", "labels", mark)]
    for place in places:
        if (place / _INDEX).is_file():
            index = load_json(place / _INDEX)
            if isinstance(index, dict) and index.get("stamp") == stamp:
                return place, index["splits"]
    splits, pictures = _read(file)
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            with progress() as bar:
                for key, (size, segments) in bar.track(pictures.items(), description=f"labels of {file.name}"):
                    label = Image.fromarray(_paint(key, size, segments))
                    write_atomically(place / f"{key}.png", label.save)
            write_text(place / _INDEX, json.dumps({"stamp": stamp, "splits": splits}))
            return place, splits
        except OSError:  # read-only or full: the next place
            continue
    raise OrdnetError(f"{file}: its labels are unpacked once, but neither {places[0]} nor {places[1]} can be written")


def _read(file: Path) -> tuple[dict[str, list[str]], dict[str, tuple[tuple[int, int], list[Any]]]]:
    """Split → ids; id → (height, width) and segments."""
    content = load_json(file)
    try:
        segments = defaultdict(list)
        for segment in content["annos_segmentation"]:
            segments[segment["image_id"]].append((segment["category_id"], segment["segmentation"]["counts"]))
        splits: dict[str, list[str]] = {"train": [], "val": []}
        pictures = {}
        for picture in content["images"]:
            key = Path(picture["file_name"]).stem
            if picture["phase"] in splits:
                splits[picture["phase"]].append(key)
                pictures[key] = ((int(picture["height"]), int(picture["width"])), segments[picture["image_id"]])
    except (KeyError, TypeError, ValueError) as error:
        raise OrdnetError(
            f"{file} is not the Detail API's file: expected `images` and `annos_segmentation`, "
            f"stumbled over {error!r:.80}"
        ) from None
    if not pictures:
        raise OrdnetError(f"{file} lists no pictures of train or val")
    return splits, pictures


def _paint(key: str, size: tuple[int, int], segments: list[Any]) -> np.ndarray:
    """Ids (H, W) of the 459-class list; later segments lie on top, as in the API's own getMask."""
    label = np.zeros(size, np.uint16)
    for category, counts in segments:
        if type(category) is not int or not 0 <= category <= _LARGEST_ID or not isinstance(counts, str):
            raise OrdnetError(f"{key}: a segment has the category {category!r:.40}, or no compressed run lengths")
        run_lengths(unpack(counts), size, *size).paint(label, category)
    return label
