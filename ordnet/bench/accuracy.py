"""Time to accuracy, side by side: our networks and segmentation_models_pytorch's, each trained for the same CPU time.

Backbone weights, data, augmentation, losses, optimizer and schedule are the same for all: those of one recipe. Cells
(a contestant with a seed) run one after the other, each in a process of its own (ordnet.bench.timed_run). OUT keeps
NAME-seed-N.json of each; a finished cell is not run again.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from ordnet.bench import timed_run
from ordnet.bench.measure import Measurement, interleaved
from ordnet.bench.timed_run import LOOKED_AT, OURS, Cell, labels_of, make_network, ready_to_parse, weights_from
from ordnet.config import Settings, override, parse
from ordnet.data.catalogue import open_dataset, short_name
from ordnet.data.dataset import Dataset
from ordnet.data.loader import examples
from ordnet.errors import OrdnetError
from ordnet.model.flops import gflops
from ordnet.model.pixels import KnownSize
from ordnet.picture.charts import ablation_chart, accuracy_over_time
from ordnet.recipes import settings_of
from ordnet.training.environment import Stopped, stop_requests

USUAL = ("ordnet-fine", "dilated-fcn-fine", "ordnet-plain", "dilated-fcn-plain")
"""Our contestants that run by default."""
CONTESTANTS = (*USUAL, *timed_run.NETWORKS, *(name for name in OURS if name not in USUAL))
SPEED_TURNS = 5


def contestants(asked: str | None) -> tuple[list[str], str]:
    """Names with commas between them, or the usual ones; and a remark on those that cannot be imported here."""
    if asked:
        names = list(dict.fromkeys(name.strip() for name in asked.split(",")))
        if unknown := [name for name in names if name not in CONTESTANTS]:
            raise OrdnetError(f"there is no contestant {unknown[0]!r}; there are {', '.join(CONTESTANTS)}")
        if any(name in timed_run.NETWORKS for name in names):
            timed_run.import_smp()
        return names, ""
    try:
        timed_run.import_smp()
    except OrdnetError as error:
        return list(USUAL), f"smp's networks are left out: {error}"
    return [*USUAL, *timed_run.NETWORKS], ""


def plan(
    data: str, names: Sequence[str], seconds: float, seeds: int, split: str, recipe: str, changes: Sequence[str]
) -> list[Cell]:
    """All cells, seed by seed, so that the whole table exists early, if only with one seed."""
    settings = settings_of(recipe)
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"name": data})})
    settings = override(settings, list(changes))
    return [Cell(name, seed, seconds, split, settings) for seed in range(seeds) for name in names]


def compare(cells: Sequence[Cell], out: Path, say: Callable[[str], object] = lambda _: None) -> list[dict[str, Any]]:
    """Run the cells that are missing; returns the figures of all, in order. `say` is told before the first of them
    where the backbones' weights come from, and how many cells were run before."""
    settings, split = cells[0].settings, cells[0].split
    # before the first cell: a wrong split, or settings that cannot be built, are refused here
    classes = len(open_dataset(settings.data.name, split).classes)
    weights = {}
    for name in dict.fromkeys(cell.contestant for cell in cells):
        make_network(name, settings, classes, 0)
        weights[name] = weights_from(name, settings)
    for origin in dict.fromkeys(each["origin"] for each in weights.values()):
        say(str(origin))
    found = [finished(cell, out, weights[cell.contestant]) for cell in cells]
    if kept := [figures for figures in found if figures is not None]:
        say(_run_before(kept))
    for number, cell in enumerate(cells):
        if found[number] is None:
            what = f"{cell.contestant}, seed {cell.seed}, {cell.seconds:g} s of CPU time"
            print(f"cell {number + 1} of {len(cells)}: {what}", file=sys.stderr)
            _run(cell, out)
            found[number] = finished(cell, out, weights[cell.contestant])
    return [figures for figures in found if figures is not None]


def _run_before(kept: Sequence[dict[str, Any]]) -> str:
    count, silent = len(kept), sum("weights_from" not in figures for figures in kept)
    words = "1 cell was run before" if count == 1 else f"{count} cells were run before"
    return words + (f"; {silent} of them: with which weights was not noted then" if silent else "")


def finished(cell: Cell, out: Path, weights: dict[str, str | None]) -> dict[str, Any] | None:
    """A cell's figures if it has been run; one that was run with other settings, or did not start from these
    `weights`, is an error, not taken for this one."""
    path = _path(cell, out)
    try:
        figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise OrdnetError(f"{path} is no cell of this benchmark: remove it, or choose another --out") from None
    asked = {**cell.plain(), "settings": cell.settings}
    # settings that were added after the cell was run have their defaults
    kept = {**figures, "settings": parse(figures.get("settings", {}), str(path))}
    if other := [key for key, value in asked.items() if kept.get(key) != value]:
        raise OrdnetError(f"{path} was run with other {' and '.join(other)}; choose another --out")
    # cells of older versions say nothing of their weights; the file counts, wherever it came from
    started = figures.get("weights_from", weights)
    if started["sha256"] != weights["sha256"]:
        # of long words the first sentence: what follows is advice
        then, now = (f"{each['sha256']}, {str(each['origin']).partition('. ')[0]}" for each in (started, weights))
        raise OrdnetError(f"{path} was run with other weights ({then}; now {now}); choose another --out")
    return figures


def _path(cell: Cell, out: Path) -> Path:
    return out / f"{cell.contestant}-seed-{cell.seed}.json"


def _run(cell: Cell, out: Path) -> None:
    """Run a cell in a process of its own, which ends with this one; its output goes to a file beside its figures."""
    path = _path(cell, out)
    log = path.with_suffix(".log")
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ordnet.bench.timed_run", json.dumps(cell.plain()), str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with log.open("wb") as said, stop_requests() as stop:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            while process.poll() is None:
                if stop:
                    raise Stopped("stopped, as asked; the same command continues with the cell under way", stop)
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1].removeprefix("ordnet: ") if lines else "ended without a word"
        raise OrdnetError(f"{cell.contestant}, seed {cell.seed}: {last}")


def rows(cells: Sequence[Cell], found: Sequence[dict[str, Any]]) -> list[Measurement]:
    """One row per contestant: means over the seeds, and the speed of all in turns."""
    names = list(dict.fromkeys(cell.contestant for cell in cells))
    settings, dataset = cells[0].settings, open_dataset(cells[0].settings.data.name, cells[0].split)
    speeds = _speeds(names, settings, dataset)
    made = []
    for name in names:
        seeds = [figures for figures in found if figures["contestant"] == name]
        size = (*dataset.label(0).shape,)
        extra = {
            "mIoU": mean(figures["miou"] for figures in seeds),
            "mIoU_spread": _spread([figures["miou"] for figures in seeds]),
            "pixel_accuracy": mean(figures["pixel_accuracy"] for figures in seeds),
            "steps": round(mean(figures["steps"] for figures in seeds)),
            "params_M": seeds[0]["parameters"] / 1e6,
            "cpu_ms": mean(figures["cpu_ms"] for figures in seeds),
        }
        if gates := [figures["vitals"] for figures in seeds if "gate_mean" in figures.get("vitals", {})]:
            extra["gate"] = ", ".join(f"{gate['gate_mean']:.2f} ± {gate['gate_spread']:.2f}" for gate in gates)
        first, own = speeds[names[0]], speeds[name]
        cost = gflops(make_network(name, settings, len(dataset.classes), 0), 1, 3, *size)
        made.append(Measurement(name, own.seconds, own.seconds / first.seconds, own.spread, cost, extra=extra))
    return made


def _spread(values: Sequence[float]) -> float | None:
    """The standard deviation between seeds; one seed has none."""
    return stdev(values) if len(values) > 1 else None


def _speeds(names: Sequence[str], settings: Settings, dataset: Dataset) -> dict[str, Any]:
    """Seconds for the split's first picture on one thread, contestants in turns. Speed does not depend on training."""
    image = next(iter(examples(dataset))).image
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls = {}
        for name in names:
            net = ready_to_parse(make_network(name, settings, len(dataset.classes), 0))
            calls[name] = lambda net=net: labels_of(net, image, KnownSize())
        return interleaved(calls, SPEED_TURNS)
    finally:
        torch.set_num_threads(threads)


def title(cells: Sequence[Cell]) -> str:
    cell, seeds = cells[0], len({cell.seed for cell in cells})
    data = short_name(cell.settings.data.name)
    words = "one seed" if seeds == 1 else f"{seeds} seeds"
    return f"{data} {cell.split} after {cell.seconds:g} s of CPU time on one thread, protocol whole, {words}"


def remarks(cells: Sequence[Cell], made: Sequence[Measurement]) -> list[str]:
    """What the figures show and what they leave out."""
    said = []
    best = {
        side: max((row for row in made if (row.name in OURS) == ours), key=lambda row: row.extra["mIoU"], default=None)
        for side, ours in (("ours", True), ("theirs", False))
    }
    ours, theirs = best["ours"], best["theirs"]
    if ours and theirs:
        difference = ours.extra["mIoU"] - theirs.extra["mIoU"]
        spreads = [row.extra["mIoU_spread"] for row in (ours, theirs)]
        open_ = any(spread is None or abs(difference) <= spread for spread in spreads)
        verdict = " (undecided: one seed, or within the spread between seeds)" if open_ else ""
        said.append(
            f"best of ours, {ours.name}, against best of smp, {theirs.name}: {100 * difference:+.1f} points{verdict}"
        )
    pictures = len(open_dataset(cells[0].settings.data.name, cells[0].split).ids)
    whole = pictures <= LOOKED_AT
    curves = "" if whole else f"the curves are of {LOOKED_AT} pictures, the table is of the whole split; "
    said.append(f"{curves}time: one picture, one thread, in turns")
    unfair = ": smp's might do better with one of their own" if theirs else ""
    said.append(
        f"all share one recipe, made for our networks{unfair}. CPU seconds swell by some per cent on a busy machine, "
        f"so equal seconds are not quite equal work"
    )
    return said


def draw(out: Path, cells: Sequence[Cell], found: Sequence[dict[str, Any]]) -> list[Path]:
    """accuracy.png, accuracy over time with a line per seed; seeds.png, where each seed ends, with a dot per seed."""
    written = [out / "accuracy.png", out / "seeds.png"]
    lines: dict[str, list[list[tuple[float, float]]]] = {}
    ends: dict[str, list[float]] = {}
    for figures in found:
        points = [(point["seconds"], point["miou"]) for point in figures["curve"]]
        lines.setdefault(figures["contestant"], []).append(points)
        ends.setdefault(figures["contestant"], []).append(figures["miou"])
    accuracy_over_time(written[0], title(cells), lines)
    ablation_chart(written[1], title(cells).replace(", ", "\n", 1), list(ends), {"mIoU": list(ends.values())})
    return written
