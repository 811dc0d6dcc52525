"""The network a run begins with: fresh, from backbone weights, or from a whole checkpoint; and its moving average."""

import copy
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ordnet.config import ModelConfig, Settings, TrainingConfig
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint
from ordnet.model.build import SCRATCH, build_from
from ordnet.model.card import find
from ordnet.model.network import Network

_AUXILIARY = "auxiliary."
WIDTHS = ("neck", "block_stride", "key_channels", "value_channels")


def start_network(
    config: ModelConfig, names: Sequence[str], init: Path | None, seed: int, say: Callable[[str], None]
) -> Network:
    """The same network on every process: its random start is a function of the seed."""
    torch.manual_seed(seed)
    if init is None:
        return build_from(config, len(names), say)
    before = checkpoint.load(find(init))
    # a checkpoint includes its backbone, and records which layer that strides on
    config = config.model_copy(update={"weights": None, "stride_on": before.net.config.stride_on})
    net = build_from(config, len(names))
    own, given = net.state_dict(), before.net.state_dict()
    fresh: set[str] = set()
    if net.auxiliary is None or before.net.auxiliary is None:  # of use in training alone: nothing is lost without it
        given = {key: value for key, value in given.items() if not key.startswith(_AUXILIARY)}
        fresh = {key for key in own if key.startswith(_AUXILIARY)}
    if before.classes != tuple(names):
        fresh |= {key for key in own if key.startswith(_last_layers(net))}
        say(
            f"{init} has other classes ({len(before.classes)}: {_few(before.classes)}) than this data set "
            f"({len(names)}: {_few(names)}): the last layer starts anew"
        )
    wrong = [key for key in own if key not in fresh and (key not in given or given[key].shape != own[key].shape)]
    wrong += [key for key in given if key not in own]
    if wrong:
        there, here = before.net.config.model_dump(), net.config.model_dump()
        keys = [key for key in here if there[key] != here[key]]
        differ = [f"model.{key} is {there[key]} there and {here[key]} here" for key in keys]
        raise OrdnetError(
            f"{init} holds another network than the settings ask for: {'; '.join(differ)}. "
            f"{len(wrong)} tensors do not fit, such as {wrong[0]}"
        )
    net.load_state_dict({key: given[key] for key in own if key not in fresh}, strict=False)
    say(f"starts with the weights of {init}")
    return net


def widths_of(init: Path, config: ModelConfig, fixed: Collection[str]) -> dict[str, Any]:
    """The widths and the kind of fine decoder in which the checkpoint's network differs from the settings, except for
    those that are `fixed`.

    Which network it is (variant, backbone, patches, gate, …) stays with the settings: a recipe must train what it says.
    """
    before = checkpoint.load(find(init)).net.config
    if (before.variant, before.backbone) != (config.variant, config.backbone):
        return {}  # refused later, with what differs
    names = WIDTHS if "plain" in (before.decoder, config.decoder) else (*WIDTHS, "decoder")
    theirs = {name: getattr(before, name) for name in names if name not in fixed}
    return {name: value for name, value in theirs.items() if value != getattr(config, name)}


def _last_layers(net: Network) -> tuple[str, ...]:
    """Key prefixes of the layers whose width is the number of classes."""
    heads = {"head": net.head, "auxiliary": net.auxiliary}
    return tuple(f"{name}.{len(head) - 1}." for name, head in heads.items() if isinstance(head, nn.Sequential))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def frozen_stages(net: Network, settings: Settings) -> list[nn.Module]:
    """Freeze the backbone's first stages, as many as training.freeze_stages says; returns them, for `learning_mode`.

    An auxiliary head whose loss has no weight is frozen too: processes wait for the gradient of all that learns.
    """
    model = settings.model
    auxiliary = getattr(net, "auxiliary", None)  # networks of others have none
    if auxiliary is not None and settings.training.auxiliary == 0:
        auxiliary.requires_grad_(False)
    if model.weights in (None, "none") or model.backbone in SCRATCH:
        return []  # what has not been taught anything has to learn
    stages = net.first_stages(settings.training.freeze_stages)
    for stage in stages:
        stage.requires_grad_(False)
    return stages


def learning_mode(net: nn.Module, training: TrainingConfig, frozen: Sequence[nn.Module]) -> None:
    """Have the network learn, but for norms and stages that are to stay as they are."""
    net.train()
    if training.freeze_norm:
        freeze_norms(net)
    for stage in frozen:
        stage.eval()


def freeze_norms(net: nn.Module) -> None:
    """Let batch norms keep the statistics they came with; their scale and shift still learn."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def synchronise_norms(net: Network) -> Network:
    """Let batch norms see the batches of all GPUs. The backbone converts its own."""
    net.backbone = net.backbone.with_synchronised_norms()
    return nn.SyncBatchNorm.convert_sync_batchnorm(net)


class Averaged:
    """An exponential moving average of a network, which is evaluated and saved in its place.

    The average is short at first and grows to its full length: otherwise the random start would count for as long as
    the average remembers, and the first evaluations, or a whole short run, would be of an untrained network.

    torch.optim.swa_utils.AveragedModel gives the same floats to the bit in the same time (5 ms for MobileNetV2), but
    it rounds batch norm's counters of batches down to 0, and a resumed run would have to keep a counter of its own.
    """

    def __init__(self, net: Network, decay: float) -> None:
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, net: Network, step: int) -> None:
        """Add the network as it is after `step` steps, counted from 1."""
        share = max(1 - self.decay, 9 / (9 + step))  # step 1 takes nearly all of it, step 100 a twelfth
        for own, new in zip(self.net.state_dict().values(), net.state_dict().values(), strict=True):
            if own.is_floating_point():
                own.lerp_(new, share)
            else:
                own.copy_(new)
