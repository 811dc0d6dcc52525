"""An exported network with its convolutions in 8 bits, by ONNX Runtime's static quantisation.

Weights get a scale for each output channel, activations one for each tensor, from the ranges they have on calibration
pictures. Depthwise convolutions stay in float: they have few weights and little to gain, and they are what costs
accuracy (0.7 points of mIoU with the shipped model, docs/experiments.md). Where the rest costs too much, on pictures
that the ranges do not come from, all that follows the backbone stays in float as well.
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
from PIL import Image

from ordnet.data.dataset import Dataset, read_pair
from ordnet.errors import OrdnetError
from ordnet.inference.onnx.runtime import library, session
from ordnet.model.checkpoint import Checkpoint
from ordnet.model.pixels import long_side_of, seen_by

CLOSE = 0.005
"""How much of the score (0..1) a choice of layers may cost."""
FAR = 0.05
"""What no file may cost."""
PICTURES = 128
"""As many of the calibration set are read at most. Every fourth is for the ranges, the others for the choice."""
_OPERATIONS = ["Conv", "Add", "Clip", "Relu"]

Score = Callable[[Sequence[np.ndarray]], float]
"""Label maps (H, W) of the pictures that the choice is made with → 0..1, higher is better."""


@dataclass(frozen=True)
class Calibration:
    """Pictures as the graph takes them, (1, 3, H, W) float32 of 0..255, and what labels of some of them are worth."""

    ranges: Sequence[np.ndarray]
    choice: Sequence[np.ndarray]
    score: Score


@dataclass(frozen=True)
class Choice:
    """Which layers stay in float, and what the 8 bits cost."""

    words: str
    score: float
    before: float
    """The same of the float network."""

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
        pixels = seen_by(np.asarray(image), long_side_of(None, found.about), found.net.least_side).pixels
        pictures.append(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=np.float32))
        truths.append(np.asarray(Image.fromarray(truth).resize(pixels.shape[1::-1], Image.Resampling.NEAREST)))
    others = [place for place in range(count) if place % 4]
    return Calibration(
        pictures[::4], [pictures[place] for place in others], partial(miou, [truths[place] for place in others])
    )


def quantised(data: bytes, calibration: Calibration, say: Callable[[str], object]) -> tuple[Any, list[Choice]]:
    """The file's content in float → the same graph with 8-bit convolutions (an onnx.ModelProto), and all choices that
    were tried, the taken one last."""
    onnx = library("onnx")
    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain = Path(folder) / "plain.onnx"
        _prepared(data, Path(folder), plain)
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
    tried.sort(key=lambda each: each[0].score)  # where all cost too much, the best is still the best
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


def _prepared(data: bytes, folder: Path, out: Path) -> None:
    """Constants folded and layers fused, as ONNX Runtime wants it before it quantises."""
    source = folder / "float.onnx"
    source.write_bytes(data)
    library("onnxruntime.quantization.shape_inference").quant_pre_process(
        source, out, skip_symbolic_shape=True, skip_onnx_shape=True
    )


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
    """What is tried: words, and the names of the layers that stay in float. The last one always does: it is tiny, and
    scores are what labels are made of."""
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
    quantizer.model.topological_sort()  # new nodes come last otherwise, and only ONNX Runtime puts up with that
    return quantizer.model.model


def _labels(data: bytes, pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    running = session(data)
    return [running.run(["scores"], {"image": each})[0][0].argmax(axis=0).astype(np.uint8) for each in pictures]


@contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's tools give advice in the log of the whole program."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
