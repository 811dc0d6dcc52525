"""ADE20K: the SceneParsing benchmark with 150 classes, and the full release of 2021.

The benchmark: raw 0 is everything else and never counts; class = raw − 1.

The full release has 3,688 names, of which the user lists the wanted ones in classes.txt. A label (*_seg.png) holds the
number of the name as R / 10 * 256 + G; the JSON file beside it says which name a number stands for. The release's
index_ade20k.pkl is never read: a pickle can run any code.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np

from ordnet.data.dataset import FileDataset, check_split, find_root, first_folder, pair_folders
from ordnet.data.labels import IGNORE, LabelRule, class_table, classes_of, identity_rule, raw_to_class, read_class_list
from ordnet.data.pictures import opened
from ordnet.data.reading import read_text
from ordnet.errors import OrdnetError

TREE = """\
  ADEChallengeData2016/
    images/training/*.jpg       images/validation/*.jpg
    annotations/training/*.png  annotations/validation/*.png
  release_test/testing/*.jpg    (only for the split test; beside or inside ADEChallengeData2016)"""

_FOLDERS = {"train": ("training",), "val": ("validation",), "trainval": ("training", "validation"), "test": ()}


def open_split(path: str | None, split: str) -> FileDataset:
    check_split("ade20k", split, _FOLDERS)
    root = find_root("ade20k", path, ("ADEChallengeData2016",), ("images", "annotations"), TREE)
    rows = class_table("ade20k")
    folders: list[tuple[Path, Path | None]] = [
        (root / "images" / folder, root / "annotations" / folder) for folder in _FOLDERS[split]
    ]
    ids, images, labels = pair_folders(
        folders or [(_test_folder(root), None)],
        f"ade20k: the folders of the split {split} in {root} hold no pictures; expected\n{TREE}",
    )
    rule = LabelRule({0: IGNORE, **raw_to_class(rows)})
    return FileDataset("ade20k", split, ids, classes_of(rows), rule, images, labels)


def _test_folder(root: Path) -> Path:
    places = [root / "release_test/testing", root.parent / "release_test/testing", root / "images/testing"]
    folder = first_folder(places)
    if folder is None:
        raise OrdnetError(f"ade20k: no test pictures in {', '.join(map(str, places))}; expected\n{TREE}")
    return folder


FULL_TREE = """\
  ADE20K_2021_17_01/
    images/ADE/training/GROUP/SCENE/*.jpg, *_seg.png, *.json      also validation
    classes.txt      (yours: one name per line as the JSON files have them, such as `building, edifice`)
The benchmark with 150 classes is another download, read as ade20k:PATH."""

_FULL_FOLDERS = {"train": ("training",), "val": ("validation",), "trainval": ("training", "validation")}


def open_full_split(path: str | None, split: str) -> FileDataset:
    """One split; whatever has another name than those in classes.txt never counts."""
    check_split("ade20k-full", split, _FULL_FOLDERS)
    root = find_root("ade20k-full", path, ("ADE20K_2021_17_01",), ("images/ADE",), FULL_TREE)
    if not (root / "classes.txt").is_file():
        raise OrdnetError(
            f"ade20k-full: {root} has no classes.txt. The release has 3,688 names and a model up to {IGNORE}: write "
            f"those you want, one per line\n{FULL_TREE}"
        )
    classes = read_class_list(root / "classes.txt").classes
    folders = [root / "images/ADE" / folder for folder in _FULL_FOLDERS[split]]
    ids, images, labels = pair_folders(
        [(folder, folder) for folder in folders],
        f"ade20k-full: no pictures of the split {split} in {root}; expected\n{FULL_TREE}",
        (".jpg",),
        label_suffix="_seg",
    )
    read = partial(read_segmentation, names=classes.names)
    return FileDataset("ade20k-full", split, ids, classes, identity_rule(len(classes)), images, labels, read)


def read_segmentation(path: str, names: tuple[str, ...]) -> np.ndarray:
    """Indices into `names` (H, W); IGNORE for what has another name or none."""
    with opened(path) as image:
        if image.mode != "RGB":
            raise OrdnetError(f"{path} is no label of the full ADE20K: expected RGB, got {image.mode}")
        pixels = np.asarray(image).astype(np.int32)
    numbers = pixels[..., 0] // 10 * 256 + pixels[..., 1]
    # class ids by number; numbers go up to 25 * 256 + 255
    table = np.full(26 * 256, IGNORE, np.uint8)
    for number, name in _object_names(Path(path.removesuffix("_seg.png") + ".json")).items():
        if name in names and 0 < number < len(table):
            table[number] = names.index(name)
    return table[numbers]


def _object_names(file: Path) -> dict[int, str]:
    """Number → name of the objects and parts in one picture."""
    text = read_text(file, f"{file} is missing: it says which name a number of the label is", errors="replace")
    try:
        objects = json.loads(text)["annotation"]["object"]
        return {int(entry["name_ndx"]): str(entry["name"]).strip() for entry in objects}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error or type(error).__name__
        raise OrdnetError(f"{file} is not a file of the full ADE20K: expected annotation.object: {reason}") from None
