"""COCO-Stuff 10k: 171 classes. Eleven of the raw ids 1…182 are never used; raw 0 is unlabelled and never counts.

The labels are the official .mat files, PNGs of the same raw ids, or PNGs named *_labelTrainIds, which number the used
classes from 1.
"""

from functools import partial
from pathlib import Path

from ordnet.data.dataset import FileDataset, Files, check_split, find_root, first_folder, read_ids
from ordnet.data.label_files import read_index, read_mat
from ordnet.data.labels import IGNORE, LabelRule, class_table, classes_of, raw_to_class
from ordnet.errors import OrdnetError

TREE = """\
  cocostuff-10k-v1.1/
    images/*.jpg
    annotations/*.mat
    imageLists/train.txt, test.txt"""

# the official lists are called train and test; papers validate on the latter
_LISTS = {"train": ("train",), "val": ("test",), "test": ("test",), "trainval": ("train", "test")}
_INSIDE = ("cocostuff-10k-v1.1", "coco_stuff10k", "dataset")
_TRAIN_IDS = "_labelTrainIds"


def open_split(path: str | None, split: str) -> FileDataset:
    check_split("coco-stuff", split, _LISTS)
    root = find_root("coco-stuff", path, _INSIDE, ("images", "annotations"), TREE)
    lists = first_folder([root / "imageLists", root / "imagesLists"])
    if lists is None:
        raise OrdnetError(f"coco-stuff: no imageLists/ in {root}; expected\n{TREE}")
    ids = [key for part in _LISTS[split] for key in read_ids(lists / f"{part}.txt")]
    images = Files(root / "images", (".jpg",), flat=True).pick(ids, "image")
    labels = _labels(root / "annotations")
    rows = class_table("coco_stuff")
    official = {0: IGNORE, **raw_to_class(rows)}
    numbered = {0: IGNORE, IGNORE: IGNORE, **{row.class_id + 1: row.class_id for row in rows}}
    return FileDataset(
        "coco-stuff",
        split,
        ids,
        classes_of(rows),
        LabelRule(numbered if labels.suffix else official),
        images,
        labels.pick(ids, "label"),
        partial(read_mat, key="S") if labels.endings == (".mat",) else read_index,
    )


def _labels(folder: Path) -> Files:
    """Converted labels where there are any: they need no conversion on first use."""
    for ending, suffix in ((".png", _TRAIN_IDS), (".png", "")):
        found = Files(folder, (ending,), suffix, flat=True)
        if found.paths:
            return found
    return Files(folder, (".mat",), flat=True)
