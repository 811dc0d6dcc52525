"""What training waits for besides the network: the Lovász-softmax loss, and reading and augmenting pictures.

Each of our ways is compared with a plain one that gives the same result: a loop over the classes that sorts all errors,
and scaling a whole picture before cropping it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ordnet.bench.measure import Measurement, interleaved, peak_megabytes
from ordnet.config import DataConfig
from ordnet.data.augment import augment, generator, random_window
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Dataset, read_pair
from ordnet.data.labels import IGNORE
from ordnet.model.build import build_from
from ordnet.progress import progress
from ordnet.recipes import recipe_of
from ordnet.training.lovasz import lovasz_softmax

SCORES = ("random", "peaked")
"""Like an untrained network's, and like a trained one's: confident, and right on four fifths of the regions."""


def compare_losses(
    repeats: int = 5, batch: int = 2, classes: int = 150, size: int = 240, kinds: Sequence[str] = SCORES
) -> list[Measurement]:
    """Ours and the plain loop on each kind of scores (batch, classes, size, size).

    `value` is the loss; `gradient_error` is the distance to the plain loop's gradient in float64, relative to its norm.
    """
    rows = []
    for kind in kinds:
        scores, labels = make_input(kind, batch, classes, size)
        times = interleaved({name: partial(step, name, scores, labels) for name in LOSSES}, repeats)
        with progress() as bar:
            task = bar.add_task("gradient in float64", total=1 + len(LOSSES))
            exact = step("plain", scores.double(), labels)[1]
            for name in LOSSES:
                bar.update(task, description=f"peak memory: {name}", advance=1)
                value, gradient = step(name, scores, labels)
                case = {"name": name, "kind": kind, "batch": batch, "classes": classes, "size": size}
                rows.append(
                    Measurement(
                        f"{name}, {kind} scores",
                        seconds=times[name].seconds,
                        ratio=times[name].seconds / times["ours"].seconds,
                        spread=times[name].spread,
                        peak_mb=peak_megabytes("ordnet.bench.training:prepare_loss", **case),
                        extra={"value": value.item(), "gradient_error": _distance(gradient, exact)},
                    )
                )
    return rows


def step_memory(recipe: str, backbone: str, crop: int, batch: int) -> list[Measurement]:
    """Peak memory of one training step (forward, losses, backward) of a recipe's network, its weights not counted."""
    rows = []
    for form in ("factored", "literal"):
        case = {"recipe": recipe, "backbone": backbone, "form": form, "crop": crop, "batch": batch}
        name = f"{backbone}, decoder {recipe_of(recipe).settings.model.decoder}, block in {form} form"
        rows.append(Measurement(name, peak_mb=peak_megabytes("ordnet.bench.training:prepare_step", **case)))
    return rows


def prepare_step(recipe: str, backbone: str, form: str, crop: int, batch: int) -> Callable[[], object]:
    settings = recipe_of(recipe).settings
    config = settings.model.model_copy(update={"backbone": backbone, "form": form, "weights": None})
    torch.manual_seed(0)
    net = build_from(config, 8).train()
    images, labels = torch.randn(batch, 3, crop, crop), torch.randint(0, 8, (batch, crop, crop))

    def step_once(images: Tensor = images, labels: Tensor = labels) -> None:
        scores, _ = net.training_scores(images)
        loss = torch.nn.functional.cross_entropy(scores, labels) + lovasz_softmax(scores, labels)
        loss.backward()
        net.zero_grad(set_to_none=True)

    step_once(images[:2, :, :64, :64].clone(), labels[:2, :64, :64].clone())  # kernels reserve their own buffers
    return step_once


def _distance(gradient: Tensor, exact: Tensor) -> float:
    return ((gradient - exact).norm() / exact.norm()).item()


def plain_lovasz_softmax(scores: Tensor, labels: Tensor, ignore: int = IGNORE) -> Tensor:
    """The loss as it is usually written: for each class sort all errors, and let autograd find the gradient."""
    counts = labels.flatten() != ignore
    labels = labels.flatten()[counts]
    probabilities = scores.softmax(1).transpose(0, 1).flatten(1)[:, counts]  # (K, P)
    losses = []
    for class_id, probability in enumerate(probabilities.unbind()):
        foreground = (labels == class_id).to(scores.dtype)
        if foreground.any():
            errors, order = (foreground - probability).abs().sort(descending=True)
            own = foreground[order]
            jaccard = 1 - (own.sum() - own.cumsum(0)) / (own.sum() + (1 - own).cumsum(0))
            losses.append((errors * jaccard.diff(prepend=jaccard.new_zeros(1))).sum())
    return torch.stack(losses).mean() if losses else scores.sum() * 0


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ours": lovasz_softmax, "plain": plain_lovasz_softmax}


def step(name: str, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """One forward and backward pass: the loss and its gradient with respect to the scores."""
    scores = scores.detach().requires_grad_()
    loss = LOSSES[name](scores, labels)
    (gradient,) = torch.autograd.grad(loss, scores)
    return loss.detach(), gradient


def prepare_loss(name: str, kind: str, batch: int, classes: int, size: int) -> Callable[[], object]:
    """The call whose peak memory is measured, in a process of its own."""
    step(name, *make_input(kind, 1, 2, 8))  # what torch allocates on first use does not count
    return partial(step, name, *make_input(kind, batch, classes, size))


def make_input(kind: str, batch: int, classes: int, size: int) -> tuple[Tensor, Tensor]:
    """Scores (B, K, H, W) and labels (B, H, W), the same in every process.

    Random: unrelated to each other. Peaked: square regions, each predicted as one class with noise on top.
    """
    generator = torch.Generator().manual_seed(0)
    if kind == "random":
        labels = torch.randint(classes, (batch, size, size), generator=generator)
        return torch.randn(batch, classes, size, size, generator=generator), labels
    side = -(-size // 16)
    regions = torch.randint(classes, (batch, side, side), generator=generator)
    right = torch.rand(batch, side, side, generator=generator) < 0.8
    guesses = torch.where(right, regions, torch.randint(classes, (batch, side, side), generator=generator))
    labels, guesses = (x.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :size, :size] for x in (regions, guesses))
    scores = torch.randn(batch, classes, size, size, generator=generator).mul_(1.5)
    peaks = torch.full((batch, 1, size, size), 12.0)
    return scores.scatter_add_(1, guesses.unsqueeze(1), peaks), labels.contiguous()


Augment = Callable[[Image.Image, np.ndarray, np.random.Generator, int, DataConfig], tuple[np.ndarray, np.ndarray]]


def compare_loaders(
    spec: str, split: str = "train", crop: int = 224, base_size: int | None = None, images: int = 64, repeats: int = 5
) -> list[Measurement]:
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
        Measurement(
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
