"""The optimizer, its learning-rate schedule, and one step on a batch, split over processes and micro-batches."""

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, distributed, nn, optim

from ordnet.config import TrainingConfig
from ordnet.data.loader import Batch
from ordnet.errors import OrdnetError
from ordnet.model.network import Network
from ordnet.model.parts import Block
from ordnet.model.pixels import normalise
from ordnet.training.loss import class_weights_of, count_pixels, sample_pixels, scores_at, total_loss

_RATED_BATCH = 16
"""The batch size for which the base rate is meant."""
_FASTEST = 1e37


def poly(step: float, total: float, power: float) -> float:
    """The factor on the rate at `step` of `total`: from 1 at step 0 down to 0 at the end, and 0 after it."""
    return max(0.0, 1 - step / total) ** power


def parameter_groups(net: nn.Module, settings: TrainingConfig) -> list[dict[str, Any]]:
    """The optimizer's groups: `net.backbone` at rate · batch/16, everything else `head_rate` times as fast. The
    omni-range block learns `block_rate` times as fast as the head, its queries and keys `qk_rate` times that.

    Frozen parameters are left out. Weight decay applies to all others, norms and biases too, as in the paper's runs.
    `initial_lr` is what `set_rate` starts from.
    """
    backbone = getattr(net, "backbone", None)
    slow = {id(p) for p in backbone.parameters()} if isinstance(backbone, nn.Module) else set()
    block = getattr(net, "block", None)
    added = {id(p) for p in block.parameters()} if isinstance(block, Block) and block.adds_context else set()
    products = {id(p) for p in block.query_and_key_parameters()} if isinstance(block, Block) and added else set()
    rate = settings.rate * settings.batch_size / _RATED_BATCH
    head = rate * settings.head_rate
    rates = {
        "backbone": rate,
        "head": head,
        "block": head * settings.block_rate,
        "queries and keys": head * settings.block_rate * settings.qk_rate,
    }
    if max(rates.values()) > _FASTEST:
        raise OrdnetError(
            f"training.rate and its factors multiply to {max(rates.values()):g}, more than 32 bits can hold: lower them"
        )
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in rates}
    for p in net.parameters():
        name = "backbone" if id(p) in slow else "head"
        if id(p) in added:
            of_block = "queries and keys" if id(p) in products else "block"
            # at the head's rate they belong to its group, as in runs without rates of their own
            name = "head" if rates[of_block] == head else of_block
        if p.requires_grad:
            groups[name].append(p)
    return [
        {
            "name": name,
            "params": own,
            "lr": rates[name],
            "initial_lr": rates[name],
            "weight_decay": settings.weight_decay,
        }
        for name, own in groups.items()
        if own
    ]


def make_optimizer(net: nn.Module, settings: TrainingConfig) -> optim.Optimizer:
    """The optimizer that the settings name, with the rates of `parameter_groups`."""
    groups = parameter_groups(net, settings)
    if settings.optimizer == "adamw":
        # one pass over each tensor instead of ten: a third of the time, the same figures but for rounding
        return optim.AdamW(groups, fused=True)
    return optim.SGD(groups, momentum=settings.momentum)


def pace(steps: float, settings: TrainingConfig) -> float:
    """The factor on the rate of a run of so many steps, by the settings' `rate_steps`."""
    if not settings.rate_steps or not steps:
        return 1.0
    return min(2.0, max(0.5, math.sqrt(settings.rate_steps / steps)))


def set_rate(
    optimizer: optim.Optimizer, step: float, total: float, settings: TrainingConfig, steps: float | None = None
) -> None:
    """Give every group its rate at `step` (from 0) of `total`, whatever it was before.

    Both may be seconds too; then `steps` is how many steps the whole run will take.
    """
    factor = poly(step, total, settings.power) * pace(total if steps is None else steps, settings)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


Sample = tuple[Tensor, Tensor]
"""Rows and columns of pixels."""


class Trainee(nn.Module):
    """The network's training pass as a `forward`, the only method that DistributedDataParallel wraps."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor, small: bool, sample: Sample | None = None) -> tuple[Tensor, Tensor | None]:
        """Scores and auxiliary scores: at the picture's size, at the `small` scores', or at a `sample` of pixels."""
        scores, auxiliary = self.net.training_scores(images, small)
        if sample is None:
            if small and auxiliary is not None:
                auxiliary = self.net.upsampled(auxiliary, scores.shape[2:])
            return scores, auxiliary
        size = (images.shape[2], images.shape[3])
        scores = scores_at(scores, size, *sample, self.net.align_corners)
        if auxiliary is not None:
            auxiliary = scores_at(auxiliary, size, *sample, self.net.align_corners)
        return scores, auxiliary


def take_step(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, batch: Batch, training: TrainingConfig, step: int
) -> dict[str, float]:
    """Train on this process's share of the batch; returns the whole batch's loss and its parts.

    `step` counts from the beginning of the run.
    """
    _seed(training.seed, step, accelerator.process_index)
    net: Network = accelerator.unwrap_model(model).net
    small, sample, truth = training.loss_at != "picture", None, batch.labels
    if training.loss_at == "scores":
        truth = net.labels_at_scores(truth)
    elif training.loss_at == "sample":
        sample = sample_pixels((truth.shape[1], truth.shape[2]), net.stride, training.seed, step)
        truth = truth[:, sample[0]][:, :, sample[1]]
    counted = count_pixels(truth, class_weights_of(training))
    pixels = float(_summed(torch.tensor([counted], dtype=torch.float64), accelerator))
    size = training.micro_batch or len(batch.images)
    micro_batches = list(zip(batch.images.split(size), truth.split(size), strict=True))
    sums: dict[str, Tensor] = {}
    for index, (images, labels) in enumerate(micro_batches):
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        last = index == len(micro_batches) - 1
        # processes exchange gradients once, with the last micro-batch
        with nullcontext() if last else accelerator.no_sync(model):
            with accelerator.autocast():
                scores, auxiliary = model(normalise(images), small, sample)
            share = len(images) / training.batch_size
            loss, parts = total_loss(scores, auxiliary, labels, training, pixels, share)
            # processes average their gradients, but the parts are meant to be added
            accelerator.backward(loss * accelerator.num_processes)
        for name, value in {"loss": loss.detach(), **parts}.items():
            sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
    stacked = _summed(torch.stack([value.cpu().double() for value in sums.values()]), accelerator)
    losses = dict(zip(sums, stacked.tolist(), strict=True))
    _refuse_wild(losses, step)
    if training.clip:
        accelerator.clip_grad_norm_(model.parameters(), training.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return losses


def anybody(flag: bool, device: torch.device) -> bool:
    """Whether any process has raised the flag: all must leave the loop at the same step."""
    if not distributed.is_initialized():
        return flag
    votes = torch.tensor([float(flag)], device=device)
    distributed.all_reduce(votes)
    return bool(votes.item())


def share_buffers(net: nn.Module) -> None:
    """Give every process the first one's buffers, the statistics of batch norms: it is the one whose network is saved,
    and all must evaluate that network."""
    if distributed.is_initialized():
        for buffer in net.buffers():
            distributed.broadcast(buffer, 0)


def lost_connection(error: RuntimeError) -> bool:
    """Whether the error means that another process has gone."""
    words = str(error).lower()
    return distributed.is_initialized() and any(word in words for word in ("connection", "gloo", "nccl", "socket"))


def _seed(seed: int, step: int, process: int) -> None:
    """Seed dropout by step and process, so that a resumed run repeats it."""
    torch.manual_seed(np.random.SeedSequence((seed, step, process)).generate_state(1).item())


def _summed(values: Tensor, accelerator: Accelerator) -> Tensor:
    """Add the values up over all processes, in float64 on the CPU."""
    if accelerator.num_processes == 1:
        return values
    values = values.to(accelerator.device)
    distributed.all_reduce(values)
    return values.cpu()


def _refuse_wild(losses: dict[str, float], step: int) -> None:
    if math.isfinite(losses["loss"]):
        return
    shown = ", ".join(f"{name} {value:g}" for name, value in losses.items())
    raise OrdnetError(
        f"the loss is not finite at step {step} ({shown}). Start again with a lower training.rate, or training.clip, "
        "and --force; or, after a finished epoch, with another --out and --init RUN/last.safetensors"
    )
