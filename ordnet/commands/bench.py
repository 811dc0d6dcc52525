"""`ordnet bench`: contestants side by side in one run."""

import typer

app = typer.Typer(help="Time, memory and operations, side by side in one run.", no_args_is_help=True)
