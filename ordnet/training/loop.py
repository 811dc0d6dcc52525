"""Training, top to bottom: open, build or resume, then epochs of steps, each epoch evaluated, logged and saved.

A run can be killed anywhere. Everything random is a pure function of (seed, epoch, step), so that a resumed run
takes exactly the steps that the killed one would have taken.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, distributed, nn

from ordnet.config import Settings, TrainingConfig
from ordnet.data.catalogue import open_dataset
from ordnet.data.check import quick_check
from ordnet.data.dataset import Dataset, notes_of
from ordnet.data.loader import Batch, Batches
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import Evaluation, Extremes, evaluate
from ordnet.files import write_text
from ordnet.inference.protocols import protocol
from ordnet.model import checkpoint
from ordnet.model.network import Network
from ordnet.model.pixels import normalise
from ordnet.picture.charts import curves
from ordnet.training import state as states
from ordnet.training.display import Board, Display
from ordnet.training.loss import count_pixels, total_loss
from ordnet.training.report import report as reporting
from ordnet.training.run_folder import RunFolder, Stopped, describe, peak_megabytes, stop_requests
from ordnet.training.schedule import make_optimizer, set_rate
from ordnet.training.start import Averaged, freeze_norms, start_network, synchronise_norms
from ordnet.training.state import check_settings, restore, snapshot
from ordnet.training.vitals import watch


@dataclass
class Progress:
    """How far a run has come; part of its state."""

    epoch: int = 0
    step: int = 0
    """Steps taken in this epoch."""
    best: float = -1.0
    parts: dict[str, float] = field(default_factory=dict)
    """The loss and what it consists of, summed over this epoch's steps."""
    vitals: dict[str, float] = field(default_factory=dict)
    """Of the block, at the epoch's last step."""
    finished: bool = False


@dataclass(frozen=True)
class Run:
    """What is left when training ends."""

    folder: Path
    figures: dict[str, Any]
    """Of the last evaluation: `miou`, `pixel_accuracy`, `protocol`, …"""

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"


def train(settings: Settings, out: Path, *, resume: bool = False, force: bool = False, init: Path | None = None) -> Run:
    """Train as the settings say, into the run folder `out`."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=_precision(settings.training))
    folder = RunFolder(out)
    if accelerator.is_main_process:
        folder.claim()
    try:
        return _train(settings, folder, accelerator, resume, force, init)
    finally:
        folder.release()


def _train(
    settings: Settings, folder: RunFolder, accelerator: Accelerator, resume: bool, force: bool, init: Path | None
) -> Run:
    training, out = settings.training, folder.path
    device, main, world = accelerator.device, accelerator.is_main_process, accelerator.num_processes
    display = Display(main)
    found = _earlier(folder, settings, resume, force, display, main)
    if found is not None and found["progress"]["finished"]:
        if world == 1 and not folder.report.exists():
            display.say(f"{out} holds a finished run without a report: writing that")
            reporting.guarded(display.say, lambda: reporting.rebuild(out))
        else:
            display.say(f"{out} holds a finished run; nothing to do")
        return Run(out, folder.epochs()[-1])

    train_set = open_dataset(settings.data.name, settings.data.split)
    val_set = open_dataset(settings.data.name, settings.data.val_split)
    if main:
        for note in dict.fromkeys((*notes_of(train_set), *notes_of(val_set))):
            display.say(note)
        if not settings.data.skip_broken:
            quick_check(train_set)
            quick_check(val_set)
    batches = Batches(
        train_set, settings.data,
        crop=training.crop, batch_size=training.batch_size, seed=training.seed,
        rank=accelerator.process_index, world=world,
    )  # fmt: skip
    total_steps = training.epochs * batches.steps

    net = start_network(settings.model, train_set.classes.names, init, training.seed, display.say)
    if not (settings.model.weights or init or found or settings.model.backbone == "tiny"):
        display.say(f"{settings.model.backbone} starts at random: model.weights names no file, and there is no --init")
    if world > 1 and device.type == "cuda":
        net = synchronise_norms(net)
    if training.channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net = net.to(device)
    optimizer = make_optimizer(net, training)
    averaged = Averaged(net, training.ema) if training.ema else None
    progress = Progress()
    if found is not None:
        progress = Progress(**restore(found, net, optimizer, averaged))
        display.say(f"resuming after {progress.epoch} epochs and {progress.step} of {batches.steps} steps")
    if main:
        if found is not None:
            folder.cut_log(found["log_size"])
        else:
            write_text(folder.settings, settings.to_yaml())
        event = "start" if found is None else "resume"
        origin = {"init": str(init)} if init else {}
        folder.append({"event": event, "time": time.time(), **origin, **describe(device, world)})
    board = Board(out / "tensorboard" if main and training.tensorboard else None, progress.epoch)
    model: Any = _Trainee(net)
    model, optimizer = accelerator.prepare(torch.compile(model) if training.compile else model, optimizer)
    kept = averaged.net if averaged else net

    def save_state() -> None:
        if main:
            states.save(folder.state, snapshot(settings, net, optimizer, averaged, progress, folder.log_size()))

    with display.bar, stop_requests() as stop:
        evaluation: Evaluation | None = None
        extremes = Extremes(reporting.PICTURES)
        saved, drawn = time.monotonic(), -math.inf
        while progress.epoch < training.epochs:
            net.train()
            if training.freeze_norm:
                freeze_norms(net)
            started, seen = time.monotonic(), 0
            with display.task(f"epoch {progress.epoch + 1}/{training.epochs}", batches.steps, progress.step) as advance:
                for batch in batches.epoch(progress.epoch, progress.step):
                    step = progress.epoch * batches.steps + progress.step
                    set_rate(optimizer, step, total_steps, training)
                    last_of_epoch = progress.step == batches.steps - 1
                    with watch(net if last_of_epoch else nn.Identity()) as progress.vitals:
                        parts = _step(accelerator, model, optimizer, batch, training, step)
                    if averaged:
                        averaged.update(net)
                    progress.step += 1
                    progress.parts = {key: progress.parts.get(key, 0.0) + value for key, value in parts.items()}
                    seen += training.batch_size
                    speed = seen / (time.monotonic() - started)
                    advance(_about(progress, optimizer.param_groups[0]["lr"], speed))
                    if _anybody(bool(stop), device):
                        save_state()
                        raise Stopped(f"stopped, as asked, and saved; continue with --resume and --out {out}", stop)
                    if time.monotonic() - saved > 60 * training.save_minutes:
                        save_state()
                        saved = time.monotonic()

            progress.epoch += 1
            speed = seen / (time.monotonic() - started)
            record = _record(progress, batches, optimizer.param_groups[0]["lr"], speed)
            if progress.epoch % settings.evaluation.every == 0 or progress.epoch == training.epochs:
                extremes = Extremes(reporting.PICTURES)
                with display.task("evaluating", math.ceil(len(val_set.ids) / world)) as advance:
                    evaluation = evaluate(
                        kept, val_set,
                        protocol(settings.evaluation.protocol, settings.data.base_size, training.crop),
                        device=device, progress=lambda _: advance(""), skip_broken=settings.data.skip_broken,
                        look=extremes.add,
                    )  # fmt: skip
                record |= evaluation.figures()
            if main:
                folder.append(record)
                board.write(record)
                display.epoch(record, training.epochs)
                about: dict[str, Any] = {key: record[key] for key in ABOUT if key in record}
                about |= {"crop": training.crop, "base_size": settings.data.base_size}
                _keep(folder.last, kept, train_set, about)
                if evaluation is not None and "miou" in record and (record["miou"] or 0.0) > progress.best:
                    progress.best = record["miou"] or 0.0
                    _keep(folder.best, kept, train_set, about)
                if progress.epoch == training.epochs or time.monotonic() - drawn > _DRAW_SECONDS:
                    curves(folder.epochs(), folder.curves)
                    drawn = time.monotonic()
            progress.step, progress.parts, progress.vitals = 0, {}, {}
            progress.finished = progress.epoch == training.epochs
            save_state()
            saved = time.monotonic()
        assert evaluation is not None  # the last epoch always ends with one
        if main:
            found_out = (kept, train_set, val_set, evaluation, extremes)
            with display.task("drawing the report", 1):
                reporting.guarded(display.say, lambda: reporting.write(folder, settings, *found_out))

    for message, count in batches.broken.most_common(5):
        display.say(f"left out {count} times: {message}")
    drawn_as = f", report {folder.report}" if folder.report.exists() else ""
    display.say(f"done: {folder.best} (best mIoU {progress.best:.4f}){drawn_as}")
    accelerator.wait_for_everyone()
    return Run(out, evaluation.figures())


ABOUT = ("epoch", "data", "split", "protocol", "images", "miou", "pixel_accuracy", "per_class_iou",
          "miou_by_range")  # fmt: skip
"""What a checkpoint says of itself."""
_DRAW_SECONDS = 30
"""Drawing takes about half a second; runs with short epochs do not draw after each."""


class _Trainee(nn.Module):
    """What is trained is the pass with auxiliary scores, which processes can only wrap as a `forward`."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.net.training_scores(images)


def _step(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, batch: Batch, training: TrainingConfig, step: int
) -> dict[str, float]:
    """One step of the optimizer on this process's share of the batch; the whole batch's loss and its parts."""
    # dropout differs by step and process, and a resumed run repeats it
    torch.manual_seed(np.random.SeedSequence((training.seed, step, accelerator.process_index)).generate_state(1).item())
    pixels = _summed(
        torch.tensor([count_pixels(batch.labels, training.class_weights)], dtype=torch.float64), accelerator
    )
    size = training.micro_batch or len(batch.images)
    micro_batches = list(zip(batch.images.split(size), batch.labels.split(size), strict=True))
    sums: dict[str, Tensor] = {}
    for index, (images, labels) in enumerate(micro_batches):
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        last = index == len(micro_batches) - 1
        # processes exchange gradients once, with the last micro-batch
        with nullcontext() if last else accelerator.no_sync(model):
            with accelerator.autocast():
                scores, auxiliary = model(normalise(images))
            share = len(images) / training.batch_size
            loss, parts = total_loss(scores, auxiliary, labels, training, float(pixels), share)
            # processes average their gradients, but the parts are meant to be added
            accelerator.backward(loss * accelerator.num_processes)
        for name, value in {"loss": loss.detach(), **parts}.items():
            sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
    stacked = _summed(torch.stack([value.double().cpu() for value in sums.values()]), accelerator)
    found = dict(zip(sums, stacked.tolist(), strict=True))
    if not math.isfinite(found["loss"]):
        shown = ", ".join(f"{name} {value:g}" for name, value in found.items())
        raise OrdnetError(
            f"the loss is not finite at step {step} ({shown}); the last good state is kept. "
            f"Try a lower training.rate, or training.clip, and start again from it with --force --init"
        )
    if training.clip:
        accelerator.clip_grad_norm_(model.parameters(), training.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return found


def _summed(values: Tensor, accelerator: Accelerator) -> Tensor:
    """Added up over all processes, in float64 on the CPU."""
    if accelerator.num_processes == 1:
        return values
    values = values.to(accelerator.device)
    distributed.all_reduce(values)
    return values.cpu()


def _anybody(flag: bool, device: torch.device) -> bool:
    """Whether any process has the flag up: all must leave the loop at the same step."""
    if not distributed.is_initialized():
        return flag
    votes = torch.tensor([float(flag)], device=device)
    distributed.all_reduce(votes)
    return bool(votes.item())


def _precision(training: TrainingConfig) -> str:
    """Half precision is for GPUs: on CPUs bfloat16 is many times slower than float32."""
    if not (training.mixed_precision and torch.cuda.is_available()):
        return "no"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def _earlier(
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
    check_settings(found["settings"], settings)
    return found


def _record(progress: Progress, batches: Batches, rate: float, speed: float) -> dict[str, Any]:
    means = {name: value / batches.steps for name, value in progress.parts.items()}
    record = {"event": "epoch", "epoch": progress.epoch, "step": progress.epoch * batches.steps, **means}
    record |= {"rate": rate, "images_per_second": speed, "peak_mb": peak_megabytes(), "time": time.time()}
    return {**record, **progress.vitals}


def _keep(path: Path, net: Network, dataset: Dataset, about: dict[str, Any]) -> None:
    try:
        checkpoint.save(path, net, dataset.classes.names, dataset.classes.colours, about)
    except OSError as error:
        raise OrdnetError(f"{path} could not be written ({error}); make room and continue with --resume") from None


def _about(progress: Progress, rate: float, speed: float) -> str:
    best = f"mIoU {progress.best:.3f} " if progress.best >= 0 else ""
    return f"loss {progress.parts['loss'] / progress.step:.3f} {best}rate {rate:.2g} {speed:.1f} images/s"
