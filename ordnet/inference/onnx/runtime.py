"""ONNX Runtime: setting it up, comparing its results with torch's, and quantising convolutions to 8 bits.

`quantised` is ONNX Runtime's static quantisation. Weights get a scale for each output channel, activations one for each
tensor, from the ranges they have on calibration pictures. Depthwise convolutions stay in float: they have few weights
and little to gain, and they are what costs accuracy (0.7 points of mIoU with an earlier model, docs/experiments.md).
Where quantising the rest costs too much, measured on pictures that the ranges do not come from, everything after the
backbone stays in float as well.
"""

import copy
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ordnet.data.dataset import Dataset, read_pair
from ordnet.errors import OrdnetError
from ordnet.model.checkpoint import Checkpoint
from ordnet.model.network import Network, for_inference
from ordnet.model.pixels import known_size, normalise, seen_by


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
    """Compare at three sizes, odd ones and a batch among them; raise an error unless all results are close enough.

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


CLOSE = 0.005
"""How much of the score (0..1) a choice of layers may cost before the next one is tried."""
FAR = 0.05
"""A file that costs more than this is not written."""
PICTURES = 128
"""The most calibration pictures that are read: every fourth for the ranges, the others for the choice."""
_OPERATIONS = ["Conv", "Add", "Clip", "Relu"]

Score = Callable[[Sequence[np.ndarray]], float]
"""Label maps (H, W) of the pictures for the choice → 0..1, higher is better."""


@dataclass(frozen=True)
class Calibration:
    """Pictures as the graph takes them, (1, 3, H, W) float32 of 0..255, and the score of labels found for `choice`."""

    ranges: Sequence[np.ndarray]
    choice: Sequence[np.ndarray]
    score: Score


@dataclass(frozen=True)
class Choice:
    """Which layers stay in float, and what the 8 bits cost."""

    words: str
    score: float
    before: float
    """The float network's score."""

    def __str__(self) -> str:
        return (
            f"{self.words}: mIoU {self.score:.4f} on calibration pictures, {self.before:.4f} in float "
            f"({100 * (self.score - self.before):+.2f} points)"
        )


Mean = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]
"""True and found label maps → mIoU, 0..1."""


def calibration(dataset: Dataset, found: Checkpoint, miou: Mean) -> Calibration:
    """Pictures spread over a data set, at the scale that the network knows."""
    if len(dataset.ids) < 2:
        raise OrdnetError(
            f"{dataset.name} {dataset.split} has {len(dataset.ids)} pictures; calibrating takes two or more"
        )
    count = min(PICTURES, len(dataset.ids))
    pictures, truths = [], []
    for place in range(count):
        image, truth = read_pair(dataset, place * len(dataset.ids) // count)
        pixels = seen_by(np.asarray(image), known_size(None, found.about), found.net.least_side).pixels
        pictures.append(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=np.float32))
        truths.append(np.asarray(Image.fromarray(truth).resize(pixels.shape[1::-1], Image.Resampling.NEAREST)))
    others = [place for place in range(count) if place % 4]
    return Calibration(
        pictures[::4], [pictures[place] for place in others], partial(miou, [truths[place] for place in others])
    )


def quantised(data: bytes, calibration: Calibration, say: Callable[[str], object]) -> tuple[Any, list[Choice]]:
    """The file's content in float → the same graph with 8-bit convolutions (an onnx.ModelProto), and all choices that
    were tried, the one taken last."""
    onnx = library("onnx")
    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain = Path(folder) / "plain.onnx"
        _prepared(data, plain)
        model = onnx.load(plain)
        say(f"ranges of {len(calibration.ranges)} pictures")
        ranges = _ranges(plain, calibration.ranges)
    before = calibration.score(_labels(data, calibration.choice))
    tried: list[tuple[Choice, Any]] = []
    for words, floats in _choices(model):
        say(words)
        small = _in_8_bits(model, ranges, floats)
        score = calibration.score(_labels(small.SerializeToString(), calibration.choice))
        tried.append((Choice(words, score, before), small))
        if score >= before - CLOSE:
            break
    tried.sort(key=lambda each: each[0].score)  # where all cost too much, the best of them is taken
    taken, small = tried[-1]
    if not taken.score >= before - FAR:
        raise OrdnetError(
            f"8 bits cost too much, so nothing was written. {'; '.join(str(choice) for choice, _ in tried)}. Calibrate "
            "with pictures like those it was trained on, or leave --int8 out"
        )
    del small.metadata_props[:]
    for other in [each for each in small.opset_import if each.domain]:
        small.opset_import.remove(
            other
        )  # ONNX Runtime names all that it knows; the graph has ONNX's own operators only
    return small, [choice for choice, _ in tried]


def _prepared(data: bytes, out: Path) -> None:
    """Fold constants and fuse layers, as ONNX Runtime wants before it quantises. From 1.19 to 1.22, its own function
    for that loses the file unless shapes are inferred as well."""
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(out)
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _ranges(plain: Path, pictures: Sequence[np.ndarray]) -> Any:
    quantization = library("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.coming = iter(pictures)

        def get_next(self) -> dict[str, np.ndarray] | None:
            picture = next(self.coming, None)
            return None if picture is None else {"image": picture}

    calibrator = library("onnxruntime.quantization.calibrate").create_calibrator(
        plain, _OPERATIONS, augmented_model_path=str(plain.with_name("augmented.onnx"))
    )
    calibrator.collect_data(Reader())
    return calibrator.compute_data()


def _choices(model: Any) -> Iterator[tuple[str, list[str]]]:
    """What is tried: a description, and the names of the layers that stay in float. The last layer always does: it is
    tiny, and labels depend on its scores directly."""
    layers = [node for node in model.graph.node if node.op_type == "Conv"]
    grouped = [node.name for node in layers if any(each.name == "group" and each.i > 1 for each in node.attribute)]
    kept = [layers[-1].name, *grouped]
    yield "convolutions in 8 bits" + (", depthwise ones in float" if grouped else ""), kept
    later = [node.name for node in layers if not node.input[1].startswith("net.backbone.")]
    yield "the backbone's convolutions in 8 bits" + (", depthwise ones in float" if grouped else ""), [*kept, *later]


def _in_8_bits(model: Any, ranges: Any, floats: list[str]) -> Any:
    kinds = library("onnxruntime.quantization").QuantType
    quantizer = library("onnxruntime.quantization.qdq_quantizer").QDQQuantizer(
        copy.deepcopy(model), True, False, kinds.QInt8, kinds.QUInt8, ranges, [], floats, _OPERATIONS, {}
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()  # new nodes come last otherwise, which only ONNX Runtime accepts
    return quantizer.model.model


def _labels(data: bytes, pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    running = session(data)
    return [running.run(["scores"], {"image": each})[0][0].argmax(axis=0).astype(np.uint8) for each in pictures]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the advice that ONNX Runtime's tools write to the root log."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
