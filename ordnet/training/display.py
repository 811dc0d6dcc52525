"""What a person sees of a run: a bar with loss, mIoU, rate, speed and time left, a line per epoch, and TensorBoard."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import miou_words, remarks

_WEIGHTS = "--set training.class_weights=auto, "
_ADVICE = "; if that lasts, try {}a larger training.crop (or data.scale) for small things, or more epochs"
"""What helps a class that is never predicted."""


class Display:
    """A bar and lines on standard error: silent on all processes but the first, lines only without a terminal."""

    def __init__(self, main: bool) -> None:
        self.console = Console(stderr=True, quiet=not main, markup=False, emoji=False, highlight=False, soft_wrap=True)
        self._said: list[str] = []
        self.weighted = False
        """Whether rare classes weigh more already, and need not be advised."""
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
        """A bar that the returned function moves on by one, with a few words about how it goes."""
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
        """Say what the scores do not tell and what was never predicted, whenever that changes."""
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
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise OrdnetError("training.tensorboard needs TensorBoard: pip install 'ordnet[log]'") from None
        # what a killed run wrote after the state that is resumed is hidden
        self._writer = SummaryWriter(folder, purge_step=epoch + 1)

    def write(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for key, value in record.items():
            inner = value if isinstance(value, dict) else {"": value}
            for name, number in inner.items():
                if isinstance(number, float):
                    self._writer.add_scalar(f"{key}/{name}".rstrip("/"), number, record["epoch"])
        self._writer.flush()
