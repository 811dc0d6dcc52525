"""Whole networks side by side: what context costs on top of the plain dilated FCN."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ordnet.bench.measure import Row, interleaved, peak_megabytes
from ordnet.errors import OrdnetError
from ordnet.inference.prepare import for_inference
from ordnet.model.build import build
from ordnet.model.flops import gflops
from ordnet.model.network import Network

METHODS: dict[str, dict[str, Any]] = {
    "ORDNet factored": {"variant": "ordnet"},
    "ORDNet literal": {"variant": "ordnet", "form": "literal"},
    "Dilated FCN": {"variant": "dilated-fcn"},
    "InterlacedSSA": {"variant": "interlaced"},
    "Basic SA": {"variant": "basic-sa", "similarity": "softmax", "form": "literal"},
    "DANet": {"variant": "danet"},
}
OURS, PLAIN = "ORDNet factored", "Dilated FCN"
CLASSES = 59
"""PASCAL-Context's."""


def run(backbone: str, height: int, width: int, repeats: int) -> list[Row]:
    """One row per method; ours first. Inference on one picture, every network prepared as for use."""
    if min(height, width) < 32:
        raise OrdnetError(f"the pictures need at least 32x32 pixels, got {height}x{width}")
    timings = interleaved({name: prepare(name, backbone, height, width, warm_up=False) for name in METHODS}, repeats)
    rows = []
    for name, settings in METHODS.items():
        seconds = timings[name].seconds
        with torch.device("meta"):
            net = build(**settings, classes=CLASSES, backbone=backbone)
        rows.append(
            Row(
                name,
                seconds=seconds,
                ratio=seconds / timings[OURS].seconds,
                spread=timings[name].spread,
                gflops=gflops(net, 1, 3, height, width),
                peak_mb=peak_megabytes(
                    "ordnet.bench.model:prepare", name=name, backbone=backbone, height=height, width=width
                ),
                extra={
                    "images_per_second": 1 / seconds,
                    "percent_over_FCN": 100 * (seconds / timings[PLAIN].seconds - 1),
                },
            )
        )
    return rows


def prepare(name: str, backbone: str, height: int, width: int, warm_up: bool = True) -> Callable[[], Tensor]:
    """One pass of a network over a random picture, ready to be called."""
    torch.manual_seed(0)
    net = for_inference(calibrated(build(**METHODS[name], classes=CLASSES, backbone=backbone)))
    picture = torch.randn(1, 3, height, width)

    def infer(image: Tensor = picture) -> Tensor:
        with torch.inference_mode():
            return net(image)

    if warm_up:  # kernels choose their code and reserve their own buffers on first use
        infer(torch.randn(1, 3, 64, 64))
    return infer


def calibrated(net: Network) -> Network:
    """Random weights whose batch norms know their inputs: otherwise activations double with every block."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics of this one pass
    with torch.no_grad():
        net.train()(torch.randn(2, 3, 96, 96))
    return net.eval()
