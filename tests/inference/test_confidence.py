"""Confidence: the probability of each pixel's class, against a plain softmax."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ordnet
from ordnet.inference import protocols
from ordnet.inference.upsample import best_classes, held
from ordnet.model.pixels import to_input

NAMES = ("sky", "tree", "road", "water")
COLOURS = ((70, 130, 180), (34, 100, 34), (128, 64, 128), (0, 60, 200))


def make(**options):
    torch.manual_seed(3)
    net = ordnet.build("ordnet", classes=4, backbone="tiny").eval()
    return ordnet.Parser(net, NAMES, COLOURS, device="cpu", **options)


def picture(height, width, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def check(parser, pixels, probabilities):
    """The parser's confidence is what `probabilities` (K, H, W) say of the classes that it chose."""
    parse = parser(pixels, confidence=True)
    assert parse.confidence.dtype == np.float16 and parse.confidence.shape == pixels.shape[:2]
    chosen = np.take_along_axis(probabilities.numpy(), parse.labels[None].astype(int), 0)[0]
    np.testing.assert_allclose(parse.confidence, chosen, atol=2e-3)
    without = parser(pixels)
    np.testing.assert_array_equal(parse.labels, without.labels)
    assert without.confidence is None


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_confidence_is_the_softmax_of_the_scores(height, width, streamed, seed):
    parser, pixels = make(**({"whole_up_to": 1, "tile": 16} if streamed else {})), picture(height, width, seed)
    check(parser, pixels, torch.from_numpy(parser.scores(pixels)).softmax(0))


def test_multiscale_means_are_probabilities_already():
    parser, pixels = make(protocol="multiscale"), picture(45, 61, 0)
    check(parser, pixels, protocols.multiscale(parser.net, to_input(pixels, parser.net))[0])


def test_encnet_sums_are_made_probabilities():
    net, sizes = make().net, {"base": 64, "crop": 48}
    image = to_input(picture(45, 61, 0), net)
    confidence = np.empty((45, 61), np.float16)
    labels = protocols.labels(net, image, protocols.Protocol("encnet", **sizes), confidence=confidence)
    sums = protocols.encnet(net, image, **sizes)[0]
    chosen = np.take_along_axis((sums / sums.sum(0)).numpy(), labels[None].astype(int), 0)[0]
    np.testing.assert_allclose(confidence, chosen, atol=2e-3)


@pytest.mark.parametrize("size", [1.0, 300.0, 3e38])
def test_confidence_of_scores_that_would_overflow(size):
    scores = torch.tensor([[[[size, 0.0]], [[-size, 0.0]]]])
    found = np.empty((1, 2), np.float16)
    assert best_classes(held(scores), found).tolist() == [[0, 0]]
    np.testing.assert_allclose(found, [[torch.tensor(2.0 * min(size, 50)).sigmoid(), 0.5]], atol=1e-3)
