"""The first minutes with the package: a photo parsed and explained, a training on generated scenes, one page.

Everything is written to one folder, and what an earlier demo trained there is not trained again.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from ordnet.config import Settings, override
from ordnet.data.catalogue import open_dataset
from ordnet.data.pictures import CREDIT, sample_picture
from ordnet.errors import OrdnetError
from ordnet.evaluation.comparison import Comparison, draw
from ordnet.files import write_atomically, write_text
from ordnet.inference.parser import load
from ordnet.picture import page
from ordnet.picture.charts import ablation_chart
from ordnet.recipes import settings_of
from ordnet.study.ablation import Job, PlannedRow, train_jobs

MODEL = "outdoor"
AT = (0.235, 0.4)
"""The position that is explained, as shares of width and height: a wall of the tower."""
NETWORKS = (
    PlannedRow("dilated-fcn", "Dilated FCN (no context)", "dilated-fcn", {"variant": "dilated-fcn"}),
    PlannedRow("ordnet", "ORDNet", "ordnet", {"variant": "ordnet"}),
)
RANGES = {
    "short": "told by the spot itself: sky, buildings, trees, grounds",
    "middle": "a vehicle is boat, car or tractor, which only the ground around it tells, beyond a neutral ring",
    "long": "pale ground is sand or snow, which only a palm or a pine on the far side tells",
}
"""The context that tells the generated scenes' classes apart, by its range."""


def demo(out: Path, say: Callable[[str], None], changes: Sequence[str] = ()) -> Path:
    """Run all of it, saying what comes next; returns the page's path. `changes` are settings of the training."""
    settings = override(settings_of("scenes-tiny"), list(changes))
    if out.exists() and not out.is_dir():
        raise OrdnetError(f"--out {out} is a file; give a folder")
    say(f"1 of 4 · parsing a photo with {MODEL}, the model that comes along")
    photo = _photo(out)
    say("2 of 4 · training on generated scenes: ORDNet beside a network without context (about two minutes)")
    jobs = _train(out, settings)
    say("3 of 4 · comparing them on scenes that neither has seen")
    compared = _compare(out, jobs)
    say("4 of 4 · writing the page")
    path = out / "report.html"
    write_text(path, page.page("ordnet · demo", [photo, *compared, _next(out)], _LEAD))
    return path


_LEAD = (
    "Scene parsing gives every pixel of a picture a class. Often the spot itself does not tell it: context does, from "
    "near and from far. ORDNet collects it with attention inside patches (middle range) and over the whole picture "
    "(long range)."
)


def _photo(out: Path) -> page.Section:
    parse = load(MODEL)(sample_picture())
    parse.save(out / "photo")
    height, width = parse.labels.shape
    attention = parse.attention(round(AT[0] * width), round(AT[1] * height))
    drawn = attention.draw()
    _save(drawn, out / "photo" / "attention.png")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in parse.areas().items() if share >= 0.005)
    return page.section(
        "A photo, parsed and explained",
        page.grid(
            page.figure(parse.image, f"The picture. {CREDIT}."),
            page.figure(parse.overlay(), f"Parsed by {MODEL}: {shares}."),
        ),
        page.figure(
            drawn,
            "What the marked pixel attends to: over the whole picture, and inside its patch; the gate says how much of "
            "the long range each position takes in.",
            wide=True,
            narrow=attention.draw(across=2),
        ),
        page.folded("The commands", _PHOTO_COMMANDS.format(x=attention.x, y=attention.y)),
    )


_PHOTO_COMMANDS = """ordnet predict outdoor photo.jpg --out parsed
ordnet explain outdoor photo.jpg --at {x},{y} --out attention.png
ordnet serve outdoor            the same in a browser, live"""


def _train(out: Path, base: Settings) -> list[Job]:
    jobs = [Job(row.label, row.settings(base, 0), out / "runs" / row.run) for row in NETWORKS]
    train_jobs(jobs, at_once=2)
    return jobs


def _compare(out: Path, jobs: list[Job]) -> list[page.Section]:
    figures = [job.figures("test") for job in jobs]
    ranges = {name: [found["miou_by_range"][name] for found in figures] for name in RANGES}
    chart = out / "ranges.png"
    ablation_chart(
        chart, "Generated scenes, test split: mIoU by the range of context a class needs", [job.name for job in jobs],
        {f"{name} range": [[value] for value in values] for name, values in ranges.items()},
    )  # fmt: skip
    write_text(out / "ranges.json", json.dumps({job.name: f for job, f in zip(jobs, figures, strict=True)}, indent=1))
    comparison = Comparison([str(job.folder / "last.safetensors") for job in jobs], "scenes", "test")
    scenes = draw(comparison, comparison.pick("even", 4), note="Generated scenes, test split; below: pixel accuracy.")
    _save(scenes, out / "scenes.png")
    rows = [
        [name, RANGES[name], *(f"{value:.3f}" for value in values)] for name, values in ranges.items()
    ]  # fmt: skip
    seen = len(open_dataset("scenes", "test").ids)
    return [
        page.section(
            "What context is for",
            page.paragraph(
                f"Two small networks, trained here with the same settings, scored on {seen} scenes neither has seen "
                "(protocol whole). They see 31 px; the block is all that differs."
            ),
            page.table(rows, ["range", "what tells the class", *(job.name for job in jobs)]),
            page.figure(chart, "mIoU by range", chart=True),
        ),
        page.section("The same scenes, side by side", page.figure(scenes, "Truth and results.", wide=True)),
    ]


def _next(out: Path) -> page.Section:
    return page.section(
        "Your own pictures",
        page.paragraph("Pictures in street/images, label PNGs in street/labels, class names in street/classes.txt:"),
        page.folded("Three commands", NEXT),
        page.paragraph(f"Everything this page shows lies in {out.resolve()}."),
    )


NEXT = """ordnet data check folder:street
ordnet train folder-default --data folder:street
ordnet predict runs/folder-default/best.safetensors photos/ --out parsed"""


def _save(image: Image.Image, path: Path) -> None:
    write_atomically(path, image.save)
