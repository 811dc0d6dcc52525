"""Charts: what is written in them can be read."""

import warnings
from itertools import combinations

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties, fontManager

from ordnet.picture import charts
from ordnet.picture.overlay import font_file


def test_names_of_equal_points_are_not_written_over_one_another(tmp_path, monkeypatch):
    seen = []
    usual = charts._apart
    monkeypatch.setattr(
        charts, "_apart", lambda axis: (usual(axis), seen.extend(note.get_window_extent() for note in axis.texts))
    )
    names = ["pyramid pooling", "InterlacedSSA", "softmax non-local", "ORDNet"]
    charts.cost_chart(tmp_path / "cost.png", "title", names, [[0.5, 0.6]] * 4, {"GFLOPs": [1.0, 1.0, 1.01, 0.99]})
    assert (tmp_path / "cost.png").stat().st_size
    assert len(seen) == 4
    assert not any(one.overlaps(other) for one, other in combinations(seen, 2))


def test_names_in_other_scripts_take_a_font_of_this_computer(tmp_path, monkeypatch):
    """Where there is one; where there is none a chart is drawn all the same, and nobody is warned of each letter."""
    found = {}
    usual = charts._take_letters
    monkeypatch.setattr(
        charts,
        "_take_letters",
        lambda figure: (usual(figure), found.update({t.get_text(): t.get_fontfamily() for t in figure.findobj()
                                                     if hasattr(t, "get_fontfamily")})),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        charts.confusion_chart(np.eye(3), ["天空", "Straße", "road"], "街景", tmp_path / "confusion.png")
    file = font_file("天空街景Straße")
    assert found["天空"] == found["街景"] == ["DejaVu Sans", FontProperties(fname=file).get_name()]
    assert found["road"] != found["天空"]
    assert any(entry.fname == file for entry in fontManager.ttflist)


@pytest.fixture
def drawn(monkeypatch):
    """The figure that a chart draws, with everything in its place."""
    found = []
    usual = charts._take_letters
    monkeypatch.setattr(charts, "_take_letters", lambda figure: (usual(figure), found.append(figure)))

    def figure():
        found[-1].draw_without_rendering()
        return found[-1]

    return figure


@pytest.mark.parametrize(
    ("low", "high"), [(0.6825, 0.6838), (0.68, 0.68), (0.55, 0.61), (0.001, 0.002), (0.999, 0.9995), (0.0, 1.0)]
)
@pytest.mark.parametrize("panels", [1, 3])
def test_ticks_of_an_ablation_can_be_read(low, high, panels, tmp_path, drawn):
    """However close together the values are: the axis is widened then, and the ticks are those of what is drawn."""
    measures = {f"measure {k}": [[low, high], [low, low]] for k in range(panels)}
    charts.ablation_chart(tmp_path / "seeds.png", "title", ["one", "another"], measures)
    for axis in drawn().axes:
        left, right = axis.get_xlim()
        ticks = axis.get_xticks()
        assert len(ticks) >= 2
        assert all(max(left, 0) <= tick <= min(right, 1) for tick in ticks)
        if low > 0.1 and high < 0.9:  # spread over what is drawn, not over the values alone
            assert ticks[-1] - ticks[0] > 0.4 * (right - left)
        assert left < low and high < right
        boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("count", [3, 21, 60])
def test_axis_words_of_a_confusion_stand_near_the_names(count, tmp_path, drawn):
    names = [f"class {k}" for k in range(count - 1)] + ["a class of a very long name"]
    charts.confusion_chart(np.eye(count), names, "title", tmp_path / "confusion.png")
    figure = drawn()
    axis = figure.axes[0]
    words = {note.get_text(): note.get_window_extent() for note in axis.texts if note.get_text() in ("is", "taken for")}
    first_is, first_taken = (
        labels[0].get_window_extent() for labels in (axis.get_yticklabels(), axis.get_xticklabels())
    )
    near = 30 * figure.dpi / 72 + 0.5 * axis.bbox.height / count
    assert abs(words["is"].x1 - first_is.x1) < near and 0 < words["is"].y0 - first_is.y1 < near
    assert abs(words["taken for"].y1 - first_taken.y1) < near and 0 < first_taken.x0 - words["taken for"].x1 < near
    others = [label.get_window_extent() for label in (*axis.get_yticklabels(), *axis.get_xticklabels(), axis.title)]
    assert not any(box.overlaps(other) for box in words.values() for other in others)
