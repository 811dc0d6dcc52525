"""Run what README.md and docs/*.md tell people to type: `make docs-check`, or `python -m scripts.docs_check [PAGE …]`.

Each page gets a fresh folder with what the pages speak of: street/ (20 labelled scenes), photos/, photo.jpg, weights, a
trained model. Its commands and Python blocks are run there in the order they stand in, trainings and benchmarks
shortened by the words of SHORTER. What cannot be run here is in NOT_RUN, with the reason. A block that is marked `text`
is what the command before it prints, numbers aside: its lines must come, in that order, where … stands for any others.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.docs_commands import PLACEHOLDER, ROOT, Block, Command, blocks, commands, differs, pages, problem
from scripts.docs_folder import prepare

AT_ONCE = 2
SECONDS = 300
"""Until a command counts as failed."""

NOT_RUN = {
    r"^make (install|test|check|format|docs-check)\b": "CI runs it, or it is this very check",
    r"^make demo\b": "ordnet demo, which is run itself",
    r"--nnodes": "needs several machines",
    r"\{000\.\.127\}": "needs 128 shards",
    r"hf:": "needs a download",
    r"models push (?!.*--dry-run)": "would upload",
    r"^ordnet submit": "needs a download",
    r"clip\.mp4": "needs a video",
    r"--soak": "takes as long as it says",
    r"(ade20k|ade20k-full|pascal-context|pascal-context-60):": "needs a download",
    r"(coco-stuff|voc|camvid|cityscapes|mapillary):": "needs a download",
    r"stanford|folder:(camvid|voc_animals)|folder: ": "needs a download",
    r"folder:cracks": "needs the sets that scripts/crack_sets.py draws",
    r"data import (cvat|label-studio|supervisely|roboflow)": "needs an export of that tool; the tests make one",
    r"^ordnet bench protocol\b": "takes minutes, whatever the picture's size",
    r"big\.jpg": "needs a picture of 144 megapixels",
    r"b644faf": "needs the model of an earlier version",
}

# What the words in capitals become; after some options something else.
VALUES = {
    "MODEL": "model.safetensors", "CHECKPOINT": "model.safetensors", "RECIPE": "scenes-tiny",
    "IMAGE": "photo.jpg", "IMAGES": "photos", "X,Y": "64,64", "N": "64", "NAME:PATH": "folder:street", "DIR": "folder",
    "FILE": "file.png", "FILE.png": "file.png", "FILE.onnx": "file.onnx", "FILE.json": "coco.json", "SRC": "labelme",
    "USER/NAME": "user/name",
}  # fmt: skip
AFTER = {"--data": "folder:street", "--images": "street/images", "--json": "file.json"}

_FEW = "--set training.epochs=1 --set data.limit=8 --set training.crop=64 --set data.workers=0"
_TRAINING = f"{_FEW} --set training.batch_size=4"
SHORTER = {
    # takes smaller batches of few pictures by itself, and says so
    "train folder-default": f"{_FEW} --set data.base_size=96",
    "train": f"{_TRAINING} --set data.base_size=96",
    "ablate": f"{_TRAINING} --seeds 1",
    "demo": _TRAINING,
    "bench block": "--size 64x16x16 --repeats 1",
    "bench scale": "--channels 64 --sides 8,12,16 --repeats 1",
    "bench loss": "--size 1x4x16 --repeats 1",
    "bench loader": "--repeats 1",
    "bench model": "--backbone tiny --size 64x64 --repeats 1",
    "bench serve": "--size 64x64 --clients 1 --seconds 1",
}
"""Appended: of an option that is given twice the later value counts."""

ONCE = ("demo", "bench", "recipes", "models", "ablate", "data stats")
"""Run once for all pages: nothing that comes later on a page needs what they leave."""


@dataclass(frozen=True)
class Outcome:
    where: str
    text: str
    state: str
    """ran, parsed only, or failed."""
    remark: str = ""
    printed: str = ""

    def __str__(self) -> str:
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.state + remark:<44} {self.where:<28} {self.text}"


def check(page: Path, pattern: Path, folder: Path, done: set[str]) -> Iterator[Outcome]:
    """All of one page, in a copy of the prepared folder; `done` is what has been run for any page."""
    shutil.copytree(pattern, folder)
    seen: set[str] = set()
    imports: list[str] = []
    printed = ""
    for item in _in_order(page):
        if isinstance(item, Block) and item.kind == "text":
            wrong = differs(item.text, printed)
            yield Outcome(
                f"{page.relative_to(ROOT)}:{item.line}", "what it prints", "failed" if wrong else "ran", wrong
            )
        elif isinstance(item, Block):
            yield _run_python(page, item, imports, folder)
        elif item.text not in seen | done:
            seen.add(item.text)
            if item.text.startswith(tuple(f"ordnet {name}" for name in ONCE)):
                done.add(item.text)
            outcome = _run_command(item, folder)
            printed = printed if item.only_named else outcome.printed
            yield outcome


def _in_order(page: Path) -> list[Command | Block]:
    own = [block for block in blocks(page) if block.kind in ("python", "text")]
    return sorted([*own, *commands(page)], key=lambda item: item.line)


def _run_command(command: Command, folder: Path) -> Outcome:
    if wrong := problem(command):
        return Outcome(command.where, command.text, "failed", wrong)
    for pattern, reason in NOT_RUN.items():
        if re.search(pattern, command.text):
            return Outcome(command.where, command.text, "parsed only", reason)
    if command.only_named and problem(replace(command, only_named=False)):
        return Outcome(command.where, command.text, "parsed only", "a name without arguments")
    words = list(_filled(command.words))
    left = [word for word in words if PLACEHOLDER.fullmatch(word)]
    if left:
        return Outcome(command.where, command.text, "parsed only", f"{left[0]} stands for anything")
    words = _shortened(words)
    started = time.monotonic()
    wrong, printed = (_serve(words, folder), "") if words[1] == "serve" else _execute(words, folder)
    taken = f"{time.monotonic() - started:.0f} s"
    return Outcome(command.where, command.text, "failed" if wrong else "ran", wrong or taken, printed)


def _filled(words: list[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        if PLACEHOLDER.fullmatch(word):
            yield AFTER.get(before, VALUES.get(word, word))
        else:  # a file of the repository is typed as seen from there
            yield str(ROOT / word) if "/" in word and (ROOT / word).is_file() else word


def _shortened(words: list[str]) -> list[str]:
    if words[0] == "torchrun" and "--standalone" not in words:
        words = ["torchrun", "--standalone", *words[1:]]  # a port of its own
    asked = words[words.index("ordnet") + 1 :]
    name = next((name for name in SHORTER if asked[: name.count(" ") + 1] == name.split()), "")
    words = words + shlex.split(SHORTER.get(name, ""))
    if asked[0] == "train" and "--resume" not in words:
        words.append("--force")
    if asked[:2] == ["data", "import"]:
        words += ["--out", f"imported-{asked[2]}"]  # the folder of the page is there already
    return words


def _execute(words: list[str], folder: Path) -> tuple[str, str]:
    """Empty, or what went wrong; and all that was printed."""
    process = subprocess.Popen(
        words, cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"not done after {SECONDS} s", ""
    return f"exit code {process.returncode}: {_last_line(said)}" if process.returncode else "", said


def _serve(words: list[str], folder: Path) -> str:
    """Start, ask for its health, end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*words, "--host", "127.0.0.1", "--port", str(port)], cwd=folder, env=_environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline, healthy = time.monotonic() + SECONDS, False
    while not healthy and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
                healthy = answer.status == 200
        except OSError:  # not there yet
            continue
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    if not healthy:
        return f"no healthy answer: {_last_line(said)}"
    return "" if process.returncode in (0, 130) else f"exit code {process.returncode}: {_last_line(said)}"


def _run_python(page: Path, block: Block, imports: list[str], folder: Path) -> Outcome:
    """The block, after the imports of those before it."""
    lines = [line.strip() for line in block.text.splitlines()]
    code = "\n".join([*imports, block.text])
    imports += [line for line in lines if line.startswith(("import ", "from "))]
    wrong, _ = _execute([sys.executable, "-c", code], folder)
    where = f"{page.relative_to(ROOT)}:{block.line}"
    first = next((line for line in lines if line and not line.startswith(("import ", "from ", "#"))), lines[0])
    return Outcome(where, f"Python: {first}", "failed" if wrong else "ran", wrong)


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "COLUMNS": "100"}


def _last_line(said: str) -> str:
    return ([line for line in said.strip().splitlines() if line.strip()] or ["(it said nothing)"])[-1][:300]


def main(names: list[str]) -> int:
    chosen = [page for page in pages() if not names or page.name in names]
    if not chosen:
        print(f"there is no page {', '.join(names)}; there are {', '.join(page.name for page in pages())}")
        return 1
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="docs-check-") as temporary:
        pattern = Path(temporary) / "pattern"
        prepare(pattern, _environment())
        done: set[str] = set()

        def work(page: Path) -> list[Outcome]:
            found = []
            for outcome in check(page, pattern, Path(temporary) / page.stem, done):
                print(outcome, flush=True)
                found.append(outcome)
            return found

        with ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = [outcome for found in pool.map(work, chosen) for outcome in found]
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    counts = ", ".join(
        f"{sum(outcome.state == state for outcome in outcomes)} {state}" for state in ("ran", "parsed only", "failed")
    )
    print(f"{len(outcomes)} commands: {counts}; {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
