"""A run's report, put together from its log, its last evaluation and its data set."""

import json
import statistics as stats
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed

from ordnet.config import Settings, read
from ordnet.data.catalogue import open_dataset, short_name
from ordnet.data.check import Scan, look, summary
from ordnet.data.dataset import Dataset, Spread
from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import BestAndWorst, Evaluation, Seen, evaluate_network
from ordnet.files import write_text
from ordnet.inference.explain import Explainer, why_not
from ordnet.inference.protocols import protocol
from ordnet.model import checkpoint
from ordnet.model.flops import gflops
from ordnet.model.network import Network, for_inference
from ordnet.model.pixels import KnownSize, known_size
from ordnet.picture.attention_map import AttentionRow
from ordnet.training.environment import environment_rows
from ordnet.training.monitor import in_words
from ordnet.training.report.page import Example, RunReport, Shares, report_page
from ordnet.training.run_folder import RunFolder

Rows = Sequence[tuple[str, ...]]
_LABELS, _SECONDS = 300, 5.0
"""This many training labels are counted, or as many as can be read in this time."""


def data_rows(settings: Settings, train_set: Dataset, evaluation: Evaluation) -> tuple[Rows, Shares]:
    """Facts about the data set, and how often each class occurs in its training split."""
    used = min(len(train_set.ids), settings.data.limit or len(train_set.ids))
    found, counted = _counted(train_set, used)
    facts = summary(found, train_set.classes.names)
    of_all = f" of {len(train_set.ids):,} (data.limit)" if used < len(train_set.ids) else ""
    spread = ", evenly spread (evaluation.limit)" if settings.evaluation.limit else ""
    rows = [
        ("data set", settings.data.name),
        ("training pictures", f"{used:,}{of_all}, split {train_set.split}"),
        ("evaluated pictures", f"{evaluation.images:,}{spread}, split {evaluation.split}"),
        ("classes", f"{len(train_set.classes)}"),
    ]
    if facts["width"]:
        sides = "; ".join(f"{side} {_span(facts[side])}" for side in ("width", "height"))
        rows.append(("sizes of training pictures", f"{sides} pixels"))
        rows.append(("ignored training pixels", f"{facts['ignored_pixels'] / facts['pixels']:.1%}"))
    rows += [("left out", message) for message in evaluation.broken[:5]]
    counted_of = f"all {used:,}" if counted == used else f"{counted:,} of {used:,}"
    note = (
        f"Counted over {counted_of} training labels, of the pixels that are not ignored; small figures are the labels "
        "in which a class occurs."
    )
    classes = facts["classes"]
    return rows, Shares([c["share"] for c in classes], [c["images"] for c in classes], note)


def _counted(dataset: Dataset, used: int) -> tuple[Scan, int]:
    """Scan labels spread evenly over the first `used`, within these limits; and how many they were."""
    found, end = Scan(), time.monotonic() + _SECONDS
    indices = np.unique(np.linspace(0, used - 1, min(used, _LABELS)).round().astype(int))
    # a fixed shuffle: where time runs out, what was read is still spread over the split
    for done, index in enumerate(np.random.default_rng(0).permutation(indices)):
        if time.monotonic() > end:
            return found, done
        found.add(look(dataset, int(index), pictures=False))
    return found, len(indices)


def _span(spread: dict[str, float]) -> str:
    if spread["min"] == spread["max"]:
        return f"{spread['min']:,}"
    return f"{spread['min']:,}–{spread['max']:,}, median {spread['median']:,.0f}"


def changed_settings(settings: Settings) -> Rows:
    """Name, value and default of each setting that is not the default."""
    here, default = settings.model_dump(mode="json"), Settings().model_dump(mode="json")
    return [
        (f"{section}.{key}", _shown(value), _shown(default[section][key]))
        for section, values in here.items()
        for key, value in values.items()
        if value != default[section][key]
    ]


def _shown(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False).strip('"')


def cost_rows(records: list[dict[str, Any]], net: Network, crop: int) -> Rows:
    """Time from the log, speed, size and memory. What a stopped run did after its last whole epoch is not counted."""
    total, spans, before = 0.0, list[float](), 0.0
    for record in records:
        if record["event"] == "epoch":
            spans.append(record["time"] - before)
            total += spans[-1]
        before = record["time"]
    epochs = [record for record in records if record["event"] == "epoch"]
    resumed = sum(record["event"] == "resume" for record in records)
    rows = [
        ("time in all", _duration(total) + (f", over {1 + resumed} starts" if resumed else "")),
        ("an epoch, with its evaluation", f"{_duration(stats.median(spans))} (median)"),
        ("training speed", f"{stats.median(e['images_per_second'] for e in epochs):.1f} images/s (median)"),
        ("parameters", f"{sum(p.numel() for p in net.parameters()):,}"),
        (f"operations for a picture of {crop} x {crop}", f"{gflops(net, 1, 3, crop, crop):,.2f} GFLOPs"),
    ]
    peaks = [record["peak_mb"] for record in epochs if "peak_mb" in record]
    if peaks:
        rows.append(("peak memory of the first process", f"{max(peaks):,.0f} MB"))
    return rows


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


PICTURES = 3
"""The number of best pictures shown, and of worst ones."""
_FEW = 20
"""Pictures on which the worth of each part of the block is measured."""
_PARTS = {
    "middle": "without the middle range", "long": "without the long range", "gate": "with the gate wide open",
    "block": "without the block",
}  # fmt: skip
_MOST = 4_000_000
"""Attention in a picture of more pixels is computed on a smaller copy."""


def write_report(
    folder: RunFolder,
    settings: Settings,
    net: Network,
    train_set: Dataset,
    val_set: Dataset,
    evaluation: Evaluation,
    extremes: BestAndWorst,
    known: KnownSize = KnownSize(),  # noqa: B008
) -> None:
    """Write report.html; `evaluation` and `extremes` come from `net` on `val_set`, seen at the sizes `known`."""
    records, epochs = folder.records(), folder.epochs()
    about_data, shares = data_rows(settings, train_set, evaluation)
    classes = evaluation.classes
    worth, note = what_parts_are_worth(net, val_set, settings.data.skip_broken, known)
    run = RunReport(
        title=folder.path.resolve().name,
        names=classes.names,
        colours=classes.colours,
        ranges=classes.ranges,
        figures=evaluation.figures(),
        headline=_headline(settings, evaluation, epochs),
        epochs=epochs,
        matrix=evaluation.confusion.matrix,
        best=[_example(seen, val_set) for seen in extremes.best],
        worst=[_example(seen, val_set) for seen in extremes.worst],
        examples_note=_examples_note(extremes, evaluation),
        attention=attention_examples(net, val_set, extremes.best, known),
        vitals=in_words(epochs[-1], neck=settings.model.neck is not None),
        worth=worth,
        worth_note=note,
        data=about_data,
        shares=shares,
        changed=[*changed_settings(settings), *_origin(records, settings)],
        settings=settings.to_yaml(),
        cost=cost_rows(records, net, settings.training.crop),
        environment=environment_rows(records),
    )
    write_text(folder.report, report_page(run))


def what_parts_are_worth(
    net: Network, val_set: Dataset, skip_broken: bool, known: KnownSize
) -> tuple[list[tuple[str, str, str]], str]:
    """Scores with each part of the block switched off, on a few pictures: words, mIoU, difference; and a note.

    There are none for a network without such parts, and none where several processes share the pictures, because only
    the first of them writes reports.
    """
    if not net.block.adds_context or distributed.is_initialized():
        return [], ""
    few, block = Spread(val_set, _FEW), net.block

    def miou() -> float:
        return evaluate_network(net, few, skip_broken=skip_broken, known=known).miou

    whole = miou()
    rows = [("as it is", f"{whole:.4f}", "")]
    for part, words in _PARTS.items():
        try:
            net.block = block.without(part)
        except OrdnetError:  # it has no such part
            continue
        try:
            less = miou()
        finally:
            net.block = block
        rows.append((words, f"{less:.4f}", _difference(less - whole)))
    note = (
        f"mIoU on {len(few.ids)} pictures, evenly spread, protocol whole, with one part of the trained network "
        "switched off. A network trained without that part would make up for some of the loss."
    )
    return rows, note


def _difference(value: float) -> str:
    """With its sign, unless it is rounded to nothing."""
    shown = f"{value:+.4f}"
    return shown if float(shown) else shown[1:]


def guarded(say: Callable[[str], None], make: Callable[[], object]) -> None:
    """Run `make`, which writes the report. The trained network matters more: an error is reported, not raised."""
    try:
        make()
    except Exception as error:  # from plotting to a full disk
        reason = (str(error).strip().splitlines() or [""])[0]
        say(f"the report could not be written ({type(error).__name__}: {reason}); the run itself is complete")


def rebuild_report(path: str | Path) -> Path:
    """Evaluate a run folder's last network again and write its report anew."""
    folder = RunFolder(Path(path))
    settings, last = read(folder.settings), checkpoint.load(folder.last)
    net = last.net
    train_set, val_set = (open_dataset(settings.data.name, s) for s in (settings.data.split, settings.data.val_split))
    if settings.evaluation.limit:
        val_set = Spread(val_set, settings.evaluation.limit)
    extremes, known = BestAndWorst(PICTURES), known_size(None, last.about)
    evaluation = evaluate_network(
        net, val_set, protocol(settings.evaluation.protocol, settings.data.base_size, settings.training.crop),
        skip_broken=settings.data.skip_broken, look=extremes.add, known=known,
    )  # fmt: skip
    write_report(folder, settings, net, train_set, val_set, evaluation, extremes, known)
    return folder.report


def _headline(settings: Settings, evaluation: Evaluation, epochs: list[dict[str, Any]]) -> str:
    details = ", ".join(f"{name} {value}" for name, value in evaluation.details.items())
    protocol = evaluation.protocol + (f" ({details})" if details else "")
    words = (
        f"A training run of ordnet: {epochs[-1]['epoch']} epochs, then {evaluation.images:,} pictures of "
        f"{short_name(settings.data.name) or evaluation.data}, split {evaluation.split}, with the protocol {protocol}."
    )
    scored = [record for record in epochs if record.get("miou") is not None]
    if not scored:
        return words
    best = max(scored, key=lambda record: record["miou"])
    if best is epochs[-1]:  # its mIoU stands below
        return f"{words} The last epoch was the best; it is kept as best.safetensors as well."
    return f"{words} The best epoch was {best['epoch']}, with mIoU {best['miou']:.4f}; it is kept as best.safetensors."


def _origin(records: list[dict[str, Any]], settings: Settings) -> list[tuple[str, str, str]]:
    """What the run was started with besides its settings, or instead of them, as far as its log knows: --init, the
    weights that `imagenet` became, and the size that batches had."""
    starts = [record for record in records if record["event"] == "start"]
    rows = [("--init", record["init"], "–") for record in starts if record.get("init")]
    if starts and starts[-1].get("weights"):
        rows.append(("backbone's weights", "; ".join(starts[-1]["weights"]), "–"))
    asked = settings.training.batch_size
    sizes = dict.fromkeys(record["batch_size"] for record in records if record.get("batch_size"))
    if any(size < asked for size in sizes):  # --force-data may have changed it on the way
        rows.append(("batch size", f"{', then '.join(map(str, sizes))}, {asked} asked: few pictures", "–"))
    return rows


def _example(seen: Seen, data: Dataset) -> Example:
    about = f"{seen.accuracy:.1%} of the pixels are right."
    if seen.mistake:
        truth, taken_for, share = seen.mistake
        names = data.classes.names
        about += f" Most frequent mistake: {names[truth]} taken for {names[taken_for]}, {share:.1%} of the pixels."
    return Example(data.ids[seen.index], about, seen.image, seen.truth, seen.labels)


def _examples_note(extremes: BestAndWorst, evaluation: Evaluation) -> str:
    if extremes.seen == evaluation.images:
        return f"By pixel accuracy, of {extremes.seen:,} pictures."
    return (
        f"By pixel accuracy, of {extremes.seen:,} of the {evaluation.images:,} pictures: "
        "those that the first process evaluated and that have pixels that count."
    )


def attention_examples(
    net: Network, data: Dataset, best: Sequence[Seen], known: KnownSize
) -> list[tuple[AttentionRow, str]]:
    """The attention at two positions of the best picture, with captions.

    There are none for a network without attention, or where no picture was parsed.
    """
    if why_not(net) or not best:
        return []
    seen = best[0]
    pixels = np.asarray(data.image(seen.index))
    explainer = Explainer(for_inference(net), pixels, _MOST, known)
    shrunk = pixels.shape[0] / seen.truth.shape[0], pixels.shape[1] / seen.truth.shape[1]
    shown = []
    for class_id in _telling(seen.truth, data.classes.ranges):
        row, column = _inside(seen.truth == class_id)
        y, x = int((row + 0.5) * shrunk[0]), int((column + 0.5) * shrunk[1])
        place = f"{data.classes.names[class_id]} at x {x}, y {y} of {data.ids[seen.index]}"
        shown.append((explainer.at(x, y).row(), f"What a position attends to: {place}."))
    return shown


def _telling(truth: np.ndarray, ranges: Sequence[str] | None) -> list[int]:
    """Two classes of the picture: one that needs the middle and one that needs the long range, or else the largest."""
    counts = np.bincount(truth[truth != IGNORE], minlength=1)
    largest = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    if ranges is None:
        return largest[:2]
    needed = [next((c for c in largest if ranges[c] == name), None) for name in ("middle", "long")]
    return list(dict.fromkeys([*(c for c in needed if c is not None), *largest]))[:2]


def _inside(where: np.ndarray) -> tuple[int, int]:
    """Row and column of the marked pixel nearest to the middle of all marked ones."""
    places = np.argwhere(where)
    distances = ((places - places.mean(axis=0)) ** 2).sum(axis=1)
    row, column = places[distances.argmin()]
    return int(row), int(column)
