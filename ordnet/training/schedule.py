"""The learning-rate schedule, and the optimizer with the backbone's rate apart from everything else's."""

from typing import Any

from torch import nn, optim

from ordnet.config import TrainingConfig
from ordnet.model.parts import Block

_RATED_BATCH = 16
"""The batch size for which the base rate is meant."""


def poly(step: float, total: float, power: float) -> float:
    """The factor on the rate at `step` of `total`: from 1 at step 0 down to 0 at the end, and 0 after it."""
    return max(0.0, 1 - step / total) ** power


def parameter_groups(net: nn.Module, settings: TrainingConfig) -> list[dict[str, Any]]:
    """The optimizer's groups: `net.backbone` at rate · batch/16, everything else `head_rate` times as fast, and the
    block's queries and keys `qk_rate` times as fast as that.

    Frozen parameters are left out. Weight decay is on all others, norms and biases too, as the paper's runs have it.
    `initial_lr` is what `set_rate` starts from.
    """
    backbone = getattr(net, "backbone", None)
    slow = {id(p) for p in backbone.parameters()} if isinstance(backbone, nn.Module) else set()
    block = getattr(net, "block", None)
    products = block.query_and_key_parameters() if isinstance(block, Block) and settings.qk_rate != 1 else []
    apart = {id(p) for p in products}
    learning = [p for p in net.parameters() if p.requires_grad]
    rate = settings.rate * settings.batch_size / _RATED_BATCH
    groups = [
        ("backbone", rate, [p for p in learning if id(p) in slow]),
        ("head", rate * settings.head_rate, [p for p in learning if id(p) not in slow | apart]),
        ("queries and keys", rate * settings.head_rate * settings.qk_rate, [p for p in learning if id(p) in apart]),
    ]
    return [
        {"name": name, "params": own, "lr": lr, "initial_lr": lr, "weight_decay": settings.weight_decay}
        for name, lr, own in groups
        if own
    ]


def make_optimizer(net: nn.Module, settings: TrainingConfig) -> optim.Optimizer:
    """The optimizer that the settings name, with the rates of `parameter_groups`."""
    groups = parameter_groups(net, settings)
    if settings.optimizer == "adamw":
        return optim.AdamW(groups)
    return optim.SGD(groups, momentum=settings.momentum)


def set_rate(optimizer: optim.Optimizer, step: float, total: float, settings: TrainingConfig) -> None:
    """Give every group its rate at `step` (from 0) of `total`, whatever its rate was before; seconds do as well."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * poly(step, total, settings.power)
