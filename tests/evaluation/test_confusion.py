import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion, pascal_context_figures
from tests.timm_here import mend_torchvision

mend_torchvision()
from torchmetrics.functional.classification import (  # noqa: E402
    multiclass_accuracy,
    multiclass_confusion_matrix,
    multiclass_jaccard_index,
)


def draw(seed, classes, shape=(9, 11), void=0.2):
    rng = np.random.default_rng(seed)
    labels, guesses = rng.integers(0, classes, (2, *shape)).astype(np.uint8)
    labels[rng.random(shape) < void] = 255
    return labels, guesses


def counted(labels, guesses, classes):
    confusion = Confusion(classes)
    confusion.add(labels, guesses)
    return confusion


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 40))
def test_agrees_with_torchmetrics(seed, classes):
    labels, guesses = draw(seed, classes)
    ours = counted(labels, guesses, classes)
    oracle = (torch.from_numpy(guesses).long(), torch.from_numpy(labels).long(), classes)
    assert np.array_equal(ours.matrix, multiclass_confusion_matrix(*oracle, ignore_index=255).numpy())
    expected = multiclass_jaccard_index(*oracle, average="macro", ignore_index=255)
    assert ours.miou() == pytest.approx(expected.item(), abs=1e-6)
    expected = multiclass_accuracy(*oracle, average="micro", ignore_index=255)
    assert ours.pixel_accuracy() == pytest.approx(expected.item(), abs=1e-6)
    each = multiclass_accuracy(*oracle, average="none", ignore_index=255).numpy()
    present = ours.matrix.sum(1) > 0
    np.testing.assert_allclose(ours.accuracy()[present], each[present], atol=1e-6)
    assert ours.mean_accuracy() == pytest.approx(each[present].mean(), abs=1e-6)


def test_figures_by_hand():
    labels = np.array([[0, 0, 1, 1], [1, 255, 255, 0]], dtype=np.uint8)
    guesses = np.array([[0, 1, 1, 1], [0, 0, 2, 0]], dtype=np.uint8)
    confusion = counted(labels, guesses, 4)
    assert confusion.matrix.tolist() == [[2, 1, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert confusion.iou()[:2].tolist() == [0.5, 0.5]
    assert np.isnan(confusion.iou()[2:]).all()
    assert confusion.miou() == 0.5
    assert confusion.miou(absent_as_zero=True) == 0.25
    assert confusion.pixel_accuracy() == pytest.approx(4 / 6)
    assert confusion.mean_accuracy() == pytest.approx(2 / 3)
    assert confusion.final_score() == pytest.approx((4 / 6 + 0.5) / 2)


def test_groups_are_means_of_their_classes():
    labels, guesses = draw(0, 5)
    guesses[guesses == 4] = 0
    labels[labels == 4] = 255
    confusion = counted(labels, guesses, 5)
    iou = confusion.iou()
    by = confusion.miou_by(["short", "long", "short", "long", "middle"])
    assert list(by) == ["short", "long", "middle"]
    assert by["short"] == pytest.approx((iou[0] + iou[2]) / 2)
    assert by["long"] == pytest.approx((iou[1] + iou[3]) / 2)
    assert math.isnan(by["middle"])
    with pytest.raises(OrdnetError, match="2 group names for 5 classes"):
        confusion.miou_by(["short", "long"])


@given(seed=st.integers(0, 10**6))
def test_streaming_equals_counting_at_once(seed):
    labels, guesses = draw(seed, 6, (4, 5, 7))
    streamed = Confusion(6)
    for label, guess in zip(labels, guesses, strict=True):
        streamed.add(label, guess)
    halves = counted(labels[:2], guesses[:2], 6) + counted(labels[2:], guesses[2:], 6)
    whole = counted(labels, guesses, 6)
    assert np.array_equal(streamed.matrix, whole.matrix)
    assert np.array_equal(halves.matrix, whole.matrix)


@pytest.mark.parametrize("make", [torch.from_numpy, lambda x: torch.from_numpy(x).long(), lambda x: x.astype(np.int64)])
def test_tensors_and_wider_integers_count_alike(make):
    labels, guesses = draw(1, 7)
    whole = counted(labels, guesses, 7).matrix
    assert np.array_equal(counted(make(labels), make(guesses), 7).matrix, whole)
    half = counted(labels[:, ::2], guesses[:, ::2], 7).matrix
    assert np.array_equal(counted(make(labels)[:, ::2], make(guesses)[:, ::2], 7).matrix, half)


def test_void_never_counts_whatever_is_predicted_there():
    labels = np.full((3, 3), 255, dtype=np.uint8)
    for guess in (0, 1, 255):
        assert not counted(labels, np.full_like(labels, guess), 2).matrix.any()
    truth = draw(2, 3)[0]
    assert counted(truth, truth, 3).miou() == 1


def test_nothing_counted_has_no_figures():
    confusion = Confusion(3)
    confusion.add(np.zeros((0, 4), np.uint8), np.zeros((0, 4), np.uint8))
    figures = (
        confusion.miou(),
        confusion.miou(absent_as_zero=True),
        confusion.pixel_accuracy(),
        confusion.mean_accuracy(),
        confusion.final_score(),
    )
    assert all(math.isnan(figure) for figure in figures)


def test_the_largest_number_of_classes():
    labels, guesses = draw(3, 255, (300, 300))
    assert counted(labels, guesses, 255).matrix.sum() == (labels != 255).sum()


@pytest.mark.parametrize(
    ("labels", "guesses", "message"),
    [
        ([[0, 1]], [[0, 3]], r"predictions outside the classes: 3 \(1 pixels\); expected 0…2"),
        ([[0, 1]], [[0, 255]], r"predictions outside the classes: 255"),
        ([[0, 4]], [[0, 0]], r"labels outside the classes: 4 .*255 where nothing counts"),
        ([[0, 0]], [[0, 256]], r"predictions lie between 0 and 256"),
        ([[0, 0]], [[-1, 0]], r"predictions lie between -1 and 0"),
        ([[0, 0]], [[0.0, 1.0]], r"predictions of type float64: expected integers"),
        ([[0, 0]], [[0], [0]], r"\(1, 2\).*\(2, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_counted(labels, guesses, message):
    confusion = Confusion(3)
    with pytest.raises(OrdnetError, match=message):
        confusion.add(np.array(labels), np.array(guesses))
    assert not confusion.matrix.any()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(OrdnetError, match="between 1 and 255"):
        Confusion(256)
    with pytest.raises(OrdnetError, match="2 and 3 classes"):
        Confusion(2) + Confusion(3)
    with pytest.raises(OrdnetError, match=r"\(3, 3\) does not hold 2"):
        Confusion(2, np.zeros((3, 3), np.int64))


def test_pascal_context_without_background():
    confusion = counted(*draw(4, 59, (90, 90)), 59)
    figures = pascal_context_figures(confusion)
    assert figures == {"miou_59": confusion.miou(), "miou_59_times_59_60": confusion.miou() * 59 / 60}
    # counting background as a 60th class that is always wrong is the same number
    matrix = np.zeros((60, 60), np.int64)
    matrix[1:, 1:] = confusion.matrix
    assert Confusion(60, matrix).miou(absent_as_zero=True) == pytest.approx(figures["miou_59_times_59_60"])


def test_pascal_context_with_background():
    labels, guesses = draw(5, 60, (90, 90))
    figures = pascal_context_figures(counted(labels, guesses, 60))
    assert figures["miou_60"] == counted(labels, guesses, 60).miou()
    void = np.where(labels == 0, 255, labels)
    assert figures["miou_59"] == pytest.approx(np.mean(counted(void, guesses, 60).iou()[1:]))
    assert figures["miou_59_times_59_60"] == pytest.approx(figures["miou_59"] * 59 / 60)
    with pytest.raises(OrdnetError, match="59 classes, or 60 with background, not 21"):
        pascal_context_figures(Confusion(21))


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 9))
def test_precision_recall_and_f1_agree_with_torchmetrics(seed, classes):
    from torchmetrics.functional.classification import multiclass_f1_score, multiclass_precision, multiclass_recall

    labels, guesses = draw(seed, classes)
    ours = counted(labels, guesses, classes)
    oracle = (torch.from_numpy(guesses).long(), torch.from_numpy(labels).long(), classes)
    for figure, metric in (
        (ours.precision(), multiclass_precision), (ours.recall(), multiclass_recall), (ours.f1(), multiclass_f1_score)
    ):  # fmt: skip
        expected = metric(*oracle, average="none", ignore_index=255).numpy()
        np.testing.assert_allclose(np.nan_to_num(figure), expected, atol=1e-6)
    assert np.array_equal(np.isnan(ours.precision()), ~ours.predicted())
    assert np.array_equal(np.isnan(ours.recall()), ~ours.in_truth())
