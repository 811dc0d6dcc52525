"""What is wrong with a data set, found before training."""

import math
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from ordnet.data import check as scan_module
from ordnet.data.catalogue import open_dataset
from ordnet.data.check import leaks, look, quick_check, scan, summary
from ordnet.data.labels import IGNORE, Classes, identity_rule
from ordnet.data.statistics import class_weights
from ordnet.errors import OrdnetError


@dataclass
class InMemory:
    """Labels from a list; the pictures match them."""

    labels: list[np.ndarray]
    name: str = "memory"
    split: str = "train"
    ids: list[str] = field(default_factory=list)
    classes = Classes(("ground", "thing", "rare"), ((0, 0, 0), (255, 0, 0), (0, 255, 0)))
    rule = identity_rule(3)

    def __post_init__(self):
        self.ids = self.ids or [f"{index:03}" for index in range(len(self.labels))]

    def image(self, index):
        height, width = self.labels[index].shape
        return Image.new("RGB", (width, height))

    def label(self, index):
        return self.rule.encode(self.labels[index])

    def files(self, index):
        return f"picture {index}", f"label {index}"


def random_labels(count, values=(0, 1, 2, 255)):
    rng = np.random.default_rng(0)
    return [rng.choice(values, rng.integers(3, 9, 2)).astype(np.uint8) for _ in range(count)]


def put_folder(root, labels, classes="ground\nthing\n", splits=None):
    for part in ("images", "labels"):
        (root / part).mkdir(parents=True)
    for index, label in enumerate(labels):
        # a colour of its own: equal pictures are a finding
        picture = Image.new("RGB", (label.shape[1], label.shape[0]), (index, 3 * index, 90))
        picture.save(root / "images" / f"{index:03}.png")
        Image.fromarray(label).save(root / "labels" / f"{index:03}.png")
    (root / "classes.txt").write_text(classes)
    ids = [f"{index:03}" for index in range(len(labels))]
    for name, part in (splits or {"train": ids}).items():
        (root / f"{name}.txt").write_text("\n".join(part) + "\n")
    return f"folder:{root}"


def kinds(found):
    return [problem.kind for problem in found.problems]


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_are_those_of_the_labels(workers):
    labels = random_labels(70)
    done = []
    found = scan(InMemory(labels), workers, advance=done.append)
    everything = np.concatenate([label.ravel() for label in labels])
    for value in (0, 1, 2, IGNORE):
        assert found.pixels[value] == (everything == value).sum()
        assert found.images[value] == sum((label == value).any() for label in labels)
    assert found.sizes.total() == sum(done) == 70
    assert found.sizes[labels[0].shape[::-1]] >= 1
    assert found.problems == []
    assert found.digests == {}


def test_bad_values_name_file_value_and_count(tmp_path):
    labels = random_labels(3, values=(0, 1))
    labels[1][:1, :2] = 7
    spec = put_folder(tmp_path, labels)
    found = scan(open_dataset(spec, "train"))
    assert kinds(found) == ["values outside the classes"]
    assert "001.png" in found.problems[0].detail
    assert "7 (2 pixels)" in found.problems[0].detail
    # what the label holds besides is counted, so that the table shows where the mistake is
    counts = np.bincount(np.concatenate([label.ravel() for label in labels]), minlength=8)
    assert found.pixels[:2].tolist() == counts[:2].tolist() and found.pixels[IGNORE] == 0
    with pytest.raises(OrdnetError, match=r"001\.png.*7 \(2 pixels\)"):
        quick_check(open_dataset(spec, "train"))


def test_masks_of_0_and_255_are_recognised_and_the_remedy_works(tmp_path):
    spec = put_folder(tmp_path, random_labels(40, values=(0, 255)))
    found = scan(open_dataset(spec, "train"))
    assert kinds(found) == ["masks of 0 and 255"]
    assert "`ground =0` and `thing =255`" in found.problems[0].detail
    with pytest.raises(OrdnetError, match="`thing =255`"):
        quick_check(open_dataset(spec, "train"))
    (tmp_path / "classes.txt").write_text("ground =0\nthing =255\n")
    mended = open_dataset(spec, "train")
    assert scan(mended).problems == []
    assert scan(mended).pixels[1] > 0
    quick_check(mended)


def test_a_rare_class_is_no_mask_of_0_and_255():
    labels = random_labels(200, values=(0, 255))
    labels[-1][0, 0] = 1
    quick_check(InMemory(labels))
    assert scan(InMemory(labels)).problems == []


def test_colour_masks_are_recognised_and_the_remedy_works(tmp_path):
    spec = put_folder(tmp_path, random_labels(2, values=(0, 1)))
    for index in range(2):
        label = np.asarray(Image.open(tmp_path / "labels" / f"{index:03}.png"))
        colours = np.array([(0, 0, 0), (128, 64, 128)], dtype=np.uint8)[label]
        Image.fromarray(colours).save(tmp_path / "labels" / f"{index:03}.png")
    found = scan(open_dataset(spec, "train"))
    assert kinds(found) == ["colour masks", "colour masks"]
    assert "classes.txt" in found.problems[0].detail
    (tmp_path / "classes.txt").write_text("ground #000000\nthing #804080\n")
    assert scan(open_dataset(spec, "train")).problems == []


def test_broken_and_vanished_files_are_named(tmp_path):
    spec = put_folder(tmp_path, random_labels(5, values=(0, 1)))
    dataset = open_dataset(spec, "train")
    (tmp_path / "images" / "000.png").write_bytes(b"no picture")
    (tmp_path / "labels" / "001.png").write_bytes((tmp_path / "labels" / "001.png").read_bytes()[:50])
    (tmp_path / "images" / "002.png").unlink()
    Image.new("RGB", (100, 50)).save(tmp_path / "images" / "003.png")
    found = scan(dataset)
    assert kinds(found) == ["unreadable images", "unreadable labels", "missing files", "sizes that differ"]
    for number, problem in enumerate(found.problems):
        assert f"{number:03}.png" in problem.detail
    assert "100x50" in found.problems[3].detail
    assert found.sizes.total() == 2
    assert kinds(scan(dataset, pictures=False)) == ["unreadable labels"]
    with pytest.raises(OrdnetError, match=r"missing files: .*002\.png"):
        quick_check(dataset)


def test_labels_of_a_test_split_may_be_secret():
    class Secret(InMemory):
        def files(self, index):
            return f"picture {index}", ""

        def label(self, index):
            raise OrdnetError("no labels")

    assert look(Secret(random_labels(1)), 0).problems == []


def test_duplicate_ids():
    dataset = InMemory(random_labels(3), ids=["a", "b", "a"])
    assert [problem.detail for problem in scan(dataset).problems] == ["a is listed 2 times"]
    with pytest.raises(OrdnetError, match="duplicate ids: a is listed 2 times"):
        quick_check(dataset)


def test_leaks_by_id_and_by_content(tmp_path):
    splits = {"train": ["000", "001", "002"], "val": ["002", "003"], "trainval": ["000", "003"]}
    spec = put_folder(tmp_path, random_labels(4, values=(0, 1)), splits=splits)
    (tmp_path / "images" / "003.png").write_bytes((tmp_path / "images" / "001.png").read_bytes())
    opened = {name: open_dataset(spec, name) for name in splits}
    found = leaks({name: (dataset.ids, scan(dataset)) for name, dataset in opened.items()})
    assert [problem.detail for problem in found] == [
        "002 is in train and in val",
        "003 in val is the same picture as 001 in train",
    ]


def test_quick_check_stops_when_its_time_is_up(monkeypatch):
    class Slow(InMemory):
        def label(self, index):
            looked.append(index)
            time.sleep(0.05)
            return super().label(index)

    looked = []
    monkeypatch.setattr(scan_module, "_SECONDS", 0.01)
    quick_check(Slow(random_labels(50)))
    assert len(looked) == 1


def test_quick_check_takes_a_sample():
    class Counting(InMemory):
        def label(self, index):
            looked.append(index)
            return super().label(index)

    looked = []
    quick_check(Counting(random_labels(500)))
    assert len(set(looked)) == len(looked) == 32
    quick_check(InMemory([]))


def test_weights_are_those_that_training_takes():
    labels = [np.array(rows, dtype=np.uint8) for rows in ([[0, 0], [0, 1]], [[0, 0], [255, 255]])]
    dataset = InMemory(labels)
    values = summary(scan(dataset), dataset.classes.names)
    assert values["class_weights"] == class_weights(dataset)
    ground, thing, *never = values["class_weights"]
    # five of six pixels are ground, one is thing; a pixel weighs 1 in the mean, and a class without pixels is left at 1
    assert thing / ground == pytest.approx(math.log(1.02 + 5 / 6) / math.log(1.02 + 1 / 6), rel=1e-3)
    assert (5 * ground + thing) / 6 == pytest.approx(1, rel=1e-3)
    assert set(never) == {1}
    assert [row["share"] for row in values["classes"]][:2] == pytest.approx([5 / 6, 1 / 6])
    assert values["ignored_pixels"] == 2
    assert values["width"] == {"min": 2, "median": 2, "max": 2}


def test_weights_without_any_pixel():
    dataset = InMemory([np.full((2, 2), 255, dtype=np.uint8)])
    assert set(summary(scan(dataset), dataset.classes.names)["class_weights"]) == {1}


def test_a_worker_that_dies_is_reported():
    with pytest.raises(OrdnetError, match="worker process died"):
        scan(Deadly(random_labels(64)), workers=1)


class Deadly(InMemory):
    def label(self, index):
        import os

        os._exit(1)
