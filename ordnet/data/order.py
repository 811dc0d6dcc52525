"""Which samples an epoch has, and in which order: a pure function of (seed, epoch).

A sample's key is (epoch, index, turn): its turn counts how often it came before in the epoch. So the same samples come
whatever the number of workers and processes, and a run can resume at any step. That holds for shards too: each place in
the batch reads its own part of the sequence of shuffled shards, and a process has neighbouring places.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from ordnet.data.dataset import Dataset, Spread
from ordnet.data.statistics import label_counts


def order(count: int, seed: int, epoch: int, starts: Sequence[int] = (), often: np.ndarray | None = None) -> np.ndarray:
    """The indices below `count`, shuffled; of a data set in shards, which begin at `starts`, shard after shard.

    With `often` there are as many in all, but each comes as often as that says, rounded up or down by chance.
    """
    # the last number keeps this stream apart from those of the samples
    rng = np.random.default_rng((seed, epoch, 0, 1))
    if starts:
        shards = np.split(np.arange(count), [start for start in starts if 0 < start < count])
        indices = np.concatenate([rng.permutation(shards[place]) for place in rng.permutation(len(shards))])
    else:
        indices = rng.permutation(count)
    if often is None:
        return indices
    # each index owns a stretch as long as it comes often; every step of 1 along all of them lands on one
    ends = np.cumsum(often[indices])
    places = np.searchsorted(ends, np.arange(count) + rng.random(), side="right").clip(max=count - 1)
    return indices[places] if starts else rng.permutation(indices[places])


def _turns(indices: np.ndarray) -> list[int]:
    """How often each index came before in the same sequence."""
    came: Counter[int] = Counter()
    turns = []
    for index in indices.tolist():
        turns.append(came[index])
        came[index] += 1
    return turns


_HELD = 0.01
"""A picture holds a class that has this share of its labelled pixels."""
_MOST_OFTEN = 3
"""Times as often as a picture of common classes only: few pictures seen again and again would be learnt by heart."""


def repeats(dataset: Dataset, count: int, balance: float) -> np.ndarray:
    """How often each of the first `count` pictures comes in an epoch, see `balancing_repeats`."""
    counts, _ = label_counts(Spread(dataset, count, count))
    return balancing_repeats(counts[:, : len(dataset.classes)].astype(float), balance)


def balancing_repeats(counts: np.ndarray, balance: float) -> np.ndarray:
    """How often each picture comes in an epoch (mean 1), so that rare classes are seen more often, from the pixels
    (pictures, classes) of each class in each picture.

    The rule is that of LVIS (repeat factor sampling): a picture comes as often as its rarest class asks for, the root
    of `balance` over the share of the pictures that hold the class.
    """
    held = counts > _HELD * counts.sum(axis=1, keepdims=True)
    asked = np.sqrt(balance / np.maximum(held.mean(axis=0), 1 / max(len(counts), 1)))
    often = np.where(held, asked, 0).max(axis=1, initial=0).clip(1, _MOST_OFTEN)
    return often / often.mean()


class Shares(Sampler[list[tuple[int, int, int]]]):
    """Which (epoch, index, turn) samples this process reads at each step. Workers learn the epoch from the key."""

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        rank: int,
        world: int,
        starts: Sequence[int] = (),
        often: np.ndarray | None = None,
    ) -> None:
        self.epoch = self.start = 0
        self._count, self._batch, self._seed, self._starts, self._often = count, batch_size, seed, starts, often
        share = batch_size // world
        self._mine = slice(rank * share, (rank + 1) * share)

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        steps = self._count // self._batch
        indices = order(self._count, self._seed, self.epoch, self._starts, self._often)[: steps * self._batch]
        keys = np.stack([indices, _turns(indices)], axis=1)
        # shards: place b of the batch goes through the b-th part of the sequence, whichever process has that place
        batches = (
            keys.reshape(self._batch, steps, 2).swapaxes(0, 1) if self._starts else keys.reshape(steps, self._batch, 2)
        )
        for batch in batches[self.start :]:
            yield [(self.epoch, int(index), int(turn)) for index, turn in batch[self._mine]]
