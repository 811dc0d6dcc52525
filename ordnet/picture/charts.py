"""Charts, all in one style."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ordnet.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """An empty figure of so many inches to draw into; it is saved to `path` at the end of the block.

    No window system is needed, and the style holds inside the block only.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height))
        yield figure
        write_atomically(path, figure.savefig)


def correlation_maps(matrices: Mapping[int, np.ndarray], path: Path, title: str) -> None:
    """One heat map for each number of patches along a side; matrices (p², p²) with values 0..1, darker is larger.

    All maps share one scale from 0 to the largest value. Numbers stand in the cells where there are few (p ≤ 2).
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
