"""`folder:PATH`: a user's own pictures and labels.

Without train.txt and val.txt a fifth of the pictures, chosen by a hash of their ids, is for validation. The choice is
the same on every machine, and pictures added later leave nearly all others where they were.
"""

import hashlib
from functools import partial
from pathlib import Path

from ordnet.data.class_list import HELP, read_class_list
from ordnet.data.file_dataset import FileDataset, Files, find_root, read_ids
from ordnet.data.label_files import LABEL_ENDINGS, read_index_or_colours
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.errors import OrdnetError
from ordnet.files import write_text

TREE = f"""\
  PATH/
    images/*.jpg               (or png, bmp, tif, webp, ppm; folders inside are part of the id)
    labels/*.png               (the same ids; 8-bit class index, paletted, or RGB colours)
    classes.txt
    train.txt, val.txt         (ids, one per line; without them a fifth is set aside for validation)
    test.txt                   (if there is one)
{HELP}"""

_VAL_SHARE = 0.2
_SEED = 0


def open_split(path: str | None, split: str) -> FileDataset:
    root = find_root("folder", path, (), ("images", "labels"), TREE)
    listed = read_class_list(root / "classes.txt")
    images = Files(root / "images", IMAGE_ENDINGS)
    labels = Files(root / "labels", LABEL_ENDINGS)
    notes: tuple[str, ...] = ()
    if (root / f"{split}.txt").exists():
        ids = [_without_ending(key, images) for key in read_ids(root / f"{split}.txt")]
    elif split in ("train", "val") and not _lists(root):
        parts = _divided(root, images, labels)
        ids = parts[split]
        notes = (
            f"{root} has no train.txt and val.txt: {len(parts['train']):,} pictures are for training and "
            f"{len(parts['val']):,} for validation, chosen by a hash of their ids",
        )
    else:
        there = ", ".join(sorted(file.name for file in root.glob("*.txt") if file.name != "classes.txt")) or "none"
        raise OrdnetError(f"folder: no list {root / f'{split}.txt'} for the split {split!r}; there are: {there}")
    unlabelled = split == "test" and not labels.paths.keys() & set(ids)
    return FileDataset(
        "folder",
        split,
        ids,
        listed.classes,
        listed.rule,
        images.pick(ids, "image"),
        [] if unlabelled else labels.pick(ids, "label"),
        partial(read_index_or_colours, palette=listed.palette),
        notes,
    )


def write_split(path: str) -> tuple[Path, Path]:
    """Write train.txt and val.txt as they would be chosen without them. Existing lists are not touched."""
    root = find_root("folder", path, (), ("images", "labels"), TREE)
    if there := _lists(root):
        raise OrdnetError(f"{' and '.join(map(str, there))} exist already: remove them to have the split chosen anew")
    parts = _divided(root, Files(root / "images", IMAGE_ENDINGS), Files(root / "labels", LABEL_ENDINGS))
    for split, ids in parts.items():
        write_text(root / f"{split}.txt", "".join(f"{key}\n" for key in ids))
    return root / "train.txt", root / "val.txt"


def _lists(root: Path) -> list[Path]:
    return [file for file in (root / "train.txt", root / "val.txt") if file.exists()]


def _divided(root: Path, images: Files, labels: Files) -> dict[str, list[str]]:
    """Training and validation ids, each sorted: all pictures with a label that are not in test.txt."""
    tests = (
        {_without_ending(key, images) for key in read_ids(root / "test.txt")} if (root / "test.txt").exists() else set()
    )
    usable = sorted((images.paths.keys() & labels.paths.keys()) - tests)
    if len(usable) < 2:
        raise OrdnetError(
            f"{root} has {len(images.paths):,} pictures in images/ and {len(labels.paths):,} labels in labels/; "
            f"{len(usable)} of them share their names, endings aside, and at least 2 are needed\n{TREE}"
        )
    shuffled = sorted(usable, key=lambda key: hashlib.sha256(f"{_SEED} {key}".encode()).digest())
    count = max(1, round(len(usable) * _VAL_SHARE))
    return {"train": sorted(shuffled[count:]), "val": sorted(shuffled[:count])}


def _without_ending(key: str, images: Files) -> str:
    """Lists may name files with their endings."""
    stem, dot, ending = key.rpartition(".")
    return stem if key not in images.paths and (dot + ending).lower() in IMAGE_ENDINGS else key
