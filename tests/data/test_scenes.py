"""Generated scenes: what decides an ambiguous class lies where it should, and nowhere else."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from ordnet.data import scenes
from ordnet.data.dataset import read_pair
from ordnet.data.scenes import CLEARANCE, HALF, Kinds, Scenes, draw, open_split
from ordnet.errors import OrdnetError
from ordnet.model.build import build
from ordnet.model.pixels import normalise

GROUNDS = (scenes.GRASS, scenes.WATER, scenes.ROAD)
VEHICLES = (scenes.TRACTOR, scenes.BOAT, scenes.CAR)
TEST_STREAM = 9


def nearest(mask, others):
    """The smallest distance between two sets of pixels, in the larger of rows and columns: as a square field sees."""
    (y, x), (v, u) = np.nonzero(mask), np.nonzero(others)
    return np.maximum(np.abs(y[:, None] - v), np.abs(x[:, None] - u)).min()


@pytest.mark.parametrize("index", range(6))
def test_nothing_within_sight_of_a_vehicle_depends_on_any_choice(index):
    # each choice with each value beside several of the others
    choices = [
        (kind, (kind + turn) % 3, (kind + 2 * turn) % 3, (kind + turn) % 2) for kind in range(3) for turn in range(3)
    ]
    drawn = [draw(TEST_STREAM, index, kinds=Kinds(*kinds)) for kinds in choices]
    images = np.stack([image for image, _ in drawn])
    vehicles = np.stack([np.isin(label, VEHICLES) for _, label in drawn])
    assert (vehicles == vehicles[0]).all()
    changed = (images != images[0]).any(axis=(0, 3))
    assert changed.any()
    assert nearest(vehicles[0], changed) > CLEARANCE


@pytest.mark.parametrize("index", range(12))
def test_nothing_within_sight_of_the_pale_ground_depends_on_its_class(index):
    (sandy, sand), (snowy, snow) = (draw(TEST_STREAM, index, kinds=Kinds(0, 1, 2, pale)) for pale in (0, 1))
    changed = (sandy != snowy).any(axis=2)
    assert changed.any()
    assert nearest(sand == scenes.SAND, changed) > CLEARANCE
    np.testing.assert_array_equal(sand == scenes.SAND, snow == scenes.SNOW)


def test_a_network_without_context_scores_ambiguous_pixels_alike_whatever_their_class():
    torch.manual_seed(0)
    net = build("dilated-fcn", classes=len(scenes.CLASSES), backbone="tiny").eval()
    for index in range(3):
        drawn = [draw(TEST_STREAM, index, kinds=Kinds(k, (k + 1) % 3, (k + 2) % 3, k % 2)) for k in range(3)]
        with torch.no_grad():
            scores = net(normalise(torch.from_numpy(np.stack([image for image, _ in drawn])).permute(0, 3, 1, 2)))
        vehicles = torch.from_numpy(np.isin(drawn[0][1], VEHICLES))
        assert torch.allclose(scores[:, :, vehicles], scores[:1, :, vehicles], atol=1e-5)
        # the first two differ in the far ground as well, which the pale ground's edge may see
        pair = [draw(TEST_STREAM, index, kinds=Kinds(0, 0, 0, pale)) for pale in (0, 1)]
        with torch.no_grad():
            scores = net(normalise(torch.from_numpy(np.stack([image for image, _ in pair])).permute(0, 3, 1, 2)))
        pale = torch.from_numpy(pair[0][1] == scenes.SAND)
        assert torch.allclose(scores[0][:, pale], scores[1][:, pale], atol=1e-5)
        assert not torch.allclose(scores[0], scores[1], atol=1e-3)


@pytest.mark.parametrize("index", range(12))
def test_the_pale_ground_and_its_tree_lie_in_different_quarters(index):
    _, label = draw(TEST_STREAM, index)
    tree, pale = np.isin(label, (scenes.PALM, scenes.PINE)), np.isin(label, (scenes.SAND, scenes.SNOW))
    assert not tree[HALF:].any() and not pale[HALF:].any()
    sides = [(bool(part[:, :HALF].any()), bool(part[:, HALF:].any())) for part in (tree, pale)]
    assert sorted(sides) == [(False, True), (True, False)]


def test_each_vehicle_quarter_holds_its_own_telling_ground_and_no_other():
    for index, (left, right) in enumerate(itertools.product(range(3), repeat=2)):
        _, label = draw(TEST_STREAM, index, kinds=Kinds(left, right, 0, 0))
        for part, kind in ((label[HALF:, :HALF], left), (label[HALF:, HALF:], right)):
            assert set(np.unique(part)) == {GROUNDS[kind], VEHICLES[kind], scenes.PAVEMENT}
            # enough to be found: an eighth of the quarter tells, and the vehicle owns some 280 pixels
            assert (part == GROUNDS[kind]).sum() > 500
            assert (part == VEHICLES[kind]).sum() > 250


def kinds_of(label):
    """Left vehicle, right vehicle, far ground, pale ground, as 0, 1, 2."""
    left, right = (int(np.unique(q[np.isin(q, VEHICLES)])[0]) for q in (label[HALF:, :HALF], label[HALF:, HALF:]))
    far = int(np.argmax([(label[:HALF] == ground).sum() for ground in GROUNDS]))
    return left - VEHICLES[0], right - VEHICLES[0], far, int((label == scenes.SNOW).any())


@pytest.fixture(scope="module")
def many():
    labels = [Scenes("train").label(index) for index in range(500)]
    return labels, np.array([kinds_of(label) for label in labels])


def hit_rate(guesses, truth):
    """How often the best rule from guess to truth is right."""
    return sum(np.bincount(truth[guesses == guess]).max() for guess in np.unique(guesses)) / len(truth)


def test_classes_are_balanced_and_independent(many):
    _, kinds = many
    for column, count in zip(kinds.T, (3, 3, 3, 2), strict=True):
        assert np.abs(np.bincount(column, minlength=count) / len(column) - 1 / count).max() < 0.07
    for a, b in itertools.permutations(range(4), 2):
        chance = 1 / (2 if b == 3 else 3)
        assert hit_rate(kinds[:, a], kinds[:, b]) < chance + 0.09, (a, b)


def test_the_ground_that_prevails_in_the_picture_hardly_tells_the_vehicle(many):
    """Chance is a third. A little more is left, since a vehicle's own quarter is part of the picture."""
    labels, kinds = many
    areas = np.array([[(label == ground).sum() for ground in GROUNDS] for label in labels])
    for side in (0, 1):
        assert hit_rate(areas.argmax(axis=1), kinds[:, side]) < 0.45


def test_layout_does_not_tell_the_class(many):
    """Where things are and how large they are has the same mean for every kind."""
    labels, kinds = many
    layout = []
    for label in labels:
        rows, columns = np.nonzero(np.isin(label[HALF:, :HALF], VEHICLES))
        pavement, buildings = (label[HALF:, :HALF] == scenes.PAVEMENT).sum(), (label == scenes.BUILDING).sum()
        layout.append((rows.mean(), columns.mean(), len(rows), pavement, buildings))
    layout = np.array(layout)
    layout = (layout - layout.mean(0)) / layout.std(0)
    for column, kind in ((0, 0), (0, 1), (0, 2), (3, 0), (3, 1)):
        chosen = layout[kinds[:, column] == kind]
        assert np.abs(chosen.mean(0)).max() < 4 / np.sqrt(len(chosen))


def test_every_class_occurs_and_states_its_range(many):
    labels, _ = many
    assert set(np.unique(np.stack(labels))) == set(range(len(scenes.CLASSES)))
    assert len(scenes.CLASSES.ranges) == len(scenes.CLASSES)
    by_range = {
        r: {n for n, q in zip(scenes.CLASSES.names, scenes.CLASSES.ranges, strict=True) if q == r}
        for r in scenes.CLASSES.ranges
    }
    assert by_range["middle"] == {"boat", "car", "tractor"}
    assert by_range["long"] == {"sand", "snow"}


DIGEST = """
import hashlib
from ordnet.data.scenes import draw
parts = [draw(stream, index) for stream in (0, 1) for index in (0, 7, 1999)]
digest = hashlib.sha256(b"".join(array.tobytes() for part in parts for array in part)).hexdigest()
"""


def test_the_same_in_another_process():
    here = {}
    exec(DIGEST, here)
    done = subprocess.run([sys.executable, "-c", DIGEST + "print(digest)"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here["digest"]


def test_splits_are_different_pictures():
    pictures = {Scenes(split).image(index).tobytes() for split in ("train", "val", "test") for index in range(20)}
    assert len(pictures) == 60


def test_a_data_set_like_any_other():
    split = open_split(None, "val")
    image, label = read_pair(split, 3)
    assert image.mode == "RGB" and image.size == (128, 128) and label.dtype == np.uint8
    label[:] = 0  # a caller may write into what it got
    assert split.label(3).any()
    assert "val-0003" in split.files(3)[0]
    np.testing.assert_array_equal(split.rule.encode(split.label(3)), split.label(3))


def test_larger_pictures_keep_the_clearance():
    split = open_split("200", "train")
    assert split.image(0).size == (200, 200)
    a, b = (draw(TEST_STREAM, 0, 200, kinds=Kinds(kind, kind, 0, 0)) for kind in (0, 1))
    assert nearest(np.isin(a[1], VEHICLES), (a[0] != b[0]).any(axis=2)) > CLEARANCE * 200 / 128


@pytest.mark.parametrize("path", ["64", "folder", "-128", "1e3", "100000", "²"])
def test_a_size_that_breaks_the_promise_is_refused(path):
    with pytest.raises(OrdnetError, match="128 to 512"):
        open_split(path, "train")


def test_an_unknown_split_is_refused():
    with pytest.raises(OrdnetError, match="train, val, test"):
        open_split(None, "validation")
