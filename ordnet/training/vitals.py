"""Vital signs of the omni-range block: what it adds, how much of that depends on the place, how its gate moves.

`watch` measures this while the network is training; `in_words` says it in sentences.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ordnet.model.parts import Block, Explanation

SAMPLES = 8
"""Forward passes looked at; the figures are means over them."""
_ALIVE, _IDLE = 0.10, 0.05
"""The size of what depends on the place, relative to the block's input: runs that need context reached 0.3, idle
blocks 0.02."""
_STILL = 0.05
"""A gate that moves less than this treats all positions alike."""
_CLOSED = 0.02
"""A gate whose mean is below this lets next to nothing through."""
_STUCK = 0.01
"""A gate that spreads less than this, and passes a smaller part of a gradient, cannot move any more."""


@contextmanager
def watch(net: nn.Module) -> Iterator[dict[str, float]]:
    """Measure the first few forward passes within this context; the dictionary is filled when it is left.

    added: ‖what the block adds‖ / ‖its input‖ · varying: the share of that which varies over space ·
    gate_mean and gate_spread: mean and deviation of Attn_g over the map · gate_gradient: how much of a gradient passes
    a sigmoid gate, 1 where it is half open, 0 where it is saturated. Empty without an omni-range block.
    """
    found: dict[str, float] = {}
    block = getattr(net, "block", None)
    if not isinstance(block, Block) or not block.adds_context:
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
def _measure(block: Block, x: Tensor, y: Tensor) -> dict[str, float]:
    added = y - x
    varying = added - added.mean(dim=(2, 3), keepdim=True)
    vitals = {
        "added": float(added.norm() / x.norm().clamp_min(1e-12)),
        "varying": float(varying.norm() / added.norm().clamp_min(1e-12)),
    }
    shown = block.explain(x) if block.has_gate and block.unexplained is None else Explanation()
    if shown.gate is not None:
        vitals["gate_mean"] = float(shown.gate.mean())
        vitals["gate_spread"] = float(shown.gate.std(correction=0))
        if shown.gate_norm == "sigmoid":
            # σ' = g (1 − g) is what a gradient is multiplied with on its way to queries and keys; at most 1/4
            vitals["gate_gradient"] = float((4 * shown.gate * (1 - shown.gate)).mean())
    return vitals


def in_words(vitals: dict[str, Any]) -> list[str]:
    """Sentences about an epoch's record; none where no vitals were measured."""
    if "added" not in vitals:
        return []
    added, varying = vitals["added"], vitals["varying"]
    alive = added * varying
    verdict = "is alive" if alive >= _ALIVE else "is nearly idle" if alive < _IDLE else "does little"
    words = [
        f"The block {verdict}: what it adds has {added:.0%} of its input's size, "
        f"and {varying:.0%} of that varies with the place in the picture."
    ]
    if alive < _IDLE:
        words.append(
            "This run's scores are the backbone's and the losses' rather than the block's. A block idles where the "
            "backbone sees the whole picture anyway, or where its features are small: larger pictures may help, or "
            "model.neck."
        )
    if "gate_mean" in vitals:
        words += _gate_in_words(vitals["gate_mean"], vitals["gate_spread"], vitals.get("gate_gradient"))
    return words


def _gate_in_words(mean: float, spread: float, gradient: float | None) -> list[str]:
    moves = "opens and closes" if spread >= _STILL else "hardly moves"
    if mean < _CLOSED:
        moves = "lets next to nothing of the long range through"
    passed = "" if gradient is None else f"; {gradient:.1%} of a gradient passes it"
    words = [
        f"The gate {moves}: over positions its mean is {mean:.2f} and its spread {spread:.3f}, on a scale from 0 to 1"
        f"{passed}."
    ]
    if gradient is None or _CLOSED <= mean <= 1 - _CLOSED:
        return words
    if gradient < _STUCK and spread < _STUCK:
        state = "shut" if mean < _CLOSED else "wide open"
        words.append(
            f"It is {state} by accident: everywhere alike, and no gradient passes that could change it. Large steps do "
            "this to the paper's gate; model.gate_logits=standard prevents it, a lower training.qk_rate may."
        )
    elif mean < _CLOSED:
        words.append("It is unused rather than stuck: a gradient still passes, and the network keeps it closed.")
    return words
