"""Real processes, real signals: killed anywhere and resumed, a run ends in the very same weights."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ordnet
from ordnet.files import write_text
from ordnet.training.run_folder import RunFolder
from scripts.kill_runs import KINDS, campaign
from tests.small_data import small_settings, write_folder

# every step is followed by a saved state, so that kills fall between, before and into saves
OFTEN = ("training.save_minutes=0.000001", "training.epochs=60", "evaluation.every=20")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "own")


@pytest.fixture(scope="module")
def settings_file(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "run.yaml"
    write_text(path, small_settings(folder, *OFTEN).to_yaml())
    return path


def command(settings_file, out, *words):
    return [sys.executable, "-m", "ordnet", "train", str(settings_file), "--out", str(out), *words]


def start(settings_file, out, *words, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(settings_file, out, *words), env=environment, **pipes, **options)


def wait_for_state(out, process, newer_than=0.0):
    """Until the run has saved a state of its own."""
    path = out / "state" / "state.pt"
    while not (path.exists() and path.stat().st_mtime > newer_than):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(settings_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    process = start(settings_file, out)
    assert process.wait() == 0, process.stderr.read()
    return out


def assert_same_run(out, uninterrupted):
    for name in ("last.safetensors", "best.safetensors"):
        ours, theirs = load_file(out / name), load_file(uninterrupted / name)
        for key in theirs:
            assert torch.equal(ours[key], theirs[key]), f"{name}: {key}"
    assert losses(out) == losses(uninterrupted)


def losses(out):
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(r["epoch"], r["loss"], r.get("miou")) for r in records if r["event"] == "epoch"]


def test_killed_at_random_points(settings_file, uninterrupted, tmp_path):
    out, chance = tmp_path / "run", random.Random(0)
    kills = 0
    for _ in range(4):
        begun = time.time()
        process = start(settings_file, out, "--resume")
        wait_for_state(out, process, begun)
        time.sleep(chance.uniform(0, 0.4))
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
        if process.returncode == 0:
            break
    assert kills >= 2
    process = start(settings_file, out, "--resume")
    assert process.wait() == 0, process.stderr.read()
    assert_same_run(out, uninterrupted)
    assert not list(out.rglob(".*.tmp.*"))  # what the killed runs were just writing


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop(settings_file, uninterrupted, tmp_path, number, code):
    out = tmp_path / "run"
    process = start(settings_file, out)
    wait_for_state(out, process)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "saved; continue with --resume" in errors
    assert "Traceback" not in errors
    process = start(settings_file, out, "--resume")
    assert process.wait() == 0, process.stderr.read()
    assert_same_run(out, uninterrupted)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_with_its_workers(settings_file, tmp_path, number, code):
    """`timeout`, a terminal and batch systems signal the whole process group."""
    process = start(settings_file, tmp_path / "run", "--set", "data.workers=2", start_new_session=True)
    wait_for_state(tmp_path / "run", process)
    os.killpg(process.pid, number)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "saved; continue with --resume" in errors
    assert "Traceback" not in errors


def test_a_second_start_is_refused(settings_file, tmp_path):
    out = tmp_path / "run"
    first = start(settings_file, out)
    wait_for_state(out, first)
    second = start(settings_file, out, "--force")
    _, errors = second.communicate()
    assert second.returncode == 1
    assert "another process is training in" in errors
    assert first.poll() is None
    first.kill()
    first.communicate()


def test_a_full_disk(settings_file, uninterrupted, tmp_path):
    """No file may grow beyond a few kilobytes, as on a disk without room: one message, and the run can go on later."""
    out = tmp_path / "run"

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start(settings_file, out, preexec_fn=no_room)
    _, errors = process.communicate()
    assert process.returncode == 1, errors
    assert "could not be written" in errors
    assert "Traceback" not in errors
    assert not list(out.rglob("*.safetensors")) and not list(out.rglob("*.pt"))
    process = start(settings_file, out, "--resume")
    assert process.wait() == 0, process.stderr.read()
    assert_same_run(out, uninterrupted)


def test_a_full_disk_at_the_checkpoint(folder, tmp_path):
    """The first file that does not fit is a checkpoint, not a state."""
    path = tmp_path / "run.yaml"
    write_text(path, small_settings(folder, "data.workers=1").to_yaml())

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start(path, tmp_path / "run", preexec_fn=no_room)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert "last.safetensors could not be written" in errors and "continue with --resume" in errors
    assert "Traceback" not in errors
    RunFolder(tmp_path / "run").claim()  # the lock is free


def children(pid):
    """The loading processes of a run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_worker_ends_the_run_and_not_its_state(settings_file, uninterrupted, tmp_path):
    out = tmp_path / "run"
    process = start(settings_file, out, "--set", "data.workers=2")
    wait_for_state(out, process)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert "a loading process died" in errors
    assert "Traceback" not in errors
    process = start(settings_file, out, "--resume")
    assert process.wait() == 0, process.stderr.read()
    assert_same_run(out, uninterrupted)


def test_workers_end_with_a_killed_run(settings_file, tmp_path):
    """They would hold its lock otherwise."""
    out = tmp_path / "run"
    process = start(settings_file, out, "--set", "data.workers=2")
    wait_for_state(out, process)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    for _ in range(1000):
        if not any(is_running(worker) for worker in workers):
            break
        time.sleep(0.01)
    RunFolder(out).claim()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


UNEXPECTED = """
import sys
from pathlib import Path
from ordnet.config import read
from ordnet.training import loop

def broken(*arguments):
    raise ValueError("never seen before")

loop.curves = broken
loop.train_with(read(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def test_an_unexpected_error_ends_the_run(folder, tmp_path):
    path = tmp_path / "run.yaml"
    write_text(path, small_settings(folder, "data.workers=2").to_yaml())
    words = [sys.executable, "-c", UNEXPECTED, str(path), str(tmp_path / "run")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1 and "never seen before" in ended.stderr
    RunFolder(tmp_path / "run").claim()  # the lock is free
    process = start(path, tmp_path / "run", "--resume")
    process.communicate(timeout=120)
    assert process.returncode == 0


def torchrun(settings_file, out, *words):
    start_two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    return [*start_two, *command(settings_file, out, *words)[2:]]


def test_one_of_two_processes_loses_its_worker(settings_file, tmp_path):
    """Both end, one says why, and the run can go on."""
    out = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(torchrun(settings_file, out, "--set", "data.workers=1"), env=environment, **pipes)
    wait_for_state(out, process)
    ranks = children(process.pid)
    os.kill(children(ranks[-1])[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "a loading process died" in errors
    assert not any(is_running(rank) for rank in ranks)
    RunFolder(out).claim()


def test_two_processes_take_the_same_steps(folder, tmp_path):
    """Cross-entropy, norms frozen, no dropout: splitting the batch over processes changes nothing but rounding."""
    exact = ("training.lovasz=0", "training.freeze_norm=true", "model.dropout=0", "training.epochs=8")
    path = tmp_path / "run.yaml"
    write_text(path, small_settings(folder, *exact).to_yaml())
    single = start(path, tmp_path / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    words = [*torchrun, *command(path, tmp_path / "two")[2:]]
    double = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert double.returncode == 0, double.stderr
    assert single.wait() == 0, single.stderr.read()
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == len(two) == 8
    for (_, loss_one, miou_one), (_, loss_two, miou_two) in zip(one, two, strict=True):
        assert loss_two == pytest.approx(loss_one, rel=1e-4)
        assert miou_two == pytest.approx(miou_one, abs=1e-3)


def test_two_processes_score_the_network_that_is_saved(tmp_path):
    """Each process's batch norms see other pictures: the first one's are saved, so all must evaluate with those."""
    folder = write_folder(tmp_path / "own", val=6)
    for broken in ("013", "014"):  # one in each process's share
        (folder / "images" / f"{broken}.png").write_bytes(b"no picture")
    path, out = tmp_path / "run.yaml", tmp_path / "run"
    changes = ("training.epochs=2", "data.skip_broken=true", "model.auxiliary=true", "training.auxiliary=0")
    write_text(path, small_settings(folder, *changes, "training.ema=0.9").to_yaml())
    done = subprocess.run(
        torchrun(path, out), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    logged = RunFolder(out).epochs()[-1]
    scored = ordnet.evaluate(out / "last.safetensors", f"folder:{folder}", skip_broken=True).figures()
    assert logged["per_class_iou"] == scored["per_class_iou"]
    assert [Path(message.partition(":")[0]).stem for message in sorted(logged["broken"])] == ["013", "014"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_few_kills_of_the_script(tmp_path, kind):
    """Many more are a matter of minutes: python -m scripts.kill_runs."""
    assert "all bit-identical" in campaign(tmp_path, kills=2, each=2, epochs=20, seed=1, kinds=(kind,))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_script_takes_its_run_along(tmp_path, number):
    """Stopped, it leaves no process behind, and no file."""
    words = [sys.executable, "-m", "scripts.kill_runs", "--kills", "1"]
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # which tests in the background have not
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    script = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, preexec_fn=heard)
    while not (runs := children(script.pid)):
        assert script.poll() is None, script.stderr.read()
        time.sleep(0.01)
    script.send_signal(number)
    script.communicate(timeout=60)
    assert script.returncode != 0
    assert not any(is_running(run) for run in runs)
    assert not list(tmp_path.iterdir())
