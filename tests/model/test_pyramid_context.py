"""ASPP and pyramid pooling against torch's own operations, and as ONNX for maps of any size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import ordnet
from ordnet.bench.networks import calibrated
from ordnet.inference.onnx.export import export
from ordnet.model import checkpoint
from ordnet.model.baselines import ASPP, PyramidPooling, pooled


@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 30))
def test_pooling_is_adaptive_average_pooling(bins, height, width):
    x = torch.randn(2, 3, height, width, dtype=torch.float64)
    torch.testing.assert_close(pooled(x, bins), functional.adaptive_avg_pool2d(x, bins))


def test_pyramid_pooling_by_hand():
    block = PyramidPooling(8, width=8).eval()
    x = torch.randn(2, 8, 7, 13)
    parts = [x]
    for level, bins in zip(block.levels, (1, 2, 3, 6), strict=True):
        small = functional.relu(
            functional.conv2d(functional.adaptive_avg_pool2d(x, bins), level[0].weight, level[0].bias)
        )
        parts.append(functional.interpolate(small, size=(7, 13), mode="bilinear", align_corners=True))
    torch.testing.assert_close(block(x), block.fuse(torch.cat(parts, 1)))


def test_aspp_sees_as_far_as_its_rates_and_everything_by_its_mean():
    torch.manual_seed(0)
    block = ASPP(8, width=8).eval()
    x = torch.randn(1, 8, 1, 80, requires_grad=True)
    near = torch.cat([block.near(x), *(layer(x) for layer in block.far)], 1)
    near[..., 40].sum().backward()
    seen = x.grad.abs().sum((0, 1, 2)).nonzero().flatten()
    assert {int(place) - 40 for place in seen} <= {0, 6, -6, 12, -12, 18, -18}
    x.grad = None
    block(x)[..., 40].sum().backward()
    assert (x.grad.abs().sum((0, 1, 2)) > 0).all()


@pytest.mark.parametrize("kind", [ASPP, PyramidPooling])
def test_a_batch_of_one_can_be_trained_on(kind):
    block = kind(8, width=8).train()
    block(torch.randn(1, 8, 5, 6)).sum().backward()


@pytest.mark.parametrize("variant", ["aspp", "ppm"])
def test_as_onnx(variant, tmp_path):
    """The export compares itself with torch at several sizes before it is written."""
    torch.manual_seed(0)
    net = calibrated(ordnet.build(variant, classes=3, backbone="tiny"))
    checkpoint.save(tmp_path / "net.safetensors", net, ("a", "b", "c"), ((0, 0, 0), (9, 9, 9), (99, 99, 99)), {})
    export(tmp_path / "net.safetensors", tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size > 1000
