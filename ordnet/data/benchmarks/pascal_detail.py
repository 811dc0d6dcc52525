"""PASCAL-Context's labels in trainval_merged.json of the PASCAL in Detail API, as EncNet uses them.

The file holds the run lengths of every segment and takes gigabytes to load, so it is read once: the labels are painted
and kept as PNGs of the 459-class list's ids, beside the file or under the user's cache directory.
"""

import hashlib
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ordnet.data.importers.regions import run_lengths, unpack
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically, write_text
from ordnet.progress import progress

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
