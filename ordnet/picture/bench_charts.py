"""Charts of benchmark tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ordnet.picture.charts import chart

OURS, OTHERS = "#1f6f8b", "#b8c4c9"


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
