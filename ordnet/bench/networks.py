"""Whole networks on one picture: the variants side by side, torch beside ONNX Runtime, our `encnet` beside a plain one;
and folders of pictures through `predict`.

All networks have random weights; `prepare_…` sets one call up, also in the fresh process that measures its memory.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ordnet.bench.measure import Measurement, interleaved, peak_megabytes
from ordnet.errors import OrdnetError
from ordnet.inference.onnx.export import finished, traced
from ordnet.inference.onnx.runtime import session
from ordnet.inference.prediction import Prediction
from ordnet.inference.protocols import SCALES, Protocol, labels, scaled_size, windows
from ordnet.model.build import build
from ordnet.model.flops import gflops
from ordnet.model.network import Network, for_inference
from ordnet.model.pixels import black, normalise
from ordnet.progress import progress

VARIANTS: dict[str, dict[str, Any]] = {
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


def compare_variants(backbone: str, height: int, width: int, repeats: int) -> list[Measurement]:
    """One row per method; ours first. Inference on one picture, every network prepared as for use."""
    _check_size(height, width)
    timings = interleaved(
        {name: prepare_variant(name, backbone, height, width, warm_up=False) for name in VARIANTS}, repeats
    )
    rows = []
    for name, settings in VARIANTS.items():
        seconds = timings[name].seconds
        with torch.device("meta"):
            net = build(**settings, classes=CLASSES, backbone=backbone)
        rows.append(
            Measurement(
                name,
                seconds=seconds,
                ratio=seconds / timings[OURS].seconds,
                spread=timings[name].spread,
                gflops=gflops(net, 1, 3, height, width),
                peak_mb=peak_megabytes(
                    "ordnet.bench.networks:prepare_variant", name=name, backbone=backbone, height=height, width=width
                ),
                extra={
                    "images_per_second": 1 / seconds,
                    "percent_over_FCN": 100 * (seconds / timings[PLAIN].seconds - 1),
                },
            )
        )
    return rows


def prepare_variant(name: str, backbone: str, height: int, width: int, warm_up: bool = True) -> Callable[[], Tensor]:
    """One pass of a network over a random picture, ready to be called."""
    torch.manual_seed(0)
    net = for_inference(calibrated(build(**VARIANTS[name], classes=CLASSES, backbone=backbone)))
    picture = torch.randn(1, 3, height, width)

    def infer(image: Tensor = picture) -> Tensor:
        with torch.inference_mode():
            return net(image)

    if warm_up:  # kernels choose their code and reserve their own buffers on first use
        infer(torch.randn(1, 3, 64, 64))
    return infer


def calibrated(net: Network) -> Network:
    """Random weights whose batch norms have seen inputs: otherwise activations double with every block."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics of this one pass
    with torch.no_grad():
        net.train()(torch.randn(2, 3, 96, 96))
    return net.eval()


RUNTIMES = {"onnx": "ONNX Runtime", "eager": "torch eager", "prepared": "torch as ordnet runs it"}
"""ordnet runs torch with batch norms folded and channels last (ordnet.model.network)."""


def compare_runtimes(backbone: str, height: int, width: int, repeats: int) -> list[Measurement]:
    """One row per way to run ORDNet on one picture; ONNX Runtime first."""
    _check_size(height, width)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        with progress() as bar:
            bar.add_task(f"exporting {backbone}", total=None)
            file.write_bytes(finished(traced(_network(backbone)), {}))
        return compare_exported(file, backbone, height, width, repeats)


def compare_exported(file: Path, backbone: str, height: int, width: int, repeats: int) -> list[Measurement]:
    """The rows for a network that was exported already."""
    arguments: dict[str, Any] = {"backbone": backbone, "height": height, "width": width, "file": str(file)}
    timings = interleaved({name: prepare_runtime(runtime, **arguments) for runtime, name in RUNTIMES.items()}, repeats)
    with torch.device("meta"):
        operations = gflops(build(**VARIANTS[OURS], classes=CLASSES, backbone=backbone), 1, 3, height, width)
    ours = timings[RUNTIMES["onnx"]].seconds
    return [
        Measurement(
            name,
            seconds=timings[name].seconds,
            ratio=timings[name].seconds / ours,
            spread=timings[name].spread,
            gflops=operations,
            peak_mb=peak_megabytes("ordnet.bench.networks:prepare_runtime", runtime=runtime, **arguments),
            extra={"images_per_second": 1 / timings[name].seconds},
        )
        for runtime, name in RUNTIMES.items()
    ]


def prepare_runtime(runtime: str, backbone: str, height: int, width: int, file: str) -> Callable[[], object]:
    """Scores of one random picture, ready to be called; warmed up on a small one."""
    small, picture = (
        torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        for size in ((64, 64), (height, width))
    )
    if runtime == "onnx":
        loaded = session(Path(file).read_bytes())

        def infer(image: torch.Tensor = picture) -> np.ndarray | torch.Tensor:
            return loaded.run(["scores"], {"image": image.float().numpy()})[0]
    else:
        net = for_inference(_network(backbone)) if runtime == "prepared" else _network(backbone)

        def infer(image: torch.Tensor = picture) -> np.ndarray | torch.Tensor:
            with torch.inference_mode():
                return net(normalise(image))

    infer(small)
    return infer


def _network(backbone: str) -> Network:
    torch.manual_seed(0)
    return calibrated(build(**VARIANTS[OURS], classes=CLASSES, backbone=backbone))


PROTOCOLS = ("encnet", "encnet, plain")
BASE, CROP = 520, 480


def compare_protocols(backbone: str, classes: int, height: int, width: int, repeats: int) -> list[Measurement]:
    """Ours first. Folded weights round differently: pixels where two classes tie may get either of them."""
    case: dict[str, Any] = {"backbone": backbone, "classes": classes, "height": height, "width": width}
    found: dict[str, NDArray[np.uint8]] = {}

    def remembered(name: str) -> Callable[[], None]:
        call = prepare_protocol(name, **case, warm_up=False)

        def run_once() -> None:
            found[name] = call()

        return run_once

    timings = interleaved({name: remembered(name) for name in PROTOCOLS}, repeats)
    different = int((found[PROTOCOLS[0]] != found[PROTOCOLS[1]]).sum())
    return [
        Measurement(
            name,
            seconds=timings[name].seconds,
            ratio=timings[name].seconds / timings[PROTOCOLS[0]].seconds,
            spread=timings[name].spread,
            peak_mb=peak_megabytes("ordnet.bench.networks:prepare_protocol", name=name, **case),
            extra={"labels_that_differ": different, "of_pixels": height * width},
        )
        for name in PROTOCOLS
    ]


def prepare_protocol(
    name: str, backbone: str, classes: int, height: int, width: int, warm_up: bool = True
) -> Callable[[], NDArray[np.uint8]]:
    """A random network tested on a random picture, ready to be called: any of our protocols, or the plain `encnet`."""
    torch.manual_seed(0)
    net = calibrated(build("ordnet", classes=classes, backbone=backbone))
    image = F.interpolate(torch.randn(1, 3, 9, 12), (height, width), mode="bicubic")
    plain = name == PROTOCOLS[1]
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


def _check_size(height: int, width: int) -> None:
    if min(height, width) < 32:
        raise OrdnetError(f"the pictures need at least 32x32 pixels, got {height}x{width}")


# ---- many pictures, and one from a cold start ---------------------------------------------------------------------


def compare_predicting(model: str, images: Sequence[str], repeats: int) -> list[Measurement]:
    """A folder of pictures as `predict` does it, and one after the other; one picture from a cold start."""
    with TemporaryDirectory() as folder:
        job = Prediction(model, images, Path(folder), ("overlay", "labels", "palette"))
        first = job.pictures[0].path

        def overlapping() -> None:
            failed = [outcome.failure for outcome in job.run(force=True) if outcome.failure]
            if failed:
                raise OrdnetError(failed[0])

        def one_by_one() -> None:
            for picture in job.pictures:
                job.parser(picture.path).save(folder, picture.stem, job.save)

        times = interleaved({"predict": overlapping, "one after the other": one_by_one}, repeats)
        cold = [sys.executable, "-m", "ordnet", "predict", model, str(first), "--out", folder, "--force"]
        starts = interleaved(
            {
                "one picture, cold start": partial(subprocess.run, cold, check=True, capture_output=True),
                "import torch": partial(subprocess.run, [sys.executable, "-c", "import torch"], check=True),
            },
            repeats,
        )
    count = len(job.pictures)
    rows = [
        Measurement(
            f"{name}, {count:,} pictures", timing.seconds, timing.seconds / times["predict"].seconds, timing.spread,
            extra={"pictures_a_second": count / timing.seconds},
        )
        for name, timing in times.items()
    ]  # fmt: skip
    above = starts["one picture, cold start"].seconds - starts["import torch"].seconds
    for name, timing in starts.items():
        extra = {"seconds_above_import_torch": above} if name != "import torch" else {}
        rows.append(Measurement(name, timing.seconds, spread=timing.spread, extra=extra))
    return rows
