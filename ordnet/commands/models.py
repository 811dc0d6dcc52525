"""`ordnet recipes`, `ordnet models`, `ordnet export`: recipes with their costs, models with their cards, exports."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy import ndarray
    from rich.console import Console

    from ordnet.inference.onnx.runtime import Calibration
    from ordnet.model.checkpoint import Checkpoint
    from ordnet.paper import Results, Row
    from ordnet.recipes import Recipe


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
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Convolutions in 8 bits: about a third of the size, and faster; needs --calibrate."
        ),
    ] = False,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="NAME:PATH", help="With --int8: pictures like those it was trained on; `train` is read."),
    ] = None,
) -> None:
    """Write a model as ONNX, for any size of picture, once it gives what torch gives.

    Input `image`: float32 (batch, 3, height, width), RGB as in picture files, 0..255. It is normalised inside. Output
    `scores`: float32 (batch, classes, height, width); the highest is the label. Names and colours are in the metadata.

    ONNX Runtime is compared with torch on three sizes. Unless the labels of 99.99 % of the pixels are the same (99.9 %
    with --half), nothing is written. With --int8 the mIoU in 8 bits and in float is printed as well, from up to 96
    pictures of the calibration set; layers that cost more than half a point stay in float.
    """
    from ordnet.errors import OrdnetError
    from ordnet.inference.onnx import export as exporting
    from ordnet.progress import progress

    if int8 != (calibrate is not None) or (int8 and half):
        raise OrdnetError("8 bits need pictures: give both --int8 and --calibrate NAME:PATH, and no --half")
    pictures = _calibration(calibrate) if calibrate else None
    with progress() as bar:
        task = bar.add_task("", total=exporting.STEPS + (4 if int8 else 0))
        done = exporting.export(model, out, half, lambda step: bar.update(task, description=step, advance=1), pictures)
    for found in (*done.checks, *done.choices):
        print(found)
    print(f"{done.size / 1e6:.1f} MB, weights {done.weights}, opset {exporting.OPSET} → {done.path}")


def _calibration(data: str) -> "Callable[[Checkpoint], Calibration]":
    from ordnet.data.catalogue import open_dataset
    from ordnet.evaluation.confusion import Confusion
    from ordnet.evaluation.evaluate import refuse_other_classes
    from ordnet.inference.onnx.runtime import calibration

    dataset = open_dataset(data, "train")

    def miou(truths: "Sequence[ndarray]", found: "Sequence[ndarray]") -> float:
        confusion = Confusion(len(dataset.classes.names))
        for truth, labels in zip(truths, found, strict=True):
            confusion.add(truth, labels)
        return confusion.miou()

    def pictures(found: "Checkpoint") -> "Calibration":
        refuse_other_classes(found.classes, dataset.classes.names)
        return calibration(dataset, found, miou)

    return pictures


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe: its command and all its settings.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's result tables, and how to get our rows.")] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="What the paper's recipes, or one of them, cost on GPUs: an estimate.")
    ] = False,
) -> None:
    """The recipes, with command, cost and score."""
    from ordnet.errors import OrdnetError
    from ordnet.recipes import recipe_of
    from ordnet.recipes import recipes as known

    if paper and name is not None:
        raise OrdnetError(f"either one recipe ({name}) or the paper's tables (--paper), not both")
    if paper and cost:
        raise OrdnetError("either the paper's tables (--paper) or the costs of its recipes (--cost), not both")
    if paper:
        _paper()
        return
    if cost:
        chosen = [recipe_of(name)] if name else [recipe for recipe in known().values() if recipe.pictures]
        if not chosen[0].pictures:
            raise OrdnetError(f"--cost is about the paper's recipes: how many pictures {name} has depends on your data")
        _costs(chosen) if len(chosen) > 1 else _cost(chosen[0])
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
        _print_results(console, results)
        console.print(results.protocol)
        for row in results.ordnet:
            _print_commands(console, results, row)
        console.print()
    for line in _REMARKS:
        console.print(line)


def _print_results(console: "Console", results: "Results") -> None:
    from ordnet.bench.measure import print_table
    from ordnet.paper import NAMES
    from ordnet.recipes import recipes as known

    found = known()
    says_trained = any(row.trained for row in results.rows)
    keys = ("method", "backbone", *(["trained on"] if says_trained else []))
    rows = []
    for row in results.rows:
        trained = [row.trained or "–"] if says_trained else []
        ours = found[row.recipe].ours if row.recipe else ""
        rows.append([row.method, row.backbone or "–", *trained, *_figures(results, row), ours])
    headings = [*keys, *(f"{NAMES[column]} %" for column in results.columns), "ours"]
    first = results.rows.index(results.ordnet[0])
    print_table(console, results.title, headings, rows, len(keys), left=["ours"], sections=[first])


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


def _costs(chosen: "list[Recipe]") -> None:
    """What each recipe takes, counted, and the hours that an A100 or several of them would need, estimated."""
    from ordnet.bench.measure import print_table
    from ordnet.model.flops import COUNTS, GPUS, counted, estimate
    from ordnet.progress import plain_console, progress

    a100 = next(gpu for gpu in GPUS if gpu.name == "A100")
    takes, hours = [], []
    with progress() as bar:
        for recipe in bar.track(chosen, description="counting operations"):
            found, epochs = counted(recipe), recipe.settings.training.epochs
            takes.append([
                recipe.name, f"{recipe.pictures:,}", str(epochs), f"{found.operations / 1e9:,.0f}",
                f"{found.operations * recipe.pictures * epochs / 1e18:,.2f}", f"{found.kept / 1e6:,.0f}",
                f"{found.parameters / 1e6:.1f} M", f"{4 * found.parameters / 1e6:,.0f}",
            ])  # fmt: skip
            hours.append([recipe.name, *(f"{estimate(recipe, a100, count).hours:,.1f}" for count in COUNTS)])
    console = plain_console(pipe_width=130)
    columns = "recipe", "pictures", "epochs", "GFLOP/picture", "10¹⁸ in all", "kept MB/picture", "parameters"
    print_table(console, "counted", [*columns, "gradients MB"], takes)
    console.print("Operations of forward and backward; kept is what stays in memory between the two, in 32 bits.\n")
    counts = [_count(count, 16) for count in COUNTS]
    print_table(console, "hours on A100s, an estimate", ["recipe", *counts], hours)
    _print_assumptions(console)
    console.print("One recipe on all kinds of GPUs: ordnet recipes NAME --cost")


def _cost(recipe: "Recipe") -> None:
    """One recipe on every kind of GPU and every number of them: step by step, and where it waits."""
    from ordnet.bench.measure import print_table
    from ordnet.model.flops import COUNTS, GPUS, PICTURE, counted, estimate
    from ordnet.progress import plain_console

    found, batch = counted(recipe), recipe.settings.training.batch_size
    console = plain_console(pipe_width=130)
    console.print(
        f"{recipe.name}: {recipe.pictures:,} pictures, {recipe.settings.training.epochs} epochs; counted: "
        f"{found.operations / 1e9:,.0f} GFLOP a picture, {found.kept / 1e6:,.0f} MB kept, "
        f"{found.parameters / 1e6:.1f} M parameters, {found.norms} norms",
        soft_wrap=True,
    )
    title = "estimated; network, loader, wire and step in milliseconds"
    columns = ("GPUs", "network", "loader", "wire", "step", "pictures/s", "read MB/s", "sent GB/s", "GB each", "hours",
               "x100", "waits for")  # fmt: skip
    rows = []
    for gpu in GPUS:
        for count in COUNTS:
            at = estimate(recipe, gpu, count)
            room = " " if at.memory < 0.9 * gpu.memory else "!"
            times = (f"{1000 * seconds:,.1f}" for seconds in (at.network, at.loader, at.wire, at.step))
            rows.append([
                f"{gpu.name} x {_count(count, batch)}", *times, f"{at.pictures:,.0f}",
                f"{at.pictures * PICTURE / 1e6:,.0f}", f"{at.traffic / 1e9:,.1f}", f"{at.memory / 1e9:.1f}{room}",
                f"{at.hours:,.1f}", f"{estimate(recipe, gpu, count, data=100).hours:,.0f}", at.bottleneck,
            ])  # fmt: skip
    print_table(console, title, columns, rows, sections=range(0, len(rows), len(COUNTS)))
    _print_assumptions(console)
    console.print("x100: hours with a hundred times the pictures, for as many epochs.")
    console.print("! more memory than there is: training.micro_batch goes through the same batch in parts.")


def _count(count: int, batch: int) -> str:
    return f"{count} *" if count > batch else str(count)


def _print_assumptions(console: "Console") -> None:
    from ordnet.model import flops

    for line in (
        "* a batch of as many pictures as GPUs, more than the paper's: another recipe, with a rate of its own.",
        f"An estimate, never measured: 16-bit numbers at {flops.SHARE:.0%} of the peak that the GPU's maker states; "
        f"{flops.CORES} CPU cores a GPU that read {flops.LOADED} pictures a second each; {flops.PICTURE / 1e6:g} MB a "
        f"picture; {flops.HOST} GPUs a host, {flops.ETHERNET * 8 / 1e9:.0f} Gbit/s between hosts; gradients in a ring "
        "while the network computes; evaluations not counted. Times go with one over the share: measure a few steps.",
    ):
        console.print(line, soft_wrap=True)
