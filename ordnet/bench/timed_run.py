"""One cell of `ordnet bench accuracy`: a contestant trained for a given CPU time, and tested.

A cell is a process of its own with one thread. Its seconds are the process's CPU time, loading included, testing not,
so that a busy machine takes longer but counts the same; the learning rate falls with them as it does with steps.

The networks of segmentation_models_pytorch (extra `smp`) are trained and tested as ours are. Each has the library's own
layers and defaults; encoder weights come from the file that our backbones take.
"""

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from ordnet.config import BLOCK_SETTINGS, OMNI_RANGE, ModelConfig, Settings, parse
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset, Spread
from ordnet.data.loader import Batch, Batches, examples
from ordnet.data.statistics import long_sides
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion
from ordnet.evaluation.evaluate import Evaluation
from ordnet.files import write_text
from ordnet.inference import protocols
from ordnet.model.build import build_from, chosen_weights, variants
from ordnet.model.network import Network, folded, for_inference, labels_at
from ordnet.model.pixels import KnownSize, seen_by, to_input
from ordnet.model.weights import WeightFile, torchvision_names
from ordnet.training.environment import keep_memory
from ordnet.training.loss import faded
from ordnet.training.monitor import SAMPLES, watch
from ordnet.training.prepare import batch_of, given_or_counted, trained_at
from ordnet.training.start import Averaged, frozen_stages, learning_mode
from ordnet.training.step import Trainee, make_optimizer, set_rate, take_step

OURS: dict[str, dict[str, Any]] = {
    f"{variant}-{decoder}": {"variant": variant, "decoder": decoder, **stride}
    for decoder, stride in {"fine": {}, "plain": {"output_stride": 16}}.items()
    for variant in variants()
}
"""Our contestants, and what each changes in the recipe's model: every kind of context with either decoder."""
LOOKS = (0.1, 0.25, 0.5, 0.75)
"""Fractions of the training time after which the accuracy is measured; it is measured once more at the end."""
LOOKED_AT = 48
"""Pictures of the split, evenly spread, for such a measurement; the final figures are of all."""
_NICENESS = 10


@dataclass(frozen=True)
class Cell:
    """One contestant with one seed."""

    contestant: str
    seed: int
    seconds: float
    split: str
    settings: Settings

    def plain(self) -> dict[str, Any]:
        values = {"contestant": self.contestant, "seed": self.seed, "seconds": self.seconds, "split": self.split}
        return {**values, "settings": self.settings.model_dump(mode="json")}


def make_network(contestant: str, settings: Settings, classes: int, seed: int) -> nn.Module:
    """A contestant's untrained network, its backbone filled with the recipe's weights."""
    torch.manual_seed(seed)
    if contestant in NETWORKS:
        if settings.model.backbone not in (ENCODER, f"{ENCODER}_full"):
            raise OrdnetError(
                f"smp's networks are compared with the {ENCODER} backbone only, not {settings.model.backbone}: "
                f"leave them out with --contestants"
            )
        file, _ = chosen_weights(settings.model.weights, settings.model.backbone)
        return SmpNetwork(contestant, classes, file)
    return build_from(_model_of(contestant, settings), classes)


def _model_of(contestant: str, settings: Settings) -> ModelConfig:
    """The recipe's model with what one of our contestants changes in it."""
    changes = dict(OURS[contestant])
    if changes["decoder"] == "fine" and settings.model.decoder != "plain":
        del changes["decoder"]  # the recipe's own way to a quarter of the picture's size
    elif changes["decoder"] == "plain":  # as dilated networks take it: the classifier's layer is made for small maps
        changes["backbone"] = settings.model.backbone.removesuffix("_full")
    if changes["variant"] not in OMNI_RANGE:
        changes |= dict.fromkeys(BLOCK_SETTINGS)  # a network without a block takes none of its settings
    return settings.model.model_copy(update=changes)


def weights_from(contestant: str, settings: Settings) -> dict[str, str | None]:
    """Words on where the weights of a contestant's backbone come from, and the beginning of their file's sha256.

    "imagenet" alone does not say: what can be had under that name differs from one computer and day to another.
    """
    model = settings.model if contestant in NETWORKS else _model_of(contestant, settings)
    file, origin = chosen_weights(model.weights, model.backbone)
    if file is None:
        return {"origin": origin or "backbones start at random", "sha256": None}
    digest = hashlib.sha256(file.path.read_bytes()).hexdigest()[:12]
    return {"origin": origin or f"weights: {file.path}", "sha256": digest}


def ready_to_parse(net: nn.Module) -> nn.Module:
    """The network with batch norms folded and channels last, ours and theirs alike."""
    return for_inference(net) if isinstance(net, Network) else folded(net)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train with measurements in between, then test; returns the cell's figures."""
    torch.set_num_threads(1)
    keep_memory()
    data, training = cell.settings.data, cell.settings.training.model_copy(update={"seed": cell.seed})
    weights = weights_from(cell.contestant, cell.settings)
    train_set, test_set = open_dataset(data.name, data.split), open_dataset(data.name, cell.split)
    few = Spread(test_set, LOOKED_AT)
    batches = Batches(
        train_set, data.model_copy(update={"workers": 0}),
        crop=training.crop, batch_size=batch_of(cell.settings, train_set), seed=cell.seed,
    )  # fmt: skip
    fitted = {"class_weights": given_or_counted(cell.settings, train_set), "batch_size": batches.size}
    known = trained_at(long_sides(train_set), data)
    net: Any = make_network(cell.contestant, cell.settings, len(train_set.classes), cell.seed)
    if training.channels_last:
        net = net.to(memory_format=torch.channels_last)
    averaged = Averaged(net, training.ema) if training.ema else None
    frozen = frozen_stages(net, cell.settings)
    optimizer, model, accelerator = make_optimizer(net, training), Trainee(net), Accelerator(cpu=True)
    training = training.model_copy(update=fitted)

    spent, step, looks = 0.0, 0, [part * cell.seconds for part in LOOKS]
    curve: list[dict[str, Any]] = []
    stream = endless(batches)
    learning_mode(net, training, frozen)
    while spent < cell.seconds:
        begun = time.process_time()
        # how many steps will fit into the time, as far as can be told
        set_rate(optimizer, spent, cell.seconds, training, steps=step * cell.seconds / spent if spent else 0)
        now = faded(training, spent / cell.seconds)
        parts = take_step(accelerator, model, optimizer, next(stream), now, step)
        step += 1
        if averaged:
            averaged.update(net, step)
        spent += time.process_time() - begun
        if looks and spent >= looks[0]:
            looks = [at for at in looks if at > spent]
            curve.append(_point(averaged.net if averaged else net, few, known, spent, step, parts["loss"]))
    kept = averaged.net if averaged else net
    curve.append(_point(kept, few, known, spent, step, parts["loss"]))
    scored, cpu = test(kept, test_set, known)
    return {
        **cell.plain(), "weights_from": weights, **scored.figures(),
        "steps": step, "spent": spent, "curve": curve, "looked_at": len(few.ids), "cpu_ms": 1000 * cpu,
        "parameters": sum(p.numel() for p in net.parameters()), "vitals": vitals(kept, few, known),
    }  # fmt: skip


def endless(batches: Batches) -> Iterator[Batch]:
    """Epoch after epoch."""
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def test(net: nn.Module, dataset: Dataset, known: KnownSize) -> tuple[Evaluation, float]:
    """Every picture of the split by the protocol `whole`, seen at the `known` sizes as `ordnet evaluate` does; and the
    median CPU seconds of one picture."""
    ready, confusion, seconds = ready_to_parse(net), Confusion(len(dataset.classes)), []
    with torch.inference_mode():
        for example in examples(dataset):
            begun = time.process_time()
            labels = labels_of(ready, example.image, known)
            seconds.append(time.process_time() - begun)
            confusion.add(example.label[0], labels)
    scored = Evaluation(confusion, dataset.classes, dataset.name, dataset.split, "whole", len(seconds))
    return scored, sorted(seconds)[len(seconds) // 2]


def labels_of(net: nn.Module, image: Tensor, known: KnownSize) -> np.ndarray:
    """A picture (1, 3, H, W) uint8 → class ids (H, W), for networks of both sides."""
    height, width = image.shape[2:]
    seen = seen_by(image[0].permute(1, 2, 0).numpy(), known, getattr(net, "least_side", 1))
    return protocols.labels(net, to_input(seen.pixels, net), size=seen.size)[:height, :width]


def vitals(net: nn.Module, few: Dataset, known: KnownSize) -> dict[str, float]:
    """What the block does on a few pictures after training, its gate above all; empty without one."""
    net.eval()
    with torch.inference_mode(), watch(net) as found:
        for _, example in zip(range(SAMPLES), examples(few), strict=False):
            labels_of(net, example.image, known)
    return found


def _point(net: nn.Module, few: Dataset, known: KnownSize, spent: float, step: int, loss: float) -> dict[str, Any]:
    scored, _ = test(net, few, known)
    miou, accuracy = scored.miou, scored.pixel_accuracy
    # into the cell's log, for whoever waits
    print(f"{spent:.0f} s, {step} steps, loss {loss:.3f}: mIoU {miou:.4f}, pixel accuracy {accuracy:.4f}", flush=True)
    return {"seconds": spent, "steps": step, "loss": loss, "miou": miou, "pixel_accuracy": accuracy}


def main(asked: dict[str, Any], out: Path) -> None:
    """Run one cell and write its figures."""
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    cell = Cell(**{**asked, "settings": parse(asked["settings"], "the cell")})
    write_text(out, json.dumps(run_cell(cell), indent=1) + "\n")


PREFIX = "smp-"
NETWORKS = {"smp-fpn": "FPN", "smp-deeplabv3plus": "DeepLabV3Plus", "smp-unet": "Unet", "smp-upernet": "UPerNet"}
"""Our names of the contestants → the library's."""
ENCODER = "mobilenet_v2"
"""The backbone that both sides have, layer by layer."""
_STAGE_ENDS = (4, 7, 14, 19)
"""Layers of the encoder before its map at 1/4, 1/8, 1/16 and 1/32 is there."""
_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_smp() -> Any:
    """The library, or an error that says why it cannot be imported."""
    try:
        _mend_torchvision()
        return importlib.import_module("segmentation_models_pytorch")
    except ImportError as error:
        raise OrdnetError(
            f"segmentation_models_pytorch is not installed ({error}); pip install 'ordnet[smp]'"
        ) from None
    except Exception as error:  # whatever its own imports met
        reason = str(error).partition("\n")[0]
        raise OrdnetError(f"segmentation_models_pytorch cannot be imported here ({reason})") from None


def _mend_torchvision() -> None:
    """Declare two operators on boxes that a torchvision built for another torch lacks, without which nothing of it can
    be imported. No segmentation network uses them."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in _OPERATORS:
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", _SIGNATURE)


class SmpNetwork(nn.Module):
    """One of the library's networks, with what our training and testing ask of a network.

    Pictures are padded with zeros, which is the mean colour, to a multiple of the encoder's stride, and the scores are
    cropped. Losses at the scores' size are taken before the library's last upsampling, as with our networks.
    """

    align_corners = True
    """How the library's last layer upsamples."""

    def __init__(self, name: str, classes: int, file: WeightFile | None) -> None:
        super().__init__()
        self.classes = classes
        self.net: Any = getattr(import_smp(), NETWORKS[name])(ENCODER, encoder_weights=None, classes=classes)
        if file:
            load_encoder(self.net.encoder, file)

    @property
    def backbone(self) -> nn.Module:
        """What learns at the backbone's rate."""
        encoder: nn.Module = self.net.encoder
        return encoder

    def first_stages(self, count: int) -> list[nn.Module]:
        """The same layers as those of our backbone's first stages."""
        ends = (0, *_STAGE_ENDS[:count])
        return [self.net.encoder.features[start:end] for start, end in pairwise(ends)]

    @property
    def stride(self) -> int:
        """How much smaller than the picture the scores are before the last upsampling."""
        return round(float(getattr(self.net.segmentation_head[1], "scale_factor", 1)))

    def forward(self, image: Tensor) -> Tensor:
        """Normalised pictures (B, 3, H, W) → scores (B, K, H, W)."""
        height, width = image.shape[2:]
        scores: Tensor = self.net(self._padded(image))
        return scores[:, :, :height, :width]

    def training_scores(self, image: Tensor, small: bool = False) -> tuple[Tensor, None]:
        """Scores at the picture's size, or `small` ones before upsampling; there is no auxiliary head."""
        if not small:
            return self(image), None
        height, width = image.shape[2:]
        scores = self.net.segmentation_head[0](self.net.decoder(self.net.encoder(self._padded(image))))
        return scores[:, :, : -(-height // self.stride), : -(-width // self.stride)], None

    def labels_at_scores(self, labels: Tensor) -> Tensor:
        return labels_at(labels, self.stride, self.align_corners)

    def _padded(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        stride = self.net.encoder.output_stride
        return F.pad(image, (0, -width % stride, 0, -height % stride))


def load_encoder(encoder: nn.Module, file: WeightFile) -> None:
    """Fill every tensor of the encoder, whose names are torchvision's; a file that lacks one is refused."""
    given = torchvision_names(file.tensors)
    own = {key: value for key, value in encoder.state_dict().items() if not key.endswith("num_batches_tracked")}
    wrong = [key for key, value in own.items() if key not in given or given[key].shape != value.shape]
    if wrong:
        raise OrdnetError(
            f"{file.path} lacks {len(wrong)} of the encoder's {len(own)} tensors, such as {wrong[0]}: give smp's "
            f"networks the whole ImageNet weights (ORDNET_HUB, or --set model.weights=FILE), or leave them out with "
            f"--contestants"
        )
    encoder.load_state_dict({key: given[key].to(value.dtype) for key, value in own.items()}, strict=False)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    except OrdnetError as error:
        print(f"ordnet: {error}", file=sys.stderr)
        sys.exit(1)
