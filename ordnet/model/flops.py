"""Operations and bytes of a network, and an estimate of what training a recipe costs on GPUs.

Operations (two per multiply-add of convolutions and matrix products) are counted, and so are the bytes that a forward
pass keeps for the backward pass. Everything about time is an estimate from these and from the assumptions below:
nothing here was measured on a GPU.
"""

import copy
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ordnet.config import ModelConfig
from ordnet.model.build import build_from
from ordnet.recipes import Recipe


def gflops(module: nn.Module, *shape: int) -> float:
    """Operations of one forward pass on an input of this shape, in 10⁹. Nothing is computed: shapes are enough."""
    shadow = copy.deepcopy(module).to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow(torch.empty(shape, device="meta"))
    return counter.get_total_flops() / 1e9


@dataclass(frozen=True)
class Counted:
    """What training a network on one picture takes, in single precision."""

    operations: float
    """Those of the forward pass and of the backward pass, which takes twice as many."""
    kept: int
    """Bytes that stay in memory between the two."""
    parameters: int
    norms: int
    """Batch norms: on several GPUs each exchanges its statistics, once forward and once backward."""


def training_cost(net: nn.Module, crop: int) -> Counted:
    """Count one picture's training pass of a network (`Network.training_scores`); nothing is computed."""
    shadow = copy.deepcopy(net).to("meta").train()
    own = {parameter.untyped_storage()._cdata for parameter in shadow.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own:
            kept[storage] = tensor  # held, so that no other storage gets its address
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with FlopCounterMode(display=False) as counter, hooks:
        shadow.training_scores(torch.empty((1, 3, crop, crop), device="meta"), True)  # type: ignore[operator]
    return Counted(
        3.0 * counter.get_total_flops(),
        sum(tensor.untyped_storage().nbytes() for tensor in kept.values()),
        sum(parameter.numel() for parameter in shadow.parameters()),
        sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in shadow.modules()),
    )


@cache
def _recipe_cost(model: str, classes: int, crop: int) -> Counted:
    settings = ModelConfig.model_validate_json(model)
    with torch.device("meta"):
        net = build_from(settings, classes)
    return training_cost(net, crop)


def counted(recipe: Recipe) -> Counted:
    """What training on one picture takes with a recipe."""
    settings = recipe.settings
    model = settings.model.model_copy(update={"weights": None}).model_dump_json()
    return _recipe_cost(model, recipe.classes, settings.training.crop)


# ---- estimates: everything below rests on these numbers ----------------------------------------------------------

SHARE = 0.15
"""The share of a GPU's peak that training reaches; large matrix products alone would reach more."""
CORES, LOADED = 8, 100
"""CPU cores per GPU, and pictures that one core decodes and augments in a second."""
PICTURE = 0.1e6
"""Bytes of a picture of about 500 x 375 as JPEG, with its label."""
HOST = 8
"""GPUs of one host; more are in several hosts."""
ETHERNET = 12.5e9
"""Bytes a second between hosts, one way: 100 Gbit/s."""
EXCHANGE, FAR_EXCHANGE = 30e-6, 60e-6
"""Seconds of one exchange of a few numbers, in one host and between hosts."""


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, as its maker describes it."""

    name: str
    peak: float
    """Operations a second with 16-bit numbers, 32-bit sums, dense."""
    memory: float
    link: float
    """Bytes a second to the other GPUs of the host, one way."""


GPUS = (
    Gpu("T4", 65e12, 16e9, 12e9),
    Gpu("RTX 4090", 165e12, 24e9, 25e9),
    Gpu("V100", 125e12, 32e9, 150e9),
    Gpu("A100", 312e12, 80e9, 300e9),
    Gpu("H100", 989e12, 80e9, 450e9),
)
COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Estimate:
    """A recipe on some GPUs. Seconds are those of one step."""

    batch: int
    """The recipe's, or one picture for each GPU if there are more GPUs, which makes it another recipe."""
    network: float
    loader: float
    wire: float
    """Exchanging gradients and norm statistics, if nothing overlapped with it."""
    step: float
    """Gradients travel while the network still computes, statistics of norms do not."""
    hours: float
    memory: float
    """Bytes on each GPU."""
    traffic: float
    """Bytes of gradients that each GPU sends per second."""

    @property
    def pictures(self) -> float:
        """Pictures per second over all GPUs."""
        return self.batch / self.step

    @property
    def bottleneck(self) -> str:
        times = {"network": self.network, "loader": self.loader, "wire": self.wire}
        return max(times, key=lambda name: times[name])


def estimate(recipe: Recipe, gpu: Gpu, count: int, data: float = 1.0) -> Estimate:
    """What a recipe costs on `count` GPUs, with `data` times its pictures for the same number of epochs."""
    cost, training = counted(recipe), recipe.settings.training
    batch = max(training.batch_size, count)
    each = batch / count
    network = cost.operations * each / (SHARE * gpu.peak)
    loader = each / (CORES * LOADED)
    far = count > HOST
    # a ring: each GPU sends the gradients, 4 bytes a parameter, almost twice
    sent = 2 * (count - 1) / count * 4 * cost.parameters
    gradients = sent / (min(gpu.link, ETHERNET) if far else gpu.link)
    norms = 2 * cost.norms * (FAR_EXCHANGE if far else EXCHANGE) if count > 1 else 0.0
    step = max(network + norms, loader, gradients)
    steps = training.epochs * (recipe.pictures * data // batch)
    memory = 12 * cost.parameters + cost.kept / 2 * each  # weights, gradients, momentum; activations have 16 bits
    return Estimate(batch, network, loader, gradients + norms, step, steps * step / 3600, memory, sent / step)
