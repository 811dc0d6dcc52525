"""PASCAL-Context: the 59 frequent classes of 459, on the pictures of VOC 2010.

The labels are the official LabelMap .mat files, or index PNGs in SegmentationClassContext/ as other toolkits convert
them. All that is not among the 59 is background: it never counts, or is class 0 in the form with 60 classes.
"""

from functools import partial
from pathlib import Path

from ordnet.data.class_list import ClassRow, class_table
from ordnet.data.file_dataset import FileDataset, Files, check_split, find_root, first_folder, read_ids
from ordnet.data.label_files import read_index, read_mat
from ordnet.data.labels import IGNORE, Classes, LabelRule
from ordnet.errors import OrdnetError

TREE = """\
  VOCdevkit/VOC2010/
    JPEGImages/*.jpg
    ImageSets/Main/train.txt, val.txt    (or ImageSets/SegmentationContext/train.txt, val.txt)
    trainval/*.mat                       (from trainval.tar.gz; or SegmentationClassContext/*.png)"""

_SPLITS = {"train": ("train",), "val": ("val",), "trainval": ("train", "val")}
_RAW_CLASSES = 459


def open_split(path: str | None, split: str) -> FileDataset:
    """59 classes, background ignored."""
    return _open("pascal-context", path, split, background=False)


def open_split_60(path: str | None, split: str) -> FileDataset:
    """60 classes: background is class 0, the others follow."""
    return _open("pascal-context-60", path, split, background=True)


def _open(name: str, path: str | None, split: str, background: bool) -> FileDataset:
    check_split(name, split, _SPLITS)
    root = find_root(name, path, ("VOC2010", "VOCdevkit/VOC2010"), ("JPEGImages", "ImageSets"), TREE)
    lists = first_folder([root / "ImageSets/SegmentationContext", root / "ImageSets/Main"])
    if lists is None:
        raise OrdnetError(f"{name}: neither SegmentationContext/ nor Main/ in {root / 'ImageSets'}; expected\n{TREE}")
    ids = [key for part in _SPLITS[split] for key in read_ids(lists / f"{part}.txt")]
    images = Files(root / "JPEGImages", (".jpg",)).pick(ids, "image")
    labels, mat = _labels(name, root)
    rows = class_table("pascal_context")
    return FileDataset(
        name,
        split,
        ids,
        _classes(rows, background),
        LabelRule(_mat_rule(rows, background) if mat else _png_rule(rows, background)),
        images,
        labels.pick(ids, "label"),
        partial(read_mat, key="LabelMap") if mat else read_index,
    )


def _labels(name: str, root: Path) -> tuple[Files, bool]:
    """The label files, and whether they are .mat files."""
    converted = root / "SegmentationClassContext"
    if converted.is_dir():
        return Files(converted, (".png",)), False
    places = [root / "trainval", root.parent / "trainval", root.parent.parent / "trainval"]
    folder = first_folder(places)
    if folder is None:
        raise OrdnetError(f"{name}: no labels in {', '.join(map(str, (converted, *places)))}; expected\n{TREE}")
    return Files(folder, (".mat",)), True


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
