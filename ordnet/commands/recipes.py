"""`ordnet recipes`: what can be trained by name, and the paper's result tables with our command for its rows."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ordnet.paper import Results, Row


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe: its command and all its settings.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's result tables, and how to get our rows.")] = False,
) -> None:
    """The recipes, with command, cost and score."""
    from ordnet.errors import OrdnetError
    from ordnet.recipes import recipe_of
    from ordnet.recipes import recipes as known

    if paper and name is not None:
        raise OrdnetError(f"either one recipe ({name}) or the paper's tables (--paper), not both")
    if paper:
        _paper()
        return
    if name is not None:
        recipe = recipe_of(name)
        print(f"# {recipe.about}\n# {recipe.command}\n# cost: {recipe.cost}")
        print(f"# paper: {recipe.paper}\n# ours: {recipe.ours}\n{recipe.settings.to_yaml()}", end="")
        return
    for recipe in known().values():
        print(f"{recipe.name}: {recipe.about}")
        print(f"    {recipe.command}")
        print(f"    cost: {recipe.cost} · paper: {recipe.paper} · ours: {recipe.ours}")
    print("\nBackbones start with ImageNet weights, fetched once (docs/training.md): without them scores are lower.")


_REMARKS = (
    "* the best of its column",
    "Backbones start with ImageNet weights, fetched once (docs/training.md).",
    "Scored is last.safetensors: best.safetensors was chosen by its score on val.",
    "The ablations: ordnet ablate branches|patches|gate|fusion. The compute table: ordnet bench block.",
)


def _paper() -> None:
    from ordnet.paper import RESULTS
    from ordnet.progress import plain_console

    console = plain_console(pipe_width=100)
    for results in RESULTS:
        console.print(_table(results))
        console.print(results.protocol)
        for row in results.ordnet:
            _print_commands(console, results, row)
        console.print()
    for line in _REMARKS:
        console.print(line)


def _table(results: "Results") -> "Table":
    from rich.table import Table

    from ordnet.paper import NAMES
    from ordnet.recipes import recipes as known

    found = known()
    says_trained = any(row.trained for row in results.rows)
    table = Table(title=results.title, title_justify="left")
    for heading in ("method", "backbone", *(["trained on"] if says_trained else [])):
        table.add_column(heading)
    for column in results.columns:
        table.add_column(f"{NAMES[column]} %", justify="right", no_wrap=True)
    table.add_column("ours")
    for row in results.rows:
        if row == results.ordnet[0]:
            table.add_section()
        trained = [row.trained or "–"] if says_trained else []
        ours = found[row.recipe].ours if row.recipe else ""
        table.add_row(row.method, row.backbone or "–", *trained, *_figures(results, row), ours)
    return table


def _figures(results: "Results", row: "Row") -> list[str]:
    """The best of several has a star; the others end in a space, so that decimal points stand below each other."""
    shown = []
    for value, best in zip(row.figures, results.best(), strict=True):
        star = "*" if value == best and len(results.rows) > 1 else " "
        shown.append("–  " if value is None else f"{value:.{results.digits}f} {star}")
    return shown


def _print_commands(console: "Console", results: "Results", row: "Row") -> None:
    """Every stage, then what scores it. Commands are not wrapped, so that they can be copied."""
    from ordnet.recipes import stages

    runs = stages(row.recipe)
    console.print(f"Ours, {row.recipe}:")
    for recipe in runs:
        console.print(f"  {recipe.command}", soft_wrap=True)
    model, data = f"runs/{row.recipe}/last.safetensors", runs[-1].data
    if results.server:
        archive = "test.tar.gz" if results.server == "voc" else "test.zip"
        console.print(f"  ordnet submit {results.server} {model} --data {data} --out {archive}", soft_wrap=True)
    else:
        console.print(f"  ordnet evaluate {model} --data {data} --protocol encnet", soft_wrap=True)
