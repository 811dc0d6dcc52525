"""The paper's four ablation tables, and one of methods: the network of each row, and its training with several seeds.

Rows that train the same network share a run: attention-out with a sigmoid is Basic SA + RLR, fusion by concatenation is
ORDNet, and the middle range with a single patch is Basic SA (the paper gives both the same figures).

OUT/basic-sa/seed-0/ and so on hold the runs, shared by all tables made in OUT; OUT/branches.md, .csv, .json and .png
hold the table. A finished run is not run again, a killed one continues. Runs (`Job`) go one after the other here, or
several at once in processes of their own.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ordnet.bench.measure import Timing, interleaved
from ordnet.config import BLOCK_SETTINGS, OMNI_RANGE, Settings, override
from ordnet.data.catalogue import open_dataset
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import evaluate
from ordnet.files import write_text
from ordnet.inference.protocols import labels
from ordnet.model.build import build_from
from ordnet.model.flops import gflops
from ordnet.model.network import for_inference
from ordnet.model.pixels import black
from ordnet.progress import progress
from ordnet.recipes import settings_of
from ordnet.study.table import Table, TableRow
from ordnet.training.environment import Stopped, stop_requests
from ordnet.training.loop import train_with
from ordnet.training.run_folder import RunFolder
from ordnet.training.state import check_settings, is_finished
from ordnet.training.state import load as load_state

LARGER_CROP = 640 / 480
"""The last row of the patches table is trained on larger crops."""


@dataclass(frozen=True)
class PlannedRow:
    """One row of a table before it is trained."""

    name: str
    """The name of the row in ordnet.paper.ABLATIONS."""
    label: str
    run: str
    """The folder of its runs; rows with the same network have the same."""
    model: dict[str, Any] = field(default_factory=dict)
    larger_crop: bool = False

    def settings(self, base: Settings, seed: int) -> Settings:
        """The common settings with what this row changes. All rows train with cross-entropy, tested at one scale."""
        model = dict(self.model)
        if model["variant"] not in OMNI_RANGE:
            model |= dict.fromkeys(BLOCK_SETTINGS)  # a network without a block takes none of its settings
        training: dict[str, Any] = {"seed": seed, "lovasz": 0.0}
        if self.larger_crop:
            training["crop"] = 8 * round(base.training.crop * LARGER_CROP / 8)
        sections = {
            "model": base.model.model_copy(update=model),
            "training": base.training.model_copy(update=training),
            "evaluation": base.evaluation.model_copy(update={"protocol": "whole"}),
        }
        return base.model_copy(update=sections)


def _variant(name: str, label: str, variant: str, run: str | None = None, **model: Any) -> PlannedRow:
    return PlannedRow(name, label, run or name, {"variant": variant, **model})


TABLES: dict[str, list[PlannedRow]] = {
    "branches": [
        _variant("dilated-fcn", "Dilated FCN", "dilated-fcn"),
        _variant("basic-sa", "Basic SA", "basic-sa"),
        _variant("basic-sa-mr", "Basic SA + MR", "basic-sa-mr"),
        _variant("basic-sa-rlr", "Basic SA + RLR", "basic-sa-rlr"),
        _variant("ordnet", "ORDNet (MR + RLR)", "ordnet"),
    ],
    "patches": [
        _variant("p1", "MR, 1 x 1 patch", "basic-sa", run="basic-sa"),
        _variant("p2", "MR, 2 x 2 patches", "mr", run="mr-p2", patches=2),
        _variant("p4", "MR, 4 x 4 patches", "mr", run="mr-p4", patches=4),
        PlannedRow("p4-large", "MR, 4 x 4, larger crop", "mr-p4-large", {"variant": "mr", "patches": 4}, True),
    ],
    "gate": [
        _variant(f"{gate}-{norm}", f"attention-{gate}, {norm}", "basic-sa-rlr", f"gate-{gate}-{norm}", gate=gate,
                 gate_norm=norm)
        if (gate, norm) != ("out", "sigmoid")
        else _variant("out-sigmoid", "attention-out, sigmoid", "basic-sa-rlr", "basic-sa-rlr")
        for gate in ("in", "out") for norm in ("softmax", "sigmoid")
    ],
    "fusion": [
        _variant("sum", "sum", "ordnet", "fusion-sum", fusion="sum"),
        _variant("concat", "concatenation", "ordnet", "ordnet"),
        _variant("scale", "attention to scale", "ordnet", "fusion-scale", fusion="scale"),
        _variant("channel", "channel selection", "ordnet", "fusion-channel", fusion="channel"),
    ],
}  # fmt: skip


METHODS = [
    _variant("dilated-fcn", "no context", "dilated-fcn"),
    _variant("basic-sa", "Basic SA", "basic-sa"),
    _variant("nonlocal", "softmax non-local", "nonlocal"),
    _variant("interlaced", "InterlacedSSA", "interlaced"),
    _variant("danet", "DANet", "danet"),
    _variant("aspp", "ASPP", "aspp"),
    _variant("ppm", "pyramid pooling", "ppm"),
    _variant("ordnet", "ORDNet", "ordnet"),
]
"""`methods`: kinds of context in the same network, with what each costs. The paper has no such table."""
_SPEED_TURNS = 5


def rows_of(table: str) -> list[PlannedRow]:
    known = {**TABLES, "methods": METHODS}
    if table not in known:
        raise OrdnetError(f"there is no ablation {table!r}; there are {', '.join(known)}")
    return known[table]


def default_recipe(data: str) -> str:
    """The recipe that an ablation on this data set changes, where none is named."""
    name = data.partition(":")[0]
    return {"scenes": "scenes-tiny", "pascal-context": "pcontext-r50-ordnet", "camvid": "camvid-mobilenet"}.get(
        name, "folder-default"
    )


def base_settings(data: str, recipe: str | None) -> Settings:
    settings = settings_of(recipe or default_recipe(data))
    return settings.model_copy(update={"data": settings.data.model_copy(update={"name": data})})


def refuse_run(out: Path) -> None:
    """Raise an error where `out`, which is to hold runs, is one itself: its files would be mixed with others'."""
    run = RunFolder(out)
    if run.log.is_file() and run.settings.is_file():
        raise OrdnetError(f"{run.log} is in the way: {out} is the folder of a training run; choose another --out")


def ablate(
    table: str,
    data: str,
    out: Path,
    *,
    recipe: str | None = None,
    seeds: int = 3,
    changes: Sequence[str] = (),
    split: str | None = None,
    jobs: int = 1,
) -> Table:
    """Train what is missing and gather the table; `jobs` runs at once, each with its share of the cores.

    Under torchrun all processes work on one run after the other.
    """
    if seeds < 1 or jobs < 1:
        raise OrdnetError(f"--seeds and --jobs are at least 1, got {seeds} and {jobs}")
    if jobs > 1 and "WORLD_SIZE" in os.environ:
        raise OrdnetError("--jobs starts processes of its own: use it without torchrun, or torchrun without it")
    rows = rows_of(table)
    refuse_run(out)
    base = override(base_settings(data, recipe), list(changes))
    split = split or base.data.val_split
    classes = open_dataset(base.data.name, split).classes  # a wrong split is refused before training
    planned = [
        Job(f"{row.label}, seed {seed}", row.settings(base, seed), out / row.run / f"seed-{seed}")
        # seed by seed, so that the whole table exists early, if only with one seed
        for seed in range(seeds)
        for row in rows
    ]
    # before the first run: settings that cannot be built, or not with this crop, are refused here
    costs = [_cost(job.settings, len(classes)) for job in planned[: len(rows)]]
    train_jobs(planned, jobs)
    if table == "methods":
        first = {row.label: job.settings for row, job in zip(rows, planned, strict=False)}
        for cost, timing in zip(costs, _speeds(first, len(classes)), strict=True):
            cost["ms"] = 1000 * timing.seconds
    trained = [
        TableRow(row.name, row.label, [job.figures(split) for job in planned[place :: len(rows)]], costs[place])
        for place, row in enumerate(rows)
    ]
    return Table(table, base.data.name, split, base.training.epochs, seeds, trained)


def _cost(settings: Settings, classes: int) -> dict[str, float]:
    shape = (1, 3, settings.training.crop, settings.training.crop)
    net = build_from(settings.model, classes)
    cost = {"gflops": gflops(net, *shape), "params_M": sum(p.numel() for p in net.parameters()) / 1e6}
    cost["gflops_literal"] = cost["gflops"]
    if settings.model.variant in OMNI_RANGE:
        literal = settings.model.model_copy(update={"form": "literal", "weights": None})
        cost["gflops_literal"] = gflops(build_from(literal, classes), *shape)
    return cost


def _speeds(networks: dict[str, Settings], classes: int) -> list[Timing]:
    """The time of each network on a picture of the training crop, in turns; its weights do not matter."""
    contestants = {}
    for name, settings in networks.items():
        net = for_inference(build_from(settings.model, classes))
        image = black(torch.zeros(1, 3, 1, 1), settings.training.crop, settings.training.crop)
        contestants[name] = partial(labels, net, image)
    return list(interleaved(contestants, _SPEED_TURNS).values())


STOPPED = "stopped, as asked, and saved; the same command continues"


@dataclass(frozen=True)
class Job:
    """One training run."""

    name: str
    """What the run is called on the screen."""
    settings: Settings
    folder: Path

    def finished(self) -> bool:
        """Whether it needs no more training; a run with other settings is an error, not taken for this one."""
        state = load_state(self.folder / "state", lambda text: None)
        if state is None:
            return False
        try:
            check_settings(state["settings"], self.settings)
        except OrdnetError as error:
            raise OrdnetError(f"{self.folder}: {error}\nchoose another --out") from None
        return is_finished(state, self.settings)

    def figures(self, split: str) -> dict[str, Any]:
        """The scores of the last weights, not the best ones: choosing the best would favour runs that fluctuate."""
        last: dict[str, Any] = RunFolder(self.folder).last_epoch()
        if split == self.settings.data.val_split:
            return last
        kept = self.folder / f"evaluation-{split}.json"
        if not kept.exists():
            with progress() as bar:
                task = bar.add_task(f"evaluating {self.name}", total=None)
                found = evaluate(
                    self.folder / "last.safetensors", self.settings.data.name, split,
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                )  # fmt: skip
            if int(os.environ.get("RANK", "0")) == 0:
                write_text(kept, json.dumps(found.figures(), indent=1) + "\n")
            return {**last, **found.figures()}
        return {**last, **json.loads(kept.read_text(encoding="utf-8"))}


def train_jobs(planned: list[Job], at_once: int) -> None:
    """Train the runs that are not finished yet, in order; under torchrun all processes work on one after the other."""
    waiting = [job for job in planned if not job.finished()]
    if at_once == 1:
        train_here(waiting, len(planned))
    elif waiting:
        train_beside(waiting, len(planned), at_once)


def train_here(waiting: list[Job], total: int) -> None:
    """One run after the other, in this process."""
    main = int(os.environ.get("RANK", "0")) == 0
    for number, job in enumerate(waiting, total - len(waiting) + 1):
        if main:
            print(f"run {number} of {total}: {job.name} → {job.folder}", file=sys.stderr)
        try:
            train_with(job.settings, job.folder, resume=True)
        except Stopped as stopped:
            stopped.args = (STOPPED,)
            raise
        except OrdnetError as error:
            error.args = (f"{job.folder}: {error}",)
            raise
    if distributed.is_initialized():
        distributed.barrier()  # the first process has written everything the others will read


def train_beside(waiting: list[Job], total: int, jobs: int) -> None:
    """Several runs at once, each in a process of its own, whose output goes to a file beside its folder."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    coming, running = list(waiting), dict[subprocess.Popen[bytes], Job]()
    epochs = {job.folder: job.settings.training.epochs for job in waiting}
    print(f"{len(waiting)} of {total} runs to do, {jobs} at once, {threads} threads each", file=sys.stderr)
    try:
        with progress() as bar, stop_requests() as stop:
            task = bar.add_task("epochs", total=sum(epochs.values()))
            while coming or running:
                if stop:
                    raise Stopped(STOPPED, stop)
                while coming and len(running) < jobs:
                    job = coming.pop(0)
                    running[_start(job, environment)] = job
                time.sleep(0.5)
                for process in [process for process in running if process.poll() is not None]:
                    job = running.pop(process)
                    if process.returncode != 0:
                        raise OrdnetError(f"{job.folder}: {_last_words(job)}")
                    print(f"done: {job.name} → {job.folder}", file=sys.stderr)
                done = sum(_epochs(folder) for folder in epochs)
                names = ", ".join(job.name for job in running.values())
                bar.update(task, completed=done, description=names)
    finally:
        for process in running:  # they save and end
            with suppress(ProcessLookupError):
                process.terminate()
        for process in running:
            process.wait()


def _start(job: Job, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    settings, said = job.folder.with_suffix(".yaml"), job.folder.with_suffix(".log")
    write_text(settings, job.settings.to_yaml())
    command = [sys.executable, "-m", "ordnet", "train", str(settings), "--out", str(job.folder), "--resume"]
    with said.open("ab") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _epochs(folder: Path) -> int:
    """Epochs done so far. The run may just be writing a line of its log, so lines are counted, not read."""
    log = RunFolder(folder).log
    return log.read_text(encoding="utf-8", errors="replace").count('"event": "epoch"') if log.exists() else 0


def _last_words(job: Job) -> str:
    lines = job.folder.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("ordnet: ") if lines else "ended without a word"
