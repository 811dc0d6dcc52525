"""`ordnet evaluate`: a checkpoint's scores on a split, each with its protocol."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[Path, typer.Argument(help="A checkpoint (.safetensors).")],
    data: Annotated[str, typer.Option(help="The data set, as NAME or NAME:PATH.")],
    split: Annotated[str, typer.Option(help="Which pictures.")] = "val",
    protocol: Annotated[str, typer.Option(help="whole, multiscale or encnet.")] = "whole",
    json: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw the confusion matrix into this PNG file.")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave unreadable pictures out.")] = False,
) -> None:
    """Mean IoU, accuracies and IoU by class of a model on a data set."""
    from ordnet.commands.evaluation_table import show
    from ordnet.evaluation.session import evaluate_checkpoint

    evaluation = evaluate_checkpoint(model, data, split, protocol, skip_broken=skip_broken)
    if evaluation is not None:  # the first process speaks for all
        show(evaluation, json, out)
