"""ADE20K (SceneParsing benchmark): 150 classes. Raw 0 is everything else and never counts; class = raw − 1."""

from pathlib import Path

from ordnet.data.class_list import class_table, classes_of, raw_to_class
from ordnet.data.file_dataset import FileDataset, check_split, find_root, first_folder, pair_folders
from ordnet.data.labels import IGNORE, LabelRule
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
