"""ONNX Runtime: how it is set up, and whether it gives with a file what torch gives with the network."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ordnet.errors import OrdnetError
from ordnet.model.network import Network, for_inference
from ordnet.model.pixels import normalise


def library(name: str) -> Any:
    """onnx, onnxscript or onnxruntime; a plain error where the extra is not installed."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise OrdnetError(f"ONNX needs the extra `export`: pip install 'ordnet[export]' ({error})") from None


def session(model: bytes) -> Any:
    """An InferenceSession on the CPU, with as many threads as torch has. Threads may share it."""
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors; warnings are about its own optimisations
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


SCORES, LABELS = 1e-4, 0.9999
"""How far scores may be off, relative to the largest score, and the share of pixels that need the same label."""
HALF_SCORES, HALF_LABELS = 1e-2, 0.999
"""The same for weights in 16 bits."""


@dataclass(frozen=True)
class Distance:
    """How far scores are from torch's in float64."""

    scores: float
    """The largest difference, relative to the largest score."""
    labels: float
    """The share of pixels with the same label, 0..1."""


@dataclass(frozen=True)
class Check:
    batch: int
    height: int
    width: int
    onnx: Distance
    torch: Distance
    """The distance of torch's own float32 scores: no file can be expected to do much better."""

    def __str__(self) -> str:
        return (
            f"{self.batch} x {self.height} x {self.width}: scores within {self.onnx.scores:.1e} of the largest "
            f"(torch itself {self.torch.scores:.1e}), {self.onnx.labels:.3%} of the labels the same"
        )


def check(session: Any, net: Network, half: bool, progress: Callable[[str], object]) -> list[Check]:
    """Three sizes, odd ones and a batch among them; an error that says what differed unless all are close enough.

    Twice torch's own distance is close enough too: rounding grows in networks that amplify it.
    """
    exact = copy.deepcopy(net).double().eval()
    usual = for_inference(net)
    side = max(96, net.least_side)
    checks = []
    for batch, height, width in ((1, side, side + 32), (2, side + 1, side + 35), (1, side + 45, side + 7)):
        progress(f"{height}x{width}")
        pictures = _pictures(batch, height, width)
        with torch.inference_mode():
            wanted = exact(normalise(pictures).double())
            own = usual(normalise(pictures)).double()
        got = torch.from_numpy(session.run(["scores"], {"image": pictures.float().numpy()})[0]).double()
        checks.append(Check(batch, height, width, _distance(got, wanted), _distance(own, wanted)))
    bad = [found for found in checks if not _passes(found, half)]
    if bad:
        scores, labels = (HALF_SCORES, HALF_LABELS) if half else (SCORES, LABELS)
        raise OrdnetError(
            f"ONNX Runtime does not give what torch gives, so nothing was written. {'; '.join(map(str, bad))}. "
            f"Expected {scores:.0e} and {labels:.2%}" + ("; leave --half out" if half else "")
        )
    return checks


def _passes(found: Check, half: bool) -> bool:
    if half:
        return found.onnx.scores <= HALF_SCORES and found.onnx.labels >= HALF_LABELS
    return found.onnx.scores <= max(SCORES, 2 * found.torch.scores) and found.onnx.labels >= min(
        LABELS, 1 - 2 * (1 - found.torch.labels)
    )


def _distance(got: Tensor, wanted: Tensor) -> Distance:
    """How far scores are from the true ones. Scores that are not finite give NaN, which never passes."""
    if got.shape != wanted.shape:
        raise OrdnetError(f"ONNX Runtime gives scores {tuple(got.shape)}, torch {tuple(wanted.shape)}")
    scores = (got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30)
    return Distance(float(scores), float((got.argmax(1) == wanted.argmax(1)).double().mean()))


def _pictures(batch: int, height: int, width: int) -> Tensor:
    """Blurred patches of colour with some noise, uint8 (B, 3, H, W); the same ones every time."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(batch, 3, 6, 7, generator=random) * 255
    smooth = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
    noise = 12 * torch.randn(smooth.shape, generator=random)
    return (smooth + noise).clamp(0, 255).to(torch.uint8)
