"""The interface of every data set: ids, pictures, labels, classes."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from PIL import Image

from ordnet.data.labels import Classes, LabelRule
from ordnet.errors import OrdnetError


class Dataset(Protocol):
    """One split of one data set. Reading is stateless, so that workers and processes may share it."""

    name: str
    """As on the command line, without the path: "ade20k", "folder", "scenes"."""
    split: str
    ids: Sequence[str]
    classes: Classes
    rule: LabelRule

    def image(self, index: int) -> Image.Image:
        """The picture as 8-bit RGB, upright."""
        ...

    def label(self, index: int) -> np.ndarray:
        """Class ids (H, W) uint8 of the picture's size; IGNORE where nothing counts."""
        ...

    def files(self, index: int) -> tuple[str, str]:
        """Where image and label come from, for messages; the label's is empty where the split has none."""
        ...


def read_pair(dataset: Dataset, index: int) -> tuple[Image.Image, np.ndarray]:
    """Image and label of one sample; an error where their sizes differ."""
    image, label = dataset.image(index), dataset.label(index)
    height, width = label.shape
    if image.size != (width, height):
        image_file, label_file = dataset.files(index)
        raise OrdnetError(
            f"image and label differ in size: {image_file} has {image.width} x {image.height} pixels, "
            f"{label_file} has {width} x {height}; {size_advice(image.size, (width, height))}"
        )
    return image, label


def size_advice(image: tuple[int, int], label: tuple[int, ...]) -> str:
    """What to do about a label of another size than its picture; both as (width, height)."""
    if image == label[::-1]:
        return "the label fits the picture as stored, without its EXIF rotation: remove that tag, or turn the label"
    if 2 * abs(image[0] * label[1] - image[1] * label[0]) <= max(image):  # but for rounding
        return f"the shape is the same: scale the label to {image[0]} x {image[1]} by nearest neighbour, never smoothly"
    return "they differ in shape too: see whether this is the label of another picture, or of a part of this one"


def notes_of(dataset: Dataset) -> tuple[str, ...]:
    """What a user should be told about how the data set was read, if there is anything."""
    return getattr(dataset, "notes", ())


def starts_of(dataset: Dataset) -> Sequence[int]:
    """Where each shard's samples begin, where the data set lies in shards."""
    return getattr(dataset, "starts", ())


class Spread:
    """`count` samples of a split, evenly spread over its first `of` (over all of it without that)."""

    def __init__(self, dataset: Dataset, count: int, of: int | None = None) -> None:
        self._dataset = dataset
        of = min(of or len(dataset.ids), len(dataset.ids))
        self._indices = np.unique(np.linspace(0, of - 1, min(count, of)).round().astype(int))
        self.name, self.split, self.classes, self.rule = dataset.name, dataset.split, dataset.classes, dataset.rule
        self.ids: Sequence[str] = [dataset.ids[index] for index in self._indices]
        self.notes = notes_of(dataset)

    def image(self, index: int) -> Image.Image:
        return self._dataset.image(int(self._indices[index]))

    def label(self, index: int) -> np.ndarray:
        return self._dataset.label(int(self._indices[index]))

    def files(self, index: int) -> tuple[str, str]:
        return self._dataset.files(int(self._indices[index]))
