"""ONNX: the exported block against the block, real exports against torch, and an ONNX parser beside a torch parser."""

import io
import json
import sys

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import ordnet
from ordnet.bench.networks import RUNTIMES, calibrated, compare_exported, compare_runtimes, prepare_runtime
from ordnet.commands import app
from ordnet.errors import OrdnetError
from ordnet.inference.onnx.export import OPSET, export, finished, metadata, traced
from ordnet.inference.onnx.parser import OnnxParser, session
from ordnet.inference.onnx.runtime import Calibration, check, quantised
from ordnet.model import checkpoint
from ordnet.model.branches import patch_grid
from ordnet.model.checkpoint import Checkpoint
from ordnet.model.exported import Patches, exported
from tests.serving import encoded, serving

NAMES, COLOURS = ("Himmel", "wood – tree", "road"), ((0, 0, 255), (0, 255, 0), (128, 128, 128))


def saved(path, variant="ordnet", **options):
    torch.manual_seed(0)
    net = calibrated(ordnet.build(variant, classes=3, backbone="tiny", **options))
    checkpoint.save(path, net, NAMES, COLOURS, {"miou": 0.5})
    return path


def pictured(height, width, seed=0):
    """Patches of colour, some noise."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    return (np.asarray(coarse) * 0.9 + random.integers(0, 25, (height, width, 3))).astype(np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint with 3 x 3 patches and its export, made by the command, in a folder that was not there."""
    folder = tmp_path_factory.mktemp("export")
    source = saved(folder / "model.safetensors", patches=3)
    done = CliRunner().invoke(app, ["export", str(source), "--out", str(folder / "new" / "model.onnx")])
    assert done.exit_code == 0, done.output
    assert done.output.count("of the labels the same") == 3
    assert f"opset {OPSET}" in done.output and " MB" in done.output
    return source, folder / "new" / "model.onnx"


@pytest.fixture(scope="module")
def parsers(model):
    source, file = model
    return ordnet.load(source), ordnet.load(file)


@given(height=st.integers(1, 40), width=st.integers(1, 40), patches=st.integers(1, 6))
def test_patches_are_those_of_the_grid(height, width, patches):
    height, width = max(height, patches), max(width, patches)
    positions = torch.arange(height * width).view(1, -1, 1)
    cut = Patches(height, width, patches)
    assert torch.equal(cut.join(cut.cut(positions)), positions)
    square = positions.view(height, width)
    for (rows, columns), patch, counts in zip(
        patch_grid(height, width, patches), cut.cut(positions)[0, :, :, 0], cut.counts[..., 0], strict=True
    ):
        assert torch.equal(patch[counts], square[rows, columns].flatten())


@settings(max_examples=60)
@given(
    branches=st.sampled_from([("middle", "long"), ("middle",), ("long",)]),
    gate=st.sampled_from(["out", "in", None]),
    gate_norm=st.sampled_from(["sigmoid", "softmax"]),
    gate_sum=st.sampled_from(["mean", "sum"]),
    fusion=st.sampled_from(["concat", "sum", "scale", "channel"]),
    similarity=st.sampled_from(["dot", "softmax"]),
    project=st.booleans(),
    gate_logits=st.sampled_from(["plain", "standard"]),
    logit_scale=st.sampled_from(["one", "root"]),
    patches=st.integers(1, 4),
    size=st.tuples(st.integers(4, 13), st.integers(4, 13)),
)
def test_the_exported_block_is_the_block(size, **options):
    try:
        block = ordnet.OmniRange(16, **options).double().eval()
    except OrdnetError:
        return  # a combination that does not exist
    x = torch.randn(2, 16, *size, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(exported(block)(x), block(x))


def test_what_the_file_says_of_itself(model):
    file = onnx.load(model[1])
    about = {entry.key: entry.value for entry in file.metadata_props}
    assert tuple(json.loads(about["classes"])) == NAMES
    assert tuple(map(tuple, json.loads(about["colours"]))) == COLOURS
    assert (about["variant"], about["backbone"]) == ("ordnet", "tiny")
    assert about["ordnet_version"] == ordnet.__version__
    assert json.loads(about["about"]) == {"miou": 0.5}
    assert "RGB" in about["input"] and "0..255" in about["input"]
    assert [entry.version for entry in file.opset_import if entry.domain == ""] == [OPSET]
    (image,), (scores,) = file.graph.input, file.graph.output
    sides = [dim.dim_param or dim.dim_value for dim in image.type.tensor_type.shape.dim]
    assert (image.name, sides) == ("image", ["batch", 3, "height", "width"])
    assert scores.name == "scores"
    for trace in (b".py", str(ordnet.__path__[0]).encode()):  # of the machine it was made on
        assert trace not in file.SerializeToString()
    assert not {node.op_type for node in file.graph.node} & {"BatchNormalization", "Loop", "If"}


def test_no_product_grows_with_the_square_of_the_positions(model):
    """Every intermediate result, four times the positions: none may become sixteen times as large."""
    file = onnx.load(model[1])
    names = [node.output[0] for node in file.graph.node if node.op_type in ("MatMul", "Softmax", "Mul", "Add")]
    del file.graph.output[1:]
    file.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    runtime = session(file.SerializeToString())
    sizes = [
        [made.size for made in runtime.run(names, {"image": np.zeros((1, 3, side, side), np.float32)})]
        for side in (96, 192)
    ]
    assert max(large / small for small, large in zip(*sizes, strict=True)) <= 4.5


@settings(max_examples=12)
@given(batch=st.integers(1, 3), height=st.integers(9, 70), width=st.integers(9, 70))
def test_scores_of_any_batch_and_size(model, parsers, batch, height, width):
    file = model[1]
    pictures = [pictured(height, width, seed) for seed in range(batch)]
    image = np.stack(pictures).transpose(0, 3, 1, 2).astype(np.float32)
    (scores,) = _runtime(file).run(["scores"], {"image": image})
    assert scores.shape == (batch, 3, height, width)
    for got, picture in zip(scores, pictures, strict=True):
        wanted = parsers[0].scores(picture)
        assert abs(got - wanted).max() <= 1e-4 * abs(wanted).max()


_sessions = {}


def _runtime(file):
    return _sessions.setdefault(file, session(file.read_bytes()))


@pytest.mark.parametrize("size", [(80, 120), (61, 97), (1, 1), (2, 300), (8, 9)])
def test_the_two_parsers_agree(parsers, size, tmp_path):
    usual, through_onnx = parsers
    picture = pictured(*size)
    wanted, got = usual(picture, confidence=True), through_onnx(picture, confidence=True)
    assert got.labels.shape == size and got.labels.dtype == np.uint8
    assert (got.labels == wanted.labels).mean() >= 0.9999
    assert got.confidence.dtype == np.float16
    np.testing.assert_allclose(got.confidence, wanted.confidence, atol=2e-3)
    np.testing.assert_allclose(got.scores(), wanted.scores(), atol=1e-4 * abs(wanted.scores()).max())
    assert through_onnx(picture).confidence is None


def test_the_parser_offers_what_parser_offers(parsers, tmp_path):
    usual, through_onnx = parsers
    assert isinstance(through_onnx, OnnxParser)
    assert (through_onnx.classes, through_onnx.colours) == (usual.classes, usual.colours)
    assert (through_onnx.protocol, through_onnx.explains) == ("whole", False)
    pictures = [pictured(30, 40, seed) for seed in range(3)]
    for got, wanted in zip(through_onnx.many(pictures), pictures, strict=True):
        assert got.pixels is wanted
        assert np.array_equal(got.labels, through_onnx(wanted).labels)
    with pytest.raises(OrdnetError, match="use the checkpoint"):
        through_onnx(pictures[0]).attention(3, 3)


def test_what_an_onnx_model_cannot_do_is_said(model):
    file = model[1]
    with pytest.raises(OrdnetError, match=r"60 x 50 px are more than the 0.002 megapixels .* the checkpoint"):
        OnnxParser(file, whole_up_to=2000)(pictured(50, 60))
    with pytest.raises(OrdnetError, match="protocol whole only, not 'encnet'"):
        ordnet.load(file, protocol="encnet")
    with pytest.raises(OrdnetError, match="on the CPU here, not on cuda"):
        ordnet.load(file, device="cuda")


def test_predict_takes_the_file_and_remembers_it(model, tmp_path):
    source, file = model
    Image.fromarray(pictured(60, 81)).save(tmp_path / "photo.png")

    def predict(name, out):
        done = CliRunner().invoke(
            app, ["predict", str(name), str(tmp_path / "photo.png"), "--out", str(tmp_path / out)]
        )
        assert done.exit_code == 0, done.output
        return done.output

    assert "1 parsed" in predict(file, "a")
    assert "1 were done already" in predict(file, "a")
    predict(source, "b")
    got, wanted = (np.asarray(Image.open(tmp_path / out / "photo.labels.png")) for out in "ab")
    assert (got == wanted).mean() >= 0.9999


def test_weights_in_16_bits(model, tmp_path):
    source, file = model
    found = checkpoint.load(source)
    data = finished(onnx.load(file), metadata(found), half=True)  # tracing again would take seconds
    assert len(data) < 0.6 * file.stat().st_size
    results = check(session(data), found.net, half=True, progress=lambda _: None)
    assert min(result.onnx.labels for result in results) >= 0.999
    (tmp_path / "half.onnx").write_bytes(data)
    picture = pictured(50, 70)
    same = OnnxParser(tmp_path / "half.onnx")(picture).labels == OnnxParser(file)(picture).labels
    assert same.mean() >= 0.999


def test_a_file_that_differs_is_refused(model):
    found = checkpoint.load(model[0])
    found.net.head[-1].bias.data[1] += 0.5
    with pytest.raises(OrdnetError, match=r"nothing was written. 1 x 96 x 128: scores within .* Expected 1e-04"):
        check(_runtime(model[1]), found.net, half=False, progress=lambda _: None)
    found.net.head[-1].bias.data[:] = torch.nan
    with pytest.raises(OrdnetError, match="nothing was written"):
        check(_runtime(model[1]), found.net, half=False, progress=lambda _: None)


def test_softmax_and_corners_that_are_not_aligned(tmp_path):
    source = saved(tmp_path / "m.safetensors", "basic-sa-rlr", similarity="softmax", align_corners=False)
    done = export(source, tmp_path / "m.onnx")
    assert done.size == done.path.stat().st_size
    picture = pictured(45, 70)
    assert (ordnet.load(done.path)(picture).labels == ordnet.load(source)(picture).labels).mean() >= 0.9999
    with pytest.raises(OrdnetError, match=r"2000 x 1500 px are too many .* above 0\.26 megapixels"):
        ordnet.load(done.path)(np.zeros((1500, 2000, 3), np.uint8))


def test_bench_beside_torch(model):
    rows = compare_exported(model[1], "tiny", 40, 48, repeats=1)
    assert [row.name for row in rows] == list(RUNTIMES.values())
    assert rows[0].ratio == 1
    assert all(row.seconds > 0 and row.ratio > 0 and row.gflops > 0 and row.peak_mb >= 0 for row in rows)
    with pytest.raises(OrdnetError, match="at least 32x32"):
        compare_runtimes("tiny", 20, 40, 1)


def test_the_contestants_of_the_bench_compute_the_same(model):
    eager, prepared = (prepare_runtime(way, "tiny", 40, 48, "")() for way in ("eager", "prepared"))
    torch.testing.assert_close(eager, prepared, rtol=1e-4, atol=1e-4)
    assert prepare_runtime("onnx", "tiny", 40, 48, str(model[1]))().shape == (1, 3, 40, 48)


def test_mistakes_are_named_before_anything_is_computed(model, tmp_path, monkeypatch):
    source, file = model
    with pytest.raises(OrdnetError, match=r"model.pb: expected a file that ends in .onnx, such as .*model.onnx"):
        export(source, tmp_path / "model.pb")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(OrdnetError, match="is a folder"):
        export(source, tmp_path / "folder.onnx")
    with pytest.raises(OrdnetError, match="no model 'nonsense'"):
        export("nonsense", tmp_path / "a.onnx")
    with pytest.raises(OrdnetError, match="is an ONNX model already"):
        export(file, tmp_path / "a.onnx")
    for name in ("onnx", "onnxscript", "onnxruntime"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, name, None)
            with pytest.raises(OrdnetError, match=r"pip install 'ordnet\[export\]'"):
                export(source, tmp_path / "a.onnx")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(OrdnetError, match=r"pip install 'ordnet\[export\]'"):
            ordnet.load(file)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.onnx"]


def test_a_file_with_holes_is_not_read_into_memory(tmp_path):
    with (tmp_path / "hole.onnx").open("wb") as file:
        file.truncate(30 << 30)
    with pytest.raises(OrdnetError, match="has 32,212,254,720 bytes"):
        OnnxParser(tmp_path / "hole.onnx")


def test_foreign_and_damaged_files_are_refused(model, tmp_path):
    content = model[1].read_bytes()
    bad = tmp_path / "bad.onnx"
    for damaged in (b"", b"this is not a model" * 50, content[: len(content) // 2]):
        bad.write_bytes(damaged)
        with pytest.raises(OrdnetError, match=r"bad\.onnx"):
            ordnet.load(bad)
    foreign = onnx.load(model[1])
    del foreign.metadata_props[:]
    onnx.save(foreign, bad)
    with pytest.raises(OrdnetError, match="no model that `ordnet export` wrote"):
        ordnet.load(bad)
    twisted = onnx.load(model[1])
    next(entry for entry in twisted.metadata_props if entry.key == "colours").value = "[1, 2]"
    onnx.save(twisted, bad)
    with pytest.raises(OrdnetError, match="its settings are damaged"):
        ordnet.load(bad)


def _external(file):
    tensor = file.graph.initializer[0]
    length = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "../secret"), ("offset", "0"), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _looping(file):
    body = onnx.helper.make_graph([], "body", [], [])
    file.graph.node.insert(0, onnx.helper.make_node("Loop", ["", ""], ["never"], body=body))


def _wild(file):
    tensor = next(each for each in file.graph.initializer if each.data_type == 1 and len(each.dims) > 1)
    tensor.raw_data = np.full(tuple(tensor.dims), np.nan, np.float32).tobytes()


@pytest.mark.parametrize(
    ("change", "words", "says"),
    [
        (_external, {}, "weights in other files"),
        (_looping, {}, "loops, branches or functions"),
        (lambda file: file.graph.node.add(op_type="Evil", domain="evil"), {}, "operators that are not ONNX's own"),
        (_wild, {}, "scores are not finite"),
        (None, {"classes": "[" * 100_000}, "metadata are damaged"),
        (None, {"about": '{"a":' * 100_000}, "metadata are damaged"),
        (None, {"least_side": "1000000"}, "least side is 1000000"),
        (None, {"least_side": "9" * 5000}, "metadata are damaged"),
        (None, {"about": '{"long_side": Infinity}'}, "long_side is inf"),
        (None, {"colours": "[[0, 0, 999], [1, 1, 1], [2, 2, 2]]"}, "no list of RGB"),
        (None, {"classes": '["a", "b"]', "colours": "[[0, 0, 0], [1, 1, 1]]"}, "names 2 classes, but its scores"),
        (None, {"classes": '["a", "b", "\\u001b[31m"]'}, "cannot be shown"),
    ],
)
def test_files_made_to_hurt_are_refused(model, tmp_path, change, words, says):
    """They would read other files, never end, fill the memory or write to the terminal."""
    file = onnx.load(model[1])
    if change:
        change(file)
    onnx.helper.set_model_props(file, {**{each.key: each.value for each in file.metadata_props}, **words})
    (tmp_path / "evil.onnx").write_bytes(file.SerializeToString())
    with pytest.raises(OrdnetError, match=says):
        ordnet.load(tmp_path / "evil.onnx")(pictured(40, 50))


def test_the_service_runs_the_exported_file(model):
    """A real server with the ONNX file: the torch parser's labels, and a plain word about attention."""
    source, file = model
    pixels = pictured(60, 90)
    with serving(file) as server, server.client() as client:
        about = client.get("/v1/model").json()
        assert about["explains"] is False
        answer = client.post(
            "/v1/parse?what=labels", headers={"Accept": "image/png"}, files={"image": ("a.png", encoded(pixels))}
        )
        labels = np.asarray(Image.open(io.BytesIO(answer.content)))
        assert np.mean(labels == ordnet.load(source)(pixels).labels) > 0.999
        refused = client.post("/v1/attention", files={"image": ("a.png", encoded(pixels))}, data={"x": 3, "y": 4})
        assert 400 <= refused.status_code < 500
        assert "checkpoint" in refused.json()["error"]


@pytest.fixture(scope="module")
def calibrated_folder(tmp_path_factory):
    """Eight pictures with labels of three classes, in the folder layout."""
    root = tmp_path_factory.mktemp("calibrate")
    (root / "images").mkdir()
    (root / "labels").mkdir()
    for number in range(8):
        pixels = pictured(60, 76, seed=number)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        Image.fromarray((pixels[..., 0] // 86).astype(np.uint8)).save(root / "labels" / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    (root / "train.txt").write_text("\n".join("01234567") + "\n")
    return f"folder:{root}"


def test_8_bits_keep_the_labels_and_take_less_room(model, calibrated_folder, tmp_path):
    source, file = model
    small = tmp_path / "small.onnx"
    words = ["export", str(source), "--out", str(small), "--int8", "--calibrate", calibrated_folder]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "mIoU" in done.output and "in float" in done.output and "int8" in done.output
    assert small.stat().st_size < 0.6 * file.stat().st_size  # a tiny network is mostly graph
    graph = onnx.load(small).graph
    assert any(tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4 for tensor in graph.initializer)
    exact, rounded = ordnet.load(file), ordnet.load(small)
    assert rounded.classes == NAMES
    for height, width in ((60, 76), (131, 90), (7, 40)):
        picture = pictured(height, width, seed=3)
        assert (exact(picture).labels == rounded(picture).labels).mean() > 0.9


def test_8_bits_come_with_pictures_of_the_same_classes(model, calibrated_folder, tmp_path):
    source, _ = model
    out = tmp_path / "small.onnx"
    for words in (
        ["--int8"],
        ["--calibrate", calibrated_folder],
        ["--int8", "--half", "--calibrate", calibrated_folder],
    ):
        done = CliRunner().invoke(app, ["export", str(source), "--out", str(out), *words])
        assert "give both --int8 and --calibrate" in str(done.exception)
    other = CliRunner().invoke(
        app, ["export", "outdoor", "--out", str(out), "--int8", "--calibrate", calibrated_folder]
    )
    assert "different classes" in str(other.exception)
    assert not out.exists()


def test_8_bits_that_cost_too_much_are_refused():
    torch.manual_seed(0)
    found = Checkpoint(calibrated(ordnet.build("ordnet", classes=3, backbone="tiny")), NAMES, COLOURS, {})
    data = finished(traced(found.net), metadata(found))
    pictures = [pictured(64, 70, seed)[None].transpose(0, 3, 1, 2).astype(np.float32) for seed in range(2)]
    scores = iter((0.9, 0.5, 0.6))
    with pytest.raises(OrdnetError, match="8 bits cost too much, so nothing was written"):
        quantised(data, Calibration(pictures, pictures, lambda labels: next(scores)), lambda step: None)
