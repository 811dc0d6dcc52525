"""The report's tables: the data, the settings that were changed, the cost."""

import json
import statistics as stats
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ordnet.config import Settings
from ordnet.data.check import Scan, look, summary
from ordnet.data.dataset import Dataset
from ordnet.evaluation.evaluate import Evaluation
from ordnet.model.flops import gflops
from ordnet.model.network import Network
from ordnet.training.report.page import Shares

Rows = Sequence[tuple[str, ...]]
_LABELS, _SECONDS = 300, 5.0
"""This many labels of the training split are counted, or as many as can be read in that time."""


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
    """Labels evenly spread over the first `used`, within the bounds; and how many they were."""
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
    """Time by the log, speed, size and memory. What a stopped run did after its last whole epoch is not counted."""
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
