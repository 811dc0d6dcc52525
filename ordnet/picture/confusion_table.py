"""A confusion matrix as part of a page: its names are text, in any script, and it follows the theme."""

from collections.abc import Sequence

import numpy as np

from ordnet.picture.page import text

_SHOWN = 0.005
"""Smaller shares are left blank."""


def confusion_table(matrix: np.ndarray, names: Sequence[str]) -> str:
    """Counts (K, K), rows the truth: each cell is a share of its row's pixels, in per cent, the darker the more."""
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals > 0)
    head = "".join(f'<th scope="col" title="{text(name)}"><span>{text(name)}</span></th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row" title="{text(name)}">{text(name)}</th>'
        f"{''.join(_cell(share, names, row, column) for column, share in enumerate(shares[row]))}</tr>"
        for row, name in enumerate(names)
    )
    return (
        '<div class="matrix" tabindex="0"><table><thead><tr><th scope="col"><small>is ↓ taken for →</small></th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(share: float, names: Sequence[str], row: int, column: int) -> str:
    if share < _SHOWN:
        return "<td></td>"
    words = "" if row == column else f' title="{text(f"{names[row]} taken for {names[column]}")}"'
    # the square root: a few per cent are already a mistake worth seeing
    return f'<td style="background:rgb(var(--heat) / {share**0.5:.2f})"{words}>{100 * share:.0f}</td>'
