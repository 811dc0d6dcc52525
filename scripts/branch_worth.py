"""What each part of the block is worth in a trained network: by class, and by size of region.

    python -m scripts.branch_worth runs/street/last.safetensors --data camvid:PATH --split test --out runs/worth

The network is scored as it is, and with the middle range, the long range, the gate or the whole block switched off.
Regions are the connected regions of the true labels; a region's size is its share of the picture, and its recall the
share of its pixels that are right, so that a small region counts as much as a large one. OUT gets table.md, table.json,
worth.png (what each class and each size of region loses) and pictures.png: the pictures that lose most without the long
range, and without the middle range.

This is what a part does in a network that was trained with it. A network trained without it would make up for some of
the loss.
"""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.catalogue import open_dataset, short_name
from ordnet.data.dataset import Dataset
from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import Evaluation, evaluate_network, refuse_other_classes
from ordnet.files import write_atomically, write_text
from ordnet.inference.parser import find
from ordnet.model import checkpoint
from ordnet.model.network import Network
from ordnet.model.pixels import KnownSize, known_size
from ordnet.picture.charts import OURS, chart
from ordnet.picture.grid import Cell, cell_size, fitted, grid
from ordnet.picture.overlay import connected, overlay

PARTS = {"middle": "the middle range", "long": "the long range", "gate": "the gate", "block": "the whole block"}
SIZES = {"under 0.1 %": 0.001, "0.1 to 1 %": 0.01, "1 to 10 %": 0.1, "over 10 %": 1.01}
"""Upper bounds of a region's share of its picture."""
LEAST = 12
"""Regions of fewer pixels are mostly slips of the annotator."""
DRAWN = 3
"""So many pictures are drawn for each branch."""


@dataclass
class Scored:
    """One way to run the network, with all that is kept of it."""

    evaluation: Evaluation
    recalls: dict[str, list[float]] = field(default_factory=lambda: {size: [] for size in SIZES})
    """Of every region, by size."""
    right: dict[int, float] = field(default_factory=dict)
    """Pixel accuracy of each picture, by its place in the data set."""

    def recall(self, size: str) -> float | None:
        values = self.recalls[size]
        return float(np.mean(values)) if values else None


def region_recalls(truth: np.ndarray, labels: np.ndarray) -> dict[str, list[float]]:
    """The share of right pixels in every connected region of the truth (H, W), by the region's size."""
    regions = connected(truth).ravel()
    counts = np.bincount(regions, minlength=truth.size)
    hits = np.bincount(regions, weights=(truth == labels).ravel(), minlength=truth.size)
    found: dict[str, list[float]] = {size: [] for size in SIZES}
    for region in np.flatnonzero(counts >= LEAST):
        if truth.flat[region] == IGNORE:  # a region is numbered by its first pixel
            continue
        share = counts[region] / truth.size
        size = next(name for name, bound in SIZES.items() if share < bound)
        found[size].append(float(hits[region] / counts[region]))
    return found


def score(net: Network, dataset: Dataset, known: KnownSize) -> Scored:
    recalls: dict[str, list[float]] = {size: [] for size in SIZES}
    right: dict[int, float] = {}

    def look(index: int, image: np.ndarray, truth: np.ndarray, labels: np.ndarray) -> None:
        counting = truth != IGNORE
        if counting.any():
            right[index] = float((truth == labels)[counting].mean())
        for size, values in region_recalls(truth, labels).items():
            recalls[size] += values

    return Scored(evaluate_network(net, dataset, look=look, known=known), recalls, right)


def score_parts(net: Network, dataset: Dataset, known: KnownSize) -> dict[str, Scored]:
    """The network as it is ("whole"), and without each part that its block has."""
    print("as it is …", file=sys.stderr)
    found, block = {"whole": score(net, dataset, known)}, net.block
    for part, words in PARTS.items():
        try:
            net.block = block.without(part)
        except OrdnetError:  # it has no such part
            continue
        print(f"without {words} …", file=sys.stderr)
        try:
            found[part] = score(net, dataset, known)
        finally:
            net.block = block
    if len(found) == 1:
        raise OrdnetError("the model has no omni-range block: there is nothing to switch off")
    return found


def tables(found: dict[str, Scored]) -> tuple[str, dict[str, Any]]:
    """Markdown, and the same as plain values. Differences are in points, below zero where something is lost."""
    whole, parts = found["whole"], [part for part in found if part != "whole"]
    figures = {part: scored.evaluation.figures() for part, scored in found.items()}
    first = whole.evaluation
    lines = [
        f"{first.data} {first.split}, {first.images} pictures, protocol {first.protocol}; "
        "change in points without a part",
        "",
        "| | as it is | " + " | ".join(f"without {PARTS[part]}" for part in parts) + " |",
        "| --- | ---: |" + " ---: |" * len(parts),
    ]

    def row(name: str, values: dict[str, float | None]) -> str:
        base = values["whole"]
        cells = ["–" if base is None else f"{base:.4f}"]
        for part in parts:
            value = values[part]
            cells.append("–" if value is None or base is None else f"{100 * (value - base):+.2f}")
        return f"| {name} | " + " | ".join(cells) + " |"

    for key, words in (("miou", "mIoU"), ("pixel_accuracy", "pixel accuracy")):
        lines.append(row(words, {part: figures[part][key] for part in found}))
    for name in first.classes.names:
        lines.append(row(name, {part: figures[part]["per_class_iou"][name] for part in found}))
    for size in SIZES:
        name = f"recall of regions of {size} ({len(whole.recalls[size]):,})"
        lines.append(row(name, {part: found[part].recall(size) for part in found}))
    plain = {
        part: {**figures[part], "region_recall": {size: found[part].recall(size) for size in SIZES}} for part in found
    }
    return "\n".join(lines) + "\n", plain


def draw_worth(path: Path, found: dict[str, Scored], data: str) -> None:
    """Points that each class and each size of region loses without a part: a panel per part, all on one scale."""
    whole, names = found["whole"], list(found["whole"].evaluation.classes.names)
    shown = {part: words for part, words in PARTS.items() if part in found and part != "block"}
    lost: dict[str, list[float]] = {}
    for part in shown:
        before, after = whole.evaluation.confusion.iou(), found[part].evaluation.confusion.iou()
        recalls = [(whole.recall(size), found[part].recall(size)) for size in SIZES]
        by_size = [float("nan") if one is None or other is None else other - one for one, other in recalls]
        lost[part] = [100 * value for value in (*(after - before), *by_size)]
    rows = [*names, *(f"regions {size}" for size in SIZES)]
    with chart(path, 3.1 * len(shown) + 2.2, 0.3 * len(rows) + 1.6) as figure:
        figure.suptitle(
            f"Change in points without a part: IoU by class, recall by size of region ({data} {whole.evaluation.split})"
        )
        axes = figure.subplots(1, len(shown), squeeze=False, sharex=True, sharey=True)[0]
        for axis, (part, words) in zip(axes, shown.items(), strict=True):
            values = np.nan_to_num(lost[part])
            axis.barh(range(len(rows)), values, color=np.where(values < 0, OURS, "#c2593f"))
            axis.axvline(0, color="#444", linewidth=0.8)
            axis.axhline(len(names) - 0.5, color="#999", linewidth=0.8, linestyle=":")
            axis.set_title(f"without {words}", fontsize=11)
            axis.set_yticks(range(len(rows)), rows)
            axis.grid(axis="x", alpha=0.25)
        axes[0].invert_yaxis()


def draw(path: Path, net: Network, dataset: Dataset, found: dict[str, Scored], known: KnownSize) -> None:
    """The pictures that lose most without one branch: picture, truth, whole network, without the branch."""
    whole, rows, block = found["whole"], [], net.block
    chosen = [
        (part, index)
        for part in ("long", "middle")
        if part in found
        for index in sorted(whole.right, key=lambda i, p=part: found[p].right[i] - whole.right[i])[:DRAWN]  # type: ignore[misc]
    ]
    colours = dataset.classes.colours
    cell = cell_size([dataset.image(index).size for _, index in chosen], 4)
    for part, index in chosen:
        with_block = parsed(net, dataset, index, known)
        net.block = block.without(part)
        less = parsed(net, dataset, index, known)
        net.block = block
        photo = fitted(np.asarray(dataset.image(index)), cell)
        truth, with_it, without_it = (fitted(array, cell) for array in (dataset.label(index), with_block, less))
        rows.append(
            [
                Cell(photo, str(dataset.ids[index]), strong=False),
                Cell(overlay(photo, truth, colours, 0.6)),
                Cell(overlay(photo, with_it, colours, 0.6), f"{whole.right[index]:.1%}"),
                Cell(
                    overlay(photo, without_it, colours, 0.6),
                    f"without {PARTS[part]}: {found[part].right[index]:.1%}",
                    strong=False,
                ),
            ]
        )
    key = list(zip(dataset.classes.names, colours, strict=True))
    sheet = grid(rows, ["picture", "truth", "the network as it is", "one branch switched off"], cell[0], key)
    write_atomically(path, sheet.save)


def parsed(net: Network, dataset: Dataset, index: int, known: KnownSize) -> np.ndarray:
    """The class ids (H, W) of one picture."""
    kept: list[np.ndarray] = []
    evaluate_network(net, One(dataset, index), look=lambda *shown: kept.append(shown[3]), known=known)
    return kept[0]


class One(Dataset):
    """A single picture of a data set."""

    def __init__(self, dataset: Dataset, index: int) -> None:
        self.dataset, self.index = dataset, index
        self.name, self.split, self.classes, self.rule = dataset.name, dataset.split, dataset.classes, dataset.rule
        self.ids = [dataset.ids[index]]

    def image(self, index: int) -> Any:
        return self.dataset.image(self.index)

    def label(self, index: int) -> Any:
        return self.dataset.label(self.index)

    def files(self, index: int) -> tuple[str, str]:
        return self.dataset.files(self.index)


def main(words: list[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint, or a shipped model's name")
    parser.add_argument("--data", required=True, help="the data set, as NAME or NAME:PATH")
    parser.add_argument("--split", default="val")
    parser.add_argument("--out", type=Path, required=True, help="a folder for tables and pictures")
    given = parser.parse_args(words)
    loaded = checkpoint.load(find(given.model))
    dataset = open_dataset(given.data, given.split)
    refuse_other_classes(loaded.classes, dataset.classes.names)
    known = known_size(None, loaded.about)
    found = score_parts(loaded.net, dataset, known)
    text, plain = tables(found)
    given.out.mkdir(parents=True, exist_ok=True)
    write_text(given.out / "table.md", text)
    write_text(given.out / "table.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    draw_worth(given.out / "worth.png", found, short_name(given.data))
    draw(given.out / "pictures.png", loaded.net, dataset, found, known)
    print(text)


if __name__ == "__main__":
    try:
        main()
    except OrdnetError as error:
        sys.exit(f"ordnet: {error}")
