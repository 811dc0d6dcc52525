"""Everything a run works with, made before its first step: data, network, optimizer, and how far it had come."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import distributed

from ordnet.config import Settings, TrainingConfig
from ordnet.data.catalogue import open_dataset
from ordnet.data.check import quick_check
from ordnet.data.dataset import Dataset, notes_of
from ordnet.data.loader import Batches
from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.model.network import Network
from ordnet.training import state as states
from ordnet.training.display import Board, Display
from ordnet.training.environment import describe
from ordnet.training.run_folder import RunFolder
from ordnet.training.schedule import make_optimizer
from ordnet.training.start import Averaged, start_network, synchronise_norms
from ordnet.training.state import RunProgress
from ordnet.training.step import Trainee


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
    averaged: Averaged | None
    model: Any
    """`net` as it is trained: wrapped for several processes, compiled where that was asked for."""
    optimizer: Any
    progress: RunProgress

    @property
    def kept(self) -> Network:
        """The network that is evaluated and written to checkpoints."""
        return self.averaged.net if self.averaged else self.net

    @property
    def rate(self) -> float:
        """The backbone's learning rate at this moment."""
        return float(self.optimizer.param_groups[0]["lr"])

    def save_state(self) -> None:
        """Write down what `--resume` needs; only the first process does."""
        if self.accelerator.is_main_process:
            taken = (self.net, self.optimizer, self.averaged, self.progress, self.folder.log_size())
            states.save(self.folder.state, states.snapshot(self.settings, *taken))


def make_accelerator(training: TrainingConfig) -> Accelerator:
    """Half precision is for GPUs: on CPUs bfloat16 is many times slower than float32."""
    precision = "no"
    if training.mixed_precision and torch.cuda.is_available():
        precision = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=precision)


def earlier_state(
    folder: RunFolder, settings: Settings, resume: bool, force: bool, display: Display, main: bool
) -> dict[str, Any] | None:
    """The state to resume from, or None for a fresh start; an earlier run is never overwritten unasked."""
    if force and main:
        folder.clear()
    if distributed.is_initialized():
        distributed.barrier()  # the others look at the folder after it was cleared
    if force:
        return None
    found = states.load(folder.state, display.say)
    if found is None:
        if resume:
            display.say(f"{folder.path} has no state yet: starting from the beginning")
        return None
    if found["progress"]["finished"] and not resume:
        raise OrdnetError(f"{folder.path} holds a finished run; choose another --out, or --force to overwrite it")
    if not resume:
        raise OrdnetError(f"{folder.path} holds an unfinished run; continue it with --resume, or --force to start over")
    states.check_settings(found["settings"], settings)
    return found


def prepare(
    settings: Settings,
    folder: RunFolder,
    accelerator: Accelerator,
    display: Display,
    found: dict[str, Any] | None,
    init: Path | None,
) -> Setup:
    """Open the data, build the network or put it back to the state `found`, and begin the run's log."""
    training, main = settings.training, accelerator.is_main_process
    train_set, val_set = _open_data(settings, display, main)
    batches = Batches(
        train_set, settings.data,
        crop=training.crop, batch_size=training.batch_size, seed=training.seed,
        rank=accelerator.process_index, world=accelerator.num_processes,
    )  # fmt: skip

    net = start_network(settings.model, train_set.classes.names, init, training.seed, display.say)
    if not (settings.model.weights or init or found or settings.model.backbone == "tiny"):
        display.say(f"{settings.model.backbone} starts at random: model.weights names no file, and there is no --init")
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        net = synchronise_norms(net)
    if training.channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net = net.to(accelerator.device)
    optimizer: Any = make_optimizer(net, training)
    averaged = Averaged(net, training.ema) if training.ema else None
    progress = RunProgress()
    if found is not None:
        progress = states.restore(found, net, optimizer, averaged)
        display.say(f"resuming after {progress.epoch} epochs and {progress.step} of {batches.steps} steps")
    if main:
        _begin_log(settings, folder, accelerator, found, init)
    board = Board(folder.path / "tensorboard" if main and training.tensorboard else None, progress.epoch)
    model: Any = Trainee(net)
    model, optimizer = accelerator.prepare(torch.compile(model) if training.compile else model, optimizer)
    return Setup(
        settings, folder, accelerator, display, board, train_set, val_set, batches, net, averaged, model, optimizer,
        progress,
    )  # fmt: skip


def _open_data(settings: Settings, display: Display, main: bool) -> tuple[Dataset, Dataset]:
    train_set = open_dataset(settings.data.name, settings.data.split)
    val_set = open_dataset(settings.data.name, settings.data.val_split)
    if main:
        for note in dict.fromkeys((*notes_of(train_set), *notes_of(val_set))):
            display.say(note)
        if not settings.data.skip_broken:
            quick_check(train_set)
            quick_check(val_set)
    return train_set, val_set


def _begin_log(
    settings: Settings, folder: RunFolder, accelerator: Accelerator, found: dict[str, Any] | None, init: Path | None
) -> None:
    if found is not None:
        folder.cut_log(found["log_size"])
    else:
        write_text(folder.settings, settings.to_yaml())
    event = "start" if found is None else "resume"
    origin = {"init": str(init)} if init else {}
    made_with = describe(accelerator.device, accelerator.num_processes)
    folder.append({"event": event, "time": time.time(), **origin, **made_with})
