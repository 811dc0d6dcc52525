"""`ordnet train`, `ordnet ablate`, `ordnet demo`: one run, the runs of a table, two small runs to look at."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ordnet.study.table import Table


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
    from ordnet.training.loop import train as run

    run(
        recipe, data, out, set_ or [],
        resume=resume, force=force, init=init, skip_broken=skip_broken, device=device, force_data=force_data,
    )  # fmt: skip


def ablate(
    table: Annotated[str, typer.Argument(help="branches, patches, gate, fusion or methods.")],
    data: Annotated[str, typer.Option(help="The data set, as NAME or NAME:PATH.")],
    recipe: Annotated[
        str | None, typer.Option(help="What the rows change; without it one that suits the data set.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 3,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value for all rows.")] = None,
    split: Annotated[str | None, typer.Option(help="Where the figures come from; the recipe's own without it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of runs and tables; runs/ablate-DATA without it.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, each with its share of the cores.")] = 1,
) -> None:
    """Train every row of an ablation table with several seeds; killed anywhere, the same command continues.

    Rows are trained with cross-entropy and scored at a single scale after the last epoch, as in the paper. The tables
    of one --out folder share the runs they have in common. `methods` sets kinds of context side by side, accuracy
    against cost.
    """
    from ordnet.study.ablation import ablate as run

    out = out or Path("runs") / f"ablate-{data.partition(':')[0]}"
    made = run(table, data, out, recipe=recipe, seeds=seeds, changes=set_ or [], split=split, jobs=jobs)
    if os.environ.get("RANK", "0") == "0":
        written = made.write(out)
        _print(made)
        print("→ " + ", ".join(map(str, written)))


def _print(table: "Table") -> None:
    from rich.table import Table as Sheet

    from ordnet.progress import plain_console

    titles, lines = table.lines()
    sheet = Sheet(title=table.title, title_justify="left", caption=table.note, caption_justify="left")
    for place, title in enumerate(titles):
        sheet.add_column(title, justify="right" if place else "left", overflow="fold")
    for line in lines:
        sheet.add_row(*line)
    plain_console(pipe_width=200).print(sheet)
    print("\n".join(table.order_lines()))


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write into.")] = Path("runs/demo"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value of the training.")] = None,
) -> None:
    """Parse and explain a photo, train on generated scenes, compare by range: one report.html with all of it.

    Takes a few minutes on two cores and needs no network. A second call uses what the first has trained.
    """
    from ordnet.study.demo import NEXT
    from ordnet.study.demo import demo as run

    started = time.monotonic()
    path = run(out, lambda text: print(text, flush=True), set_ or [])
    print(f"\ndone in {time.monotonic() - started:.0f} s; look at {path.resolve()}")
    activate = Path(sys.prefix) / "bin/activate"
    first = f"source {activate}\n" if shutil.which("ordnet") is None and activate.exists() else ""
    print("\nyour own pictures, next:\n  " + f"{first}{NEXT}".replace("\n", "\n  "))
