"""Augmentation: image and label move together, and one step gives what scaling everything and cropping gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ordnet.bench.training import scale_then_crop
from ordnet.config import DataConfig
from ordnet.data.augment import Window, augment, cut_image, cut_label, fit_long_side, generator, random_window
from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError

ROUNDING = 2
"""Pillow rounds to 8 bits after each of its two passes and keeps a box in single precision."""


def picture(width, height, seed=0):
    """Smooth colours and class ids in patches."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    classes = Image.fromarray(rng.integers(0, 20, (6, 5), np.uint8))
    image = coarse.resize((width, height), Image.Resampling.BICUBIC)
    return image, np.array(classes.resize((width, height), Image.Resampling.NEAREST))


sides = st.integers(1, 90)
crops = st.integers(1, 80)
rules = st.builds(
    DataConfig,
    flip=st.booleans(),
    scale=st.sampled_from([(0.5, 2.0), (1.0, 1.0), (0.75, 1.25), (0.1, 0.2)]),
    base_size=st.none() | st.integers(1, 80),
)


@settings(max_examples=200, deadline=None)
@given(sides, sides, crops, rules, st.integers(0, 2**32))
def test_one_step_is_scaling_everything_and_then_cropping(width, height, crop, rule, seed):
    image, label = picture(width, height)
    pixels, classes = augment(image, label, generator(seed, 0, 0), crop, rule)
    plain_pixels, plain_classes = scale_then_crop(image, label, generator(seed, 0, 0), crop, rule)
    assert pixels.shape == (crop, crop, 3) and classes.shape == (crop, crop)
    assert pixels.dtype == classes.dtype == np.uint8
    assert np.abs(pixels.astype(int) - plain_pixels).max() <= ROUNDING
    # a pixel whose centre falls exactly on the border of two source pixels may take either
    window = random_window(width, height, generator(seed, 0, 0), crop, rule)
    on_border = np.zeros((crop, crop), bool)
    on_border[: window.rows] |= ties(window.top, window.rows, height, window.to_height)[:, None]
    on_border[:, : window.columns] |= ties(window.left, window.columns, width, window.to_width)
    on_border |= on_border[:, ::-1]
    np.testing.assert_array_equal(classes[~on_border], plain_classes[~on_border])


def ties(start, count, source, target):
    return (2 * np.arange(start, start + count) + 1) * source % (2 * target) == 0


def test_a_photo_agrees_up_to_rounding():
    image, label = picture(479, 353)
    for index in range(20):
        pixels, classes = augment(image, label, generator(0, 0, index), 224, DataConfig())
        plain_pixels, plain_classes = scale_then_crop(image, label, generator(0, 0, index), 224, DataConfig())
        assert np.abs(pixels.astype(int) - plain_pixels).max() <= ROUNDING
        assert (classes != plain_classes).mean() < 1e-3


@settings(max_examples=100, deadline=None)
@given(sides, sides, crops, rules, st.integers(0, 2**32))
def test_image_and_label_share_their_geometry(width, height, crop, rule, seed):
    """Where a picture's colour is its class, the augmented colour is the augmented class, away from class borders."""
    label = np.full((height, width), 40, np.uint8)
    label[:, width // 2 :] = 200
    image = Image.fromarray(np.stack([label] * 3, axis=2))
    pixels, classes = augment(image, label, generator(seed, 0, 0), crop, rule)
    padding = classes == IGNORE
    assert (pixels[padding] == 0).all()
    pure = np.isin(pixels[..., 0], (40, 200)) & ~padding
    np.testing.assert_array_equal(pixels[..., 0][pure], classes[pure])


@pytest.mark.parametrize("to", [(40, 30), (200, 150), (97, 61)])
def test_windows_put_together_are_the_whole_picture(to):
    image, label = picture(80, 60)
    whole = Window(80, 60, *to, 0, 0, 1000)
    pixels, classes = np.asarray(cut_image(image, whole)).astype(int), cut_label(label, whole)
    assert pixels.shape[:2] == classes.shape == to[::-1]
    for left in range(0, to[0], 29):
        for top in range(0, to[1], 29):
            part = Window(80, 60, *to, left, top, 29)
            where = slice(top, top + part.rows), slice(left, left + part.columns)
            assert np.abs(pixels[where] - np.asarray(cut_image(image, part))).max() <= ROUNDING
            np.testing.assert_array_equal(classes[where], cut_label(label, part))


def test_flips_happen_half_of_the_time_and_only_on_request():
    image, label = picture(32, 32)
    straight = DataConfig(flip=False, scale=(1, 1))
    flipping = DataConfig(flip=True, scale=(1, 1))
    mirrored = 0
    for index in range(200):
        pixels, classes = augment(image, label, generator(0, 0, index), 32, flipping)
        if (classes != label).any():
            mirrored += 1
            pixels, classes = pixels[:, ::-1], classes[:, ::-1]
        np.testing.assert_array_equal(pixels, np.asarray(image))
        np.testing.assert_array_equal(classes, label)
        np.testing.assert_array_equal(augment(image, label, generator(0, 0, index), 32, straight)[1], label)
    assert 70 < mirrored < 130


def test_randomness_is_a_function_of_seed_epoch_and_index():
    image, label = picture(64, 48)
    keys = [(seed, epoch, index) for seed in (0, 1) for epoch in (0, 1) for index in range(4)]
    rule = DataConfig(jitter=0.2)
    twice = [[augment(image, label, generator(*key), 24, rule)[0].tobytes() for key in keys] for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(set(twice[0])) == len(keys)


def test_scales_cover_their_range():
    own = [random_window(100, 60, generator(0, 0, i), 32, DataConfig()) for i in range(2000)]
    factors = np.array([w.to_width / 100 for w in own])
    assert factors.min() < 0.53 and factors.max() > 1.97 and abs(factors.mean() - 1.25) < 0.05
    assert all(abs(w.to_height - 60 * w.to_width / 100) <= 1 for w in own)
    # EncNet's rule: integers between half and twice the base, both ends included
    longs = [random_window(60, 100, generator(0, 0, i), 8, DataConfig(base_size=10)) for i in range(400)]
    assert {w.to_height for w in longs} == set(range(5, 21))
    assert all(w.to_width == int(60 * w.to_height / 100 + 0.5) for w in longs)


def test_crops_reach_every_corner():
    windows = [random_window(50, 40, generator(0, 0, i), 38, DataConfig(scale=(1, 1))) for i in range(800)]
    assert {w.left for w in windows} == set(range(13))
    assert {w.top for w in windows} == set(range(3))


def test_jitter_changes_colours_only():
    image, label = picture(40, 40)
    plain = DataConfig(flip=False, scale=(1, 1))
    still = augment(image, label, generator(0, 0, 0), 50, plain)
    moved = augment(image, label, generator(0, 0, 0), 50, plain.model_copy(update={"jitter": 0.5}))
    np.testing.assert_array_equal(still[1], moved[1])
    assert (still[0] != moved[0]).mean() > 0.3
    assert (moved[0][40:] == 0).all() and (moved[0][:, 40:] == 0).all()


def test_a_label_of_another_size_is_refused():
    image, label = picture(40, 30)
    with pytest.raises(OrdnetError, match=r"40x30.*30x40"):
        augment(image, label.T, generator(0, 0, 0), 16, DataConfig())


@given(st.integers(1, 300), st.integers(1, 300), st.integers(16, 200))
@settings(max_examples=60)
def test_fitting_the_long_side_keeps_shape_and_places(width, height, long_side):
    columns = np.arange(width)[None].repeat(height, axis=0)
    image = Image.fromarray(np.uint8(columns % 256))
    label = np.uint8(columns * 200 // width)
    shrunk, fitted = fit_long_side(image.convert("RGB"), label, long_side)
    assert fitted.shape == shrunk.size[::-1]
    if max(width, height) <= long_side:
        assert shrunk.size == (width, height) and fitted is label
        return
    assert max(shrunk.size) == long_side
    assert abs(min(shrunk.size) - max(1, min(width, height) * long_side / max(width, height))) <= 0.5
    # each pixel has the class at its own centre
    centre = (np.arange(shrunk.width) + 0.5) * width / shrunk.width
    np.testing.assert_array_equal(fitted, label[:1, np.floor(centre + 1e-9).astype(int)].repeat(shrunk.height, axis=0))
    assert fit_long_side(image, None, long_side)[1] is None
    assert fit_long_side(image, label, None) == (image, label)
