"""Test-set predictions as the benchmarks' servers want them: raw ids, file names, palettes, one zip."""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset
from ordnet.errors import OrdnetError
from ordnet.evaluation.evaluate import refuse_other_classes
from ordnet.files import write_atomically
from ordnet.inference import protocols
from ordnet.inference.parser import find
from ordnet.inference.prepare import for_inference
from ordnet.model import checkpoint
from ordnet.model.pixels import normalise
from ordnet.progress import OnProgress


@dataclass(frozen=True)
class Server:
    folder: str
    """Where the predictions stand inside the zip."""
    palette: bool
    """Paletted PNGs with VOC's colours, or plain grey ones."""


SERVERS = {
    # raw ids 1…150, named after the test pictures
    "ade20k": Server("", palette=False),
    # comp6: trained with other data too, as every network with an ImageNet backbone is
    "voc": Server("results/VOC2012/Segmentation/comp6_test_cls/", palette=True),
}


def submit(
    server: str,
    model: str | Path,
    data: str,
    out: Path,
    protocol: str = "encnet",
    progress: OnProgress = lambda done, total: None,
) -> int:
    """Parse the test split into `out` and check it by reading it back; the number of pictures."""
    if server not in SERVERS:
        raise OrdnetError(f"there is no server {server!r}; there are {', '.join(SERVERS)}")
    if data.partition(":")[0] != server:
        raise OrdnetError(f"the {server} server takes predictions for {server}:PATH, not for {data}")
    protocols.protocol(protocol)  # a wrong name is refused before anything is read
    if out.suffix != ".zip":
        raise OrdnetError(f"--out {out}: the servers take a .zip file")
    loaded = checkpoint.load(find(model))
    dataset = open_dataset(data, "test")
    refuse_other_classes(loaded.classes, dataset.classes.names)
    net = for_inference(loaded.net)
    how = protocols.protocol_of(protocol, loaded.about)

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:  # PNGs do not shrink further
            for index in range(len(dataset.ids)):
                image = torch.from_numpy(np.array(dataset.image(index))).permute(2, 0, 1)[None]
                labels = protocols.labels(net, normalise(image), how)
                file.writestr(_name(SERVERS[server], dataset, index), _png(SERVERS[server], dataset, labels))
                progress(index + 1, len(dataset.ids))
        _check(path, SERVERS[server], dataset)

    write_atomically(out, write)
    return len(dataset.ids)


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
    """Every test picture has its prediction, of its size, with ids that the benchmark knows."""
    known = [raw for raw, class_id in dataset.rule.raw_to_class.items() if class_id < len(dataset.classes)]
    with zipfile.ZipFile(path) as file:
        expected = [_name(server, dataset, index) for index in range(len(dataset.ids))]
        if file.namelist() != expected:
            raise OrdnetError(f"{path} does not hold one prediction per test picture")
        for index, name in enumerate(expected):
            with Image.open(io.BytesIO(file.read(name))) as picture:
                raw = np.asarray(picture)
                if picture.size != dataset.image(index).size or not np.isin(np.unique(raw), known).all():
                    raise OrdnetError(f"{path}: {name} has the wrong size or ids that {dataset.name} does not have")
