"""Files that are broken, huge, endless or made to hurt: every reader of data answers with OrdnetError, soon and
small."""

import io
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import textwrap
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from ordnet.data.catalogue import open_dataset
from ordnet.data.check import scan
from ordnet.data.dataset import read_ids
from ordnet.data.importers import masks
from ordnet.data.importers.convert import write_folder
from ordnet.data.importers.per_picture import read_labelme, read_supervisely
from ordnet.data.importers.regions import run_lengths, unpack
from ordnet.data.importers.single_file import read_coco, read_label_studio
from ordnet.data.label_files import read_colours, read_index, read_label, read_lossy, read_mat
from ordnet.data.labels import read_class_list
from ordnet.data.pictures import find_pictures, open_rgb
from ordnet.errors import OrdnetError, is_printable, shown


def put(root, **parts):
    """A folder data set of two pictures, with some parts of other content."""
    for name in ("images", "labels"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for key in ("a", "b"):
        Image.new("RGB", (4, 3)).save(root / f"images/{key}.png")
        Image.fromarray(np.zeros((3, 4), np.uint8)).save(root / f"labels/{key}.png")
    for name, content in {"classes": b"x\ny\n", "train": b"a\n", "val": b"b\n", **parts}.items():
        (root / f"{name}.txt").write_bytes(content)
    return f"folder:{root}"


# ---- fuzzing -----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def places(value, path=()):
    """Every place of a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def somewhere(value):
    """The value with a random part put in the place of one of its own."""
    return st.tuples(st.sampled_from(list(places(value))), JSON).map(lambda drawn: changed(value, *drawn))


COCO = {
    "images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 3}],
    "categories": [{"id": 1, "name": "x"}, {"id": "two", "name": "y"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "segmentation": [[0, 0, 3, 0, 3, 3]]},
        {"id": 2, "image_id": 1, "category_id": "two", "segmentation": {"size": [3, 4], "counts": [6, 6]}},
        {"id": 3, "image_id": 1, "category_id": 1, "segmentation": {"size": [3, 4], "counts": "66"}},
    ],
}
LABELME = {
    "imagePath": "a.png", "imageWidth": 4, "imageHeight": 3,
    "shapes": [
        {"label": "x", "shape_type": "polygon", "points": [[0, 0], [3, 0], [3, 3]]},
        {"label": "y", "shape_type": "circle", "points": [[1, 1], [2, 1]]},
        {"label": "y", "shape_type": "mask", "points": [[1, 1], [2, 1]], "mask": "iVBORw0KGgo="},
    ],
}  # fmt: skip
STUDIO = [
    {
        "id": 1,
        "data": {"image": "a.png"},
        "annotations": [
            {
                "result": [
                    {
                        "type": "rectanglelabels", "original_width": 4, "original_height": 3,
                        "value": {"x": 0, "y": 0, "width": 50, "height": 50, "rotation": 5, "rectanglelabels": ["x"]},
                    },
                    {
                        "type": "brushlabels", "original_width": 4, "original_height": 3,
                        "value": {"rle": [0, 0, 0, 48, 57, 27, 255], "brushlabels": ["x"]},
                    },
                ]
            }
        ],
    }
]  # fmt: skip
FIGURES = {
    "size": {"width": 4, "height": 3},
    "objects": [
        {
            "classTitle": "x",
            "geometryType": "polygon",
            "points": {"exterior": [[0, 0], [3, 0], [3, 2]], "interior": []},
        },
        {"classTitle": "x", "geometryType": "bitmap", "bitmap": {"origin": [0, 0], "data": "eJwDAAAAAAE="}},
    ],
}


def run_import(read, files):
    """Read and convert what the files hold; whatever goes wrong must be ours, and leave nothing behind."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        Image.new("RGB", (4, 3)).save(root / "a.png")
        for file, content in files.items():
            (root / file).parent.mkdir(exist_ok=True)
            (root / file).write_bytes(content)
        with suppress(OrdnetError):
            write_folder(read(root), root / "out", True, 0.2, 0)
            return
        assert not (root / "out").exists()


@given(somewhere(COCO))
@settings(max_examples=120)
def test_coco_files(content):
    run_import(lambda root: read_coco(root / "c.json", root), {"c.json": json.dumps(content).encode()})


@given(somewhere(LABELME))
@settings(max_examples=120)
def test_labelme_files(content):
    run_import(read_labelme, {"a.json": json.dumps(content).encode()})


@given(somewhere(STUDIO))
@settings(max_examples=120)
def test_label_studio_files(content):
    run_import(lambda root: read_label_studio(root / "c.json", root), {"c.json": json.dumps(content).encode()})


@given(somewhere(FIGURES), somewhere({"classes": [{"title": "x"}]}))
@settings(max_examples=120)
def test_supervisely_files(figures, meta):
    picture = io.BytesIO()
    Image.new("RGB", (4, 3)).save(picture, "PNG")
    files = {"meta.json": json.dumps(meta), "d/ann/a.png.json": json.dumps(figures)}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in ("d/ann", "d/img"):
            (root / part).mkdir(parents=True)
        (root / "d/img/a.png").write_bytes(picture.getvalue())
        for file, content in files.items():
            (root / file).write_text(content)
        with suppress(OrdnetError):
            write_folder(read_supervisely(root), root / "out", True, 0.2, 0)


NONSENSE = st.binary(max_size=200) | st.text(max_size=80).map(lambda text: text.encode(errors="replace"))
LINES = st.lists(st.text("ab #=:,0123456789\t\xa0é", max_size=30), max_size=8).map(
    lambda rows: "\n".join(rows).encode()
)


@given(NONSENSE | LINES)
@settings(max_examples=200)
def test_lists_of_classes_ids_and_colours(content):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        file = root / "file.txt"
        file.write_bytes(content)
        for read in (read_class_list, read_ids, masks._labelmap, masks._classes_csv):
            with suppress(OrdnetError):
                read(file)
        put(root / "set", classes=content, train=content)
        with suppress(OrdnetError):
            open_dataset(f"folder:{root / 'set'}", "train")


@given(st.binary(max_size=400), st.integers(0, 2**32), st.integers(0, 40))
@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_labels_and_pictures(tail, seed, flips):
    """Sound files with bytes changed, cut off and appended."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDNET_MAX_PIXELS", "100000")  # damage may claim any size
        root = Path(name)
        label = rng.integers(0, 3, (9, 11)).astype(np.uint8)
        Image.fromarray(label).save(root / "a.png")
        Image.fromarray(label).save(root / "a.tif", compression="tiff_lzw")
        Image.fromarray(label * 80).save(root / "a.jpg")
        savemat(root / "a.mat", {"S": label}, do_compression=bool(seed % 2))
        for ending in ("png", "tif", "jpg", "mat"):
            file = root / f"a.{ending}"
            data = np.frombuffer(file.read_bytes(), np.uint8).copy()
            data[rng.integers(0, len(data), flips)] = rng.integers(0, 256, flips)
            file.write_bytes(data.tobytes()[: rng.integers(1, len(data) + 1)] + tail)
            reads = [lambda f: read_mat(f, "S")] if ending == "mat" else [
                open_rgb, read_index, lambda f: read_colours(f, {(0, 0, 0): 0}), lambda f: read_label(f, {}),
                lambda f: read_lossy(f, {}, (0, 80, 160)),
            ]  # fmt: skip
            for read in reads:
                with suppress(OrdnetError):
                    read(str(file))


@given(st.lists(st.integers(-(2**80), 2**80) | st.integers(0, 20), max_size=12), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=120)
def test_run_lengths_fit_their_picture_or_are_refused(lengths, height, width):
    try:
        region = run_lengths(lengths, (height, width), height, width)
    except OrdnetError:
        assert min(lengths, default=0) < 0 or sum(lengths) != height * width
    else:
        assert region.mask.shape == (height, width) and region.area == sum(lengths[1::2])


@given(st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=60))
@settings(max_examples=120)
def test_compressed_run_lengths_are_numbers_or_refused(text):
    with suppress(OrdnetError):
        assert all(abs(number) < 2**70 for number in unpack(text))


# ---- things that were seen to hurt -------------------------------------------------------------------------------


def within(seconds, megabytes, code, *words):
    """Run the code in a process of bounded time and memory; what it prints."""

    def bound():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=bound, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


READ = """
    import sys
    from ordnet.data import pictures, label_files, labels
    from ordnet.data import dataset
    from ordnet.data.importers import regions
    from ordnet.errors import OrdnetError
    from pathlib import Path
    how, path = sys.argv[1:]
    try:
        {
            "picture": lambda: pictures.open_rgb(path),
            "label": lambda: label_files.read_index(path),
            "classes": lambda: labels.read_class_list(Path(path)),
            "ids": lambda: dataset.read_ids(Path(path)),
            "runs": lambda: regions.unpack(Path(path).read_text()),
            "mat": lambda: label_files.read_mat(path, "S"),
        }[how]()
        print("read")
    except OrdnetError as error:
        print("refused:", error)
"""


def tiff_with_strips(count):
    """A picture whose directory lists a strip for each of `count` rows."""
    entries = [(256, 4, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1),
               (278, 4, 1, 1)]  # fmt: skip
    place = 8 + 2 + 12 * 9 + 4
    entries += [(273, 4, count, place), (279, 4, count, place)]
    table = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", 9) + table + bytes(4) + bytes(4 * count)


def test_a_tiff_of_millions_of_strips_is_refused_before_it_is_opened(tmp_path):
    (tmp_path / "strips.tif").write_bytes(tiff_with_strips(4_500_000))
    told = within(20, 1500, READ, "picture", tmp_path / "strips.tif")
    assert "4,500,000 strips or tiles" in told and "strips.tif" in told
    with pytest.raises(OrdnetError, match="strips or tiles"):
        open_rgb(io.BytesIO(tiff_with_strips(300_000)))
    # BigTIFF, and directories without end
    big = b"II+\0" + struct.pack("<HHQ", 8, 0, 16) + struct.pack("<Q", 10**6)
    with pytest.raises(OrdnetError, match="1,000,000 tags"):
        open_rgb(io.BytesIO(big))
    huge = b"MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 1) + struct.pack(">HHII", 700, 1, 2**32 - 1, 0)
    with pytest.raises(OrdnetError, match="more than 32,000,000 bytes"):
        open_rgb(io.BytesIO(huge))


def test_headers_without_end_are_refused():
    chunk = b"\0\0\0\0aaAa" + struct.pack(">I", zlib.crc32(b"aaAa"))
    header = struct.pack(">IIBBBBB", 10, 10, 8, 0, 0, 0, 0)
    first = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    for content, says in (
        (b"\x89PNG\r\n\x1a\n" + first + chunk * 10_000, "more than 5,000 chunks"),
        (b"\xff\xd8" + b"\xff\xe0\0\x02" * 10_000, "more than 5,000 segments"),
        (b"\xff\xd8" + b"junk" * 10_000, "more than 10,000 stray bytes"),
        (b"P6\n#" + b" " * 100_000, "more than 65,536 bytes"),
    ):
        with pytest.raises(OrdnetError, match=says):
            open_rgb(io.BytesIO(content))


@pytest.mark.parametrize("kind", ["tif", "png", "jpg", "bmp", "webp", "ppm", "gif", "avif", "jp2"])
def test_sound_pictures_pass_the_bounds(tmp_path, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"a.{kind}")
    assert open_rgb(tmp_path / f"a.{kind}").size == (50, 40)
    with (tmp_path / f"a.{kind}").open("rb") as file:
        assert open_rgb(file).size == (50, 40)


def test_postscript_never_reaches_ghostscript(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "check_call", None)  # what Pillow would call
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(hurt) print\nshowpage\n%%EOF\n"
    for name in ("a.jpg", "a.png", "a.eps"):
        (tmp_path / name).write_bytes(script)
        for read in (open_rgb, read_index):
            with pytest.raises(OrdnetError, match="not a picture"):
                read(str(tmp_path / name))


def png_of(side):
    """A PNG that unpacks to side x side pixels, as small as can be."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side // 8 + 1)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_small_files_of_huge_pictures_are_refused(tmp_path, monkeypatch):
    spec = put(tmp_path)
    (tmp_path / "images/a.png").write_bytes(png_of(20_000))
    assert (tmp_path / "images/a.png").stat().st_size < 100_000
    (problem,) = scan(open_dataset(spec, "train")).problems
    assert "20000 x 20000 pixels are more than the 200,000,000" in problem.detail
    assert "ORDNET_MAX_PIXELS=400000000" in problem.detail
    (tmp_path / "labels/b.png").write_bytes(png_of(20_000))
    assert any("20000 x 20000" in found.detail for found in scan(open_dataset(spec, "val")).problems)
    monkeypatch.setenv("ORDNET_MAX_PIXELS", "5")
    with pytest.raises(OrdnetError, match="4 x 3 pixels are more than the 5"):
        read_index(str(tmp_path / "labels/a.png"))
    for wrong in ("many", "-1", "0", "1e9", "9" * 40, ""):
        monkeypatch.setenv("ORDNET_MAX_PIXELS", wrong)
        with pytest.raises(OrdnetError, match="ORDNET_MAX_PIXELS is"):
            open_rgb(tmp_path / "images/b.png")


def test_small_mat_files_of_huge_labels_are_refused(tmp_path, monkeypatch):
    savemat(tmp_path / "a.mat", {"S": np.zeros((300, 400), np.uint8)}, do_compression=True)
    monkeypatch.setenv("ORDNET_MAX_PIXELS", "100000")
    with pytest.raises(OrdnetError, match=r"a\.mat.*120,000 values are more than the 100,000"):
        read_mat(str(tmp_path / "a.mat"), "S")


def test_small_mat_files_of_huge_structures_are_refused(tmp_path, monkeypatch):
    """A header says that a structure is one value, and not what its fields hold: 1.5 MB once took 4.7 GB."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    label = np.zeros((4000, 4000), np.uint8)
    savemat(tmp_path / "a.mat", {"GTcls": {"Segmentation": label}}, do_compression=True)
    assert read_mat(str(tmp_path / "a.mat"), "GTcls.Segmentation").shape == (4000, 4000)
    savemat(tmp_path / "b.mat", {"GTcls": {"Segmentation": label}}, do_compression=True)
    monkeypatch.setenv("ORDNET_MAX_PIXELS", "1000000")
    with pytest.raises(OrdnetError, match=r"b\.mat.*unpacks to more than 3,048,576 bytes"):
        read_mat(str(tmp_path / "b.mat"), "GTcls.Segmentation")


def bmp_of_runs(side):
    """One pixel and the end of the line, for each row."""
    body = b"\1\1\0\0" * side
    head = struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078)
    about = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + head + about + bytes(1024) + body


def tiff_of_one_tile(side, order="<"):
    """A picture of one pixel in a tile of side x side."""
    content = zlib.compress(bytes(side * side)) if side < 1000 else b"never looked at"
    entries = [(256, 3, 1), (257, 3, 1), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1), (322, 4, side)]
    entries += [(323, 4, side), (324, 4, 8 + 2 + 12 * 10 + 4), (325, 4, len(content))]
    fields = [struct.pack(f"{order}{'H2x' if kind == 3 else 'I'}", value) for _, kind, value in entries]
    table = [
        struct.pack(f"{order}HHI", tag, kind, 1) + field for (tag, kind, _), field in zip(entries, fields, strict=True)
    ]
    start = b"II*\0" if order == "<" else b"MM\0*"
    return start + struct.pack(f"{order}IH", 8, len(table)) + b"".join(table) + bytes(4) + content


def jpeg_of_scans(side, scans, behind=b""):
    """A JPEG whose last scan, of a few bytes, comes again and again."""
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content.rindex(b"\xff\xda")
    table = content.rindex(b"\xff\xc4", 0, last)
    return content[:-2] + content[table:-2] * scans + b"\xff\xd9" + behind


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: b"P3 1000 1000 255\n" + b"#\n" * 5_000_000, "more than 1,000 comments"),
        (lambda: b"P2\n9 9 255\n" + b"1 " * 100_000 + b"#\n" * 5_000_000, "more than 1,000 comments"),
        (lambda: bmp_of_runs(14_000), "14000 x 14000 pixels in run lengths"),
        (lambda: tiff_of_one_tile(16_000), "tiles of 16000 x 16000 pixels"),
        (lambda: tiff_of_one_tile(16_000, ">"), "tiles of 16000 x 16000 pixels"),
        (lambda: jpeg_of_scans(6000, 1000), "goes over its pixels more than 111 times"),
    ],
)
def test_small_files_that_keep_a_decoder_busy_are_refused(tmp_path, make, says):
    """For minutes, or with gigabytes, though all have fewer pixels than are read."""
    (tmp_path / "busy").write_bytes(make())
    for how in ("picture", "label"):
        assert says in within(10, 3000, READ, how, tmp_path / "busy")


def test_honest_files_of_the_same_kinds_are_read(tmp_path):
    for content, size in (
        (b"P3 # by hand\n2 1 255\n" + b"1 2 3 # red\n4 5 6\n", (2, 1)),
        (bmp_of_runs(40), (40, 40)),
        (tiff_of_one_tile(64), (1, 1)),
        (tiff_of_one_tile(64, ">"), (1, 1)),
        (jpeg_of_scans(64, 5), (64, 64)),
        # what stands behind the picture is none of its scans: the film of a phone, say
        (jpeg_of_scans(6000, 0, b"\xff\xda" * 10_000), (6000, 6000)),
    ):
        assert open_rgb(io.BytesIO(content)).size == size
    # a segment that looks like an end hides no scans
    scans = jpeg_of_scans(6000, 500)
    first = scans.index(b"\xff\xc4", scans.index(b"\xff\xda"))
    with pytest.raises(OrdnetError, match="goes over its pixels"):
        open_rgb(io.BytesIO(scans[:first] + b"\xff\xfe\0\4\xff\xd9" + scans[first:]))


def test_files_with_holes_are_not_read_into_memory(tmp_path):
    """They claim any size and take none: 30 GB were asked for."""
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    (tmp_path / "c.json").write_text(json.dumps(COCO))
    for name in ("a.png", "d.json"):
        with (tmp_path / name).open("ab") as file:
            file.truncate(30 << 30)
    with pytest.raises(OrdnetError, match=r"d\.json has 32,212,254,720 bytes, more than the 2,000,000,000"):
        read_coco(tmp_path / "d.json", tmp_path)
    with pytest.raises(OrdnetError, match=r"a\.png has 32,212,254,720 bytes"):
        write_folder(read_coco(tmp_path / "c.json", tmp_path), tmp_path / "out", True, 0.2, 0)


def test_pipes_are_refused_and_not_waited_for(tmp_path):
    spec = put(tmp_path / "set")
    for name in ("pipe.png", "pipe.txt", "pipe.json", "pipe.mat"):
        os.mkfifo(tmp_path / name)
    for read in (
        lambda: open_rgb(tmp_path / "pipe.png"),
        lambda: read_index(str(tmp_path / "pipe.png")),
        lambda: read_mat(str(tmp_path / "pipe.mat"), "S"),
        lambda: read_class_list(tmp_path / "pipe.txt"),
        lambda: read_ids(tmp_path / "pipe.txt"),
        lambda: read_coco(tmp_path / "pipe.json", tmp_path),
        lambda: masks._labelmap(tmp_path / "pipe.txt"),
        lambda: read_labelme(tmp_path).problems[0] and _fail(read_labelme(tmp_path).problems[0]),
    ):
        with pytest.raises(OrdnetError, match="a pipe, a socket or a device"):
            read()
    for part in ("images/a.png", "labels/a.png", "classes.txt", "train.txt"):
        content = (tmp_path / "set" / part).read_bytes()
        (tmp_path / "set" / part).unlink()
        os.mkfifo(tmp_path / "set" / part)
        try:
            found = [problem.detail for problem in scan(open_dataset(spec, "train")).problems]
        except OrdnetError as error:
            found = [str(error)]
        assert any(Path(part).name in detail for detail in found)
        (tmp_path / "set" / part).unlink()
        (tmp_path / "set" / part).write_bytes(content)
    with pytest.raises(OrdnetError, match="no pictures"):
        find_pictures([str(tmp_path / "pipe.*")])


def _fail(message):
    raise OrdnetError(message)


@pytest.mark.parametrize(
    ("how", "content"),
    [
        ("classes", b"x" + b" " * 60_000 + b"y\n"),
        ("classes", b" " * 10_000_000),
        ("classes", b"a\n" * 5_000_000),
        ("classes", b"\n".join(b"%d" % i for i in range(1_500_000))),
        ("classes", b"a =" + b"9" * 100_000),
        ("ids", b"a" * 10_000_000),
        ("ids", b"a\n" * 5_000_000),
        ("runs", b"o" * 2_000_000),
        ("runs", b"0P" * 1_000_000),
        ("runs", b"0" * 2_000_000),
        ("picture", b"P6" + b" " * 10_000_000),
        ("picture", b"P6\n" + b"#" * 10_000_000),
        ("picture", b"P5 9999999 9999999 255\n"),
        ("picture", b"GIF89a" + b"\xff" * 10_000_000),
        ("picture", b"\x89PNG\r\n\x1a\n" + (b"\0\0\0\0aaAa" + struct.pack(">I", 0)) * 800_000),
        ("picture", b"\xff\xd8" + b"\xff\xe0\0\x02" * 2_500_000),
        ("picture", b"\xff\xd8" + b"\xff" * 10_000_000),
        ("picture", b"BM" + b"\xff" * 10_000_000),
        ("picture", b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 10_000_000),
        ("picture", b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x08free" * 1_000_000),
        ("picture", b"\0\0\0\x20ftypavif" + b"\0" * 10_000_000),
        ("picture", b"II*\0\x08\0\0\0" + b"\xff" * 10_000_000),
        ("mat", b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\x01IM" + b"\xff" * 10_000_000),
    ],
)
def test_megabytes_of_nonsense_take_seconds(tmp_path, how, content):
    """Five seconds of this machine's time and a gigabyte beyond what importing takes."""
    (tmp_path / "nonsense").write_bytes(content)
    within(15, 3000, READ, how, tmp_path / "nonsense")


@pytest.mark.parametrize("content", ["[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000])
def test_deep_json_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    (tmp_path / "meta.json").write_text(content)
    for read in (
        lambda: read_coco(tmp_path / "a.json", tmp_path),
        lambda: read_label_studio(tmp_path / "a.json", tmp_path),
        lambda: read_supervisely(tmp_path),
        lambda: write_folder(read_labelme(tmp_path), tmp_path / "out", True, 0.2, 0),
    ):
        with pytest.raises(OrdnetError, match="json"):
            read()


# ---- names and messages ------------------------------------------------------------------------------------------


def test_file_names_that_are_no_text(tmp_path):
    spec = put(tmp_path / "set")
    strange = os.fsencode(tmp_path / "set/images") + b"/\xff\xfe.png"
    Path(os.fsdecode(strange)).write_bytes((tmp_path / "set/images/a.png").read_bytes())
    with pytest.raises(OrdnetError, match="rename it") as caught:
        open_dataset(spec, "train")
    str(caught.value).encode()  # can be printed
    (found,) = [item for item in find_pictures([str(tmp_path / "set/images")]) if not is_printable(item.stem)]
    shown(found.stem).encode()


def test_names_in_exports_that_are_no_file_names(tmp_path):
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    for name in ("x\ny.png", "x\x1b[31m.png", " .png"):
        Image.new("RGB", (4, 3)).save(tmp_path / name)
        content = {**COCO, "images": [{"id": 1, "file_name": name}]}
        (tmp_path / "c.json").write_text(json.dumps(content))
        with pytest.raises(OrdnetError, match="rename this picture") as caught:
            write_folder(read_coco(tmp_path / "c.json", tmp_path), tmp_path / "out", True, 0.2, 0)
        assert "\x1b" not in str(caught.value)


def test_messages_are_short_and_hold_no_control_characters():
    error = OrdnetError("a\x1b[2Jb\r\x00\udcff\u202e" + "x" * 10**6)
    assert len(str(error)) < 30_000
    assert not any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in str(error))
    assert str(error).startswith("a\\x1b[2Jb\\r\\x00\\udcff\\u202e")
    assert str(OrdnetError("two\nlines, é, 日本\u3000語")) == "two\nlines, é, 日本\u3000語"


def test_links_in_a_circle_end(tmp_path):
    """Two of them made 2^40 folders."""
    spec = put(tmp_path / "set")
    for name in ("again", "once more"):
        (tmp_path / "set/images" / name).symlink_to(tmp_path / "set/images")
    with pytest.raises(OrdnetError, match="is a link to a folder that it lies in"):
        open_dataset(spec, "train")
    for name in ("again", "once more"):
        (tmp_path / "set/images" / name).unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "set/images/linked").symlink_to(tmp_path / "elsewhere")  # other links are fine
    assert len(open_dataset(spec, "train").ids) == 1
