"""Models know their scale: larger pictures are seen as large as those trained on, labels come at their own size."""

import numpy as np
import pytest
from PIL import Image

import ordnet
from ordnet.errors import OrdnetError
from ordnet.inference.parser import Parser
from ordnet.model import checkpoint
from ordnet.model.pixels import (
    ENLARGED,
    LARGER,
    SMALLER,
    KnownSize,
    fitted,
    fitted_size,
    known_size,
    parse_long_side,
    seen_by,
)

NAMES, COLOURS = ("a", "b", "c"), ((0, 0, 255), (0, 128, 0), (255, 0, 0))


def picture(height, width, seed=0):
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def make(**options):
    return Parser(ordnet.build("ordnet", classes=3, backbone="tiny").eval(), NAMES, COLOURS, **options)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (80, 120), (300, 96), (1, 2000), (1999, 3)])
def test_what_the_network_sees(height, width):
    pixels = picture(height, width)
    seen = fitted(pixels, KnownSize(96))
    if max(height, width) <= LARGER * 96:
        assert seen is pixels
    else:
        assert max(seen.shape[:2]) == 96
        assert min(seen.shape[:2]) >= 1
    whole = seen_by(pixels, KnownSize(96), 17)
    assert min(whole.pixels.shape[:2]) >= 17
    assert whole.size[0] >= height and whole.size[1] >= width


def test_an_enlarged_picture_is_parsed_like_the_picture():
    parser = make(long_side=96)
    small = picture(64, 96)
    for factor in (2, 5, 12):
        large = np.asarray(Image.fromarray(small).resize((96 * factor, 64 * factor), Image.Resampling.BICUBIC))
        parse = parser(large)
        assert parse.labels.shape == large.shape[:2]
        at_centres = parse.labels[factor // 2 :: factor, factor // 2 :: factor]
        assert (at_centres == parser(small).labels).mean() > 0.9


@pytest.mark.parametrize(("height", "width"), [(60, 90), (76, 10), (48, 32), (1, 30), (3, 1)])
def test_a_small_picture_is_seen_larger(height, width):
    pixels = picture(height, width)
    known = KnownSize(200, 96)
    seen = fitted(pixels, known)
    if SMALLER * max(height, width) > 96:
        assert seen is pixels
    else:
        assert max(seen.shape[:2]) == 96
    parser = make(long_side=200, least_long_side=96)
    assert parser.scores(pixels).shape == (3, height, width)
    np.testing.assert_array_equal(parser(pixels).labels, parser.scores(pixels).argmax(0))


def test_a_checkpoint_cannot_blow_pictures_up():
    assert fitted_size(1, 1, KnownSize(100_000, 100_000)) == (ENLARGED, ENLARGED)
    assert fitted_size(1500, 10, KnownSize(100_000, 100_000)) == (1500, 10)


def test_a_small_picture_is_parsed_like_the_enlarged_one():
    parser, large = make(long_side=200, least_long_side=192), picture(128, 192)
    small = np.asarray(Image.fromarray(large).resize((96, 64), Image.Resampling.BICUBIC))
    assert (parser(small).labels == parser(large).labels[1::2, 1::2]).mean() > 0.9
    assert parser(small).attention(40, 20).scale == pytest.approx(2)


def test_labels_are_the_best_of_the_enlarged_scores():
    parser, pixels = make(long_side=64), picture(200, 256)
    scores = parser.scores(pixels)
    assert scores.shape == (3, 200, 256)
    np.testing.assert_array_equal(parser(pixels).labels, scores.argmax(0))
    attention = parser(pixels).attention(130, 70)
    assert attention.scale == pytest.approx(0.25, abs=0.01)


def test_batches_streams_and_confidence_at_scale():
    parser = make(long_side=64)
    pictures = [picture(200, 256, seed) for seed in range(3)]
    together = list(parser.many(pictures, batch=3))
    for parse, pixels in zip(together, pictures, strict=True):
        np.testing.assert_array_equal(parse.labels, parser(pixels).labels)
    sure = parser(pictures[0], confidence=True).confidence
    assert sure.shape == (200, 256)
    assert (sure > 0.3).all()
    streaming = make(long_side=64, whole_up_to=1000, tile=32)
    assert streaming(pictures[0]).labels.shape == (200, 256)


def test_the_checkpoint_says_it_and_the_caller_may_overrule(tmp_path):
    net = ordnet.build("ordnet", classes=3, backbone="tiny")
    checkpoint.save(tmp_path / "net.safetensors", net, NAMES, COLOURS, {"long_side": 80})
    assert ordnet.load(tmp_path / "net.safetensors").long_side == 80
    assert ordnet.load(tmp_path / "net.safetensors", long_side="own").long_side is None
    assert ordnet.load(tmp_path / "net.safetensors", long_side=200).long_side == 200
    assert known_size(None, {}) == (None, None)
    about = {"long_side": 480, "least_long_side": 320}
    assert known_size(None, about) == (480, 320)
    assert known_size("own", about) == (None, None)
    assert known_size(200, about) == (200, 200)  # a bound that was asked for is kept
    assert known_size(1000, about) == (1000, 320)
    with pytest.raises(OrdnetError, match="number of pixels or 'own'"):
        known_size(-3, {})
    assert (parse_long_side("320"), parse_long_side("own"), parse_long_side(None)) == (320, "own", None)
    with pytest.raises(OrdnetError, match="--long-side big: expected a number of pixels, or own"):
        parse_long_side("big")


@pytest.mark.parametrize("protocol", ["multiscale", "encnet"])
def test_other_protocols_give_labels_of_the_pictures_size(protocol):
    parser = make(long_side=64, protocol=protocol)
    assert parser(picture(150, 200)).labels.shape == (150, 200)
