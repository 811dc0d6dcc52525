"""Training, top to bottom: prepare, then epochs of steps, each epoch evaluated, logged and saved.

A run can be killed anywhere. Everything random is a pure function of (seed, epoch, step), so that a resumed run
takes exactly the steps that the killed one would have taken.

`ordnet.train` takes the name of a recipe, a data set and a few changes to the settings; `train_with` complete settings.
"""

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from ordnet.config import Settings, override
from ordnet.data.loader import dead_worker, is_dead_worker
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import miou_words
from ordnet.evaluation.evaluate import BestAndWorst, Evaluation, evaluate_network
from ordnet.inference.protocols import protocol
from ordnet.picture.charts import curves
from ordnet.recipes import settings_of
from ordnet.training.environment import Stopped, StopRequest, keep_memory, peak_megabytes, stop_requests
from ordnet.training.loss import faded
from ordnet.training.monitor import Display, watch
from ordnet.training.prepare import Setup, make_accelerator, prepare
from ordnet.training.report.write import PICTURES, guarded, rebuild_report, write_report
from ordnet.training.run_folder import RunFolder
from ordnet.training.start import learning_mode, widths_of
from ordnet.training.state import earlier_state, is_finished
from ordnet.training.step import anybody, lost_connection, set_rate, share_buffers, take_step

_DRAW_SECONDS = 30
"""Seconds between two drawings, which take about half a second each: short epochs are not all drawn."""


@dataclass(frozen=True)
class Run:
    """The result of training."""

    folder: Path
    figures: dict[str, Any]
    """The last evaluation's: `miou`, `pixel_accuracy`, `protocol`, …"""

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"


@dataclass(frozen=True)
class Scored:
    """An epoch's evaluation with its best and worst pictures."""

    evaluation: Evaluation
    pictures: BestAndWorst


@dataclass
class Clock:
    """When the state was last saved and the curves were last drawn."""

    saved: float = field(default_factory=time.monotonic)
    drawn: float = -math.inf


def train(
    recipe: str = "folder-default",
    data: str | None = None,
    out: str | Path | None = None,
    changes: Sequence[str] | Mapping[str, Any] = (),
    *,
    resume: bool = False,
    force: bool = False,
    init: str | Path | None = None,
    skip_broken: bool = False,
    device: str | None = None,
    force_data: bool = False,
) -> Run:
    """Train a parser; returns the run folder and the last evaluation's figures.

    `recipe` is a name from `ordnet recipes` or a settings file; `data` is as for --data; `changes` are either
    {"training.epochs": 5} or ["training.epochs=5"]. The run folder is runs/RECIPE unless `out` says otherwise.
    `device` is cpu, cuda, cuda:1 or mps; by default a GPU where there is one.
    `force_data` resumes a run although its data has changed.
    """
    settings = settings_of(recipe)
    given = {key: value for key, value in {"name": data, "skip_broken": skip_broken or None}.items() if value}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=given)})
    words = [f"{key}={_word(value)}" for key, value in changes.items()] if isinstance(changes, Mapping) else changes
    settings = override(settings, list(words))
    if settings.data.name == "folder:PATH":  # the recipe's placeholder
        raise OrdnetError(f"{recipe} needs your pictures: --data folder:PATH, with the folder they are in as PATH")
    if init:
        settings = _fitted(settings, Path(init), words)
    return train_with(
        settings,
        Path(out) if out else Path("runs") / Path(recipe).stem,
        resume=resume,
        force=force,
        init=Path(init) if init else None,
        device=device,
        force_data=force_data,
    )


def train_with(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    init: Path | None = None,
    device: str | None = None,
    force_data: bool = False,
) -> Run:
    """Train as the settings say, into the run folder `out`."""
    keep_memory()
    accelerator = make_accelerator(settings.training, device)
    main = accelerator.is_main_process
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        # torchrun has started the processes again: --force was meant for the first start
        resume, force = True, False
    display, folder = Display(main), RunFolder(out)
    if main:
        folder.claim()
    try:
        with plain_errors():
            found = earlier_state(folder, settings, resume, force, display.say, main)
            if found is not None and is_finished(found, settings):
                return _nothing_to_do(folder, display, accelerator.num_processes)
            setup = prepare(settings, folder, accelerator, display, found, init, force_data, force)
            # loading processes end with training, however that ends
            with closing(setup.board), closing(setup.batches), display.bar, stop_requests() as stop:
                clock = Clock()
                scored: Scored | None = None
                while not setup.progress.finished:
                    speed = one_epoch(setup, stop, clock)
                    scored = finish_epoch(setup, speed, clock)
                assert scored is not None  # the last epoch always ends with an evaluation
                _report(setup, scored)
        if main:
            _say_goodbye(setup)
        accelerator.wait_for_everyone()
        return Run(out, scored.evaluation.figures())
    finally:
        folder.release()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the failures that a run can meet into plain errors.

    A worker's death is reported by a signal, so that the error is raised wherever the loop happens to be.
    """
    try:
        yield
    except OSError as error:
        if is_dead_worker(error):
            raise dead_worker(error) from None
        raise OrdnetError(f"the run could not go on: {error}; mend that and continue with --resume") from None
    except RuntimeError as error:
        if is_dead_worker(error):
            raise dead_worker(error) from None
        if lost_connection(error):
            raise OrdnetError("another process of this run has ended; what it said tells why") from None
        raise
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise OrdnetError(
            "a batch norm got a single position of a single picture, of which it can tell no spread: give a larger "
            "training.crop, training.batch_size or training.micro_batch, or training.freeze_norm=true"
        ) from None


def one_epoch(setup: Setup, stop: StopRequest, clock: Clock) -> float:
    """Train from the current step to the end of the epoch; returns the speed in images per second.

    A request to stop ends it after the step under way, with `Stopped` and a saved state.
    """
    training, progress, batches = setup.training, setup.progress, setup.batches
    learning_mode(setup.net, training, setup.frozen)
    started, seen, speed = time.monotonic(), 0, 0.0
    title = f"epoch {progress.epoch + 1}/{training.epochs}"
    with setup.display.task(title, batches.steps, progress.step) as advance:
        for batch in batches.epoch(progress.epoch, progress.step):
            step = progress.epoch * batches.steps + progress.step
            steps = training.epochs * batches.steps
            set_rate(setup.optimizer, step, steps, training)
            now = faded(training, step / steps)
            last_of_epoch = progress.step == batches.steps - 1
            with watch(setup.net if last_of_epoch else nn.Identity()) as progress.vitals:
                parts = take_step(setup.accelerator, setup.model, setup.optimizer, batch, now, step)
            if setup.averaged:
                setup.averaged.update(setup.net, step + 1)
            progress.step += 1
            progress.parts = {key: progress.parts.get(key, 0.0) + value for key, value in parts.items()}
            seen += training.batch_size
            speed = seen / (time.monotonic() - started)
            advance(_how_it_goes(setup, speed))
            if anybody(bool(stop), setup.accelerator.device):
                setup.save_state()
                out = setup.folder.path
                raise Stopped(f"stopped, as asked, and saved; continue with --resume and --out {out}", stop)
            if time.monotonic() - clock.saved > 60 * training.save_minutes:
                setup.save_state()
                clock.saved = time.monotonic()
    return speed


def finish_epoch(setup: Setup, speed: float, clock: Clock) -> Scored | None:
    """Evaluate if it is this epoch's turn, write the log, the checkpoints and the curves, and save the state."""
    settings, progress, folder = setup.settings, setup.progress, setup.folder
    progress.epoch += 1
    last = progress.epoch == settings.training.epochs
    record = _record(setup, speed)
    scored, improved = None, False
    if last or progress.epoch % settings.evaluation.every == 0:
        scored = _evaluate(setup)
        record |= scored.evaluation.figures()
        improved = (record["miou"] or 0.0) > progress.best
        if improved:
            progress.best, progress.best_epoch = record["miou"] or 0.0, progress.epoch
        last = last or _out_of_patience(setup)
    if setup.accelerator.is_main_process:
        folder.append(record)
        setup.board.write(record)
        setup.display.epoch(record, settings.training.epochs)
        setup.save_checkpoint(folder.last, record)
        if improved:
            setup.save_checkpoint(folder.best, record)
        if last or time.monotonic() - clock.drawn > _DRAW_SECONDS:
            curves(folder.epochs(), folder.curves)
            clock.drawn = time.monotonic()
    progress.step, progress.parts, progress.vitals = 0, {}, {}
    progress.finished = last
    setup.save_state()
    clock.saved = time.monotonic()
    return scored


def _evaluate(setup: Setup) -> Scored:
    settings, pictures = setup.settings, BestAndWorst(PICTURES)
    share_buffers(setup.kept)
    share = math.ceil(len(setup.val_set.ids) / setup.accelerator.num_processes)
    with setup.display.task("evaluating", share) as advance:
        evaluation = evaluate_network(
            setup.kept, setup.val_set,
            protocol(settings.evaluation.protocol, settings.data.base_size, settings.training.crop),
            device=setup.accelerator.device,
            progress=lambda _: advance(""), skip_broken=settings.data.skip_broken, look=pictures.add,
            known=setup.known,
        )  # fmt: skip
    return Scored(evaluation, pictures)


def _out_of_patience(setup: Setup) -> bool:
    """Whether the best score is old enough to end training early."""
    progress, patience = setup.progress, setup.settings.training.patience
    stale = progress.epoch - progress.best_epoch
    if patience is None or stale < patience or progress.epoch == setup.settings.training.epochs:
        return False
    setup.display.say(
        f"no better mIoU for {stale} epoch{'s' * (stale > 1)} (training.patience): ending after epoch "
        f"{progress.epoch}, the best was epoch {progress.best_epoch}"
    )
    return True


def _record(setup: Setup, speed: float) -> dict[str, Any]:
    """An epoch's record, before its evaluation."""
    progress, steps = setup.progress, setup.batches.steps
    means = {name: value / steps for name, value in progress.parts.items()}
    record = {"event": "epoch", "epoch": progress.epoch, "step": progress.epoch * steps, **means}
    record |= {"rate": setup.rate, "images_per_second": speed, "peak_mb": peak_megabytes(), "time": time.time()}
    return {**record, **progress.vitals}


def _how_it_goes(setup: Setup, speed: float) -> str:
    progress = setup.progress
    best = f"mIoU {progress.best:.3f} " if progress.best >= 0 else ""
    return f"loss {progress.parts['loss'] / progress.step:.3f} {best}rate {setup.rate:.2g} {speed:.1f} images/s"


def _report(setup: Setup, scored: Scored) -> None:
    if not setup.accelerator.is_main_process:
        return
    parts = (setup.kept, setup.train_set, setup.val_set, scored.evaluation, scored.pictures, setup.known)
    with setup.display.task("drawing the report", 1):
        guarded(setup.display.say, lambda: write_report(setup.folder, setup.settings, *parts))


def _say_goodbye(setup: Setup) -> None:
    for message, count in setup.batches.broken.most_common(5):
        setup.display.say(f"left out {count} times: {message}")
    folder, progress = setup.folder, setup.progress
    report = f", report {folder.report}" if folder.report.exists() else ""
    best = next((record for record in folder.epochs() if record["epoch"] == progress.best_epoch), None)
    words = miou_words(best) if best else f"mIoU {progress.best:.4f}"
    setup.display.say(f"done: {folder.best} (best {words}){report}")


def _nothing_to_do(folder: RunFolder, display: Display, processes: int) -> Run:
    """A finished run stays as it is; only a report that is missing is written."""
    if processes == 1 and not folder.report.exists():
        display.say(f"{folder.path} holds a finished run without a report: writing that")
        guarded(display.say, lambda: rebuild_report(folder.path))
    else:
        display.say(f"{folder.path} holds a finished run; nothing to do")
    return Run(folder.path, folder.last_epoch())


def _fitted(settings: Settings, init: Path, words: Iterable[str]) -> Settings:
    """The settings with the widths of the checkpoint to start from, where --set does not say otherwise."""
    fixed = {word.partition("=")[0].strip().removeprefix("model.") for word in words}
    widths = widths_of(init, settings.model, fixed)
    if widths and int(os.environ.get("RANK", "0")) == 0:
        told = ", ".join(f"model.{name}={value}" for name, value in widths.items())
        print(f"as in {init}: {told}", file=sys.stderr)
    return settings.model_copy(update={"model": settings.model.model_copy(update=widths)})


def _word(value: Any) -> str:
    """The value as YAML writes it, on one line."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
