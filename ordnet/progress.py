"""A bar for whatever takes longer than two seconds, and a console that prints text as it is."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

OnProgress = Callable[[int, int], object]
"""Called with the number of pieces done, and of all pieces."""


def progress() -> Progress:
    """A bar on standard error, gone when done, silent where there is no terminal."""
    console = Console(stderr=True, emoji=False)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def plain_console(pipe_width: int = 140) -> Console:
    """Prints text as it is: a class may well be called [bold], and the `:phone:` of
    `folder:phone: train 48` is no emoji. Into a pipe, which has no width, tables go in `pipe_width` columns."""
    console = Console(markup=False, emoji=False, highlight=False)
    return console if console.is_terminal else Console(width=pipe_width, markup=False, emoji=False, highlight=False)
