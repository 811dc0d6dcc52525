"""A data set whose images and labels are files: the one `Dataset` behind all that is read from disk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ordnet.data.label_files import read_index
from ordnet.data.labels import Classes, LabelRule, OutsideClasses
from ordnet.data.pictures import open_rgb
from ordnet.errors import OrdnetError


@dataclass
class FilePairs:
    name: str
    split: str
    ids: Sequence[str]
    classes: Classes
    rule: LabelRule
    images: Sequence[str]
    labels: Sequence[str]
    """Empty where the split has none."""
    read: Callable[[str], np.ndarray] = read_index
    """The raw values (H, W) of a label file."""
    notes: tuple[str, ...] = ()
    """What a user should be told about how the files were read."""

    def image(self, index: int) -> Image.Image:
        return open_rgb(self.images[index])

    def raw(self, index: int) -> np.ndarray:
        """The label's raw values (H, W), as stored."""
        if not self.labels:
            raise OrdnetError(f"the {self.split} split of {self.name} has no labels")
        return self.read(self.labels[index])

    def label(self, index: int) -> np.ndarray:
        try:
            return self.rule.encode(self.raw(index))
        except OutsideClasses as error:
            raise OutsideClasses(error.values, error.expected, self.labels[index]) from None

    def files(self, index: int) -> tuple[str, str]:
        return self.images[index], self.labels[index] if self.labels else ""
