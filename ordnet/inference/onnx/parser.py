"""An exported network as something to call, through ONNX Runtime: picture in, parse out, as with Parser."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ordnet.data.reading import read_bytes
from ordnet.errors import OrdnetError
from ordnet.inference.explain import Explainer
from ordnet.inference.onnx.export import FORMAT, SMALL_SCORES
from ordnet.inference.onnx.runtime import library, session
from ordnet.inference.parse import Parse
from ordnet.inference.parser import WHOLE_UP_TO, Picture, name_of, read, read_ahead, refuse_too_many_scores
from ordnet.inference.stream import Progress
from ordnet.inference.upsample import RowMap, best_classes, held, numbers, resized, whole_map
from ordnet.model.card import read_facts
from ordnet.model.pixels import LongSide, Seen, known_size, seen_by
from ordnet.picture.overlay import Colour

_LARGEST = 2**31
"""Bytes: ONNX files that stand on their own are no larger."""
_LONGEST_LEAST = 4096
"""The longest side in pixels to which a file may have pictures padded: 64 patches at stride 32 take 2,017."""


class OnnxParser:
    """`parser(picture)` → Parse, on the CPU. Threads may share one parser.

    Every picture takes one pass. Pictures of more than `whole_up_to` pixels are refused: streaming runs the network in
    parts, which only a checkpoint allows.
    """

    protocol = "whole"
    explains = False
    streams = False

    def __init__(
        self,
        path: str | Path,
        *,
        device: str | None = None,
        protocol: str = "whole",
        whole_up_to: int = WHOLE_UP_TO,
        long_side: LongSide = None,
    ) -> None:
        self.path = Path(path)
        if protocol != self.protocol:
            raise OrdnetError(f"an ONNX model has the protocol whole only, not {protocol!r}; use the checkpoint")
        if device not in (None, "cpu"):
            raise OrdnetError(f"an ONNX model runs on the CPU here, not on {device}; use the checkpoint")
        self.whole_up_to = whole_up_to
        model = _read(self.path)
        about = {entry.key: entry.value for entry in model.metadata_props}
        if about.get("format") != FORMAT:
            raise OrdnetError(f"{self.path} is no model that `ordnet export` wrote; export the checkpoint again")
        _refuse_programs(model, self.path)
        try:
            facts = {key: json.loads(about[key]) for key in ("classes", "colours")}
            facts["about"] = json.loads(about.get("about", "{}"))
            self._least_side = int(about["least_side"])
            self._most_pixels = int(about.get("most_pixels", sys.maxsize))
            self._align_corners = bool(json.loads(about["align_corners"]))
            if not 1 <= self._least_side <= _LONGEST_LEAST:
                raise ValueError(f"its least side is {self._least_side}")
            _end_before_resizing(model)
        except (KeyError, TypeError, ValueError, StopIteration, RecursionError) as error:
            raise OrdnetError(f"{self.path}: its metadata are damaged ({_first_line(error)})") from None
        self.classes: tuple[str, ...]
        self.colours: tuple[Colour, ...]
        self.classes, self.colours, known = read_facts(facts, self.path)
        self.known_size = known_size(long_side, known)
        try:
            self._session = session(model.SerializeToString())
        except Exception as error:  # the runtime's errors have no common class of their own
            raise OrdnetError(f"{self.path}: ONNX Runtime cannot read it ({_first_line(error)})") from None

    @property
    def long_side(self) -> int | None:
        """The long side to which larger pictures are reduced."""
        return self.known_size.most

    def __call__(self, picture: Picture, progress: Progress | None = None, confidence: bool = False) -> Parse:
        """A file, an opened file, a PIL image or an array (H, W, 3) uint8. `progress` is accepted as in Parser and
        ignored: one pass has no parts. With `confidence` the parse also has the probability of each pixel's class."""
        return self._parse(read(picture), name_of(picture), confidence)

    def many(self, pictures: Iterable[Picture]) -> Iterator[Parse]:
        """One parse after the other, in order; the next picture is read while the network works."""
        return (self._parse(pixels, name, confidence=False) for pixels, name in read_ahead(pictures))

    def scores(self, picture: Picture) -> np.ndarray:
        """The scores (K, H, W) float32 at the picture's own size."""
        pixels = read(picture)
        height, width = pixels.shape[:2]
        refuse_too_many_scores(len(self.classes), height, width)
        seen = seen_by(pixels, self.known_size, self._least_side)
        return whole_map(self._scores(seen))[0, :, :height, :width].numpy()

    def _parse(self, pixels: np.ndarray, name: str, confidence: bool) -> Parse:
        height, width = pixels.shape[:2]
        seen = seen_by(pixels, self.known_size, self._least_side)
        sure = np.empty(seen.size, np.float16) if confidence else None
        labels = best_classes(self._scores(seen), sure)[:height, :width]
        return Parse(
            pixels, labels, self.classes, self.colours, name, lambda: self.scores(pixels),
            None if sure is None else sure[:height, :width], _no_attention,
        )  # fmt: skip

    def _scores(self, seen: Seen) -> RowMap:
        """Scores at the picture's size, whose rows are computed on demand."""
        return resized(held(self._small_scores(seen.pixels)), *seen.size, self._align_corners)

    def _small_scores(self, pixels: np.ndarray) -> Tensor:
        """RGB (H, W, 3) uint8 → scores (1, K, h, w) at the features' size. All classes at the picture's size would take
        gigabytes, so they are upsampled in bands of rows."""
        height, width = pixels.shape[:2]
        if height * width > self.whole_up_to:
            raise OrdnetError(
                f"{width} x {height} px are more than the {self.whole_up_to / 1e6:g} megapixels that an ONNX model "
                f"takes in one pass: use the checkpoint, which streams pictures of any size, or a larger "
                f"--whole-up-to, or make the picture smaller"
            )
        if height * width > self._most_pixels:
            raise OrdnetError(
                f"{width} x {height} px are too many for a model that attends with a softmax: its map would take more "
                f"than a gigabyte above {self._most_pixels / 1e6:.2g} megapixels; use the checkpoint, or make the "
                f"picture smaller"
            )
        image = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=np.float32)
        try:
            (scores,) = self._session.run([SMALL_SCORES], {"image": image})
        except Exception as error:  # the runtime's errors have no common class of their own
            raise OrdnetError(
                f"ONNX Runtime failed on a picture of {width} x {height} px ({_first_line(error)}); if memory ran out, "
                f"make the picture smaller, or stream it with the checkpoint"
            ) from None
        if scores.ndim != 4 or scores.shape[:2] != (1, len(self.classes)) or scores.dtype != np.float32:
            raise OrdnetError(
                f"{self.path}: it names {len(self.classes)} classes, but its scores are {scores.dtype} {scores.shape}"
            )
        return numbers(torch.from_numpy(scores))


def _read(path: Path) -> Any:
    onnx = library("onnx")
    if not path.is_file():
        raise OrdnetError(f"no model at {path}")
    try:
        return onnx.load_model_from_string(read_bytes(path, _LARGEST))
    except OrdnetError:
        raise
    except Exception as error:  # protobuf's own class, which onnx does not name
        raise OrdnetError(f"{path} is no ONNX model, or was cut short ({_first_line(error)})") from None


def _refuse_programs(model: Any, path: Path) -> None:
    """Take only self-contained files whose work grows with the picture alone: no external data, no loops."""
    graph = model.graph
    tensors = [*graph.initializer, *(each.t for node in graph.node for each in node.attribute if each.HasField("t"))]
    strange = (
        ("weights in other files", any(tensor.data_location or tensor.external_data for tensor in tensors)),
        ("loops, branches or functions", bool(model.functions) or any(map(_has_graphs, graph.node))),
        ("operators that are not ONNX's own", any(node.domain not in ("", "ai.onnx") for node in graph.node)),
        ("sparse weights", bool(graph.sparse_initializer)),
    )
    for what, there in strange:
        if there:
            raise OrdnetError(f"{path} is no model that `ordnet export` wrote: it has {what}")


def _has_graphs(node: Any) -> bool:
    return any(each.HasField("g") or each.graphs or each.tensors or each.sparse_tensors for each in node.attribute)


def _end_before_resizing(model: Any) -> None:
    """Remove the last Resize, so that the graph gives the small scores; StopIteration where there is none."""
    last = next(node for node in model.graph.node if SMALL_SCORES in node.input and node.op_type == "Resize")
    model.graph.node.remove(last)
    del model.graph.output[:]
    onnx = library("onnx")
    free = ["batch", None, None, None]
    model.graph.output.append(onnx.helper.make_tensor_value_info(SMALL_SCORES, onnx.TensorProto.FLOAT, free))


def _no_attention() -> Explainer:
    raise OrdnetError("an ONNX model gives scores only; use the checkpoint to see what a position attends to")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
