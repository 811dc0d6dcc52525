"""Label maps as pictures: colours, blends, names, legends."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

import ordnet.data
from ordnet.data.labels import class_colours, distinct_colours
from ordnet.picture.charts import chart, correlation_maps
from ordnet.picture.grid import contact_sheet, legend
from ordnet.picture.overlay import NO_CLASS, colour_map, connected, font, overlay, place_names, shortened, write_names

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
@settings(deadline=None, max_examples=15)
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


NAMES = ("sky", "foreground object", "tree", "a very long name of a class", "x")


def blocks(rows, columns, height, width, seed):
    """A map of random rectangles."""
    cells = np.random.default_rng(seed).integers(0, 6, (rows, columns))
    return np.kron(cells, np.ones((-(-height // rows), -(-width // columns)), int))[:height, :width].astype(np.uint8)


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 500), st.integers(1, 700), st.integers(0, 9))
def test_names_lie_in_their_regions_and_nowhere_else(rows, columns, height, width, seed):
    labels = blocks(rows, columns, height, width, seed)
    taken = np.zeros(labels.shape, bool)
    for name in place_names(labels, NAMES):
        assert name.text.replace("\n", " ") == NAMES[name.class_id]
        wide, tall = name.extent()
        left, top, right, bottom = name.x - wide / 2, name.y - tall / 2, name.x + wide / 2, name.y + tall / 2
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
        box = slice(int(top), int(bottom)), slice(int(left), int(right))
        assert (labels[box] == name.class_id).mean() > 0.9
        assert not taken[box].any()
        taken[box] = True
        assert name.size >= 11
    write_names(Image.new("RGB", (width, height)), labels, NAMES)


def test_every_large_region_is_named_and_long_names_are_broken():
    labels = np.zeros((240, 320), np.uint8)
    labels[:, 150:170] = 2
    labels[100:200, 10:110] = 1
    placed = place_names(labels, NAMES)
    assert sorted(name.class_id for name in placed if name.class_id != 2) == [0, 0, 1]
    assert next(name.text for name in placed if name.class_id == 1) == "foreground\nobject"


def test_a_name_stands_in_the_open():
    labels = np.ones((300, 600), np.uint8)
    labels[100:200, 200:400] = 0
    (sky,) = [name for name in place_names(labels, ("sky",)) if name.class_id == 0]
    assert abs(sky.x - 300) < 10 and abs(sky.y - 150) < 10


@pytest.mark.parametrize("grey", [0, 128, 255])
def test_names_can_be_read_on_light_and_dark(grey):
    image = Image.new("RGB", (320, 240), (grey, grey, grey))
    write_names(image, np.zeros((240, 320), np.uint8), ("sky",))
    pixels = np.asarray(image).astype(int).sum(axis=2) // 3
    if grey == 255:  # the letters have the ground's colour: their halo shows them
        assert (pixels < 90).sum() > 60
    else:
        assert (pixels > 200).sum() > 40
    assert (pixels != grey).sum() < 0.05 * pixels.size


@settings(max_examples=40)
@given(npst.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(0, 2)))
def test_connected_regions_are_those_of_flooding(cells):
    found = connected(cells)
    numbers = {}
    left = {tuple(map(int, place)) for place in np.ndindex(cells.shape)}
    while left:
        start = left.pop()
        region, edge = {start}, [start]
        while edge:
            y, x = edge.pop()
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if near in left and cells[near] == cells[start]:
                    left.remove(near)
                    region.add(near)
                    edge.append(near)
        assert len({int(found[place]) for place in region}) == 1
        assert int(found[start]) not in numbers
        numbers[int(found[start])] = region


@given(st.text(max_size=40), st.integers(0, 300))
def test_shortened_text_fits(text, width):
    text = " ".join(text.split())
    short = shortened(text, width, 16)
    assert short == text or short.endswith("…")
    assert short in (text, "…") or font(16, text).getlength(short) <= width


@pytest.mark.parametrize("letter", ["é", "ł", "×", "–", "Ж", "α", "−", "𝒜"])  # the last is in another font
def test_letters_beyond_ascii_are_drawn(letter):
    letters = font(20, letter)
    assert bytes(letters.getmask(letter)) != bytes(letters.getmask("\uffff"))


def usual_rows():
    path = Path(ordnet.data.__file__).parent / "tables" / "usual_colours.csv"
    with path.open(encoding="utf-8") as file:
        return [(row["colour"], row["names"].split("|")) for row in csv.DictReader(file)]


def test_the_table_of_usual_colours_is_sound():
    names = [name for _, group in usual_rows() for name in group]
    assert len(set(names)) == len(names)
    assert all(name == " ".join(name.lower().split()) for name in names)
    firsts = [group[0] for _, group in usual_rows()]
    colours = class_colours(firsts)
    assert ["#{:02x}{:02x}{:02x}".format(*colour) for colour in colours] == [colour for colour, _ in usual_rows()]
    assert nearest(colours) > 0.055


def nearest(colours):
    """The smallest distance between two colours in OKLab."""
    from ordnet.data.labels import _oklab

    places = _oklab(np.array(colours))
    return (np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(len(places))).min()


def test_usual_colours_are_what_people_expect():
    sky, trees, grass, road, water, person, unheard = class_colours(
        ["Sky", "trees", "grass", "road", "water", "people", "zyx"]
    )
    assert max(sky) == sky[2] and sky[2] > 200
    assert max(trees) == trees[1] and max(grass) == grass[1] and sum(trees) < sum(grass)
    assert max(road) - min(road) < 40
    assert max(water) == water[2]
    assert person[0] > 200 > 2 * max(person[1:])
    assert unheard not in (sky, trees, grass, road, water, person)


@given(st.permutations(["tree", "forest", "cars", "Car", "sky", "lorries", "a", "b"]))
def test_a_usual_colour_goes_to_one_class_whatever_the_order(names):
    colours = dict(zip(names, class_colours(names), strict=True))
    assert len(set(colours.values())) == 8
    assert colours["tree"] == class_colours(["trees"])[0]
    assert colours["sky"] == class_colours(["sky"])[0]
    assert colours["lorries"] == class_colours(["truck"])[0]
    assert class_colours(["car"])[0] == colours["cars" if names.index("cars") < names.index("Car") else "Car"]


@given(st.integers(1, 150), st.integers(0, 40))
@settings(max_examples=15)
def test_all_classes_stay_apart(unknown, known):
    names = [group[0] for _, group in usual_rows()][:known] + [f"class {i}" for i in range(unknown)]
    colours = class_colours(names)
    assert len(set(colours)) == len(names)
    assert len(names) < 2 or nearest(colours) > 0.045


def test_names_that_nobody_knows_get_the_farthest_colours():
    assert class_colours(["a", "b", "c"]) == distinct_colours(3)
    assert class_colours(["a", "sky", "b"])[::2] == distinct_colours(2, class_colours(["sky"]))
