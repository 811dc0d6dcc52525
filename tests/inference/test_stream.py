"""Streaming a picture tile by tile gives what one pass over the whole picture gives."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ordnet
from ordnet.errors import OrdnetError
from ordnet.inference import stream
from ordnet.inference.upsample import axis, strips
from ordnet.model.build import make_backbone
from ordnet.model.parts import grown, inside, overlap, receptive_field, tiles
from ordnet.model.pixels import to_input


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def lively(net):
    """In float64, with statistics and biases that are not zero, so that nothing cancels by chance."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return net.double().eval()


def assert_streams(net, pixels, tile, tolerance=1e-9, **options):
    with torch.inference_mode():
        whole = net(to_input(pixels, net))[0]
    streamed = stream.scores(net, pixels, tile=tile, **options)
    assert streamed.shape == whole.shape
    difference = (streamed.to(whole) - whole).abs().max().item()
    assert difference <= tolerance * max(1.0, whole.abs().max().item())


BLOCKS = st.fixed_dictionaries(
    {
        "branches": st.sampled_from([("middle", "long"), ("middle",), ("long",)]),
        "patches": st.integers(1, 3),
        "gate": st.sampled_from(["out", "in", None]),
        "gate_norm": st.sampled_from(["sigmoid", "softmax"]),
        "gate_sum": st.sampled_from(["mean", "sum"]),
        "fusion": st.sampled_from(["concat", "sum", "scale", "channel"]),
        "form": st.sampled_from(["factored", "literal"]),
    }
)


@settings(max_examples=60)
@given(
    height=st.integers(9, 90),
    width=st.integers(9, 90),
    tile=st.integers(8, 60),
    align_corners=st.booleans(),
    neck=st.sampled_from([None, 12]),
    block=BLOCKS,
)
def test_streamed_equals_whole(height, width, tile, align_corners, neck, block):
    net = ordnet.build("ordnet", classes=5, backbone="tiny", align_corners=align_corners, neck=neck, **block)
    assert_streams(lively(net), picture(height, width), tile)


@pytest.mark.parametrize("variant", ["dilated-fcn", "basic-sa", "basic-sa-mr", "basic-sa-rlr", "mr", "ordnet"])
def test_variants_in_single_precision(variant):
    net = ordnet.build(variant, classes=7, backbone="tiny").eval()
    pixels = picture(70, 131)
    assert_streams(net, pixels, 40, tolerance=1e-4)
    whole = net(to_input(pixels, net))[0].argmax(0).numpy()
    assert np.mean(stream.labels(net, pixels, tile=40) == whole) > 0.999


def test_standardised_and_scaled_logits():
    net = ordnet.build(
        "ordnet", classes=3, backbone="tiny", gate_logits="standard", logit_scale="root", gate_norm="softmax"
    )
    assert_streams(lively(net), picture(50, 61), 24)
    net = ordnet.build("ordnet", classes=3, backbone="tiny", gate_logits="standard")
    assert_streams(lively(net), picture(50, 61), 24)


def test_without_projection():
    assert_streams(lively(ordnet.build("ordnet", classes=3, backbone="tiny", project=False)), picture(50, 61), 24)


def test_other_strides_and_the_deep_networks_edges():
    # the halo covers all of the picture's side but not all of the picture: tiles with and without true edges
    net = lively(ordnet.build("ordnet", classes=3, backbone="mobilenet_v2", output_stride=16, neck=8))
    assert_streams(net, picture(24, 700), 96, halo=receptive_field(net.backbone))


@settings(max_examples=12)
@given(
    height=st.integers(65, 150),
    width=st.integers(65, 150),
    tile=st.integers(32, 90),
    align_corners=st.booleans(),
    output_stride=st.sampled_from([8, 16, 32]),
    decoder=st.sampled_from(["fine", "dense"]),
    block=BLOCKS,
)
def test_the_fine_decoder_streams_exactly(height, width, tile, align_corners, output_stride, decoder, block):
    net = ordnet.build(
        "ordnet", classes=3, backbone="mobilenet_v2", output_stride=output_stride, neck=8, decoder=decoder,
        align_corners=align_corners, **block,
    )  # fmt: skip
    assert net.stride == 4
    assert_streams(lively(net), picture(height, width), tile, halo=256)


@pytest.mark.parametrize(("block_stride", "decoder"), [(16, "dense"), (16, "plain"), (8, "fine")])
def test_a_block_on_joined_maps_streams_exactly(block_stride, decoder):
    """Tiles begin where the coarsest map has a position of its own; the picture is longer than the halo."""
    net = ordnet.build(
        "ordnet", classes=3, backbone="mobilenet_v2_full", output_stride=32, neck=8, block_stride=block_stride,
        decoder=decoder, align_corners=False,
    )  # fmt: skip
    assert net.block_stride == block_stride
    assert_streams(lively(net), picture(40, 1100), 80)


def test_a_halo_too_small_is_noticed():
    net = lively(ordnet.build("ordnet", classes=5, backbone="tiny"))
    with pytest.raises(AssertionError):
        assert_streams(net, picture(70, 70), 24, halo=4)


def test_context_is_global():
    """A far corner changes every pixel's scores, by exactly what it changes in the whole picture."""
    net = lively(ordnet.build("ordnet", classes=4, backbone="tiny"))
    pixels = picture(80, 80)
    changed = pixels.copy()
    changed[-20:, -20:] = 255
    before, after = (stream.scores(net, p, tile=24) for p in (pixels, changed))
    assert (before[:, :10, :10] != after[:, :10, :10]).any()
    assert_streams(net, changed, 24)


@pytest.mark.parametrize("variant", ["interlaced", "danet", "nonlocal", "aspp", "ppm"])
def test_softmax_blocks_fall_back_to_windows_aloud(variant):
    net = ordnet.build(variant, classes=3, backbone="tiny").eval()
    pixels = picture(60, 90)
    with pytest.warns(UserWarning, match="know nothing of each other"):
        labels = stream.labels(net, pixels, tile=32, halo=8)
    assert labels.shape == (60, 90)
    # one window that covers the picture is the whole pass
    with pytest.warns(UserWarning):
        assert_streams(net, pixels, 90, tolerance=1e-4)


def test_softmax_similarity_falls_back_too():
    net = ordnet.build("ordnet", classes=3, backbone="tiny", similarity="softmax").eval()
    with pytest.warns(UserWarning, match="softmax"):
        stream.labels(net, picture(40, 40), tile=32)


def test_exact_streaming_is_silent_and_counts_tiles():
    net = ordnet.build("ordnet", classes=3, backbone="tiny", gate_norm="softmax", fusion="channel").eval()
    calls = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream.labels(net, picture(64, 64), tile=32, progress=lambda done, total: calls.append((done, total)))
    # sums, the gate's normaliser, the fusion's mean, the scores: four turns over four tiles
    assert calls == [(i, 16) for i in range(1, 17)]


def test_a_tile_below_the_stride_is_refused():
    net = ordnet.build("dilated-fcn", classes=3, backbone="tiny").eval()
    with pytest.raises(OrdnetError, match="smaller than the network's stride of 4"):
        stream.labels(net, picture(20, 20), tile=3)


@pytest.mark.parametrize("name", ["tiny", "mobilenet_v2", "resnet18"])
def test_receptive_field_is_what_gradients_reach(name):
    """With weights, inputs and statistics that are all positive, no path is cut and none cancels."""
    backbone = make_backbone(name).double().eval()
    for layer in backbone.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.constant_(layer.weight, 1 / layer.weight[0].numel())
    reach = receptive_field(backbone)
    stride = backbone.output_stride
    middle = reach // stride + 2
    # one row suffices: the layers treat both axes alike
    image = torch.full((1, 3, 1, 2 * middle * stride), 1e-6, dtype=torch.float64, requires_grad=True)
    features = backbone(image)[-1]
    features[0, 0, 0, middle].backward()
    reached = image.grad.abs().sum(dim=(0, 1, 2)).nonzero().flatten() - middle * stride
    # a pooling window passes one of its equal inputs on: the first
    slack = 2 if name == "resnet18" else 0
    assert reached.min() >= -reach
    assert reached.max() <= reach
    assert reached.min() <= -reach + slack


@given(st.integers(1, 60), st.integers(1, 60), st.integers(3, 64), st.integers(0, 20))
def test_tiles_cover_everything_once(height, width, size, by):
    seen = np.zeros((height, width), dtype=int)
    for area in tiles(height, width, size):
        seen[area] += 1
        rows, columns = wider = grown(area, by, height, width)
        assert max(area[0].stop - area[0].start, area[1].stop - area[1].start) <= size
        assert 0 <= rows.start <= area[0].start and area[0].stop <= rows.stop <= height
        assert 0 <= columns.start <= area[1].start and area[1].stop <= columns.stop <= width
        assert overlap(area, wider) == area
        assert (seen[wider][inside(area, wider)] == seen[area]).all()
    assert (seen == 1).all()


def test_areas_that_only_touch_do_not_overlap():
    assert overlap((slice(0, 4), slice(0, 4)), (slice(4, 8), slice(0, 4))) is None


@given(st.integers(1, 12), st.integers(1, 60), st.booleans(), st.data())
def test_upsampling_any_part_equals_interpolate(positions, pixels, align_corners, data):
    scores = torch.randn(3, positions, positions, dtype=torch.float64)
    whole = torch.nn.functional.interpolate(
        scores[None], size=(pixels, pixels), mode="bilinear", align_corners=align_corners
    )[0]
    start = data.draw(st.integers(0, pixels - 1))
    span = slice(start, data.draw(st.integers(start + 1, pixels)))
    rows, columns = (
        axis(span, pixels, positions, align_corners),
        axis(slice(0, pixels), pixels, positions, align_corners),
    )
    parts = [part for _, part in strips(scores[:, rows.positions, columns.positions], rows, columns)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole[:, span])
