"""Train, evaluate and predict over two hosts: two network namespaces with addresses of their own and a cable between.

    python -m scripts.two_hosts                  everything, as root; a few minutes
    python -m scripts.two_hosts together killed  some of it

Each scenario ends with a sentence or with the first thing that is not as it must be. Nothing leaves the namespaces:
they have no other network, not even that of the computer they are on. The disk is shared, as a run folder has to be.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ordnet.data.catalogue import open_dataset
from ordnet.data.tar import write_shards
from ordnet.files import write_text
from ordnet.training.run_folder import RunFolder
from tests.small_data import small_settings, write_folder

ADDRESSES = ("192.0.2.1", "192.0.2.2")  # kept for examples by RFC 5737: nobody has them
CABLE = "cable"
"""What both hosts call their network card."""
EXACT = ("training.lovasz=0", "training.freeze_norm=true", "model.dropout=0", "training.save_minutes=0.000001")
"""Splitting a batch changes nothing but rounding; the state is saved after each step."""
SECONDS = 300
"""Until a scenario counts as hanging."""


def refusal() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "two hosts need Linux and `ip` (iproute2)"
    name = f"ordnet{os.getpid()}x"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"network namespaces are not allowed here ({tried.stderr.strip()}); root may make them"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


class Hosts:
    """Two namespaces and a cable; everything in them ends with the context."""

    def __init__(self) -> None:
        self.names = [f"ordnet{os.getpid()}{letter}" for letter in "ab"]
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Hosts":
        for name in self.names:
            _ip("netns", "add", name)
        first, second = self.names
        _ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE, "netns", second)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            _ip("-n", name, "link", "set", CABLE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *failure: object) -> None:
        for host in (0, 1):
            self.power_off(host)
        for process in self.running:
            process.wait()
        for name in self.names:
            _ip("netns", "delete", name)

    def start(self, host: int, words: list[str], said: Path, least: int = 2, restarts: int = 3) -> None:
        """`torchrun … -m ordnet WORDS` on one of the hosts; what it says is appended to a file."""
        conf = f"is_host={int(host == 0)},keep_alive_interval=1,join_timeout={SECONDS},last_call_timeout=5"
        nodes = "2" if least == 2 else f"{least}:2"
        torchrun = [
            "--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", str(restarts), "--monitor-interval", "0.1",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--rdzv-id", "two-hosts",
            "--rdzv-conf", conf, "--local-addr", ADDRESSES[host],
        ]  # fmt: skip
        inside = ["ip", "netns", "exec", self.names[host]]
        command = [*inside, sys.executable, "-m", "torch.distributed.run", *torchrun, "-m", "ordnet", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": CABLE}
        # processes that are started again must not find addresses of those that died
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with said.open("ab") as file:
            self.running.append(
                subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
            )

    def together(self, words: list[str], said: Path, **options: int) -> None:
        """The same line on both, until both have ended well."""
        for host in (0, 1):
            self.start(host, words, said, **options)
        self.finish(said)

    def finish(self, said: Path) -> None:
        """Wait until what runs has ended, and well."""
        codes = self.wait()
        if any(codes):
            raise SystemExit(f"exit codes {codes}:\n{said.read_text(errors='replace')[-5000:]}")

    def wait(self) -> list[int]:
        codes = [process.wait(SECONDS) for process in self.running]
        self.running.clear()
        return codes

    def pids(self, host: int) -> list[int]:
        """All processes on a host."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, check=True
        )  # fmt: skip
        return [int(word) for word in found.stdout.split()]

    def training(self, host: int) -> int:
        """The one training process of a host: a child of torchrun's."""
        agents = {process.pid for process in self.running}
        for pid in self.pids(host):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) in agents:
                return pid
        raise SystemExit(f"nothing trains on host {host + 1}")

    def power_off(self, host: int) -> None:
        """Kill all that runs on a host, as a power cut would."""
        while pids := self.pids(host):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for process in self.running:
                if process.pid in pids:
                    process.wait()
        self.running = [process for process in self.running if process.poll() is None]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Work:
    """Shards to train on, the settings, and what one process alone makes of them."""

    folder: Path
    settings: Path
    data: str
    alone: Path

    def words(self, out: Path) -> list[str]:
        return ["train", str(self.settings), "--out", str(out), "--resume"]

    def compare(self, out: Path) -> str:
        """Losses and scores must be those of one process, epoch by epoch."""
        ours, theirs = (RunFolder(path).epochs() for path in (out, self.alone))
        apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(ours, theirs, strict=True))
        scored = [(a["miou"], b["miou"]) for a, b in zip(ours, theirs, strict=True) if "miou" in b]
        scores = max(abs(one - other) for one, other in scored)
        if apart > 1e-4 or scores > 1e-3:
            raise SystemExit(f"{out}: losses differ by {apart:.1e}, mIoU by {scores:.1e} from one process")
        return f"{len(ours)} epochs, losses within {apart:.0e} and mIoU within {scores:.0e} of one process"


def prepare(folder: Path, epochs: int) -> Work:
    """Five shards of uneven size, and a run of one process on them."""
    data = f"folder:{write_folder(folder / 'street', train=23, val=5)}"
    splits = [open_dataset(data, split) for split in ("train", "val")]
    write_shards(splits, folder / "shards", 5)
    data = f"tar:{folder}/shards/train-{{000..004}}.tar"
    changes = (*EXACT, f"data.name={data}", f"training.epochs={epochs}", "evaluation.every=5")
    write_text(folder / "run.yaml", small_settings(folder, *changes).to_yaml())
    work = Work(folder, folder / "run.yaml", data, folder / "alone")
    subprocess.run(
        [sys.executable, "-m", "ordnet", *work.words(work.alone)], check=True, capture_output=True, timeout=SECONDS
    )  # fmt: skip
    return work


def wait_for_state(out: Path, said: Path, after: float = 0.0) -> float:
    """Until the run has saved a state later than `after`; when that was."""
    state, end = out / "state" / "state.pt", time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if (saved := state.stat().st_mtime) > after:
                return saved
        except OSError:  # none yet, or just being replaced
            pass
        time.sleep(0.01)
    raise SystemExit(f"no state in {out}:\n{said.read_text(errors='replace')[-5000:]}")


def wait_for_record(hosts: Hosts, out: Path, said: Path, count: int) -> None:
    """Until the run has been resumed `count` times."""
    end = time.monotonic() + SECONDS
    while sum(record["event"] == "resume" for record in RunFolder(out).records()) < count:
        if time.monotonic() > end or all(process.poll() is not None for process in hosts.running):
            raise SystemExit(f"{out} was not resumed:\n{said.read_text(errors='replace')[-5000:]}")
        time.sleep(0.05)


# ---- scenarios ---------------------------------------------------------------------------------------------------


def together(hosts: Hosts, work: Work) -> str:
    """Train, evaluate and predict: the figures are those of one process, and every picture is parsed once."""
    out, said = work.folder / "together", work.folder / "together.said"
    hosts.together(work.words(out), said)
    return f"{work.compare(out)}; {scored(hosts, work, out, said)}; {predicted(hosts, work, out, said)}"


def scored(hosts: Hosts, work: Work, run: Path, said: Path) -> str:
    model = str(run / "last.safetensors")
    hosts.together(["evaluate", model, "--data", work.data, "--json", str(run / "two.json")], said)
    figures = json.loads((run / "two.json").read_text())
    last = RunFolder(run).epochs()[-1]
    if any(abs(figures[key] - last[key]) > 1e-9 for key in ("miou", "pixel_accuracy")) or figures["images"] != 5:
        raise SystemExit(f"two hosts evaluate to mIoU {figures['miou']}, training to {last['miou']}")
    return f"evaluated to the same mIoU of {figures['miou']:.4f}"


def predicted(hosts: Hosts, work: Work, run: Path, said: Path) -> str:
    model, parsed = str(run / "last.safetensors"), run / "parsed"
    hosts.together(["predict", model, work.data, "--out", str(parsed), "--save", "labels"], said)
    found = len(list(parsed.rglob("*.labels.png")))
    if found != 23:
        raise SystemExit(f"23 pictures lie in the shards, {found} were parsed")
    return f"{found} pictures parsed"


def killed(hosts: Hosts, work: Work) -> str:
    """A host loses power in the middle and comes back: torchrun restarts the other, and the run goes on alone."""
    out, said = work.folder / "killed", work.folder / "killed.said"
    for host in (0, 1):
        hosts.start(host, work.words(out), said)
    wait_for_state(out, said)
    hosts.power_off(1)
    cut = time.monotonic()
    hosts.start(1, work.words(out), said)  # as its service manager does after a boot
    wait_for_record(hosts, out, said, 1)
    back = time.monotonic() - cut
    hosts.finish(said)
    return f"host 2 killed, back to training {back:.0f} s later from its state; {work.compare(out)}"


def crashed(hosts: Hosts, work: Work) -> str:
    """One training process dies, on each host in turn; nobody starts anything but torchrun."""
    out, said = work.folder / "crashed", work.folder / "crashed.said"
    for host in (0, 1):
        hosts.start(host, work.words(out), said)
    saved = 0.0
    for times, host in enumerate((1, 0), 1):
        wait_for_state(out, said, after=saved)
        os.kill(hosts.training(host), signal.SIGKILL)
        wait_for_record(hosts, out, said, times)
        saved = time.time()
    hosts.finish(said)
    return f"a process killed on each host, resumed twice without a hand; {work.compare(out)}"


def fewer(hosts: Hosts, work: Work) -> str:
    """A host loses power and stays away: with --nnodes 1:2 and --force-data the other finishes without it."""
    out, said = work.folder / "fewer", work.folder / "fewer.said"
    for host in (0, 1):
        hosts.start(host, [*work.words(out), "--force-data"], said, least=1)
    wait_for_state(out, said)
    hosts.power_off(1)
    hosts.finish(said)
    return f"host 2 gone for good, host 1 finished; {work.compare(out)}"


def first(hosts: Hosts, work: Work) -> str:
    """The host that keeps the meeting point loses power: torchrun ends on the other, and the line is begun on both."""
    out, said = work.folder / "first", work.folder / "first.said"
    for host in (0, 1):
        hosts.start(host, work.words(out), said)
    wait_for_state(out, said)
    hosts.power_off(0)
    if not all(hosts.wait()):
        raise SystemExit("torchrun ended well without its meeting point")
    hosts.together(work.words(out), said)  # as their service managers do
    if not any(record["event"] == "resume" for record in RunFolder(out).records()):
        raise SystemExit(f"{out} was not resumed")
    return f"host 1 killed, the line started again on both; {work.compare(out)}"


def slow(hosts: Hosts, work: Work) -> str:
    """A host that answers late, is given its turn rarely, and then stops for ten seconds: nothing but time changes."""
    out, said = work.folder / "slow", work.folder / "slow.said"
    words = ["qdisc", "add", "dev", CABLE, "root", "netem", "delay", "20ms", "5ms"]
    delayed = subprocess.run(
        ["tc", "-n", hosts.names[1], *words], capture_output=True, text=True, check=False
    ) if shutil.which("tc") else None  # fmt: skip
    for host in (0, 1):
        hosts.start(host, work.words(out), said)
    wait_for_state(out, said)
    pid = hosts.training(1)
    for asleep in (*[0.4] * 10, 10):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(asleep)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
    hosts.finish(said)
    how = "20 ms away" if delayed and delayed.returncode == 0 else "at its usual distance (no netem here)"
    return f"host 2 {how}, at a twentieth of its pace for 4 s and asleep for 10 s; {work.compare(out)}"


def full(hosts: Hosts, work: Work) -> str:
    """The run folder's disk is full in the middle: the run says so, and goes on from its state when there is room."""
    disk, said = work.folder / "disk", work.folder / "full.said"
    with small_disk(disk, "4m") as grow:
        out = disk / "run"
        ballast = disk / "ballast"
        ballast.touch()
        for host in (0, 1):
            hosts.start(host, work.words(out), said, restarts=1)
        wait_for_state(out, said)
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        codes = hosts.wait()
        text = said.read_text(errors="replace")
        if not all(codes) or ("No space left" not in text and "is the disk full" not in text):
            raise SystemExit(f"a full disk ended with {codes}:\n{text[-5000:]}")
        ballast.unlink()
        grow("64m")
        hosts.together(work.words(out), said)
        return f"a full disk was named, and with room the run went on; {work.compare(out)}"


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[object]:
    """A disk of that size at `path`, and what makes it larger."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "ordnet", str(path)], check=True)
    try:
        yield lambda more: subprocess.run(["mount", "-o", f"remount,size={more}", str(path)], check=True)
    finally:
        subprocess.run(["umount", str(path)], check=True)


SCENARIOS = {each.__name__: each for each in (together, killed, crashed, fewer, first, slow, full)}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    words.add_argument("--epochs", type=int, default=10)
    given = words.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the hosts are taken down
    if strange := [name for name in given.scenarios if name not in SCENARIOS]:
        words.error(f"there is no scenario {strange[0]}; there are {', '.join(SCENARIOS)}")
    if why := refusal():
        raise SystemExit(why)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = prepare(folder, given.epochs)
        for name in given.scenarios or SCENARIOS:
            with Hosts() as hosts:
                begun = time.monotonic()
                print(f"{name}: {SCENARIOS[name](hosts, work)} ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
