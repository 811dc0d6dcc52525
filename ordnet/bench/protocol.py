"""EncNet's test protocol as we run it, beside its plain form: one window at a time, every step at full size."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ordnet.bench.measure import Row, interleaved, peak_megabytes
from ordnet.bench.model import calibrated
from ordnet.inference.prepare import for_inference
from ordnet.inference.protocols import SCALES, Protocol, labels, scaled_size, windows
from ordnet.model.build import build
from ordnet.model.pixels import black

METHODS = ("encnet", "encnet, plain")
BASE, CROP = 520, 480


def run(backbone: str, classes: int, height: int, width: int, repeats: int) -> list[Row]:
    """Ours first. Folded weights round differently: pixels where two classes tie may get either of them."""
    case: dict[str, Any] = {"backbone": backbone, "classes": classes, "height": height, "width": width}
    found: dict[str, NDArray[np.uint8]] = {}

    def remembered(name: str) -> Callable[[], None]:
        call = prepare(name, **case, warm_up=False)

        def run_once() -> None:
            found[name] = call()

        return run_once

    timings = interleaved({name: remembered(name) for name in METHODS}, repeats)
    different = int((found[METHODS[0]] != found[METHODS[1]]).sum())
    return [
        Row(
            name,
            seconds=timings[name].seconds,
            ratio=timings[name].seconds / timings[METHODS[0]].seconds,
            spread=timings[name].spread,
            peak_mb=peak_megabytes("ordnet.bench.protocol:prepare", name=name, **case),
            extra={"labels_that_differ": different, "of_pixels": height * width},
        )
        for name in METHODS
    ]


def prepare(
    name: str, backbone: str, classes: int, height: int, width: int, warm_up: bool = True
) -> Callable[[], NDArray[np.uint8]]:
    """A random network tested on a random picture, ready to be called: any of our protocols, or the plain `encnet`."""
    torch.manual_seed(0)
    net = calibrated(build("ordnet", classes=classes, backbone=backbone))
    image = F.interpolate(torch.randn(1, 3, 9, 12), (height, width), mode="bicubic")
    plain = name == METHODS[1]
    ready = net if plain else for_inference(net)
    if warm_up:  # kernels choose their code and reserve their own buffers on first use
        labels(ready, torch.randn(1, 3, 64, 64))
    if plain:
        return lambda: plain_encnet(ready, image)
    return lambda: labels(ready, image, Protocol(name, BASE, CROP))


def plain_encnet(net: nn.Module, image: Tensor) -> NDArray[np.uint8]:
    """The protocol's steps in their order, as it is usually written."""
    height, width = image.shape[2:]
    total = torch.zeros(())
    with torch.no_grad():
        for scale in SCALES:
            scores = _at_scale(net, image, *scaled_size(height, width, BASE, scale))
            total = total + F.interpolate(scores, (height, width), mode="bilinear", align_corners=True)
    return total[0].argmax(0).to(torch.uint8).numpy()


def _at_scale(net: nn.Module, image: Tensor, height: int, width: int) -> Tensor:
    picture = F.interpolate(image, (height, width), mode="bilinear", align_corners=True)
    scores, count = torch.zeros(()), torch.zeros(1, 1, height, width)
    for window in windows(height, width, CROP):
        rows, columns = slice(window.top, window.bottom), slice(window.left, window.right)
        part = black(image, CROP, CROP)
        part[:, :, : window.bottom - window.top, : window.right - window.left] = picture[:, :, rows, columns]
        out = (net(part) + net(part.flip(3)).flip(3)).exp()
        if scores.dim() == 0:
            scores = torch.zeros(1, out.shape[1], height, width)
        scores[:, :, rows, columns] += out[:, :, : window.bottom - window.top, : window.right - window.left]
        count[:, :, rows, columns] += 1
    return scores / count
