"""`ordnet compare`: models side by side on the same pictures, as one figure."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordnet.errors import OrdnetError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ordnet.evaluation.comparison import Comparison

_ENDINGS = (".png", ".jpg", ".jpeg")
_USUAL = 6


class Pick(str, Enum):
    even = "even"
    worst = "worst"
    difference = "difference"


def compare(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Checkpoints (.safetensors) or names of shipped models.")
    ],
    data: Annotated[str, typer.Option(metavar="NAME[:PATH]", help="The data set.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture to write, .png or .jpg.")],
    n: Annotated[int | None, typer.Option("--n", min=1, max=100, help="Rows; 6, or all there are, without it.")] = None,
    split: Annotated[str, typer.Option(help="The split to choose pictures from.")] = "val",
    pick: Annotated[
        Pick | None,
        typer.Option(
            help="even (without it): evenly spread over the split. worst: where the models' mean pixel accuracy is "
            "lowest. difference: where their pixel accuracies differ most. The last two parse the whole split first, "
            "or 500 evenly spread pictures of a larger one."
        ),
    ] = None,
    ids: Annotated[str | None, typer.Option(metavar="A,B,C", help="These pictures, in this order.")] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Also draw Attn_g of the first model that has a gate, as a heat map.")
    ] = False,
    strength: Annotated[float, typer.Option(min=0, max=1, help="How much the colours cover of the picture.")] = 0.6,
) -> None:
    """Draw pictures, their truth and each model's result side by side.

    A row per picture, with its pixel accuracy under every model; a legend of the classes that occur. The same command
    picks the same pictures everywhere.
    """
    _check(out, n, pick, ids)
    from ordnet.data.catalogue import short_name
    from ordnet.evaluation.comparison import Comparison, draw
    from ordnet.files import write_atomically
    from ordnet.progress import progress

    comparison = Comparison(models, data, split)
    if gate:
        comparison.gated()  # refuse before the work begins
    with progress() as bar:
        chosen, how = _choose(comparison, n, pick or Pick.even, ids, bar)
        note = f"{short_name(data)} {split}: {how}. Below the results: pixel accuracy."
        figure = draw(comparison, chosen, strength, gate, note, _reporter(bar, "drawing"))
    try:
        write_atomically(out, figure.save)
    except OSError as error:
        raise OrdnetError(f"cannot write {out}: {error.strerror or error}") from None
    typer.echo(f"wrote {out}: {how}")


def _check(out: Path, n: int | None, pick: Pick | None, ids: str | None) -> None:
    if out.suffix.lower() not in _ENDINGS:
        raise OrdnetError(f"--out {out}: expected a file that ends in {', '.join(_ENDINGS)}")
    if out.is_dir():
        raise OrdnetError(f"--out {out} is a folder: name a file")
    if ids is not None and (n is not None or pick is not None):
        raise OrdnetError("--ids says which pictures: leave out --n and --pick, or --ids")


def _choose(
    comparison: "Comparison", n: int | None, pick: Pick, ids: str | None, bar: "Progress"
) -> tuple[list[int], str]:
    """The pictures' places, and in words which they are."""
    from ordnet.evaluation.comparison import MOST_RANKED

    total = len(comparison.dataset.ids)
    if ids is not None:
        wanted = [key.strip() for key in ids.split(",") if key.strip()]
        if not wanted:
            raise OrdnetError("--ids names no picture: expected ids with commas between them")
        chosen = comparison.find(wanted)
        return chosen, f"{len(chosen)} of {total:,} pictures, as asked for"
    if n is not None and n > total:
        raise OrdnetError(f"--n {n}: the {comparison.dataset.split} split has only {total:,} pictures")
    chosen = comparison.pick(pick.value, n or _USUAL, _reporter(bar, "ranking"))
    if not chosen:
        raise OrdnetError("no pixel of any picture counts: there is nothing to rank")
    among = f"{MOST_RANKED} evenly spread of {total:,} pictures" if total > MOST_RANKED else f"{total:,} pictures"
    words = {
        Pick.even: f"{len(chosen)} of {total:,} pictures, evenly spread",
        Pick.worst: f"the {len(chosen)} worst of {among}",
        Pick.difference: f"the {len(chosen)} of {among} on which the models differ most",
    }
    return chosen, words[pick]


def _reporter(bar: "Progress", what: str) -> Callable[[int, int], object]:
    task = bar.add_task(what, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
