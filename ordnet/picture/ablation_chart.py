"""Seeds as dots, their mean as a line: one panel per measure, all on one scale."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ordnet.picture.charts import chart

_COLOURS = ("#1f6f8b", "#7a9e7e", "#d9a441", "#b5533c")
_LEAST = 0.02
"""The scale never shows less than this: smaller differences are noise and should look like it."""


def ablation_chart(
    path: Path, title: str, names: Sequence[str], measures: Mapping[str, Sequence[Sequence[float]]]
) -> None:
    """`measures` gives the seeds' values of each name; names go from top to bottom.

    Dots, not bars: where networks differ by a point the scale has to leave out zero.
    """
    from matplotlib.ticker import MaxNLocator

    every = [value for rows in measures.values() for values in rows for value in values]
    low, high = min(every, default=0.0), max(every, default=1.0)
    span = max(high - low, _LEAST)
    locator = MaxNLocator(4, steps=[1, 2, 5, 10])
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
            axis.set_xlim(low - 0.1 * span, high + 0.35 * span)
            axis.set_xticks([tick for tick in locator.tick_values(low, high) if low - 0.1 * span <= tick <= 1])
            axis.set_ylim(len(names) - 0.5, -0.5)
            axis.set_title(measure, fontsize=11)
            axis.set_yticks(range(len(names)), names)
            axis.grid(axis="y", linestyle=":", alpha=0.5)
