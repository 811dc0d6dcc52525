"""A bar for whatever takes longer than two seconds, and a console that prints text as it is."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Task
from rich.text import Text

from ordnet.errors import shown

OnProgress = Callable[[int, int], object]
"""Is told how many pieces are done, and of how many."""


class _Description(ProgressColumn):
    """What is being done, often a file's name: no markup, and nothing that a terminal would obey."""

    def render(self, task: Task) -> Text:
        return Text(shown(task.description))


def progress() -> Progress:
    """A bar on standard error, gone when done, silent where there is no terminal."""
    console = Console(stderr=True, emoji=False)
    return Progress(
        _Description(),
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
