"""Preparing a run before its first step: data, network, optimizer and, where it is resumed, its progress."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import nn

from ordnet.config import LONGEST_SIDE, DataConfig, Settings, TrainingConfig
from ordnet.data.catalogue import open_dataset
from ordnet.data.check import quick_check
from ordnet.data.dataset import Dataset, Spread, notes_of
from ordnet.data.loader import Batches
from ordnet.data.statistics import class_weights, long_sides, size_remark
from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.inference.parser import find_device
from ordnet.model import checkpoint
from ordnet.model.build import SCRATCH
from ordnet.model.network import Network
from ordnet.model.pixels import KnownSize
from ordnet.training import state as states
from ordnet.training.environment import describe
from ordnet.training.loss import class_weights_of
from ordnet.training.monitor import Board, Display, board_writer
from ordnet.training.run_folder import RunFolder
from ordnet.training.start import Averaged, frozen_stages, start_network, synchronise_norms
from ordnet.training.state import RunProgress, check_fingerprint, fingerprint, make_room
from ordnet.training.step import Trainee, make_optimizer, pace, poly

_WORKERS_PER_CORE = 4
_LEAST_BATCH = 4
"""Batch norms need a few pictures."""
ABOUT = ("epoch", "data", "split", "protocol", "images", "miou", "miou_classes", "absent_classes", "pixel_accuracy",
         "per_class_iou", "miou_by_range")  # fmt: skip
"""The parts of an epoch's record that a checkpoint carries."""


@dataclass
class Setup:
    """What the loop works with. Only `progress` and the parameters change while it runs."""

    settings: Settings
    folder: RunFolder
    accelerator: Accelerator
    display: Display
    board: Board
    train_set: Dataset
    val_set: Dataset
    batches: Batches
    net: Network
    frozen: list[nn.Module]
    """Stages of the backbone that stay as they are."""
    averaged: Averaged | None
    model: Any
    """`net` as it is trained: wrapped for several processes, compiled where that was asked for."""
    optimizer: Any
    progress: RunProgress
    class_weights: tuple[float, ...] | None
    """The weights given in the settings, or those that `auto` has counted."""
    known: KnownSize
    """The sizes at which the network sees pictures; checkpoints record them for parsing other pictures."""
    data: dict[str, Any]
    """The data set's fingerprint."""

    @property
    def training(self) -> TrainingConfig:
        """The settings' section, with the class weights as numbers, and the size that batches have."""
        known = {"class_weights": self.class_weights, "batch_size": self.batches.size}
        return self.settings.training.model_copy(update=known)

    @property
    def kept(self) -> Network:
        """The network that is evaluated and written to checkpoints."""
        return self.averaged.net if self.averaged else self.net

    @property
    def rate(self) -> float:
        """The backbone's current learning rate."""
        return float(self.optimizer.param_groups[0]["lr"])

    def save_state(self) -> None:
        """Save what `--resume` needs; only the first process does."""
        if self.accelerator.is_main_process:
            parts = (self.net, self.optimizer, self.averaged, self.progress)
            fixed = (self.class_weights, self.data)
            taken = states.snapshot(self.settings, *parts, self.folder.log_size(), *fixed, self.accelerator.scaler)
            states.save(self.folder.state, taken)

    def save_checkpoint(self, path: Path, record: dict[str, Any]) -> None:
        """Write the kept network to a checkpoint that says where it comes from; `record` is the epoch's."""
        about = {key: record[key] for key in ABOUT if key in record}
        about |= {"crop": self.settings.training.crop, "base_size": self.settings.data.base_size}
        bounds = {"long_side": self.known.most, "least_long_side": self.known.least}
        about |= {key: bound for key, bound in bounds.items() if bound}
        classes = self.train_set.classes
        try:
            checkpoint.save(path, self.kept, classes.names, classes.colours, about)
        except (OSError, SafetensorError) as error:
            raise OrdnetError(f"{path} could not be written ({error}); make room and continue with --resume") from None


def make_accelerator(training: TrainingConfig, device: str | None = None) -> Accelerator:
    """The device to train on, and the other processes; by default a GPU where there is one."""
    chosen = find_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.index is not None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise OrdnetError(
                f"--device {device} with several processes: each takes a GPU of its own; say cuda, or cpu"
            )
        torch.cuda.set_device(chosen)
    precision = "no"
    # half precision is for GPUs: on CPUs bfloat16 is many times slower than float32
    if training.mixed_precision and chosen.type == "cuda":
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    return Accelerator(cpu=chosen.type == "cpu", mixed_precision=precision)


def prepare(
    settings: Settings,
    folder: RunFolder,
    accelerator: Accelerator,
    display: Display,
    found: dict[str, Any] | None,
    init: Path | None,
    force_data: bool = False,
    force: bool = False,
) -> Setup:
    """Open the data, build the network or restore it to the state `found`, and begin the run's log.

    With `force_data` a run is resumed although its data has changed. All that can be a mistake is checked before the
    folder is touched: with `force`, an earlier run is removed just before this one's log begins.
    """
    training, main = settings.training, accelerator.is_main_process
    if main and training.tensorboard:
        board_writer()  # it is an error where there is none
    train_set, val_set = _open_data(settings, display, main)
    data = fingerprint(train_set, val_set, accelerator.num_processes)
    if found is not None:
        for difference in check_fingerprint(found.get("data"), data, force_data):
            display.say(f"going on with other data (--force-data): {difference}")
    batches = Batches(
        train_set, settings.data.model_copy(update={"workers": _workers(settings.data.workers, display)}),
        crop=training.crop, batch_size=batch_of(settings, train_set, accelerator.num_processes), seed=training.seed,
        rank=accelerator.process_index, world=accelerator.num_processes,
    )  # fmt: skip
    if batches.size < training.batch_size:
        display.say(
            f"{batches.count} pictures are few: batches of {batches.size} instead of {training.batch_size}, so that an "
            f"epoch has {batches.steps} steps (training.least_steps)"
        )

    if settings.data.balance:
        display.say(
            f"pictures with rare classes come up to {batches.unevenness:.1f} times as often as others "
            f"(data.balance={settings.data.balance:g})"
        )

    # a resumed run keeps the weights that it began with
    weights = given_or_counted(settings, train_set) if found is None else _kept_weights(settings, found)
    display.weighted = weights is not None
    if settings.training.class_weights == "auto" and found is None and weights:
        shown = ", ".join(f"{name} {weight:g}" for name, weight in zip(train_set.classes.names, weights, strict=True))
        display.say(f"class weights, by the training labels: {shown}")
    origin: list[str] = []  # where the network's first weights came from
    model, start = settings.model, init
    if found is not None and "stride_on" in found:
        # the state has all weights: the file, checkpoint or hub that they came from is not needed again
        model, start = model.model_copy(update={"weights": None, "stride_on": found["stride_on"]}), None
    net = start_network(model, train_set.classes.names, start, training.seed, origin.append)
    if not (settings.model.weights or init or found or settings.model.backbone in SCRATCH):
        origin.append(
            f"{settings.model.backbone} starts at random: model.weights names no file, and there is no --init"
        )
    for words in origin:
        display.say(words)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        net = synchronise_norms(net)
    if training.channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net = net.to(accelerator.device)
    frozen = frozen_stages(net, settings)
    if training.freeze_stages and not frozen:
        display.say(f"training.freeze_stages={training.freeze_stages} has no effect: model.weights names no weights")
    optimizer: Any = make_optimizer(net, training)
    averaged = Averaged(net, training.ema) if training.ema else None
    progress = RunProgress()
    if found is not None:
        progress = states.restore(found, net, optimizer, averaged, accelerator.scaler)
        display.say(f"resuming after {progress.epoch} epochs and {progress.step} of {batches.steps} steps")
        _say_schedule(found["settings"]["training"]["epochs"], settings, batches.steps, progress, display)
        progress.finished = False
    trainee: Any = Trainee(net)
    trainee, optimizer = accelerator.prepare(torch.compile(trainee) if training.compile else trainee, optimizer)
    sides = long_sides(train_set)
    scaled = settings.data.long_side or settings.data.base_size
    if main and found is None and not scaled and (advice := size_remark(sides, training.crop)):
        display.say(advice)

    # from here on the folder changes
    if found is None:
        make_room(folder, settings, force, display.say, main)
    if main:
        facts: dict[str, Any] = {"weights": origin} if origin else {}
        facts |= {"batch_size": batches.size}
        facts |= {"class_weights": weights} if training.class_weights == "auto" else {}
        _begin_log(settings, folder, accelerator, found, init, facts)
    board = Board(folder.path / "tensorboard" if main and training.tensorboard else None, progress.epoch)
    return Setup(
        settings, folder, accelerator, display, board, train_set, val_set, batches, net, frozen, averaged, trainee,
        optimizer, progress, weights, trained_at(sides, settings.data), data,
    )  # fmt: skip


def batch_of(settings: Settings, train_set: Dataset, processes: int = 1) -> int:
    """The pictures of one step: `batch_size`, or fewer where an epoch would have less than `least_steps` steps."""
    training, pictures = settings.training, _used(settings, train_set)
    if not training.least_steps:
        return training.batch_size
    size = min(training.batch_size, max(_LEAST_BATCH, pictures // training.least_steps), pictures)
    return max(1, size // processes) * processes


def _used(settings: Settings, train_set: Dataset) -> int:
    """How many of the pictures are trained on."""
    return min(len(train_set.ids), settings.data.limit or len(train_set.ids))


def trained_at(sides: Sequence[int], data: DataConfig) -> KnownSize:
    """The range of long sides that nine in ten training pictures fall into."""
    if not sides:
        return KnownSize(data.long_side)
    least, most = (int(np.quantile(sides, part, method="lower")) for part in (0.05, 0.95))
    most = data.long_side or min(most, LONGEST_SIDE)
    # with a base size, training scales pictures around that size, not their own
    return KnownSize(most, None if data.base_size else min(least, most))


def _open_data(settings: Settings, display: Display, main: bool) -> tuple[Dataset, Dataset]:
    train_set = open_dataset(settings.data.name, settings.data.split)
    val_set = open_dataset(settings.data.name, settings.data.val_split)
    if main:
        for note in dict.fromkeys((*notes_of(train_set), *notes_of(val_set))):
            display.say(note)
        if not settings.data.skip_broken:
            for remark in dict.fromkeys((*quick_check(train_set), *quick_check(val_set))):
                display.say(remark)
    limit = settings.evaluation.limit
    if limit and limit < len(val_set.ids):
        display.say(f"evaluating on {limit:,} of {len(val_set.ids):,} pictures, evenly spread (evaluation.limit)")
        val_set = Spread(val_set, limit)
    return train_set, val_set


def _workers(asked: int, display: Display) -> int:
    """The number of loading processes: as many as were asked for, within what the computer can use."""
    cores, beside = os.cpu_count() or 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    most = max(1, _WORKERS_PER_CORE * cores // beside)
    if asked <= most:
        return asked
    display.say(f"data.workers is {asked:,}, more than this computer with its {cores} cores can use: it gets {most}")
    return most


def _begin_log(
    settings: Settings,
    folder: RunFolder,
    accelerator: Accelerator,
    found: dict[str, Any] | None,
    init: Path | None,
    facts: dict[str, Any],
) -> None:
    """Write the settings, with a note on --init, and the record of this start; `facts` is what it is to hold."""
    folder.own_all(settings.training.tensorboard)
    folder.sweep()
    if found is not None:
        folder.cut_log(found["log_size"])
    starts = [record for record in folder.records() if record["event"] == "start"]
    began_with = starts[0].get("init") if starts else init
    note = f"# started with --init {began_with}\n" if began_with else ""
    write_text(folder.settings, note + settings.to_yaml())
    record: dict[str, Any] = {"event": "start" if found is None else "resume", "time": time.time()}
    record |= {"init": str(init)} if init else {}
    folder.append({**record, **facts, **describe(accelerator.device, accelerator.num_processes)})


def _kept_weights(settings: Settings, found: dict[str, Any]) -> tuple[float, ...] | None:
    if settings.training.class_weights != "auto":
        return class_weights_of(settings.training)
    return tuple(found["class_weights"])


def given_or_counted(settings: Settings, train_set: Dataset) -> tuple[float, ...] | None:
    """The class weights as numbers: those of the settings, or what `auto` counts in the pictures that are used."""
    if settings.training.class_weights != "auto":
        return class_weights_of(settings.training)
    used = _used(settings, train_set)
    return class_weights(Spread(train_set, used, used))


def _say_schedule(before: int, settings: Settings, steps: int, progress: RunProgress, display: Display) -> None:
    """A run that goes on for longer follows the longer schedule from here."""
    training = settings.training
    if training.epochs == before:
        return
    done = progress.epoch * steps + progress.step
    then, now = (poly(done, epochs * steps, training.power) for epochs in (before, training.epochs))
    now *= pace(training.epochs * steps, training) / pace(before * steps, training)
    display.say(
        f"the run goes on to epoch {training.epochs} instead of {before}, with the schedule of {training.epochs} "
        f"epochs: the learning rate is at {now:.0%} of its start now ({then:.0%} in the shorter one), and falls to 0"
    )
