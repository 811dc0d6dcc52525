"""The automatic division into training and validation."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ordnet.data import folder, statistics
from ordnet.data.catalogue import open_dataset
from ordnet.data.check import quick_check
from ordnet.data.dataset import Spread, notes_of
from ordnet.data.folder import divide
from ordnet.data.statistics import class_weights
from ordnet.data.statistics import label_counts as counted
from ordnet.errors import OrdnetError

IDS = [f"p{number:02}" for number in range(30)]
LABELS = st.lists(st.frozensets(st.integers(0, 6), max_size=3), min_size=2, max_size=30)


@given(LABELS, st.integers(0, 3))
def test_nothing_is_lost_and_the_same_comes_again(classes, seed):
    ids = IDS[: len(classes)]
    parts = divide(ids, 0.2, seed, classes)
    assert sorted(parts["train"] + parts["val"]) == ids
    assert parts["train"] and parts["val"]
    assert parts == divide(ids, 0.2, seed, classes)
    assert parts["val"] == sorted(parts["val"])


@given(st.lists(st.integers(0, 6), min_size=2, max_size=30), st.integers(0, 3))
def test_every_class_is_in_both_parts(single, seed):
    """With one class a picture it is always possible, whatever else is true."""
    ids, classes = IDS[: len(single)], [{c} for c in single]
    parts = divide(ids, 0.2, seed, classes)
    by_id = dict(zip(ids, single, strict=True))
    held = {name: Counter(by_id[key] for key in part) for name, part in parts.items()}
    for c, count in Counter(single).items():
        if count > 1:
            assert held["train"][c] and held["val"][c]


@given(LABELS, st.integers(0, 3))
def test_classes_never_make_it_worse(classes, seed):
    """Against ids alone: no fewer classes that are in both parts."""
    ids = IDS[: len(classes)]
    by_id = dict(zip(ids, classes, strict=True))

    def in_both(parts):
        train, val = ({c for key in parts[name] for c in by_id[key]} for name in ("train", "val"))
        return len(train & val)

    assert in_both(divide(ids, 0.2, seed, classes)) >= in_both(divide(ids, 0.2, seed))


def test_few_pictures_move():
    classes = [{0}] * 24
    for place in (3, 11, 20):
        classes[place] = {0, 1}
    ids = IDS[:24]
    plain, spread = divide(ids, 0.2, 0), divide(ids, 0.2, 0, classes)
    assert len(spread["val"]) == len(plain["val"])
    assert len(set(spread["val"]) ^ set(plain["val"])) <= 2
    assert {"p03", "p11", "p20"} & set(spread["val"]) and {"p03", "p11", "p20"} & set(spread["train"])


def write(root, labels, classes=("ground", "thing")):
    for part in ("images", "labels"):
        (root / part).mkdir(parents=True)
    for key, label in labels.items():
        Image.new("RGB", label.shape[::-1]).save(root / f"images/{key}.jpg")
        Image.fromarray(label).save(root / f"labels/{key}.png")
    (root / "classes.txt").write_text("\n".join(classes) + "\n")
    return f"folder:{root}"


def rare(count, holders):
    labels = {f"p{number:02}": np.zeros((4, 6), np.uint8) for number in range(count)}
    for number in holders:
        labels[f"p{number:02}"][0, 0] = 1
    return labels


def test_a_rare_class_reaches_both_parts(tmp_path):
    """3 of 24 pictures have the class: by ids alone none of them may be in val, and a score of 1 would mean nothing."""
    for number in range(8):
        spec = write(tmp_path / f"{number}", rare(24, (number, number + 5, number + 13)))
        for split in ("train", "val"):
            dataset = open_dataset(spec, split)
            assert any((dataset.label(index) == 1).any() for index in range(len(dataset.ids)))
            assert quick_check(dataset) == ()
            assert len(notes_of(dataset)) == 1 and "every class is in both" in notes_of(dataset)[0]


def test_what_cannot_be_divided_is_said(tmp_path):
    dataset = open_dataset(write(tmp_path, rare(12, (4,)), ("ground", "thing", "never")), "val")
    assert any("one picture only" in note and "thing" in note for note in notes_of(dataset))
    assert any("in no label at all: never" in note for note in notes_of(dataset))
    (remark, absent) = quick_check(dataset)
    assert "all that counts in val is 'ground'" in remark
    assert absent == "never in val: thing, never (no IoU there, or 0 if it is predicted)"
    assert any("thing" in name for name in [open_dataset(f"folder:{tmp_path}", "train").classes.names[1]])


def test_huge_folders_are_divided_by_ids_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_COUNTED", 10)
    dataset = open_dataset(write(tmp_path, rare(12, (4,))), "val")
    assert "labels of more than 10 are not read for it" in notes_of(dataset)[0]


def test_broken_labels_do_not_keep_a_folder_from_being_divided(tmp_path):
    spec = write(tmp_path, rare(12, (4, 5)))
    (tmp_path / "labels/p03.png").write_bytes(b"no picture")
    assert len(open_dataset(spec, "train").ids) == 10  # `ordnet data check` names it
    with pytest.raises(OrdnetError, match="p03"):
        for split in ("train", "val"):
            quick_check(open_dataset(spec, split))


def test_single_classes_and_empty_labels_are_said(tmp_path):
    one = open_dataset(write(tmp_path / "one", rare(12, ()), ("ground",)), "train")
    assert "one class only, 'ground'" in quick_check(one)[0]
    nothing = {key: np.full_like(label, 255) for key, label in rare(12, ()).items()}
    with pytest.raises(OrdnetError, match="every pixel of every label of train is 255"):
        quick_check(open_dataset(write(tmp_path / "nothing", nothing), "train"))
    some = rare(12, range(0, 12, 2)) | {"p98": np.full((4, 6), 255, np.uint8), "p99": np.full((4, 6), 255, np.uint8)}
    spec = write(tmp_path / "some", some)
    (tmp_path / "some/train.txt").write_text("\n".join(some))
    assert quick_check(open_dataset(spec, "train")) == ("2 labels of train have no pixel that counts",)


def test_labels_that_count_from_one_are_noticed(tmp_path):
    labels = {key: label + 1 for key, label in rare(12, range(0, 12, 2)).items()}
    spec = write(tmp_path, labels, ("sky", "road"))
    with pytest.raises(OrdnetError, match=r"2 \(1 pixels\).*count from 1, write `ignore` as the first"):
        quick_check(open_dataset(spec, "train"))
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n")
    assert any(
        "holds 0, which is 'sky': if your labels count from 1" in r for r in quick_check(open_dataset(spec, "train"))
    )
    (tmp_path / "classes.txt").write_text("ignore\nsky\nroad\n")
    assert quick_check(open_dataset(spec, "train")) == ()


def test_counts_are_those_of_the_labels_and_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "_SLOW", -1)  # worth keeping, however fast
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    labels = rare(6, (1, 2))
    spec = write(tmp_path / "set", labels)
    (tmp_path / "set/train.txt").write_text("\n".join(labels))
    dataset = open_dataset(spec, "train")
    expected = [np.bincount(label.ravel(), minlength=256) for label in labels.values()]
    np.testing.assert_array_equal(counted(dataset)[0], expected)
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "_count", None)  # not called again
        np.testing.assert_array_equal(counted(dataset)[0], expected)
    # a changed label is counted anew, as are all where classes.txt changed
    Image.fromarray(np.ones((4, 6), np.uint8)).save(tmp_path / "set/labels/p00.png")
    assert counted(dataset)[0][0, 1] == 24
    (tmp_path / "set/classes.txt").write_text("thing\nground\nmore\n")
    assert counted(open_dataset(spec, "train"))[0][5, 0] == 24
    # whatever happens to the file, the counts stay right
    for kept in (tmp_path / "cache/ordnet/counts").iterdir():
        for content in (b"", b"[1]", b'{"x": [1, 2, [300], [1]]}', b"[" * 100_000):
            kept.write_bytes(content)
            assert counted(dataset)[0][0, 1] == 24


def test_kept_counts_are_of_one_palette(tmp_path, monkeypatch):
    """Training counts through a selection of the pictures, which must know how labels are read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(statistics, "_SLOW", -1)  # keep all counts
    for part in ("images", "labels"):
        (tmp_path / "own" / part).mkdir(parents=True)
        colours = np.zeros((10, 30, 3), np.uint8)
        colours[..., 0], colours[0] = 255, (0, 0, 255)
        Image.fromarray(colours).save(tmp_path / "own" / part / "a.png")
    (tmp_path / "own" / "train.txt").write_text("a")
    (tmp_path / "own" / "val.txt").write_text("a")
    found = []
    for lines in ("red #ff0000\nblue #0000ff\n", "blue #0000ff\nred #ff0000\n"):
        (tmp_path / "own" / "classes.txt").write_text(lines)
        found.append(class_weights(Spread(open_dataset(f"folder:{tmp_path / 'own'}", "train"), 1)))
    assert found[0][0] < found[0][1] and found[0] == found[1][::-1]


def test_names_in_two_and_in_one_character(tmp_path):
    """Macs write "ü" as "u" and a mark; pictures and labels from two computers belong together all the same."""
    labels = {"\u00fc1": np.zeros((4, 4), np.uint8), "\u00fc2": np.ones((4, 4), np.uint8)}
    spec = write(tmp_path, labels, ("ground", "thing"))
    for file in (tmp_path / "labels").iterdir():
        file.rename(file.with_name(file.name.replace("\u00fc", "u\u0308")))
    assert sorted(open_dataset(spec, "train").ids) + sorted(open_dataset(spec, "val").ids)
    (tmp_path / "train.txt").write_text("u\u03081\n", encoding="utf-8")
    (tmp_path / "val.txt").write_text("\u00fc2\n", encoding="utf-8")
    assert [*open_dataset(spec, "train").ids, *open_dataset(spec, "val").ids] == ["\u00fc1", "\u00fc2"]


def test_numbered_names_are_remarked_upon(tmp_path):
    labels = {name: np.uint8([[0, 1]]) for name in "ab"}
    notes = notes_of(open_dataset(write(tmp_path, labels, ("0 ground", "1 thing")), "train"))
    assert any("write `ground =0` in classes.txt" in note for note in notes)
    assert not any("a number and a name" in note for note in notes_of(open_dataset(
        write(tmp_path / "other", labels, ("2 ground", "thing")), "train"
    )))  # fmt: skip


def test_what_a_damaged_label_holds_is_not_said_to_be_missing(tmp_path):
    labels = {name: np.uint8([[0, 1, 7]]) for name in "ab"}  # 7 is no class
    notes = notes_of(open_dataset(write(tmp_path, labels, ("ground", "thing")), "train"))
    assert not any("in no label at all" in note for note in notes)


def test_class_weights(tmp_path):
    labels = {f"p{n}": np.repeat(np.uint8([0] * 98 + [1, 2]), 3).reshape(10, 30) for n in range(4)}
    spec = write(tmp_path, labels, ("ground", "thing", "rare", "never"))
    (tmp_path / "train.txt").write_text("\n".join(labels))
    weights = class_weights(open_dataset(spec, "train"))
    share = np.array([0.98, 0.01, 0.01])
    assert weights[3] == 1
    assert weights[1] == weights[2] == pytest.approx(10 * weights[0], rel=1e-3)  # 1/ln would be 23 times
    assert (share * weights[:3]).sum() == pytest.approx(1, rel=1e-3)
    assert len(class_weights(open_dataset("scenes", "test"))) == 13
