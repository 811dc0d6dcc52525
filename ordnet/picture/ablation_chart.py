"""Bars with their spread: one panel per measure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ordnet.picture.charts import chart

_COLOURS = ("#1f6f8b", "#7a9e7e", "#d9a441", "#b5533c")


def ablation_chart(
    path: Path, title: str, names: Sequence[str], measures: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """`measures` gives (mean, spread) of each name, means from 0 to 1; names go from top to bottom."""
    with chart(path, 2.9 * len(measures) + 2.2, 0.5 * len(names) + 1.7) as figure:
        figure.suptitle(title, fontsize=12)
        axes = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for place, (axis, (measure, pairs)) in enumerate(zip(axes, measures.items(), strict=True)):
            means, spreads = zip(*pairs, strict=True)
            places = range(len(names))
            axis.barh(places, means, xerr=spreads, color=_COLOURS[place % len(_COLOURS)], capsize=3, height=0.65)
            for y, (value, spread) in enumerate(pairs):
                axis.text(value + spread + 0.02, y, f"{value:.3f}", va="center", fontsize=9)
            axis.set_xlim(0, 1.22)
            axis.set_xticks([0, 0.5, 1])
            axis.set_title(measure, fontsize=11)
            axis.set_yticks(places, names)
        axes[0].invert_yaxis()
