"""Label maps as pictures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ordnet.picture.charts import chart, correlation_maps
from ordnet.picture.contact_sheet import contact_sheet, legend
from ordnet.picture.overlay import NO_CLASS, colour_map, overlay

COLOURS = ((200, 10, 30), (0, 255, 0), (255, 255, 255))


@given(npst.arrays(np.uint8, (5, 7)))
def test_colour_map_looks_every_class_up(labels):
    colours = colour_map(labels, COLOURS)
    for y, x in np.ndindex(labels.shape):
        assert tuple(colours[y, x]) == (COLOURS[labels[y, x]] if labels[y, x] < 3 else NO_CLASS)


@given(npst.arrays(np.uint8, (4, 6, 3)), npst.arrays(np.uint8, (4, 6), elements=st.integers(0, 2)), st.floats(0, 1))
def test_overlay_is_a_blend(image, labels, strength):
    exact = (1 - strength) * image + strength * colour_map(labels, COLOURS)
    result = overlay(image, labels, COLOURS, strength)
    assert result.dtype == np.uint8
    assert np.abs(result - exact).max() < 2


@given(npst.arrays(np.uint8, (4, 6, 3)), npst.arrays(np.uint8, (4, 6), elements=st.integers(0, 2)))
def test_strength_goes_from_the_picture_to_the_colours(image, labels):
    before = image.copy()
    np.testing.assert_array_equal(overlay(image, labels, COLOURS, 0), image)
    np.testing.assert_array_equal(overlay(image, labels, COLOURS, 1), colour_map(labels, COLOURS))
    np.testing.assert_array_equal(image, before)


def test_ignored_pixels_are_dark_and_striped():
    image = np.full((32, 32, 3), 220, dtype=np.uint8)
    labels = np.zeros((32, 32), dtype=np.uint8)
    labels[:, 16:] = 255
    result = overlay(image, labels, COLOURS)
    marked = {tuple(pixel) for pixel in result[:, 16:].reshape(-1, 3)}
    assert marked == {NO_CLASS, (77, 77, 77)}
    np.testing.assert_array_equal(result[:, :16], overlay(image[:, :16], labels[:, :16], COLOURS))
    np.testing.assert_array_equal(overlay(image, labels, COLOURS, 0), image)


@pytest.mark.parametrize("strength", [-0.1, 1.1, float("nan")])
def test_wrong_strength(strength):
    with pytest.raises(ValueError, match="from 0 to 1"):
        overlay(np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2), np.uint8), COLOURS, strength)


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="must be the same"):
        overlay(np.zeros((2, 3, 3), np.uint8), np.zeros((3, 2), np.uint8), COLOURS)


def test_contact_sheet_holds_every_picture_once():
    tiles = [np.full((20 + i, 30, 3), 10 * i + 5, dtype=np.uint8) for i in range(5)]
    sheet = np.asarray(contact_sheet(tiles, columns=2))
    for i, tile in enumerate(tiles):
        assert (sheet == 10 * i + 5).all(axis=2).sum() == tile.shape[0] * tile.shape[1]
    plain = contact_sheet(tiles, columns=2)
    with_text = contact_sheet(tiles, columns=2, captions=["a very long name " * 9] * 5, key=[("sky", (1, 2, 3))])
    assert with_text.width == plain.width
    assert with_text.height > plain.height
    assert (np.asarray(with_text) == (1, 2, 3)).all(axis=2).any()
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet([], columns=2)


@given(st.integers(1, 150), st.integers(60, 900))
@settings(deadline=None, max_examples=30)
def test_legend_shows_every_colour_in_its_width(count, width):
    key = [(f"class number {i}", (i, 100, 200)) for i in range(count)]
    picture = np.asarray(legend(key, width))
    assert picture.shape[1] == width
    for _, colour in key[:: max(1, count // 5)]:
        assert (picture == colour).all(axis=2).sum() >= 16 * 16  # a square without its frame


def test_correlation_picture(tmp_path):
    matrices = {2: np.eye(4), 4: np.full((16, 16), np.nan)}
    correlation_maps(matrices, tmp_path / "sub" / "maps.png", "a title")
    assert (tmp_path / "sub" / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["maps.png"]


def test_a_chart_that_fails_writes_nothing(tmp_path):
    with pytest.raises(RuntimeError), chart(tmp_path / "x.png", 2, 2):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_only_ignored_pixels_are_striped_in_the_legend():
    """A class may have the colour of the stripes: CamVid's sky does."""
    grey, striped = (np.asarray(legend([("sky", colour)], 80))[6:20, 4:14] for colour in (NO_CLASS, None))
    assert len(np.unique(grey.reshape(-1, 3), axis=0)) == 1
    assert len(np.unique(striped.reshape(-1, 3), axis=0)) > 1
