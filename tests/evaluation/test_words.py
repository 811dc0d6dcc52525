"""What is said about scores: over which classes, and what they cannot tell."""

import numpy as np

from ordnet.data.labels import Classes
from ordnet.evaluation.confusion import Confusion, miou_words, other_rule, remarks
from ordnet.evaluation.evaluate import Evaluation


def figures(matrix, names="abcdefgh"):
    matrix = np.array(matrix, np.int64)
    classes = Classes(tuple(names[: len(matrix)]), tuple((i, i, i) for i in range(len(matrix))))
    return Evaluation(Confusion(len(matrix), matrix), classes, "folder", "val", "whole", 3).figures()


def test_every_class_occurs():
    found = figures([[3, 1], [0, 4]])
    assert miou_words(found) == f"mIoU {(3 / 4 + 4 / 5) / 2:.4f} over 2 of 2 classes"
    assert other_rule(found) == "" and remarks(found) == []
    assert found["per_class_precision"] == {"a": 1.0, "b": 0.8}
    assert found["per_class_recall"] == {"a": 0.75, "b": 1.0}
    assert found["per_class_f1"] == {"a": 2 * 0.75 / 1.75, "b": 2 * 0.8 / 1.8}


def test_a_class_that_the_labels_do_not_have():
    """Predicted by mistake it counts, as 0; never predicted it does not count."""
    found = figures([[3, 0, 1], [0, 4, 0], [0, 0, 0]])
    assert found["absent_classes"] == ["c"] and found["miou_classes"] == 3
    assert remarks(found)[0].endswith("of it: c; predicted all the same, which counts as 0 in the mean: c")
    found = figures([[3, 0, 0], [0, 4, 0], [0, 0, 0]])
    assert miou_words(found) == "mIoU 1.0000 over 2 of 3 classes"
    assert other_rule(found).startswith("mIoU 0.6667 over all 3 classes, absent ones as 0")
    assert remarks(found) == ["not in the labels of val, so that nothing is known of it: c"]


def test_a_class_that_is_never_predicted():
    found = figures([[98, 0], [2, 0]])
    assert remarks(found) == ["never predicted: b"]
    assert found["per_class_precision"]["b"] is None and found["per_class_f1"]["b"] == 0


def test_a_single_class_says_nothing():
    found = figures([[9]])
    assert miou_words(found) == "mIoU 1.0000 over 1 of 1 class"
    assert "have a single class" in remarks(found)[0]
    found = figures([[9, 0], [0, 0]])
    assert [words.split()[0] for words in remarks(found)] == ["not", "the"]


def test_nothing_counts():
    found = figures([[0, 0], [0, 0]])
    assert miou_words(found) == "mIoU – (no pixel counts)"
    assert remarks(found) == ["no pixel of val counts: there is nothing to score"]


def test_many_classes_are_cut_short():
    found = figures(np.diag([5, *[0] * 19]), [f"c{i}" for i in range(20)])
    assert remarks(found)[0].endswith("c8 and 11 more")


def test_figures_of_older_logs():
    old = {"miou": 0.5, "per_class_iou": {"a": 0.5}, "split": "val"}
    assert miou_words(old) == "mIoU 0.5000" and remarks(old) == [] and other_rule(old) == ""
