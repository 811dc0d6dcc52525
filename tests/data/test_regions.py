"""Outlines and run lengths against slow definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ordnet.data.importers.regions import circle, polygon, run_lengths, unpack
from ordnet.errors import OrdnetError

COORDINATE = st.one_of(st.integers(-4, 14).map(float), st.floats(-4, 14, allow_nan=False))
OUTLINE = st.lists(st.tuples(COORDINATE, COORDINATE), min_size=3, max_size=8).map(np.array)
SIDE = st.integers(1, 10)


def full(region, height, width):
    label = np.zeros((height, width), dtype=np.uint8)
    region.paint(label, 1)
    return label.astype(bool)


def inside(outline, x, y):
    """Even-odd rule, one point at a time: edges that cross the horizontal line through it, left of it."""
    crossings = 0
    for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        if (y0 <= y) != (y1 <= y) and x0 + (y - y0) * ((x1 - x0) / (y1 - y0)) <= x:
            crossings += 1
    return crossings % 2 == 1


def near_an_edge(outline, x, y):
    """Centres so close to an edge that rounding decides."""
    for a, b in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        along, to = b - a, np.array([x, y]) - a
        t = np.clip(to @ along / max(along @ along, 1e-300), 0, 1)
        if np.hypot(*(to - t * along)) < 1e-6:
            return True
    return False


@given(st.lists(OUTLINE, min_size=1, max_size=3), SIDE, SIDE)
@settings(deadline=None)
def test_polygon_covers_the_pixels_whose_centre_is_inside(outlines, height, width):
    mask = full(polygon(outlines, height, width), height, width)
    for y, x in np.ndindex(height, width):
        centre = x + 0.5, y + 0.5
        if not any(near_an_edge(outline, *centre) for outline in outlines):
            assert mask[y, x] == any(inside(outline, *centre) for outline in outlines)


@given(st.floats(-3, 12), st.floats(-3, 12), st.floats(0, 9), SIDE, SIDE)
@settings(deadline=None)
def test_circle_covers_the_pixels_whose_centre_is_near(x, y, radius, height, width):
    mask = full(circle(np.array([x, y]), radius, height, width), height, width)
    for row, column in np.ndindex(height, width):
        distance = np.hypot(column + 0.5 - x, row + 0.5 - y)
        if abs(distance - radius) > 1e-6:
            assert mask[row, column] == (distance < radius)


def test_neighbours_share_no_pixel_and_leave_no_gap():
    cut = [(3.7, 0), (5.2, 4), (2.9, 10)]
    left = polygon([np.array([(0, 0), *cut, (0, 10)])], 10, 10)
    right = polygon([np.array([(10, 0), *cut, (10, 10)])], 10, 10)
    assert (full(left, 10, 10) ^ full(right, 10, 10)).all()


@pytest.mark.parametrize("shift", [(-100, 0), (0, -100), (100, 0), (0, 100)])
def test_outside_the_picture_there_is_nothing(shift):
    region = polygon([np.array([(0, 0), (5, 0), (5, 5)]) + shift], 10, 10)
    assert region.area == 0
    assert not full(region, 10, 10).any()


def packed(numbers):
    """COCO's compression, written from its description: the inverse of `unpack`."""
    text = ""
    for place, number in enumerate(numbers):
        value = number - (numbers[place - 2] if place > 2 else 0)
        while True:
            code, value = value & 31, value >> 5
            done = value == (-1 if code & 16 else 0)
            text += chr(code + 48 + (0 if done else 32))
            if done:
                break
    return text


@given(st.lists(st.integers(0, 10**7), max_size=12))
def test_compressed_numbers_come_back(numbers):
    assert unpack(packed(numbers)) == numbers


@given(npst.arrays(bool, st.tuples(SIDE, SIDE)))
def test_run_lengths_give_the_mask(mask):
    height, width = mask.shape
    flat = mask.T.ravel()
    lengths, expected = [], False
    place = 0
    while place < len(flat):
        start = place
        while place < len(flat) and flat[place] == expected:
            place += 1
        lengths.append(place - start)
        expected = not expected
    np.testing.assert_array_equal(full(run_lengths(np.array(lengths), mask.shape, height, width), height, width), mask)
    assert unpack(packed(lengths)) == lengths


@pytest.mark.parametrize(
    ("lengths", "says"), [([3, 2], "20 pixels"), ([30], "20 pixels"), ([-2, 22], "is -2"), ([], "20 pixels")]
)
def test_wrong_run_lengths_are_refused(lengths, says):
    with pytest.raises(OrdnetError, match=says):
        run_lengths(np.array(lengths, dtype=np.int64), (4, 5), 4, 5)


def test_run_lengths_of_another_picture_are_refused():
    with pytest.raises(OrdnetError, match="5x4"):
        run_lengths(np.array([20]), (4, 5), 5, 4)


@pytest.mark.parametrize("text", ["é", " ", "P"])
def test_broken_compression_is_refused(text):
    with pytest.raises(OrdnetError, match="run lengths"):
        unpack(text)
