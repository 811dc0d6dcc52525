"""A confusion matrix to look at: what is taken for what."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ordnet.picture.charts import chart

_NAMED = 60
"""Up to so many classes are named at the axes."""
_NUMBERED = 15
"""Up to so many have their shares written into the cells."""


def confusion_chart(matrix: np.ndarray, names: Sequence[str], title: str, path: Path) -> None:
    """Counts (K, K), rows the truth: each row drawn as shares of that class's pixels."""
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals > 0)
    side = min(4.0 + 0.32 * len(names), 14.0)
    with chart(path, side + 1.2, side) as figure:
        axis = figure.subplots()
        axis.set_title(title)
        shown = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axis.set_xlabel("taken for")
        axis.set_ylabel("is")
        if len(names) <= _NAMED:
            size = 9 if len(names) <= 25 else 6
            axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
            axis.set_yticks(range(len(names)), names, fontsize=size)
        if len(names) <= _NUMBERED:
            for (row, column), value in np.ndenumerate(shares):
                if value >= 0.005:
                    ink = "white" if value > 0.6 else "black"
                    axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
        figure.colorbar(shown, ax=axis, label="share of the class's pixels", shrink=0.7)
