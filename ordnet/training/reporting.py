"""A run's report: what the log, the last evaluation and the data set say, put together for ordnet.picture.report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ordnet.config import Settings, read
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset
from ordnet.evaluation.evaluate import Evaluation, evaluate
from ordnet.evaluation.extremes import Extremes, Seen
from ordnet.files import write_text
from ordnet.model import checkpoint
from ordnet.model.network import Network
from ordnet.picture.report import Example, RunReport, report
from ordnet.training import run_facts
from ordnet.training.attention_examples import attention_examples
from ordnet.training.run_folder import RunFolder
from ordnet.training.vital_words import in_words

PICTURES = 3
"""So many of the best, and of the worst."""


def write(
    folder: RunFolder,
    settings: Settings,
    net: Network,
    train_set: Dataset,
    val_set: Dataset,
    evaluation: Evaluation,
    extremes: Extremes,
) -> None:
    """Write report.html; `evaluation` and `extremes` are of `net` on `val_set`."""
    records = [json.loads(line) for line in folder.log.read_text(encoding="utf-8").splitlines()]
    epochs = [record for record in records if record["event"] == "epoch"]
    facts, shares = run_facts.data(settings, train_set, evaluation)
    classes = evaluation.classes
    run = RunReport(
        title=folder.path.resolve().name,
        names=classes.names,
        colours=classes.colours,
        ranges=classes.ranges,
        figures=evaluation.figures(),
        headline=_headline(evaluation, epochs),
        epochs=epochs,
        matrix=evaluation.confusion.matrix,
        best=[_example(seen, val_set) for seen in extremes.best],
        worst=[_example(seen, val_set) for seen in extremes.worst],
        examples_note=_examples_note(extremes, evaluation),
        attention=attention_examples(net, val_set, extremes.best),
        vitals=in_words(epochs[-1]),
        data=facts,
        shares=shares,
        changed=run_facts.changed(settings),
        settings=settings.to_yaml(),
        cost=run_facts.cost(records, net, settings.training.crop),
        environment=run_facts.environment(records),
    )
    write_text(folder.report, report(run))


def guarded(say: Callable[[str], None], make: Callable[[], object]) -> None:
    """A trained network is worth more than its report: whatever goes wrong in `make` is said, and no more."""
    try:
        make()
    except Exception as error:  # from plotting to a full disk
        reason = (str(error).strip().splitlines() or [""])[0]
        say(f"the report could not be written ({type(error).__name__}: {reason}); the run itself is complete")


def rebuild(path: str | Path) -> Path:
    """Evaluate a run folder's last network again and write its report anew."""
    folder = RunFolder(Path(path))
    settings, net = read(folder.settings), checkpoint.load(folder.last).net
    train_set, val_set = (open_dataset(settings.data.name, s) for s in (settings.data.split, settings.data.val_split))
    extremes = Extremes(PICTURES)
    evaluation = evaluate(
        net, val_set, settings.evaluation.protocol,
        base=settings.data.base_size or 520, crop=settings.training.crop,
        skip_broken=settings.data.skip_broken, look=extremes.add,
    )  # fmt: skip
    write(folder, settings, net, train_set, val_set, evaluation, extremes)
    return folder.report


def _headline(evaluation: Evaluation, epochs: list[dict[str, Any]]) -> str:
    details = ", ".join(f"{name} {value}" for name, value in evaluation.details.items())
    protocol = evaluation.protocol + (f" ({details})" if details else "")
    words = (
        f"A training run of ordnet: {epochs[-1]['epoch']} epochs, then {evaluation.images:,} pictures of "
        f"{evaluation.data}, split {evaluation.split}, with the protocol {protocol}."
    )
    scored = [record for record in epochs if record.get("miou") is not None]
    if not scored:
        return words
    best = max(scored, key=lambda record: record["miou"])
    return f"{words} The best epoch was {best['epoch']}, with mIoU {best['miou']:.4f}; it is kept as best.safetensors."


def _example(seen: Seen, data: Dataset) -> Example:
    about = f"{seen.accuracy:.1%} of the pixels are right."
    if seen.mistake:
        truth, taken_for, share = seen.mistake
        names = data.classes.names
        about += f" Most frequent mistake: {names[truth]} taken for {names[taken_for]}, {share:.1%} of the pixels."
    return Example(data.ids[seen.index], about, seen.image, seen.truth, seen.labels)


def _examples_note(extremes: Extremes, evaluation: Evaluation) -> str:
    if extremes.seen == evaluation.images:
        return f"By pixel accuracy, of {extremes.seen:,} pictures."
    return (
        f"By pixel accuracy, of {extremes.seen:,} of the {evaluation.images:,} pictures: "
        "those that the first process evaluated and that have pixels that count."
    )
