"""Mapillary Vistas, versions 1.2 and 2.0: street scenes from all over the world.

The classes are those that the release's own config file marks for evaluation; the raw value is the place in its list.
"""

from pathlib import Path
from typing import Any

from ordnet.data.dataset import FileDataset, check_split, find_root, pair_folders
from ordnet.data.labels import IGNORE, Classes, Colour, LabelRule
from ordnet.data.reading import load_json
from ordnet.errors import OrdnetError

TREE = """\
  PATH/                                   version 1.2
    config.json
    training/images/*.jpg                 also validation; testing without labels
    training/labels/*.png
or                                        version 2.0, which has both
    config_v1.2.json, config_v2.0.json
    training/images/*.jpg
    training/v1.2/labels/*.png, training/v2.0/labels/*.png"""

_FOLDERS = {
    "train": ("training",),
    "val": ("validation",),
    "trainval": ("training", "validation"),
    "test": ("testing",),
}
_INSIDE = ("mapillary-vistas", "mapillary_vistas", "Mapillary-Vistas")


def open_split(path: str | None, split: str) -> FileDataset:
    """The newest labels that the folder has: version 2.0, else 1.2."""
    return _open("mapillary", path, split, ("v2.0", "v1.2", None))


def open_split_12(path: str | None, split: str) -> FileDataset:
    """Version 1.2, also from a download of version 2.0."""
    return _open("mapillary-1.2", path, split, ("v1.2", None))


def _open(name: str, path: str | None, split: str, versions: tuple[str | None, ...]) -> FileDataset:
    check_split(name, split, _FOLDERS)
    root = find_root(name, path, _INSIDE, ("training",), TREE)
    version, config = _config(name, root, versions)
    classes, rule = _classes(config)
    ids, images, labels = pair_folders(
        [
            (root / folder / "images", None if split == "test" else root / folder / (version or ".") / "labels")
            for folder in _FOLDERS[split]
        ],
        f"{name}: no pictures of the split {split} in {root}; expected\n{TREE}",
        (".jpg",),
    )
    return FileDataset(name, split, ids, classes, rule, images, labels)


def _config(name: str, root: Path, versions: tuple[str | None, ...]) -> tuple[str | None, Path]:
    """The first version whose config file is there."""
    files = {version: root / (f"config_{version}.json" if version else "config.json") for version in versions}
    for version, file in files.items():
        if file.is_file():
            return version, file
    raise OrdnetError(f"{name}: none of {', '.join(file.name for file in files.values())} in {root}; expected\n{TREE}")


def _classes(config: Path) -> tuple[Classes, LabelRule]:
    content = load_json(config)
    entries = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise OrdnetError(f"{config} is not a Vistas config: expected a list `labels`")
    names: list[str] = []
    colours: list[Colour] = []
    rule = {IGNORE: IGNORE}
    for raw, entry in enumerate(entries):
        name, colour = entry.get("readable"), entry.get("color")
        if not isinstance(name, str) or not isinstance(entry.get("evaluate"), bool) or not _is_colour(colour):
            raise OrdnetError(
                f"{config}: label {raw}: expected readable, evaluate and color (0 to 255), got {entry!r:.120}"
            )
        if entry["evaluate"]:
            rule[raw] = len(names)
            names.append(name)
            colours.append((colour[0], colour[1], colour[2]))
        else:
            rule[raw] = IGNORE
    return Classes(tuple(names), tuple(colours)), LabelRule(rule)


def _is_colour(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(type(v) is int and 0 <= v < 256 for v in value)
