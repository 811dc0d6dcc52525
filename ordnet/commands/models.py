"""`ordnet models` and `ordnet export`: what is known of each model, and handing one's own on."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _Models(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # click's types, which typer keeps to itself
        """`models outdoor` is `models show outdoor`."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


app = typer.Typer(
    cls=_Models,
    help="The models that come with the package; `ordnet models NAME` says all about one.",
    rich_markup_mode=None,
    subcommand_metavar="[NAME | COMMAND]",
)


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from ordnet.model.card import read_card, shipped_models

        for name, path in shipped_models().items():
            card = read_card(path, name)
            print(f"{name}: {card.what}")
            print(f"    {card.network}, {len(card.classes)} classes, {card.size / 1e6:.1f} MB")
            print(f"    {card.scores or 'never measured'}")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A shipped name, a checkpoint (.safetensors), or hf:user/name[/file].")],
) -> None:
    """A model's card: what it is, its scores, its data, its limits."""
    from rich.console import Console
    from rich.markdown import Markdown

    from ordnet.model.card import find, read_card

    Console().print(Markdown(read_card(find(model)).markdown()))


@app.command()
def push(
    model: Annotated[str, typer.Argument(help="A checkpoint (.safetensors) or the name of a shipped model.")],
    repo: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository on the Hugging Face hub.")],
    private: Annotated[bool, typer.Option("--private", help="Only for you to see, if it is new.")] = False,
    licence: Annotated[str | None, typer.Option(help="As the hub names it: apache-2.0, cc-by-4.0 …")] = None,
    dry_run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write what would be uploaded into this folder instead.")
    ] = None,
) -> None:
    """Put a model on the Hugging Face hub, with a card; ordnet.load("hf:USER/NAME") takes it from there.

    A text that lies beside the checkpoint (mine.md beside mine.safetensors) becomes part of the card. With ORDNET_HUB
    naming a folder, that folder stands for the hub, here and wherever hf: is read: an offline mirror.
    """
    from tempfile import TemporaryDirectory

    from ordnet.model import hub
    from ordnet.model.card import find, write_for_hub

    path = find(model)
    hub.check(repo)
    if dry_run:
        write_for_hub(path, dry_run, repo, licence)
        print(f"nothing was uploaded; what would be is in {dry_run}")
        return
    with TemporaryDirectory() as folder:
        write_for_hub(path, Path(folder), repo, licence)
        print(f"pushed to {hub.push(Path(folder), repo, private)}; ordnet.load('hf:{repo}') takes it from there")


def export(
    model: Annotated[str, typer.Argument(help="A checkpoint (.safetensors), a shipped model's name, or hf:user/name.")],
    out: Annotated[Path, typer.Option(metavar="FILE.onnx", help="The file to write.")],
    half: Annotated[
        bool, typer.Option("--half", help="Store the weights in 16 bits: half the size, the same speed.")
    ] = False,
) -> None:
    """Write a model as ONNX, for any size of picture, once it gives what torch gives.

    Input `image`: float32 (batch, 3, height, width), RGB as in picture files, 0..255. It is normalised inside. Output
    `scores`: float32 (batch, classes, height, width); the highest is the label. Names and colours are in the metadata.

    ONNX Runtime is compared with torch on three sizes. Unless the labels of 99.99 % of the pixels are the same (99.9 %
    with --half), nothing is written.
    """
    from ordnet.inference.onnx import export as exporting
    from ordnet.progress import progress

    with progress() as bar:
        task = bar.add_task("", total=exporting.STEPS)
        done = exporting.export(model, out, half, lambda step: bar.update(task, description=step, advance=1))
    for found in done.checks:
        print(found)
    print(f"{done.size / 1e6:.1f} MB, weights {exporting.weights(half)}, opset {exporting.OPSET} → {done.path}")
