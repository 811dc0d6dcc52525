"""`ordnet export`: a model as an ONNX file."""

from pathlib import Path
from typing import Annotated

import typer


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
