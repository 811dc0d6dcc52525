"""The first minutes with the package: a photo parsed and explained, a training on generated scenes, one page.

Everything is written to one folder, and what an earlier demo trained there is not trained again.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ordnet.config import override
from ordnet.data.catalogue import open_dataset
from ordnet.data.pictures import CREDIT, sample_picture
from ordnet.data.reading import regular_file
from ordnet.data.scene_drawing import SIDE
from ordnet.errors import OrdnetError
from ordnet.evaluation.comparison import Comparison, draw
from ordnet.files import refuse_file, write_atomically, write_text
from ordnet.inference.parser import load
from ordnet.picture import page
from ordnet.picture.charts import ablation_chart
from ordnet.picture.grid import fitted
from ordnet.picture.overlay import Colour, overlay
from ordnet.recipes import settings_of
from ordnet.study.ablation import Job, PlannedRow, refuse_run, train_jobs

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
_BARS: tuple[Colour, ...] = ((139, 152, 160), (15, 118, 110))
"""The networks' colours."""
_SHOWN = 256
"""Pixels per side of a scene on the page."""
_OWN = ("report.html", "ranges.png", "ranges.json", "scenes.png", "photo")
"""What is written beside the runs, which look after themselves."""
_MARK = ".ordnet-demo"
"""Says that files of these names are a demo's; it is written before any of them."""
_TITLE = "ordnet · demo"


def demo(out: Path, say: Callable[[str], None], changes: Sequence[str] = ()) -> Path:
    """Run all of it, saying what comes next; returns the page's path. `changes` are settings of the training."""
    settings = override(settings_of("scenes-tiny"), list(changes))
    jobs = [Job(row.label, row.settings(settings, 0), out / "runs" / row.run) for row in NETWORKS]
    for job in jobs:
        job.finished()  # a run with other settings is refused here, before any work
    _claim(out)
    say(f"1 of 4 · parsing a photo with {MODEL}, the model that comes along")
    photo = _photo(out)
    say("2 of 4 · training on generated scenes: ORDNet beside a network without context (about two minutes)")
    train_jobs(jobs, at_once=2)
    say("3 of 4 · comparing them on scenes that neither has seen")
    compared = _compare(out, jobs)
    say("4 of 4 · writing the page")
    path = out / "report.html"
    write_text(path, page.page(_TITLE, [photo, *compared, _next(out)], _LEAD))
    return path


def _claim(out: Path) -> None:
    """Refuse a folder in which files of others would be overwritten; mark it as the demo's."""
    refuse_file(out)
    refuse_run(out)
    if not (out / _MARK).is_file() and not _is_ours(out / "report.html"):
        for path in (out / name for name in _OWN):
            if path.exists() or path.is_symlink():
                raise OrdnetError(
                    f"{path} is in the way: no demo wrote it, and this one would overwrite it; choose another --out, "
                    "or move it away"
                )
    write_text(out / _MARK, "".join(f"{name}\n" for name in _OWN))


def _is_ours(report: Path) -> bool:
    """Whether it is the page of a demo, of one from before there was a mark."""
    try:
        return f"<title>{_TITLE}</title>" in regular_file(report).read_text(encoding="utf-8")
    except (OSError, ValueError):  # an OrdnetError too
        return False


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
    _save(attention.draw(), out / "photo" / "attention.png")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in parse.areas().items() if share >= 0.005)
    return page.section(
        "A photo, parsed and explained",
        page.grid(
            page.figure(parse.image, f"The picture. {CREDIT}."),
            page.figure(parse.overlay(), f"Parsed by {MODEL}: {shares}."),
        ),
        page.attention(
            attention.row(),
            "What the marked pixel attends to: over the whole picture, and inside its patch; the gate says how much of "
            "the long range each position takes in.",
        ),
        page.folded("The commands", _PHOTO_COMMANDS.format(x=attention.x, y=attention.y)),
    )


_PHOTO_COMMANDS = """ordnet predict outdoor photo.jpg --out parsed
ordnet explain outdoor photo.jpg --at {x},{y} --out attention.png
ordnet serve outdoor            the same in a browser, live"""


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
    chosen = comparison.pick("even", 4)
    scenes = draw(comparison, chosen, note="Generated scenes, test split; below: pixel accuracy.")
    _save(scenes, out / "scenes.png")
    names = [job.name for job in jobs]
    seen = len(open_dataset("scenes", "test").ids)
    return [
        page.section(
            "What context is for",
            page.paragraph(
                f"Two small networks, trained here with the same settings and scored on {seen} scenes that neither has "
                f"seen. By itself, each position of either network sees 31x31 pixels of the {SIDE}x{SIDE} scene; "
                "ORDNet's block, which is all that differs, brings in the rest. The bars are the mIoU, of 1 at most, "
                "over the classes that need context of one range."
            ),
            *(_range(name, names, values) for name, values in ranges.items()),
        ),
        page.section("The same scenes, side by side", *_side_by_side(comparison, chosen, names)),
    ]


def _range(name: str, networks: list[str], values: list[float]) -> str:
    bars = [page.Bar(*row) for row in zip(networks, values, [f"{value:.3f}" for value in values], _BARS, strict=True)]
    return f"<h3>{name.capitalize()} range</h3>{page.paragraph(_sentence(RANGES[name]))}{page.bars(bars)}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _side_by_side(comparison: Comparison, chosen: Sequence[int], networks: list[str]) -> list[str]:
    """The chosen scenes with their truth and what each network makes of them, and the key to the colours."""
    classes = comparison.dataset.classes
    present, shown = set[int](), []
    for index in chosen:
        seen = comparison.look(index)
        scene, *labels = (fitted(array, (_SHOWN, _SHOWN)) for array in (seen.pixels, seen.truth, *seen.results))
        captions = ["The truth"] + [
            f"{name}: {right:.1%}" for name, right in zip(networks, seen.accuracies, strict=True)
        ]
        parsed = (Image.fromarray(overlay(scene, each, classes.colours, 0.6)) for each in labels)
        figures = zip([Image.fromarray(scene), *parsed], [f"The scene {seen.id}", *captions], strict=True)
        shown.append(page.quad(*(page.figure(picture, caption) for picture, caption in figures)))
        present.update(int(each) for array in labels for each in np.unique(array))
    words = (
        "A generated scene, its true classes, and the classes that each network gives to its pixels, with the share "
        "that is right."
    )
    key = page.legend((classes.names[c], classes.colours[c]) for c in sorted(present) if c < len(classes))
    return [page.paragraph(words), *shown, key]


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
