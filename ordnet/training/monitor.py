"""Watching a run: a bar and a line per epoch, TensorBoard, and whether the omni-range block is alive.

The bar shows loss, mIoU, rate, speed and time left. The block's vital signs are how much it adds, how much of that
varies over the picture, and how its gate moves: `watch` measures them during training, `in_words` puts them into
sentences.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import miou_words, remarks
from ordnet.model.parts import Block, Explanation

_WEIGHTS = "--set training.class_weights=auto, "
_ADVICE = "; if that lasts, try {}a larger training.crop (or data.scale) for small things, or more epochs"
"""What helps a class that is never predicted."""


class Display:
    """A bar and lines on standard error: silent on all processes but the first, lines only without a terminal."""

    def __init__(self, main: bool) -> None:
        self.console = Console(stderr=True, quiet=not main, markup=False, emoji=False, highlight=False, soft_wrap=True)
        self._said: list[str] = []
        self.weighted = False
        """Whether classes are weighted already, so that weights are not advised."""
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not (main and self.console.is_terminal),
        )

    def say(self, text: str) -> None:
        self.console.print(text)

    @contextmanager
    def task(self, description: str, total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
        """A bar that the yielded function advances by one, with a few words on how it goes."""
        task = self.bar.add_task(description, total=total, completed=done, about="")

        def advance(about: str = "") -> None:
            self.bar.update(task, advance=1, about=about)

        try:
            yield advance
        finally:
            self.bar.remove_task(task)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Say in one line how an epoch went; `record` is the log's."""
        parts = [f"epoch {record['epoch']}/{epochs}", f"loss {record['loss']:.4f}"]
        if "miou" in record:
            parts.append(miou_words(record))
            parts.append(f"pixel accuracy {_share(record['pixel_accuracy'])} ({record['protocol']})")
        parts += [f"{name} {_share(value)}" for name, value in record.get("miou_by_range", {}).items()]
        parts += [f"rate {record['rate']:.2g}", f"{record['images_per_second']:.1f} images/s"]
        if "gate_mean" in record:
            parts.append(f"gate {record['gate_mean']:.2f} ± {record['gate_spread']:.2f}")
        self.say(" · ".join(parts))
        self._remark(record)

    def _remark(self, record: dict[str, Any]) -> None:
        """Say what the scores leave out and what was never predicted, whenever that changes."""
        if "miou" not in record:
            return
        found = remarks(record)
        for remark in found:
            if remark not in self._said:
                advice = _ADVICE.format("" if self.weighted else _WEIGHTS)
                self.say(f"  {remark}{advice if remark.startswith('never predicted') else ''}")
        self._said = found


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


class Board:
    """Every number of an epoch's record for TensorBoard (extra `log`); without a folder it does nothing."""

    def __init__(self, folder: Path | None, epoch: int = 0) -> None:
        self._writer: Any = None
        if folder is None:
            return
        # hides what a killed run wrote after the state that is resumed
        self._writer = board_writer()(folder, purge_step=epoch + 1)

    def write(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for key, value in record.items():
            inner = value if isinstance(value, dict) else {"": value}
            for name, number in inner.items():
                if isinstance(number, float):
                    self._writer.add_scalar(f"{key}/{name}".rstrip("/"), number, record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """End the thread that writes."""
        if self._writer is not None:
            self._writer.close()


def board_writer() -> Any:
    """TensorBoard's class; an error where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise OrdnetError("training.tensorboard needs TensorBoard: pip install 'ordnet[log]'") from None
    return SummaryWriter


SAMPLES = 8
"""Forward passes that are measured; the figures are means over them."""
_ALIVE, _IDLE = 0.10, 0.05
"""The size of what varies over the picture, relative to the block's input: runs that need context reached 0.3, idle
blocks 0.02."""
_STILL = 0.05
"""A gate that spreads less than this treats all positions alike."""
_CLOSED = 0.02
"""A gate whose mean is below this lets next to nothing through."""
_STUCK = 0.01
"""A gate that spreads less than this, and passes a smaller part of a gradient, cannot move any more."""
_EARLY = 300
"""After fewer steps than about these a block says little: it begins small, and learns what to add after the rest."""


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
            # σ' = g (1 − g) is the factor on a gradient on its way to queries and keys; at most 1/4
            vitals["gate_gradient"] = float((4 * shown.gate * (1 - shown.gate)).mean())
    return vitals


def in_words(vitals: dict[str, Any], neck: bool = False) -> list[str]:
    """Sentences about an epoch's record; none where no vitals were measured. `neck`: the model has one already."""
    if "added" not in vitals:
        return []
    added, varying, steps = vitals["added"], vitals["varying"], vitals.get("step")
    early = steps is not None and steps < _EARLY
    alive = added * varying
    verdict = "is alive" if alive >= _ALIVE else "is nearly idle" if alive < _IDLE else "does little"
    words = [
        f"The block {verdict}{' so far' * early}: what it adds has {added:.0%} of its input's size, "
        f"and {varying:.0%} of that varies with the place in the picture."
    ]
    if early:
        words.append(
            f"It is too early to tell: {steps} step{'s' * (steps != 1)}, and a block takes about {_EARLY} to show."
        )
    elif alive < _IDLE:
        where, helps = "the backbone sees the whole picture anyway", "larger pictures may help"
        if not neck:
            where, helps = f"{where}, or where its features are small", f"{helps}, or model.neck"
        words.append(
            f"This run's scores are the backbone's and the losses' rather than the block's. A block idles where "
            f"{where}: {helps}."
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
