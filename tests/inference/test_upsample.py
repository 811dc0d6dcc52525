"""Positions of the feature map and pixels of the picture, held to the upsampling of the scores."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ordnet.inference.upsample import Places, held, resized, whole_map
from ordnet.model.branches import patch_grid

SIDE = st.integers(1, 60)


@settings(max_examples=60)
@given(SIDE, SIDE, st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_maps_are_upsampled_as_scores_are(height, width, h, w, aligned):
    values = np.random.default_rng(0).normal(size=(h, w)).astype(np.float32)
    places = Places((height, width), (height, width), (height, width), (h, w), aligned)
    expected = F.interpolate(
        torch.from_numpy(values)[None, None], (height, width), mode="bilinear", align_corners=aligned
    )[0, 0].numpy()
    np.testing.assert_allclose(places.sample(values, height, width), expected, atol=1e-4)


@settings(max_examples=60)
@given(st.integers(8, 60), st.integers(8, 60), st.integers(3, 8), st.integers(3, 8), st.integers(1, 3), st.booleans())
def test_patches_share_out_the_pixels(height, width, h, w, patches, aligned):
    """A pixel lies in a patch's box exactly if its position lies in the patch; boxes cover every pixel once."""
    places = Places((height, width), (height, width), (height, width), (h, w), aligned)
    covered = np.zeros((height, width), int)
    for rows, columns in patch_grid(h, w, patches):
        left, top, right, bottom = places.box((rows, columns))
        covered[top:bottom, left:right] += 1
        for x, y in ((left, top), (right - 1, bottom - 1)):
            i, j = places.position(x, y)
            assert i in range(rows.start, rows.stop)
            assert j in range(columns.start, columns.stop)
    assert (covered == 1).all()


@settings(max_examples=60)
@given(st.integers(8, 60), st.integers(8, 60), st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_a_positions_pixel_has_that_position(height, width, h, w, aligned):
    places = Places((height, width), (height, width), (height, width), (h, w), aligned)
    for i in range(h):
        for j in range(w):
            assert places.position(*places.pixel(i, j)) == (i, j)


def test_maps_with_unknown_places_stay_unknown_there():
    places = Places((40, 40), (40, 40), (40, 40), (10, 10), True)
    values = np.full((10, 10), np.nan, np.float32)
    values[:5, 5:] = 3.0
    drawn = places.sample(values, 40, 40)
    left, top, right, bottom = places.box((slice(0, 5), slice(5, 10)))
    known = np.zeros((40, 40), bool)
    known[top:bottom, left:right] = True
    np.testing.assert_array_equal(~np.isnan(drawn), known)
    np.testing.assert_allclose(drawn[known], 3.0, rtol=1e-6)  # not darkened at the border


@pytest.mark.parametrize("size", [(80_000, 1), (1, 80_000)])
def test_thin_maps_take_memory_by_their_pixels(size):
    """One megabyte of scores, with a gigabyte to make them in; a product over all rows would take twelve."""
    height, width = size
    small = torch.randn(1, 3, max(1, height // 4), max(1, width // 4), generator=torch.Generator().manual_seed(0))
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, hard))
    try:
        made = whole_map(resized(held(small), height, width, False))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    expected = F.interpolate(small, size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
