"""labelme and COCO annotations → the folder layout."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ordnet.data.folder import divide as split
from ordnet.data.importers.convert import class_names, identifier, write_folder
from ordnet.data.importers.per_picture import read_labelme
from ordnet.data.importers.single_file import read_coco
from ordnet.errors import OrdnetError


def picture(width=20, height=10, kind="JPEG"):
    file = io.BytesIO()
    Image.new("RGB", (width, height), (10, 200, 30)).save(file, kind)
    return file.getvalue()


def shape(label, points, kind="polygon"):
    return {"label": label, "points": points, "shape_type": kind}


def square(label, x, y, side):
    return shape(label, [[x, y], [x + side, y], [x + side, y + side], [x, y + side]])


def put_labelme(folder, name, shapes, image="beside", **extra):
    folder.mkdir(parents=True, exist_ok=True)
    content = {"shapes": shapes, "imagePath": f"{name}.jpg", "imageData": None, "imageHeight": 10, "imageWidth": 20}
    if image == "beside":
        (folder / f"{name}.jpg").write_bytes(picture())
    elif image == "embedded":
        content["imageData"] = base64.b64encode(picture(kind="PNG")).decode()
    (folder / f"{name}.json").write_text(json.dumps({**content, **extra}))


def convert(found, out, background=True, val=0.0):
    return write_folder(found, out, background, val, seed=0)


def label_of(out, name):
    return np.asarray(Image.open(out / "labels" / f"{name}.png"))


def test_labelme_becomes_the_folder_layout(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    put_labelme(source, "a", [square("dog", 2, 1, 4), shape("cat", [[10, 2], [14, 5]], "rectangle")])
    put_labelme(source / "more", "b", [shape("dog", [[10, 5], [12, 5]], "circle")], image="embedded")
    written = convert(read_labelme(source), out)
    assert written.classes == ["background", "cat", "dog"]
    assert (out / "classes.txt").read_text() == "background\ncat\ndog\n"
    assert (out / "train.txt").read_text().split() == ["a", "more_b"]
    assert (out / "images" / "a.jpg").read_bytes() == (source / "a.jpg").read_bytes()
    assert (out / "images" / "more_b.png").read_bytes() == picture(kind="PNG")
    expected = np.zeros((10, 20), dtype=np.uint8)
    expected[1:5, 2:6] = 2
    expected[2:5, 10:14] = 1
    np.testing.assert_array_equal(label_of(out, "a"), expected)
    # the twelve pixel centres within two pixels of (10, 5)
    assert (label_of(out, "more_b") == 2).sum() == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_small_shapes_stay_on_top_and_later_ones_over_equals(tmp_path):
    put_labelme(tmp_path / "s", "a", [square("small", 2, 2, 2), square("first", 0, 0, 8), square("second", 4, 0, 8)])
    convert(read_labelme(tmp_path / "s"), tmp_path / "out")
    label = label_of(tmp_path / "out", "a")
    background, first, second, small = range(4)
    assert (label[2:4, 2:4] == small).all()
    assert (label[:8, 4:12] == second).all()
    assert label[0, 0] == first
    assert label[9, 19] == background


def test_without_background_the_rest_is_ignored(tmp_path):
    put_labelme(tmp_path / "s", "a", [square("dog", 0, 0, 5), square("__ignore__", 0, 0, 2)])
    put_labelme(tmp_path / "s", "empty", [])
    written = convert(read_labelme(tmp_path / "s"), tmp_path / "out", background=False)
    label = label_of(tmp_path / "out", "a")
    assert written.classes == ["dog"]
    assert (label == 0).sum() == 25 - 4
    assert (label == 255).sum() == 200 - 21
    assert written.left_out == {"pictures without any shape": 1}
    assert not (tmp_path / "out" / "labels" / "empty.png").exists()


def test_what_cannot_be_painted_is_counted(tmp_path):
    shapes = [
        shape("dog", [[0, 0], [5, 5]], "line"),
        shape("dog", [[0, 0]], "point"),
        shape("dog", [[0, 0], [5, 5]]),
        square("dog", 100, 0, 5),
        square("dog", -3, -3, 5),
    ]
    put_labelme(tmp_path / "s", "a", shapes)
    written = convert(read_labelme(tmp_path / "s"), tmp_path / "out")
    assert sum(written.left_out.values()) == 4
    assert {key.split()[0] for key in written.left_out} == {"line", "point", "polygon", "shapes"}
    assert (label_of(tmp_path / "out", "a") == 1).sum() == 4  # what is left of the square over the corner


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not readable as JSON"),
        ("[]", "not a labelme file"),
        ('{"shapes": [], "imagePath": "nowhere.jpg"}', "is missing"),
        ('{"shapes": [{"points": []}], "imagePath": "a.jpg"}', "no label"),
        ('{"shapes": [{"label": "x", "points": [["a", "b"]]}], "imagePath": "a.jpg"}', "list of points"),
        ('{"shapes": [{"label": "x", "points": [[0, NaN], [1, 1], [2, 3]]}], "imagePath": "a.jpg"}', "list of points"),
        ('{"shapes": [], "imagePath": "a.jpg", "imageWidth": 3, "imageHeight": 3}', "annotated at 3x3"),
        ('{"shapes": [], "imagePath": "broken.jpg"}', "not a picture"),
        ('{"shapes": [], "imageData": "???"}', "imageData is broken"),
    ],
)
def test_labelme_mistakes_leave_nothing_behind(tmp_path, content, says):
    put_labelme(tmp_path / "s", "a", [square("dog", 0, 0, 3)])
    (tmp_path / "s" / "broken.jpg").write_bytes(b"no picture")
    (tmp_path / "s" / "z.json").write_text(content)
    with pytest.raises(OrdnetError, match=says) as caught:
        convert(read_labelme(tmp_path / "s"), tmp_path / "out")
    assert "z.json" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_an_existing_folder_is_kept(tmp_path):
    put_labelme(tmp_path / "s", "a", [])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(OrdnetError, match="not an empty folder"):
        convert(read_labelme(tmp_path / "s"), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def coco(tmp_path, annotations, **changes):
    images = tmp_path / "images"
    (images / "sub").mkdir(parents=True, exist_ok=True)
    for name in ("a.jpg", "sub/b.jpg"):
        (images / name).write_bytes(picture())
    content = {
        "images": [
            {"id": 7, "file_name": "a.jpg", "width": 20, "height": 10},
            {"id": 8, "file_name": "sub/b.jpg", "width": 20, "height": 10},
        ],
        "categories": [{"id": 9, "name": "late"}, {"id": 3, "name": "early"}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 9, **values} for values in annotations],
        **changes,
    }
    (tmp_path / "instances.json").write_text(json.dumps(content))
    return tmp_path / "instances.json", images


def test_coco_polygons_and_run_lengths(tmp_path):
    parts = [[1, 1, 4, 1, 4, 4, 1, 4], [10, 5, 12, 5, 12, 7, 10, 7]]
    # columns 6 and 7 of ten rows each; the second form is the same numbers compressed
    plain = {"size": [10, 20], "counts": [60, 20, 120]}
    compressed = {"size": [10, 20], "counts": "l1d0h3"}
    for name, runs in (("plain", plain), ("compressed", compressed)):
        where = tmp_path / name
        where.mkdir()
        file, images = coco(where, [{"segmentation": parts}, {"segmentation": runs, "iscrowd": 1, "category_id": 3}])
        written = convert(read_coco(file, images), where / "out")
        assert written.classes == ["background", "early", "late"]
        expected = np.zeros((10, 20), dtype=np.uint8)
        expected[:, 6:8] = 1
        expected[1:4, 1:4] = expected[5:7, 10:12] = 2
        np.testing.assert_array_equal(label_of(where / "out", "a"), expected)
        assert not label_of(where / "out", "sub_b").any()


def test_coco_as_cvat_and_roboflow_write_it(tmp_path):
    """CVAT keeps pictures in a folder of the subset's name, Roboflow adds a category that stands for all others."""
    categories = [
        {"id": 0, "name": "pets", "supercategory": "none"},
        {"id": 1, "name": "cat", "supercategory": "pets"},
        {"id": 2, "name": "dog", "supercategory": "pets"},
    ]
    square = {"segmentation": [[1, 1, 4, 1, 4, 4, 1, 4]], "category_id": 1}
    file, images = coco(tmp_path, [square], images=[{"id": 7, "file_name": "b.jpg"}], categories=categories)
    written = convert(read_coco(file, images), tmp_path / "out")
    assert written.classes == ["background", "cat", "dog"]
    assert list(written.left_out) == ["categories that only stand for all others (supercategories)"]
    assert label_of(tmp_path / "out", "b").sum() == 9
    # annotated itself it is a class as any other; of two folders with such a picture none is guessed
    file, images = coco(tmp_path, [{**square, "category_id": 0}], categories=categories)
    assert convert(read_coco(file, images), tmp_path / "second").classes == [
        "background",
        "pets",
        "cat",
        "dog",
    ]
    (images / "other").mkdir()
    (images / "other/b.jpg").write_bytes(picture())
    file, images = coco(tmp_path, [square], images=[{"id": 7, "file_name": "b.jpg"}], categories=categories)
    with pytest.raises(OrdnetError, match=r"b\.jpg is missing"):
        convert(read_coco(file, images), tmp_path / "third")


@pytest.mark.parametrize(
    ("annotations", "changes", "says"),
    [
        ([], {"images": None}, "not a COCO instances file"),
        ([], {"images": []}, "lists no images"),
        ([], {"categories": [{"id": 1}]}, "not a COCO instances file"),
        ([], {"images": [{"id": [], "file_name": "a.jpg"}]}, "not a COCO instances file"),
        ([], {"images": [{"id": 1, "file_name": ""}]}, "not a COCO instances file"),
        ([], {"images": [{"id": 1, "file_name": ".."}]}, "missing"),
        ([], {"categories": [{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]}, "more than once"),
        ([], {"images": [{"id": 7, "file_name": "gone.jpg"}]}, "gone.jpg is missing"),
        ([{"image_id": 1, "segmentation": [[0, 0, 1, 0, 1, 1]]}], {}, "not listed"),
        ([{"category_id": 1, "segmentation": [[0, 0, 1, 0, 1, 1]]}], {}, "not listed"),
        ([{"segmentation": [[0, 0, 1]]}], {}, "neither a list of polygons"),
        ([{"segmentation": "text"}], {}, "neither a list of polygons"),
        ([{"segmentation": {"counts": [1]}}], {}, "neither a list of polygons"),
        ([{"segmentation": {"size": [10, 20], "counts": "\u00e9"}}], {}, "character"),
        ([{"segmentation": {"size": [10, 20], "counts": [1]}}], {}, "add up to 1"),
        ([{"segmentation": {"size": [20, 10], "counts": [200]}}], {}, "10x20"),
    ],
)
def test_coco_mistakes_leave_nothing_behind(tmp_path, annotations, changes, says):
    file, images = coco(tmp_path, annotations, **changes)
    with pytest.raises(OrdnetError, match=says):
        convert(read_coco(file, images), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "instances.json"]


def test_coco_annotations_must_be_objects(tmp_path):
    file, images = coco(tmp_path, [])
    file.write_text(json.dumps({**json.loads(file.read_text()), "annotations": [3]}))
    with pytest.raises(OrdnetError, match="list 'annotations'"):
        read_coco(file, images)


def test_coco_boxes_are_counted(tmp_path):
    drawn = {"segmentation": [[0, 0, 5, 0, 5, 5]]}
    file, images = coco(tmp_path, [{"segmentation": []}, {"segmentation": [[0, 0, 5, 5]]}, drawn])
    assert sum(convert(read_coco(file, images), tmp_path / "out").left_out.values()) == 2


def test_two_pictures_of_one_name_are_refused(tmp_path):
    file, images = coco(tmp_path, [], images=[{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "./a.jpg"}])
    with pytest.raises(OrdnetError, match="both be called a"):
        convert(read_coco(file, images), tmp_path / "out")


def test_split_is_seeded_and_complete():
    ids = [f"{i:03}" for i in range(50)]
    parts = split(ids, 0.2, seed=3)
    assert len(parts["val"]) == 10
    assert sorted(parts["train"] + parts["val"]) == ids
    assert parts == split(ids, 0.2, seed=3)
    assert parts != split(ids, 0.2, seed=4)
    assert split(ids[:1], 0.2, 0) == {"train": ids[:1]}
    assert split(ids, 0, 0) == {"train": ids}
    assert len(split(ids[:2], 0.01, 0)["val"]) == 1
    assert len(split(ids[:2], 1, 0)["train"]) == 1


@pytest.mark.parametrize(
    "names", [[], ["__ignore__"], [str(i) for i in range(256)], ["a\nb"], ["red #ff0000"], ["x =3"], [""]]
)
def test_impossible_class_names_are_refused(names):
    with pytest.raises(OrdnetError, match="class name"):
        class_names(names, background=False)


def test_identifiers_stay_inside_the_folder():
    for name in ("../../x/y.jpg", "/x/y.jpg", "x/y.jpg", ".x/y .jpg"):
        assert identifier(Path(name)) == "x_y"


def test_coco_boxes_alone_are_refused(tmp_path):
    file, images = coco(tmp_path, [{"bbox": [0, 0, 5, 5]}, {"segmentation": [], "bbox": [0, 0, 5, 5]}])
    with pytest.raises(OrdnetError, match=r"2 boxes and no outlines.*Export with segmentations"):
        read_coco(file, images)


def test_coco_pictures_outside_the_folder_are_refused(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(picture())
    for name in ("../secret.jpg", str(tmp_path / "secret.jpg"), "a\0.jpg", "x" * 5000):
        file, images = coco(tmp_path, [], images=[{"id": 7, "file_name": name}])
        with pytest.raises(OrdnetError, match="missing"):
            convert(read_coco(file, images), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_coco_ids_of_both_kinds(tmp_path):
    categories = [{"id": 3, "name": "a"}, {"id": "x", "name": "b"}, {"id": 1, "name": "c"}]
    drawn = {"segmentation": [[0, 0, 5, 0, 5, 5]], "category_id": "x"}
    file, images = coco(tmp_path, [drawn], categories=categories)
    assert read_coco(file, images).names == ["c", "a", "b"]


@pytest.mark.parametrize(
    "segmentation",
    [
        {"size": [10, 20], "counts": [2**63, 2**63, 200]},
        {"size": [10, 20], "counts": [2**62, 2**62, 2**62, 2**62, 200]},
        {"size": [10, 20], "counts": [-(2**70), 2**70 + 200]},
        {"size": [10, 20], "counts": [1e308, 200.0]},
        {"size": [10, 20], "counts": ["a"]},
        {"size": [2**40, 2**40], "counts": [1]},
        {"size": [10, 20], "counts": [int("9" * 4300), int("9" * 4300)]},  # their sum has more digits than are printed
        {"size": [10, 20], "counts": "o" * 2_000_000},
        [[1e308, -1e308, 1e308, 1e308, 0, 1]],
        [[0, 0, 10**400, 1, 5, 5]],
    ],
)
def test_coco_numbers_that_overflow_are_refused(tmp_path, segmentation):
    file, images = coco(tmp_path, [{"segmentation": segmentation}])
    with pytest.raises(OrdnetError, match="nothing was written"):
        convert(read_coco(file, images), tmp_path / "out")


def test_the_folder_that_one_is_in(tmp_path, monkeypatch):
    """`--out .`: that folder itself is filled, and not another one put into its place."""
    file, images = coco(tmp_path, [{"segmentation": [[0, 0, 5, 0, 5, 5]]}])
    (tmp_path / "out").mkdir()
    before = (tmp_path / "out").stat().st_ino
    monkeypatch.chdir(tmp_path / "out")
    convert(read_coco(file, images), Path())
    assert (tmp_path / "out").stat().st_ino == before
    assert sorted(path.name for path in Path().iterdir()) == ["classes.txt", "images", "labels", "train.txt"]
    with pytest.raises(OrdnetError, match="not an empty folder"):
        convert(read_coco(file, images), Path())
