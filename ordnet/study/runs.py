"""Training runs that belong together: one after the other here, or several at once in processes of their own."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import distributed

from ordnet.config import Settings
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import evaluate
from ordnet.files import write_text
from ordnet.progress import progress
from ordnet.training.environment import Stopped, stop_requests
from ordnet.training.loop import train_with
from ordnet.training.run_folder import RunFolder
from ordnet.training.state import check_settings, is_finished
from ordnet.training.state import load as load_state

STOPPED = "stopped, as asked, and saved; the same command continues"


@dataclass(frozen=True)
class Job:
    """One training run."""

    name: str
    """How the run is called on the screen."""
    settings: Settings
    folder: Path

    def finished(self) -> bool:
        """Whether it needs no more training; a run with other settings is refused, not taken for this one."""
        state = load_state(self.folder / "state", lambda text: None)
        if state is None:
            return False
        try:
            check_settings(state["settings"], self.settings)
        except OrdnetError as error:
            raise OrdnetError(f"{self.folder}: {error}\nchoose another --out") from None
        return is_finished(state, self.settings)

    def figures(self, split: str) -> dict[str, Any]:
        """The scores of the last weights, not the best ones: choosing the best would favour runs that jump about."""
        last: dict[str, Any] = RunFolder(self.folder).epochs()[-1]
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
    """Several runs at once, each a process of its own that writes what it says to a file beside its folder."""
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
