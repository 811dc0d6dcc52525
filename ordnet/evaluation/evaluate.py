"""Scores of a model on a data set: one confusion matrix, and every figure that derives from it, with its protocol.

`evaluate` takes a model file, alone or under torchrun; `evaluate_network` a network and an opened data set. Both go
through the pictures one by one; `BestAndWorst` can keep a few of them on the way.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import distributed

from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset, first_few
from ordnet.data.labels import IGNORE, Classes
from ordnet.data.loader import Example, examples
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion, pascal_context_figures
from ordnet.inference import protocols
from ordnet.inference.onnx.parser import OnnxParser
from ordnet.inference.parser import Parser, find, find_device, load
from ordnet.inference.protocols import Protocol
from ordnet.model import checkpoint
from ordnet.model.network import Network
from ordnet.model.pixels import KnownSize, LongSide, known_size
from ordnet.progress import OnProgress

_SIDE = 640
"""Kept pictures are made this small, so that a few of them take little memory."""
Label = Callable[[torch.Tensor], np.ndarray]
"""Turns a picture (1, 3, H, W) uint8 into class ids (H, W)."""
Look = Callable[[int, np.ndarray, np.ndarray, np.ndarray], object]
"""Called with each picture's index, pixels (H, W, 3) uint8, true and parsed class ids (H, W)."""


@dataclass(frozen=True)
class Evaluation:
    """What a model scored on one split."""

    confusion: Confusion
    classes: Classes
    data: str
    split: str
    protocol: str
    images: int
    details: dict[str, Any] = field(default_factory=dict)
    """The protocol's own settings: scales, and for `encnet` the base size and the crop."""
    broken: list[str] = field(default_factory=list)

    @property
    def miou(self) -> float:
        return self.confusion.miou()

    @property
    def pixel_accuracy(self) -> float:
        return self.confusion.pixel_accuracy()

    def figures(self) -> dict[str, Any]:
        """Everything as plain values; a class that does not occur has no IoU."""
        confusion = self.confusion
        occurs, predicted = confusion.in_truth(), confusion.predicted()
        figures: dict[str, Any] = {
            "data": self.data,
            "split": self.split,
            "protocol": self.protocol,
            **self.details,
            "images": self.images,
            "miou": _plain(self.miou),
            # the number of classes in that mean: those in the truth or among the predictions
            "miou_classes": int((occurs | predicted).sum()),
            "absent_classes": self._named(~occurs),
            "never_predicted": self._named(occurs & ~predicted),
            "pixel_accuracy": _plain(self.pixel_accuracy),
            "mean_accuracy": _plain(confusion.mean_accuracy()),
            "final_score": _plain(confusion.final_score()),
            "miou_absent_as_zero": _plain(confusion.miou(absent_as_zero=True)),
            "per_class_iou": self._by_class(confusion.iou()),
            "per_class_precision": self._by_class(confusion.precision()),
            "per_class_recall": self._by_class(confusion.recall()),
            "per_class_f1": self._by_class(confusion.f1()),
        }
        if self.classes.ranges:
            by_range = self.confusion.miou_by(self.classes.ranges)
            figures["miou_by_range"] = {name: _plain(value) for name, value in by_range.items()}
        if self.data.startswith("pascal-context"):
            figures |= {name: _plain(value) for name, value in pascal_context_figures(self.confusion).items()}
        if self.broken:
            figures["broken"] = self.broken
        return figures

    def _by_class(self, values: np.ndarray) -> dict[str, float | None]:
        return {name: _plain(value) for name, value in zip(self.classes.names, values, strict=True)}

    def _named(self, chosen: np.ndarray) -> list[str]:
        return [name for name, is_chosen in zip(self.classes.names, chosen, strict=True) if is_chosen]


def evaluate(
    model: str | Path,
    data: str,
    split: str = "val",
    protocol: str = "whole",
    *,
    skip_broken: bool = False,
    device: str | None = None,
    long_side: LongSide = None,
    without: str | None = None,
    progress: OnProgress = lambda done, total: None,
) -> Evaluation:
    """Scores of a model file on a split; under torchrun every process gets the whole result.

    `model` is a checkpoint, an exported .onnx file or a shipped name. `device` is cpu, cuda, cuda:1 or mps; by
    default a GPU where there is one. Pictures much larger or smaller than those the model was trained on are seen at
    that scale, or at another `long_side`, or at their own size ("own"). `without` switches a part of the block off
    (middle, long, gate or block). `progress` is called with the pictures done, and all of this process's share.
    """
    if not isinstance(model, str | Path):
        right = 'ordnet.evaluate("runs/mine/best.safetensors", "folder:street")'
        raise OrdnetError(f"evaluate takes a model's file or name, not a {type(model).__name__}: {right}")
    how = protocols.protocol(protocol)  # a wrong name is refused before anything is read
    on = own_device(device)
    file = find(model)
    label: Label
    if file.suffix == ".onnx":
        if without:
            raise OrdnetError("an ONNX model cannot be taken apart; use the checkpoint for --without")
        parser = load(file, device=device, protocol=protocol, long_side=long_side)
        classes, label = parser.classes, partial(_parsed, parser)
    else:
        loaded = checkpoint.load(file)
        classes, how = loaded.classes, protocols.protocol_of(protocol, loaded.about)
        if without:
            loaded.net.block = loaded.net.block.without(without)
        label = labeller(loaded.net.to(on), how, on, known_size(long_side, loaded.about))
    dataset = open_dataset(data, split)
    refuse_other_classes(classes, dataset.classes.names)
    started = _join_processes()
    try:
        share = math.ceil(len(dataset.ids) / (distributed.get_world_size() if started else 1))
        found = _evaluate(
            label, dataset, how, on, progress=lambda done: progress(done, share), skip_broken=skip_broken,
        )  # fmt: skip
        return replace(found, details={**found.details, "without": without}) if without else found
    finally:
        if started:
            distributed.destroy_process_group()


def evaluate_network(
    net: Network,
    dataset: Dataset,
    protocol: Protocol | str = "whole",
    *,
    device: torch.device | None = None,
    progress: Callable[[int], object] = lambda done: None,
    skip_broken: bool = False,
    look: Look | None = None,
    known: KnownSize = KnownSize(),  # noqa: B008
) -> Evaluation:
    """Parse every picture of the split and count. Several processes share the pictures and all get the whole result.

    `look` is called with every picture of this process's share. Pictures far from the `known` sizes are resized.
    """
    if net.classes != len(dataset.classes):
        raise OrdnetError(f"the network tells {net.classes} classes apart, {dataset.name} has {len(dataset.classes)}")
    how = Protocol(protocol) if isinstance(protocol, str) else protocol
    return _evaluate(labeller(net, how, device, known), dataset, how, device, progress, skip_broken, look)


def labeller(net: Network, protocol: Protocol, device: torch.device | None, known: KnownSize) -> Label:
    """Labels as `predict` makes them: small pictures are padded, large ones streamed."""
    where = device or next(net.parameters()).device
    most, least = KnownSize() if protocol.name == "encnet" else known  # encnet has a base size of its own
    return partial(
        _parsed, Parser(net, (), (), device=str(where), protocol=protocol, long_side=most, least_long_side=least)
    )


def _parsed(parser: Parser | OnnxParser, image: torch.Tensor) -> np.ndarray:
    return parser(image[0].permute(1, 2, 0).contiguous().numpy()).labels


def _evaluate(
    label: Label,
    dataset: Dataset,
    protocol: Protocol,
    device: torch.device | None = None,
    progress: Callable[[int], object] = lambda done: None,
    skip_broken: bool = False,
    look: Look | None = None,
) -> Evaluation:
    rank, world = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    confusion = Confusion(len(dataset.classes))
    done, broken = 0, list[str]()
    with torch.inference_mode():
        found = examples(dataset, rank=rank, world=world, broken=broken if skip_broken else None)
        for done, example in enumerate(_sound(found), 1):
            labels = label(example.image)
            confusion.add(example.label[0], labels)
            if look:
                look(example.index, example.image[0].permute(1, 2, 0).numpy(), example.label[0].numpy(), labels)
            progress(done)
    return Evaluation(
        Confusion(len(dataset.classes), summed(confusion.matrix, device)),
        dataset.classes, dataset.name, dataset.split, protocol.name,
        int(summed(np.array([done]), device)[0]), protocol.details(), _gathered(broken),
    )  # fmt: skip


class Broken(OrdnetError):
    """A picture or a label of the data set cannot be read."""


def _sound(found: Iterator[Example]) -> Iterator[Example]:
    try:
        yield from found
    except OrdnetError as error:
        raise Broken(str(error)) from None


def own_device(name: str | None) -> torch.device | None:
    """The device that was asked for; by default this process's GPU, or None for the CPU."""
    if name is not None:
        return find_device(name)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None


def _join_processes() -> bool:
    """Join the other processes if torchrun has started several; returns whether there are any."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or distributed.is_initialized():
        return False
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return True


def summed(matrix: Any, device: torch.device | None) -> Any:
    """The matrix added up over all processes."""
    if not distributed.is_initialized():
        return matrix
    total = torch.from_numpy(matrix).to(device)
    distributed.all_reduce(total)
    return total.cpu().numpy()


def _gathered(messages: list[str]) -> list[str]:
    """The messages of all processes."""
    if not distributed.is_initialized():
        return messages
    parts: list[list[str]] = [[] for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(parts, messages)
    return [message for part in parts for message in part]


def refuse_other_classes(model: Sequence[str], data: Sequence[str]) -> None:
    """Raise an error where the classes differ: scores would mean nothing."""
    if tuple(model) == tuple(data):
        return
    how = "the same classes in another order" if sorted(model) == sorted(data) else "different classes"
    for what, own, other in (("model", model, data), ("data", data, model)):
        only = [name for name in own if name not in other]
        how += f"\n  {what:<5} ({len(own)}): {first_few(own)}"
        how += f"; only here: {first_few(only)}" if 0 < len(only) < len(own) else ""
    remedy = "take a model that was trained on these classes, or data with its names in its order (a folder has "
    raise OrdnetError(f"the model and the data set have {how}\n{remedy}them in classes.txt)")


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True)
class Seen:
    """One picture with its truth and its parse, small enough to be kept."""

    index: int
    """The picture's index in the data set."""
    accuracy: float
    """Share of its pixels that are right, of those that count."""
    mistake: tuple[int, int, float] | None
    """The most frequent one: the true class, what it was taken for, the share of the pixels that count."""
    image: np.ndarray
    truth: np.ndarray
    labels: np.ndarray


class BestAndWorst:
    """Keeps the `count` pictures with the highest pixel accuracy and the `count` with the lowest as they go by."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0
        """How many pictures had any pixel that counts."""
        self._kept: list[Seen] = []

    def add(self, index: int, image: np.ndarray, truth: np.ndarray, labels: np.ndarray) -> None:
        """Image (H, W, 3), true and parsed class ids (H, W)."""
        counting = truth != IGNORE
        total = int(counting.sum())
        if not total:
            return
        self.seen += 1
        wrong = counting & (truth != labels)
        accuracy = 1 - int(wrong.sum()) / total
        if len(self._kept) >= 2 * self.count:
            worst, best = self._kept[self.count - 1], self._kept[self.count]
            if worst.accuracy <= accuracy <= best.accuracy:
                return
        small, truth_small, labels_small = (_small(array) for array in (image, truth, labels))
        mistake = _most_frequent(truth[wrong], labels[wrong], total)
        self._kept.append(Seen(index, accuracy, mistake, small, truth_small, labels_small))
        self._kept.sort(key=lambda seen: (seen.accuracy, seen.index))
        if len(self._kept) > 2 * self.count:
            del self._kept[self.count]

    @property
    def worst(self) -> list[Seen]:
        """The worst first; never one that is among the best."""
        return self._kept[: len(self._kept) // 2]

    @property
    def best(self) -> list[Seen]:
        """The best first."""
        return self._kept[len(self._kept) // 2 :][::-1]


def _most_frequent(truth: np.ndarray, labels: np.ndarray, total: int) -> tuple[int, int, float] | None:
    if truth.size == 0:
        return None
    counts = np.bincount(truth.astype(np.int64) * 256 + labels)
    pair = int(counts.argmax())
    return pair // 256, pair % 256, float(counts[pair] / total)


def _small(array: np.ndarray) -> np.ndarray:
    """A copy whose longer side has at most _SIDE pixels; class ids are picked, colours are mixed."""
    height, width = array.shape[:2]
    if max(height, width) <= _SIDE:
        return array.copy()
    factor = _SIDE / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    how = Image.Resampling.BOX if array.ndim == 3 else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(array).resize(size, how))
