"""Models and weights on the hub: addresses, the offline mirror, PyTorch-Encoding's names, and what goes wrong."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import ordnet
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint, hub, weights
from ordnet.model.build import make_backbone

NAMES = ("sky", "tree", "road")
COLOURS = ((0, 0, 255), (0, 255, 0), (128, 128, 128))


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    folder = tmp_path / "mirror"
    (folder / "user" / "name").mkdir(parents=True)
    monkeypatch.setenv("ORDNET_HUB", str(folder))
    return folder


# ---- addresses ------------------------------------------------------------------------------------------------


def test_addresses(mirror):
    (mirror / "user/name/model.safetensors").write_bytes(b"1")
    (mirror / "user/name/deep/er").mkdir(parents=True)
    (mirror / "user/name/deep/er/net.onnx").write_bytes(b"2")
    assert hub.locate("hf:user/name").read_bytes() == b"1"
    assert hub.locate("hf:user/name/model.safetensors").read_bytes() == b"1"
    assert hub.locate("hf:user/name/deep/er/net.onnx").read_bytes() == b"2"
    assert hub.locate("hf:user/name@v1.0/deep/er/net.onnx").read_bytes() == b"2"  # a mirror has what it has
    assert not hub.is_address("runs/best.safetensors")
    assert hub.split("hf:user/name@v1.0") == ("user/name", "model.safetensors", "v1.0")
    assert hub.split("hf:user/name/a@b.bin") == ("user/name", "a@b.bin", None)
    for wrong in ("hf:user/name@", "hf:user/name@../x", "hf:user/name@a@b"):
        with pytest.raises(OrdnetError, match="is no revision"):
            hub.locate(wrong)


@pytest.mark.parametrize("repo", ["", "user", "user/", "/name", "us er/name", "../name", "user/..", "a/b/c", "user/-x"])
def test_no_repository(repo, tmp_path):
    with pytest.raises(OrdnetError, match="is no repository of the hub; expected user/name"):
        hub.fetch(repo, "model.safetensors")
    with pytest.raises(OrdnetError, match="is no repository of the hub; expected user/name"):
        hub.push(tmp_path, repo)


@settings(max_examples=40)
@given(st.text(alphabet="./\\ab:~ ", max_size=12))
def test_no_address_leads_out_of_the_mirror(rest):
    """Whatever stands after hf:, a file outside the repository is never given."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder).resolve()
        (root / "mirror" / "a" / "b").mkdir(parents=True)
        for secret in ("a", "b", "mirror/b", "mirror/a/a", "mirror/a/b/a"):
            (root / secret).write_text("only the last one may be given")
        patch.setenv("ORDNET_HUB", str(root / "mirror"))
        try:
            found = hub.locate(f"hf:{rest}")
        except OrdnetError:
            return
        assert found.resolve() == root / "mirror" / "a" / "b" / "a"


def test_messages_of_the_mirror(mirror, monkeypatch):
    with pytest.raises(OrdnetError, match=r"hf:user/none/model\.safetensors: there is no .*ORDNET_HUB names"):
        ordnet.load("hf:user/none")
    with pytest.raises(OrdnetError, match="leads out of its repository"):
        hub.fetch("user/name", "../../secret")
    monkeypatch.setenv("ORDNET_HUB", str(mirror / "nowhere"))
    with pytest.raises(OrdnetError, match="nowhere is no folder; it stands for the hub"):
        hub.fetch("user/name", "model.safetensors")


# ---- whole models and backbone weights -------------------------------------------------------------------------


def test_a_whole_model_comes_and_goes(mirror, tmp_path):
    path = tmp_path / "mine.safetensors"
    checkpoint.save(path, ordnet.build("ordnet", classes=3, backbone="tiny"), NAMES, COLOURS)
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "model.safetensors").write_bytes(path.read_bytes())
    assert hub.push(tmp_path / "up", "me/mine") == str(mirror / "me" / "mine")
    picture = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    expected = ordnet.load(path)(picture).labels
    for address in ("hf:me/mine", "hf:me/mine/model.safetensors"):
        assert np.array_equal(ordnet.load(address)(picture).labels, expected)


@pytest.fixture(scope="module")
def encoding_state():
    """The state dict of a resnet50s as PyTorch-Encoding names it, written down from its layout and not from ours."""
    state = {}

    def conv(key, outputs, inputs, size):
        state[f"{key}.weight"] = torch.randn(outputs, inputs, size, size)

    def norm(key, channels):
        for part in ("weight", "bias", "running_mean"):
            state[f"{key}.{part}"] = torch.randn(channels)
        state[f"{key}.running_var"] = torch.rand(channels) + 0.5
        state[f"{key}.num_batches_tracked"] = torch.tensor(7)

    conv("conv1.0", 64, 3, 3)
    norm("conv1.1", 64)
    conv("conv1.3", 64, 64, 3)
    norm("conv1.4", 64)
    conv("conv1.6", 128, 64, 3)
    norm("bn1", 128)
    inputs = 128
    for layer, (planes, depth) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3), strict=True), start=1):
        for block in range(depth):
            key = f"layer{layer}.{block}"
            conv(f"{key}.conv1", planes, inputs, 1)
            norm(f"{key}.bn1", planes)
            conv(f"{key}.conv2", planes, planes, 3)
            norm(f"{key}.bn2", planes)
            conv(f"{key}.conv3", planes * 4, planes, 1)
            norm(f"{key}.bn3", planes * 4)
            if block == 0:
                conv(f"{key}.downsample.0", planes * 4, inputs, 1)
                norm(f"{key}.downsample.1", planes * 4)
            inputs = planes * 4
    state["fc.weight"], state["fc.bias"] = torch.zeros(1000, 2048), torch.zeros(1000)
    return state


def assert_every_tensor_landed(backbone, state, report, prefix=""):
    assert report.complete
    assert report.leftover == []
    own = backbone.state_dict()
    wanted = [key for key in state if key.startswith(prefix) and not key.endswith("num_batches_tracked")]
    wanted = [key for key in wanted if not key.removeprefix(prefix).startswith(("fc.", "head.", "auxlayer."))]
    assert len(wanted) == len(report.loaded)
    for key in wanted:
        assert torch.equal(own[key.removeprefix(prefix)], state[key]), key


def test_encoding_backbone_from_the_hub(mirror, encoding_state):
    save_file(encoding_state, mirror / "user/name/resnet50s.safetensors")
    backbone = make_backbone("resnet50s")
    report = weights.load(backbone, weights.read("hf:user/name/resnet50s.safetensors"), "resnet50s")
    assert_every_tensor_landed(backbone, encoding_state, report)


def test_encoding_whole_checkpoint(tmp_path, encoding_state):
    """EncNet's training leaves epoch, optimizer and a state dict in which the backbone is `pretrained`."""
    state = {f"pretrained.{key}": tensor for key, tensor in encoding_state.items()}
    state |= {"head.conv5.0.weight": torch.zeros(8, 8, 3, 3), "auxlayer.conv5.0.weight": torch.zeros(8, 8, 3, 3)}
    torch.save({"epoch": 80, "state_dict": state, "optimizer": {}, "best_pred": 0.5}, tmp_path / "encnet.pth")
    backbone = make_backbone("resnet50s")
    report = weights.load(backbone, weights.read(tmp_path / "encnet.pth"), "resnet50s")
    assert_every_tensor_landed(backbone, state, report, "pretrained.")
    assert {"head.conv5.0.weight", "auxlayer.conv5.0.weight", "fc.weight"} <= set(report.classifier)


def test_weights_from_the_hub_in_the_settings(mirror):
    state = {key: torch.randn_like(t) for key, t in make_backbone("mobilenet_v2").state_dict().items() if t.ndim}
    save_file(state, mirror / "user/name/model.safetensors")
    net = ordnet.build("dilated-fcn", classes=2, backbone="mobilenet_v2", weights="hf:user/name")
    assert torch.equal(net.backbone.state_dict()["features.3.conv.2.weight"], state["features.3.conv.2.weight"])
    assert net.config.weights is None  # a checkpoint of it looks for nothing
    with pytest.raises(OrdnetError, match=r"there is no .*user/other"):
        ordnet.build("dilated-fcn", classes=2, backbone="mobilenet_v2", weights="hf:user/other")


# ---- the real library, against a server of our own -------------------------------------------------------------


class Answers(BaseHTTPRequestHandler):
    """A hub that has one file, refuses uploads, and knows no other repository."""

    def do_HEAD(self):
        code, headers, body = 404, {"X-Error-Code": "RepoNotFound"}, b""
        if "/user/gated/" in self.path:
            code, headers = 403, {"X-Error-Code": "GatedRepo"}
        elif "/user/name/" in self.path and self.path.endswith("/model.safetensors"):
            code, body = 200, b"the file"
            headers = {"X-Repo-Commit": "a" * 40, "ETag": '"b0b0"', "Content-Type": "application/octet-stream"}
        elif "/user/name/" in self.path:
            code, headers = 404, {"X-Error-Code": "EntryNotFound"}
        self.answer(code, headers, body)

    do_GET = do_HEAD

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(401, {}, b"")

    def answer(self, code, headers, body):
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


CODE = """
import json, sys
from pathlib import Path
from ordnet.errors import OrdnetError
from ordnet.model import hub

found = {}
for address in ("hf:user/name", "hf:user/none", "hf:user/gated", "hf:user/name/other.onnx"):
    try:
        found[address] = hub.locate(address).read_text()
    except OrdnetError as error:
        found[address] = str(error)
try:
    found["push"] = hub.push(Path(sys.argv[1]), "user/name")
except OrdnetError as error:
    found["push"] = str(error)
print(json.dumps(found))
"""


def through_the_library(tmp_path, **environment):
    """In a fresh process: the library reads its settings when it is imported."""
    (tmp_path / "up").mkdir(exist_ok=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ORDNET_HUB"))}
    clean |= {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    command = [sys.executable, "-c", CODE, str(tmp_path / "up")]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_library_fetches_and_its_errors_are_plain(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        found = through_the_library(tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert found["hf:user/name"] == "the file"
    assert "there is no repository user/none, or it is private" in found["hf:user/none"]
    assert "user/gated asks for consent" in found["hf:user/gated"]
    assert "the repository user/name has no such file" in found["hf:user/name/other.onnx"]
    assert "nothing was pushed to hf:user/name: you are not logged in" in found["push"]
    # what was fetched once is there without a network; the rest is not
    offline = through_the_library(tmp_path, HF_HUB_OFFLINE="1")
    assert offline["hf:user/name"] == "the file"
    assert "the hub was not reached; check the network" in offline["hf:user/none"]
    assert "the hub was not reached; check the network" in offline["push"]


class Moving(Answers):
    """A hub whose `main` moves on; every commit keeps its content."""

    main = "a" * 40
    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        revision = self.path.split("/resolve/")[1].partition("/")[0]
        commit = self.main if revision == "main" else revision
        self.asked.append(revision)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{commit[:8]}"', "Content-Type": "application/octet-stream"}
        self.answer(200, headers, f"content of {commit[0]}".encode())

    do_GET = do_HEAD


ONCE = """
import sys
from ordnet.model import hub
path, commit, _ = hub.fetch_checked("user/name", "model.safetensors", sys.argv[1] if len(sys.argv) > 1 else None)
print(path.read_text(), commit)
"""


def test_what_main_was_the_first_time_stays_what_it_is_here(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Moving)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def fetched(*words, cache="cache"):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ORDNET_HUB"))}
        clean |= {"HF_HOME": str(tmp_path / cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
        clean |= {"XDG_CACHE_HOME": str(tmp_path / "own"), "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        command = [sys.executable, "-c", ONCE, *words]
        return subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout.strip()

    memory = tmp_path / "own/ordnet/hub_revisions.json"
    try:
        assert fetched() == f"content of a {'a' * 40}"
        assert json.loads(memory.read_text()) == {"user/name": "a" * 40}
        Moving.main = "b" * 40
        assert fetched() == f"content of a {'a' * 40}"
        assert fetched(cache="empty") == f"content of a {'a' * 40}"  # even where it has to be fetched again
        assert fetched("c" * 40) == f"content of c {'c' * 40}"
        assert fetched() == f"content of a {'a' * 40}"
        assert fetched("main") == f"content of b {'b' * 40}"  # asked for by name
        assert fetched() == f"content of b {'b' * 40}"
        memory.write_text("{damaged")
        assert fetched() == f"content of b {'b' * 40}"
    finally:
        server.shutdown()
        server.server_close()
