"""`ordnet explain`: what positions of a picture attend to, as a figure and as numbers."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordnet.errors import OrdnetError

if TYPE_CHECKING:
    from ordnet.inference.explain import Attention

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp")


def explain(
    model: Annotated[str, typer.Argument(help="A checkpoint (.safetensors) or the name of a shipped model.")],
    image: Annotated[Path, typer.Argument(help="The picture.")],
    out: Annotated[Path, typer.Option(metavar="FILE.png", help="The figure to write.")],
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="X,Y", help="A pixel, counted from the upper left corner; may be repeated."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="The numbers; beside the figure without it.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps …; the fastest there is without it.")] = None,
) -> None:
    """Show what a position attends to.

    One row for each --at: the picture with the position marked, its attention over the whole map (long range) and
    within its patch (middle range), the gate of the long range, and the parse.

    Attention without a softmax has a sign: red positions are added to this one, blue ones subtracted from it.
    """
    places = [_place(word) for word in at or ()]
    if not places:
        raise OrdnetError("no position to explain: give one or more, such as --at 120,80 (pixels from the upper left)")
    numbers = json or out.with_suffix(".json")
    _check(out, numbers)
    import json as json_format

    from ordnet.files import write_atomically, write_text
    from ordnet.picture.attention_map import attention_figure

    found = _attentions(model, image, places, device)
    write_atomically(out, attention_figure([attention.row() for attention in found]).save)
    known = [attention.figures() for attention in found]
    record = {"model": model, "picture": str(image), "at": known}
    write_text(numbers, json_format.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for figures in known:
        print(_line(figures))
    print(f"wrote {out} and {numbers}")


def _place(word: str) -> tuple[int, int]:
    parts = re.fullmatch(r"\s*([+-]?\d{1,9})\s*,\s*([+-]?\d{1,9})\s*", word, re.ASCII)
    if parts is None:
        raise OrdnetError(f"--at {word}: expected X,Y in whole pixels from the upper left, such as --at 120,80")
    return int(parts[1]), int(parts[2])


def _check(out: Path, numbers: Path) -> None:
    """Refuse wrong file names before the network runs."""
    if out.suffix.lower() not in _ENDINGS:
        raise OrdnetError(f"--out {out}: expected a file that ends in {', '.join(_ENDINGS)}")
    for path in (out, numbers):
        if path.is_dir():
            raise OrdnetError(f"{path} is a folder: name a file")
    if out == numbers:
        raise OrdnetError(f"--out and --json are both {out}: name two files")


def _attentions(model: str, image: Path, places: list[tuple[int, int]], device: str | None) -> "list[Attention]":
    from ordnet.inference.explain import check_inside
    from ordnet.inference.parser import load, read
    from ordnet.progress import progress

    pixels = read(image)
    for x, y in places:
        check_inside(x, y, pixels.shape[1], pixels.shape[0])
    with progress() as bar:
        steps = bar.add_task("parsing", total=1 + len(places))
        parse = load(model, device=device)(pixels)
        bar.update(steps, advance=1, description="attention")
        found = []
        for x, y in places:
            found.append(parse.attention(x, y))
            bar.advance(steps)
    return found


def _line(known: dict[str, Any]) -> str:
    """One position in words."""
    parts = [f"{known['x']},{known['y']} {known['class']}"]
    for name in ("long", "middle"):
        if known[name]:
            weight, (x, y) = known[name]["weight"], known[name]["strongest"]
            shown = f"{weight:+.2g}" if known["similarity"] == "dot" else f"{weight:.2g}"
            parts.append(f"{name} range strongest at {x},{y} ({shown})")
    if known["gate"]:
        gate = known["gate"]
        closed = ", closed: nothing of the long range passes" if gate["closed"] else ""
        parts.append(f"gate {gate['here']:.2g} (mean {gate['mean']:.2g}, spread {gate['spread']:.2g}){closed}")
    return "; ".join(parts)
