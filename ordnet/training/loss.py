"""The loss: cross-entropy and Lovász-softmax, and cross-entropy on the auxiliary scores.

A batch may be spread over processes and accumulation steps. Each of them sees a micro-batch and returns its part of the
batch's loss: the parts' sum is the loss, and the sum of their gradients its gradient. (Where processes average their
gradients, as DistributedDataParallel does, multiply each part by the number of processes.)

Losses may be taken at a sample of the pixels: one in each cell of the small scores' grid, a different one at each step.
Losses at the picture's size see every pixel, at a price: with scores at a quarter of its size, sixteen times as many
are computed and compared. Losses at the small scores' own positions are cheap, but always see the same pixel of a cell;
a network then learns lines of one to three pixels as dots, and what upsampling makes between the dots is left to
chance. A sample that moves sees all pixels in time and costs as little: its mean over all offsets is the cross-entropy
at the picture's size.

Shapes: B images, K classes, H x W pixels, h x w small scores.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ordnet.config import TrainingConfig
from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError
from ordnet.inference.upsample import sources
from ordnet.training.lovasz import lovasz_softmax


def total_loss(
    scores: Tensor,
    auxiliary: Tensor | None,
    labels: Tensor,
    settings: TrainingConfig,
    pixels: Tensor | float,
    share: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's part of the batch's loss, and what it consists of.

    scores and auxiliary scores (B, K, H, W), labels (B, H, W). `pixels` is `count_pixels` summed over all micro-batches
    of the batch, so that cross-entropy does not depend on how the batch was split. `share` is the part of the batch's
    samples in this micro-batch. It weighs the Lovász loss, which compares all pixels with each other and so can only be
    taken per micro-batch: the larger the micro-batch, the closer to the loss of the whole batch.

    The parts (`cross_entropy`, `lovasz`, `auxiliary`) carry no gradient and are not yet weighted by the settings; one
    whose weight is 0 is not computed. Where no pixel counts, everything is zero, the gradient too.
    """
    losses: dict[str, tuple[float, Tensor]] = {}
    weights = class_weights_of(settings)
    if settings.cross_entropy > 0:
        loss = cross_entropy(scores, labels, pixels, weights)
        losses["cross_entropy"] = settings.cross_entropy, loss
    if settings.lovasz > 0:
        loss = share * lovasz_softmax(scores, labels, per_image=settings.lovasz_per_image)
        losses["lovasz"] = settings.lovasz, loss
    if auxiliary is not None and settings.auxiliary > 0:
        loss = cross_entropy(auxiliary, labels, pixels, weights)
        losses["auxiliary"] = settings.auxiliary, loss
    if not losses.keys() - {"auxiliary"}:
        raise OrdnetError("no loss has a weight: give training.cross_entropy or training.lovasz one above 0")
    total = torch.stack([weight * loss for weight, loss in losses.values()]).sum()
    return total, {name: loss.detach() for name, (_, loss) in losses.items()}


def class_weights_of(settings: TrainingConfig) -> tuple[float, ...] | None:
    """The class weights as numbers: `auto` must have been counted before (ordnet.training.prepare)."""
    if settings.class_weights == "auto":
        raise OrdnetError("training.class_weights is auto, which is known only once the training labels were counted")
    return settings.class_weights


def faded(settings: TrainingConfig, done: float) -> TrainingConfig:
    """The settings with the class weights faded as far as they are after the part `done` (0 to 1) of the run."""
    weights = class_weights_of(settings)
    if weights is None or settings.class_weights_fade == 0:
        return settings
    power = 1 - settings.class_weights_fade * min(done, 1.0)
    return settings.model_copy(update={"class_weights": tuple(weight**power if weight else 0.0 for weight in weights)})


def cross_entropy(
    scores: Tensor, labels: Tensor, pixels: Tensor | float, class_weights: tuple[float, ...] | None = None
) -> Tensor:
    """Cross-entropy summed over the pixels that count and divided by `pixels`; 0 where `pixels` is 0.

    It is computed in float32, or in float64 where the scores are.
    """
    scores = scores if scores.dtype == torch.float64 else scores.float()
    weights = None
    if class_weights is not None:
        weights = _weights(class_weights, scores.shape[1], scores)
    loss = functional.cross_entropy(scores, labels.long(), weights, ignore_index=IGNORE, reduction="sum")
    pixels = torch.as_tensor(pixels, dtype=scores.dtype, device=scores.device)
    return loss / torch.where(pixels > 0, pixels, 1)


def count_pixels(labels: Tensor, class_weights: tuple[float, ...] | None = None) -> float:
    """The number of pixels that count, each multiplied by its class's weight if there are weights.

    Summed over all micro-batches and processes this is what cross-entropy is divided by.
    """
    counted = labels[labels != IGNORE]
    if class_weights is None:
        return float(counted.numel())
    pixels = torch.bincount(counted.long(), minlength=len(class_weights)).cpu().double()
    return float((pixels * _weights(class_weights, len(pixels), pixels)).sum())


def _weights(class_weights: tuple[float, ...], classes: int, like: Tensor) -> Tensor:
    if len(class_weights) != classes or min(class_weights) < 0:
        raise OrdnetError(
            f"training.class_weights has {len(class_weights)} values, the least {min(class_weights, default=0)}: "
            f"expected {classes}, one per class, none below 0"
        )
    return torch.tensor(class_weights, dtype=like.dtype, device=like.device)


def sample_pixels(size: tuple[int, int], stride: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """The rows and the columns of the pixels that count at this step, a function of the seed and the step alone."""
    # the last number keeps this stream apart from that of dropout
    rng = np.random.default_rng((seed, step, 0, 7))
    starts = rng.integers(0, np.minimum(stride, size))
    rows, columns = (torch.arange(int(start), side, stride) for start, side in zip(starts, size, strict=True))
    return rows, columns


def scores_at(scores: Tensor, size: tuple[int, int], rows: Tensor, columns: Tensor, align_corners: bool) -> Tensor:
    """Small scores (B, K, h, w) → what bilinear upsampling to H x W gives at these rows and columns, and no more."""
    for axis, side, places in ((2, size[0], rows), (3, size[1], columns)):
        # worked out in 64 bits, which not every device has
        found = _neighbours(scores.shape[axis], side, places, align_corners)
        low, high = (places.to(scores.device) for places in found[:2])
        share = found[2].to(scores.device, scores.dtype).view(-1, *[1] * (3 - axis))
        below, above = scores.index_select(axis, low), scores.index_select(axis, high)
        scores = torch.lerp(below, above, share.expand_as(below))
    return scores


def _neighbours(small: int, side: int, places: Tensor, align_corners: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Between which two of `small` values each pixel of a side lies, and how far towards the second."""
    where = sources(places, side, small, align_corners)
    low = where.floor().long().clamp(max=small - 1)
    return low, (low + 1).clamp(max=small - 1), where - low
