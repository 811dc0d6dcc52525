"""`ordnet data`: look at a data set before training on it, or make one from annotations."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ordnet.errors import OrdnetError
from ordnet.files import check_file, refuse_unwritable, write_atomically

if TYPE_CHECKING:
    from ordnet.data.dataset import Dataset
    from ordnet.data.importers.convert import Annotations

app = typer.Typer(help="Look at a data set before training on it, or make one from annotations.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME[:PATH]", help="The data set, as folder:PATH, ade20k:PATH, … or scenes.")
]
Split = Annotated[str, typer.Option(help="The part of the data set to look at.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read files; 0 reads in this one.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers as JSON.")]
Seed = Annotated[int, typer.Option(min=0, help="Another seed picks other samples.")]
Picture = Annotated[Path, typer.Option("--out", metavar="FILE.png", help="The picture to write.")]


class Source(str, Enum):
    labelme = "labelme"
    coco = "coco"
    cvat = "cvat"
    label_studio = "label-studio"
    supervisely = "supervisely"
    roboflow = "roboflow"


_WITH_IMAGES = (Source.coco, Source.cvat, Source.label_studio)
_FILES = {Source.coco: "instances file", Source.label_studio: "JSON export"}


@app.command()
def check(
    name: Name,
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split; may be repeated. Train, val and test without it.")
    ] = None,
    workers: Workers = 2,
    write_split: Annotated[
        bool, typer.Option("--write-split", help="Write the split chosen for a folder without lists to its lists.")
    ] = False,
) -> None:
    """Find what is missing, broken or mislabelled.

    Every image and label is read. A table shows which raw label value is which class, and how many pixels and images
    each class has. Pictures that are in two of train, val and test are found by id and by content.

    Ends with exit code 1 where something has to be mended.
    """
    from ordnet.commands import data_output
    from ordnet.data.check import Problem, leaks, scan
    from ordnet.data.folder import NoSplit
    from ordnet.progress import progress

    if write_split:
        _write_lists(name)
    opened, failed = _open_splits(name, split or ("train", "val", "test"))
    remarks = []
    # few data sets have a test split, and training does not need it; one that is there and broken is another matter
    if not split and "test" in failed and not isinstance(absent := failed.pop("test"), NoSplit):
        remarks.append(f"test was not checked, and training does not need it: {absent}")
    problems = [Problem("splits that cannot be opened", str(error)) for error in failed.values()]
    scans = {}
    with progress() as bar:
        task = bar.add_task("pairs", total=sum(len(dataset.ids) for dataset in opened))
        for dataset in opened:
            bar.update(task, description=f"pairs, now {dataset.split}")
            scans[dataset.split] = dataset.ids, scan(dataset, workers, advance=lambda done: bar.advance(task, done))
    problems += [problem for _, found in scans.values() for problem in found.problems] + leaks(scans)
    data_output.checked(name, opened, {part: found for part, (_, found) in scans.items()}, remarks)
    data_output.problems(problems)
    if problems:
        raise typer.Exit(1)


def _write_lists(name: str) -> None:
    from ordnet.data.folder import write_split

    kind, _, path = name.partition(":")
    if kind != "folder" or not path:
        raise OrdnetError(f"--write-split is for folder:PATH; {name} has its own splits")
    for written in write_split(path):
        typer.echo(f"wrote {written}")


@app.command()
def stats(name: Name, split: Split = "train", workers: Workers = 2, json: Json = None) -> None:
    """Count pixels and images of every class; show the weights that `training.class_weights=auto` gives them.

    Rare classes count more. The weights come as a word for `ordnet train`, to be changed by hand.
    """
    from ordnet.commands import data_output
    from ordnet.data.catalogue import open_dataset
    from ordnet.data.check import scan, summary
    from ordnet.progress import progress

    _check_json(json)
    dataset = open_dataset(name, split)
    with progress() as bar:
        task = bar.add_task("labels", total=len(dataset.ids))
        found = scan(dataset, workers, pictures=False, advance=lambda done: bar.advance(task, done))
    if found.problems:
        first = found.problems[0]
        raise OrdnetError(
            f"{len(found.problems)} problems, first {first.kind}: {first.detail}\n`ordnet data check {name}` lists all"
        )
    values = {"data": name, "split": split, **summary(found, dataset.classes.names)}
    data_output.statistics(values)
    data_output.write_json(json, values)


@app.command()
def preview(
    name: Name,
    out: Picture,
    n: Annotated[int | None, typer.Option("--n", min=1, help="Samples on the sheet; 12 without it.")] = None,
    split: Split = "train",
    seed: Seed = 0,
    crop: Annotated[
        int | None, typer.Option(min=32, max=1024, help="Side of a training crop; up to 320 px without it.")
    ] = None,
) -> None:
    """Draw samples as training sees them, labels on top.

    Samples are flipped, scaled and cropped by chance. Dark stripes mark pixels that are ignored.
    """
    from ordnet.commands import data_output
    from ordnet.data.catalogue import open_dataset

    _check_picture(out, ("png", "jpg", "jpeg", "webp"))
    dataset = open_dataset(name, split)
    chosen = _choose(dataset, n, 12, seed)
    # a crop larger than the pictures would show mostly padding
    try:
        sheet = data_output.sheet(dataset, chosen, seed, crop or max(32, min(320, *dataset.image(chosen[0]).size)))
    except OrdnetError as error:
        raise OrdnetError(f"{error}\n`ordnet data check {name}` lists all that is broken") from None
    with data_output.writing(out):
        write_atomically(out, sheet.save)
    typer.echo(f"wrote {out}")


@app.command(context_settings={"allow_extra_args": True})
def correlate(
    context: typer.Context,
    name: Name,
    out: Picture,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Labels to look at; 1,000 or all there are without it.")
    ] = None,
    patches: Annotated[
        list[int] | None,
        typer.Option(metavar="P …", min=1, max=16, help="Patches along a side, one map for each: 2 4 without it."),
    ] = None,
    split: Split = "train",
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Measure how often two pixels share a class.

    Labels are cut into patches; the numbers (the paper's Eq. 3) hold inside a patch and between each two of them. High
    numbers on the diagonal say that pixels of one patch belong together: what the middle-range branch lives on.
    """
    from ordnet.commands import data_output
    from ordnet.data import statistics
    from ordnet.data.catalogue import open_dataset
    from ordnet.picture.charts import correlation_maps
    from ordnet.progress import progress

    sides = _sides(patches, context.args)
    _check_picture(out, ("png", "jpg", "jpeg", "webp", "pdf", "svg"))
    _check_json(json)
    dataset = open_dataset(name, split)
    chosen = _choose(dataset, n, 1000, seed)
    with progress() as bar:
        found = statistics.correlate((dataset.label(index) for index in bar.track(chosen, description="labels")), sides)
    kind, colon, path = name.partition(":")
    title = f"{kind}{colon}{Path(path).name}, {split}: {len(chosen):,} labels"
    with data_output.writing(out):
        correlation_maps({result.patches: result.matrix for result in found}, out, title)
    data_output.correlations(title, found)
    values = {"data": name, "split": split, "seed": seed, "images": len(chosen), "patches": data_output.plain(found)}
    data_output.write_json(json, values)
    typer.echo(f"wrote {out}")


@app.command()
def shards(
    name: Name,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new folder; must not exist, or be empty.")],
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split; may be repeated. Train, val and test without it.")
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, max=1_000_000, help="Pictures in a shard.")] = 1000,
) -> None:
    """Pack a data set into tar files, for disks that dislike many files.

    There will be SPLIT-000.tar, SPLIT-001.tar, … with pictures as they are and labels as class ids, and classes.txt: to
    be used as tar:DIR. Either everything is written or nothing.
    """
    from ordnet.commands.data_output import writing
    from ordnet.data.tar import write_shards
    from ordnet.progress import progress

    refuse_unwritable(out)
    opened, failed = _open_splits(name, split or ("train", "val", "test"))
    if failed.keys() - ({"test"} if not split else set()):
        raise OrdnetError("\n".join(map(str, failed.values())))
    with progress() as bar:
        task = bar.add_task("pictures", total=sum(len(dataset.ids) for dataset in opened))
        with writing(out):
            written = write_shards(opened, out, pictures, lambda: bar.advance(task))
    for dataset in opened:
        typer.echo(f"{dataset.split}: {len(dataset.ids):,} pictures in {written[dataset.split]:,} shards")
    typer.echo(f"wrote {out}: ordnet data check tar:{out}")


@app.command("import")
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
    from ordnet.commands import data_output
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
    refuse_unwritable(out)
    with progress() as bar:
        task = bar.add_task("reading annotations", total=1)
        found = _read(source, src, images)
        bar.update(task, description="pictures", total=len(found.pictures))
        written = write_folder(found, out, background, val, seed, lambda: bar.advance(task))
    data_output.imported(written, out, background)


def _open_splits(name: str, splits: Sequence[str]) -> tuple[list["Dataset"], dict[str, OrdnetError]]:
    """The splits that can be opened, and split → error for the others. One must open."""
    from ordnet.data.catalogue import open_dataset

    opened: list[Dataset] = []
    failed: dict[str, OrdnetError] = {}
    for part in dict.fromkeys(splits):
        try:
            opened.append(open_dataset(name, part))
        except OrdnetError as error:
            failed[part] = error
    if not opened:
        raise failed[splits[0]]
    return opened, failed


def _choose(dataset: "Dataset", n: int | None, usual: int, seed: int) -> list[int]:
    """`n` different samples by chance, in their order; `usual`, or all there are, by default."""
    import random

    count = len(dataset.ids)
    if n is not None and n > count:
        raise OrdnetError(f"--n {n}: the {dataset.split} split of {dataset.name} has only {count:,} samples")
    return sorted(random.Random(seed).sample(range(count), min(usual, count) if n is None else n))


def _sides(patches: list[int] | None, extra: list[str]) -> list[int]:
    """Numbers of patches. `--patches 2 4` arrives as the option 2 and a stray word 4."""
    if not extra:
        return list(dict.fromkeys(patches or (2, 4)))
    if not patches or not all(word.isdecimal() and 1 <= int(word) <= 16 for word in extra):
        raise OrdnetError(f"cannot make sense of {' '.join(extra)}: expected NAME[:PATH] and, say, --patches 2 4")
    return list(dict.fromkeys([*patches, *map(int, extra)]))


def _check_picture(path: Path, endings: Sequence[str]) -> None:
    if path.suffix.lower().lstrip(".") not in endings:
        raise OrdnetError(f"--out {path}: expected a file that ends in .{', .'.join(endings)}")
    refuse_unwritable(path)
    if path.is_dir():
        raise OrdnetError(f"--out {path} is a folder: name a file")


def _check_json(path: Path | None) -> None:
    if path is not None:
        check_file(path, option="--json")


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
