"""`ordnet evaluate`, `ordnet compare`, `ordnet submit`: scores, models side by side, predictions for a test server."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordnet.commands.predict import LongSide
from ordnet.errors import OrdnetError, reason
from ordnet.files import check_file, refuse_unwritable

if TYPE_CHECKING:
    from rich.progress import Progress

    from ordnet.evaluation.comparison import Comparison

Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps …; a GPU without it, where there is one.")]


def evaluate(
    model: Annotated[
        str, typer.Argument(help="A checkpoint (.safetensors), an .onnx file, or a shipped model's name.")
    ],
    data: Annotated[str, typer.Option(help="The data set, as NAME or NAME:PATH.")],
    split: Annotated[str, typer.Option(help="The split to score.")] = "val",
    protocol: Annotated[str, typer.Option(help="whole, multiscale or encnet.")] = "whole",
    json: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the confusion matrix into this PNG file.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave unreadable pictures out.")] = False,
    device: Device = None,
    long_side: LongSide = None,
    without: Annotated[
        str | None,
        typer.Option(
            metavar="middle|long|gate|block",
            help="Switch a part of the model's block off, to see what it is worth in the trained network.",
        ),
    ] = None,
) -> None:
    """Mean IoU and accuracies of a model on a data set; IoU, precision, recall and F1 (Dice) by class."""
    import json as json_format

    from ordnet.data.catalogue import short_name
    from ordnet.evaluation.evaluate import Broken
    from ordnet.evaluation.evaluate import evaluate as run
    from ordnet.files import write_text
    from ordnet.model.pixels import parse_long_side

    for option, path, endings in (("--json", json, None), ("--out", out, _ENDINGS)):
        if path is not None:
            check_file(path, endings, option)
    try:
        with _bar() as progress:
            evaluation = run(
                model, data, split, protocol, skip_broken=skip_broken, device=device,
                long_side=parse_long_side(long_side), without=without, progress=progress,
            )  # fmt: skip
    except Broken as error:
        advice = f"`ordnet data check {data}` lists all that is broken; --skip-broken leaves it out"
        raise OrdnetError(f"{error}\n{advice}") from None
    if os.environ.get("RANK", "0") != "0":  # the first process speaks for all
        return
    figures = evaluation.figures()
    _print(figures, short_name(data))
    if json:
        write_text(json, json_format.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        typer.echo(f"wrote {json}")
    if out:
        from ordnet.picture.charts import confusion_chart

        title = f"{short_name(data)} {figures['split']}, protocol {figures['protocol']}"
        confusion_chart(evaluation.confusion.matrix, evaluation.classes.names, title, out)
        typer.echo(f"wrote {out}")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], object]]:
    from ordnet.progress import progress

    with progress() as bar:
        task = bar.add_task("pictures", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(figures: dict[str, Any], data: str) -> None:
    from rich.table import Table

    from ordnet.evaluation.confusion import classes_words, remarks
    from ordnet.progress import plain_console

    details = ", ".join(
        f"{key} {figures[key]}" for key in ("scales", "flips", "base", "crop", "without") if key in figures
    )
    title = f"{data} {figures['split']}, {figures['images']:,} pictures, protocol {figures['protocol']}"
    title += f" ({details})" if details else ""
    console = plain_console()
    # not as the table's title, which would be broken at the table's width
    console.print(title, soft_wrap=True)
    table = Table()
    table.add_column("class")
    columns = {"IoU": "iou", "precision": "precision", "recall": "recall", "F1 (Dice)": "f1"}
    for words in columns:
        table.add_column(words, justify="right")
    for name in figures["per_class_iou"]:
        table.add_row(name, *(_number(figures[f"per_class_{key}"][name]) for key in columns.values()))
    table.add_section()
    totals = {
        f"mIoU over {classes_words(figures)}": figures["miou"],
        **{f"mIoU, {name} range": value for name, value in figures.get("miou_by_range", {}).items()},
        "pixel accuracy": figures["pixel_accuracy"],
        "mean accuracy": figures["mean_accuracy"],
        **{name: value for name, value in figures.items() if name.startswith("miou_59") or name == "miou_60"},
    }
    if figures["miou_absent_as_zero"] != figures["miou"]:
        totals["mIoU, absent classes as 0 (ADE20K's and EncNet's rule)"] = figures["miou_absent_as_zero"]
    if figures["data"].startswith("ade20k"):
        totals["final score (mean of mIoU and pixel accuracy)"] = figures["final_score"]
    for name, value in totals.items():
        table.add_row(name, _number(value))
    console.print(table)
    for remark in remarks(figures):
        console.print(remark, soft_wrap=True)
    for message in figures.get("broken", []):
        print(f"left out: {message}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def submit(
    server: Annotated[
        str, typer.Argument(metavar="ade20k|voc|cityscapes", help="The benchmark whose server it is for.")
    ],
    model: Annotated[str, typer.Argument(help="A checkpoint (.safetensors) or the name of a shipped model.")],
    data: Annotated[str, typer.Option(help="The data set with its test pictures, such as voc:PATH.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to upload: .tar.gz or .tgz for voc, else .zip.")],
    protocol: Annotated[str, typer.Option(help="whole, multiscale or encnet (the paper's).")] = "encnet",
    device: Device = None,
) -> None:
    """Parse a test set as its server wants it, and check the file by reading it back."""
    from ordnet.evaluation.submission import submit as run
    from ordnet.progress import progress

    refuse_unwritable(out)
    with progress() as bar:
        task = bar.add_task("pictures", total=None)
        count = run(
            server,
            model,
            data,
            out,
            protocol,
            lambda done, total: bar.update(task, completed=done, total=total),
            device,
        )
    typer.echo(f"wrote {out}: {count:,} predictions, protocol {protocol}, read back and checked")


_ENDINGS = (".png", ".jpg", ".jpeg")
_USUAL = 6


class Pick(str, Enum):
    even = "even"
    worst = "worst"
    difference = "difference"


def compare(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Checkpoints (.safetensors) or names of shipped models.")
    ],
    data: Annotated[str, typer.Option(metavar="NAME[:PATH]", help="The data set.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture to write, .png or .jpg.")],
    n: Annotated[int | None, typer.Option("--n", min=1, max=100, help="Rows; 6, or all there are, without it.")] = None,
    split: Annotated[str, typer.Option(help="The split to choose pictures from.")] = "val",
    pick: Annotated[
        Pick | None,
        typer.Option(
            help="even (without it): evenly spread over the split. worst: where the models' mean pixel accuracy is "
            "lowest. difference: where their pixel accuracies differ most. The last two parse the whole split first, "
            "or 500 evenly spread pictures of a larger one."
        ),
    ] = None,
    ids: Annotated[str | None, typer.Option(metavar="A,B,C", help="These pictures, in this order.")] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Also draw Attn_g of the first model that has a gate, as a heat map.")
    ] = False,
    strength: Annotated[float, typer.Option(min=0, max=1, help="How much the colours cover of the picture.")] = 0.6,
) -> None:
    """Draw pictures, their truth and each model's result side by side.

    A row per picture, with its pixel accuracy under every model; a legend of the classes that occur. The same command
    picks the same pictures everywhere.
    """
    _check(out, n, pick, ids)
    from ordnet.data.catalogue import short_name
    from ordnet.evaluation.comparison import Comparison, draw
    from ordnet.files import write_atomically
    from ordnet.progress import progress

    comparison = Comparison(models, data, split)
    if gate:
        comparison.gated()  # refuse before the work begins
    with progress() as bar:
        chosen, how = _choose(comparison, n, pick or Pick.even, ids, bar)
        note = f"{short_name(data)} {split}: {how}. Below the results: pixel accuracy."
        figure = draw(comparison, chosen, strength, gate, note, _reporter(bar, "drawing"))
    try:
        write_atomically(out, figure.save)
    except OSError as error:
        raise OrdnetError(f"cannot write {out}: {reason(error)}") from None
    typer.echo(f"wrote {out}: {how}")


def _check(out: Path, n: int | None, pick: Pick | None, ids: str | None) -> None:
    check_file(out, _ENDINGS)
    if ids is not None and (n is not None or pick is not None):
        raise OrdnetError("--ids says which pictures: leave out --n and --pick, or --ids")


def _choose(
    comparison: "Comparison", n: int | None, pick: Pick, ids: str | None, bar: "Progress"
) -> tuple[list[int], str]:
    """The indices of the pictures, and a description of the choice."""
    from ordnet.evaluation.comparison import MOST_RANKED

    total = len(comparison.dataset.ids)
    if ids is not None:
        wanted = [key.strip() for key in ids.split(",") if key.strip()]
        if not wanted:
            raise OrdnetError("--ids names no picture: expected ids with commas between them")
        chosen = comparison.find(wanted)
        return chosen, f"{len(chosen)} of {total:,} pictures, as asked for"
    if n is not None and n > total:
        raise OrdnetError(f"--n {n}: the {comparison.dataset.split} split has only {total:,} pictures")
    chosen = comparison.pick(pick.value, n or _USUAL, _reporter(bar, "ranking"))
    if not chosen:
        raise OrdnetError("no pixel of any picture counts: there is nothing to rank")
    among = f"{MOST_RANKED} evenly spread of {total:,} pictures" if total > MOST_RANKED else f"{total:,} pictures"
    words = {
        Pick.even: f"{len(chosen)} of {total:,} pictures, evenly spread",
        Pick.worst: f"the {len(chosen)} worst of {among}",
        Pick.difference: f"the {len(chosen)} of {among} on which the models differ most",
    }
    return chosen, words[pick]


def _reporter(bar: "Progress", what: str) -> Callable[[int, int], object]:
    task = bar.add_task(what, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
