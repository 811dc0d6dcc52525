"""`tar:PATH-{000..127}.tar`: pictures and labels in tar archives, as WebDataset lays them out, read in place.

A shard holds pairs that share their names, 0001.jpg with 0001.png, or any picture with NAME.label.png. Shards keep
large data sets readable: few files, and each process of a training reads shards of its own (`loader.order`).
"""

import io
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from ordnet.data.dataset import Dataset, FileDataset, first_few
from ordnet.data.folder import divide
from ordnet.data.label_files import LABEL_ENDINGS, read_label
from ordnet.data.labels import HELP, IGNORE, ClassList, read_class_list
from ordnet.data.pictures import ENDINGS, IMAGE_ENDINGS
from ordnet.data.reading import read_bytes, regular_file
from ordnet.data.shards import INSIDE, member, member_name, shard_index, stamp
from ordnet.errors import OrdnetError
from ordnet.files import filled_folder, write_text
from ordnet.progress import progress

TREE = f"""\
  DIR/
    train-000.tar  train-001.tar  …   (each with 0001.jpg and 0001.png, 0002.jpg and 0002.png, …; or 0001.label.png)
    val-000.tar  …                    (without any, a fifth of the training pictures is set aside for validation)
    classes.txt                       (or a member of that name in the first shard)
as tar:DIR, or with names of your own as 'tar:DIR/street-{{000..127}}.tar'; `ordnet data shards` makes them
{HELP}"""
MARKS = (".label", ".mask", ".seg")
"""What may come before a label's ending."""

_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_SHARDS = 100_000
_VAL_SHARE = 0.2
_SEED = 0

Pair = tuple[str, str, str]
"""An id, the picture's name and the label's, which is empty where there is none."""


def open_split(path: str | None, split: str) -> FileDataset:
    """The shards of that split, or a part of the pictures of all; `all` is every picture of the named shards."""
    if not path:
        raise OrdnetError(f"tar is read from disk: say where, as tar:DIR, with DIR the folder of\n{TREE}")
    shards, divided = _shards_of(path, split)
    listed, pairs, notes = _class_list(shards[0]), list[Pair](), list[str]()
    for found in _through(shards):
        pairs += found
    if divided:
        parts = divide([key for key, _, _ in pairs], _VAL_SHARE, _SEED)
        chosen = set(parts.get(split, ()))
        sizes = ", ".join(f"{len(part):,} for {name}" for name, part in parts.items())
        notes.append(f"there are no val-*.tar beside {shards[0]}: of its pictures {sizes}, by a hash of their names")
        pairs = [pair for pair in pairs if pair[0] in chosen]
    if not pairs:
        raise OrdnetError(
            f"{shards[0]} and what belongs to it hold no pictures for the split {split!r}; expected\n{TREE}"
        )
    bare = [image for _, image, label in pairs if not label]
    if bare and (split != "test" or len(bare) < len(pairs)):
        raise OrdnetError(
            f"no label for {len(bare):,} of {len(pairs):,} pictures: {first_few(bare)}; "
            "a label has its picture's name and ends in .png, or in .label.png"
        )
    raw_values = listed.rule.raw_to_class
    read = partial(
        read_label,
        palette=listed.palette,
        one_bit=255 if 1 not in raw_values and raw_values.get(255) != IGNORE else 1,
    )
    ids, images, labels = (list(column) for column in zip(*pairs, strict=True))
    return FileDataset(
        "tar", split, ids, listed.classes, listed.rule, images, [] if bare else labels, read, tuple(notes),
        _starts(images),
    )  # fmt: skip


def pictures(spec: str) -> list[tuple[str, str]]:
    """All pictures of `tar:…`, with or without labels: name and id. For `ordnet predict`."""
    path = spec.removeprefix("tar:")
    folder = Path(path).expanduser()
    shards = sorted(folder.glob("*.tar")) if folder.is_dir() else expanded(path)
    if not shards:
        raise OrdnetError(f"{spec}: no *.tar in {folder}; expected\n{TREE}")
    return [(image, key) for found in _through(shards) for key, image, _ in found]


def expanded(path: str) -> list[Path]:
    """street-{000..127}.tar → 128 names; with several braces, the last varies fastest. All must exist."""
    ranges = [(first, last) for first, last in _RANGE.findall(path)]
    count = 1
    for first, last in ranges:
        count *= max(0, int(last) - int(first) + 1)
    if not 0 < count <= _MOST_SHARDS or not path.endswith(".tar") or "!" in path:
        raise OrdnetError(
            f"tar:{path}: expected a folder, or names of 1 to {_MOST_SHARDS:,} shards such as street-{{000..127}}.tar"
        )
    steps = [[f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)] for first, last in ranges]
    texts = _RANGE.split(path)[::3]
    names = ["".join(a + b for a, b in zip(texts, (*numbers, ""), strict=True)) for numbers in product(*steps)]
    shards = [Path(name).expanduser() for name in names]
    missing = [str(shard) for shard in shards if not shard.exists()]
    if missing:
        raise OrdnetError(f"tar:{path}: {len(missing):,} of {len(shards):,} shards are missing: {first_few(missing)}")
    return [regular_file(shard) for shard in shards]


def _shards_of(path: str, split: str) -> tuple[list[Path], bool]:
    """The shards that hold a split, and whether only a part of their pictures belongs to it."""
    folder = Path(path).expanduser()
    whole_folder = folder.is_dir()
    named = sorted(folder.glob("train-*.tar")) if whole_folder else expanded(path)
    folder = folder if whole_folder else named[0].parent
    own = "train" if whole_folder else Path(path).name.partition("-")[0]
    scored = own in ("val", "test")  # named to be evaluated on
    if named and (split == "all" or own == split != "train"):
        return named, False
    if (split != "train" or scored) and (beside := sorted(folder.glob(f"{split}-*.tar"))):
        return beside, False
    if named and split in ("train", "val") and not scored:
        return named, not any(folder.glob("val-*.tar"))
    there = ", ".join(sorted({shard.name.partition("-")[0] for shard in folder.glob("*-*.tar")})) or "none"
    expected = "" if named else f"; expected\n{TREE}"
    raise OrdnetError(f"tar:{path}: no {split}-*.tar for the split {split!r}; there are: {there}{expected}")


def _class_list(shard: Path) -> ClassList:
    beside = shard.parent / "classes.txt"
    if not beside.exists() and "classes.txt" in shard_index(shard):
        return read_class_list(Path(member_name(shard, "classes.txt")))
    return read_class_list(beside)


def _through(shards: Sequence[Path]) -> Iterator[list[Pair]]:
    """The pairs of each shard. The first look reads all headers of a shard, so a bar shows the progress."""
    with progress() as bar:
        for shard in bar.track(shards, description="looking through shards"):
            yield shard_pairs(shard)


def shard_pairs(shard: Path) -> list[Pair]:
    """The pairs of a shard, in its order; ids begin with the shard's name."""
    plain: dict[str, list[str]] = {}
    marked: dict[str, str] = {}
    for name in shard_index(shard):
        stem, dot, ending = name.rpartition(".")
        ending = dot + ending.lower()
        mark = next((mark for mark in MARKS if stem.endswith(mark)), "") if ending in LABEL_ENDINGS else ""
        if mark:
            marked[stem.removesuffix(mark)] = name
        elif ending in ENDINGS and not stem.rpartition("/")[2].startswith("."):
            plain.setdefault(stem, []).append(name)
    found = []
    for key, names in plain.items():
        label = marked.get(key, "")
        exact = [name for name in names if name.lower().endswith(LABEL_ENDINGS)]
        if not label and len(names) == 2 and len(exact) == 1:  # the exact format is the label's
            label = exact[0]
            names.remove(label)
        if len(names) > 1:
            raise OrdnetError(
                f"{shard}: which of {' and '.join(names)} is the picture, and which the label? "
                f"Name the label {key}.label.png"
            )
        here = [member_name(shard, name) if name else "" for name in (names[0], label)]
        found.append((f"{shard.stem}/{key}", here[0], here[1]))
    return found


def _starts(images: Sequence[str]) -> tuple[int, ...]:
    """Where each shard's pictures begin."""
    shards = [name.partition(INSIDE)[0] for name in images]
    return tuple(place for place, shard in enumerate(shards) if place == 0 or shard != shards[place - 1])


# ---- making shards -----------------------------------------------------------------------------------------------


def write_shards(
    splits: Iterable[Dataset], out: Path, each: int, advance: Callable[[], object] = lambda: None
) -> dict[str, int]:
    """Write every split as SPLIT-000.tar, … with `each` pictures in a shard, and classes.txt: all of it or nothing.

    Pictures are copied as they are; labels become PNGs of class ids, whatever they were. Returns split → shards.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OrdnetError(f"{out} is there already: name a new folder")
    written: dict[str, int] = {}
    with filled_folder(out) as folder:
        for dataset in splits:
            classes = dataset.classes
            lines = [
                f"{name} #{bytes(colour).hex()}\n" for name, colour in zip(classes.names, classes.colours, strict=True)
            ]
            write_text(folder / "classes.txt", "".join(lines))
            starts = range(0, len(dataset.ids), each)
            digits = max(3, len(str(len(starts) - 1)))
            for number, start in enumerate(starts):
                shard = folder / f"{dataset.split}-{number:0{digits}d}.tar"
                chosen = range(start, min(start + each, len(dataset.ids)))
                _write_shard(dataset, chosen, shard, advance)
            written[dataset.split] = len(starts)
    return written


def _write_shard(dataset: Dataset, chosen: range, shard: Path, advance: Callable[[], object]) -> None:
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as archive:
        for index in chosen:
            image, label = dataset.files(index)
            ending = Path(image).suffix.lower()
            if stamp(image) is not None and ending in IMAGE_ENDINGS:
                content = (member(image) or io.BytesIO(read_bytes(Path(image)))).getvalue()
            else:  # generated
                content, ending = _png(np.asarray(dataset.image(index))), ".png"
            _add(archive, f"{dataset.ids[index]}{ending}", content)
            if label:
                _add(archive, f"{dataset.ids[index]}.label.png", _png(dataset.label(index)))
            advance()
    if len(shard_pairs(shard)) != len(chosen):
        raise OrdnetError(
            f"{dataset.name}: some of the names {dataset.ids[chosen[0]]} … cannot be told apart: rename them"
        )


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member without time and owner, so that the same data gives the same bytes."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
