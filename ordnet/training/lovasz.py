"""The Lovász-softmax loss (Berman, Triki and Blaschko, 2018) over the classes present, with its gradient in closed form.

For one class let F pixels be its own (foreground), and a pixel's error e = 1 − p on them and p elsewhere, p being the
class's probability. The loss is Σ w·e, where the weights w are how much the Jaccard loss grows as pixels turn wrong in
the order of falling error. With `union` = F + the background pixels up to and including this one in that order, and
`missed` = the foreground pixels still to come,

    w = 1 / union                             for a foreground pixel,
    w = missed / (union · (union − 1))        for a background pixel.

Two things follow. Given the order the loss is linear, so that w (with a sign) is also its gradient: nothing needs to be
kept per class for the way back. And a background pixel after the last foreground one weighs exactly nothing: it is
neither sorted nor summed, which leaves few pixels to sort. The closed form also avoids the difference of two nearly
equal Jaccard indices, which loses most digits in float32.

Shapes: B images, K classes, N pixels per image; scores (B, K, H, W), probabilities (B, K, N), labels (B, N).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError


def lovasz_softmax(scores: Tensor, labels: Tensor, ignore: int = IGNORE, per_image: bool = False) -> Tensor:
    """The loss, 0 to 1, as a scalar; the gradient reaches the scores.

    scores (B, K, H, W) are before the softmax, labels (B, H, W) hold class ids and `ignore` where nothing counts. The
    classes present are averaged over the whole batch, or with `per_image` over each image first and then over the images
    that have a pixel that counts. Without any such pixel the loss is zero, and so is its gradient. Half precision is
    summed in float32.
    """
    _check(scores, labels, ignore)
    loss: Tensor = _LovaszSoftmax.apply(scores, labels, ignore, per_image)
    return loss


@torch.no_grad()
def lovasz_of_probabilities(probabilities: Tensor, labels: Tensor, ignore: int = IGNORE) -> Tensor:
    """Each class's loss on given probabilities (B, K, H, W), as (K,) values; NaN for a class that no label has.

    On probabilities of 0 and 1 this is 1 − IoU. For looking at, not for training: it carries no gradient.
    """
    _check(probabilities, labels, ignore)
    losses = probabilities.new_full((probabilities.shape[1],), torch.nan)
    labels = labels.flatten()
    for class_id, foreground in _foregrounds(labels, ignore).items():
        probability = probabilities[:, class_id].flatten()
        pixels, errors, weights = _weigh(probability, foreground, labels != ignore)
        losses[class_id] = (weights * errors).sum()
    return losses


class _LovaszSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, ignore: int, per_image: bool) -> Tensor:
        dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        # whatever the layout of the scores, one class's pixels shall lie together
        probabilities = scores.contiguous().softmax(1, dtype=dtype).flatten(2)
        gradient = torch.zeros_like(probabilities) if ctx.needs_input_grad[0] else None
        labels = labels.flatten(1)
        groups = [slice(i, i + 1) for i in range(len(labels))] if per_image else [slice(None)]
        groups = [group for group in groups if (labels[group] != ignore).any()]

        loss = probabilities.new_zeros(())
        for group in groups:
            slopes = gradient[group] if gradient is not None else None
            loss += _mean_over_classes(probabilities[group], labels[group], ignore, 1 / len(groups), slopes)
        if gradient is not None:
            _back_through_softmax(probabilities, gradient)
            ctx.save_for_backward(gradient)
            ctx.shape, ctx.dtype = scores.shape, scores.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * loss_gradient).to(ctx.dtype).view(ctx.shape), None, None, None


def _mean_over_classes(
    probabilities: Tensor, labels: Tensor, ignore: int, share: float, slopes: Tensor | None
) -> Tensor:
    """`share` times the mean loss of the classes present; `slopes` (B, K, N), zero before, receives its gradient."""
    counts = labels != ignore
    foregrounds = _foregrounds(labels, ignore)
    share /= len(foregrounds)
    loss = probabilities.new_zeros(())
    for class_id, foreground in foregrounds.items():
        pixels, errors, weights = _weigh(probabilities[:, class_id].flatten(), foreground, counts.flatten())
        weights *= share
        loss += (weights * errors).sum()
        if slopes is not None:
            # a foreground error falls as the probability rises
            weights[: len(foreground)].neg_()
            slope = slopes.new_zeros(labels.numel())
            slope[pixels] = weights
            slopes[:, class_id] = slope.view_as(labels)
    return loss


def _weigh(probability: Tensor, foreground: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One class's pixels that matter (indices, foreground first), their errors, and what each error weighs.

    probability (P,) of the class, foreground (F ≥ 1) indices of its own pixels, counts (P,) False at void pixels.
    """
    foreground_errors = (1 - probability[foreground]).abs()
    ahead = (probability > foreground_errors.amin()) & counts
    ahead[foreground] = False
    background = ahead.nonzero().squeeze(1)
    errors = torch.cat([foreground_errors, probability[background]])

    # bit patterns of floats ≥ 0 have the floats' order, and integers sort several times faster on a CPU
    order = errors.view(torch.int64 if errors.dtype == torch.float64 else torch.int32).argsort()
    is_foreground = order < len(foreground)
    smaller = is_foreground.cumsum(0)  # foreground pixels up to here, in the order of rising error
    # what the order of falling error has before and at this pixel, plus the foreground still to come
    union = torch.arange(len(order), 0, -1, device=order.device) + smaller - is_foreground.long()
    sorted_weights = torch.where(is_foreground, 1, smaller / (union - 1)) / union
    weights = torch.empty_like(errors)
    weights[order] = sorted_weights.to(errors.dtype)
    return torch.cat([foreground, background]), errors, weights


def _foregrounds(labels: Tensor, ignore: int) -> dict[int, Tensor]:
    """Class id → the flat indices of its pixels, for the classes present."""
    order = labels.flatten().argsort(stable=True)
    ids, counts = labels.flatten()[order].unique_consecutive(return_counts=True)
    pixels = order.split(counts.tolist())
    return {class_id: own for class_id, own in zip(ids.tolist(), pixels, strict=True) if class_id != ignore}


def _back_through_softmax(probabilities: Tensor, gradient: Tensor) -> None:
    """Turn a gradient by probabilities into one by scores, in place: p · (g − Σ p·g)."""
    inner = torch.zeros_like(gradient[:, 0])
    # class by class: no temporary of the full size, and each row is still in the cache for its second step
    for p, g in zip(probabilities.unbind(1), gradient.unbind(1), strict=True):
        inner.addcmul_(p, g)
    for p, g in zip(probabilities.unbind(1), gradient.unbind(1), strict=True):
        g.sub_(inner).mul_(p)


def _check(scores: Tensor, labels: Tensor, ignore: int) -> None:
    if scores.dim() != 4 or labels.shape != scores.shape[:1] + scores.shape[2:]:
        raise OrdnetError(
            f"scores of shape {tuple(scores.shape)} and labels of shape {tuple(labels.shape)} do not fit: "
            "expected (B, K, H, W) and (B, H, W)"
        )
    outside = ((labels < 0) | (labels >= scores.shape[1])) & (labels != ignore)
    if outside.any():
        raise OrdnetError(
            f"labels hold the values {labels[outside].unique().tolist()[:8]}, but the scores have "
            f"{scores.shape[1]} classes: expected 0…{scores.shape[1] - 1}, and {ignore} where nothing counts"
        )
