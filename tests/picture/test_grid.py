"""The figure of results: its legend, and what stands above its columns."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ordnet.evaluation import comparison
from ordnet.picture.grid import legend


@pytest.mark.parametrize("count", [1, 2, 8, 9, 10, 13, 22, 59])
@pytest.mark.parametrize("width", [90, 300, 1000, 1500])
def test_a_legend_has_no_single_name_below_a_full_row(count, width):
    key = [(f"class {k:02}", (k + 1, 100, 200)) for k in range(count)]
    picture = np.asarray(legend(key, width))
    squares = [np.argwhere((picture == colour).all(axis=2)).min(axis=0) for _, colour in key]
    lengths = np.bincount([top // 26 for top, _ in squares]).tolist()
    rows = len(lengths)
    assert lengths[0] == -(-count // rows)  # as short as so many rows can be
    assert set(lengths[:-1]) <= {lengths[0]}
    if rows > 1 and lengths[0] > 1:  # and one row fewer would be too long
        column = squares[1][1] - squares[0][1]
        assert -(-count // (rows - 1)) * column > width


def test_the_column_of_the_gate_is_called_so(monkeypatch):
    class Classes:
        names, colours = ("sky",), ((0, 0, 255),)

        def __len__(self):
            return 1

    picture = np.zeros((20, 30, 3), np.uint8)
    truth = picture[..., 0]
    fake = SimpleNamespace(
        titles=["plain", "outdoor"],
        gated=lambda: 1,
        gate=lambda pixels, height, width: np.full((height, width), 0.5),
        dataset=SimpleNamespace(classes=Classes(), image=lambda index: Image.fromarray(picture)),
        look=lambda index: comparison.Compared("a", picture, truth, [truth, truth], [1.0, 1.0]),
    )
    seen = []
    usual = comparison.grid
    monkeypatch.setattr(
        comparison, "grid", lambda rows, titles, *more: seen.append(titles) or usual(rows, titles, *more)
    )
    comparison.draw(fake, [0], gate=True)
    assert seen == [["picture", "gate of outdoor", "truth", "plain", "outdoor"]]
