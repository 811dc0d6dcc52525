"""Every chart of the package, in one style: training curves, confusions, correlations, benchmarks, ablations."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ordnet.files import write_atomically
from ordnet.picture.overlay import font_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {"miou": "mIoU", "pixel_accuracy": "pixel accuracy"}
VITALS = {
    "added": "added / input",
    "varying": "share varying over space",
    "gate_mean": "gate, mean",
    "gate_spread": "gate, spread",
    "gate_gradient": "gate, gradient that passes",
}
"""Keys of a run's epoch records that `curves` draws, with the words beside their lines."""
OURS, OTHERS = "#1f6f8b", "#b8c4c9"
"""Colours of a benchmark's bars."""
_COLOURS = ("#1f6f8b", "#7a9e7e", "#d9a441", "#b5533c")
"""Colours of an ablation's panels."""
_LEAST = 0.02
"""An ablation's scale never shows less than this: smaller differences are noise and should look like it."""
_NAMED = 60
"""A confusion matrix of up to this many classes has their names at its axes."""
_NUMBERED = 15
"""Up to this many classes have their shares written into the cells."""

_STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "savefig.dpi": 130,
    "figure.constrained_layout.use": True,
}


@contextmanager
def chart(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """An empty figure of this size in inches to draw into; it is saved to `path` at the end of the block.

    No window system is needed, and the style holds inside the block only.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height))
        yield figure
        _take_letters(figure)
        with warnings.catch_warnings():
            # a computer may have no font for a letter: it shows as a box, which says enough
            warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)
            write_atomically(path, figure.savefig)


def _take_letters(figure: "Figure") -> None:
    """Give words that matplotlib's own font has no letters for, such as Chinese ones, a font of this computer."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and not text.get_text().isascii()]
    if texts:
        file = font_file("".join(sorted({letter for text in texts for letter in text.get_text()})))
        for text in texts:
            text.set_fontfamily(["DejaVu Sans", FontProperties(fname=file).get_name()])


def correlation_maps(matrices: Mapping[int, np.ndarray], path: Path, title: str) -> None:
    """One heat map for each number of patches along a side; matrices (p², p²) with values 0..1, darker is larger.

    All maps share one scale from 0 to the largest value. Cells show their numbers where there are few (p ≤ 2).
    """
    top = max((float(np.nanmax(m)) for m in matrices.values() if not np.isnan(m).all()), default=1.0)
    with chart(path, 4.6 * len(matrices) + 0.8, 4.9) as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, len(matrices), squeeze=False)[0]
        for axis, (patches, matrix) in zip(axes, matrices.items(), strict=True):
            shown = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=top)
            axis.set_title(f"{patches} × {patches} patches")
            axis.set_xlabel("patch, by rows")
            ticks = range(0, len(matrix), 1 if patches <= 2 else patches)  # where a row of patches begins
            axis.set_xticks(ticks, [str(tick + 1) for tick in ticks])
            axis.set_yticks(ticks, [str(tick + 1) for tick in ticks])
            if patches <= 2:
                for (m, n), value in np.ndenumerate(matrix):
                    ink = "white" if value > 0.6 * top else "black"
                    axis.text(n, m, f"{value:.3f}", ha="center", va="center", color=ink)
        axes[0].set_ylabel("patch, by rows")
        figure.colorbar(shown, ax=list(axes), label="correlation", shrink=0.8)


def curves(epochs: list[dict[str, Any]], path: Path) -> None:
    """Draw the log's epoch records; panels without anything to show are left out."""
    losses = {key: key.replace("_", " ") for key in ("loss", "cross_entropy", "lovasz", "auxiliary")}
    by_range = {f"miou_by_range.{name}": f"mIoU, {name}" for e in epochs for name in e.get("miou_by_range", {})}
    panels = [("loss", losses), ("scores", {**SCORES, **by_range}), ("the block's vitals", VITALS)]
    shown = [(title, lines) for title, lines in panels if any(_points(epochs, key) for key in lines)]
    with chart(path, 4.6 * len(shown), 4.4) as figure:
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
            # below: five lines leave no corner free
            axis.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncol=2)


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


def confusion_chart(matrix: np.ndarray, names: Sequence[str], title: str, path: Path) -> None:
    """Counts (K, K), rows the truth: each row drawn as shares of that class's pixels."""
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals > 0)
    side = min(4.0 + 0.32 * len(names), 14.0)
    with chart(path, side + 1.2, side) as figure:
        axis = figure.subplots()
        axis.set_title(title)
        shown = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if len(names) <= _NAMED:
            # at the head of the names: at the middle of an axis, the longest name would keep the word far from the rest
            for words, corner, place in (("is", (0, 1), (-9, 4)), ("taken for", (0, 0), (-9, -9))):
                axis.annotate(
                    words, corner, place, "axes fraction", "offset points", ha="right", style="italic",
                    va="bottom" if corner[1] else "top",
                )  # fmt: skip
            size = 9 if len(names) <= 25 else 6
            axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
            axis.set_yticks(range(len(names)), names, fontsize=size)
        else:
            axis.set_xlabel("taken for")
            axis.set_ylabel("is")
        if len(names) <= _NUMBERED:
            for (row, column), value in np.ndenumerate(shares):
                if value >= 0.005:
                    ink = "white" if value > 0.6 else "black"
                    axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
        figure.colorbar(shown, ax=axis, label="share of the class's pixels", shrink=0.7)


def bars(path: Path, title: str, names: Sequence[str], measures: Mapping[str, Sequence[float | None]]) -> None:
    """One panel of horizontal bars per measure, the first name (ours) on top and in colour; shorter is better."""
    with chart(path, 3.4 * len(measures) + 1.6, 0.5 * len(names) + 1.4) as figure:
        figure.suptitle(title)
        axes = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for axis, (measure, values) in zip(axes, measures.items(), strict=True):
            known = [value or 0.0 for value in values]
            drawn = axis.barh(range(len(names)), known, color=[OURS] + [OTHERS] * (len(names) - 1))
            axis.bar_label(drawn, [_short(value) for value in values], padding=3, fontsize=9)
            axis.set_xlim(0, max(known) * 1.25)
            axis.set_xlabel(measure)
            axis.set_yticks(range(len(names)), names)
        axes[0].invert_yaxis()


def growth(
    path: Path, title: str, lines: Mapping[str, Sequence[tuple[float, float]]], exponents: Mapping[str, float]
) -> None:
    """Seconds over positions, both axes logarithmic; each line labelled with its fitted exponent."""
    with chart(path, 6.4, 4.4) as figure:
        axis = figure.subplots()
        axis.set_title(title)
        for colour, (name, points) in zip((OURS, "#c2593f"), lines.items(), strict=False):
            label = f"{name}: positions$^{{{exponents[name]:.2f}}}$" if name in exponents else name
            axis.plot(*zip(*points, strict=True), marker="o", color=colour, label=label)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("positions of the feature map")
        axis.set_ylabel("seconds")
        axis.grid(True, which="both", alpha=0.25)
        axis.legend()


def _short(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ablation_chart(
    path: Path, title: str, names: Sequence[str], measures: Mapping[str, Sequence[Sequence[float]]]
) -> None:
    """Seeds as dots, their mean as a line: one panel per measure, all on one scale.

    `measures` gives the seeds' values of each name; names go from top to bottom.

    Dots, not bars: where networks differ by a point the scale has to leave out zero.
    """
    from matplotlib.ticker import MaxNLocator

    every = [value for rows in measures.values() for values in rows for value in values]
    low, high = min(every, default=0.0), max(every, default=1.0)
    span = max(high - low, _LEAST)
    middle = (low + high) / 2
    left, right = middle - 0.6 * span, middle + 0.85 * span  # room for the means' numbers on the right
    # of what is drawn, not of the values: where these are close together so would be the ticks
    marks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(left, right)
    ticks = [tick for tick in marks if max(left, 0) <= tick <= min(right, 1)]
    with chart(path, max(7.0, 2.9 * len(measures) + 2.2), 0.5 * len(names) + 1.9) as figure:
        figure.suptitle(title, fontsize=12)
        axes = figure.subplots(1, len(measures), squeeze=False, sharex=True, sharey=True)[0]
        for place, (axis, (measure, rows)) in enumerate(zip(axes, measures.items(), strict=True)):
            colour = _COLOURS[place % len(_COLOURS)]
            for y, values in ((y, values) for y, values in enumerate(rows) if values):
                mean = sum(values) / len(values)
                axis.plot(values, [y] * len(values), "o", color=colour, alpha=0.55, markersize=7, markeredgewidth=0)
                axis.plot([mean, mean], [y - 0.28, y + 0.28], color=colour, linewidth=2.5)
                axis.text(max(values) + 0.05 * span, y, f"{mean:.3f}", va="center", fontsize=9)
            axis.set_xlim(left, right)
            axis.set_xticks(ticks)
            axis.set_ylim(len(names) - 0.5, -0.5)
            axis.set_title(measure, fontsize=11)
            axis.set_yticks(range(len(names)), names)
            axis.grid(axis="y", linestyle=":", alpha=0.5)


def accuracy_over_time(path: Path, title: str, lines: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> None:
    """mIoU over CPU seconds; each name has a colour, and a line per seed."""
    import matplotlib

    colours = matplotlib.colormaps["tab10"].colors  # type: ignore[attr-defined]
    with chart(path, 7.6, 4.6) as figure:
        axis = figure.subplots()
        axis.set_title(title, fontsize=10)
        for place, (name, seeds) in enumerate(lines.items()):
            for number, points in enumerate(seeds):
                axis.plot(
                    *zip(*points, strict=True), marker=".", linewidth=1.4, color=colours[place % len(colours)],
                    label=None if number else name,
                )  # fmt: skip
        axis.set_xlabel("seconds of CPU time")
        axis.set_ylabel("mIoU")
        axis.set_xlim(left=0)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=9)


_PLACES = [
    (offset, side)
    for height in (4, -12, 16, -24, 28, -36)
    for offset, side in (((9, height), "left"), ((-9, height), "right"))
]
"""Where a name may stand beside its mean, in points, the best place first."""


def cost_chart(
    path: Path,
    title: str,
    names: Sequence[str],
    scores: Sequence[Sequence[float]],
    costs: Mapping[str, Sequence[float]],
) -> None:
    """mIoU against cost, one panel per kind of cost: seeds as dots, their mean named; up and to the left is better.

    The last name is ours and in colour.
    """
    with chart(path, 5.4 * len(costs), 4.6) as figure:
        figure.suptitle(title, fontsize=11)
        axes = figure.subplots(1, len(costs), squeeze=False, sharey=True)[0]
        for axis, (words, values) in zip(axes, costs.items(), strict=True):
            for place, (name, seeds, cost) in enumerate(zip(names, scores, values, strict=True)):
                if not seeds:
                    continue
                colour = OURS if place == len(names) - 1 else "#6b7b82"
                mean = sum(seeds) / len(seeds)
                axis.plot([cost] * len(seeds), seeds, ".", color=colour, alpha=0.5)
                axis.plot(cost, mean, "D", color=colour, markersize=7)
                axis.annotate(name, (cost, mean), xytext=(7, 4), textcoords="offset points", fontsize=9, color=colour)
            axis.set_xlabel(words)
            axis.set_xlim(left=0, right=1.25 * max(values))
            axis.grid(alpha=0.25)
        axes[0].set_ylabel("mIoU")
        figure.draw_without_rendering()  # places are known once everything has its size
        for axis in axes:
            _apart(axis)


def _apart(axis: Any) -> None:
    """Move names that would be written over one another, or over another mean, to where there is room."""
    from matplotlib.transforms import Bbox

    points = [axis.transData.transform(note.xy) for note in axis.texts]
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in points]
    for note, own in zip(axis.texts, list(taken), strict=True):
        others = [box for box in taken if box is not own]
        for offset, side in _PLACES:
            note.set_position(offset)
            note.set_horizontalalignment(side)
            box = note.get_window_extent()
            if axis.bbox.x0 < box.x0 and box.x1 < axis.bbox.x1 and not any(box.overlaps(other) for other in others):
                break
        taken.append(box)
