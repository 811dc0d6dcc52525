"""`ordnet demo`: the first minutes with the package, in one page."""

import time
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write into.")] = Path("runs/demo"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value of the training.")] = None,
) -> None:
    """Parse and explain a photo, train on generated scenes, compare by range: one report.html with all of it.

    Takes three to five minutes on two cores and needs no network. A second call uses what the first has trained.
    """
    from ordnet.study.demo import NEXT
    from ordnet.study.demo import demo as run

    started = time.monotonic()
    path = run(out, lambda text: print(text, flush=True), set_ or [])
    print(f"\ndone in {time.monotonic() - started:.0f} s; look at {path.resolve()}")
    print("\nyour own pictures, next:\n  " + NEXT.replace("\n", "\n  "))
