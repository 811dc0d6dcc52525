"""Patch correlation: the histogram form against the paper's sum over pairs of pixels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ordnet.data.statistics import correlate, patch_correlation, patch_histograms
from ordnet.errors import OrdnetError

LABELS = npst.arrays(
    np.uint8,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    elements=st.sampled_from([0, 1, 2, 254, 255]),
)


def pairwise(label: np.ndarray, patches: int) -> np.ndarray:
    """Eq. 3–4 as written: every pixel of patch m beside every pixel of patch n."""
    height, width = label.shape
    members: list[list[int]] = [[] for _ in range(patches * patches)]
    for y in range(height):
        for x in range(width):
            # the patch whose bounds i·H//p ≤ y < (i+1)·H//p hold the pixel
            row = next(i for i in range(patches) if i * height // patches <= y < (i + 1) * height // patches)
            column = next(i for i in range(patches) if i * width // patches <= x < (i + 1) * width // patches)
            if label[y, x] != 255:
                members[row * patches + column].append(int(label[y, x]))
    matrix = np.full((patches * patches, patches * patches), np.nan)
    for m, first in enumerate(members):
        for n, second in enumerate(members):
            if first and second:
                matrix[m, n] = sum(a == b for a in first for b in second) / (len(first) * len(second))
    return matrix


@given(LABELS, st.integers(1, 5))
@settings(deadline=None)
def test_histograms_give_the_pairwise_sum(label, patches):
    np.testing.assert_allclose(
        patch_correlation(patch_histograms(label, patches)), pairwise(label, patches), atol=1e-12
    )


@given(st.lists(LABELS, min_size=1, max_size=5), st.lists(st.integers(1, 4), min_size=1, max_size=3))
@settings(deadline=None)
def test_mean_leaves_out_patches_without_pixels(labels, patches):
    for p, result in zip(patches, correlate(labels, patches), strict=True):
        stack = np.stack([pairwise(label, p) for label in labels])
        for m, n in np.ndindex(p * p, p * p):
            known = [value for value in stack[:, m, n] if not math.isnan(value)]
            expected = sum(known) / len(known) if known else math.nan
            np.testing.assert_allclose(result.matrix[m, n], expected, atol=1e-12)
        assert (result.patches, result.images) == (p, len(labels))


@given(LABELS, st.integers(1, 5))
@settings(deadline=None)
def test_every_counting_pixel_is_in_exactly_one_patch(label, patches):
    histograms = patch_histograms(label, patches)
    assert histograms.shape == (patches**2, 255)
    np.testing.assert_array_equal(histograms.sum(axis=0), np.bincount(label.ravel(), minlength=256)[:255])


def test_patches_are_ordered_by_rows():
    label = np.array([[0, 1], [2, 0]], dtype=np.uint8)
    expected = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    (result,) = correlate([label], [2])
    np.testing.assert_array_equal(result.matrix, expected)
    assert result.intra == 1
    assert result.inter == pytest.approx(2 / 12)


def test_all_void_is_nan_and_not_a_crash():
    (result,) = correlate([np.full((4, 4), 255, dtype=np.uint8)], [2])
    assert np.isnan(result.matrix).all()
    assert math.isnan(result.intra)
    assert math.isnan(result.inter)


@pytest.mark.parametrize("patches", [[], [0], [2, -1]])
def test_wrong_patches_are_refused(patches):
    with pytest.raises(OrdnetError, match="1 or more"):
        correlate([], patches)
