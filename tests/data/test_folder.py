"""`folder:PATH`: one's own pictures, every accepted kind of label, splits, and mistakes."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import notes_of, read_pair
from ordnet.data.folder import NoSplit, write_split
from ordnet.data.labels import IGNORE, class_colours, distinct_colours, read_class_list
from ordnet.data.pictures import IMAGE_ENDINGS
from ordnet.errors import OrdnetError

RAW = np.array([[0, 1, 2], [2, 255, 1]], dtype=np.uint8)


class Maker:
    """Writes a folder data set, part by part."""

    def __init__(self, root):
        self.root = root
        (root / "images").mkdir()
        (root / "labels").mkdir()

    def add(self, key, label=RAW, ending="jpg", label_ending="png", **options):
        for folder in ("images", "labels"):
            (self.root / folder / key).parent.mkdir(parents=True, exist_ok=True)
        label = label if isinstance(label, Image.Image) else Image.fromarray(label)
        Image.new("RGB", label.size, "teal").save(self.root / f"images/{key}.{ending}")
        label.save(self.root / f"labels/{key}.{label_ending}", **options)

    def write(self, **files):
        for name, lines in files.items():
            (self.root / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def open(self, split="train"):
        return pickle.loads(pickle.dumps(open_dataset(f"folder:{self.root}", split)))


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path)


def test_index_labels(maker):
    for key in ("a", "b", "c"):
        maker.add(key)
    maker.write(classes=["sky", "traffic light", "road"], train=["b", "a"], val=["c.jpg"], night=["c"])
    train = maker.open()
    assert train.name == "folder" and list(train.ids) == ["b", "a"] and notes_of(train) == ()
    assert train.classes.names == ("sky", "traffic light", "road")
    assert np.array_equal(read_pair(train, 0)[1], RAW)
    assert list(maker.open("val").ids) == ["c"] and list(maker.open("night").ids) == ["c"]
    assert train.files(0) == (str(maker.root / "images/b.jpg"), str(maker.root / "labels/b.png"))


def test_paletted_labels_give_their_index(maker):
    label = Image.fromarray(RAW).convert("P")
    label.putpalette([*range(256)] * 3)
    maker.add("a", label)
    maker.write(classes=["x", "y", "z"], train=["a"])
    assert np.array_equal(maker.open().label(0), RAW)


def test_colour_labels_through_classes_txt(maker):
    colours = np.zeros((2, 3, 3), dtype=np.uint8)
    colours[0] = (128, 64, 128), (0, 0, 255), (0, 0, 0)
    colours[1] = (9, 9, 9), (0, 0, 255), (128, 64, 128)
    maker.add("a", colours)
    maker.add("b", np.dstack([colours, np.full((2, 3), 200, dtype=np.uint8)]))
    maker.write(classes=["traffic light #0000FF", "road #804080", "ignore #000000", "ignore #090909"], train=["a", "b"])
    dataset = maker.open()
    assert dataset.classes.names == ("traffic light", "road")
    assert dataset.classes.colours == ((0, 0, 255), (128, 64, 128))
    for index in range(2):
        assert dataset.label(index).tolist() == [[1, 0, IGNORE], [IGNORE, 0, 1]]


def test_masks_of_0_and_255_as_two_classes(maker):
    mask = np.array([[0, 255], [255, 0]], dtype=np.uint8)
    maker.add("a", mask)
    maker.write(classes=["background =0", "person =255"], train=["a"])
    assert maker.open().label(0).tolist() == [[0, 1], [1, 0]]
    # without the values 255 is what it always is
    maker.write(classes=["background", "person"])
    assert maker.open().label(0).tolist() == [[0, IGNORE], [IGNORE, 0]]


def test_ignore_by_place_and_by_value(maker):
    maker.add("a", np.array([[0, 1, 2, 255]], dtype=np.uint8))
    maker.write(classes=["ignore", "wall", "floor"], train=["a"])
    assert maker.open().label(0).tolist() == [[IGNORE, 0, 1, IGNORE]]
    maker.write(classes=["wall =2", "floor =1", "ignore =0"])
    assert maker.open().label(0).tolist() == [[IGNORE, 1, 0, IGNORE]]


def test_a_colour_to_ignore_takes_no_value_from_a_class(maker):
    maker.add("a", np.array([[[255, 0, 0], [0, 0, 0]]], dtype=np.uint8))
    maker.add("b", np.array([[255, 255]], dtype=np.uint8))
    maker.write(classes=["background #0000ff =0", "person #ff0000 =255", "ignore #000000"], train=["a", "b"])
    assert maker.open().label(0).tolist() == [[1, IGNORE]]
    assert maker.open().label(1).tolist() == [[1, 1]]


def test_endings_in_any_case_and_folders_inside(maker):
    maker.add("town/street 1", ending="JPG", label_ending="PNG")
    maker.add("town/street.2", ending="jpeg", label_ending="bmp")
    (maker.root / "images/town/._street 1.JPG").write_bytes(b"what macOS leaves behind")
    maker.write(classes=["x", "y", "z"], train=["town/street 1", "town/street.2"])
    dataset = maker.open()
    for index in range(2):
        assert np.array_equal(read_pair(dataset, index)[1], RAW)


def test_without_lists_a_fifth_is_for_validation(maker):
    for number in range(20):
        maker.add(f"p{number}")
    maker.write(classes=["x", "y", "z"])
    train, val = maker.open("train"), maker.open("val")
    assert (len(train.ids), len(val.ids)) == (16, 4) and not set(train.ids) & set(val.ids)
    assert "16 pictures are for training and 4 for validation" in notes_of(train)[0]
    # a picture more moves at most one other
    maker.add("another")
    assert len(set(maker.open("val").ids) - set(val.ids)) <= 1
    (maker.root / "images/another.jpg").unlink()
    written = write_split(str(maker.root))
    assert [path.name for path in written] == ["train.txt", "val.txt"]
    assert list(maker.open("train").ids) == list(train.ids) and notes_of(maker.open("train")) == ()
    with pytest.raises(OrdnetError, match=r"train\.txt and .*val\.txt exist already"):
        write_split(str(maker.root))


def test_pictures_for_testing_are_not_trained_on(maker):
    for number in range(10):
        maker.add(f"p{number}")
    maker.write(classes=["x", "y", "z"], test=["p3", "p5"])
    assert len(maker.open("train").ids) == 6 and len(maker.open("val").ids) == 2
    assert not {"p3", "p5"} & {*maker.open("train").ids, *maker.open("val").ids}
    assert list(maker.open("test").ids) == ["p3", "p5"]


def test_a_test_split_needs_no_labels(maker):
    maker.add("a")
    (maker.root / "labels/a.png").unlink()
    maker.write(classes=["x"], test=["a"], train=["a"])
    assert maker.open("test").files(0)[1] == ""
    with pytest.raises(OrdnetError, match="1 of 1 labels are missing: a"):
        maker.open("train")


def test_missing_things_are_named(maker):
    maker.add("a")
    maker.write(train=["a", "b", "c", "d", "e"], val=["a"])
    with pytest.raises(OrdnetError, match=r"no class names at .*classes\.txt: write them\n.*one class per line"):
        maker.open()
    maker.write(classes=["x", "y", "z"])
    with pytest.raises(
        OrdnetError, match=r"4 of 5 images are missing: b, c, d and 1 more; looked for .*images/b\.jpg\|"
    ):
        maker.open()
    with pytest.raises(OrdnetError, match=r"no list .*test\.txt for the split 'test'; there are: train\.txt, val\.txt"):
        maker.open("test")
    maker.write(train=[])
    with pytest.raises(OrdnetError, match=r"train\.txt is empty"):
        maker.open()
    Image.new("RGB", (3, 2)).save(maker.root / "images/a.png")
    with pytest.raises(OrdnetError, match=r"two images for 'a': .*a\.jpg and .*a\.png"):
        maker.open("val")


def test_a_split_that_is_not_there_names_those_that_are(maker):
    for key in ("a", "b"):
        maker.add(key)
    maker.write(classes=["x", "y", "z"])
    with pytest.raises(NoSplit, match=r"'tset'; there are: train and val, which are chosen by themselves$"):
        maker.open("tset")
    maker.write(night=["a"])
    with pytest.raises(NoSplit, match=r"there are: train and val, which are chosen by themselves, night\.txt$"):
        maker.open("tset")


def test_names_that_do_not_match(maker):
    maker.add("a")
    (maker.root / "labels/a.png").rename(maker.root / "labels/a-other.png")
    maker.write(classes=["x"])
    with pytest.raises(
        OrdnetError,
        match=r"1 pictures in images/ and 1 labels in labels/; 0 of them share their names.*'a' and 'a-other'",
    ):
        maker.open()


def test_what_has_no_partner_is_left_out_and_named(maker):
    for index in range(6):
        maker.add(f"p{index}")
    (maker.root / "labels/p0.png").unlink()
    (maker.root / "images/p5.jpg").unlink()
    maker.write(classes=["x", "y", "z"])
    notes = notes_of(maker.open())
    assert "pictures without a label of their name are left out: p0" in notes
    assert "labels without a picture of their name are left out: p5" in notes
    maker.write(classes=["x", "y", "z"], train=["p1"])
    with pytest.raises(OrdnetError, match=r"there are: train\.txt: write it, or remove the other"):
        maker.open("val")


def test_one_value_more_than_there_are_classes(maker):
    maker.add("a", label=np.array([[0, 1, 2], [0, 0, 1]], np.uint8))
    maker.write(classes=["x", "y"], train=["a"])
    with pytest.raises(OrdnetError, match="if 2 is one more class, add its name at the end"):
        maker.open().label(0)


def test_wrong_labels_are_named(maker):
    maker.add("outside", np.array([[0, 7, 7]], dtype=np.uint8))
    maker.add("colour", np.array([[[0, 0, 0], [128, 64, 128]]], dtype=np.uint8))
    maker.add("size")
    Image.new("RGB", (5, 5)).save(maker.root / "images/size.jpg")
    maker.add("cut")
    (maker.root / "labels/cut.png").write_bytes((maker.root / "labels/cut.png").read_bytes()[:40])
    maker.write(classes=["x", "y", "z"], train=["outside", "colour", "size", "cut"])
    dataset = maker.open()
    for index, message in enumerate(
        (
            r"outside\.png: label values outside the classes: 7 \(2 pixels\); expected 0, 1, 2, 255",
            r"colour\.png is a colour picture \(RGB\).*`road #804080`",
            r"size\.jpg has 5 x 5 pixels, .*size\.png has 3 x 2; they differ in shape",
            r"cut\.png",
        )
    ):
        with pytest.raises(OrdnetError, match=message):
            read_pair(dataset, index)


@pytest.mark.parametrize("channels", [3, 4])
def test_grey_masks_stored_in_colour(maker, channels):
    """Many programs save red, green and blue even of a grey picture."""
    stacked = np.repeat(RAW[..., None], channels, axis=2)
    stacked[..., 3:] = 255
    maker.add("grey", stacked)
    see_through = stacked.copy()
    see_through[..., 3:] = 0
    maker.add("see-through", see_through)
    maker.write(classes=["x", "y", "z"], train=["grey", "see-through"])
    assert np.array_equal(maker.open().label(0), RAW)
    if channels == 4:  # what is drawn in the alpha channel is not guessed
        with pytest.raises(OrdnetError, match=r"see-through\.png is a colour picture \(RGBA\)"):
            maker.open().label(1)


def test_smooth_masks_are_told_apart_from_forgotten_classes(maker):
    maker.add("smooth", np.linspace(0, 255, 30).astype(np.uint8)[None])
    maker.add("hard", np.array([[0, 7, 255]], np.uint8))
    maker.write(classes=["x =0", "y =255"], train=["smooth", "hard"])
    with pytest.raises(OrdnetError, match="come from smoothing: save masks with hard edges"):
        maker.open().label(0)
    with pytest.raises(OrdnetError, match=r"expected 0, 255$"):
        maker.open().label(1)


@pytest.mark.parametrize(
    ("there", "advice"),
    [
        (("Images", "Labels"), r"rename Images/ to images/ and Labels/ to labels/\."),
        (("images", "masks"), r"rename masks/ to labels/\."),
        (("train/images", "train/masks", "val/images"), r"move train/images/ to images/train/ and train/masks/ to lab"),
        ((), r"labels/ in [^:]*; expected\n"),
    ],
)
def test_other_layouts_are_answered_with_what_to_do(tmp_path, there, advice):
    for folder in there:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(OrdnetError, match=advice):
        open_dataset(f"folder:{tmp_path}", "train")


def test_pictures_beside_their_masks_are_answered_with_what_to_do(tmp_path):
    Image.new("RGB", (3, 2)).save(tmp_path / "a.jpg")
    with pytest.raises(OrdnetError, match=r"it holds pictures itself: move them into images/"):
        open_dataset(f"folder:{tmp_path}", "train")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "names no class"),
        (["ignore =0"], "names no class"),
        (["a", "b", "a"], "the name a is there twice"),
        (["a #000000", "b #000000"], "the colour #000000 is there twice"),
        (["a =1", "b =1"], "the value =1 is there twice"),
        (["a #000001", "b"], "line 2, 'b', has no colour"),
        (["a", "b =1"], "line 1, 'a', has no =value"),
        (["a =70000"], "up to 65535"),
        ([f"class {i}" for i in range(256)], "between 1 and 255 classes"),
    ],
)
def test_mistakes_in_classes_txt(tmp_path, lines, message):
    (tmp_path / "classes.txt").write_text("\n".join(lines))
    with pytest.raises(OrdnetError, match=message):
        read_class_list(tmp_path / "classes.txt")


@given(
    st.lists(st.from_regex(r"[a-zé][a-z é=-]{0,12}[a-z]", fullmatch=True), min_size=1, max_size=30, unique=True),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_class_lists_go_round(tmp_path_factory, names, coloured, valued, seed):
    names = [name for name in names if name != "ignore"] or ["x"]
    rng = np.random.default_rng(seed)
    colours = distinct_colours(len(names))
    values = rng.choice(255, len(names), replace=False).tolist() if valued else list(range(len(names)))
    lines = [
        name + (" #{:02x}{:02x}{:02x}".format(*colour) if coloured else "") + (f" ={value}" if valued else "")
        for name, colour, value in zip(names, colours, values, strict=True)
    ]
    path = tmp_path_factory.mktemp("classes") / "classes.txt"
    path.write_text("\ufeff" + "\r\n\r\n".join(lines), encoding="utf-8")
    found = read_class_list(path)
    assert found.classes.names == tuple(names)
    assert found.classes.colours == (colours if coloured else class_colours(names))
    assert found.rule.encode(np.array([[*values, 255]])).tolist() == [[*range(len(names)), IGNORE]]
    assert found.palette == (dict(zip(colours, values, strict=True)) if coloured else {})


def test_generated_colours_are_distinct_and_stay():
    many = distinct_colours(255)
    assert len(set(many)) == 255 and distinct_colours(8) == many[:8]
    few = np.array(many[:21])
    apart = np.abs(few[:, None] - few[None]).sum(axis=2) + 1000 * np.eye(21)
    assert apart.min() > 60


@pytest.mark.parametrize("suffix", ["_mask", "_label", "_seg"])
def test_labels_may_carry_a_suffix(maker, suffix):
    for number in range(5):
        maker.add(f"p{number}")
        (maker.root / f"labels/p{number}.png").rename(maker.root / f"labels/p{number}{suffix}.png")
    maker.write(classes=["x", "y", "z"])
    dataset = maker.open()
    assert len(dataset.ids) == 4 and dataset.label(0).tolist() == RAW.tolist()
    assert any(f"named with {suffix}" in note for note in notes_of(dataset))
    maker.write(train=["p1", "p2"])
    assert maker.open().label(1).tolist() == RAW.tolist()


def stripes(*values):
    """Broad stripes: JPEG blurs edges, whatever is done."""
    return np.repeat(np.uint8(values), 16)[None].repeat(16, axis=0)


def test_jpeg_masks_are_read_by_the_nearest_value(maker):
    for number in range(5):
        maker.add(f"p{number}", stripes(0, 255, 0), label_ending="jpg", quality=60)
    maker.write(classes=["ground", "thing"])
    with pytest.raises(OrdnetError, match=r"JPEG files, which change every value.*`ground =0` and `thing =255`"):
        maker.open()
    maker.write(classes=["ground =0", "thing =255"])
    dataset = maker.open()
    np.testing.assert_array_equal(dataset.label(0), stripes(0, 1, 0))
    assert any("labels are JPEG files" in note for note in notes_of(dataset))


def test_jpeg_labels_in_colour(maker):
    colours = np.uint8([(128, 64, 128), (70, 130, 180), (0, 0, 0)])
    for number in range(5):
        maker.add(f"p{number}", colours[stripes(0, 1, 2)], label_ending="jpg", quality=90)
    maker.write(classes=["road #804080", "sky #4682b4", "ignore #000000"])
    found = maker.open().label(0)
    inner = [3, 8, 11, 20, 24, 27, 37, 40, 45]  # away from the edges
    assert found[8, inner].tolist() == [0, 0, 0, 1, 1, 1, 255, 255, 255]


def test_one_bit_masks_with_the_advised_values(maker):
    mask = Image.fromarray(np.array([[True, False, True]]))
    for number in range(3):
        maker.add(f"p{number}", mask)
    for lines in (["ground", "thing"], ["ground =0", "thing =255"], ["ground =0", "thing =1"]):
        maker.write(classes=lines)
        assert maker.open().label(0).tolist() == [[1, 0, 1]]


def test_pictures_in_other_formats_are_read_or_named(maker):
    # Pillow reads AVIF from 11.3 on
    endings = [ending for ending in ("avif", "jp2", "webp") if f".{ending}" in IMAGE_ENDINGS]
    for ending in endings:
        for number in range(2):
            maker.add(f"{ending}{number}", ending=ending)
    (maker.root / "images/phone.HEIC").write_bytes(b"ftypheic")
    maker.write(classes=["x", "y", "z"])
    dataset = maker.open()
    assert len(dataset.ids) == 2 * len(endings) - 1 and ".webp" in IMAGE_ENDINGS
    assert all(dataset.image(index).size == (3, 2) for index in range(len(dataset.ids)))
    assert any("left out 1 .heic" in note and "convert" in note for note in notes_of(dataset))


def test_sizes_that_differ_carry_advice(maker):
    for key, size in (("larger", (30, 20)), ("turned", (2, 3)), ("other", (90, 20))):
        maker.add(key)
        Image.new("RGB", size).save(maker.root / f"images/{key}.jpg")
    maker.write(classes=["x", "y", "z"], train=["larger", "turned", "other"])
    for index, words in enumerate(
        (
            r"scale the label to 30 x 20 by nearest neighbour",
            "EXIF rotation, remove that tag; otherwise turn the label",
            "label of another picture",
        )
    ):
        with pytest.raises(OrdnetError, match=words):
            read_pair(maker.open(), index)
