"""A network as a self-contained ONNX file, compared with torch before it is written.

    image   float32 (batch, 3, height, width), RGB as it stands in picture files, 0..255; normalisation is inside
    scores  float32 (batch, classes, height, width); the class with the highest score is the label

Batch, height and width are free. Class names, colours and settings are in the file's metadata.
"""

import copy
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ordnet
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically
from ordnet.inference.onnx.runtime import Calibration, Check, Choice, check, library, quantised, session
from ordnet.model import checkpoint
from ordnet.model.card import find
from ordnet.model.network import Network, for_inference
from ordnet.model.pixels import Normalise

FORMAT = "ordnet-onnx-1"
"""The format's name, in the metadata of every file we write."""
OPSET = 18
MOST_MAP = 2**28
"""Numbers in the largest attention map that a picture may need: 1 GB."""
SMALL = 1024
"""Tensors with fewer numbers are not worth shrinking."""
SMALL_SCORES = "small_scores"
"""The name inside the graph of the scores before they are resized to the picture."""
INPUT = "image: float32 (batch, 3, height, width), RGB, 0..255; it is normalised inside"
OUTPUT = "scores: float32 (batch, classes, height, width); the class with the highest score is the label"

Progress = Callable[[str], object]
"""Called with the name of each step before it starts."""
STEPS = 5
"""How often it is called without calibration."""


@dataclass(frozen=True)
class Export:
    path: Path
    size: int
    """The size of the file in bytes."""
    weights: str
    """How the weights are stored, in words."""
    checks: list[Check]
    choices: Sequence[Choice] = ()
    """What was tried in 8 bits; the last is in the file."""


def export(
    model: str | Path,
    out: str | Path,
    half: bool = False,
    progress: Progress | None = None,
    calibrate: Callable[[checkpoint.Checkpoint], Calibration] | None = None,
) -> Export:
    """Write a checkpoint or a shipped model as ONNX, but only if ONNX Runtime gives the same results as torch.

    `half` stores the weights in 16 bits, which become float32 on loading: half the size, the same speed. `calibrate`
    gives the pictures for quantising the convolutions to 8 bits: about a third of the size, and faster. The float graph
    is still compared with torch; what the 8 bits cost is measured on the pictures.
    """
    say = progress or (lambda _: None)
    out = Path(out)
    if out.suffix != ".onnx":
        raise OrdnetError(f"--out {out}: expected a file that ends in .onnx, such as {out.with_suffix('.onnx')}")
    if out.is_dir():
        raise OrdnetError(f"--out {out} is a folder; give a file")
    source = find(model)
    if source.suffix == ".onnx":
        raise OrdnetError(f"{source} is an ONNX model already; export the checkpoint it was made of")
    for name in ("onnx", "onnxscript", "onnxruntime"):
        library(name)
    say("reading")
    found = checkpoint.load(source)
    say("tracing")
    about = metadata(found)
    data = finished(traced(found.net), about, half)
    checks = check(session(data), found.net, half, lambda size: say(f"checking {size}"))
    choices: list[Choice] = []
    if calibrate is not None:
        small, choices = quantised(data, calibrate(found), say)
        _store_in_16_bits(small)
        data = _with_words(small, about, INT8)
    write_atomically(out, lambda temporary: temporary.write_bytes(data))
    return Export(out, len(data), INT8 if calibrate else weights(half), checks, choices)


def metadata(found: checkpoint.Checkpoint) -> dict[str, str]:
    """The file's metadata: all that OnnxParser needs, and what a reader may want to know."""
    net = found.net
    limit = most_pixels(net)
    return {
        **({"most_pixels": str(limit)} if limit else {}),
        "format": FORMAT,
        "ordnet_version": ordnet.__version__,
        "input": INPUT,
        "output": OUTPUT,
        "classes": json.dumps(found.classes, ensure_ascii=False),
        "colours": json.dumps(found.colours),
        "variant": net.config.variant,
        "backbone": net.config.backbone,
        "least_side": str(net.least_side),
        "align_corners": json.dumps(net.align_corners),
        "about": json.dumps(found.about, ensure_ascii=False),
    }


def most_pixels(net: Network) -> int | None:
    """Pixels of the largest picture whose attention map has at most MOST_MAP numbers; None where no map is built."""
    if not net.block.builds_maps:
        return None
    return math.isqrt(MOST_MAP) * net.block_stride**2


def finished(model: Any, metadata: dict[str, str], half: bool = False) -> bytes:
    """A traced network → the file's content with its metadata, not yet compared with torch."""
    _forget_the_tracing(model)
    _name_small_scores(model)
    if half:
        _store_in_16_bits(model)
    return _with_words(model, metadata, weights(half))


def _with_words(model: Any, metadata: dict[str, str], kept: str) -> bytes:
    """The file's content, with its metadata."""
    onnx = library("onnx")
    model.producer_name, model.producer_version = "ordnet", ordnet.__version__
    model.doc_string = f"{INPUT}\n{OUTPUT}"
    onnx.helper.set_model_props(model, {**metadata, "weights": kept})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


INT8 = "int8 with a float32 scale per channel; int16 where layers stay in float"


def weights(half: bool) -> str:
    """How the weights are stored, in words."""
    return "int16 with a float32 scale per row" if half else "float32"


class _Graph(nn.Module):
    """What the file computes."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = for_inference(net).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.net.auxiliary = None
        for module in self.net.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # in-place operations take half of the tracing time
        self.net.block = self.net.block.exportable()
        self.normalise = Normalise()

    def forward(self, image: Tensor) -> Tensor:
        return self.net(self.normalise(image))


def traced(net: Network) -> Any:
    """The network's graph and weights (an onnx.ModelProto), for pictures of any size."""
    side = max(64, net.least_side)
    # an example of one picture, or of equal sides, would be taken for a rule
    example = torch.zeros(2, 3, side + 1, side + 19)
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                _Graph(copy.deepcopy(net).float().cpu()),
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["image"],
                output_names=["scores"],
                dynamic_shapes={"image": {0: "batch", 2: "height", 3: "width"}},
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        # the message is a report of pages; its cause has the reason
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise OrdnetError(f"{net.config.variant} with {net.config.backbone} cannot be exported: {reason}") from None
    assert program is not None  # what dynamo=True gives
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings and logs, which say nothing that a user could act on."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _forget_the_tracing(model: Any) -> None:
    """Drop the source paths that the exporter notes at every node: they are private, and take room."""
    del model.metadata_props[:]
    for part in (model.graph, *model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]
    del model.graph.value_info[:]


def _name_small_scores(model: Any) -> None:
    """Rename the input of the last Resize so that OnnxParser can find it."""
    last = next(node for node in model.graph.node if "scores" in node.output)
    if last.op_type != "Resize":
        raise OrdnetError(f"expected a graph that ends in Resize, got {last.op_type}: this torch exports another way")
    old = last.input[0]
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = SMALL_SCORES


def _store_in_16_bits(model: Any) -> None:
    """Store weights as 16-bit integers with one scale per row.

    Two nodes multiply them out, which runtimes do once, on loading. float16 would take as much room, but has only 11
    bits of precision: the shipped model's scores were 20 times as far off. Small tensors stay as they are.
    """
    onnx = library("onnx")
    nodes, rows = [], []
    for weight in model.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.ndim < 2 or values.size < SMALL:
            continue
        name = weight.name
        largest = abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True)
        one = np.maximum(largest, np.float32(1e-30)) / np.float32(32767)
        weight.CopyFrom(onnx.numpy_helper.from_array(np.rint(values / one).astype(np.int16), f"{name}.int16"))
        rows.append(onnx.numpy_helper.from_array(one, f"{name}.one"))
        nodes.append(onnx.helper.make_node("Cast", [weight.name], [f"{name}.whole"], to=onnx.TensorProto.FLOAT))
        nodes.append(onnx.helper.make_node("Mul", [f"{name}.whole", f"{name}.one"], [name]))
    model.graph.initializer.extend(rows)
    nodes.extend(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
