"""ADE20K (SceneParsing benchmark): 150 classes. Raw 0 is everything else and never counts; class = raw − 1."""

from pathlib import Path

from ordnet.data.class_list import classes_of, raw_to_class, read
from ordnet.data.file_dataset import FilePairs, Files, check_split, find_root, first_folder
from ordnet.data.labels import IGNORE, LabelRule
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.errors import OrdnetError

TREE = """\
  ADEChallengeData2016/
    images/training/*.jpg       images/validation/*.jpg
    annotations/training/*.png  annotations/validation/*.png
  release_test/testing/*.jpg    (only for the split test; beside or inside ADEChallengeData2016)"""

_FOLDERS = {"train": ("training",), "val": ("validation",), "trainval": ("training", "validation"), "test": ()}


def open_split(path: str | None, split: str) -> FilePairs:
    check_split("ade20k", split, _FOLDERS)
    root = find_root("ade20k", path, ("ADEChallengeData2016",), ("images", "annotations"), TREE)
    rows = read("ade20k")
    ids: list[str] = []
    images: list[str] = []
    labels: list[str] = []
    for folder in _FOLDERS[split]:
        found = Files(root / "images" / folder, IMAGE_ENDINGS)
        here = sorted(found.paths)
        ids += here
        images += found.pick(here, "image")
        labels += Files(root / "annotations" / folder, (".png",)).pick(here, "label")
    if split == "test":
        found = Files(_test_folder(root), IMAGE_ENDINGS)
        ids = sorted(found.paths)
        images = found.pick(ids, "image")
    if not ids:
        raise OrdnetError(f"ade20k: the folders of the split {split} in {root} hold no pictures; expected\n{TREE}")
    rule = LabelRule({0: IGNORE, **raw_to_class(rows)})
    return FilePairs("ade20k", split, ids, classes_of(rows), rule, images, labels)


def _test_folder(root: Path) -> Path:
    places = [root / "release_test/testing", root.parent / "release_test/testing", root / "images/testing"]
    folder = first_folder(places)
    if folder is None:
        raise OrdnetError(f"ade20k: no test pictures in {', '.join(map(str, places))}; expected\n{TREE}")
    return folder
