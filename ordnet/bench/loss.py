"""The Lovász-softmax loss, forward and backward, against the plain loop over the classes."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ordnet.bench.measure import Row, interleaved, peak_megabytes
from ordnet.data.labels import IGNORE
from ordnet.progress import progress
from ordnet.training.lovasz import lovasz_softmax

SCORES = ("random", "peaked")
"""Like an untrained network's, and like a trained one's: sure of itself, right on four fifths of the regions."""


def run(
    repeats: int = 5, batch: int = 2, classes: int = 150, size: int = 240, kinds: Sequence[str] = SCORES
) -> list[Row]:
    """Ours and the plain loop on each kind of scores (batch, classes, size, size).

    `value` is the loss; `gradient_error` is the distance to the plain loop's gradient in float64, relative to its norm.
    """
    rows = []
    for kind in kinds:
        scores, labels = make_input(kind, batch, classes, size)
        times = interleaved({name: partial(step, name, scores, labels) for name in METHODS}, repeats)
        with progress() as bar:
            task = bar.add_task("gradient in float64", total=1 + len(METHODS))
            exact = step("plain", scores.double(), labels)[1]
            for name in METHODS:
                bar.update(task, description=f"peak memory: {name}", advance=1)
                value, gradient = step(name, scores, labels)
                case = {"name": name, "kind": kind, "batch": batch, "classes": classes, "size": size}
                rows.append(
                    Row(
                        f"{name}, {kind} scores",
                        seconds=times[name].seconds,
                        ratio=times[name].seconds / times["ours"].seconds,
                        spread=times[name].spread,
                        peak_mb=peak_megabytes("ordnet.bench.loss:prepare", **case),
                        extra={"value": value.item(), "gradient_error": _distance(gradient, exact)},
                    )
                )
    return rows


def _distance(gradient: Tensor, exact: Tensor) -> float:
    return ((gradient - exact).norm() / exact.norm()).item()


def plain_lovasz_softmax(scores: Tensor, labels: Tensor, ignore: int = IGNORE) -> Tensor:
    """The loss as one writes it down: for each class sort all errors, and let autograd find the gradient."""
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


METHODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ours": lovasz_softmax, "plain": plain_lovasz_softmax}


def step(name: str, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """One forward and backward pass: the loss and its gradient by the scores."""
    scores = scores.detach().requires_grad_()
    loss = METHODS[name](scores, labels)
    (gradient,) = torch.autograd.grad(loss, scores)
    return loss.detach(), gradient


def prepare(name: str, kind: str, batch: int, classes: int, size: int) -> Callable[[], object]:
    """The call whose peak memory is measured, in a process of its own."""
    step(name, *make_input(kind, 1, 2, 8))  # what torch sets up on first use is not the loss's
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
