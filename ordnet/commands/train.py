"""`ordnet train`: a recipe or a settings file, a data set, a run folder."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe (see `ordnet recipes`) or a settings file (.yaml).")],
    data: Annotated[
        str | None, typer.Option(help="The data set, as NAME or NAME:PATH; folder:PATH for your own.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, as often as needed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/RECIPE without it.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, also a finished one for more epochs.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an earlier run in the folder.")] = False,
    init: Annotated[
        Path | None, typer.Option(help="Start from this checkpoint or shipped model: a further stage.")
    ] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave unreadable pictures out.")] = False,
    force_data: Annotated[
        bool, typer.Option("--force-data", help="Resume although the data or the number of processes has changed.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps …; a GPU without it, where there is one.")] = None,
) -> None:
    """Train a parser; killed anywhere, it continues with --resume."""
    from ordnet.training.run import train as run

    run(
        recipe, data, out, set_ or [],
        resume=resume, force=force, init=init, skip_broken=skip_broken, device=device, force_data=force_data,
    )  # fmt: skip
