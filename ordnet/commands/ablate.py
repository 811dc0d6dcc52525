"""`ordnet ablate`: one of the paper's four ablation tables, or one of methods, on any data set."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ordnet.study.table import Table


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
