"""A run's curves: loss, scores, the block's vitals, over the epochs."""

from pathlib import Path
from typing import Any

from ordnet.picture.charts import chart

SCORES = {"miou": "mIoU", "pixel_accuracy": "pixel accuracy"}
VITALS = {
    "added": "added / input",
    "varying": "share varying over space",
    "gate_mean": "gate, mean",
    "gate_spread": "gate, spread",
}


def curves(epochs: list[dict[str, Any]], path: Path) -> None:
    """Draw the log's epoch records; panels without anything to show are left out."""
    losses = {key: key.replace("_", " ") for key in ("loss", "cross_entropy", "lovasz", "auxiliary")}
    by_range = {f"miou_by_range.{name}": f"mIoU, {name}" for e in epochs for name in e.get("miou_by_range", {})}
    panels = [("loss", losses), ("scores", {**SCORES, **by_range}), ("the block's vitals", VITALS)]
    shown = [(title, lines) for title, lines in panels if any(_points(epochs, key) for key in lines)]
    with chart(path, 4.6 * len(shown), 3.8) as figure:
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for axis, (title, lines) in zip(axes, shown, strict=True):
            axis.set_title(title)
            axis.set_xlabel("epoch")
            for key, label in lines.items():
                points = _points(epochs, key)
                if points:
                    axis.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else None, label=label)
            if title == "scores":
                axis.set_ylim(0, 1)
            else:
                axis.set_ylim(bottom=0)
            axis.grid(alpha=0.25)
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            axis.legend(fontsize=9)


def _points(epochs: list[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    outer, _, inner = key.partition(".")
    points = []
    for record in epochs:
        value = record.get(outer)
        if inner and value is not None:
            value = value.get(inner)
        if value is not None:
            points.append((record["epoch"], value))
    return points
