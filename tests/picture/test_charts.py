"""Charts: what is written in them can be read."""

from itertools import combinations

from ordnet.picture import charts


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
