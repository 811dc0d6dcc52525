"""The command line. Each command is one function that parses, calls one function of the package, and prints.

Nothing heavy is imported before a command runs: `ordnet --help` must answer at once.
"""

import os
import sys
from io import TextIOWrapper
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import ordnet
from ordnet.commands import bench, data, models
from ordnet.commands.evaluate import compare, evaluate, submit
from ordnet.commands.models import export, recipes
from ordnet.commands.predict import explain, predict, serve
from ordnet.commands.train import ablate, demo, train
from ordnet.errors import OrdnetError, reason, shown
from ordnet.files import CannotWrite, cannot_write

OUT_OF_MEMORY = ("out of memory", "allocate memory")
"""Words in torch's errors about a full GPU and a full main memory; the latter has no error class of its own."""


class Interrupted(OrdnetError):
    """Ctrl-C. A command that can be continued raises KeyboardInterrupt with words about that."""

    exit_code = 130
    """As a shell reports SIGINT."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:  # click's type, which typer keeps to itself
        """Further out typer would turn Ctrl-C into an exit without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted(str(error) or "interrupted") from None


def _say_version(asked: bool) -> None:
    if asked:
        print(ordnet.__version__)
        raise typer.Exit


app = typer.Typer(
    name="ordnet",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(demo)
app.command()(train)
app.command()(ablate)
app.command()(evaluate)
app.command()(compare)
app.command()(submit)
app.command()(predict)
app.command()(explain)
app.command()(export)
app.command()(serve)
app.command()(recipes)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Scene parsing with omni-range context, at linear cost."""


def _refuse_empty(words: list[str]) -> None:
    """What a shell makes of a variable that is not set: as a path it would be the present folder."""
    for before, word in zip(["", *words], words, strict=False):
        if not word or (word.startswith("--") and word.endswith("=")):
            where = f"after {before}" if before and not word else word or "at the beginning"
            raise OrdnetError(f"an empty word {where}: perhaps a variable of the shell that is not set")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names that are no text, a terminal without →: escaped, no trace-back
            stream.reconfigure(errors="backslashreplace")
    try:
        _refuse_empty(sys.argv[1:])
        app()
    except OrdnetError as error:
        print(f"ordnet: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (MemoryError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        if isinstance(error, RuntimeError) and not any(words in said for words in OUT_OF_MEMORY):
            raise
        print(f"ordnet: not enough memory; a smaller size, crop or batch needs less\n{said}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # `ordnet … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except CannotWrite as error:
        place = str(error.filename)
        option = next((before for before, word in pairwise(sys.argv) if word == place and before[:2] == "--"), "--out")
        print(f"ordnet: {shown(cannot_write(place, reason(error), option))}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a full disk
        known = error.filename is not None and error.strerror
        print(f"ordnet: {f'{shown(str(error.filename))}: {error.strerror}' if known else error}", file=sys.stderr)
        sys.exit(1)
