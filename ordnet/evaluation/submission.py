"""Test-set predictions as the benchmarks' servers accept them: original ids, file names, palettes, one archive."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import labeller, own_device, refuse_other_classes
from ordnet.files import write_atomically
from ordnet.inference import protocols
from ordnet.inference.parser import find
from ordnet.model import checkpoint
from ordnet.model.pixels import known_size
from ordnet.progress import OnProgress


@dataclass(frozen=True)
class Server:
    """What one benchmark's server accepts."""

    folder: str
    """The folder of the predictions inside the archive."""
    endings: tuple[str, ...]
    """The file endings that the archive may have."""
    palette: bool = False
    """Paletted PNGs with VOC's colours, or plain grey ones."""


TAR = (".tar.gz", ".tgz")
SERVERS = {
    # original ids 1…150, named after the test pictures
    "ade20k": Server("", (".zip",)),
    # comp6: trained with other data too, as every network with an ImageNet backbone is. The development kit asks for a
    # gzipped tar file; the server is known to refuse .zip, which is still written for those who unpack it themselves
    "voc": Server("results/VOC2012/Segmentation/comp6_test_cls/", (*TAR, ".zip"), palette=True),
    # original ids 7…33, not the 19 training ids; the names begin with CITY_SEQUENCE_FRAME
    "cityscapes": Server("", (".zip",)),
}


def submit(
    server: str,
    model: str | Path,
    data: str,
    out: Path,
    protocol: str = "encnet",
    progress: OnProgress = lambda done, total: None,
    device: str | None = None,
) -> int:
    """Parse the test split into `out` and check it by reading it back; returns the number of pictures.

    `device` is cpu, cuda, cuda:1 or mps; by default a GPU where there is one.
    """
    if server not in SERVERS:
        raise OrdnetError(f"there is no server {server!r}; there are {', '.join(SERVERS)}")
    takes = SERVERS[server]
    if data.partition(":")[0] != server:
        raise OrdnetError(f"the {server} server takes predictions for {server}:PATH, not for {data}")
    protocols.protocol(protocol)  # a wrong name is refused before anything is read
    if not out.name.endswith(takes.endings):
        raise OrdnetError(f"--out {out}: the {server} server takes a file that ends in {' or '.join(takes.endings)}")
    loaded = checkpoint.load(find(model))
    dataset = open_dataset(data, "test")
    refuse_other_classes(loaded.classes, dataset.classes.names)
    how = protocols.protocol_of(protocol, loaded.about)
    on = own_device(device)
    label = labeller(loaded.net.to(on), how, on, known_size(None, loaded.about))

    def write(path: Path) -> None:
        with _archive(path) as add:
            for index in range(len(dataset.ids)):
                image = torch.from_numpy(np.array(dataset.image(index))).permute(2, 0, 1)[None]
                labels = label(image)
                add(_name(takes, dataset, index), _png(takes, dataset, labels))
                progress(index + 1, len(dataset.ids))
        _check(path, takes, dataset)

    write_atomically(out, write)
    return len(dataset.ids)


@contextmanager
def _archive(path: Path) -> Iterator[Callable[[str, bytes], None]]:
    """A new archive, its kind by its ending; yields a function that adds a file. PNGs do not shrink further."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as zipped:
            yield zipped.writestr
        return
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        yield add


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents, in their order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as zipped:
            yield from ((name, zipped.read(name)) for name in zipped.namelist())
        return
    with tarfile.open(path) as tar:
        for member in tar:
            content = tar.extractfile(member)
            yield member.name, content.read() if content else b""


def _name(server: Server, dataset: Dataset, index: int) -> str:
    return f"{server.folder}{Path(dataset.ids[index]).name}.png"


def _png(server: Server, dataset: Dataset, labels: np.ndarray) -> bytes:
    picture = Image.fromarray(dataset.rule.decode(labels).astype(np.uint8))
    if server.palette:
        picture.putpalette(voc_palette())
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def voc_palette() -> bytes:
    """VOC's colours of the ids 0…255: three bits of the id at a time go to the highest free bits of r, g and b."""
    colours = np.zeros((256, 3), np.uint8)
    for index in range(256):
        for bit in range(8):
            for channel in range(3):
                colours[index, channel] |= (index >> (3 * bit + channel) & 1) << (7 - bit)
    return colours.tobytes()


def _check(path: Path, server: Server, dataset: Dataset) -> None:
    """Raise an error unless every test picture has a prediction of its size, with ids that the benchmark knows."""
    known = [raw for raw, class_id in dataset.rule.raw_to_class.items() if class_id < len(dataset.classes)]
    expected = [_name(server, dataset, index) for index in range(len(dataset.ids))]
    found = 0
    for index, (name, content) in enumerate(_members(path)):
        if index >= len(expected) or name != expected[index]:
            raise OrdnetError(f"{path} holds {name}, which is no test picture's prediction")
        with Image.open(io.BytesIO(content)) as picture:
            if picture.size != dataset.image(index).size or not np.isin(np.unique(np.asarray(picture)), known).all():
                raise OrdnetError(f"{path}: {name} has the wrong size or ids that {dataset.name} does not have")
        found += 1
    if found != len(expected):
        raise OrdnetError(f"{path} does not hold one prediction per test picture: {found} of {len(expected)}")
