"""PASCAL VOC 2012: 21 classes with background; 255 marks boundaries and never counts.

`trainaug` is the customary augmented training set: all of VOC's train and of SBD, without VOC's val (10,582 pictures),
or those of them that ImageSets/Segmentation/trainaug.txt lists. Where both label a picture, VOC's label is taken.
"""

from pathlib import Path

import numpy as np

from ordnet.data.dataset import FileDataset, Files, check_split, find_root, first_folder, read_ids
from ordnet.data.label_files import read_index, read_mat
from ordnet.data.labels import IGNORE, LabelRule, class_table, classes_of, raw_to_class
from ordnet.errors import OrdnetError

TREE = """\
  VOCdevkit/VOC2012/
    JPEGImages/*.jpg
    SegmentationClass/*.png
    SegmentationClassAug/*.png             (for trainaug and trainvalaug; or SBD as below)
    ImageSets/Segmentation/train.txt, val.txt (test.txt)
  benchmark_RELEASE/dataset/cls/*.mat      (SBD; inside or beside VOC2012 or VOCdevkit)"""

_PLAIN = {"train": ("train",), "val": ("val",), "trainval": ("train", "val"), "test": ("test",)}
_AUGMENTED = ("trainaug", "trainvalaug")


def open_split(path: str | None, split: str) -> FileDataset:
    check_split("voc", split, (*_PLAIN, *_AUGMENTED))
    inside = ("VOC2012", "VOCdevkit/VOC2012")
    root = find_root("voc", path, inside, ("JPEGImages", "ImageSets/Segmentation"), TREE)
    images = Files(root / "JPEGImages", (".jpg",))
    if split in _AUGMENTED:
        ids, labels = _augmented(root, images, with_val=split == "trainvalaug")
    else:
        ids = [key for part in _PLAIN[split] for key in _listed(root, part)]
        labels = [] if split == "test" else Files(root / "SegmentationClass", (".png",)).pick(ids, "label")
    rows = class_table("voc")
    rule = LabelRule({**raw_to_class(rows), IGNORE: IGNORE})
    return FileDataset("voc", split, ids, classes_of(rows), rule, images.pick(ids, "image"), labels, _read_label)


def _augmented(root: Path, images: Files, with_val: bool) -> tuple[list[str], list[str]]:
    """Ids and labels. Pictures that only SBD brings are added to `images`."""
    train, val = _listed(root, "train"), _listed(root, "val")
    extra = _extra_labels(root, images)
    listed = _augmented_list(root) or extra.paths.keys()
    added = sorted(set(listed) - set(train) - set(val))
    plain = [*train, *val] if with_val else train
    labels = Files(root / "SegmentationClass", (".png",)).pick(plain, "label") + extra.pick(added, "label")
    return plain + added, labels


def _extra_labels(root: Path, images: Files) -> Files:
    converted = root / "SegmentationClassAug"
    if converted.is_dir():
        return Files(converted, (".png",))
    places = [
        folder / name
        for folder in (root, root.parent, root.parent.parent)
        for name in ("benchmark_RELEASE/dataset", "VOCaug/dataset", "sbd")
    ]
    folder = first_folder(place / "cls" for place in places)
    if folder is None:
        looked = ", ".join(map(str, (converted, *places[::3])))
        raise OrdnetError(f"voc: the augmented splits need more labels; looked for {looked}; expected\n{TREE}")
    if (folder.parent / "img").is_dir():
        images.paths = {**Files(folder.parent / "img", (".jpg",)).paths, **images.paths}
    return Files(folder, (".mat",))


def _augmented_list(root: Path) -> list[str]:
    """The ids of a list of the augmented set, where there is one; lines may be ids, or paths of picture and label."""
    for name in ("Segmentation/trainaug.txt", "SegmentationAug/train_aug.txt", "Segmentation/train_aug.txt"):
        if (root / "ImageSets" / name).exists():
            return [Path(line.split()[0]).stem for line in read_ids(root / "ImageSets" / name)]
    return []


def _listed(root: Path, part: str) -> list[str]:
    return read_ids(root / "ImageSets/Segmentation" / f"{part}.txt")


def _read_label(path: str) -> np.ndarray:
    return read_mat(path, "GTcls.Segmentation") if path.endswith(".mat") else read_index(path)
