"""Numbers as colours and as short words."""

import numpy as np
import pytest

from ordnet.picture.attention_map import (
    LIGHT,
    SHARES,
    SIGNED,
    AttentionRow,
    HeatMap,
    Scale,
    attention_figure,
    coloured,
    number,
    panels,
)


def test_colours_say_sign_and_size():
    values = np.linspace(-1, 1, 21)
    signed = coloured(values, -1, 1, SIGNED)
    np.testing.assert_allclose(signed[10], SIGNED[3], atol=0.01)  # zero is neutral
    assert np.ptp(signed[10]) < 5
    assert (signed[11:, 0] > signed[11:, 2]).all()  # red above
    assert (signed[:10, 2] > signed[:10, 0]).all()  # blue below
    brightness = coloured(values, 0, 1, SHARES).sum(axis=-1)
    assert (np.diff(brightness[10:]) < 0).all()
    assert (brightness[:10] == brightness[10]).all()  # the same beyond the scale
    assert (np.diff(coloured(values, -1, 1, LIGHT).sum(axis=-1)) > 0).all()
    assert np.isfinite(coloured(np.zeros(3), 0, 0)).all()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1, "1"), (-0.00123, "-0.0012"), (0.5, "0.5"), (3.17e-5, "3.2e-5"), (12345, "1.2e4")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def row_of(weights, labels=None):
    scale = Scale(SIGNED, -1, 1, -1, 1)
    heat = HeatMap("long range", "", lambda height, width: np.resize(weights, (height, width)), scale, ("red", "most"))
    pixels = np.zeros((30, 40, 3), np.uint8)
    return AttentionRow(pixels, 5, 6, [heat], (), labels, ("sky", "water"), ((0, 0, 1), (0, 0, 255)))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([-0.4], ["all of its weight takes away"]),
        ([-0.4, 0.0], ["all of its weight takes away"]),
        ([-0.4, np.nan], ["all of its weight takes away"]),
        ([-1.0] * 9 + [0.4], ["nearly all of its weight takes away"]),  # 9 of 9.4
        ([-1.0] * 9 + [0.6], []),
        ([-0.5, 0.5], []),
        ([0.5], []),
        ([0.0], []),
        ([np.nan], []),
    ],
)
def test_a_map_below_zero_says_how_to_read_it(weights, words):
    row = row_of(weights)
    assert panels(row)[1].notes == ["red", "most", *words]
    # the words have room, and a row is as high with as without them
    sheet = attention_figure([row])
    assert (np.asarray(sheet)[-22:] == 255).all()
    assert sheet.size == attention_figure([row_of([0.5])]).size


def test_the_parse_says_that_its_class_is_of_the_marked_pixel():
    labels = np.zeros((30, 40), np.uint8)
    labels[6, 5] = 1
    assert panels(row_of([0.5], labels))[-1].notes == ["here: water"]
    assert panels(row_of([0.5], labels))[-1].swatch == (0, 0, 255)
