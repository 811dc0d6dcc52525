"""The data sets that `--data` knows by name, and the function that opens each."""

from collections.abc import Callable
from pathlib import Path

from ordnet.data import folder, tar
from ordnet.data.benchmarks import ade20k, camvid, cityscapes, coco_stuff, mapillary, pascal_context, voc
from ordnet.data.dataset import Dataset
from ordnet.errors import OrdnetError


def _scenes(path: str | None, split: str) -> Dataset:
    from ordnet.data import scenes

    return scenes.open_split(path, split)


OPENERS: dict[str, Callable[[str | None, str], Dataset]] = {
    "folder": folder.open_split,
    "tar": tar.open_split,
    "ade20k": ade20k.open_split,
    "ade20k-full": ade20k.open_full_split,
    "pascal-context": pascal_context.open_split,
    "pascal-context-60": pascal_context.open_split_60,
    "coco-stuff": coco_stuff.open_split,
    "voc": voc.open_split,
    "camvid": camvid.open_split,
    "cityscapes": cityscapes.open_split,
    "mapillary": mapillary.open_split,
    "mapillary-1.2": mapillary.open_split_12,
    "scenes": _scenes,
}


def open_dataset(spec: str, split: str) -> Dataset:
    """One split of a data set; `spec` is NAME or NAME:PATH."""
    name, _, path = spec.partition(":")
    if name not in OPENERS:
        raise OrdnetError(
            f"--data {spec}: there is no data set {name!r}; there are {', '.join(OPENERS)}. "
            "Your own pictures are folder:PATH"
        )
    return OPENERS[name](path or None, split)


def short_name(spec: str) -> str:
    """The name used in titles: the data set's own, or the folder's for `folder:PATH`."""
    name, _, path = spec.partition(":")
    return Path(path).name if name in ("folder", "tar") and path else spec if name == "scenes" else name
