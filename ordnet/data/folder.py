"""`folder:PATH`: a user's own pictures and labels.

Without train.txt and val.txt a fifth of the pictures is set aside for validation, chosen by a hash of their ids and so
that every class is in both parts where that is possible (`divide`).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ordnet.data.dataset import FileDataset, Files, find_root, first_few, read_ids, search_root
from ordnet.data.label_files import LABEL_ENDINGS, LOSSY_ENDINGS, far_apart, read_label, read_lossy
from ordnet.data.labels import HELP, IGNORE, ClassList, read_class_list
from ordnet.data.pictures import IMAGE_ENDINGS, unreadable_words
from ordnet.data.statistics import label_counts
from ordnet.errors import OrdnetError
from ordnet.files import write_text

_ENDINGS = ", ".join(ending[1:] for ending in IMAGE_ENDINGS[2:])
TREE = f"""\
  PATH/
    images/*.jpg               (or {_ENDINGS}; folders inside are part of the id)
    labels/*.png               (the same names, also with _mask, _label or _seg; class indices, a palette, or colours)
    classes.txt
    train.txt, val.txt         (ids, one per line; without them a fifth is set aside for validation)
    test.txt                   (if there is one)
{HELP}"""

_VAL_SHARE = 0.2
_SEED = 0
_COUNTED = 5000
"""Folders of more labels are divided by ids alone: counting them would take minutes, and among that many pictures a
class hardly ever falls into one part only."""
_SUFFIXES = ("_mask", "_label", "_labels", "_seg", "_segmentation", "_gt", "-mask", "-label", ".mask", ".label")

_USUAL = {
    "images": ("images", "image", "imgs", "img", "jpegimages", "pictures", "photos", "rgb"),
    "labels": ("labels", "label", "masks", "mask", "annotations", "annotation", "segmentationclass", "gt"),
}
"""How others name the two folders."""


class NoSplit(OrdnetError):
    """The folder has no such split."""


def open_split(path: str | None, split: str) -> FileDataset:
    """One split: that of the list `split`.txt, or a part of the automatic division."""
    root = _find(path)
    whole = _Folder(root)
    notes: tuple[str, ...] = ()
    if (root / f"{split}.txt").exists():
        ids = [_without_ending(key, whole.images) for key in read_ids(root / f"{split}.txt")]
    elif split in ("train", "val") and not _lists(root):
        parts, notes = whole.divided()
        ids = parts[split]
    else:
        there = ", ".join(sorted(file.name for file in root.glob("*.txt") if file.name != "classes.txt"))
        if not _lists(root):
            there = f"train and val, which are chosen by themselves{there and ', '}{there}"
        advice = ": write it, or remove the other to have both parts chosen" if split in ("train", "val") else ""
        raise NoSplit(f"folder: no list {root / f'{split}.txt'} for the split {split!r}; there are: {there}{advice}")
    return whole.dataset(split, ids, notes)


def write_split(path: str) -> tuple[Path, Path]:
    """Write train.txt and val.txt as they would be chosen without them. Existing lists are not touched."""
    root = _find(path)
    if there := _lists(root):
        raise OrdnetError(f"{' and '.join(map(str, there))} exist already: remove them to have the split chosen anew")
    parts, _ = _Folder(root).divided()
    for split, ids in parts.items():
        write_text(root / f"{split}.txt", "".join(f"{key}\n" for key in ids))
    return root / "train.txt", root / "val.txt"


def _find(path: str | None) -> Path:
    """The folder; where its parts have other names or places, an error that says what to rename or move."""
    parts = ("images", "labels")
    base = Path(path or "").expanduser()
    if path and search_root(path, (), parts) is None and (advice := _advice(base)):
        raise OrdnetError(f"folder: no images/ and labels/ in {base}: {advice}. Expected is\n{TREE}")
    return find_root("folder", path, (), parts, TREE)


def _advice(root: Path) -> str:
    """What to do about folders under other names, or about parts with folders of their own."""
    try:
        there = {entry.name: entry.is_dir() for entry in sorted(root.iterdir())}
        folders = {name: {inner.name for inner in (root / name).iterdir()} for name, is_dir in there.items() if is_dir}
    except OSError:
        return ""
    for part, inside in folders.items():
        if (pictures := _named(inside, "images")) and (labels := _named(inside, "labels")):
            return (
                f"move {part}/{pictures}/ to images/{part}/ and {part}/{labels}/ to labels/{part}/, and write the "
                f"pictures' names, `{part}/NAME`, into train.txt or val.txt"
            )
    if renamed := [f"{old}/ to {new}/" for new in _USUAL if (old := _named(folders, new)) not in ("", new)]:
        return f"rename {' and '.join(renamed)}"
    if any(name.lower().endswith(IMAGE_ENDINGS) for name in there):
        return "it holds pictures itself: move them into images/, their labels into labels/"
    return ""


def _named(names: Collection[str], what: str) -> str:
    """The first name that is usual for the folder of pictures ("images") or of labels; empty if there is none."""
    return next((name for name in names if name.lower() in _USUAL[what]), "")


class _Folder:
    """All files of a folder, and how its labels are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.listed = read_class_list(root / "classes.txt")
        self.images = Files(root / "images", IMAGE_ENDINGS)
        self.labels = _labels(root / "labels", self.images)
        self.notes: tuple[str, ...] = ()
        if self.images.unreadable:
            self.notes += (f"left out {unreadable_words(self.images.unreadable)} in {root / 'images'}",)
        if all(re.match(r"\d+[\s:,]", name) for name in self.listed.classes.names):
            self.notes += (_numbered_note(self.listed),)
        if self.labels.suffix:
            self.notes += (f"labels are named with {self.labels.suffix} after the picture's name",)
        if self.labels.endings == LOSSY_ENDINGS:
            self.notes += (_lossy_note(root, self.listed),)

    def dataset(self, split: str, ids: list[str], notes: tuple[str, ...] = ()) -> FileDataset:
        unlabelled = split == "test" and not self.labels.paths.keys() & set(ids)
        listed, raw_values = self.listed, self.listed.rule.raw_to_class
        read = partial(
            read_label,
            palette=listed.palette,
            # the bits of 1-bit masks, where classes.txt says what 255 is and nothing about 1
            one_bit=255 if 1 not in raw_values and raw_values.get(255) != IGNORE else 1,
        )
        if self.labels.endings == LOSSY_ENDINGS:
            read = partial(read_lossy, palette=listed.palette, values=tuple(sorted(raw_values)))
        return FileDataset(
            "folder",
            split,
            ids,
            listed.classes,
            listed.rule,
            self.images.pick(ids, "image"),
            [] if unlabelled else self.labels.pick(ids, "label"),
            read,
            (*self.notes, *notes),
        )

    def divided(self) -> tuple[dict[str, list[str]], tuple[str, ...]]:
        """Training and validation ids of all pictures that have a label and are not in test.txt, and notes."""
        tests = set(read_ids(self.root / "test.txt")) if (self.root / "test.txt").exists() else set()
        tests = {_without_ending(key, self.images) for key in tests}
        usable = sorted((self.images.paths.keys() & self.labels.paths.keys()) - tests)
        if len(usable) < 2:
            raise OrdnetError(self._too_few(len(usable)))
        present = None
        if len(usable) <= _COUNTED:
            counts, _ = label_counts(self.dataset("train", usable))
            all_read = bool(counts.any(axis=1).all())  # a label with an error counts as one without pixels
            present = [frozenset(np.flatnonzero(row[:IGNORE]).tolist()) for row in counts]
        parts = divide(usable, _VAL_SHARE, _SEED, present)
        how = (
            "so that every class is in both where it can be"
            if present
            else f"labels of more than {_COUNTED:,} are not read for it"
        )
        are = "picture is" if len(parts["train"]) == 1 else "pictures are"
        notes = [
            f"{self.root} has no train.txt and val.txt: {len(parts['train']):,} {are} for training and "
            f"{len(parts['val']):,} for validation, chosen by a hash of their ids, {how}"
        ]
        for what, without, keys in (
            ("pictures", "label", self.images.paths.keys() - self.labels.paths.keys() - tests),
            ("labels", "picture", self.labels.paths.keys() - self.images.paths.keys()),
        ):
            if keys:
                notes.append(f"{what} without a {without} of their name are left out: {first_few(sorted(keys))}")
        if present:
            names = self.listed.classes.names
            holders = [sum(class_id in classes for classes in present) for class_id in range(len(names))]
            if single := [name for name, count in zip(names, holders, strict=True) if count == 1]:
                notes.append(f"in one picture only, and so in one part only: {first_few(single)}")
            if all_read and (never := [name for name, count in zip(names, holders, strict=True) if count == 0]):
                notes.append(f"in no label at all: {first_few(never)}")
        return parts, tuple(notes)

    def _too_few(self, count: int) -> str:
        strange = ""
        if not count and self.images.paths and self.labels.paths:
            strange = f"; the first are {min(self.images.paths)!r} and {min(self.labels.paths)!r}"
        if self.images.unreadable:
            strange += f"; images/ holds {unreadable_words(self.images.unreadable)}"
        return (
            f"{self.root} has {len(self.images.paths):,} pictures in images/ and {len(self.labels.paths):,} labels in "
            f"labels/; {count} of them share their names, endings aside, and at least 2 are needed{strange}\n{TREE}"
        )


def _labels(folder: Path, images: Files) -> Files:
    """The label files: exact formats before JPEG, names that equal the pictures' before names with a suffix."""
    plain = Files(folder, LABEL_ENDINGS)
    if not plain.paths:
        lossy = Files(folder, LOSSY_ENDINGS)
        plain = lossy if lossy.paths else plain
    if plain.paths.keys() & images.paths.keys():
        return plain
    suffixed = [found for suffix in _SUFFIXES if (found := Files(folder, plain.endings, suffix)).paths]
    return max(suffixed, key=lambda found: len(found.paths.keys() & images.paths.keys()), default=plain)


def _lossy_note(root: Path, listed: ClassList) -> str:
    """What is done with JPEG labels; an error where their values cannot be told apart."""
    zero, one = (*listed.classes.names, "person")[:2]
    if not far_apart(listed.palette or listed.rule.raw_to_class):
        raise OrdnetError(
            f"{root / 'labels'} holds JPEG files, which change every value a little, so that classes with neighbouring "
            "values cannot be told apart. Save the labels as PNG; if they are masks of black and white, write their "
            f"values into classes.txt: `{zero} =0` and `{one} =255`"
        )
    what = "colour" if listed.palette else "value"
    return (
        f"labels are JPEG files, whose values are not exact: each pixel gets the class with the nearest {what}. "
        "Edges suffer; PNG labels are better"
    )


def _numbered_note(listed: ClassList) -> str:
    first = listed.classes.names[0]
    number, name = re.split(r"[\s:,]+", first, maxsplit=1)
    return (
        f"all classes are called by a number and a name, such as {first!r}: if the numbers are the labels' values, "
        f"write `{name} ={number}` in classes.txt, otherwise the names alone"
    )


def _lists(root: Path) -> list[Path]:
    return [file for file in (root / "train.txt", root / "val.txt") if file.exists()]


def _without_ending(key: str, images: Files) -> str:
    """Lists may name files with their endings."""
    stem, dot, ending = key.rpartition(".")
    return stem if key not in images.paths and (dot + ending).lower() in IMAGE_ENDINGS else key


def divide(
    ids: Sequence[str], share: float, seed: int, classes: Sequence[Collection[int]] | None = None
) -> dict[str, list[str]]:
    """Ids → the parts "train" and "val", each in the order the ids came.

    About `share` of the pictures go to val, at least one, and at least one stays in train; with a share of 0 or a
    single picture there is no val. `classes` are the class ids in each picture's label; without them only the ids
    decide.
    """
    count = min(max(1, round(share * len(ids))), len(ids) - 1) if share > 0 else 0
    order = sorted(
        range(len(ids)),
        key=lambda place: hashlib.sha256(f"{seed} {ids[place]}".encode(errors="surrogateescape")).digest(),
    )
    val = set(order[:count])
    if classes is not None and count:
        _spread_classes(val, order, classes, count)
    parts = {
        "train": [key for place, key in enumerate(ids) if place not in val],
        "val": [key for place, key in enumerate(ids) if place in val],
    }
    return {name: part for name, part in parts.items() if part}


def _spread_classes(val: set[int], order: Sequence[int], classes: Sequence[Collection[int]], count: int) -> None:
    """Move as few pictures as needed so that each class is in both parts, or in train where a single picture has it."""
    total = Counter(c for place in order for c in classes[place])
    in_val = Counter(c for place in val for c in classes[place])

    def may_leave_val(place: int) -> bool:
        return len(val) > 1 and all(in_val[c] > 1 or total[c] == 1 for c in classes[place])

    def may_leave_train(place: int) -> bool:
        return len(val) < len(order) - 1 and all(total[c] - in_val[c] > 1 for c in classes[place])

    def move(place: int) -> None:
        (val.remove if place in val else val.add)(place)
        in_val.update(dict.fromkeys(classes[place], 1 if place in val else -1))

    # rare classes first: they have the fewest pictures to choose from
    for c in sorted(total, key=lambda c: (total[c], c)):
        holders = [place for place in order if c in classes[place]]
        if in_val[c] == 0 and total[c] > 1:
            movable = [place for place in holders if may_leave_train(place)]
        elif in_val[c] == total[c]:
            movable = [place for place in reversed(holders) if may_leave_val(place)]
        else:
            continue
        if movable:
            move(movable[0])
    # back to the wanted size, with pictures whose classes stay in both parts
    for place in reversed(order):
        if len(val) > count and place in val and may_leave_val(place):
            move(place)
    for place in order:
        if len(val) < count and place not in val and may_leave_train(place):
            move(place)
