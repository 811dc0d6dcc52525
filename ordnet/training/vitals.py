"""Whether the omni-range block is alive: what it adds, how much of that depends on the place, how its gate moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ordnet.model.omni_range import OmniRange

SAMPLES = 8
"""Forward passes looked at; the figures are means over them."""


@contextmanager
def watch(net: nn.Module) -> Iterator[dict[str, float]]:
    """While the block is open, the first few forward passes are measured; the dictionary is filled at its end.

    added: ‖what the block adds‖ / ‖its input‖ · varying: the share of that which varies over space ·
    gate_mean and gate_spread: Attn_g over the map. Empty for networks without an omni-range block.
    """
    found: dict[str, float] = {}
    block = getattr(net, "block", None)
    if not isinstance(block, OmniRange):
        yield found
        return
    measured: list[dict[str, float]] = []

    def look(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if len(measured) < SAMPLES:
            measured.append(_measure(block, inputs[0].detach(), output.detach()))

    handle = block.register_forward_hook(look)
    try:
        yield found
    finally:
        handle.remove()
    if measured:
        found.update({key: sum(m[key] for m in measured) / len(measured) for key in measured[0]})


@torch.no_grad()
def _measure(block: OmniRange, x: Tensor, y: Tensor) -> dict[str, float]:
    added = y - x
    varying = added - added.mean(dim=(2, 3), keepdim=True)
    vitals = {
        "added": float(added.norm() / x.norm().clamp_min(1e-12)),
        "varying": float(varying.norm() / added.norm().clamp_min(1e-12)),
    }
    gate = block.gate_map(x)
    if gate is not None:
        vitals["gate_mean"] = float(gate.mean())
        vitals["gate_spread"] = float(gate.std(correction=0))
    return vitals
