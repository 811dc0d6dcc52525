"""`ordnet bench`: contestants side by side in one run."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Time, memory and operations, side by side in one run.", no_args_is_help=True)

Json = Annotated[Path | None, typer.Option("--json", help="Write the rows to this file as JSON.")]
Out = Annotated[Path | None, typer.Option(help="Draw a chart into this PNG file.")]
Repeats = Annotated[int, typer.Option(min=1, help="Timed turns; the median counts.")]
Train = Annotated[bool, typer.Option("--train", help="Forward and backward instead of inference.")]


@app.command()
def block(
    size: Annotated[str, typer.Option(help="The feature map, as CHANNELSxHEIGHTxWIDTH.")] = "2048x128x128",
    repeats: Repeats = 5,
    train: Train = False,
    json: Json = None,
    out: Out = None,
) -> None:
    """Our block beside the methods of the paper's compute table."""
    from ordnet.bench.block import compare
    from ordnet.bench.measure import show

    channels, height, width = _size(size)
    rows = compare(channels, height, width, repeats, train)
    title = f"{'Forward + backward' if train else 'Inference'} on features of {size}"
    show(title, rows, json)
    if out:
        from ordnet.picture.charts import bars

        measures = {
            "seconds": [row.seconds for row in rows],
            "GFLOPs": [row.gflops for row in rows],
            "peak MB above the input": [row.peak_mb for row in rows],
        }
        bars(out, title, [row.name for row in rows], measures)


@app.command()
def scale(
    channels: Annotated[int, typer.Option(min=8, help="Channels of the features.")] = 2048,
    sides: Annotated[str, typer.Option(help="Sides of the square maps.")] = "32,64,128,256",
    repeats: Repeats = 3,
    train: Train = False,
    json: Json = None,
    out: Out = None,
) -> None:
    """How time grows with the map: factored and literal form, with the fitted exponent."""
    from ordnet.bench import block as bench
    from ordnet.bench.measure import show
    from ordnet.errors import OrdnetError

    try:
        parsed = [int(side) for side in sides.split(",")]
    except ValueError:
        raise OrdnetError(f"--sides {sides}: expected numbers with commas between them, such as 32,64,128") from None
    rows = bench.compare_sizes(channels, parsed, repeats, train)
    fitted = bench.exponents(rows)
    title = f"{'Forward + backward' if train else 'Inference'}, {channels} channels"
    show(title, rows, json)
    for form, exponent in fitted.items():
        print(f"{form}: time grows as positions^{exponent:.2f}")
    if out:
        from ordnet.picture.charts import growth

        lines = {
            form: [(row.extra["positions"], row.seconds) for row in rows if row.extra["form"] == form and row.seconds]
            for form in bench.FORMS
        }
        growth(out, title, lines, fitted)


@app.command()
def loss(
    size: Annotated[str, typer.Option(help="The scores, as BATCHxCLASSESxSIDE.")] = "2x150x240",
    repeats: Repeats = 5,
    json: Json = None,
) -> None:
    """The Lovász loss, forward and backward, beside the plain loop over the classes."""
    from ordnet.bench.measure import show
    from ordnet.bench.training import compare_losses

    batch, classes, side = _size(size, "BATCHxCLASSESxSIDE, such as 2x150x240")
    show(
        f"Lovász-softmax on scores of {batch}x{classes}x{side}x{side}",
        compare_losses(repeats, batch, classes, side),
        json,
    )


@app.command()
def loader(
    data: Annotated[str, typer.Option(help="The data set, as NAME:PATH.")],
    split: Annotated[str, typer.Option(help="The split to read.")] = "train",
    crop: Annotated[int, typer.Option(min=1, help="Side of the crops.")] = 224,
    repeats: Repeats = 5,
    json: Json = None,
) -> None:
    """Reading and augmenting pictures, beside scaling all of each and then cropping."""
    from ordnet.bench.measure import show
    from ordnet.bench.training import compare_loaders

    show(f"{data} {split}, crops of {crop}", compare_loaders(data, split=split, crop=crop, repeats=repeats), json)


@app.command()
def model(
    backbone: Annotated[str, typer.Option(help="One of ordnet.backbones().")] = "resnet50s",
    size: Annotated[str, typer.Option(help="The picture, as HEIGHTxWIDTH.")] = "480x480",
    onnx: Annotated[bool, typer.Option("--onnx", help="ORDNet in ONNX Runtime and in torch instead.")] = False,
    repeats: Repeats = 5,
    json: Json = None,
    out: Out = None,
) -> None:
    """Whole networks: what each kind of context costs on top of the dilated FCN."""
    from ordnet.bench.measure import show
    from ordnet.bench.networks import compare_runtimes, compare_variants

    height, width = _picture_size(size)
    rows = (compare_runtimes if onnx else compare_variants)(backbone, height, width, repeats)
    title = f"Inference with {backbone} on a picture of {height}x{width}"
    show(title, rows, json)
    if out:
        from ordnet.picture.charts import bars

        measures = {
            "seconds": [row.seconds for row in rows],
            "peak MB above the weights": [row.peak_mb for row in rows],
        }
        bars(out, title, [row.name for row in rows], measures)


@app.command()
def protocol(
    backbone: Annotated[str, typer.Option(help="One of ordnet.backbones().")] = "resnet50s",
    classes: Annotated[int, typer.Option(min=1, max=255, help="Classes of the network.")] = 59,
    size: Annotated[str, typer.Option(help="The picture, as HEIGHTxWIDTH.")] = "375x500",
    repeats: Repeats = 2,
    json: Json = None,
) -> None:
    """EncNet's multi-scale windows as we run them, beside one window at a time."""
    from ordnet.bench.measure import show
    from ordnet.bench.networks import compare_protocols

    height, width = _picture_size(size)
    rows = compare_protocols(backbone, classes, height, width, repeats)
    show(f"encnet protocol, {backbone}, {classes} classes, a picture of {height}x{width}", rows, json)


@app.command()
def predict(
    images: Annotated[list[str], typer.Argument(help="Files, folders or patterns.")],
    model: Annotated[str, typer.Option(help="A shipped model's name or a checkpoint.")] = "outdoor",
    repeats: Repeats = 2,
    json: Json = None,
) -> None:
    """Many pictures, from files to files, beside one after the other; one picture from a cold start."""
    from ordnet.bench.measure import show
    from ordnet.bench.networks import compare_predicting

    show(f"ordnet predict {model}", compare_predicting(model, images, repeats), json)


@app.command()
def memory(
    recipe: Annotated[str, typer.Option(help="Whose network and decoder.")] = "folder-default",
    backbone: Annotated[str, typer.Option(help="One of ordnet.backbones().")] = "mobilenet_v2",
    crop: Annotated[int, typer.Option(min=32, help="Side of the crops.")] = 320,
    batch: Annotated[int, typer.Option(min=2, help="Pictures in a batch.")] = 8,
    json: Json = None,
) -> None:
    """Peak memory of a training step, with the block in factored and in literal form."""
    from ordnet.bench.measure import show
    from ordnet.bench.training import step_memory

    show(f"A training step, {batch} crops of {crop}", step_memory(recipe, backbone, crop, batch), json)


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A shipped model's name or a checkpoint.")] = "outdoor",
    size: Annotated[str, typer.Option(help="The picture, as HEIGHTxWIDTH.")] = "480x480",
    clients: Annotated[int, typer.Option(min=1, help="Clients that parse at once.")] = 4,
    seconds: Annotated[float, typer.Option(min=1, help="How long they do.")] = 10,
    soak: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="Instead: honest, huge, hostile, slow and idle clients for so long."),
    ] = None,
    json: Json = None,
) -> None:
    """The server's answers: parse, attention and health, alone and under load."""
    from ordnet.bench.measure import show
    from ordnet.bench.serve import compare_requests

    if soak is not None:
        from ordnet.bench.soak import soak as soaked

        rows, found = soaked(model, soak)
        show(f"ordnet serve {model}, soaked for {soak:g} min", rows, json)
        print("\n".join(found))
        return
    height, width = _picture_size(size)
    rows = compare_requests(model, height, width, clients, seconds)
    show(f"ordnet serve {model}, pictures of {height}x{width}", rows, json)


@app.command()
def accuracy(
    data: Annotated[str, typer.Option(help="The data set, as NAME or NAME:PATH.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="CPU seconds that each network trains for.")] = 600,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each network.")] = 3,
    split: Annotated[str, typer.Option(help="Where the figures come from.")] = "val",
    contestants: Annotated[
        str | None,
        typer.Option(help="VARIANT-fine, VARIANT-plain, smp-fpn, …, commas between them; the usual ones without it."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="What all of them share.")] = "folder-default",
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value for all of them.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of cells and pictures; runs/accuracy-DATA-SPLIT without it.")
    ] = None,
    json: Json = None,
) -> None:
    """Time to accuracy: our networks beside segmentation_models_pytorch's, at equal CPU time; killed, it continues."""
    import json as json_module

    from ordnet.bench import accuracy as bench
    from ordnet.bench.measure import show
    from ordnet.data.catalogue import short_name
    from ordnet.files import write_text

    names, left_out = bench.contestants(contestants)
    out = out or Path("runs") / f"accuracy-{short_name(data)}-{split}"
    cells = bench.plan(data, names, seconds, seeds, split, recipe, set_ or [])
    # flushed: the first cell may take an hour, and whoever reads a file of this wants to know before
    found = bench.compare(cells, out, lambda words: print(words, flush=True))
    rows = bench.rows(cells, found)
    show(bench.title(cells), rows, None)
    for remark in [left_out, *bench.remarks(cells, rows)]:
        if remark:
            print(remark)
    print(f"→ {', '.join(str(path) for path in bench.draw(out, cells, found))}")
    if json:
        seeds_of = {row.name: [cell for cell in found if cell["contestant"] == row.name] for row in rows}
        plain = [{**row.plain(), "seeds": seeds_of[row.name]} for row in rows]
        write_text(json, json_module.dumps(plain, indent=1) + "\n")


def _picture_size(text: str) -> tuple[int, int]:
    from ordnet.errors import OrdnetError

    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise OrdnetError(f"--size {text}: expected HEIGHTxWIDTH, such as 480x480")
    return int(parts[0]), int(parts[1])


def _size(text: str, form: str = "CHANNELSxHEIGHTxWIDTH, such as 2048x128x128") -> tuple[int, int, int]:
    from ordnet.errors import OrdnetError

    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise OrdnetError(f"--size {text}: expected {form}")
    return int(parts[0]), int(parts[1]), int(parts[2])
