"""Batches for training, single pictures for evaluation.

Which samples come when says `order.py`, and a sample is a pure function of its key: the same batches come whatever the
number of workers and processes, and a run can resume at any step.
"""

import atexit
import ctypes
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import get_temp_dir
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset

from ordnet.config import DataConfig
from ordnet.data.augment import augment, fit_long_side, generator
from ordnet.data.dataset import Dataset as Split
from ordnet.data.dataset import neighbours, read_pair, starts_of
from ordnet.data.order import Shares, repeats
from ordnet.errors import OrdnetError

# torch warns beyond this process's cores; a few more do no harm, and training limits them itself
warnings.filterwarnings("ignore", message="This DataLoader will create")

_REPLACEMENTS = 100
"""This many broken samples in a row end the run even with skip_broken: the whole data set must be missing."""
_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


class Batch(NamedTuple):
    """Augmented crops for one training step."""

    images: Tensor
    """(B, 3, H, W) uint8 in channels_last memory; `model.pixels.normalise` makes it the network's input."""
    labels: Tensor
    """(B, H, W) uint8 class ids."""


@dataclass(frozen=True)
class Example:
    """One whole picture and its label, for evaluation."""

    index: int
    image: Tensor
    """(1, 3, H, W) uint8, at the picture's own size or shrunk to the long side that was asked for."""
    label: Tensor
    """(1, H, W) uint8 class ids."""


class Batches:
    """The training batches of one process; workers live from the first epoch to the last."""

    def __init__(
        self,
        dataset: Split,
        settings: DataConfig,
        *,
        crop: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """`batch_size` counts over all `world` processes. Each epoch drops what does not fill a last batch."""
        self.count = min(len(dataset.ids), settings.limit or len(dataset.ids))
        if batch_size % world:
            raise OrdnetError(f"a batch of {batch_size} cannot be shared evenly by {world} processes")
        if self.count < batch_size:
            limited = f" (data.limit is {settings.limit})" if self.count < len(dataset.ids) else ""
            fits = self.count // world * world
            such = f", such as --set training.batch_size={fits}" if fits else ""
            raise OrdnetError(
                f"{dataset.name} has {self.count} samples in its {dataset.split} split{limited}, fewer than one batch "
                f"of {batch_size}: use a smaller training.batch_size{such}"
            )
        self.size, self.steps = batch_size, self.count // batch_size
        self.broken: Counter[str] = Counter()
        """With skip_broken: what was wrong with the samples that others replaced → how often."""
        often = repeats(dataset, self.count, settings.balance) if settings.balance else None
        self.unevenness = 1.0 if often is None else float(often.max() / often.min())
        """How many times as often as others some pictures come."""
        self._shares = Shares(self.count, batch_size, seed, rank, world, starts_of(dataset), often)
        samples = _Augmented(dataset, settings, crop, seed, self.count)
        self._loader: DataLoader[Any] = DataLoader(
            samples,
            batch_sampler=self._shares,
            collate_fn=_stack,
            **_workers(settings.workers),
        )

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from `start_step` on."""
        self._shares.epoch, self._shares.start = epoch, start_step
        for images, labels, broken in _guarded(self._loader):
            self.broken.update(broken)
            yield Batch(images.permute(0, 3, 1, 2), labels)

    def close(self) -> None:
        """End the worker processes."""
        _end_workers(self._loader)


def fitted_pair(dataset: Split, index: int, long_side: int | None) -> tuple[Image.Image, np.ndarray]:
    """Image and label of one sample, shrunk to `long_side` where they are larger."""
    image, label = read_pair(dataset, index)
    image, fitted = fit_long_side(image, label, long_side)
    assert fitted is not None
    return image, fitted


def examples(
    dataset: Split,
    workers: int = 0,
    *,
    rank: int = 0,
    world: int = 1,
    broken: list[str] | None = None,
    long_side: int | None = None,
) -> Iterator[Example]:
    """Every picture of the split exactly once over all processes, in order, one at a time.

    With `long_side` larger pictures and their labels are shrunk, as training does with data.long_side.
    A broken sample stops the iteration, or, where a list is given, is left out and its message appended to that.
    """
    count = len(dataset.ids)
    # pictures of one shard stay together; others are dealt out, so that all have large and small ones
    mine = neighbours(count, rank, world) if starts_of(dataset) else range(rank, count, world)
    loader: DataLoader[Any] = DataLoader(_Whole(dataset, long_side), batch_size=None, sampler=mine, **_workers(workers))
    try:
        for index, loaded in zip(mine, _guarded(loader, raising=broken is None), strict=True):
            if isinstance(loaded, _Failure):
                assert broken is not None
                broken.append(loaded.message)
            else:
                image, label = loaded
                yield Example(index, image.permute(2, 0, 1)[None], label[None])
    finally:
        _end_workers(loader)


@dataclass(frozen=True)
class _Failure:
    """An error on its way out of a worker. Raised there, torch would wrap it into a trace-back."""

    message: str


class _Augmented(Dataset[Any]):
    """(epoch, index, turn) → augmented image, label, and the messages of broken samples that it replaces."""

    def __init__(self, dataset: Split, settings: DataConfig, crop: int, seed: int, count: int) -> None:
        self._dataset, self._settings, self._crop, self._seed, self._count = dataset, settings, crop, seed, count

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, list[str]] | _Failure:
        epoch, index, turn = key
        broken: list[str] = []
        for attempt in range(_REPLACEMENTS):
            try:
                image, label = fitted_pair(self._dataset, index, self._settings.long_side)
            except OrdnetError as error:
                if not self._settings.skip_broken:
                    return _Failure(str(error))
                broken.append(str(error))
                # another sample, the same one in every run; attempt + 2 keeps off the streams above
                index = int(np.random.default_rng((self._seed, epoch, key[1], attempt + 2)).integers(self._count))
                continue
            rng = generator(self._seed, epoch, key[1], turn)
            return *augment(image, label, rng, self._crop, self._settings), broken
        return _Failure(f"{_REPLACEMENTS} broken samples in a row; the last: {broken[-1]}")


class _Whole(Dataset[Any]):
    """Index → image (H, W, 3) and label (H, W)."""

    def __init__(self, dataset: Split, long_side: int | None) -> None:
        self._dataset, self._long_side = dataset, long_side

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor] | _Failure:
        try:
            image, label = fitted_pair(self._dataset, index, self._long_side)
        except OrdnetError as error:
            return _Failure(str(error))
        return torch.from_numpy(np.array(image)), torch.from_numpy(np.array(label))


def _stack(samples: list[Any]) -> tuple[Tensor, Tensor, list[str]] | _Failure:
    for sample in samples:
        if isinstance(sample, _Failure):
            return sample
    images, labels, broken = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels)), [m for ms in broken for m in ms]


def _workers(count: int) -> dict[str, Any]:
    """DataLoader's arguments about worker processes."""
    pinned = torch.cuda.is_available()
    init = partial(_leave_signals_to_the_parent, os.getpid()) if count else None
    if count:
        get_temp_dir()  # from now on workers put their sockets there, too; folders of their own would outlive them
    return {"num_workers": count, "persistent_workers": count > 0, "pin_memory": pinned, "worker_init_fn": init}


def _leave_signals_to_the_parent(parent: int, worker: int) -> None:
    """Ignore requests to stop, which often go to the whole process group: the parent needs its workers until it ends.

    If the parent is killed, its workers end with it: they share its lock on the run folder and its connections.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died before it was asked; in a container the parent may well be process 1
            os.kill(os.getpid(), signal.SIGKILL)


_started: "WeakSet[Any]" = WeakSet()
"""All worker processes; multiprocessing holds the references to those that live."""


def _end_workers(loader: DataLoader[Any]) -> None:
    """End a loader's processes at once, whatever they are doing: they hold nothing that could be lost.

    Left to themselves, workers that wait for each other (one was killed while it held a lock) would keep the
    process from ending.
    """
    reader: Any = getattr(loader, "_iterator", None)
    workers = getattr(reader, "_workers", [])
    if not workers:
        return
    if reader._worker_pids_set:  # or torch would report the deaths as failures
        _remove_worker_pids(id(reader))
        reader._worker_pids_set = False
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


@atexit.register
def _end_all_workers() -> None:
    """Kill the workers before multiprocessing waits for them: it only sends a SIGTERM, which they ignore."""
    if _started and os.name == "posix":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or torch would report the deaths as failures
    for worker in list(_started):
        worker.kill()


def is_dead_worker(error: BaseException) -> bool:
    """Whether this is torch's error about a worker process that died; it may come anywhere, from a signal handler.

    One that died while it handed a batch over is first noticed by the connection that broke. A file that was being
    written complains that it was cut off, while torch's error is being handled.
    """
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, RuntimeError) and "DataLoader worker" in str(before):
            return True
        before = before.__context__
    return isinstance(error, ConnectionError)


def dead_worker(error: BaseException) -> OrdnetError:
    """torch's error about a dead worker, in our words."""
    reason = str(error).partition("\n")[0]
    return OrdnetError(f"a loading process died, most likely for lack of memory; try fewer data.workers ({reason})")


def _guarded(loader: DataLoader[Any], raising: bool = True) -> Iterator[Any]:
    """What the loader yields. A failure is raised with its own message; a dead worker is an error, not a wait."""
    batches = iter(loader)
    _started.update(getattr(batches, "_workers", []))
    while True:
        try:
            loaded = next(batches)
        except StopIteration:
            return
        except (RuntimeError, ConnectionError) as error:
            if is_dead_worker(error):
                raise dead_worker(error) from None
            raise
        if raising and isinstance(loaded, _Failure):
            raise OrdnetError(loaded.message)
        yield loaded
