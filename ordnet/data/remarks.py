"""What deserves a look in a data set without being wrong: absent classes, a single class, pictures larger than
needed."""

from collections.abc import Sequence

import numpy as np

from ordnet.data.dataset import Dataset

_LARGE = 3
"""Pictures whose long side is this many crops are far larger than what training sees at once."""


def remarks(dataset: Dataset, pixels: np.ndarray, empty: int) -> list[str]:
    """Sentences for the user. `pixels` (256,) are those of each class id over all labels, `empty` labels have none."""
    names, split = dataset.classes.names, dataset.split
    present = [class_id for class_id in range(len(names)) if pixels[class_id]]
    told = []
    if len(names) == 1:
        told.append(
            f"there is one class only, {names[0]!r}: whatever is predicted is right. A second one, such as background, "
            "makes it a task"
        )
    elif len(present) == 1:
        told.append(f"all that counts in {split} is {names[present[0]]!r}: a score there says nothing")
    if present and len(present) < len(names):
        absent = ", ".join(name for class_id, name in enumerate(names) if class_id not in present)
        told.append(f"never in {split}: {absent}" + (" (no score there)" if split != "train" else ""))
    if dataset.name == "folder" and present and 0 not in present and dataset.rule.raw_to_class.get(0) == 0:
        told.append(
            f"no label of {split} holds 0, which is {names[0]!r}: if your labels count from 1, write `ignore` as the "
            "first line of classes.txt"
        )
    if empty and present:
        has = "label of {} has" if empty == 1 else "labels of {} have"
        told.append(f"{empty:,} {has.format(split)} no pixel that counts")
    return told


def size_remark(long_sides: Sequence[int], crop: int) -> str | None:
    """Advice where the long sides of pictures are far larger than the `crop` that training sees at once."""
    if not long_sides or (middle := sorted(long_sides)[len(long_sides) // 2]) < _LARGE * crop:
        return None
    return (
        f"half of the pictures have a long side of {middle:,} pixels or more, and a training crop of {crop} shows a "
        f"small part of them; `--set data.long_side={2 * crop}` shrinks them while loading, and later while parsing"
    )
