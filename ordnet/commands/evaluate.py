"""`ordnet evaluate` and `ordnet submit`: scores on a split, each with its protocol; predictions for a test server."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer


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
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps …; a GPU without it, where there is one.")] = None,
    long_side: Annotated[
        str | None,
        typer.Option(
            metavar="PIXELS|own",
            help="How large the network sees larger pictures; own leaves every picture at its own size. Without it the "
            "size that the model was trained for.",
        ),
    ] = None,
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

    from ordnet.evaluation.evaluate import evaluate as run
    from ordnet.files import write_text
    from ordnet.model.pixels import parse_long_side

    with _bar() as progress:
        evaluation = run(
            model, data, split, protocol, skip_broken=skip_broken, device=device,
            long_side=parse_long_side(long_side), without=without, progress=progress,
        )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":  # the first process speaks for all
        return
    figures = evaluation.figures()
    _print(figures)
    if json:
        write_text(json, json_format.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    if out:
        from ordnet.picture.charts import confusion_chart

        title = f"{figures['data']} {figures['split']}, protocol {figures['protocol']}"
        confusion_chart(evaluation.confusion.matrix, evaluation.classes.names, title, out)


@contextmanager
def _bar() -> Iterator[Callable[[int, int], object]]:
    from ordnet.progress import progress

    with progress() as bar:
        task = bar.add_task("pictures", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ordnet.evaluation.confusion import remarks

    details = ", ".join(
        f"{key} {figures[key]}" for key in ("scales", "flips", "base", "crop", "without") if key in figures
    )
    title = f"{figures['data']} {figures['split']}, {figures['images']:,} pictures, protocol {figures['protocol']}"
    title += f" ({details})" if details else ""
    console = Console()
    # not as the table's title, which would be broken at the table's width
    console.print(title, highlight=False, markup=False, soft_wrap=True)
    table = Table()
    table.add_column("class")
    columns = {"IoU": "iou", "precision": "precision", "recall": "recall", "F1 (Dice)": "f1"}
    for words in columns:
        table.add_column(words, justify="right")
    for name in figures["per_class_iou"]:
        table.add_row(name, *(_number(figures[f"per_class_{key}"][name]) for key in columns.values()))
    table.add_section()
    averaged = f"{figures['miou_classes']} of {len(figures['per_class_iou'])} classes"
    totals = {
        f"mIoU over {averaged}": figures["miou"],
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
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
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
) -> None:
    """Parse a test set as its server wants it, and check the file by reading it back."""
    from ordnet.evaluation.submission import submit as run
    from ordnet.progress import progress

    with progress() as bar:
        task = bar.add_task("pictures", total=None)
        count = run(
            server, model, data, out, protocol, lambda done, total: bar.update(task, completed=done, total=total)
        )
    typer.echo(f"wrote {out}: {count:,} predictions, protocol {protocol}, read back and checked")
