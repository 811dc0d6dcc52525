"""Features of a backbone that stays as it is: computed once, kept in files that are mapped rather than read, for
studies that train what follows it."""

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ordnet.config import DataConfig
from ordnet.data.dataset import Dataset
from ordnet.data.loader import Batches, examples
from ordnet.files import write_atomically
from ordnet.model.build import build
from ordnet.model.network import Network
from ordnet.model.pixels import normalise
from ordnet.progress import progress


class Crops(NamedTuple):
    features: Tensor
    """(n, C, h, w) in half precision."""
    labels: Tensor
    """(n, H/2, W/2): every second pixel's."""


@torch.no_grad()
def crops(net: Network, dataset: Dataset, path: Path, settings: DataConfig, crop: int, epochs: int) -> Crops:
    """`epochs` crops of every picture, from the files PATH.features.npy and PATH.labels.npy, which are made if need be.

    The labels are written last: where they are, the features are complete.
    """
    kept = [path.with_suffix(f".{part}.npy") for part in ("features", "labels")]
    if not kept[1].exists():
        net.eval()
        batches = Batches(dataset, settings, crop=crop, batch_size=1, seed=0)
        count = epochs * len(dataset.ids)
        labels = np.empty((count, -(-crop // 2), -(-crop // 2)), np.uint8)

        def compute(temporary: Path) -> None:
            features: np.memmap | None = None
            with progress() as bar:
                task = bar.add_task(f"features of {count} crops", total=count)
                for number, batch in enumerate(batch for epoch in range(epochs) for batch in batches.epoch(epoch)):
                    found = last_map(net, batch.images)[0].half().numpy()
                    if features is None:
                        features = np.lib.format.open_memmap(temporary, "w+", np.float16, (count, *found.shape))
                    features[number], labels[number] = found, batch.labels[0, ::2, ::2].numpy()
                    bar.update(task, completed=number + 1)

        write_atomically(kept[0], compute)
        write_atomically(kept[1], lambda temporary: np.save(temporary, labels, allow_pickle=False))
    # mapped as a private copy: torch asks for memory that could be written to
    return Crops(*(torch.from_numpy(np.load(each, mmap_mode="c")) for each in kept))


@torch.no_grad()
def pictures(net: Network, dataset: Dataset, path: Path) -> list[Tensor]:
    """The features (1, C, h, w) of every whole picture in half precision, from PATH, which is made if need be."""
    if not path.exists():
        net.eval()
        found = []
        with progress() as bar:
            task = bar.add_task("features of whole pictures", total=len(dataset.ids))
            for example in examples(dataset):
                found.append(last_map(net, example.image).half())
                bar.advance(task)
        write_atomically(path, lambda temporary: torch.save(found, temporary))
    kept: list[Tensor] = torch.load(path, mmap=True)
    return kept


def network(study: Namespace, variant: str, classes: int, **settings: Any) -> Network:
    """A variant with the backbone, output stride and neck that a study's options name."""
    common = {"backbone": study.backbone, "output_stride": study.stride or None, "neck": study.neck or None}
    return build(variant, classes=classes, **common, **settings)


def start(study: Namespace, seed: int, classes: int, variant: str, **settings: Any) -> Network:
    """The same, whose neck and head start as those of all networks of a seed do."""
    torch.manual_seed(seed)
    net = plain = network(study, "dilated-fcn", classes)
    if variant != "dilated-fcn":
        net = network(study, variant, classes, **settings)
        net.neck.load_state_dict(plain.neck.state_dict())
        net.head.load_state_dict(plain.head.state_dict())
    net.backbone.requires_grad_(False)  # its features are there already
    return net


def last_map(net: Network, images: Tensor) -> Tensor:
    return net.backbone(normalise(images), levels=(-1,))[0]


def scores(net: Network, features: Tensor, size: tuple[int, int]) -> Tensor:
    """What a network makes of its backbone's features, at a picture of this size."""
    return net.upsampled(net.decoded(net.block(net.neck(features.float())), []), size)
