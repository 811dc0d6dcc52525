"""Charts: what is written in them can be read."""

import warnings
from itertools import combinations

import numpy as np
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
