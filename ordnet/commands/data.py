"""`ordnet data`: look at a data set before training on it, or make one from annotations."""

import json as json_module
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ordnet.commands.data_import import import_annotations
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically, write_text

if TYPE_CHECKING:
    from PIL import Image

    from ordnet.data.dataset import Dataset
    from ordnet.data.statistics import Correlation

app = typer.Typer(help="Look at a data set before training on it, or make one from annotations.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME[:PATH]", help="The data set, as folder:PATH, ade20k:PATH, … or scenes.")
]
Split = Annotated[str, typer.Option(help="The part of the data set to look at.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read files; 0 reads in this one.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers as JSON.")]
Seed = Annotated[int, typer.Option(min=0, help="Another seed picks other samples.")]
Picture = Annotated[Path, typer.Option("--out", metavar="FILE.png", help="The picture to write.")]


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
    from ordnet.commands import data_tables
    from ordnet.data.check import Problem, leaks, scan
    from ordnet.progress import progress

    if write_split:
        _write_lists(name)
    opened, failed = _open_splits(name, split or ("train", "val", "test"))
    remarks = []
    if not split and "test" in failed:  # few data sets have one
        remarks.append(f"test was not checked, and training does not need it: {failed.pop('test')}")
    problems = [Problem("splits that cannot be opened", message) for message in failed.values()]
    scans = {}
    with progress() as bar:
        task = bar.add_task("pairs", total=sum(len(dataset.ids) for dataset in opened))
        for dataset in opened:
            bar.update(task, description=f"pairs, now {dataset.split}")
            scans[dataset.split] = dataset.ids, scan(dataset, workers, advance=lambda done: bar.advance(task, done))
    problems += [problem for _, found in scans.values() for problem in found.problems] + leaks(scans)
    data_tables.checked(name, opened, {part: found for part, (_, found) in scans.items()}, remarks)
    data_tables.problems(problems)
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
    """Count pixels and images of every class; suggest weights.

    The weights follow median-frequency balancing: rare classes count more. They come as a word for `ordnet train`.
    """
    from ordnet.commands import data_tables
    from ordnet.data.catalogue import open_dataset
    from ordnet.data.check import scan, summary
    from ordnet.progress import progress

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
    data_tables.statistics(values)
    _write_json(json, values)


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
    from ordnet.data.catalogue import open_dataset

    _check_picture(out, ("png", "jpg", "jpeg", "webp"))
    dataset = open_dataset(name, split)
    chosen = _choose(dataset, n, 12, seed)
    # a crop larger than the pictures would show mostly padding
    sheet = _sheet(dataset, chosen, seed, crop or max(32, min(320, *dataset.image(chosen[0]).size)))
    with _writing(out):
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
    from ordnet.commands import data_tables
    from ordnet.data import statistics
    from ordnet.data.catalogue import open_dataset
    from ordnet.picture.charts import correlation_maps
    from ordnet.progress import progress

    sides = _sides(patches, context.args)
    _check_picture(out, ("png", "jpg", "jpeg", "webp", "pdf", "svg"))
    dataset = open_dataset(name, split)
    chosen = _choose(dataset, n, 1000, seed)
    with progress() as bar:
        found = statistics.correlate((dataset.label(index) for index in bar.track(chosen, description="labels")), sides)
    kind, colon, path = name.partition(":")
    title = f"{kind}{colon}{Path(path).name}, {split}: {len(chosen):,} labels"
    with _writing(out):
        correlation_maps({result.patches: result.matrix for result in found}, out, title)
    data_tables.correlations(title, found)
    _write_json(json, {"data": name, "split": split, "seed": seed, "images": len(chosen), "patches": _plain(found)})
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
    from ordnet.data.tar import write_shards
    from ordnet.progress import progress

    opened, failed = _open_splits(name, split or ("train", "val", "test"))
    if failed.keys() - ({"test"} if not split else set()):
        raise OrdnetError("\n".join(failed.values()))
    with progress() as bar:
        task = bar.add_task("pictures", total=sum(len(dataset.ids) for dataset in opened))
        with _writing(out):
            written = write_shards(opened, out, pictures, lambda: bar.advance(task))
    for dataset in opened:
        typer.echo(f"{dataset.split}: {len(dataset.ids):,} pictures in {written[dataset.split]:,} shards")
    typer.echo(f"wrote {out}: ordnet data check tar:{out}")


app.command("import")(import_annotations)


def _open_splits(name: str, splits: Sequence[str]) -> tuple[list["Dataset"], dict[str, str]]:
    """The splits that can be opened, and split → message for the others. One must open."""
    from ordnet.data.catalogue import open_dataset

    opened: list[Dataset] = []
    failed: dict[str, str] = {}
    for part in dict.fromkeys(splits):
        try:
            opened.append(open_dataset(name, part))
        except OrdnetError as error:
            failed[part] = str(error)
    if not opened:
        raise OrdnetError(failed[splits[0]])
    return opened, failed


def _plain(found: Sequence["Correlation"]) -> list[dict[str, Any]]:
    """Plain values for JSON, which has no NaN."""

    def number(value: float) -> float | None:
        return None if math.isnan(value) else round(value, 6)

    return [
        {
            "patches": result.patches,
            "intra": number(result.intra),
            "inter": number(result.inter),
            "matrix": [[number(value) for value in row] for row in result.matrix.tolist()],
        }
        for result in found
    ]


def _choose(dataset: "Dataset", n: int | None, usual: int, seed: int) -> list[int]:
    """`n` different samples by chance, in their order; `usual` or all there are where the user did not say."""
    import random

    count = len(dataset.ids)
    if n is not None and n > count:
        raise OrdnetError(f"--n {n}: the {dataset.split} split of {dataset.name} has only {count:,} samples")
    return sorted(random.Random(seed).sample(range(count), min(usual, count) if n is None else n))


def _sheet(dataset: "Dataset", chosen: Sequence[int], seed: int, crop: int) -> "Image.Image":
    import numpy as np

    from ordnet.config import DataConfig
    from ordnet.data.augment import augment, generator
    from ordnet.data.dataset import read_pair
    from ordnet.picture.grid import contact_sheet
    from ordnet.picture.overlay import overlay
    from ordnet.progress import progress

    tiles: list[np.ndarray] = []
    seen: set[int] = set()
    with progress() as bar:
        for index in bar.track(chosen, description="samples"):
            image, label = augment(*read_pair(dataset, index), generator(seed, 0, index), crop, DataConfig())
            tiles.append(overlay(image, label, dataset.classes.colours))
            seen.update(np.unique(label).tolist())
    names, colours = dataset.classes.names, dataset.classes.colours
    key: list[tuple[str, tuple[int, int, int] | None]] = [
        (names[c], colours[c]) for c in range(len(names)) if c in seen
    ]
    if any(class_id >= len(names) for class_id in seen):
        key.append(("ignored", None))
    return contact_sheet(tiles, min(4, len(tiles)), [dataset.ids[index] for index in chosen], key)


def _sides(patches: list[int] | None, extra: list[str]) -> list[int]:
    """Numbers of patches. `--patches 2 4` reaches us as the option 2 and a word 4 that belongs to nothing."""
    if not extra:
        return list(dict.fromkeys(patches or (2, 4)))
    if not patches or not all(word.isdecimal() and 1 <= int(word) <= 16 for word in extra):
        raise OrdnetError(f"cannot make sense of {' '.join(extra)}: expected NAME[:PATH] and, say, --patches 2 4")
    return list(dict.fromkeys([*patches, *map(int, extra)]))


def _check_picture(path: Path, endings: Sequence[str]) -> None:
    if path.suffix.lower().lstrip(".") not in endings:
        raise OrdnetError(f"--out {path}: expected a file that ends in .{', .'.join(endings)}")
    if path.is_dir():
        raise OrdnetError(f"--out {path} is a folder: name a file")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OrdnetError(f"cannot write {path}: {error.strerror or error}") from None


def _write_json(path: Path | None, values: dict[str, Any]) -> None:
    if path is not None:
        with _writing(path):
            write_text(path, json_module.dumps(values, indent=1, ensure_ascii=False) + "\n")
