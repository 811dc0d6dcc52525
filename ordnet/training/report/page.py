"""The report of one run: plain figures and arrays in, one HTML page out."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ordnet.evaluation.confusion import Confusion, classes_words, other_rule, remarks
from ordnet.picture import page
from ordnet.picture.attention_map import AttentionRow
from ordnet.picture.charts import SCORES, VITALS, curves
from ordnet.picture.overlay import Colour, marked, most_frequent, overlay
from ordnet.picture.page import Bar, Section, confusion_table

_LEGIBLE = 40
"""A confusion matrix of more classes cannot be read on a page."""
_MISTAKES = 15
Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Example:
    """One picture of the split that was evaluated."""

    name: str
    about: str
    image: np.ndarray
    """(H, W, 3) uint8."""
    truth: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Shares:
    """How often each class occurs in the training split."""

    pixels: Sequence[float]
    """Share of the pixels that count, in class id order."""
    images: Sequence[int]
    """Labels in which the class occurs."""
    note: str


@dataclass(frozen=True)
class RunReport:
    """All that the page shows, in its order; what is empty gets no section."""

    title: str
    names: Sequence[str]
    colours: Sequence[Colour]
    ranges: Sequence[str] | None
    figures: dict[str, Any]
    """The figures of the last evaluation."""
    headline: str
    epochs: list[dict[str, Any]]
    """The log's epoch records."""
    matrix: np.ndarray
    """Confusion (K, K), rows the truth."""
    best: Sequence[Example] = ()
    worst: Sequence[Example] = ()
    examples_note: str = ""
    attention: Sequence[tuple[AttentionRow, str]] = ()
    """Positions and their captions."""
    vitals: Sequence[str] = ()
    """Sentences."""
    worth: Rows = ()
    """What each part of the block contributes: words, mIoU without it, the difference."""
    worth_note: str = ""
    data: Rows = ()
    shares: Shares | None = None
    changed: Rows = ()
    """Settings that differ from the defaults: name, value, default."""
    settings: str = ""
    """All of them, as YAML."""
    cost: Rows = ()
    environment: Rows = field(default=())


def report_page(run: RunReport) -> str:
    """The page, as HTML."""
    return page.page(run.title, list(_sections(run)), run.headline)


def _sections(run: RunReport) -> Iterator[Section]:
    yield page.section("Scores", page.tiles(_headline(run.figures)), *map(page.paragraph, _score_words(run.figures)))
    with tempfile.TemporaryDirectory() as folder:
        yield page.section("Curves", page.grid(*_curves(run.epochs, Path(folder))))
    yield page.section("IoU by class", page.bars(_iou_bars(run)), _by_class(run))
    yield page.section("Confusions", _confusions(run))
    if run.best or run.worst:
        yield page.section(
            "Best and worst pictures",
            page.paragraph(run.examples_note),
            *(_example(run, example, "Best") for example in run.best),
            *(_example(run, example, "Worst") for example in run.worst),
        )
    if run.attention:
        yield page.section("Attention", *(page.attention(row, caption) for row, caption in run.attention))
    if run.vitals:
        yield page.section("Is the block alive?", *map(page.paragraph, run.vitals), _worth(run))
    if run.data:
        yield page.section("Data", page.table(run.data), _shares(run))
    yield page.section("Settings", _changed(run.changed), page.folded("All settings, as YAML", run.settings))
    if run.cost:
        yield page.section("Cost", page.table(run.cost))
    if run.environment:
        yield page.section("Environment", page.table(run.environment))


def _headline(figures: dict[str, Any]) -> list[tuple[str, str]]:
    known = {
        "mIoU": figures.get("miou"),
        "pixel accuracy": figures.get("pixel_accuracy"),
        "mean accuracy of the classes": figures.get("mean_accuracy"),
        **{f"mIoU, {name} range": value for name, value in figures.get("miou_by_range", {}).items()},
    }
    return [(words, _number(value)) for words, value in known.items()]


def _score_words(figures: dict[str, Any]) -> list[str]:
    """Which classes the mean is over, and what the scores leave out."""
    words = []
    if figures.get("per_class_iou"):
        over = f"the mIoU is the mean over {classes_words(figures)}" if "miou_classes" in figures else ""
        words = [over if figures.get("miou") is not None else "no pixel counts", other_rule(figures)]
    # "mIoU" begins with a small letter wherever it stands
    return [f"{sentence}." if sentence.startswith("mIoU") else f"{sentence[0].upper()}{sentence[1:]}."
            for sentence in [*filter(None, words), *remarks(figures)]]  # fmt: skip


def _by_class(run: RunReport) -> str:
    """Precision, recall and F1 beside the IoU."""
    confusion = Confusion(len(run.names), run.matrix)
    columns = (confusion.iou(), confusion.precision(), confusion.recall(), confusion.f1())
    rows = [(name, *(_number(_known(values[c]), 3) for values in columns)) for c, name in enumerate(run.names)]
    note = "Precision: how much of what was given to a class is its own. Recall: how much of the class was found."
    shown = page.table(rows, ("class", "IoU", "precision", "recall", "F1 (Dice)"))
    # on a narrow screen the table scrolls by itself
    return f'<div class="wide"><div tabindex="0">{shown}</div></div>{page.paragraph(note)}'


def _curves(epochs: list[dict[str, Any]], folder: Path) -> Iterator[str]:
    """One chart each, so that a phone can show them below each other."""
    scores, vitals = {*SCORES, "miou_by_range"}, set(VITALS)
    described = {"loss": "Loss and its parts", "scores": "Scores", "vitals": "What the block does"}
    for name, caption in described.items():
        records = [
            {key: value for key, value in record.items() if key == "epoch" or _panel(key, scores, vitals) == name}
            for record in epochs
        ]
        if any(len(record) > 1 for record in records):
            path = folder / f"{name}.svg"
            curves(records, path)
            yield page.figure(path, alt=f"{caption} over the epochs", chart=True)


def _panel(key: str, scores: set[str], vitals: set[str]) -> str:
    return "scores" if key in scores else "vitals" if key in vitals else "loss"


def _iou_bars(run: RunReport) -> list[Bar]:
    """Best first; classes that do not occur last."""
    iou = [_known(value) for value in Confusion(len(run.names), run.matrix).iou()]
    order = sorted(range(len(run.names)), key=lambda c: -1.0 if (value := iou[c]) is None else value, reverse=True)
    return [
        Bar(run.names[c], iou[c], _number(iou[c], 3), run.colours[c], f"{run.ranges[c]} range" if run.ranges else "")
        for c in order
    ]


def _confusions(run: RunReport) -> str:
    totals, all_pixels = run.matrix.sum(1), max(int(run.matrix.sum()), 1)
    rows = [
        (
            f"{run.names[truth]} taken for {run.names[taken_for]}",
            f"{pixels / totals[truth]:.1%} of {run.names[truth]}",
            f"{pixels / all_pixels:.2%}",
        )
        for truth, taken_for, pixels in most_frequent(run.matrix, _MISTAKES)
    ]
    if not rows:
        single = (totals > 0).sum() < 2
        words = "there is a single class in these labels" if single else "every pixel that counts is right"
        return page.paragraph(f"There are none: {words}.")
    shown = page.table(rows, ("most frequent first", "of the class", "of all pixels"))
    if len(run.names) > _LEGIBLE:
        return shown + page.paragraph(f"A matrix of {len(run.names)} classes would not be legible here.")
    words = "Each row is a class; its cells are per cent of that class's pixels. Blank cells are below 0.5."
    return shown + confusion_table(run.matrix, run.names) + page.paragraph(words)


def _example(run: RunReport, example: Example, kind: str) -> str:
    present = sorted({*np.unique(example.truth).tolist(), *np.unique(example.labels).tolist()})
    pictures = {
        "picture": example.image,
        "truth": overlay(example.image, example.truth, run.colours, 0.6),
        "parse": overlay(example.image, example.labels, run.colours, 0.6),
        "wrong pixels in red": marked(example.image, example.truth, example.labels, len(run.names)),
    }
    shown = "".join(page.figure(Image.fromarray(picture), caption) for caption, picture in pictures.items())
    key = page.legend((run.names[c], run.colours[c]) for c in present if c < len(run.names))
    about = page.paragraph(example.about)
    return f"<article><h3>{kind}: {page.text(example.name)}</h3>{about}{page.quad(shown)}{key}</article>"


def _worth(run: RunReport) -> str:
    if not run.worth:
        return ""
    shown = page.table(run.worth, ("", "mIoU", "difference"))
    return f"<h3>What each branch is worth</h3>{page.paragraph(run.worth_note)}{shown}"


def _shares(run: RunReport) -> str:
    if run.shares is None:
        return ""
    longest = max(run.shares.pixels, default=0.0) or 1.0
    rows = [
        Bar(name, share / longest, f"{share:.1%}", colour, f"in {images:,}")
        for name, colour, share, images in zip(
            run.names, run.colours, run.shares.pixels, run.shares.images, strict=True
        )
    ]
    return "<h3>Shares of the training pixels</h3>" + page.paragraph(run.shares.note) + page.bars(rows)


def _changed(rows: Rows) -> str:
    if not rows:
        return page.paragraph("All settings are the defaults.")
    return page.table(rows, ("changed", "here", "default"))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
