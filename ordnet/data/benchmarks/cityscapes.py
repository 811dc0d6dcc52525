"""Cityscapes: 19 classes of street scenes, 2048 x 1024.

The labels are the official *_labelIds.png (raw ids 0 to 33), or *_labelTrainIds.png (class ids, 255 ignored) where
those were made. `train_extra` has the 20,000 coarsely labelled pictures, `train_coarse` and `val_coarse` the coarse
labels of the finely labelled ones.
"""

from pathlib import Path

from ordnet.data.dataset import FileDataset, Files, check_split, find_root, pair_folders
from ordnet.data.labels import IGNORE, LabelRule, class_table, classes_of, identity_rule, raw_to_class
from ordnet.errors import OrdnetError

TREE = """\
  PATH/
    leftImg8bit/train/CITY/*_leftImg8bit.png       also val, test, train_extra
    gtFine/train/CITY/*_gtFine_labelIds.png        also val; or *_labelTrainIds.png
    gtCoarse/train_extra/CITY/*_gtCoarse_labelIds.png    (only for train_extra, train_coarse and val_coarse)"""

_FOLDERS = {
    "train": ("train",),
    "val": ("val",),
    "trainval": ("train", "val"),
    "test": ("test",),
    "train_extra": ("train_extra",),
    "train_coarse": ("train",),
    "val_coarse": ("val",),
}
_COARSE = ("train_extra", "train_coarse", "val_coarse")


def open_split(path: str | None, split: str) -> FileDataset:
    """One split. The ids are CITY/CITY_SEQUENCE_FRAME; the rule gives original ids back for the evaluation server."""
    check_split("cityscapes", split, _FOLDERS)
    root = find_root("cityscapes", path, ("cityscapes", "Cityscapes"), ("leftImg8bit",), TREE)
    rows = class_table("cityscapes")
    classes = classes_of(rows)
    kind = "gtCoarse" if split in _COARSE else "gtFine"
    suffix = _suffix(root, kind, _FOLDERS[split]) if split != "test" else ""
    ids, images, labels = pair_folders(
        [
            (root / "leftImg8bit" / folder, root / kind / folder if split != "test" else None)
            for folder in _FOLDERS[split]
        ],
        f"cityscapes: no pictures of the split {split} in {root / 'leftImg8bit'}; expected\n{TREE}",
        (".png",),
        "_leftImg8bit",
        suffix,
    )
    own = suffix.endswith("labelTrainIds")
    rule = identity_rule(len(classes)) if own else LabelRule({**raw_to_class(rows), IGNORE: IGNORE})
    return FileDataset("cityscapes", split, ids, classes, rule, images, labels)


def _suffix(root: Path, kind: str, folders: tuple[str, ...]) -> str:
    """How the label files end: with the official ids where there are some, else with class ids."""
    for folder in folders:
        if not (root / kind / folder).is_dir():
            raise OrdnetError(f"cityscapes: there is no folder {root / kind / folder}; expected\n{TREE}")
    official = any(Files(root / kind / folder, (".png",), f"_{kind}_labelIds").paths for folder in folders)
    class_ids = any(Files(root / kind / folder, (".png",), f"_{kind}_labelTrainIds").paths for folder in folders)
    return f"_{kind}_labelTrainIds" if class_ids and not official else f"_{kind}_labelIds"
