"""Checkpoints that are cut short, foreign, or damaged are named as such; nothing of them is run."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import ordnet
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.safetensors"
    net = ordnet.build("ordnet", classes=2, backbone="tiny")
    checkpoint.save(path, net, ("a", "b"), ((0, 0, 0), (1, 1, 1)))
    return path


def rewritten(good, path, metadata=None, change=None):
    from safetensors import safe_open

    with safe_open(good, "pt") as file:
        kept = file.metadata()
    tensors = load_file(good)
    if change:
        change(tensors)
    save_file(tensors, path, {**kept, **(metadata or {})})
    return path


@settings(max_examples=40)
@given(data=st.data())
def test_truncated_anywhere(good, tmp_path_factory, data):
    content = good.read_bytes()
    cut = data.draw(st.one_of(st.integers(0, 3000), st.integers(0, len(content) - 1)))
    path = tmp_path_factory.mktemp("cut") / "cut.safetensors"
    path.write_bytes(content[:cut])
    with pytest.raises(OrdnetError, match="cut short"):
        checkpoint.load(path)


def test_missing(tmp_path):
    with pytest.raises(OrdnetError, match="no checkpoint at"):
        checkpoint.load(tmp_path / "none.safetensors")


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "backbone.safetensors"
    save_file({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(OrdnetError, match=r"no ordnet checkpoint.*model\.weights"):
        checkpoint.load(path)


def test_pickles_are_never_run(tmp_path):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    path = tmp_path / "evil.safetensors"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(OrdnetError, match="no ordnet checkpoint"):
        checkpoint.load(path)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"ordnet": "{"}, "no ordnet checkpoint"),
        ({"ordnet": "[]"}, "settings are damaged"),
        ({"ordnet": '{"model": {}, "classes": ["a", "b"], "colours": [[0, 0, 0]]}'}, "2 classes, 1 colours"),
        ({"ordnet": '{"model": {"variant": "x"}, "classes": ["a"], "colours": [[0, 0, 0]]}'}, "no variant 'x'"),
        (
            {"ordnet": '{"model": {"backbone": "tiny", "neck": 9}, "classes": ["a"], "colours": [[0, 0, 0]]}'},
            "weights do not fit its settings",
        ),
    ],
)
def test_damaged_settings(good, tmp_path, metadata, message):
    path = rewritten(good, tmp_path / "damaged.safetensors", metadata)
    with pytest.raises(OrdnetError, match=message):
        checkpoint.load(path)


def test_missing_and_additional_tensors(good, tmp_path):
    for change in (lambda t: t.pop("head.4.bias"), lambda t: t.update(extra=torch.zeros(1))):
        path = rewritten(good, tmp_path / "other.safetensors", change=change)
        with pytest.raises(OrdnetError, match="weights do not fit its settings"):
            checkpoint.load(path)


def test_half_precision_files_load_as_float32(good, tmp_path):
    before = checkpoint.load(good)
    path = tmp_path / "half.safetensors"
    checkpoint.save(path, before.net, before.classes, before.colours, half=True)
    assert path.stat().st_size < 0.7 * good.stat().st_size
    net = checkpoint.load(path).net
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    torch.testing.assert_close(net.state_dict(), before.net.state_dict(), rtol=1e-3, atol=1e-3)


def test_a_failed_write_leaves_the_old_file(good, tmp_path, monkeypatch):
    path = tmp_path / "net.safetensors"
    path.write_bytes(good.read_bytes())
    net = checkpoint.load(path).net

    def fail(tensors, temporary, metadata):
        temporary.write_bytes(b"half a file")
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, net, ("a", "b"), ((0, 0, 0), (1, 1, 1)))
    assert path.read_bytes() == good.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_flipped_bit_is_found(tmp_path):
    net = ordnet.build("mr", classes=2, backbone="tiny")
    checkpoint.save(tmp_path / "net.safetensors", net, ("a", "b"), [(0, 0, 0), (1, 1, 1)])
    content = bytearray((tmp_path / "net.safetensors").read_bytes())
    for place in (len(content) - 1, len(content) // 2, len(content) // 3):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (tmp_path / "damaged.safetensors").write_bytes(damaged)
        with pytest.raises(OrdnetError, match="does not fit its checksum"):
            checkpoint.load(tmp_path / "damaged.safetensors")


def test_equal_networks_make_equal_files(tmp_path):
    """safetensors writes its metadata in another order every time."""
    net = ordnet.build("mr", classes=2, backbone="tiny")
    for index in range(6):
        checkpoint.save(
            tmp_path / f"{index}.safetensors", net, ("a", "ü"), [(0, 0, 0), (1, 1, 1)], {"data": "x", "epoch": 3}
        )
    assert len({path.read_bytes() for path in tmp_path.glob("*.safetensors")}) == 1
    assert checkpoint.load(tmp_path / "0.safetensors").classes == ("a", "ü")


def test_widths_that_no_tensor_has_are_refused_before_anything_is_built(good, tmp_path, monkeypatch):
    """A file from elsewhere must not be able to ask for ten gigabytes."""
    import json

    from safetensors import safe_open

    with safe_open(good, "pt") as file:
        settings = json.loads(file.metadata()["ordnet"])
    settings["model"]["key_channels"] = 10_000_000
    path = rewritten(good, tmp_path / "huge.safetensors", {"ordnet": json.dumps(settings)})
    monkeypatch.setattr(checkpoint, "build_from", lambda *words: pytest.fail("it was built"))
    with pytest.raises(OrdnetError, match=r"model.key_channels is 10000000, and no tensor has that"):
        checkpoint.load(path)


def test_weights_that_are_not_finite_are_named(tmp_path):
    net = ordnet.build("ordnet", classes=2, backbone="tiny")
    torch.nn.init.constant_(net.block.fuse.weight, float("nan"))
    checkpoint.save(tmp_path / "nan.safetensors", net, ("a", "b"), ((0, 0, 0), (1, 1, 1)))
    with pytest.raises(OrdnetError, match=r"not finite, such as block\.fuse\.weight"):
        checkpoint.load(tmp_path / "nan.safetensors")
