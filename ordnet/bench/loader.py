"""Reading and augmenting pictures: one resampling step over the pixels needed, beside scaling all and cropping."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image

from ordnet.bench.measure import Row, interleaved
from ordnet.config import DataConfig
from ordnet.data.augment import augment, generator, random_window
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset, read_pair
from ordnet.data.labels import IGNORE

Augment = Callable[[Image.Image, np.ndarray, np.random.Generator, int, DataConfig], tuple[np.ndarray, np.ndarray]]


def run(
    spec: str, split: str = "train", crop: int = 224, base_size: int | None = None, images: int = 64, repeats: int = 5
) -> list[Row]:
    """Both ways read the first `images` of the split in one process and stack them into 8-bit tensors, crop x crop.

    Scales are 0.5 to 2 of each picture's own size, or of `base_size` for its long side.
    """
    dataset = open_dataset(spec, split)
    settings = DataConfig(name=spec, base_size=base_size)
    count = min(images, len(dataset.ids))
    contestants = {
        "scale and crop in one step": partial(_read, dataset, count, crop, settings, augment),
        "scale everything, then crop": partial(_read, dataset, count, crop, settings, scale_then_crop),
    }
    timings = interleaved(contestants, repeats)
    ours = next(iter(timings.values())).seconds
    return [
        Row(
            name=name,
            seconds=timing.seconds,
            spread=timing.spread,
            ratio=timing.seconds / ours,
            extra={"images_per_second": count / timing.seconds},
        )
        for name, timing in timings.items()
    ]


def _read(
    dataset: Dataset, count: int, crop: int, settings: DataConfig, way: Augment
) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = [way(*read_pair(dataset, index), generator(0, 0, index), crop, settings) for index in range(count)]
    images, labels = zip(*pairs, strict=True)
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels))


def scale_then_crop(
    image: Image.Image, label: np.ndarray, rng: np.random.Generator, crop: int, settings: DataConfig
) -> tuple[np.ndarray, np.ndarray]:
    """The plain way to what `augment` does without jitter: the same draws, the same pixels."""
    window = random_window(image.width, image.height, rng, crop, settings)
    size = window.to_width, window.to_height
    image = image.resize(size, Image.Resampling.BILINEAR)
    classes = Image.fromarray(label).resize(size, Image.Resampling.NEAREST)
    box = (window.left, window.top, window.left + window.columns, window.top + window.rows)
    image, classes = image.crop(box), classes.crop(box)
    if rng.random() < 0.5 and settings.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        classes = classes.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if image.size != (crop, crop):
        framed = Image.new("RGB", (crop, crop)), Image.new("L", (crop, crop), IGNORE)
        framed[0].paste(image)
        framed[1].paste(classes)
        image, classes = framed
    return np.array(image), np.array(classes)
