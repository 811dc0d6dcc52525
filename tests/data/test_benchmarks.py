"""Tiny replicas of each benchmark's official layout, with the real label encodings, read back exactly."""

import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from ordnet.data.benchmarks import pascal_context
from ordnet.data.catalogue import OPENERS, open_dataset
from ordnet.data.dataset import read_pair
from ordnet.data.label_files import read_mat
from ordnet.data.labels import IGNORE, OutsideClasses, class_table, classes_of
from ordnet.errors import OrdnetError

RNG = np.random.default_rng(0)
SHAPE = (6, 9)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


def picture(path, shape=SHAPE):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(path)


def index_png(path, raw):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(raw.astype(np.uint8)).save(path)


def paletted_png(path, raw):
    image = Image.fromarray(raw.astype(np.uint8)).convert("P")
    colours = [row.colour for row in class_table("voc")]
    image.putpalette([value for colour in colours for value in colour])
    path.parent.mkdir(parents=True, exist_ok=True)
    # converting grey to P keeps the values as indices
    assert np.array_equal(np.asarray(image), raw)
    image.save(path)


def mat(path, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, values)


def lines(path, ids):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(ids) + "\n")


def raw_of(values):
    """A label in which all these raw values occur."""
    return np.resize(np.array(values), (len(values) // SHAPE[1] + 1, SHAPE[1]))


def read_all(spec, split):
    dataset = pickle.loads(pickle.dumps(open_dataset(spec, split)))  # as a worker receives it
    assert dataset.split == split and dataset.name == spec.partition(":")[0]
    return dataset, {key: read_pair(dataset, index)[1] for index, key in enumerate(dataset.ids)}


# ADE20K


def make_ade20k(root):
    raw = raw_of(range(151))
    for folder, key in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        picture(root / f"ADEChallengeData2016/images/{folder}/{key}.jpg", raw.shape)
        index_png(root / f"ADEChallengeData2016/annotations/{folder}/{key}.png", raw)
    picture(root / "release_test/testing/ADE_test_00000001.jpg")
    return raw


def test_ade20k(tmp_path):
    raw = make_ade20k(tmp_path)
    dataset, labels = read_all(f"ade20k:{tmp_path}", "train")
    assert len(dataset.classes) == 150 and dataset.classes.names[:3] == ("wall", "building", "sky")
    assert np.array_equal(labels["ADE_train_00000001"], np.where(raw == 0, IGNORE, raw - 1))
    assert list(read_all(f"ade20k:{tmp_path}/ADEChallengeData2016", "val")[1]) == ["ADE_val_00000001"]
    assert list(read_all(f"ade20k:{tmp_path}", "trainval")[1]) == ["ADE_train_00000001", "ADE_val_00000001"]
    test = open_dataset(f"ade20k:{tmp_path}", "test")
    assert list(test.ids) == ["ADE_test_00000001"] and test.image(0).size == SHAPE[::-1] and test.files(0)[1] == ""
    with pytest.raises(OrdnetError, match="test split of ade20k has no labels"):
        test.label(0)
    assert np.array_equal(dataset.rule.decode(labels["ADE_train_00000001"]), raw)


# PASCAL-Context


def make_context(root, labels):
    base = root / "VOCdevkit/VOC2010"
    lines(base / "ImageSets/Main/train.txt", ["2008_000002"])
    lines(base / "ImageSets/Main/val.txt", ["2008_000003"])
    raw = raw_of(range(460))
    for key in ("2008_000002", "2008_000003"):
        picture(base / f"JPEGImages/{key}.jpg", raw.shape)
        mat(root / labels / f"{key}.mat", LabelMap=raw.astype(np.uint16))
    return raw


@pytest.mark.parametrize("labels", ["VOCdevkit/VOC2010/trainval", "VOCdevkit/trainval", "trainval"])
def test_pascal_context_mat(tmp_path, labels):
    raw = make_context(tmp_path, labels)
    by_name = {row.name: row.raw for row in class_table("pascal_context")}
    dataset, found = read_all(f"pascal-context:{tmp_path}", "train")
    assert len(dataset.classes) == 59
    for class_id, name in enumerate(dataset.classes.names):
        assert np.array_equal(found["2008_000002"] == class_id, raw == by_name[name])
    assert np.array_equal(found["2008_000002"] == IGNORE, ~np.isin(raw, [r for r in by_name.values() if r]))
    sixty, with_background = read_all(f"pascal-context-60:{tmp_path}/VOCdevkit", "trainval")
    assert len(sixty.classes) == 60 and sixty.classes.names[0] == "background" and len(sixty.ids) == 2
    assert sixty.classes.names[1:] == dataset.classes.names and sixty.classes.colours[1:] == dataset.classes.colours
    shifted = np.where(found["2008_000002"] == IGNORE, 0, found["2008_000002"] + 1)
    assert np.array_equal(with_background["2008_000002"], shifted)


def test_pascal_context_png(tmp_path):
    raw = raw_of([*range(60), 255])
    base = tmp_path / "VOC2010"
    for split, key in (("train", "a"), ("val", "b")):
        lines(base / f"ImageSets/SegmentationContext/{split}.txt", [key])
        picture(base / f"JPEGImages/{key}.jpg", raw.shape)
        index_png(base / f"SegmentationClassContext/{key}.png", raw)
    expected = np.where((raw == 0) | (raw == 255), IGNORE, raw - 1)
    assert np.array_equal(read_all(f"pascal-context:{tmp_path}", "val")[1]["b"], expected)
    assert np.array_equal(read_all(f"pascal-context-60:{base}", "val")[1]["b"], raw)


def run_lengths_of(mask):
    """COCO's compressed run lengths, written from their description."""
    flat = np.concatenate([[0], mask.T.ravel(), [2]])
    edges = np.flatnonzero(np.diff(flat))
    numbers = np.diff([0, *edges]).tolist() if edges.size else []
    text = ""
    for place, number in enumerate(numbers):
        value = number - (numbers[place - 2] if place > 2 else 0)
        while True:
            code, value = value & 31, value >> 5
            done = value == (-1 if code & 16 else 0)
            text += chr(code + 48 + (0 if done else 32))
            if done:
                break
    return text


def make_detail(root, raw):
    base = root / "VOCdevkit/VOC2010"
    images, segments = [], []
    for number, (phase, key) in enumerate((("train", "2008_000002"), ("val", "2008_000003"), ("test", "2008_000004"))):
        picture(base / f"JPEGImages/{key}.jpg", raw.shape)
        height, width = raw.shape
        images.append({"file_name": f"{key}.jpg", "phase": phase, "image_id": number, "height": height, "width": width})
        for value in np.unique(raw)[1:].tolist():
            counts = run_lengths_of(np.uint8(raw == value))
            segments.append(
                {"image_id": number, "category_id": value, "segmentation": {"size": [height, width], "counts": counts}}
            )
    file = base / "trainval_merged.json"
    file.write_text(json.dumps({"images": images, "annos_segmentation": segments, "parts": []}))
    return file


def test_pascal_context_as_encnet_prepares_it(tmp_path, monkeypatch):
    rows = class_table("pascal_context")
    raw = raw_of([row.raw for row in rows])
    file = make_detail(tmp_path, raw)
    expected = np.full(raw.shape, IGNORE)
    for row in rows:
        expected[raw == row.raw] = row.class_id
    dataset, labels = read_all(f"pascal-context:{tmp_path}", "train")
    assert list(labels) == ["2008_000002"] and len(dataset.classes) == 59
    assert np.array_equal(labels["2008_000002"], expected)
    # from here on the JSON file is not loaded again
    with monkeypatch.context() as patch:
        patch.setattr(pascal_context, "_read", None)
        assert list(read_all(f"pascal-context-60:{tmp_path}", "trainval")[1]) == ["2008_000002", "2008_000003"]
    # but a changed one is
    make_detail(tmp_path, np.where(raw == 2, 9, raw))
    assert (read_all(f"pascal-context:{tmp_path}", "val")[1]["2008_000003"] != 0).all()
    for content in ("{", '{"images": []}', '{"images": [], "annos_segmentation": []}'):
        file.write_text(content)
        with pytest.raises(OrdnetError, match=r"trainval_merged\.json"):
            open_dataset(f"pascal-context:{tmp_path}", "train")


def test_pascal_context_with_wrong_run_lengths(tmp_path):
    file = make_detail(tmp_path, raw_of([0, 2, 9]))
    content = json.loads(file.read_text())
    for counts in ("o" * 50, "é", "04", 3):
        content["annos_segmentation"][0]["segmentation"]["counts"] = counts
        file.write_text(json.dumps(content))
        with pytest.raises(OrdnetError, match="run lengths"):
            open_dataset(f"pascal-context:{tmp_path}", "train")
    assert not (file.parent / "trainval_merged.png-cache/index.json").exists()


def test_pascal_context_59_labels(tmp_path):
    rows = [row for row in class_table("pascal_context") if row.class_id != IGNORE]
    base = tmp_path / "VOC2010"
    # an order of its own, with the spellings of the official list
    other = {"table": "diningtable", "bedclothes": "bedcloth", "cloth": "clothes"}
    order = [row.class_id for row in rows][::-1]
    raw = raw_of(range(60))
    for split, key in (("train", "a"), ("val", "b")):
        lines(base / f"ImageSets/Main/{split}.txt", [key])
        picture(base / f"JPEGImages/{key}.jpg", raw.shape)
        index_png(base / f"59_context/{key}.png", raw)
    with pytest.raises(OrdnetError, match=r"59_labels\.txt from the same page"):
        open_dataset(f"pascal-context:{tmp_path}", "train")
    names = [f"{n}: {other.get(rows[c].name, rows[c].name)}" for n, c in enumerate(order, 1)]
    lines(base / "59_labels.txt", names)
    expected = np.array([IGNORE, *order])[raw]
    assert np.array_equal(read_all(f"pascal-context:{tmp_path}", "train")[1]["a"], expected)
    for wrong in (names[:-1], [*names[:-1], "59: dragon"], [*names, "nonsense"]):
        lines(base / "59_labels.txt", wrong)
        with pytest.raises(OrdnetError, match=r"59_labels\.txt"):
            open_dataset(f"pascal-context:{tmp_path}", "train")


# COCO-Stuff 10k


def make_coco(root, write):
    rows = class_table("coco_stuff")
    raw = raw_of([0, *(row.raw for row in rows)])
    for split, key in (("train", "COCO_train2014_000000000077"), ("test", "COCO_train2014_000000000081")):
        lines(root / f"imageLists/{split}.txt", [key])
        write(split, key, raw)
    expected = np.full(raw.shape, IGNORE)
    for row in rows:
        expected[raw == row.raw] = row.class_id
    return expected


def test_coco_stuff_mat(tmp_path):
    def write(split, key, raw):
        picture(tmp_path / f"images/{key}.jpg", raw.shape)
        mat(tmp_path / f"annotations/{key}.mat", S=raw.astype(np.uint16), captions="something")

    expected = make_coco(tmp_path, write)
    dataset, labels = read_all(f"coco-stuff:{tmp_path}", "train")
    assert len(dataset.classes) == 171 and dataset.classes.names[11] == "stop sign"
    assert np.array_equal(labels["COCO_train2014_000000000077"], expected)
    val = read_all(f"coco-stuff:{tmp_path}", "val")[1]
    assert list(val) == list(read_all(f"coco-stuff:{tmp_path}", "test")[1]) == ["COCO_train2014_000000000081"]
    assert len(read_all(f"coco-stuff:{tmp_path}", "trainval")[1]) == 2
    # a raw id that is never used is an error that names file, value and count
    mat(tmp_path / "annotations/COCO_train2014_000000000077.mat", S=np.full(expected.shape, 12, dtype=np.uint8))
    with pytest.raises(OutsideClasses, match=rf"000000000077\.mat.* 12 \({expected.size} pixels\)"):
        read_all(f"coco-stuff:{tmp_path}", "train")


def test_coco_stuff_converted(tmp_path):
    def raw_ids(split, key, raw):
        picture(tmp_path / f"raw/images/{key}.jpg", raw.shape)
        index_png(tmp_path / f"raw/annotations/{key}.png", raw)

    def train_ids(split, key, raw):
        picture(tmp_path / f"numbered/images/{split}2014/{key}.jpg", raw.shape)
        numbers = np.searchsorted([row.raw for row in class_table("coco_stuff")], raw, side="right")
        index_png(tmp_path / f"numbered/annotations/{split}2014/{key}_labelTrainIds.png", numbers)
        mat(tmp_path / f"numbered/annotations/{key}.mat", S=raw)

    for name, write in (("raw", raw_ids), ("numbered", train_ids)):
        expected = make_coco(tmp_path / name, write)
        for label in read_all(f"coco-stuff:{tmp_path / name}", "trainval")[1].values():
            assert np.array_equal(label, expected)


# PASCAL VOC


def make_voc(root):
    base = root / "VOCdevkit/VOC2012"
    raw = raw_of([*range(21), 255])
    for split, ids in (("train", ["a", "b"]), ("val", ["c"]), ("test", ["t"])):
        lines(base / f"ImageSets/Segmentation/{split}.txt", ids)
        for key in ids:
            picture(base / f"JPEGImages/{key}.jpg", raw.shape)
            if split != "test":
                paletted_png(base / f"SegmentationClass/{key}.png", raw)
    return base, raw


def sbd(path, raw):
    mat(path, GTcls={"Boundaries": np.zeros((20, 1)), "Segmentation": raw.astype(np.uint8), "CategoriesPresent": [1]})


def test_voc_plain(tmp_path):
    base, raw = make_voc(tmp_path)
    for path in (tmp_path, tmp_path / "VOCdevkit", base):
        dataset, labels = read_all(f"voc:{path}", "trainval")
        assert list(labels) == ["a", "b", "c"] and dataset.classes.names[15] == "person"
        assert all(np.array_equal(label, raw) for label in labels.values())
    assert list(open_dataset(f"voc:{base}", "test").ids) == ["t"]
    with pytest.raises(
        OrdnetError, match=r"augmented splits need more labels.*SegmentationClassAug.*benchmark_RELEASE"
    ):
        open_dataset(f"voc:{base}", "trainaug")


@pytest.mark.parametrize("place", ["benchmark_RELEASE/dataset", "VOCdevkit/VOCaug/dataset"])
def test_voc_augmented_with_sbd(tmp_path, place):
    base, raw = make_voc(tmp_path)
    # SBD also labels pictures of VOC's train (b) and val (c), differently
    for key in ("b", "c", "d", "e"):
        sbd(tmp_path / place / f"cls/{key}.mat", np.full(raw.shape, 7))
        picture(tmp_path / place / f"img/{key}.jpg", raw.shape)
    picture(base / "JPEGImages/d.jpg", raw.shape)
    dataset, labels = read_all(f"voc:{tmp_path}", "trainaug")
    assert sorted(labels) == ["a", "b", "d", "e"]
    assert np.array_equal(labels["b"], raw) and (labels["d"] == 7).all() and (labels["e"] == 7).all()
    images = {key: dataset.files(index)[0] for index, key in enumerate(dataset.ids)}
    assert "JPEGImages" in images["d"] and "img" in images["e"]
    both = read_all(f"voc:{base}", "trainvalaug")[1]
    assert sorted(both) == ["a", "b", "c", "d", "e"] and np.array_equal(both["c"], raw)


def test_voc_augmented_with_pngs(tmp_path):
    base, raw = make_voc(tmp_path)
    for key in ("a", "c", "d"):
        index_png(base / f"SegmentationClassAug/{key}.png", np.full(raw.shape, 7))
    picture(base / "JPEGImages/d.jpg", raw.shape)
    labels = read_all(f"voc:{base}", "trainaug")[1]
    assert sorted(labels) == ["a", "b", "d"] and (labels["d"] == 7).all() and np.array_equal(labels["a"], raw)


def test_voc_augmented_by_a_list(tmp_path):
    base, raw = make_voc(tmp_path)
    for key in ("a", "c", "d", "e"):
        index_png(base / f"SegmentationClassAug/{key}.png", np.full(raw.shape, 7))
        picture(base / f"JPEGImages/{key}.jpg", raw.shape)
    # two customary forms: ids, and paths of picture and label
    lines(base / "ImageSets/Segmentation/trainaug.txt", ["a", "c", "e"])
    assert sorted(read_all(f"voc:{base}", "trainaug")[1]) == ["a", "b", "e"]
    (base / "ImageSets/Segmentation/trainaug.txt").unlink()
    pairs = [f"/JPEGImages/{key}.jpg /SegmentationClassAug/{key}.png" for key in ("a", "d")]
    lines(base / "ImageSets/SegmentationAug/train_aug.txt", pairs)
    assert sorted(read_all(f"voc:{base}", "trainaug")[1]) == ["a", "b", "d"]


# Cityscapes


def make_cityscapes(root, ending="labelIds"):
    raw = raw_of(range(34)) if ending == "labelIds" else raw_of([*range(19), 255])
    for folder, kinds in {
        "train": ("gtFine", "gtCoarse"), "val": ("gtFine", "gtCoarse"),
        "train_extra": ("gtCoarse",), "test": ("gtFine",),
    }.items():  # fmt: skip
        key = f"city_{folder}/city_{folder}_000000_000019"
        picture(root / f"leftImg8bit/{folder}/{key}_leftImg8bit.png", raw.shape)
        for kind in kinds:
            index_png(root / f"{kind}/{folder}/{key}_{kind}_{ending}.png", raw)
            index_png(root / f"{kind}/{folder}/{key}_{kind}_instanceIds.png", raw)
    return raw


def test_cityscapes(tmp_path):
    raw = make_cityscapes(tmp_path)
    dataset, labels = read_all(f"cityscapes:{tmp_path}", "train")
    assert list(labels) == ["city_train/city_train_000000_000019"]
    assert len(dataset.classes) == 19 and dataset.classes.names[:2] == ("road", "sidewalk")
    assert dataset.classes.colours[0] == (128, 64, 128) and dataset.classes.colours[13] == (0, 0, 142)
    (label,) = labels.values()
    counting = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
    for class_id, value in enumerate(counting):
        assert np.array_equal(label == class_id, raw == value)
    assert np.array_equal(label == IGNORE, ~np.isin(raw, counting))
    # the server wants original ids
    assert set(np.unique(dataset.rule.decode(label[label != IGNORE]))) == set(counting)
    for split, count in {"val": 1, "trainval": 2, "train_extra": 1, "train_coarse": 1, "val_coarse": 1}.items():
        found, labels = read_all(f"cityscapes:{tmp_path}", split)
        assert len(labels) == count
        assert ("gtCoarse" in found.files(0)[1]) == ("extra" in split or "coarse" in split)
    test = open_dataset(f"cityscapes:{tmp_path}", "test")  # its labels are all void
    assert test.files(0)[1] == "" and test.rule.decode(np.uint8([0, 18])).tolist() == [7, 33]


def test_cityscapes_class_ids(tmp_path):
    raw = make_cityscapes(tmp_path, "labelTrainIds")
    labels = read_all(f"cityscapes:{tmp_path}", "trainval")[1]
    assert all(np.array_equal(label, raw) for label in labels.values())
    index_png(tmp_path / "gtFine/val/city_val/city_val_000000_000019_gtFine_labelTrainIds.png", raw + 19)
    with pytest.raises(OutsideClasses, match=r"city_val_000000_000019_gtFine_labelTrainIds\.png.* 19 "):
        read_all(f"cityscapes:{tmp_path}", "val")


def test_cityscapes_parts_that_are_missing(tmp_path):
    make_cityscapes(tmp_path)
    (tmp_path / "gtCoarse").rename(tmp_path / "elsewhere")
    with pytest.raises(OrdnetError, match=r"no folder .*gtCoarse/train_extra; expected"):
        open_dataset(f"cityscapes:{tmp_path}", "train_extra")
    next((tmp_path / "gtFine/train").rglob("*labelIds.png")).unlink()
    with pytest.raises(OrdnetError, match=r"1 of 1 labels are missing.*_gtFine_labelIds"):
        open_dataset(f"cityscapes:{tmp_path}", "train")


# Mapillary Vistas


def vistas_config(path, count):
    entries = [
        {"name": f"object--{i}", "readable": f"Object {i}", "color": [i, 2 * i % 256, 0], "evaluate": i != count - 1}
        for i in range(count)
    ]
    path.write_text(json.dumps({"version": "1", "mapping": "public", "labels": entries}))


def test_mapillary_vistas(tmp_path):
    for folder in ("training", "validation", "testing"):
        picture(tmp_path / f"{folder}/images/{folder}_a.jpg", raw_of(range(124)).shape)
    vistas_config(tmp_path / "config.json", 66)
    raw = np.resize(raw_of(range(66)), raw_of(range(124)).shape)
    for folder in ("training", "validation"):
        index_png(tmp_path / f"{folder}/labels/{folder}_a.png", raw)
    dataset, labels = read_all(f"mapillary:{tmp_path}", "train")
    assert len(dataset.classes) == 65 and dataset.classes.names[3] == "Object 3"
    assert dataset.classes.colours[3] == (3, 6, 0)
    assert np.array_equal(labels["training_a"], np.where(raw == 65, IGNORE, raw))
    # a download of version 2.0 has both
    (tmp_path / "config.json").rename(tmp_path / "config_v1.2.json")
    vistas_config(tmp_path / "config_v2.0.json", 124)
    for folder in ("training", "validation"):
        (tmp_path / f"{folder}/v1.2").mkdir()
        (tmp_path / f"{folder}/labels").rename(tmp_path / f"{folder}/v1.2/labels")
        index_png(tmp_path / f"{folder}/v2.0/labels/{folder}_a.png", raw_of(range(124)))
    assert len(read_all(f"mapillary:{tmp_path}", "trainval")[0].classes) == 123
    assert len(read_all(f"mapillary-1.2:{tmp_path}", "val")[0].classes) == 65
    assert open_dataset(f"mapillary:{tmp_path}", "test").files(0)[1] == ""


@pytest.mark.parametrize("colour", [[0, 0, 256], [0, 0], "red", [0, 0, -1], [0.5, 0, 0]])
def test_mapillary_configs_with_mistakes(tmp_path, colour):
    picture(tmp_path / "training/images/a.jpg")
    entry = {"readable": "x", "color": colour, "evaluate": True}
    for content in (json.dumps({"labels": [entry]}), "{", json.dumps({"labels": []}), "[" * 100_000):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(OrdnetError, match=r"config\.json"):
            open_dataset(f"mapillary:{tmp_path}", "train")


# the full ADE20K


def make_full(root, numbers):
    folder = root / "ADE20K_2021_17_01/images/ADE"
    for part in ("training", "validation"):
        place = folder / part / "urban/street"
        picture(place / "ADE_1.jpg", numbers.shape)
        pixels = np.stack([numbers // 256 * 10, numbers % 256, numbers * 0 + 9], axis=-1).astype(np.uint8)
        Image.fromarray(pixels).save(place / "ADE_1_seg.png")
        objects = [
            {"id": 1, "name": "sky", "name_ndx": 2420, "parts": {"part_level": 0}},
            {"id": 2, "name": "building, edifice", "name_ndx": 312, "parts": {"part_level": 0}},
            {"id": 3, "name": "zebra", "name_ndx": 3000, "parts": {"part_level": 0}},
        ]
        (place / "ADE_1.json").write_text(json.dumps({"annotation": {"object": objects}}))
    return root / "ADE20K_2021_17_01"


def test_ade20k_full(tmp_path):
    numbers = np.resize([0, 2420, 312, 3000, 2420, 999], SHAPE)
    root = make_full(tmp_path, numbers)
    (root / "index_ade20k.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")  # never read
    with pytest.raises(OrdnetError, match=r"no classes.txt.*3,688 names"):
        open_dataset(f"ade20k-full:{tmp_path}", "train")
    lines(root / "classes.txt", ["building, edifice", "sky"])
    dataset, labels = read_all(f"ade20k-full:{tmp_path}", "trainval")
    assert dataset.classes.names == ("building, edifice", "sky") and len(dataset.ids) == 2
    expected = np.full(SHAPE, IGNORE)
    expected[numbers == 312], expected[numbers == 2420] = 0, 1
    assert np.array_equal(labels["urban/street/ADE_1"], expected)
    for content in ("{", "[]", '{"annotation": {"object": [3]}}', "[" * 100_000):
        (root / "images/ADE/training/urban/street/ADE_1.json").write_text(content)
        with pytest.raises(OrdnetError, match=r"ADE_1\.json is not a file of the full ADE20K"):
            read_all(f"ade20k-full:{root}", "train")
    (root / "images/ADE/training/urban/street/ADE_1.json").unlink()
    with pytest.raises(OrdnetError, match=r"ADE_1\.json is missing"):
        read_all(f"ade20k-full:{root}", "train")


# CamVid


def make_kaggle(root):
    rows = class_table("camvid_32")
    which = raw_of(range(32))
    colours = np.array([row.colour for row in rows], dtype=np.uint8)[which]
    for split in ("train", "val", "test"):
        picture(root / f"CamVid/{split}/{split}_1.png", which.shape)
        (root / f"CamVid/{split}_labels").mkdir()
        Image.fromarray(colours).save(root / f"CamVid/{split}_labels/{split}_1_L.png")
    rows_text = "".join(f"{row.name},{','.join(map(str, row.colour))}\n" for row in rows)
    (root / "CamVid/class_dict.csv").write_text(f"name,r,g,b\n{rows_text}")
    return rows, which


def test_camvid_from_kaggle(tmp_path):
    rows, which = make_kaggle(tmp_path)
    dataset, labels = read_all(f"camvid:{tmp_path}", "trainval")
    assert list(labels) == ["train_1", "val_1"] and len(dataset.classes) == 11
    assert np.array_equal(labels["train_1"], np.array([row.class_id for row in rows])[which])
    for content in ("name,r,g,b\nSky,128,128,999\n", "name,r,g,b\nDragon,1,2,3\n", "name;r\nSky;1\n"):
        (tmp_path / "CamVid/class_dict.csv").write_text(content)
        with pytest.raises(OrdnetError, match=r"class_dict\.csv: expected one of CamVid's 32 names"):
            open_dataset(f"camvid:{tmp_path}", "train")


def test_camvid_segnet(tmp_path):
    raw = raw_of(range(12))
    for split in ("train", "val", "test"):
        picture(tmp_path / f"CamVid/{split}/{split}_1.png", raw.shape)
        index_png(tmp_path / f"CamVid/{split}annot/{split}_1.png", raw)
    dataset, labels = read_all(f"camvid:{tmp_path}", "trainval")
    assert list(labels) == ["train_1", "val_1"] and len(dataset.classes) == 11
    assert np.array_equal(labels["train_1"], np.where(raw == 11, IGNORE, raw))
    assert list(read_all(f"camvid:{tmp_path}/CamVid", "test")[1]) == ["test_1"]


def test_camvid_official(tmp_path):
    rows = class_table("camvid_32")
    which = raw_of(range(32))
    colours = np.array([row.colour for row in rows], dtype=np.uint8)[which]
    ids = {
        "train": ["0001TP_008520", "0006R0_f00930", "0016E5_00901", "0016E5_08190"],
        "val": ["0016E5_07959", "0016E5_08159"],
        "test": ["0001TP_008550", "Seq05VD_f00000"],
    }
    for key in (*ids["train"], *ids["val"], *ids["test"]):
        picture(tmp_path / f"701_StillsRaw_full/{key}.png", which.shape)
        (tmp_path / "LabeledApproved_full").mkdir(exist_ok=True)
        Image.fromarray(colours).save(tmp_path / f"LabeledApproved_full/{key}_L.png")
    for split, expected in ids.items():
        dataset, labels = read_all(f"camvid:{tmp_path}", split)
        assert list(labels) == expected
    names = np.array([*dataset.classes.names, *[""] * 244, "void"])[labels["Seq05VD_f00000"]]
    for original, grouped in (
        ("Sidewalk", "pavement"),
        ("SUVPickupTruck", "car"),
        ("Child", "pedestrian"),
        ("Void", "void"),
    ):
        assert set(names[which == [row.name for row in rows].index(original)]) == {grouped}


def test_camvid_as_a_folder(tmp_path):
    raw = raw_of([*range(11), 255])
    for split in ("train", "val", "test"):
        lines(tmp_path / f"{split}.txt", [split])
        picture(tmp_path / f"images/{split}.jpg", raw.shape)
        index_png(tmp_path / f"labels/{split}.png", raw)
    assert np.array_equal(read_all(f"camvid:{tmp_path}", "test")[1]["test"], raw)
    for own, there in (("cat\ndog\n", 2), ("sky\nbuilding\npole\n", 3)):  # somebody's own pictures, not CamVid
        (tmp_path / "classes.txt").write_text(own)
        with pytest.raises(OrdnetError, match=rf"names {there} classes .*not CamVid's 11: use --data folder:"):
            open_dataset(f"camvid:{tmp_path}", "test")
    (tmp_path / "classes.txt").write_text("\n".join(row.name for row in class_table("camvid")))
    assert len(open_dataset(f"camvid:{tmp_path}", "test").ids) == 1


# the tables


@pytest.mark.parametrize(
    ("name", "count"),
    [("ade20k", 150), ("pascal_context", 59), ("coco_stuff", 171), ("voc", 21), ("camvid", 11), ("cityscapes", 19)],
)
def test_tables_number_the_classes_without_gaps(name, count):
    rows = class_table(name)
    assert sorted(row.class_id for row in rows if row.class_id != IGNORE) == list(range(count))
    assert len({row.raw for row in rows}) == len(rows) and len(set(classes_of(rows).names)) == count


# .mat labels and their PNGs


@pytest.fixture
def mat_file(tmp_path):
    path = tmp_path / "labels/a.mat"
    mat(path, S=RNG.integers(0, 460, (50, 60)).astype(np.uint16))
    return path


def cached(path):
    return path.parent.with_name("labels.png-cache") / "a.png"


def test_mat_is_read_once(mat_file, monkeypatch):
    first = read_mat(str(mat_file), "S")
    assert first.max() > 255 and cached(mat_file).is_file()
    monkeypatch.setitem(sys.modules, "scipy.io", None)  # from here on scipy cannot be imported
    assert np.array_equal(read_mat(str(mat_file), "S"), first)
    cached(mat_file).unlink()
    with pytest.raises(OrdnetError, match=r"needs scipy: pip install 'ordnet\[coco\]'"):
        read_mat(str(mat_file), "S")


def test_a_changed_mat_is_noticed(mat_file):
    read_mat(str(mat_file), "S")
    changed = np.full((50, 60), 7, dtype=np.uint16)
    mat(mat_file, S=changed)
    assert np.array_equal(read_mat(str(mat_file), "S"), changed)
    assert np.array_equal(read_mat(str(mat_file), "S"), changed)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"nonsense"])
def test_a_damaged_png_counts_as_none(mat_file, damage):
    first = read_mat(str(mat_file), "S")
    cached(mat_file).write_bytes(damage(cached(mat_file).read_bytes()))
    assert np.array_equal(read_mat(str(mat_file), "S"), first)
    assert Image.open(cached(mat_file)).size == (60, 50)


def test_the_users_cache_stands_in_for_a_folder_that_cannot_be_written(mat_file, tmp_path):
    cached(mat_file).parent.write_text("a file where the cache folder should be: nobody can write there, not even root")
    first = read_mat(str(mat_file), "S")
    (kept,) = (tmp_path / "user-cache").rglob("a.png")
    assert np.array_equal(np.asarray(Image.open(kept)), first)
    stamp = kept.stat().st_mtime_ns
    assert np.array_equal(read_mat(str(mat_file), "S"), first) and kept.stat().st_mtime_ns == stamp


def test_without_any_place_to_write_labels_are_read_all_the_same(mat_file, tmp_path):
    cached(mat_file).parent.write_text("")
    (tmp_path / "user-cache").write_text("")
    assert read_mat(str(mat_file), "S").shape == (50, 60)


def test_a_killed_reader_leaves_nothing_broken(mat_file):
    # the second process dies when its PNG is written but not yet in place
    script = """
        import os, signal, sys
        os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
        from ordnet.data.label_files import read_mat
        read_mat(sys.argv[1], "S")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(mat_file)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(cached(mat_file).parent.iterdir()) and not cached(mat_file).exists()
    first = read_mat(str(mat_file), "S")
    assert cached(mat_file).is_file() and np.array_equal(read_mat(str(mat_file), "S"), first)


def read_many(path, times):
    return [read_mat(path, "S").tobytes() for _ in range(times)]


def test_many_processes_at_once(mat_file):
    expected = read_mat(str(mat_file), "S").tobytes()
    for _ in range(3):
        cached(mat_file).unlink()
        with multiprocessing.get_context("fork").Pool(4) as pool:
            results = pool.starmap(read_many, [(str(mat_file), 10)] * 8)
        assert {content for result in results for content in result} == {expected}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 2, 3)), "expected one number per pixel"),
        (np.array([[0.5]]), "whole numbers"),
        (np.array([[-1]]), "whole numbers"),
        (np.array([[np.nan]]), "whole numbers"),
    ],
)
def test_mat_files_with_something_else(tmp_path, value, message):
    mat(tmp_path / "a.mat", S=value)
    with pytest.raises(OrdnetError, match=rf"a\.mat.*{message}"):
        read_mat(str(tmp_path / "a.mat"), "S")


def test_broken_mat_files_are_named(tmp_path, mat_file):
    path = tmp_path / "broken.mat"
    path.write_bytes(mat_file.read_bytes()[:300])
    with pytest.raises(OrdnetError, match=r"broken\.mat holds no readable label `S`"):
        read_mat(str(path), "S")
    with pytest.raises(OrdnetError, match=r"a\.mat holds no readable label `LabelMap`"):
        read_mat(str(mat_file), "LabelMap")
    with pytest.raises(OrdnetError, match=r"no label at .*gone\.mat"):
        read_mat(str(tmp_path / "gone.mat"), "S")


# mistakes


@pytest.mark.parametrize("name", sorted(OPENERS.keys() - {"scenes"}))
def test_mistakes_are_explained(tmp_path, name):
    for path in (f":{tmp_path}", f":{tmp_path}/gone", ""):
        with pytest.raises(OrdnetError, match=rf"^{name}.*(?s:.*)(/|\.txt)"):
            open_dataset(name + path, "train")


def test_unknown_names_and_splits():
    with pytest.raises(OrdnetError, match=r"no data set 'cityscape'; there are folder, tar, ade20k.*folder:PATH"):
        open_dataset("cityscape:/data", "train")
    for name in sorted(OPENERS.keys() - {"scenes", "folder", "tar"}):
        with pytest.raises(OrdnetError, match=rf"{name} has no split 'validation'; there are .*val"):
            open_dataset(f"{name}:/nowhere", "validation")


def test_a_missing_label_is_named_with_its_place(tmp_path):
    make_ade20k(tmp_path)
    (tmp_path / "ADEChallengeData2016/annotations/training/ADE_train_00000001.png").unlink()
    with pytest.raises(
        OrdnetError, match=r"1 of 1 labels are missing: ADE_train_00000001; looked for .*annotations/training"
    ):
        open_dataset(f"ade20k:{tmp_path}", "train")


def test_sizes_that_differ_are_both_named(tmp_path):
    raw = make_ade20k(tmp_path)
    image = tmp_path / "ADEChallengeData2016/images/training/ADE_train_00000001.jpg"
    picture(image, (raw.shape[1], raw.shape[0]))
    size = f"{raw.shape[0]} x {raw.shape[1]}"
    with pytest.raises(OrdnetError, match=rf"training/ADE_train_00000001\.jpg has {size} pixels.*EXIF"):
        read_pair(open_dataset(f"ade20k:{tmp_path}", "train"), 0)


def test_opening_reads_no_picture(tmp_path):
    make_ade20k(tmp_path)
    for file in tmp_path.rglob("*.*"):
        file.write_bytes(b"")
    assert len(open_dataset(f"ade20k:{tmp_path}", "trainval").ids) == 2


def test_outside_values_survive_the_way_out_of_a_worker():
    assert "expected 0…8, 11, 255" in str(OutsideClasses({9: 1}, [*range(9), 11, 255]))
    error = pickle.loads(pickle.dumps(OutsideClasses({7: 3}, [0, 1], "a.png")))
    assert error.values == {7: 3} and str(error).startswith("a.png: ") and error.file == "a.png"


# what goes wrong, for every layout


def make_context_png(root):
    raw = raw_of([*range(60), 255])
    for split, key in (("train", "a"), ("val", "b")):
        lines(root / f"VOC2010/ImageSets/SegmentationContext/{split}.txt", [key])
        picture(root / f"VOC2010/JPEGImages/{key}.jpg", raw.shape)
        index_png(root / f"VOC2010/SegmentationClassContext/{key}.png", raw)


def make_coco_mat(root):
    def write(split, key, raw):
        picture(root / f"images/{key}.jpg", raw.shape)
        mat(root / f"annotations/{key}.mat", S=raw.astype(np.uint8))

    make_coco(root, write)


def make_voc_sbd(root):
    base, raw = make_voc(root)
    sbd(root / "benchmark_RELEASE/dataset/cls/d.mat", np.full(raw.shape, 7))
    picture(base / "JPEGImages/d.jpg", raw.shape)


def make_vistas(root):
    for folder in ("training", "validation"):
        picture(root / f"{folder}/images/a.jpg", raw_of(range(66)).shape)
        index_png(root / f"{folder}/v2.0/labels/a.png", raw_of(range(66)))
    vistas_config(root / "config_v2.0.json", 66)


def make_full_with_classes(root):
    lines(make_full(root, np.resize([0, 2420, 312], SHAPE)) / "classes.txt", ["building, edifice", "sky"])


def make_segnet(root):
    raw = raw_of(range(12))
    for split in ("train", "val", "test"):
        picture(root / f"CamVid/{split}/{split}_1.png", raw.shape)
        index_png(root / f"CamVid/{split}annot/{split}_1.png", raw)


LAYOUTS = {
    "ade20k": (make_ade20k, "train"),
    "ade20k-full": (make_full_with_classes, "train"),
    "pascal-context": (lambda root: make_context(root, "VOCdevkit/VOC2010/trainval"), "train"),
    "pascal-context png": (make_context_png, "train"),
    "pascal-context detail": (lambda root: make_detail(root, raw_of([0, 2, 9])), "train"),
    "coco-stuff": (make_coco_mat, "train"),
    "voc": (make_voc, "train"),
    "voc sbd": (make_voc_sbd, "trainaug"),
    "cityscapes": (make_cityscapes, "train"),
    "mapillary": (make_vistas, "train"),
    "camvid kaggle": (make_kaggle, "train"),
    "camvid segnet": (make_segnet, "train"),
}


def outcome(name, root, split):
    """The labels' ids, or what is said to be wrong. Anything but our own error is a failure of the test."""
    try:
        return list(read_all(f"{name.split()[0]}:{root}", split)[1])
    except OrdnetError as error:
        return str(error)


@pytest.mark.parametrize("name", LAYOUTS)
def test_whatever_is_missing_is_named(name, tmp_path):
    make, split = LAYOUTS[name]
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    whole = outcome(name, root, split)
    assert isinstance(whole, list)
    failures = 0
    for part in sorted(root.rglob("*")):
        if "png-cache" in str(part) or any("png-cache" in str(parent) for parent in part.parents):
            continue
        part.rename(tmp_path / "away")
        found = outcome(name, root, split)
        (tmp_path / "away").rename(part)
        if isinstance(found, str):
            failures += 1
            assert str(root) in found, found
    assert failures >= 3  # pictures, labels, and what holds them
    assert outcome(name, root, split) == whole


@pytest.mark.parametrize("name", LAYOUTS)
def test_whatever_is_cut_off_is_named(name, tmp_path):
    make, split = LAYOUTS[name]
    make(tmp_path)
    cut = []
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in str(path)):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        found = outcome(name, tmp_path, split)
        file.write_bytes(content)
        if isinstance(found, str):
            cut.append(file.suffix)
            # of a list that ends early the last id is cut, and the picture of that name is looked for
            assert file.name in found or (file.suffix == ".txt" and str(tmp_path) in found), found
    assert set(cut) & {".png", ".mat", ".json"}


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ("ade20k-full", "pascal-context detail")])
def test_a_value_that_no_class_has_is_named(name, tmp_path):
    make, split = LAYOUTS[name]
    make(tmp_path)
    dataset = open_dataset(f"{name.split()[0]}:{tmp_path}", split)
    strange = []
    for index in range(len(dataset.ids)):
        file = Path(dataset.files(index)[1])
        raw = np.full(raw_of(range(2)).shape, 254)
        if file.suffix == ".mat":
            key = {"pascal-context": "LabelMap", "coco-stuff": "S"}.get(name)
            if key:
                mat(file, **{key: raw.astype(np.uint16) + 500})
            else:
                sbd(file, raw)
        elif name == "camvid kaggle":
            Image.fromarray(np.full((*raw.shape, 3), 3, np.uint8)).save(file)
        else:
            index_png(file, raw)
        with pytest.raises(OrdnetError) as caught:
            open_dataset(f"{name.split()[0]}:{tmp_path}", split).label(index)
        assert file.name in str(caught.value)
        strange.append(str(caught.value))
    assert strange
