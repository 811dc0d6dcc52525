"""`ordnet predict`, `ordnet explain`, `ordnet serve`: label maps of pictures, what a position of one attends to, and a
page and an API around models."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordnet.errors import OrdnetError, reason, shown
from ordnet.files import cannot_write, check_file

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from ordnet.data.pictures import Listed
    from ordnet.inference.explain import Attention
    from ordnet.inference.prediction import Prediction, VideoPrediction

_SAVED = "overlay,labels,palette"
_AGAIN = ("the same command", "the same command without --force")
LongSide = Annotated[
    str | None,
    typer.Option(
        metavar="PIXELS|own",
        help="How large the network sees larger pictures; own leaves every picture at its own size. Without it the "
        "size that the model was trained for.",
    ),
]


def predict(
    model: Annotated[
        str, typer.Argument(help="A checkpoint (.safetensors), an exported .onnx file, or the name of a shipped model.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, or patterns such as 'photos/*.jpg'; maps such as ortho.tif; videos such as clip.mp4."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write into.")],
    save: Annotated[
        str | None,
        typer.Option(
            help="Any of overlay, labels (class ids), palette (ids with colours), which are written without it; "
            "beside, probabilities (of all classes, .npz), coco (COCO JSON), polygons (GeoJSON); with commas."
        ),
    ] = None,
    strength: Annotated[float, typer.Option(min=0, max=1, help="How much the colours cover of the picture.")] = 0.5,
    protocol: Annotated[str, typer.Option(help="whole, multiscale or encnet.")] = "whole",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps …; the fastest there is without it.")] = None,
    whole_up_to: Annotated[
        float, typer.Option(min=0, metavar="MEGAPIXELS", help="Larger pictures are streamed through the network.")
    ] = 4,
    long_side: LongSide = None,
    bands: Annotated[
        str | None,
        typer.Option(metavar="R,G,B", help="Maps: the bands to see, counted from 1; a single one is grey."),
    ] = None,
    stretch: Annotated[
        bool,
        typer.Option(
            "--stretch", help="More than 8 bits: the darkest half per cent becomes black, the lightest white."
        ),
    ] = False,
    smooth: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="Videos: the share that earlier frames keep; 0.5 to 0.8 calm flicker."),
    ] = 0.0,
    label_frames: Annotated[
        bool, typer.Option("--label-frames", help="Videos: every frame's class ids as a PNG file too.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what has been done already, and what others left in the way.")
    ] = False,
) -> None:
    """Parse pictures of any size, and videos.

    For photo.jpg there will be photo.overlay.png, photo.labels.png and so on, and photo.json with the share of every
    class. What an earlier call has done with the same model and settings is not done again. With --save coco there
    will also be one coco.json for all pictures.

    For clip.mp4 there will be clip.overlay.mp4 at the same rate and size, clip.areas.csv with the share of every class
    in each frame, and clip.json (extra `video`). A camera (/dev/video0) or a stream (rtsp://…) ends with Ctrl-C.

    Maps and pictures too large for memory are read in windows (extra `geo`). For ortho.tif there will be
    ortho.labels.tif with the same georeference, ortho.overlay.png as a smaller copy to look at, and on request
    ortho.polygons.geojson. Georeferenced maps are seen at their own size unless --long-side says otherwise.

    Pictures that cannot be read are named at the end, with exit code 1. With torchrun the processes share the pictures.
    """
    from ordnet.data.pictures import ENDINGS
    from ordnet.inference.prediction import Prediction, VideoPrediction
    from ordnet.inference.video import is_video
    from ordnet.model.pixels import parse_long_side
    from ordnet.progress import progress

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    options: dict[str, Any] = {
        "strength": strength, "protocol": protocol, "device": _own_device(device),
        "whole_up_to": round(whole_up_to * 1e6), "long_side": parse_long_side(long_side), "rank": rank, "world": world,
    }  # fmt: skip
    if Path(model).suffix.lower() in ENDINGS:
        raise OrdnetError(f"{model} is a picture: the model comes first, then the pictures")
    videos, pictures = ([word for word in images if is_video(word) == wanted] for wanted in (True, False))
    if save is not None and not pictures:
        raise OrdnetError("--save is for pictures; of videos --label-frames saves the labels of every frame")
    failures: dict[str, list[str]] = {}
    with progress() as bar:
        if pictures:
            saved = tuple(word.strip() for word in (_SAVED if save is None else save).split(",") if word.strip())
            job = Prediction(model, pictures, out, saved, bands=_numbers(bands), stretch=stretch, tell=print, **options)
            done, skipped, failed = _run(job, bar, force)
            if rank == 0:
                print(*job.remarks, sep="\n", end="\n" if job.remarks else "", file=sys.stderr)
            failures[f"{len(failed):,} of {len(job.pictures):,} pictures failed"] = failed
            other = "".join(f", {count:,} in place of results of {shown(name)}" for name, count in job.replaced.items())
            print(f"{done:,} parsed{other}, {skipped:,} were done already" + (f" → {out}" if done or skipped else ""))
            if "coco" in saved and world == 1:
                print(f"pictures in {out / 'coco.json'}: {job.merge_coco():,}")
        if videos:
            filming = VideoPrediction(model, videos, out, label_frames=label_frames, smoothing=smooth, **options)
            failures["videos or frames of them failed"] = _film(filming, bar, force)
    for what, messages in failures.items():
        if messages:
            print(f"{what}:", *messages, sep="\n  ", file=sys.stderr)
    if any(failures.values()):
        raise typer.Exit(1)


def _film(job: "VideoPrediction", bar: "Progress", force: bool) -> list[str]:
    failed = []
    for done, video in enumerate(job.videos):
        task = bar.add_task(shown(video), total=None)

        def tell(frames: int, total: int | None, rate: float, task: "TaskID" = task, video: str = video) -> None:
            bar.update(task, completed=frames, total=total, description=f"{shown(video)}, {rate:.1f} frames/s")

        try:
            if not force and job.is_done(video):
                print(f"{shown(video)} was done already → {job.out}")
            else:
                record = job.run(video, tell)
                said = f"{record['frames']:,} frames, {record['frames_per_second']:.1f} a second"
                print(f"{shown(video)}: {said} → {job.out}")
                failed += [f"{shown(video)}: {broken}; left out" for broken in record["broken"]]
        except (OrdnetError, OSError) as error:  # an OSError may name marks and unfinished files, which nobody knows
            said = str(error) if isinstance(error, OrdnetError) else shown(cannot_write(job.out, reason(error)))
            failed.append(said if shown(video) in said else f"{shown(video)}: {said}")
        except KeyboardInterrupt:
            after = f"interrupted after {done:,} of {len(job.videos):,} videos"
            raise KeyboardInterrupt(f"{after}; {_AGAIN[force]} continues, {shown(video)} begins anew") from None
        bar.remove_task(task)
    return failed


def _numbers(bands: str | None) -> list[int] | None:
    words = [word.strip() for word in bands.split(",")] if bands is not None else []
    if not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        raise OrdnetError(f"--bands {bands}: expected numbers with commas, such as 4,3,2")
    return [int(word) for word in words] or None


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
    tiles = bar.add_task("tiles", visible=False)  # pictures that are streamed go one at a time

    def tell(picture: "Listed", now: int, total: int) -> None:
        bar.update(tiles, description=shown(picture.path.name), completed=now, total=total, visible=now < total)

    try:
        for outcome in job.run(force, tell):
            bar.update(pictures, description=shown(outcome.picture.path.name), advance=1)
            if outcome.failure:
                failed.append(outcome.failure)
            skipped += outcome.skipped
            done += not outcome.skipped and not outcome.failure
    except KeyboardInterrupt:
        after = f"interrupted after {done + skipped + len(failed):,} of {len(job.pictures):,} pictures"
        raise KeyboardInterrupt(f"{after}; {_AGAIN[force]} continues") from None
    return done, skipped, failed


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
    _check(image, out, numbers)
    if json is None and numbers.exists() and not _is_explanation(numbers):
        raise OrdnetError(f"{numbers} is in the way: no earlier call wrote it; name another file with --json")
    import json as json_format

    from ordnet.files import write_atomically, write_text
    from ordnet.picture.attention_map import attention_figure

    found = _attentions(model, image, places, device)
    write_atomically(out, attention_figure([attention.row() for attention in found]).save)
    record = {"model": model, "picture": str(image), "at": (known := [attention.figures() for attention in found])}
    write_text(numbers, json_format.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(*map(_line, known), sep="\n")
    print(f"wrote {out} and {numbers}")


def _place(word: str) -> tuple[int, int]:
    parts = re.fullmatch(r"\s*([+-]?\d{1,9})\s*,\s*([+-]?\d{1,9})\s*", word, re.ASCII)
    if parts is None:
        raise OrdnetError(f"--at {word}: expected X,Y in whole pixels from the upper left, such as --at 120,80")
    return int(parts[1]), int(parts[2])


def _is_explanation(file: Path) -> bool:
    """Whether an earlier call wrote it."""
    from ordnet.data.reading import load_json

    with suppress(OrdnetError):
        return isinstance(record := load_json(file), dict) and {"model", "picture", "at"} <= record.keys()
    return False


def _check(image: Path, out: Path, numbers: Path) -> None:
    """Refuse wrong file names before the network runs."""
    for option, path, endings in (("--out", out, _ENDINGS), ("--json", numbers, None)):
        check_file(path, endings, option)
        if path.exists() and image.exists() and path.samefile(image):
            raise OrdnetError(f"{path} is the picture itself, which would be lost: name another file")
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


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Shipped models' names, .safetensors or .onnx files, between which the page can switch; all shipped "
            "models without any.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    max_megabytes: Annotated[float, typer.Option(min=0.001, help="The largest file that is taken.")] = 20,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="The largest picture that is taken.")] = 25,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait while others are computed.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Until a request is given up.")] = 120,
    keep: Annotated[
        float, typer.Option(min=0, metavar="MEGABYTES", help="How much of the last parses is kept, for clicks.")
    ] = 200,
    connections: Annotated[int, typer.Option(min=8, help="Connections at once; half of them from one address.")] = 128,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also answer to this name, as a proxy passes it on; '*' answers to any."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="ORDNET_TOKEN", help="Ask for this as a bearer token under /v1/.")
    ] = None,
) -> None:
    """Open a page to try a model on, and an API for programs (docs/serving.md).

    Everything that comes in is bounded, computed a few at a time, and kept in memory only.
    """
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise OrdnetError(f"serving needs {error.name}: pip install 'ordnet[serve]'") from None
    if token is not None and not token.strip():
        raise OrdnetError("the token is empty: give one, or leave --token and ORDNET_TOKEN away")
    from ordnet.model.card import shipped_models
    from ordnet.serve.guard import Limits
    from ordnet.serve.run import bound, run

    limits = Limits(
        bytes=round(max_megabytes * 1e6), pixels=round(max_megapixels * 1e6), queue=queue, seconds=timeout,
        keep=round(keep * 1e6), connections=connections, per_address=max(4, connections // 2),
    )  # fmt: skip
    with bound(host, port) as listener:
        run(models or list(shipped_models()), listener, limits, token, allowed_host or [])
