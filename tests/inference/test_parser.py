"""The parser: whatever picture comes in, a label map of its size comes out."""

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import ordnet
from ordnet.errors import OrdnetError
from ordnet.inference import parser as parser_module
from ordnet.inference import protocols
from ordnet.model import checkpoint
from ordnet.model.pixels import to_input
from ordnet.picture.overlay import write_names

NAMES = ("sky", "tree", "road", "water")
COLOURS = ((70, 130, 180), (34, 100, 34), (128, 64, 128), (0, 60, 200))


def network(variant="ordnet", **settings):
    torch.manual_seed(3)
    return ordnet.build(variant, classes=4, backbone="tiny", **settings).eval()


def make(variant="ordnet", **options):
    return ordnet.Parser(network(variant), NAMES, COLOURS, device="cpu", **options)


def picture(height=45, width=67, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_labels_are_the_networks_best_classes():
    pixels, net = picture(), network()
    with torch.inference_mode():
        scores = net(to_input(pixels, net))[0]
    parse = make()(pixels)
    assert parse.labels.dtype == np.uint8
    assert np.mean(parse.labels == scores.argmax(0).numpy()) > 0.999  # folded batch norms round differently
    np.testing.assert_allclose(parse.scores(), scores.numpy(), atol=1e-4)
    assert parse.classes == NAMES
    assert parse.colours == COLOURS


def test_file_image_and_array_give_the_same(tmp_path):
    pixels, parser = picture(), make()
    expected = parser(pixels).labels
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for given_picture in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(pixels)):
        np.testing.assert_array_equal(parser(given_picture).labels, expected)
    with (tmp_path / "a.png").open("rb") as file:
        np.testing.assert_array_equal(parser(file).labels, expected)
    assert parser(tmp_path / "a.png").name == "a"
    assert parser(pixels).name == "picture"


def test_exif_turns_files_and_images_alike(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(40, 60)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    parser = make()
    from_file = parser(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        from_image = parser(image)
    assert from_file.labels.shape == from_image.labels.shape == (60, 40)
    np.testing.assert_array_equal(from_file.pixels, from_image.pixels)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK", "I;16"])
def test_other_kinds_of_pixels(mode):
    if mode == "I;16":
        image = Image.fromarray(picture()[..., 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(picture()).convert(mode)
    parse = make()(image)
    assert parse.labels.shape == (45, 67)
    assert parse.pixels.shape == (45, 67, 3)


@pytest.mark.parametrize(
    "array",
    [picture()[..., 0], picture().astype(float), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)],
    ids=["grey", "float", "four channels", "empty"],
)
def test_arrays_that_are_no_picture(array):
    with pytest.raises(OrdnetError, match=r"expected an RGB array \(H, W, 3\) of uint8"):
        make()(array)


@pytest.mark.parametrize("variant", ordnet.variants())
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (3, 2)])
def test_tiny_pictures_work_with_every_variant(variant, size):
    assert make(variant)(picture(*size)).labels.shape == size


@pytest.mark.parametrize("size", [(1, 1), (2, 30)])
def test_tiny_pictures_work_with_many_scales(size):
    assert make(protocol="multiscale")(picture(*size)).labels.shape == size


def test_many_patches_need_more_pixels_and_get_them():
    net = ordnet.build("ordnet", classes=4, backbone="tiny", patches=5)
    assert ordnet.Parser(net, NAMES, COLOURS)(picture(2, 30)).labels.shape == (2, 30)


@pytest.mark.parametrize("size", [(90, 70), (1, 2500)])
def test_above_the_limit_pictures_are_streamed(size):
    pixels, seen = picture(*size), []
    streamed = make(whole_up_to=1000, tile=32)(pixels, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1][0] == seen[-1][1]
    assert np.mean(streamed.labels == make()(pixels).labels) > 0.999
    np.testing.assert_allclose(streamed.scores(), make()(pixels).scores(), atol=1e-4)


def test_another_protocol():
    pixels, net = picture(), network()
    expected = protocols.labels(net, to_input(pixels, net), "multiscale")
    assert np.mean(make(protocol="multiscale")(pixels).labels == expected) > 0.999


def test_unknown_protocol():
    with pytest.raises(OrdnetError, match="there are whole, multiscale, encnet"):
        make(protocol="best")


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_many_gives_each_its_own_parse_in_order(batch, tmp_path):
    pictures = [picture(20, 30, seed) for seed in range(4)] + [picture(31, 20, 9), picture(1, 1), picture(20, 30, 5)]
    Image.fromarray(pictures[3]).save(tmp_path / "a.png")
    parser = make()
    parses = list(parser.many([*pictures[:3], tmp_path / "a.png", *pictures[4:]], batch))
    assert len(parses) == len(pictures)
    for parse, pixels in zip(parses, pictures, strict=True):
        np.testing.assert_array_equal(parse.pixels, pixels)
        assert np.mean(parse.labels == parser(pixels).labels) > 0.999
    assert parses[3].name == "a"
    assert list(parser.many([])) == []


def test_many_is_lazy_and_fails_where_the_broken_picture_is(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"")
    parses = make().many([picture(), tmp_path / "broken.png"])
    assert next(parses).labels.shape == (45, 67)
    with pytest.raises(OrdnetError, match=r"broken\.png"):
        next(parses)


def test_threads_share_a_parser():
    parser = make(whole_up_to=3000, tile=32)  # some whole, some streamed
    pictures = [picture(30 + 7 * i, 61, i) for i in range(8)]
    alone = [parser(pixels).labels for pixels in pictures]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pixels: parser(pixels).labels, pictures * 3))
    for i, labels in enumerate(together):
        np.testing.assert_array_equal(labels, alone[i % len(alone)])


def test_the_given_network_is_left_as_it_was():
    net = network().train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    ordnet.Parser(net, NAMES, COLOURS)(picture())
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_areas_are_shares_of_what_occurs():
    parse = make()(picture())
    areas = parse.areas()
    assert sum(areas.values()) == pytest.approx(1)
    assert list(areas.values()) == sorted(areas.values(), reverse=True)
    assert all(share == np.mean(parse.labels == NAMES.index(name)) for name, share in areas.items())


def test_scores_that_would_fill_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(parser_module, "MOST_SCORES", 1000)
    with pytest.raises(OrdnetError, match="would take"):
        make()(picture()).scores()


def test_saved_files_hold_the_parse(tmp_path):
    parse = make()(picture())
    written = parse.save(tmp_path / "new", "sub/x", pictures=("overlay", "labels", "palette", "beside"))
    assert sorted(path.name for path in (tmp_path / "new" / "sub").iterdir()) == sorted(path.name for path in written)
    folder = tmp_path / "new" / "sub"
    with Image.open(folder / "x.labels.png") as image:
        assert image.mode == "L"
        np.testing.assert_array_equal(np.asarray(image), parse.labels)
    with Image.open(folder / "x.palette.png") as image:
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), parse.labels)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), np.array(COLOURS, np.uint8)[parse.labels])
    with Image.open(folder / "x.overlay.png") as image:
        np.testing.assert_array_equal(np.asarray(image), np.asarray(parse.overlay()))
    record = json.loads((folder / "x.json").read_text())
    assert record["areas"] == parse.areas()
    assert (record["width"], record["height"]) == (67, 45)


def test_saving_names_itself_after_the_picture(tmp_path):
    Image.fromarray(picture()).save(tmp_path / "photo.png")
    written = make()(tmp_path / "photo.png").save(tmp_path)
    assert [path.name for path in written] == [
        "photo.overlay.png", "photo.labels.png", "photo.palette.png", "photo.json"
    ]  # fmt: skip
    with pytest.raises(OrdnetError, match=r"cannot be saved as 'mask'; choose of overlay, labels, palette, beside"):
        make()(picture()).save(tmp_path, pictures=("mask",))


def test_overlay_strength():
    parse = make()(picture())
    np.testing.assert_array_equal(np.asarray(parse.overlay(0, names=False)), parse.pixels)
    with pytest.raises(OrdnetError, match="from 0 to 1"):
        parse.overlay(2)
    np.testing.assert_array_equal(np.asarray(parse.image), parse.pixels)


def test_load_takes_a_checkpoint_and_says_what_is_missing(tmp_path):
    net = network()
    checkpoint.save(tmp_path / "m.safetensors", net, NAMES, COLOURS)
    loaded = ordnet.load(tmp_path / "m.safetensors")
    assert loaded.classes == NAMES
    np.testing.assert_array_equal(loaded(picture()).labels, make()(picture()).labels)
    with pytest.raises(OrdnetError, match=r"no model 'indoors': .* shipped models"):
        ordnet.load("indoors")
    with pytest.raises(OrdnetError, match="is a folder"):
        ordnet.load(tmp_path)
    with pytest.raises(OrdnetError, match="no device 'gpu'"):
        ordnet.load(tmp_path / "m.safetensors", device="gpu")


def test_a_device_that_is_not_there():
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(OrdnetError, match=r"no device 'cuda' here .* use cpu"):
        ordnet.Parser(network(), NAMES, COLOURS, device="cuda")


def test_a_name_is_written_into_a_large_region_and_not_into_a_small_one():
    labels = np.zeros((100, 200), np.uint8)
    labels[40:44, 90:94] = 1
    image = Image.new("RGB", (200, 100))
    write_names(image, labels, ("sky", "speck"))
    assert np.asarray(image)[:40].any() or np.asarray(image)[50:].any()
    only_small = Image.new("RGB", (200, 100))
    write_names(only_small, np.where(labels == 1, 1, 7).astype(np.uint8), ("sky", "speck"))
    assert not np.asarray(only_small).any()


def test_in_memory_files_work():
    buffer = io.BytesIO()
    Image.fromarray(picture()).save(buffer, "PNG")
    buffer.seek(0)
    assert make()(buffer).labels.shape == (45, 67)


def test_a_parse_shows_itself_in_a_line_and_in_a_notebook():
    parse = make()(picture(300, 400))
    assert repr(parse).startswith("<Parse of picture, 400 x 300 px: ")
    assert len(repr(parse)) < 120
    with Image.open(io.BytesIO(parse._repr_png_())) as shown:
        assert shown.width >= 800  # picture and overlay
    assert parse._repr_html_().count("<img ") == 1
    assert "<script" not in parse._repr_html_()


@pytest.mark.parametrize(
    ("given_picture", "advice"),
    [
        (torch.zeros(3, 8, 8), r"'Tensor' of shape \(3, 8, 8\); .* x\.permute"),
        ([1, 2, 3], r"'list': parser\.many\(pictures\)"),
        (7, "'int'$"),
        (np.zeros((8, 8, 3)), r"float64; from values of 0\.\.1 it is \(255 \* x\)\.astype"),
        (np.zeros((8, 8), np.uint8), "uint8; Image.fromarray turns"),
    ],
)
def test_what_is_no_picture_is_answered_with_what_to_do(given_picture, advice):
    parser = make()
    with pytest.raises(OrdnetError, match=advice):
        parser(given_picture)
    assert len(repr(parser)) < 120


def test_what_is_no_model_is_answered_with_what_to_do():
    with pytest.raises(OrdnetError, match=r"a model is a checkpoint's file or a shipped name \(.*\), not 'NoneType'"):
        ordnet.load(None)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="this machine has it")
def test_a_device_that_is_not_there_is_one_line():
    with pytest.raises(OrdnetError, match=r"^there is no device 'mps' here; use cpu, or none to choose one$"):
        ordnet.Parser(network(), NAMES, COLOURS, device="mps")
