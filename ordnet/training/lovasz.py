"""The Lovász-softmax loss (Berman, Triki and Blaschko, 2018) over the classes present, gradient in closed form.

For one class let F pixels be its own (foreground), and a pixel's error e = 1 − p on them and p elsewhere, p being the
class's probability. The loss is Σ w·e, where the weights w are how much the Jaccard loss grows as pixels turn wrong in
the order of falling error. With `union` = F + the background pixels up to and including this one in that order, and
`missed` = the foreground pixels still to come,

    w = 1 / union                             for a foreground pixel,
    w = missed / (union · (union − 1))        for a background pixel.

Two things follow. Given the order the loss is linear, so that w (with a sign) is also its gradient: nothing needs to be
kept per class for the backward pass. And a background pixel after the last foreground one weighs exactly nothing: it is
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
    loss is the mean over the classes present in the whole batch; with `per_image` in each image first, and then over
    the images that have a pixel that counts. Without any such pixel the loss is zero, and so is its gradient. Scores in
    half precision are computed in float32.
    """
    _check(scores, labels, ignore)
    loss: Tensor = _LovaszSoftmax.apply(scores, labels, ignore, per_image)
    return loss


@torch.no_grad()
def lovasz_of_probabilities(probabilities: Tensor, labels: Tensor, ignore: int = IGNORE) -> Tensor:
    """Each class's loss on given probabilities (B, K, H, W), as (K,) values; NaN for a class that no label has.

    On probabilities of 0 and 1 this is 1 − IoU. For inspection, not for training: it carries no gradient.
    """
    _check(probabilities, labels, ignore)
    probabilities = probabilities.to(_precision(probabilities))
    losses = probabilities.new_full((probabilities.shape[1],), torch.nan)
    labels = labels.flatten()
    for class_id, foreground in _foregrounds(labels, ignore).items():
        probability = probabilities[:, class_id].flatten()
        _, errors, weights = _weigh(probability, foreground, labels != ignore)
        losses[class_id] = (weights * errors).sum()
    return losses


class _LovaszSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, ignore: int, per_image: bool) -> Tensor:
        # whatever the layout of the scores, the pixels of one class are to be contiguous
        probabilities = scores.contiguous().softmax(1, dtype=_precision(scores)).flatten(2)
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
    foregrounds = _foregrounds(labels.flatten(), ignore)
    counts = (labels != ignore).flatten()
    losses = []
    for class_id, foreground in foregrounds.items():
        pixels, errors, weights = _weigh(probabilities[:, class_id].flatten(), foreground, counts)
        weights *= share / len(foregrounds)
        losses.append((weights * errors).sum())
        if slopes is not None:
            # a foreground error falls as the probability rises
            weights[: len(foreground)].neg_()
            slope = slopes.new_zeros(labels.numel())
            slope[pixels] = weights
            slopes[:, class_id] = slope.view_as(labels)
    return torch.stack(losses).sum()


def _weigh(probability: Tensor, foreground: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One class's pixels that matter (indices, foreground first), their errors, and what each error weighs.

    probability (P,) of the class, foreground (F ≥ 1) indices of its own pixels, counts (P,) False at void pixels.
    """
    own_errors = (1 - probability[foreground]).abs()
    matters = (probability > own_errors.amin()) & counts
    matters[foreground] = False
    background = matters.nonzero().squeeze(1)
    errors = torch.cat([own_errors, probability[background]])

    # bit patterns of floats ≥ 0 have the floats' order, and integers sort several times faster on a CPU
    order = errors.view(torch.int64 if errors.dtype == torch.float64 else torch.int32).argsort()
    # in order of rising error, the foreground pixels "still to come" are those up to this one
    is_own = order < len(foreground)
    missed = is_own.cumsum(0)
    union = torch.arange(len(order), 0, -1, device=order.device) + missed - is_own.long()
    union = union.to(errors.dtype)
    weights = torch.empty_like(errors)
    weights[order] = torch.where(is_own, 1, missed / (union - 1)) / union
    return torch.cat([foreground, background]), errors, weights


def _foregrounds(labels: Tensor, ignore: int) -> dict[int, Tensor]:
    """Class id → the indices of its pixels among the flat labels, for the classes present."""
    order = labels.argsort(stable=True)
    ids, counts = labels[order].unique_consecutive(return_counts=True)
    pixels = order.split(counts.tolist())
    return {class_id: own for class_id, own in zip(ids.tolist(), pixels, strict=True) if class_id != ignore}


def _back_through_softmax(probabilities: Tensor, gradient: Tensor) -> None:
    """Turn the gradient of probabilities into that of scores, in place: p · (g − Σ p·g)."""
    inner = torch.zeros_like(gradient[:, 0])
    # class by class: no temporary of the full size, and each row is still in the cache for its second step
    for p, g in zip(probabilities.unbind(1), gradient.unbind(1), strict=True):
        inner.addcmul_(p, g)
    for p, g in zip(probabilities.unbind(1), gradient.unbind(1), strict=True):
        g.sub_(inner).mul_(p)


def _precision(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


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
