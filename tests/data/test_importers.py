"""Exports of CVAT, Label Studio, Supervisely and Roboflow, written as those tools write them → the folder layout."""

import base64
import io
import json
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from ordnet.data.catalogue import open_dataset
from ordnet.data.importers import masks
from ordnet.data.importers.convert import write_folder
from ordnet.data.importers.per_picture import read_labelme, read_supervisely
from ordnet.data.importers.single_file import decode_brush, read_label_studio
from ordnet.errors import OrdnetError

MASK = np.zeros((10, 20), np.uint8)
MASK[2:6, 3:9] = 1
MASK[7:, 12:] = 2


def put_picture(path, size=(20, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (10, 200, 30)).save(path)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def convert(found, out, background=True):
    return write_folder(found, out, background, 0.2, seed=0)


def label_of(out, name):
    return np.asarray(Image.open(out / "labels" / f"{name}.png"))


# ---- CVAT: Segmentation mask 1.1 ---------------------------------------------------------------------------------


def cvat(root, labelmap="# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:250,50,83::\ndog:51,221,255::\n"):
    colours = np.uint8([(0, 0, 0), (250, 50, 83), (51, 221, 255)])
    for name in ("a", "sub/b", "c"):
        put_picture(root / f"JPEGImages/{name}.jpg")
        (root / f"SegmentationClass/{name}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(colours[MASK]).save(root / f"SegmentationClass/{name}.png")
    (root / "labelmap.txt").write_text(labelmap)
    return root


def test_cvat_masks(tmp_path):
    written = convert(masks.read_cvat(cvat(tmp_path / "export"), None), tmp_path / "out")
    assert written.classes == ["background", "cat", "dog"]
    assert written.left_out == {}
    for name in ("a", "sub_b", "c"):
        np.testing.assert_array_equal(label_of(tmp_path / "out", name), MASK)
    dataset = open_dataset(f"folder:{tmp_path / 'out'}", "train")
    assert dataset.label(0).max() == 2


def test_cvat_masks_with_a_palette_and_pictures_elsewhere(tmp_path):
    root = cvat(tmp_path / "export")
    for file in (root / "SegmentationClass").rglob("*.png"):
        Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE, colors=3).save(file)
    (root / "JPEGImages").rename(tmp_path / "elsewhere")
    with pytest.raises(OrdnetError, match="Save images"):
        convert(masks.read_cvat(root, None), tmp_path / "out")
    convert(masks.read_cvat(root, tmp_path / "elsewhere"), tmp_path / "out")
    np.testing.assert_array_equal(label_of(tmp_path / "out", "a"), MASK)


@pytest.mark.parametrize(
    ("labelmap", "says"),
    [
        ("cat:250,50,83::\n", "#33ddff"),
        ("cat:250,50,300::\n", "0 to 255"),
        ("cat:250,50::\n", "0 to 255"),
        ("cat\n", "expected `name:red"),
        ("cat:1,2,3::\ndog:1,2,3::\n", "there twice"),
        ("# nothing\n", "names no label"),
    ],
)
def test_cvat_mistakes(tmp_path, labelmap, says):
    root = cvat(tmp_path / "export", labelmap)
    with pytest.raises(OrdnetError, match=says):
        convert(masks.read_cvat(root, None), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (root / "labelmap.txt").unlink()
    with pytest.raises(OrdnetError, match=r"labelmap\.txt is missing"):
        masks.read_cvat(root, None)


# ---- Roboflow: Semantic Segmentation Masks -----------------------------------------------------------------------


def roboflow(root, splits=("train", "valid", "test")):
    for number, split in enumerate(splits):
        name = f"street_{number}_jpg.rf.0a1b"
        put_picture(root / split / f"{name}.jpg")
        Image.fromarray(MASK).save(root / split / f"{name}_mask.png")
        (root / split / "_classes.csv").write_text("Pixel Value, Class\n0, background\n1, cat\n2, dog\n")
    return root


def test_roboflow_masks_keep_their_splits(tmp_path):
    written = convert(masks.read_roboflow(roboflow(tmp_path / "export")), tmp_path / "out")
    assert written.splits == {"train": 1, "val": 1, "test": 1}
    assert written.classes == ["background", "cat", "dog"]
    np.testing.assert_array_equal(label_of(tmp_path / "out", "street_1_jpg.rf.0a1b"), MASK)
    assert list(open_dataset(f"folder:{tmp_path / 'out'}", "val").ids) == ["street_1_jpg.rf.0a1b"]


def test_roboflow_mistakes(tmp_path):
    root = roboflow(tmp_path / "export")
    (root / "train/_classes.csv").write_text("Pixel Value, Class\n0, background\n1, cat\n")
    with pytest.raises(OrdnetError, match=r"24 pixels have the value 2, which no class has; there are 0, 1"):
        convert(masks.read_roboflow(root), tmp_path / "out")
    (root / "train/_classes.csv").write_text("0;background\n1;cat\n")
    with pytest.raises(OrdnetError, match="columns `Pixel Value` and `Class`"):
        masks.read_roboflow(root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OrdnetError, match="Semantic Segmentation Masks"):
        masks.read_roboflow(tmp_path / "empty")


# ---- Supervisely -------------------------------------------------------------------------------------------------


def packed(mask):
    """As Supervisely stores bitmaps: an RGBA or grey PNG, zlib, base64."""
    return base64.b64encode(zlib.compress(png(np.uint8(mask) * 255))).decode()


def put_project(root, objects, classes=("cat", "dog")):
    put_picture(root / "ds0/img/a.jpg")
    (root / "ds0/ann").mkdir(exist_ok=True)
    (root / "meta.json").write_text(json.dumps({"classes": [{"title": c, "shape": "any"} for c in classes]}))
    content = {"size": {"height": 10, "width": 20}, "objects": objects, "tags": []}
    (root / "ds0/ann/a.jpg.json").write_text(json.dumps(content))
    return root


def test_supervisely_bitmaps_and_polygons(tmp_path):
    bitmap = {
        "classTitle": "cat",
        "geometryType": "bitmap",
        "bitmap": {"data": packed(np.ones((4, 6))), "origin": [3, 2]},
    }
    ring = {
        "classTitle": "dog",
        "geometryType": "polygon",
        # vertices are pixels: the ring is 7 x 7 with a hole of 3 x 3 pixels inside
        "points": {
            "exterior": [[12, 1], [18, 1], [18, 7], [12, 7]],
            "interior": [[[13, 2], [17, 2], [17, 6], [13, 6]]],
        },
    }
    box = {"classTitle": "dog", "geometryType": "rectangle", "points": {"exterior": [[0, 8], [1, 9]], "interior": []}}
    line = {"classTitle": "dog", "geometryType": "line", "points": {"exterior": [[0, 8], [1, 9]], "interior": []}}
    written = convert(read_supervisely(put_project(tmp_path / "p", [bitmap, ring, box, line])), tmp_path / "out")
    assert written.classes == ["background", "cat", "dog"]
    assert list(written.left_out.values()) == [1]
    label = label_of(tmp_path / "out", "ds0_a")
    assert (label[2:6, 3:9] == 1).all() and (label == 1).sum() == 24
    assert (label[8:, :2] == 2).all()
    assert label[4, 15] == 0 and label[4, 12] == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"classTitle": "cow"}, "'cow', which meta.json does not list"),
        ({"classTitle": "cat", "geometryType": "bitmap"}, "has no bitmap"),
        ({"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": "!", "origin": [0, 0]}}, "mask is broken"),
        ({"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": "AAAA", "origin": [0, 0]}}, "is broken"),
        ({"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": "", "origin": "x"}}, "list of points"),
        ({"classTitle": "cat", "geometryType": "polygon", "points": {"exterior": [[0, 1e308], [1, 1]]}}, "beyond 1e"),
        (3, "has the class None"),
    ],
)
def test_supervisely_mistakes(tmp_path, values, says):
    with pytest.raises(OrdnetError, match=says) as caught:
        convert(read_supervisely(put_project(tmp_path / "p", [values])), tmp_path / "out")
    assert "a.jpg.json" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_project_of_supervisely(tmp_path):
    with pytest.raises(OrdnetError, match="expected the unpacked project of Supervisely"):
        read_supervisely(tmp_path)


def test_a_mask_that_unpacks_without_end_is_refused(tmp_path):
    bomb = base64.b64encode(zlib.compress(b"\0" * 200_000_000)).decode()
    figure = {"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": bomb, "origin": [0, 0]}}
    with pytest.raises(OrdnetError, match="more than 100,000,000 bytes"):
        convert(read_supervisely(put_project(tmp_path / "p", [figure])), tmp_path / "out")


# ---- Label Studio ------------------------------------------------------------------------------------------------


def brush(values, sizes=(3, 4, 8, 16)):
    """The packing of brush strokes, written from its description: the inverse of `decode_brush`."""
    bits = f"{len(values):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in sizes)
    place = 0
    while place < len(values):
        end = place + 1
        while end < len(values) and values[end] == values[place] and end - place < 2**16:
            end += 1
        if end - place > 1:
            choice = next(c for c, size in enumerate(sizes) if end - place - 1 < 2**size)
            bits += f"1{choice:02b}{end - place - 1:0{sizes[choice]}b}{values[place]:08b}"
        else:  # a few single values
            end = min(len(values), place + 5)
            bits += f"0{0:02b}{end - place - 1:0{sizes[0]}b}" + "".join(f"{v:08b}" for v in values[place:end])
        place = end
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


@given(npst.arrays(np.uint8, st.integers(0, 300), elements=st.sampled_from([0, 0, 0, 255, 255, 7])))
def test_brush_strokes_come_back(values):
    np.testing.assert_array_equal(decode_brush(bytes(brush(values.tolist())), len(values)), values)


@given(st.binary(max_size=60), st.integers(0, 400))
@settings(max_examples=300)
def test_nonsense_brush_strokes_are_refused_or_read(packed_bytes, count):
    header = count.to_bytes(4, "big")
    for content in (packed_bytes, header + packed_bytes, header + b"\x3f\xff\xff" + packed_bytes):
        with suppress(OrdnetError):
            assert len(decode_brush(content, count)) == count


def stroke(mask, name, **changes):
    value = {"format": "rle", "rle": brush(np.repeat(mask.ravel() * 255, 4).tolist()), "brushlabels": [name]}
    return {"type": "brushlabels", "original_width": 20, "original_height": 10, "value": value, **changes}


def studio(tmp_path, results, **changes):
    put_picture(tmp_path / "pictures/street.jpg")
    task = {
        "id": 5,
        "data": {"image": "/data/upload/1/1f2e3d4c-street.jpg"},
        "annotations": [{"id": 1, "was_cancelled": True, "result": []}, {"id": 2, "result": results}],
        **changes,
    }
    (tmp_path / "export.json").write_text(json.dumps([task]))
    return tmp_path / "export.json", tmp_path / "pictures"


def test_label_studio_brush_polygon_and_rectangle(tmp_path):
    side = {"original_width": 20, "original_height": 10}
    polygon = {
        "type": "polygonlabels",
        **side,
        "value": {"points": [[0, 0], [10, 0], [10, 20], [0, 20]], "polygonlabels": ["dog"]},
    }
    box = {
        "type": "rectanglelabels",
        **side,
        "value": {"x": 50, "y": 0, "width": 20, "height": 10, "rectanglelabels": ["dog"]},
    }
    choice = {"type": "choices", **side, "value": {"choices": ["good"]}}
    file, pictures = studio(tmp_path, [stroke(np.uint8(MASK == 1), "cat"), polygon, box, choice])
    written = convert(read_label_studio(file, pictures), tmp_path / "out")
    assert written.classes == ["background", "cat", "dog"]
    assert list(written.left_out.values()) == [1]
    expected = np.uint8(MASK == 1)
    expected[:2, :2] = expected[:1, 10:14] = 2
    np.testing.assert_array_equal(label_of(tmp_path / "out", "street"), expected)


@pytest.mark.parametrize(
    "address",
    [
        "/data/upload/1/1f2e3d4c-street.jpg", "/data/local-files/?d=photos/street.jpg", "s3://bucket/2024/street.jpg",
        "https://host/path/street.jpg?X-Amz-Date=1&d=a/b", "street.jpg",
    ],
)  # fmt: skip
def test_label_studio_finds_the_picture_of_every_kind_of_address(tmp_path, address):
    file, pictures = studio(tmp_path, [stroke(np.uint8(MASK == 1), "cat")], data={"image": address})
    assert [picture.id for picture in read_label_studio(file, pictures).pictures] == ["street"]


@pytest.mark.parametrize(
    ("results", "changes", "says"),
    [
        ([stroke(MASK, "x", value={"brushlabels": ["x"], "rle": [1, 999]})], {}, "list `rle` of bytes"),
        ([stroke(MASK, "x", value={"brushlabels": ["x"], "rle": [0, 0]})], {}, "breaks off"),
        (
            [stroke(MASK, "x", value={"brushlabels": ["x"], "rle": [255] * 9})],
            {},
            "4,294,967,295 values, but its picture 800",
        ),
        ([stroke(MASK, "x", original_width=None)], {}, "original_width"),
        ([stroke(MASK, "x", original_width=40)], {}, "annotated at 40x10"),
        ([stroke(MASK, "x", value={"rle": []})], {}, "no single label"),
        ([3], {}, "has no value"),
        ([], {"data": {"image": "s3://bucket/gone.jpg"}}, "no picture gone.jpg"),
        ([], {"data": {"image": "../secret.jpg"}}, "no picture secret.jpg"),
        ([], {"data": 3}, "not Label Studio"),
    ],
)
def test_label_studio_mistakes(tmp_path, results, changes, says):
    file, pictures = studio(tmp_path, results, **changes)
    with pytest.raises(OrdnetError, match=says):
        convert(read_label_studio(file, pictures), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labelme_masks(tmp_path):
    put_picture(tmp_path / "s/a.jpg")
    mask = base64.b64encode(png(np.uint8([[255, 0], [255, 255]]))).decode()
    shape = {"label": "cat", "shape_type": "mask", "points": [[18, 3], [19, 4]], "mask": mask}
    (tmp_path / "s/a.json").write_text(json.dumps({"shapes": [shape], "imagePath": "a.jpg"}))
    convert(read_labelme(tmp_path / "s"), tmp_path / "out")
    assert label_of(tmp_path / "out", "a")[3:5, 18:].tolist() == [[1, 0], [1, 1]]


def test_pictures_outside_the_folder_are_refused(tmp_path):
    put_picture(tmp_path / "secret/private.jpg")
    put_picture(tmp_path / "s/a.jpg")
    for name in ("../secret/private.jpg", str(tmp_path / "secret/private.jpg")):
        (tmp_path / "s/x.json").write_text(json.dumps({"shapes": [], "imagePath": name}))
        with pytest.raises(OrdnetError, match=r"private\.jpg leads out of"):
            convert(read_labelme(tmp_path / "s"), tmp_path / "out")
    (tmp_path / "s/link.jpg").symlink_to(tmp_path / "secret/private.jpg")
    (tmp_path / "s/x.json").write_text(json.dumps({"shapes": [], "imagePath": "link.jpg"}))
    with pytest.raises(OrdnetError, match="leads out of"):
        convert(read_labelme(tmp_path / "s"), tmp_path / "out")


def _private(root):
    put_picture(root / "a.jpg")
    Image.fromarray(MASK).save(root / "a_mask.png")
    (root / "_classes.csv").write_text("Pixel Value, Class\n0, x\n1, y\n2, z\n")
    return root


@pytest.mark.parametrize("whole_folder", [False, True])
def test_links_out_of_an_export_are_refused(tmp_path, whole_folder):
    """A picture, or the folder of all pictures, that is a link to somewhere else: nothing of that is copied."""
    private = _private(tmp_path / "private")

    def link(folder, *names):
        if whole_folder:
            folder.symlink_to(private)
        for name in () if whole_folder else names:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(private / name)

    (tmp_path / "cvat/SegmentationClass").mkdir(parents=True)
    Image.fromarray(np.zeros((10, 20), np.uint8)).save(tmp_path / "cvat/SegmentationClass/a.png")
    (tmp_path / "cvat/labelmap.txt").write_text("x:0,0,0::\n")
    link(tmp_path / "cvat/JPEGImages", "a.jpg")
    (tmp_path / "roboflow").mkdir()
    link(tmp_path / "roboflow/train", "a.jpg", "a_mask.png", "_classes.csv")
    project = put_project(tmp_path / "supervisely", [])
    (annotation,) = project.rglob("ann/*.json")
    pictures = annotation.parent.parent / "img"
    for file in pictures.iterdir():
        file.unlink()
    pictures.rmdir()
    (private / annotation.name.removesuffix(".json")).write_bytes((private / "a.jpg").read_bytes())
    link(pictures, annotation.name.removesuffix(".json"))
    for read in (
        lambda: masks.read_cvat(tmp_path / "cvat", None),
        lambda: masks.read_roboflow(tmp_path / "roboflow"),
        lambda: read_supervisely(project),
    ):
        with pytest.raises(OrdnetError, match="leads out of"):
            convert(read(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    # whoever means the other folder names it
    assert masks.read_cvat(tmp_path / "cvat", private).problems == []


def test_numbers_of_any_length_are_refused(tmp_path):
    """Python reads none of more than 4,300 digits, which was a trace-back."""
    digits = "9" * 5000
    (tmp_path / "labelmap.txt").write_text(f"a:{digits},0,0::\n")
    with pytest.raises(OrdnetError, match="0 to 255 each"):
        masks._labelmap(tmp_path / "labelmap.txt")
    (tmp_path / "_classes.csv").write_text(f"Pixel Value, Class\n{digits},a\n")
    with pytest.raises(OrdnetError, match="expected the columns"):
        masks._classes_csv(tmp_path / "_classes.csv")
