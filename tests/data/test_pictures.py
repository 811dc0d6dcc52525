"""Decoding pictures and label files: exact values, upright, and a named file whenever something is wrong."""

import io
import struct
import threading
import warnings
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ordnet.data.label_files import read_colours, read_index, read_label
from ordnet.data.pictures import LARGEST, as_rgb, open_rgb, opened
from ordnet.errors import OrdnetError

QUADRANTS = np.zeros((4, 6, 3), dtype=np.uint8)
QUADRANTS[:2, :3], QUADRANTS[:2, 3:], QUADRANTS[2:, :3], QUADRANTS[2:, 3:] = (
    (9, 0, 0),
    (0, 99, 0),
    (0, 0, 199),
    (7, 8, 9),
)


def pixels(image):
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_stands_upright(tmp_path, orientation):
    # how a camera that held the sensor that way would have stored the upright picture
    stored = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }[orientation](QUADRANTS)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(pixels(open_rgb(tmp_path / "a.png")), QUADRANTS)


def test_every_kind_of_pixel_becomes_rgb(tmp_path):
    grey = np.array([[0, 100, 255]], dtype=np.uint8)
    as_grey = np.repeat(grey[..., None], 3, axis=2)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "sixteen.tif")
    for name in ("grey.png", "palette.png", "sixteen.png", "sixteen.tif"):
        assert np.array_equal(pixels(open_rgb(tmp_path / name)), as_grey), name
    Image.fromarray(grey > 99).save(tmp_path / "bit.png")
    assert pixels(open_rgb(tmp_path / "bit.png"))[0, :, 0].tolist() == [0, 255, 255]
    Image.new("CMYK", (2, 1), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    red, green, blue = pixels(open_rgb(tmp_path / "cmyk.jpg"))[0, 0].tolist()
    assert red > 200 and green < 40 and blue < 40


def test_transparent_parts_are_white(tmp_path):
    rgba = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], dtype=np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    assert pixels(open_rgb(tmp_path / "a.png")).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    paletted = Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).convert("P")
    paletted.putpalette([10, 20, 30, 40, 50, 60])
    paletted.save(tmp_path / "p.png", transparency=1)
    assert pixels(open_rgb(tmp_path / "p.png")).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_rgb_is_not_copied():
    image = Image.fromarray(QUADRANTS)
    assert as_rgb(image) is image


def test_float_pixels_are_refused_with_the_file(tmp_path):
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(OrdnetError, match=r"f\.tif.*8 or 16 bits"):
        open_rgb(tmp_path / "f.tif")


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from((1, 6)))
@settings(max_examples=20, deadline=None)
def test_a_jpeg_at_reduced_size_is_never_too_small(width, height, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.new("RGB", (400, 240), "teal").save(file, "JPEG", exif=exif)
    full = open_rgb(file).size
    file.seek(0)
    small = open_rgb(file, at_least=(width, height)).size
    assert small[0] >= min(width, full[0]) and small[1] >= min(height, full[1])
    if 4 * width <= full[0] and 4 * height <= full[1]:
        assert small[0] <= full[0] / 4 + 1


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_broken_files_are_named(tmp_path, ending):
    whole = tmp_path / f"whole.{ending}"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    data = whole.read_bytes()
    for name, content in (
        ("empty", b""),
        ("text", b"not a picture"),
        ("half", data[: len(data) // 2]),
        ("head", data[:20]),
    ):
        broken = tmp_path / f"{name}.{ending}"
        broken.write_bytes(content)
        with pytest.raises(OrdnetError, match=name):
            open_rgb(broken)
    with pytest.raises(OrdnetError, match=r"no picture at .*gone"):
        open_rgb(tmp_path / f"gone.{ending}")
    with pytest.raises(OrdnetError, match="cannot be read"):
        open_rgb(tmp_path)


@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_a_cut_off_file_is_called_that(tmp_path, ending):
    """Pillow says "(14 bytes not processed)", of which nobody knows what to do."""
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"a.{ending}")
    content = (tmp_path / f"a.{ending}").read_bytes()
    (tmp_path / f"a.{ending}").write_bytes(content[: len(content) // 2])
    with pytest.raises(OrdnetError, match=rf"a\.{ending} is cut off, its end is missing: copy or download it again$"):
        open_rgb(tmp_path / f"a.{ending}")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@given(st.sampled_from(("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP")), st.integers(0, 2**32), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_give_a_picture_or_our_error(kind, seed, count):
    rng = np.random.default_rng(seed)
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(file, kind)
    data = np.frombuffer(file.getvalue(), dtype=np.uint8).copy()
    data[rng.integers(0, min(len(data), 200), count)] = rng.integers(0, 256, count)
    with suppress(OrdnetError):
        # damage may claim any size; a small limit keeps the test from filling memory
        assert open_rgb(io.BytesIO(data.tobytes()), largest=10_000).mode == "RGB"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def tiny_png(width, height, bits, data):
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_our_limit_stands_in_for_pillows(tmp_path):
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(tiny_png(100_000, 100_000, 8, b""))
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(OrdnetError, match=r"bomb\.png.*100000 x 100000.*in windows"):
        open_rgb(bomb)
    assert before == Image.MAX_IMAGE_PIXELS  # others keep their protection
    # beyond Pillow's limit but within ours: opened, without a warning
    large = tmp_path / "large.png"
    side = 14_000
    assert 2 * before < side * side < LARGEST
    large.write_bytes(tiny_png(side, side, 1, (b"\0" + b"\xff" * (side // 8)) * side))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raw = read_index(str(large))
    assert raw.shape == (side, side) and raw.all()


def test_decoders_that_ask_for_the_limit_again(tmp_path):
    path, side = tmp_path / "large.tif", 14_000
    assert 2 * Image.MAX_IMAGE_PIXELS < side * side < LARGEST
    Image.new("1", (side, side)).save(path, compression="group4")
    with warnings.catch_warnings(), opened(path) as picture:
        warnings.simplefilter("error")
        picture.load()
    assert Image.MAX_IMAGE_PIXELS is not None


def test_threads_leave_pillows_limit_as_it_was(tmp_path):
    Image.fromarray(QUADRANTS).save(tmp_path / "a.png")
    before = Image.MAX_IMAGE_PIXELS
    threads = [threading.Thread(target=lambda: [open_rgb(tmp_path / "a.png") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before == Image.MAX_IMAGE_PIXELS


def test_index_labels_keep_their_stored_values(tmp_path):
    index = np.array([[0, 1, 2], [3, 9, 15]], dtype=np.uint8)
    path = str(tmp_path / "a.png")
    Image.fromarray(index).save(path)
    assert np.array_equal(read_index(path), index)
    paletted = Image.fromarray(index).convert("P")
    paletted.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
    for bits in (4, 8):
        paletted.save(path, bits=bits)
        assert np.array_equal(read_index(path), np.asarray(paletted))
    Image.fromarray(index.astype(np.uint16) + 400).save(path)
    assert np.array_equal(read_index(path), index.astype(np.uint16) + 400)
    Image.fromarray(index > 1).save(path)
    assert np.array_equal(read_index(path), index > 1)
    assert read_index(path).dtype == np.uint8


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_labels_of_few_bits_are_not_spread(tmp_path, bits):
    values = list(range(2**bits))[: 8 // bits]
    packed = sum(value << (8 - bits * (place + 1)) for place, value in enumerate(values))
    path = tmp_path / "a.png"
    path.write_bytes(tiny_png(len(values), 1, bits, bytes([0, packed])))
    assert read_index(str(path)).tolist() == [values]


def test_colour_labels_need_a_palette(tmp_path):
    path = str(tmp_path / "a.png")
    colours = {(128, 64, 128): 3, (0, 0, 0): 255, (255, 255, 255): 0}
    picture = np.array([[(128, 64, 128), (0, 0, 0), (255, 255, 255)]], dtype=np.uint8)
    Image.fromarray(picture).save(path)
    assert read_colours(path, colours).tolist() == [[3, 255, 0]]
    assert read_label(path, colours).tolist() == [[3, 255, 0]]
    with pytest.raises(OrdnetError, match=r"a\.png is a colour picture \(RGB\).*classes\.txt.*; it has #[0-9a-f]{6}"):
        read_index(path)
    with pytest.raises(OrdnetError, match=r"a\.png is a colour picture"):
        read_label(path, {})
    picture[0, 1] = 1, 2, 3
    Image.fromarray(picture).save(path)
    with pytest.raises(OrdnetError, match=r"a\.png.*#010203 \(1 pixels\)"):
        read_colours(path, colours)


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_colours_and_values_go_round(tmp_path_factory, seed, count):
    rng = np.random.default_rng(seed)
    codes = rng.choice(2**24, count, replace=False)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)
    values = rng.permutation(count)
    chosen = rng.integers(0, count, (5, 7))
    path = str(tmp_path_factory.mktemp("labels") / "a.png")
    Image.fromarray(colours[chosen]).save(path)
    palette = {tuple(colour): int(value) for colour, value in zip(colours.tolist(), values, strict=True)}
    assert np.array_equal(read_colours(path, palette), values[chosen])


def test_sixteen_bits_become_eight(tmp_path):
    grey = np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)
    for ending in ("png", "tif"):
        Image.fromarray(grey).save(tmp_path / f"grey.{ending}")
        pixels = np.asarray(open_rgb(tmp_path / f"grey.{ending}"))
        assert np.array_equal(pixels[..., 0], np.round(grey / 257)) and np.array_equal(pixels[..., 0], pixels[..., 2])


def test_stretching_uses_the_whole_range(tmp_path):
    scan = np.linspace(1000, 3000, 600).astype(np.uint16).reshape(20, 30)  # 12 bits in a file of 16
    Image.fromarray(scan).save(tmp_path / "scan.tif")
    assert np.asarray(open_rgb(tmp_path / "scan.tif")).max() < 13
    pixels = np.asarray(open_rgb(tmp_path / "scan.tif", stretch=True))[..., 0].ravel()
    assert pixels[0] == 0 and pixels[-1] == 255 and (np.diff(pixels.astype(int)) >= 0).all()
    flat = np.full((4, 4), 500, np.uint16)
    Image.fromarray(flat).save(tmp_path / "flat.tif")
    assert np.asarray(open_rgb(tmp_path / "flat.tif", stretch=True)).max() <= 1
    Image.fromarray(np.float32([[0, 1], [np.nan, 2]])).save(tmp_path / "float.tif")
    assert np.asarray(open_rgb(tmp_path / "float.tif", stretch=True)).max() == 255
