"""Scores in words that cannot be misread: over which classes a mean was taken, what the pictures do not have.

All functions read the figures of `Evaluation.figures`; those of older logs and checkpoints, which have fewer, too.
"""

from collections.abc import Sequence
from typing import Any


def miou_words(figures: dict[str, Any]) -> str:
    """ "mIoU 0.7100 over 7 of 8 classes"."""
    if figures.get("miou") is None:
        return "mIoU – (no pixel counts)"
    words = f"mIoU {figures['miou']:.4f}"
    if "miou_classes" in figures:
        words += f" over {figures['miou_classes']} of {_count(len(figures['per_class_iou']), 'class', 'classes')}"
    return words


def other_rule(figures: dict[str, Any]) -> str:
    """ADE20K's own rule counts absent classes as 0; empty where that is the same figure."""
    other = figures.get("miou_absent_as_zero")
    if other is None or other == figures.get("miou"):
        return ""
    return (
        f"mIoU {other:.4f} over all {len(figures['per_class_iou'])} classes, absent ones as 0 (ADE20K's and EncNet's)"
    )


def remarks(figures: dict[str, Any], limit: int = 8) -> list[str]:
    """Sentences about what these scores do not say; none where every class occurs and is predicted."""
    if "absent_classes" not in figures:
        return []
    found = []
    absent, total = figures["absent_classes"], len(figures["per_class_iou"])
    present = total - len(absent)
    if absent and present > 0:
        found.append(
            f"not in the labels of {figures['split']}, so that nothing is known of {_them(absent)}: "
            f"{_listed(absent, limit)}"
        )
    if present == 0:
        found.append(f"no pixel of {figures['split']} counts: there is nothing to score")
    elif present == 1:
        found.append(
            f"the labels of {figures['split']} have a single class: to call everything by its name is right "
            "everywhere, and the scores say nothing about telling classes apart"
        )
    if never := figures["never_predicted"]:
        found.append(f"never predicted: {_listed(never, limit)}")
    return found


def _listed(names: Sequence[str], limit: int) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
