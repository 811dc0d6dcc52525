"""`ordnet data import`: annotations of other tools → a folder that training can read."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordnet.errors import OrdnetError

if TYPE_CHECKING:
    from ordnet.data.importers.convert import Annotations


class Source(str, Enum):
    labelme = "labelme"
    coco = "coco"
    cvat = "cvat"
    label_studio = "label-studio"
    supervisely = "supervisely"
    roboflow = "roboflow"


_WITH_IMAGES = (Source.coco, Source.cvat, Source.label_studio)
_FILES = {Source.coco: "instances file", Source.label_studio: "JSON export"}


def import_annotations(
    source: Annotated[Source, typer.Argument(help="What made the annotations.")],
    src: Annotated[
        Path, typer.Argument(metavar="SRC", help="The export: COCO's or Label Studio's JSON file, else a folder.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The new folder; must not exist, or be empty.")],
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The pictures of coco, cvat and label-studio; SRC's folder without it."),
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
    """Make a data set from annotations of other tools.

    labelme and supervisely: a folder with their JSON files and pictures. coco and label-studio: a JSON file. cvat: the
    unpacked export `Segmentation mask 1.1`. roboflow: the unpacked export `Semantic Segmentation Masks`.

    Polygons, rectangles, circles, masks and run lengths become the folder layout: images, labels, classes.txt,
    train.txt and val.txt, to be used as folder:DIR. Either everything is written or nothing.

    Large shapes are painted first, so that small ones lie on top; of two that are equally large, the later one does.
    Shapes named ignore or __ignore__ mark pixels that never count. What lies outside a picture is cut off.
    """
    from ordnet.commands import data_tables
    from ordnet.data.importers.convert import write_folder
    from ordnet.progress import progress

    if source not in _WITH_IMAGES and images is not None:
        raise OrdnetError(f"--images belongs to coco, cvat and label-studio: {source.value} files name their pictures")
    if source in _FILES and src.is_dir():
        raise OrdnetError(f"{src} is a folder: expected the {_FILES[source]} of {source.value}")
    if source not in _FILES and not src.is_dir():
        raise OrdnetError(
            f"{src} is not a folder: expected one that holds {source.value}'s files (unpack archives first)"
        )
    if images is not None and not images.is_dir():
        raise OrdnetError(f"--images {images}: there is no such folder")
    with progress() as bar:
        task = bar.add_task("reading annotations", total=1)
        found = _read(source, src, images)
        bar.update(task, description="pictures", total=len(found.pictures))
        written = write_folder(found, out, background, val, seed, lambda: bar.advance(task))
    data_tables.imported(written, out, background)


def _read(source: Source, src: Path, images: Path | None) -> "Annotations":
    from ordnet.data.importers import masks, per_picture, single_file

    match source:
        case Source.labelme:
            return per_picture.read_labelme(src)
        case Source.coco:
            return single_file.read_coco(src, images or src.parent)
        case Source.label_studio:
            return single_file.read_label_studio(src, images or src.parent)
        case Source.supervisely:
            return per_picture.read_supervisely(src)
        case Source.cvat:
            return masks.read_cvat(src, images)
        case Source.roboflow:
            return masks.read_roboflow(src)
