"""ONNX Runtime beside torch: the same networks, the same picture, the CPU, as many threads each."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ordnet.bench.measure import Row, interleaved, peak_megabytes
from ordnet.bench.model import CLASSES, METHODS, OURS, calibrated
from ordnet.errors import OrdnetError
from ordnet.inference.onnx.export import finished, traced
from ordnet.inference.onnx.runtime import session
from ordnet.inference.prepare import for_inference
from ordnet.model.build import build
from ordnet.model.flops import gflops
from ordnet.model.network import Network
from ordnet.model.pixels import normalise
from ordnet.progress import progress

WAYS = {"onnx": "ONNX Runtime", "eager": "torch eager", "prepared": "torch as ordnet runs it"}
"""ordnet runs torch with batch norms folded and channels last (ordnet.inference.prepare)."""


def run(backbone: str, height: int, width: int, repeats: int) -> list[Row]:
    """One row per way to run ORDNet on one picture; ONNX Runtime first."""
    if min(height, width) < 32:
        raise OrdnetError(f"the pictures need at least 32x32 pixels, got {height}x{width}")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        with progress() as bar:
            bar.add_task(f"exporting {backbone}", total=None)
            file.write_bytes(finished(traced(_network(backbone)), {}))
        return compare(file, backbone, height, width, repeats)


def compare(file: Path, backbone: str, height: int, width: int, repeats: int) -> list[Row]:
    """The rows for a network that was exported already."""
    arguments: dict[str, Any] = {"backbone": backbone, "height": height, "width": width, "file": str(file)}
    timings = interleaved({name: prepare(way, **arguments) for way, name in WAYS.items()}, repeats)
    with torch.device("meta"):
        operations = gflops(build(**METHODS[OURS], classes=CLASSES, backbone=backbone), 1, 3, height, width)
    ours = timings[WAYS["onnx"]].seconds
    return [
        Row(
            name,
            seconds=timings[name].seconds,
            ratio=timings[name].seconds / ours,
            spread=timings[name].spread,
            gflops=operations,
            peak_mb=peak_megabytes("ordnet.bench.onnx:prepare", way=way, **arguments),
            extra={"images_per_second": 1 / timings[name].seconds},
        )
        for way, name in WAYS.items()
    ]


def prepare(way: str, backbone: str, height: int, width: int, file: str) -> Callable[[], object]:
    """Scores of one random picture, ready to be called; warmed up on a small one."""
    small, picture = (
        torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        for size in ((64, 64), (height, width))
    )
    if way == "onnx":
        runtime = session(Path(file).read_bytes())

        def infer(image: torch.Tensor = picture) -> np.ndarray | torch.Tensor:
            return runtime.run(["scores"], {"image": image.float().numpy()})[0]
    else:
        net = for_inference(_network(backbone)) if way == "prepared" else _network(backbone)

        def infer(image: torch.Tensor = picture) -> np.ndarray | torch.Tensor:
            with torch.inference_mode():
                return net(normalise(image))

    infer(small)
    return infer


def _network(backbone: str) -> Network:
    torch.manual_seed(0)
    return calibrated(build(**METHODS[OURS], classes=CLASSES, backbone=backbone))
