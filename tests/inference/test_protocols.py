"""Test-time protocols against a step-by-step account of each, and maps in bands against whole maps."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ordnet
from ordnet.bench.measure import peak_megabytes
from ordnet.errors import OrdnetError
from ordnet.inference import protocols
from ordnet.inference import upsample as bands
from ordnet.inference.protocols import Protocol, scaled_size, starts, stride, windows
from tests import plain_encnet

sides = st.integers(1, 40)


def tiny_net(align_corners=True, classes=5, **settings):
    torch.manual_seed(1)
    net = ordnet.build("ordnet", classes=classes, backbone="tiny", align_corners=align_corners, **settings)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics as after training
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.running_mean, std=0.3)
    nn.init.normal_(net.head[-1].weight, std=0.5)
    return net.double().eval()


NETS = {align: tiny_net(align) for align in (True, False)}


def random_image(height, width, seed=0):
    return torch.randn(1, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- windows -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 150), st.integers(1, 150), st.integers(8, 120))
def test_windows_cover_every_pixel(height, width, crop):
    covered = np.zeros((height, width), int)
    for window in windows(height, width, crop):
        assert 0 <= window.top < window.bottom <= min(window.top + crop, height)
        assert 0 <= window.left < window.right <= min(window.left + crop, width)
        covered[window.top : window.bottom, window.left : window.right] += 1
    assert covered.min() >= 1


@given(st.integers(1, 2000), st.integers(2, 600))
def test_starts_are_multiples_of_the_stride(size, crop):
    step = int(crop * 2 / 3)
    expected = 1 if size <= crop else -(-(size - crop) // step) + 1
    assert stride(crop) == step
    assert starts(size, crop) == [i * step for i in range(expected)]


@pytest.mark.parametrize(
    ("size", "scale", "expected"),
    [((375, 500), 0.5, (195, 260)), ((500, 375), 1.75, (910, 683)), ((333, 333), 1.25, (650, 650)),
     ((100, 101), 0.999, (515, 520)), ((1, 2000), 0.5, (1, 260))],
)  # fmt: skip
def test_scaled_sizes_by_hand(size, scale, expected):
    assert scaled_size(*size, 520, scale) == expected


# ---- bands -------------------------------------------------------------------------------------------------------


@given(sides, sides, st.integers(1, 90), st.integers(1, 90), st.booleans(), st.integers(1, 4000))
def test_bands_give_what_the_whole_map_gives(h, w, height, width, align, budget):
    scores = torch.randn(1, 4, h, w, dtype=torch.float64)
    whole = F.interpolate(scores, (height, width), mode="bilinear", align_corners=align)
    single = F.interpolate(scores.float(), (height, width), mode="bilinear", align_corners=align)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bands, "BAND", budget)
        banded = bands.resized(bands.held(scores), height, width, align)
        torch.testing.assert_close(bands.whole_map(banded), whole, rtol=0, atol=1e-12)
        labels = bands.best_classes(bands.resized(bands.held(scores.float()), height, width, align))
    np.testing.assert_array_equal(labels, single[0].argmax(0).numpy())


@pytest.mark.parametrize("align", [True, False])
def test_labels_of_many_classes_in_single_precision(align):
    scores = torch.randn(1, 150, 33, 57)
    whole = F.interpolate(scores, (261, 450), mode="bilinear", align_corners=align)
    labels = bands.best_classes(bands.resized(bands.held(scores), 261, 450, align))
    np.testing.assert_array_equal(labels, whole[0].argmax(0).numpy())


def test_bands_stay_small():
    scores = bands.resized(bands.resized(bands.held(torch.zeros(1, 150, 60, 60)), 480, 480, True), 90, 70, True)
    made = [band.numel() for _, band in bands.bands(scores)]
    assert len(made) > 10  # a row of the result takes more than five rows of the middle map
    assert sum(made) == 150 * 90 * 70
    assert max(made) <= bands.BAND


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5))
def test_the_first_of_equals_wins(classes, height, width):
    scores = torch.randint(0, 3, (1, classes, height, width)).float()
    expected = scores[0].numpy().argmax(0)
    np.testing.assert_array_equal(bands.best_classes(bands.held(scores)), expected)


def test_too_many_classes_for_a_label_map():
    bands.best_classes(bands.held(torch.zeros(1, 256, 1, 1)))
    with pytest.raises(OrdnetError, match="at most 256"):
        bands.best_classes(bands.held(torch.zeros(1, 257, 1, 1)))


# ---- whole and multiscale ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(8, 8), (37, 61), (90, 33)])
def test_whole_is_the_network(align, size):
    net, image = NETS[align], random_image(*size)
    with torch.no_grad():
        expected = net(image)
    torch.testing.assert_close(protocols.whole(net, image), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(protocols.labels(net, image, "whole"), expected[0].argmax(0))


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(16, 16), (37, 61), (90, 33)])
def test_multiscale_is_the_mean_of_the_softmax(align, size):
    net, image = NETS[align], random_image(*size)
    total = torch.zeros(1, 5, *size, dtype=torch.float64)
    scales = (0.5, 0.75, 1, 1.25, 1.5, 1.75)
    with torch.no_grad():
        for scale in scales:
            to = [int(side * scale + 0.5) for side in size]
            scaled = F.interpolate(image, to, mode="bilinear", align_corners=True)
            for flip in (False, True):
                small = net.small_scores(scaled.flip(3) if flip else scaled)
                full = F.interpolate(small, size, mode="bilinear", align_corners=align)
                total += (full.flip(3) if flip else full).softmax(dim=1)
    found = protocols.multiscale(net, image)
    torch.testing.assert_close(found, total / 12, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(1), torch.ones(1, *size, dtype=torch.float64))
    np.testing.assert_array_equal(protocols.labels(net, image, "multiscale"), total[0].argmax(0))


def test_multiscale_of_a_mirrored_picture_is_mirrored():
    image = random_image(40, 56)
    mirrored = protocols.multiscale(NETS[True], image.flip(3), scales=(0.75, 1))
    torch.testing.assert_close(mirrored.flip(3), protocols.multiscale(NETS[True], image, scales=(0.75, 1)))


# ---- encnet ------------------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    st.integers(5, 70), st.integers(5, 70), st.integers(16, 44), st.integers(16, 36), st.booleans(), st.integers(0, 99)
)
def test_encnet_step_by_step(height, width, base, crop, align, seed):
    net, image = NETS[align], random_image(height, width, seed)
    scales = (0.5, 1.0, 1.75)
    expected = plain_encnet.sums(net, image[0].numpy(), base, crop, scales)
    found = protocols.encnet(net, image, base, crop, scales)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9)
    labels = protocols.labels(net, image, Protocol("encnet", base, crop, tuple(scales)))
    np.testing.assert_array_equal(labels, expected.argmax(0))


def test_encnet_with_the_papers_sizes():
    """Any module that gives scores can be tested, here one that sees nine pixels."""
    net = nn.Conv2d(3, 3, 3, padding=1).double()
    image = random_image(75, 121)
    expected = plain_encnet.sums(net, image[0].numpy(), 520, 480, (0.5, 0.75, 1.0, 1.25, 1.5, 1.75))
    np.testing.assert_allclose(protocols.encnet(net, image)[0].numpy(), expected, rtol=1e-9)
    np.testing.assert_array_equal(protocols.labels(net, image, "encnet"), expected.argmax(0))


class Constant(nn.Module):
    """The same scores everywhere; remembers what it was shown."""

    def __init__(self, scores):
        super().__init__()
        self.scores = torch.tensor(scores)
        self.seen = []

    def forward(self, image):
        self.seen.append(image)
        return self.scores.to(image).view(1, -1, 1, 1).expand(1, -1, *image.shape[2:])


def test_encnet_by_hand():
    """Each of two scales gives exp(2 · score) at every pixel: windows are averaged, nothing is halved."""
    found = protocols.encnet(Constant([0.5, -1.0]), random_image(50, 70), 60, 40, scales=(0.5, 1.5))
    expected = 2 * torch.tensor([1.0, -2.0], dtype=torch.float64).exp().view(1, 2, 1, 1).expand(1, 2, 50, 70)
    torch.testing.assert_close(found, expected)


def test_encnet_pads_with_black():
    net = Constant([0.0, 1.0])
    protocols.encnet(net, random_image(50, 70), base=60, crop=40, scales=(1.0,))
    # 43 x 60: two windows down (0, 26) and two across; each also mirrored
    assert [tuple(x.shape) for x in net.seen] == [(1, 3, 40, 40)] * 8
    last, mirrored = net.seen[-2:]
    black = torch.from_numpy(plain_encnet.BLACK).view(3, 1, 1)
    assert torch.equal(mirrored.flip(3), last)
    torch.testing.assert_close(last[0, :, 43 - 26 :, :], black.expand(3, 23, 40))
    torch.testing.assert_close(last[0, :, :, 60 - 26 :], black.expand(3, 40, 6))
    assert not torch.isclose(last[0, :, : 43 - 26, : 60 - 26], black).any()


@pytest.mark.parametrize("offset", [-200.0, 0.0, 60.0, 200.0])
def test_certain_networks_do_not_overflow(offset):
    """exp(2 · 60) is infinite in single precision, exp(-2 · 200) zero: both would make every class alike."""
    net = nn.Conv2d(3, 4, 1)
    net.bias.data += offset
    image = random_image(30, 41).float()
    found = protocols.encnet(net, image, 30, 24)
    assert torch.isfinite(found).all()
    assert (found > 0).all()
    assert found.dtype == (torch.float32 if offset == 0 else torch.float64)
    net, image = net.double(), image.double()
    net.bias.data -= offset  # the same factor for all classes
    expected = protocols.labels(net, image, Protocol("encnet", 30, 24))
    labels = found[0].argmax(0).numpy()
    assert (labels == expected).mean() > 0.999  # scores of about 200 have lost their last digits


# ---- all protocols -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_the_networks_mode_and_statistics_survive(protocol):
    net = tiny_net(dropout=0.5)
    image = random_image(24, 32)
    expected = protocols.labels(net, image, Protocol(protocol, 24, 16))
    before = {key: tensor.clone() for key, tensor in net.train().state_dict().items()}
    np.testing.assert_array_equal(protocols.labels(net, image, Protocol(protocol, 24, 16)), expected)
    assert net.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


class Pass(nn.Module):
    """A backbone that costs nothing: the memory is the protocol's own."""

    strides = (1,)

    def forward(self, image, levels):
        return [image]


def many_classes():
    torch.set_num_threads(1)
    net = ordnet.build("dilated-fcn", classes=200, backbone="tiny")
    net.backbone, net.head = Pass(), nn.Conv2d(3, 200, 32, stride=32)
    image = torch.randn(1, 3, 480, 640)

    def run():
        for protocol in protocols.PROTOCOLS:
            protocols.labels(net, image, Protocol(protocol, 640, scales=(0.5, 1.0)))

    return run


def test_memory_does_not_grow_with_classes_times_pixels():
    """A whole map of 200 classes would take 246 MB here."""
    assert peak_megabytes("tests.inference.test_protocols:many_classes") < 123


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (torch.zeros(2, 3, 8, 8), {}, r"one picture \(1, 3, H, W\) at a time, got \(2, 3, 8, 8\)"),
        (torch.zeros(3, 8, 8), {}, "one picture"),
        (torch.zeros(1, 3, 0, 8), {}, "one picture"),
        (torch.zeros(1, 3, 8, 8), {"name": "tta"}, "no protocol 'tta'; there are whole, multiscale, encnet"),
        (torch.zeros(1, 3, 8, 8), {"name": "encnet", "crop": 0}, "must be positive: got .* crop 0"),
        (torch.zeros(1, 3, 8, 8), {"name": "encnet", "base": -5}, "must be positive"),
        (torch.zeros(1, 3, 8, 8), {"name": "multiscale", "scales": ()}, "must be positive"),
        (torch.zeros(1, 3, 8, 8), {"name": "multiscale", "scales": (1, 0)}, "must be positive"),
    ],
)
def test_wrong_input(image, options, message):
    with pytest.raises(OrdnetError, match=message):
        protocols.labels(NETS[True], image, Protocol(**options))
