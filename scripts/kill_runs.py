"""Kill training runs at random moments, resume them, and compare their ends with runs that nobody killed.

    python -m scripts.kill_runs --kills 20

Each kill takes the main process, one of its loading processes, or (under torchrun) one of two processes, with SIGKILL.
A run is killed a few times and then left to finish; its checkpoints must have the same bytes, and its log the same
losses, as the uninterrupted run's. After each kill the folder must be free for the next start within ten seconds.
Stopped itself (Ctrl-C, SIGTERM), it ends the run that it has started, and leaves neither a process nor a file.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ordnet.errors import OrdnetError
from ordnet.files import write_text
from ordnet.training.run_folder import RunFolder
from tests.small_data import small_settings, write_folder

KINDS = ("main process", "loading process", "one of two processes")
SECONDS = 10
"""Until the folder must be free again."""


@dataclass(frozen=True)
class Plan:
    """One way of training, and what it leads to when nobody interferes."""

    settings: Path
    processes: int
    whole: Path

    @contextmanager
    def started(self, out: Path) -> "Iterator[subprocess.Popen[bytes]]":
        """The run's first process; whatever happens in the block, no process of the run is left after it."""
        words = ["ordnet", "train", str(self.settings), "--out", str(out), "--resume"]
        several = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes), "-m"]
        command = [sys.executable, "-m", *(several if self.processes > 1 else []), *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = None
        try:
            with out.with_suffix(".said").open("ab") as said, signals_held():
                process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
            yield process
        finally:
            if process is not None:
                end(process)

    def finish(self, out: Path) -> None:
        with self.started(out) as process:
            if process.wait() != 0:
                raise SystemExit(f"{out}: {out.with_suffix('.said').read_text()[-3000:]}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--kills", type=int, default=20)
    words.add_argument("--each", type=int, default=4, help="kills per run")
    words.add_argument("--epochs", type=int, default=40)
    words.add_argument("--seed", type=int, default=0)
    given = words.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder:
        print(campaign(Path(folder), given.kills, given.each, given.epochs, given.seed))


def campaign(folder: Path, kills: int, each: int, epochs: int, seed: int, kinds: tuple[str, ...] = KINDS) -> str:
    """Kill runs `kills` times; a line that says how it went. SystemExit where an end differs."""
    chance, done, ends, waits = random.Random(seed), Counter[str](), 0, list[float]()
    data = write_folder(folder / "data")
    settings = folder / "run.yaml"
    changes = ("training.save_minutes=0.000001", f"training.epochs={epochs}", "evaluation.every=10", "data.workers=2")
    write_text(settings, small_settings(data, *changes).to_yaml())
    plans: dict[int, Plan] = {}
    number = 0
    while done.total() < kills:
        number += 1
        kind = kinds[number % len(kinds)]
        processes = 2 if kind == KINDS[2] else 1
        if processes not in plans:
            plans[processes] = Plan(settings, processes, folder / f"whole-{processes}")
            plans[processes].finish(plans[processes].whole)
        plan, out = plans[processes], folder / f"run-{number}"
        for _ in range(min(each, kills - done.total())):
            if not kill_once(plan, out, kind, chance, waits):
                break
            done[kind] += 1
        plan.finish(out)
        refuse_other(out, plan.whole)
        ends += 1
    told = ", ".join(f"{count} of {kind}" for kind, count in done.items())
    return (
        f"{done.total()} kills ({told}); {ends} ends, all bit-identical; folder free after at most {max(waits):.1f} s"
    )


def kill_once(plan: Plan, out: Path, kind: str, chance: random.Random, waits: list[float]) -> bool:
    """Start or resume the run and kill a part of it; whether it was still running. The rest of it has to end alone."""
    begun = time.time()
    with plan.started(out) as process:
        state = out / "state" / "state.pt"
        while process.poll() is None and not (state.exists() and state.stat().st_mtime > begun):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        victims = {KINDS[0]: [process.pid], KINDS[1]: children(process.pid), KINDS[2]: children(process.pid)}[kind]
        if process.poll() is not None or not victims:
            return False
        os.kill(chance.choice(victims), signal.SIGKILL)
        killed = time.monotonic()
        while True:
            try:
                claimed = RunFolder(out)
                claimed.claim()
                claimed.release()
                break
            except OrdnetError:
                if time.monotonic() - killed > 10 * SECONDS:
                    raise SystemExit(f"{out}: still locked long after the {kind} was killed") from None
                time.sleep(0.02)
        waits.append(time.monotonic() - killed)
        process.wait()
        return True


@contextmanager
def signals_held() -> Iterator[None]:
    """SIGTERM and SIGINT act after the block: one that came while Popen starts a process would lose sight of it."""
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in heard:
            signal.raise_signal(number)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a run that still lives to end; after a while, end it and whatever it has started (torchrun's processes are
    in groups of their own)."""
    if process.poll() is not None:
        return
    tree = descendants(process.pid)
    process.terminate()
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        for pid in {process.pid, *tree, *descendants(process.pid)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(each for child in found for each in descendants(child))]


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def refuse_other(out: Path, whole: Path) -> None:
    for name in ("last.safetensors", "best.safetensors"):
        if (out / name).read_bytes() != (whole / name).read_bytes():
            raise SystemExit(f"{out / name} differs from {whole / name}")
    ours, theirs = (
        [(record["epoch"], record["loss"], record.get("miou")) for record in RunFolder(path).epochs()]
        for path in (out, whole)
    )
    if ours != theirs:
        raise SystemExit(f"the log of {out} differs from that of {whole}")


if __name__ == "__main__":
    main()
