"""Loading: the same samples whatever reads them, resumable anywhere, and nothing hangs on bad input."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from ordnet.bench.training import compare_loaders
from ordnet.config import DataConfig
from ordnet.data.labels import Classes, identity_rule
from ordnet.data.loader import Batches, examples, is_dead_worker
from ordnet.data.order import balancing_repeats, order
from ordnet.errors import OrdnetError
from ordnet.model.pixels import MEAN, STD, normalise


class Numbered:
    """Picture i is filled with colour i and class i; some are broken, some kill their process."""

    name, split = "numbered", "train"
    classes = Classes(tuple(f"c{i}" for i in range(100)), tuple((i, i, i) for i in range(100)))
    rule = identity_rule(100)

    def __init__(self, count, broken=(), deadly=()):
        self.ids = [str(i) for i in range(count)]
        self.broken, self.deadly = broken, deadly

    def image(self, index):
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.broken:
            raise OrdnetError(f"picture-{index}.jpg is cut off")
        return Image.new("RGB", (8 + index % 3, 6), (index, index, index))

    def label(self, index):
        return np.full((6, 8 + index % 3), index, np.uint8)

    def files(self, index):
        return f"picture-{index}.jpg", f"label-{index}.png"


def batches(dataset, batch_size=4, seed=3, rank=0, world=1, crop=5, **settings):
    config = DataConfig(**{"workers": 0, **settings})
    return Batches(dataset, config, crop=crop, batch_size=batch_size, seed=seed, rank=rank, world=world)


def seen(loader, epoch=0, start_step=0):
    """The indices of each batch; class ids and colours must agree."""
    steps = []
    for images, labels in loader.epoch(epoch, start_step):
        assert images.shape == (len(labels), 3, 5, 5) and images.dtype == labels.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images[:, 0, 0, 0] == labels[:, 0, 0]).all()
        steps.append(labels[:, 0, 0].tolist())
    return steps


def flat(steps):
    return [index for step in steps for index in step]


def test_an_epoch_is_every_sample_once_but_for_the_incomplete_batch():
    loader = batches(Numbered(23))
    steps = seen(loader)
    assert len(steps) == loader.steps == 5
    indices = flat(steps)
    assert indices == order(23, 3, 0)[:20].tolist()
    assert len(set(indices)) == 20
    assert indices != flat(seen(loader, epoch=1))
    assert indices != flat(seen(batches(Numbered(23), seed=4)))


def test_workers_change_nothing_and_live_on():
    alone, helped = batches(Numbered(17)), batches(Numbered(17), workers=2)
    for epoch in (0, 1, 5):
        for (a, b), (c, d) in zip(alone.epoch(epoch), helped.epoch(epoch), strict=True):
            assert torch.equal(a, c) and torch.equal(b, d)


def test_a_run_resumes_at_any_step():
    loader = batches(Numbered(20), workers=2)
    whole = seen(loader, epoch=2)
    for start in range(6):
        assert seen(loader, epoch=2, start_step=start) == whole[start:]


def test_leaving_an_epoch_early_does_not_disturb_the_next():
    loader = batches(Numbered(40), workers=2)
    expected = seen(loader, epoch=1)
    for _ in loader.epoch(0):
        break
    assert seen(loader, epoch=1) == expected


def test_a_dead_worker_is_told_from_the_error_that_it_causes():
    """torch raises from a signal handler, in whatever is running: here in a file, whose end complains in turn."""

    @contextmanager
    def cut_off_file():
        try:
            yield
        finally:
            raise RuntimeError("unexpected pos 378816 vs 378716")

    with pytest.raises(RuntimeError, match="unexpected pos") as caught, cut_off_file():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    assert is_dead_worker(caught.value)
    with pytest.raises(RuntimeError) as caught, cut_off_file():
        raise OSError("no space left on device")
    assert not is_dead_worker(caught.value)


def test_processes_share_each_batch():
    whole = seen(batches(Numbered(23)))
    shares = [seen(batches(Numbered(23), rank=rank, world=2)) for rank in (0, 1)]
    assert [left + right for left, right in zip(*shares, strict=True)] == whole


def test_rare_classes_are_seen_in_more_pictures():
    counts = np.zeros((100, 3))
    counts[:, 0] = 100  # a class that is everywhere
    counts[:25, 1] = 50  # one in a quarter of the pictures
    counts[:4, 2] = 50  # one in four pictures
    counts[50, 2] = 1  # a pixel or two do not make a picture that holds it
    often = balancing_repeats(counts, 0.5)
    assert often.mean() == pytest.approx(1) and often[50] == often.min()
    assert often[4] / often[50] == pytest.approx(np.sqrt(0.5 / 0.25))
    assert often[0] / often[50] == pytest.approx(3)  # the root asks for 3.5
    np.testing.assert_allclose(balancing_repeats(counts[:, :1], 0.5), 1)  # nothing is rare
    np.testing.assert_allclose(balancing_repeats(np.zeros((5, 3)), 0.5), 1)  # labels that could not be read


def test_a_balanced_epoch_is_as_long_and_each_sample_comes_as_often_as_it_should():
    often = balancing_repeats(np.eye(10)[[0] * 30 + [1] * 8 + [2, 2]], 0.5)
    count = len(often)
    seen = np.zeros(count)
    for epoch in range(200):
        indices = order(count, 3, epoch, often=often)
        assert len(indices) == count
        came = np.bincount(indices, minlength=count)
        assert (np.abs(came - often) < 1).all()  # rounded up or down
        seen += came
    np.testing.assert_allclose(seen / 200, often, atol=0.12)
    assert order(count, 3, 0, often=np.ones(count)).tolist() != list(range(count))
    assert sorted(order(count, 3, 0, often=np.ones(count))) == list(range(count))


def test_samples_that_come_again_look_different_and_runs_resume_among_them():
    """Class 1 is in two of twelve pictures, which come about twice as often as the others."""

    class Rare(Numbered):
        def label(self, index):
            return np.full((6, 8 + index % 3), int(index < 2), np.uint8)

    def keys(epoch, start=0, workers=0, rank=0, world=1):
        loader = batches(Rare(12), balance=0.9, scale=(0.5, 2.0), jitter=0.9, rank=rank, world=world, workers=workers)
        return [[image.numpy().tobytes() for image in images] for images, _ in loader.epoch(epoch, start)]

    crops = [crop for epoch in range(6) for step in keys(epoch) for crop in step]
    assert len(crops) == 72
    assert batches(Rare(12), balance=0.9).unevenness == pytest.approx(np.sqrt(0.9 / (1 / 6)), rel=0.05)
    assert batches(Rare(12)).unevenness == 1
    rare = sum(labels.eq(1).any(dim=(1, 2)).sum().item() for epoch in range(6)
               for _, labels in batches(Rare(12), balance=0.9).epoch(epoch))  # fmt: skip
    assert rare > 1.5 * 72 * 2 / 12
    in_epoch = [crop for step in keys(3) for crop in step]
    assert len(set(in_epoch)) > 8  # the same picture twice in an epoch is not the same crop twice
    assert keys(2, workers=2) == keys(2)
    assert keys(2, start=1) == keys(2)[1:]
    halves = [keys(2, rank=rank, world=2) for rank in (0, 1)]
    assert [left + right for left, right in zip(*halves, strict=True)] == keys(2)


def test_a_limit_takes_the_first_samples():
    assert set(flat(seen(batches(Numbered(50), limit=9)))) <= set(range(9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"batch_size": 30},
            r"23 samples .* batch of 30: use a smaller training.batch_size, such as --set training.batch_size=23",
        ),
        ({"limit": 3}, r"3 samples .*data.limit is 3"),
        ({"batch_size": 5, "world": 2}, "5 cannot be shared evenly by 2"),
    ],
)
def test_what_cannot_be_a_batch_is_refused(arguments, message):
    with pytest.raises(OrdnetError, match=message):
        batches(Numbered(23), **arguments)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_sample_stops_with_its_own_message(workers):
    with pytest.raises(OrdnetError) as caught:
        seen(batches(Numbered(20, broken=(7,)), workers=workers))
    assert str(caught.value) == "picture-7.jpg is cut off"
    with pytest.raises(OrdnetError, match=r"^picture-7.jpg is cut off$"):
        list(examples(Numbered(20, broken=(7,)), workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_samples_are_replaced_and_counted(workers):
    loader = batches(Numbered(20, broken=(7, 8)), workers=workers, skip_broken=True)
    steps = seen(loader)
    clean = seen(batches(Numbered(20)))
    assert [len(step) for step in steps] == [4] * 5
    assert {"picture-7.jpg is cut off", "picture-8.jpg is cut off"} == set(loader.broken)
    for step, expected in zip(steps, clean, strict=True):
        for index, wanted in zip(step, expected, strict=True):
            assert index == wanted if wanted not in (7, 8) else index not in (7, 8)
    assert steps == seen(batches(Numbered(20, broken=(7, 8)), skip_broken=True))


def test_a_data_set_of_broken_samples_ends():
    with pytest.raises(OrdnetError, match="broken samples in a row"):
        seen(batches(Numbered(8, broken=range(8)), skip_broken=True))


def test_a_dead_worker_is_an_error_and_not_a_wait():
    # torch notices it in a signal handler, which may interrupt this test's own code as well as the loader's
    with pytest.raises((OrdnetError, RuntimeError)) as caught:
        seen(batches(Numbered(20, deadly=(5,)), workers=2))
    assert "loading process died" in str(caught.value) or is_dead_worker(caught.value)


FIRST_PROCESS = """
from tests.data.test_loader import Numbered, batches, seen
made, left = batches(Numbered(20), workers=2), batches(Numbered(20), workers=2).epoch(0)
print(len(seen(made)), len(next(left).images))
made.close()
try:
    seen(batches(Numbered(20, deadly=(5,)), workers=2))
except Exception as error:
    print("died" in str(error) or "DataLoader worker" in str(error))
"""


def test_the_first_process_of_a_container_has_workers(tmp_path):
    """Workers end where their parent is gone; they must not take process 1 for a sign of that. Nothing is left of them,
    and a program that leaves in the middle of an epoch, or whose worker was killed, ends."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        alone = []  # not allowed here; what is left of them can still be seen
    words = [*alone, sys.executable, "-c", FIRST_PROCESS]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=200, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert done.stdout == "5 4\nTrue\n", done.stderr
    assert not list(tmp_path.glob("pymp-*"))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_covers_every_picture_once(workers, world):
    indices = []
    for rank in range(world):
        for example in examples(Numbered(11), workers, rank=rank, world=world):
            width = 8 + example.index % 3
            assert example.image.shape == (1, 3, 6, width) and example.label.shape == (1, 6, width)
            assert (example.image == example.index).all() and (example.label == example.index).all()
            indices.append(example.index)
    assert sorted(indices) == list(range(11))


def test_evaluation_leaves_broken_pictures_out_on_request():
    broken = []
    left = [example.index for example in examples(Numbered(5, broken=(1, 3)), broken=broken)]
    assert left == [0, 2, 4]
    assert broken == ["picture-1.jpg is cut off", "picture-3.jpg is cut off"]


def test_normalising_is_the_textbook_formula():
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = (images.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert torch.allclose(normalise(images).double(), expected, atol=1e-5)


def test_the_benchmark_compares_equal_work():
    rows = compare_loaders("scenes", crop=48, images=3, repeats=1)
    assert len(rows) == 2 and rows[0].ratio == 1
    assert all(row.extra["images_per_second"] > 0 for row in rows)


class Large(Numbered):
    """The same, 100 times as wide and high."""

    def image(self, index):
        return super().image(index).resize((800, 600))

    def label(self, index):
        return np.full((600, 800), index, np.uint8)


def test_large_pictures_are_shrunk_while_loading():
    shapes = {tuple(example.image.shape[2:]) for example in examples(Large(3), long_side=80)}
    assert shapes == {(60, 80)}
    assert {tuple(example.label.shape[1:]) for example in examples(Large(3), long_side=80)} == {(60, 80)}
    assert {tuple(example.image.shape[2:]) for example in examples(Large(1))} == {(600, 800)}
    # at most 16 pixels of the long side are left: the rest of the crop is padding
    loader = batches(Large(4), crop=40, long_side=16, scale=(1, 1))
    (batch,) = loader.epoch(0)
    assert (batch.labels[:, 12:] == 255).all() and (batch.labels[:, :, 16:] == 255).all()
    assert (batch.labels[:, :12, :16] < 4).all()
