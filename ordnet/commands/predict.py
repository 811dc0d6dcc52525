"""`ordnet predict`: parse pictures and write what was found beside each other into a folder."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordnet.errors import OrdnetError

if TYPE_CHECKING:
    from rich.progress import Progress

    from ordnet.inference.prediction import Prediction


def predict(
    model: Annotated[
        str, typer.Argument(help="A checkpoint (.safetensors), an exported .onnx file, or the name of a shipped model.")
    ],
    images: Annotated[list[str], typer.Argument(help="Files, folders, or patterns such as 'photos/*.jpg'.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write into.")],
    save: Annotated[
        str,
        typer.Option(
            help="Any of overlay, labels (class ids), palette (ids with colours), beside, probabilities (of all "
            "classes at every pixel, .npz); with commas."
        ),
    ] = "overlay,labels,palette",
    strength: Annotated[float, typer.Option(min=0, max=1, help="How much the colours cover of the picture.")] = 0.5,
    protocol: Annotated[str, typer.Option(help="whole, multiscale or encnet.")] = "whole",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps …; the fastest there is without it.")] = None,
    whole_up_to: Annotated[
        float, typer.Option(min=0, metavar="MEGAPIXELS", help="Larger pictures are streamed through the network.")
    ] = 4,
    long_side: Annotated[
        str | None,
        typer.Option(
            metavar="PIXELS|own",
            help="How large the network sees larger pictures; own leaves every picture at its own size. Without it the "
            "size that the model was trained for.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also what has been done already.")] = False,
) -> None:
    """Parse pictures of any size.

    For photo.jpg there will be photo.overlay.png, photo.labels.png and so on, and photo.json with the share of every
    class. What an earlier call has done with the same model and settings is not done again.

    Pictures that cannot be read are named at the end, with exit code 1. With torchrun the processes share the pictures.
    """
    from ordnet.inference.prediction import Prediction
    from ordnet.model.pixels import parse_long_side
    from ordnet.progress import progress

    job = Prediction(
        model, images, out, tuple(word.strip() for word in save.split(",") if word.strip()),
        strength=strength, protocol=protocol, device=_own_device(device), whole_up_to=round(whole_up_to * 1e6),
        long_side=parse_long_side(long_side),
        rank=int(os.environ.get("RANK", "0")), world=int(os.environ.get("WORLD_SIZE", "1")),
    )  # fmt: skip
    with progress() as bar:
        done, skipped, failed = _run(job, bar, force)
    print(f"{done:,} parsed, {skipped:,} were done already → {out}")
    if failed:
        print(f"{len(failed):,} of {len(job.pictures):,} pictures failed:", file=sys.stderr)
        for message in failed:
            print(f"  {message}", file=sys.stderr)
        raise typer.Exit(1)


def _own_device(device: str | None) -> str | None:
    """The GPU of this process, where several run on one machine."""
    import torch

    if device in (None, "cuda") and "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return device


def _run(job: "Prediction", bar: "Progress", force: bool) -> tuple[int, int, list[str]]:
    done = skipped = 0
    failed: list[str] = []
    pictures = bar.add_task("pictures", total=len(job.pictures))
    tiles = bar.add_task("tiles", visible=False)
    for picture in job.pictures:
        bar.update(pictures, description=picture.path.name)
        try:
            if not force and job.is_done(picture):
                skipped += 1
            else:
                job.run(picture, lambda now, total: bar.update(tiles, completed=now, total=total, visible=now < total))
                done += 1
        except (OrdnetError, OSError) as error:
            message = str(error)
            failed.append(message if str(picture.path) in message else f"{picture.path}: {message}")
        bar.advance(pictures)
    return done, skipped, failed
