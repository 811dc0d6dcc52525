"""`ordnet data import`: labelme or COCO annotations → a folder that training can read."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ordnet.errors import OrdnetError


class Source(str, Enum):
    labelme = "labelme"
    coco = "coco"


def import_annotations(
    source: Annotated[Source, typer.Argument(help="What made the annotations.")],
    src: Annotated[Path, typer.Argument(metavar="SRC", help="A folder of labelme files, or COCO's instances file.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The new folder; must not exist, or be empty.")],
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="COCO: the pictures; SRC's folder without it.")
    ] = None,
    background: Annotated[
        bool,
        typer.Option(
            "--background/--ignore-background",
            help="Pixels that nothing covers are a class of their own, `background`, or never count.",
        ),
    ] = True,
    val: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the pictures that go to the val split.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Another seed splits otherwise.")] = 0,
) -> None:
    """Make a data set from labelme or COCO annotations.

    Polygons, rectangles, circles and run lengths become the folder layout: images, labels, classes.txt, train.txt and
    val.txt, to be used as folder:DIR. Either everything is written or nothing.

    Large shapes are painted first, so that small ones lie on top; of two that are equally large, the later one does.
    Shapes named ignore or __ignore__ mark pixels that never count. What lies outside a picture is cut off.
    """
    from ordnet.commands import data_tables
    from ordnet.data.importers import coco as coco_json
    from ordnet.data.importers import labelme
    from ordnet.data.importers.convert import write_folder
    from ordnet.progress import progress

    if source is Source.labelme and images is not None:
        raise OrdnetError("--images belongs to coco: labelme files name their pictures")
    if source is Source.labelme and not src.is_dir():
        raise OrdnetError(f"{src} is not a folder: expected one that holds labelme's *.json files")
    if images is not None and not images.is_dir():
        raise OrdnetError(f"--images {images}: there is no such folder")
    with progress() as bar:
        task = bar.add_task("reading annotations", total=1)
        found = labelme.read(src) if source is Source.labelme else coco_json.read(src, images or src.parent)
        bar.update(task, description="pictures", total=len(found.pictures))
        written = write_folder(found, out, background, val, seed, lambda: bar.advance(task))
    data_tables.imported(written, out, background)
