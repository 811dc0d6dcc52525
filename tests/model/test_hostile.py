"""Model files from elsewhere, made to hurt: checkpoints, backbone weights, settings. All are refused in words, soon,
without reading another file, asking the network, or taking more memory than the file itself."""

import json
import os
import socket
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ordnet
from ordnet import config
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint, hub, weights
from ordnet.model.card import read_card
from tests.timm_here import mend_torchvision

PICTURE = np.zeros((40, 50, 3), np.uint8)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.safetensors"
    torch.manual_seed(0)
    checkpoint.save(path, ordnet.build("ordnet", classes=2, backbone="tiny"), ("a", "b"), ((0, 0, 0), (1, 1, 1)))
    return path


def rewritten(good, path, edit=lambda words: None, change=lambda tensors: None):
    """The checkpoint with other words and tensors, and a checksum that fits: whoever forges one forges that too."""
    with safe_open(good, "pt") as file:
        metadata = dict(file.metadata())
    words, tensors = json.loads(metadata["ordnet"]), load_file(good)
    edit(words)
    change(tensors)
    metadata["ordnet"] = json.dumps(words)
    metadata["sha256"] = checkpoint.checksum(metadata["ordnet"], tensors)
    save_file(tensors, path, metadata)
    return path


@pytest.fixture
def alone(monkeypatch):
    """Neither the hub nor any address is reached."""
    monkeypatch.setattr(hub, "fetch", lambda *words: pytest.fail("the hub was asked"))
    monkeypatch.setattr(hub, "fetch_checked", lambda *words: pytest.fail("the hub was asked"))
    monkeypatch.setattr(socket.socket, "connect", lambda *words: pytest.fail("the network was asked"))


# ---- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        {"weights": "hf:evil/x"},
        {"weights": "imagenet"},
        {"weights": "/etc/passwd"},
        {"backbone": "timm:hf-hub:evil/x"},
        {"backbone": "timm:hf_hub:evil/x"},
        {"backbone": "timm:local-dir:/etc"},
    ],
)
def test_loading_touches_nothing_else(good, tmp_path, alone, model):
    mend_torchvision()
    path = rewritten(good, tmp_path / "evil.safetensors", lambda words: words["model"].update(model))
    if "weights" in model:
        assert ordnet.load(path)(PICTURE).labels.shape == (40, 50)
    else:
        with pytest.raises(OrdnetError, match="timm"):
            ordnet.load(path)


@pytest.mark.parametrize(
    "model", [{"backbone": "timm:eva_giant_patch14_560"}, {"neck": 100_000}, {"value_channels": 100_000}]
)
def test_a_network_that_the_file_does_not_hold_is_not_built(good, tmp_path, monkeypatch, model):
    """A width passes the first look where any tensor is so wide; the network of it would take 40 GB."""
    mend_torchvision()
    path = rewritten(
        good,
        tmp_path / "huge.safetensors",
        lambda words: [words["model"].pop("output_stride", None), words["model"].update(model)],
        lambda tensors: tensors.update(wide=torch.zeros(100_000)),
    )
    built = []
    real = checkpoint.build_from
    monkeypatch.setattr(
        checkpoint, "build_from", lambda *words: built.append(net := real(*words)) or net
    )  # nothing of it has content
    with pytest.raises(OrdnetError, match=r"do not fit its settings|has output stride|timm"):
        checkpoint.load(path)
    assert all(parameter.is_meta for net in built for parameter in net.parameters())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"classes": ["\x1b[31mred", "b"]}, "characters that cannot be shown"),
        ({"classes": ["x" * 10_000, "b"]}, "too long"),
        ({"classes": {"a": 1, "b": 2}}, "no list of names"),
        ({"classes": None}, "no list of names"),
        ({"classes": ["a", "a"]}, "two of its classes are called 'a'"),
        ({"colours": [[0, 0, 256], [1, 1, 1]]}, "no list of RGB"),
        ({"colours": [[0, 0, -1], [1, 1, 1]]}, "no list of RGB"),
        ({"colours": [[0, 0, float("inf")], [1, 1, 1]]}, "no list of RGB"),
        ({"colours": [[0, 0, 10**30], [1, 1, 1]]}, "no list of RGB"),
        ({"about": [1]}, "no object"),
        ({"about": {"long_side": float("inf")}}, "long_side is inf"),
        ({"about": {"long_side": 10**400}}, "long_side is 1000"),
        ({"about": {"crop": 10**9}}, "crop is 1000000000"),
        ({"about": {"base_size": "520"}}, "base_size is '520'"),
        ({"about": {"miou": "high"}}, "miou is 'high'"),
        ({"about": {"per_class_iou": [1]}}, "per_class_iou is"),
        ({"about": {"per_class_iou": {"a": "x"}}}, "per_class_iou is 'x'"),
        ({"about": {"images": float("nan")}}, "images is nan"),
        ({"about": {"miou": {}}}, "miou is {}"),
        ({"about": {"miou": {"a": 0.5}}}, "miou is {'a': 0.5}"),
        ({"about": {"images": {}}}, "images is {}"),
        ({"about": {"base_size": {}, "crop": {}}}, "base_size is {}"),
        ({"classes": [], "colours": []}, "0 classes, 0 colours"),
        ({"classes": list(map(str, range(300))), "colours": [[0, 0, 0]] * 300}, "300 classes.* 1 to 256"),
        # each name was once compared with all before it, which took hours
        ({"classes": list(map(str, range(500_000))), "colours": [[0, 0, 0]] * 500_000}, "500,000 classes"),
        ({"model": {"patches": 10**6}}, "patches"),
        ({"model": {"output_stride": 10**9}}, "output stride"),
        ({"model": [1]}, "no object"),
    ],
)
def test_words_beyond_all_sense_are_refused(good, tmp_path, words, says):
    """They would fill the memory, end in a trace-back, or reach the terminal."""

    def edit(own):
        for key, value in words.items():
            own[key] = {**own[key], **value} if key == "model" and isinstance(value, dict) else value

    path = rewritten(good, tmp_path / "evil.safetensors", edit)
    with pytest.raises(OrdnetError, match=says):
        checkpoint.load(path)
    if "model" not in words:
        with pytest.raises(OrdnetError, match=says):
            read_card(path)


def test_cards_of_little_and_of_harmful_words(good, tmp_path):
    """What is not there is no trace-back, and nothing reaches the terminal that it would obey."""
    path = rewritten(good, tmp_path / "a.safetensors", lambda own: own.pop("model") and own.pop("about"))
    assert "never measured" in read_card(path).markdown()
    path = rewritten(good, tmp_path / "b.safetensors", lambda own: own.update(about={"miou": 0.5, "images": None}))
    assert "mIoU 0.5000 (unknown data" in read_card(path).markdown()

    def harm(own):
        own["about"] = {"about": "\x1b]0;a\x07\x1b[2J\x9b31m", "recipe": "\x1b[31m", "licence": "\u202e"}
        own["about"] |= {"miou": 0.5, "data": "\x1b[1A", "per_class_iou": {"\x1b[8m": 0.5}}
        own["model"] |= {"variant": "\x1b[31mx"}

    path = rewritten(good, tmp_path / "c.safetensors", harm)
    path.with_suffix(".md").write_text("one\n\tcode\n\x1b[2J", encoding="utf-8")
    words = read_card(path).markdown()
    assert "\\x1b[2J" in words and "\n    code\n" in words
    assert not any(character in words for character in "\x1b\x07\x9b\u202e\t")


def test_deep_metadata_is_refused(good, tmp_path):
    for words in ("[" * 200_000, '{"a":' * 200_000):
        save_file(load_file(good), tmp_path / "deep.safetensors", {"format": "ordnet-1", "ordnet": words})
        for read in (checkpoint.load, read_card):
            with pytest.raises(OrdnetError, match="no ordnet checkpoint"):
                read(tmp_path / "deep.safetensors")


def test_a_text_beside_a_checkpoint_that_is_no_text(good, tmp_path):
    path = rewritten(good, tmp_path / "net.safetensors")
    path.with_suffix(".md").write_bytes(b"\xff\xfe words")
    assert "words" in read_card(path).markdown()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: [t.fill_(3e38) for key, t in tensors.items() if t.is_floating_point() and "weight" in key],
        lambda tensors: [t.fill_(-5) for key, t in tensors.items() if "running_var" in key],
    ],
)
def test_scores_that_are_not_finite_are_refused(good, tmp_path, change):
    """The weights are finite, what comes of them is not: it used to be the first class everywhere, for certain."""
    path = rewritten(good, tmp_path / "wild.safetensors", change=change)
    large = np.zeros((70, 90, 3), np.uint8)
    for use in (
        lambda: ordnet.load(path)(PICTURE),
        lambda: ordnet.load(path)(PICTURE, confidence=True),
        lambda: ordnet.load(path).scores(PICTURE),
        lambda: ordnet.load(path, protocol="multiscale")(PICTURE),
        lambda: ordnet.load(path, protocol="encnet")(PICTURE),
        lambda: ordnet.load(path, whole_up_to=100, tile=32)(large),
    ):
        with pytest.raises(OrdnetError, match="scores are not finite"):
            use()


@pytest.mark.parametrize("kind", [torch.bool, torch.float8_e4m3fn, torch.complex64, torch.int32])
def test_weights_of_other_kinds_are_refused(good, tmp_path, kind):
    path = rewritten(
        good, tmp_path / "kind.safetensors", change=lambda own: own.update({k: t.to(kind) for k, t in own.items()})
    )
    with pytest.raises(OrdnetError, match="do not fit its settings"):
        checkpoint.load(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_checkpoints(good, tmp_path_factory, data):
    """Bytes changed anywhere, most often in the header: refused, or (blanks, the checksum's own name) still sound."""
    content = bytearray(good.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.one_of(st.integers(0, 7), st.integers(8, header), st.integers(0, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "damaged.safetensors"
    path.write_bytes(content)
    for read in (checkpoint.load, read_card):
        try:
            read(path)
        except OrdnetError as error:
            assert len(str(error)) < 3000


# ---- backbone weights ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own():
    return ordnet.build("ordnet", classes=2, backbone="tiny").backbone.state_dict()


def into(path):
    backbone = ordnet.build("ordnet", classes=2, backbone="tiny").backbone
    return weights.load(backbone, weights.read(path), "tiny")


class Bytes:
    def __reduce__(self):
        return bytearray, (3 << 30,)


def endless():
    content: dict = {}
    content["state_dict"] = content
    return content


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda own: endless(), "no state_dict"),
        (lambda own: {1: torch.zeros(2)}, "no state_dict"),
        (lambda own: {key: tensor.to(torch.complex64) for key, tensor in own.items()}, "no state_dict"),
        (lambda own: {key: tensor.to("meta") for key, tensor in own.items()}, "no state_dict"),
        (lambda own: {key: tensor.to_sparse() for key, tensor in own.items() if tensor.ndim}, "no state_dict"),
        (lambda own: {"a": Bytes()}, "bytearray"),
        (lambda own: {**own, "stem.0.weight": own["stem.0.weight"] * float("nan")}, "not finite"),
        (lambda own: [own], "no state_dict"),
    ],
)
def test_weights_that_hurt(own, tmp_path, make, says):
    """Among them: a dictionary that holds itself (it never ended), and 200 bytes that ask for three gigabytes."""
    for old in (False, True):
        path = tmp_path / f"{old}.pth"
        torch.save(make(own), path, _use_new_zipfile_serialization=not old)
        with pytest.raises(OrdnetError, match=says):
            into(path)


def test_an_archive_behind_old_weights_hides_nothing(tmp_path):
    """Python takes such a file for an archive, torch for weights of the old form: what was read was not looked at."""
    torch.save({"a": Bytes()}, tmp_path / "two.pth", _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(tmp_path / "two.pth", "a") as archive:
        archive.writestr("x", b"y")
    with pytest.raises(OrdnetError, match="bytearray"):
        into(tmp_path / "two.pth")


def test_sound_weights_in_both_forms(own, tmp_path):
    nested = {"state_dict": {f"module.{key}": torch.nn.Parameter(tensor, False) for key, tensor in own.items()}}
    for old, content in ((False, own), (True, own), (False, nested), (True, nested)):
        torch.save(content, tmp_path / "sound.pth", _use_new_zipfile_serialization=not old)
        assert into(tmp_path / "sound.pth").complete


def test_compressed_weights_are_not_unpacked(own, tmp_path):
    torch.save(own, tmp_path / "sound.pth")
    with zipfile.ZipFile(tmp_path / "sound.pth") as sound, zipfile.ZipFile(tmp_path / "bomb.pth", "w") as bomb:
        for part in sound.infolist():
            more = bytes(20_000_000) if part.filename.endswith("data.pkl") else b""
            bomb.writestr(part.filename, sound.read(part) + more, zipfile.ZIP_DEFLATED)
    with pytest.raises(OrdnetError, match="compressed"):
        into(tmp_path / "bomb.pth")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_weights(own, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    torch.save(own, folder / "a.pth", _use_new_zipfile_serialization=data.draw(st.booleans()))
    content = bytearray((folder / "a.pth").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1) | st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    (folder / "a.pth").write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans())
                                   else content)  # fmt: skip
    try:
        into(folder / "a.pth")
    except OrdnetError as error:
        assert len(str(error)) < 3000


# ---- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [1, 2]\nb: *a\n", "refers to other parts"),
        ("a: &a {x: 1}\nb: {<<: *a}\n", "refers to other parts"),
        ("[" * 50_000, "nested too deeply|not a readable"),
        ("{a: " * 20_000, "nested too deeply|not a readable"),
        ("training: {epochs: 2024-99-99}", "month must be in 1..12"),
        ("training: {epochs: " + "9" * 5000 + "}", "not a readable YAML"),
        ("training: {epochs: 0x" + "f" * 9000 + "}", "a number of more than 63 bits"),
        ("data: {jitter: 0b" + "1" * 90_000 + "}", "a number of more than 63 bits"),
        ("data: {name: 1" + ":59" * 30_000 + "}", "a number of more than 63 bits"),
        ("training: !!python/object/apply:os.system ['true']", "not a readable YAML"),
        ("training: {class_weights: [" + "[x], " * 10_000 + "]}", "class_weights"),
        ("data: {name: [" + "x, " * 20_000 + "]}", "data.name"),
        ("data: {name: \x1b[31m}", "not a readable YAML"),
        ("x" * 100_001, "more than the 100,000 bytes"),
        ("\xff", "holds no settings"),
        ("", "holds no settings"),
    ],
)
def test_settings_that_hurt(tmp_path, text, says):
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(OrdnetError, match=says) as caught:
        config.read(tmp_path / "run.yaml")
    assert len(str(caught.value)) < 21_000


def test_a_few_lines_do_not_become_a_long_message(tmp_path):
    """Nine levels of nine references were a message of 254 MB."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    with pytest.raises(OrdnetError) as caught:
        config.read(tmp_path / "run.yaml")
    assert len(str(caught.value)) < 1000


def test_a_pipe_is_no_settings_file(tmp_path):
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(OrdnetError, match="a pipe"):
        config.read(tmp_path / "run.yaml")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text("[]{}:,-&*!|>'\"%@#?0123456789.eE\n ~=<", max_size=40))
def test_settings_of_any_text(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("yaml") / "run.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for read in (
        lambda: config.read(path),
        lambda: config.override(config.Settings(), [f"data.name={text}"]),
        lambda: config.override(config.Settings(), [f"training.epochs={text}", text]),
    ):
        try:
            read()
        except OrdnetError as error:
            assert len(str(error)) < 21_000
