"""`ordnet serve`: what the API answers, what it refuses, how the server starts and ends."""

import base64
import io
import json
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image, features

import ordnet
from ordnet.serve.answers import wanted
from ordnet.serve.guard import Refusal
from tests.serving import COLOURS, NAMES, decoded, encoded, pixels, raw_request, serving, tiny_checkpoint

LIMITED = ("--max-megabytes", "2", "--max-megapixels", "0.1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture(scope="module")
def parser(model):
    return ordnet.load(model, device="cpu")


@pytest.fixture(scope="module")
def server(model):
    with serving(model, *LIMITED) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with server.client() as client:
        yield client


def upload(data=None, **fields):
    files = {name: (None, str(value)) for name, value in fields.items()}
    return {"files": {**({} if data is None else {"image": ("picture", data)}), **files}}


def test_parse_as_json(client, parser):
    array = pixels()
    answer = client.post("/v1/parse?labels=true&confidence=true", **upload(encoded(array)))
    assert answer.status_code == 200
    found = answer.json()
    parse = parser(array, confidence=True)
    np.testing.assert_array_equal(decoded(base64.b64decode(found["labels"])), parse.labels)
    np.testing.assert_allclose(decoded(base64.b64decode(found["confidence"])) / 255, parse.confidence, atol=0.003)
    assert {each["name"]: each["share"] for each in found["classes"]} == parse.areas()
    for each in found["classes"]:
        assert each["name"] == NAMES[each["id"]]
        assert each["colour"] == "#{:02x}{:02x}{:02x}".format(*COLOURS[each["id"]])
    assert (found["width"], found["height"], found["protocol"]) == (64, 48, "whole")
    assert found["model"].endswith("tiny.safetensors") and found["seconds"] > 0
    short = client.post("/v1/parse", **upload(encoded(array))).json()
    assert "labels" not in short and "confidence" not in short and short["picture"] == found["picture"]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_formats(client, parser, kind):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    data = encoded(pixels(), kind)
    answer = client.post("/v1/parse", headers={"Accept": "image/png"}, **upload(data))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    np.testing.assert_array_equal(decoded(answer.content), parser(io.BytesIO(data)).labels)


def test_a_picture_that_is_stored_sideways(client, parser):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(pixels(), "JPEG", exif=exif)
    answer = client.post("/v1/parse?labels=true", **upload(data)).json()
    assert (answer["width"], answer["height"]) == (48, 64)
    assert decoded(base64.b64decode(answer["labels"])).shape == (64, 48)


@pytest.mark.parametrize(("strength", "names"), [(0.5, True), (0, False), (1, False)])
def test_overlay(client, parser, strength, names):
    array = pixels(90, 120)
    answer = client.post(
        f"/v1/parse?what=overlay&strength={strength}&names={names}",
        headers={"Accept": "image/png"},
        **upload(encoded(array)),
    )
    np.testing.assert_array_equal(decoded(answer.content), np.asarray(parser(array).overlay(strength, names)))


def test_an_overlay_that_is_asked_for_is_a_picture(client, parser):
    """`curl …?what=overlay` says nothing of what it accepts."""
    array = pixels(90, 120)
    answer = client.post("/v1/parse?what=overlay", headers={"Accept": "*/*"}, **upload(encoded(array)))
    np.testing.assert_array_equal(decoded(answer.content), np.asarray(parser(array).overlay()))
    headers = {"Accept": "application/json"}
    assert client.post("/v1/parse?what=overlay", headers=headers, **upload(encoded(array))).json()["classes"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("image/png", "image/png"),
        ("image/*", "image/png"),
        ("image/png, application/json", "application/json"),
        ("image/png;q=0.9, application/json;q=0.5", "image/png"),
        ("image/png;q=0.4, */*;q=0.9", "application/json"),
        ("application/json;q=0, */*", "image/png"),
    ],
)
def test_the_accept_header_chooses(accept, kind):
    assert wanted(accept) == kind


@pytest.mark.parametrize("accept", ["text/html", "image/png;q=0", "image/png;q=often", ";;,"])
def test_other_kinds_are_not_acceptable(accept):
    with pytest.raises(Refusal) as refusal:
        wanted(accept)
    assert refusal.value.status == 406


def test_attention(client, parser):
    array = pixels(90, 120)
    expected = parser(array).attention(100, 12)
    answer = client.post("/v1/attention", **upload(encoded(array), x=100, y=12)).json()
    assert tuple(answer["patch"]) == expected.patch
    assert answer["gate"]["here"] == pytest.approx(expected.gate_here)
    for name in ("long", "middle", "gate"):
        values, told = getattr(expected, name), answer[name]
        drawn = decoded(base64.b64decode(told["map"])) / 255 * (told["high"] - told["low"]) + told["low"]
        wanted_map = expected.places.sample(values, *drawn.shape)
        inside = ~np.isnan(wanted_map)
        np.testing.assert_allclose(drawn[inside], wanted_map[inside], atol=(told["high"] - told["low"]) / 400)
        assert (told["min"], told["max"]) == pytest.approx((np.nanmin(values), np.nanmax(values)))


def test_attention_by_key_and_by_file_are_the_same(client):
    data = encoded(pixels(seed=5))
    key = client.post("/v1/parse", **upload(data)).json()["picture"]
    by_key = client.post("/v1/attention", **upload(picture=key, x=3, y=4))
    assert by_key.status_code == 200
    assert by_key.json() == client.post("/v1/attention", **upload(data, x=3, y=4)).json()


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"x": 64, "y": 0}, 422, "64 x 48"),
        ({"x": 0, "y": -1}, 422, "64 x 48"),
        ({"x": "ten", "y": 0}, 422, "whole number"),
        ({"y": 0}, 422, "'x'"),
        ({"x": "1" * 300, "y": 0}, 422, "longer"),
    ],
)
def test_attention_of_a_place_that_is_none(client, fields, status, words):
    answer = client.post("/v1/attention", **upload(encoded(pixels()), **fields))
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_attention_of_a_picture_that_is_not_kept(client):
    answer = client.post("/v1/attention", **upload(picture="0" * 64, x=1, y=1))
    assert answer.status_code == 404 and "send it" in answer.json()["error"]
    assert client.post("/v1/attention", **upload(x=1, y=1)).status_code == 422
    lacking = client.post("/v1/attention", **upload(encoded(pixels()), x=1))
    assert lacking.status_code == 422 and "no field 'y'" in lacking.json()["error"]


def test_several_models_answer_by_name(model, parser, tmp_path):
    """Each parses with its own network, keeps its own parses, and the first answers where none is named."""
    other = tiny_checkpoint(tmp_path / "other.safetensors", "basic-sa")
    array = pixels()
    with serving(model, str(other)) as running, running.client() as client:
        named = {"model": str(other)}
        assert client.get("/v1/model").json()["models"] == [str(model), str(other)]
        assert client.get("/v1/model", params=named).json()["name"] == str(other)
        for params, own in (({}, parser), (named, ordnet.load(other, device="cpu"))):
            answer = client.post("/v1/parse", params={**params, "labels": True}, **upload(encoded(array))).json()
            assert answer["model"] == params.get("model", str(model))
            np.testing.assert_array_equal(decoded(base64.b64decode(answer["labels"])), own(array).labels)
            shown = client.post("/v1/attention", params=params, **upload(picture=answer["picture"], x=5, y=6)).json()
            assert (shown["middle"] is None) == (own is not parser)  # the second has the long range alone
        key = client.post("/v1/parse", **upload(encoded(pixels(33, 44)))).json()["picture"]
        elsewhere = client.post("/v1/attention", params=named, **upload(picture=key, x=5, y=6))
        assert elsewhere.status_code == 404 and f"?model={model}" in elsewhere.json()["error"]
        refused = client.post("/v1/parse", params={"model": "none"}, **upload(encoded(array)))
        assert refused.status_code == 422 and "there are" in refused.json()["error"]


def test_model_and_health(client):
    about = client.get("/v1/model").json()
    assert [each["name"] for each in about["classes"]] == list(NAMES)
    assert about["explains"] is True
    assert about["limits"] == {"bytes": 2_000_000, "pixels": 100_000, "queue": 16, "seconds": 120.0}
    health = client.get("/healthz").json()
    assert health["status"] == "ok" and health["requests"] == 0 and health["version"] == ordnet.__version__


def test_documents_need_no_network(client):
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {"/v1/parse", "/v1/attention", "/v1/model", "/healthz"}
    page = client.get("/docs").text
    for path in document["paths"]:
        assert path in page
    for address in ("/", "/docs"):
        linked = re.findall(r'(?:src|href)="([^"]+)"', client.get(address).text)
        assert linked and not any("//" in each or each.startswith("/") for each in linked)
        assert all(client.get("/" + each).status_code == 200 for each in linked)


@pytest.mark.parametrize("address", ["/", "/page/main.js", "/docs", "/healthz", "/v1/model", "/v1/parse", "/nothing"])
def test_headers_keep_browsers_careful(client, address):
    headers = client.get(address).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_pages_of_other_sites_are_refused(client):
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ):
        for address in ("/v1/model", "/healthz", "/openapi.json"):
            answer = client.get(address, headers=headers)
            assert answer.status_code == 403 and "error" in answer.json()
        assert client.get("/", headers=headers).status_code == 200  # a link to the page may stand anywhere
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    assert client.get("/v1/model", headers={"Origin": own}).status_code == 200
    behind_a_proxy = {"Origin": "https://parser.example", "Sec-Fetch-Site": "same-origin"}
    assert client.get("/v1/model", headers=behind_a_proxy).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "192.168.1.9", "localhost.evil.example"]
)
def test_a_name_that_is_not_the_servers_own_is_refused(client, host):
    """A page that lets its name point here (DNS rebinding) asks under that name."""
    for address in ("/", "/v1/model", "/healthz"):
        answer = client.get(address, headers={"Host": host})
        assert answer.status_code == 403 and "--allowed-host" in answer.json()["error"]


BOUNDARY = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (upload(b"x" * 3_000_000), 413, "at most 2 MB"),
        (upload(encoded(np.zeros((400, 400, 3), np.uint8))), 413, "400 x 400"),
        (upload(b"I am no picture"), 415, "Known are JPEG"),
        (upload(b""), 415, "no picture"),
        (upload(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), 415, "no picture"),
        (upload(encoded(pixels())[:-900]), 415, "damaged"),
        ({"content": encoded(pixels()), "headers": {"Content-Type": "image/png"}}, 415, "multipart/form-data"),
        (upload(other=1), 422, "'image'"),
        ({"content": b"--b\r\nnonsense", "headers": BOUNDARY}, 422, "form"),
        ({"content": b"", "headers": BOUNDARY}, 422, "cut off"),
        ({**upload(encoded(pixels())), "params": {"strength": 2}}, 422, "strength"),
        ({**upload(encoded(pixels())), "params": {"what": "soup"}}, 422, "what"),
        ({**upload(encoded(pixels())), "params": {"lables": "true"}}, 422, "'lables'; there are labels, confidence"),
        (upload(picture="x" * 300), 422, "comes in the field 'image'"),
        ({**upload(encoded(pixels())), "headers": {"Accept": "text/html"}}, 406, "application/json"),
    ],
)
def test_refusals(client, request_, status, words):
    answer = client.post("/v1/parse", **request_)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]
    assert client.get("/healthz").json()["requests"] == 0


def test_a_field_that_comes_twice(client):
    part = ("image", ("a", encoded(pixels())))
    assert client.post("/v1/parse", files=[part, part]).status_code == 422


def test_wrong_ways(client):
    for answer, status in ((client.get("/nothing"), 404), (client.get("/v1/parse"), 405), (client.get("/page/x"), 404)):
        assert answer.status_code == status
        assert "error" in answer.json()


def test_bytes_are_counted_without_a_length(client):
    """The stream has no Content-Length; it ends only when the server has had enough."""

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 50_000

    answer = client.post("/v1/parse", content=body(), headers=BOUNDARY)
    assert answer.status_code == 413 and "at most" in answer.json()["error"]


def test_a_bomb_is_refused_by_its_header(client):
    """A PNG of 0.1 MB that would be 2.5 thousand million pixels."""
    bomb = bytearray(encoded(pixels()))
    bomb[16:24] = (50_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    answer = client.post("/v1/parse", **upload(bytes(bomb)))
    assert answer.status_code == 413 and "50000 x 50000" in answer.json()["error"]


def test_uploads_stay_in_memory(server, client):
    """Most of an upload has arrived: the server has no file open for it, not even one without a name."""
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(raw_request(b"x" * 1_900_000)[:1_800_000])
        while client.get("/healthz").json()["uploads"] != 1:
            time.sleep(0.02)
        assert client.get("/healthz").json()["requests"] == 0  # it has no place before it is complete
        files = [str(link.readlink()) for link in Path(f"/proc/{server.process.pid}/fd").iterdir()]
        assert not [
            name for name in files if name.startswith("/") and not name.startswith("/dev/") and name != str(server.log)
        ]
    while client.get("/healthz").json()["uploads"]:  # who goes away while sending makes room
        time.sleep(0.02)


def test_token(model):
    with serving(model, ORDNET_TOKEN="a secret") as server, server.client() as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "a secret"}):
            answer = client.post("/v1/parse", headers=headers, **upload(encoded(pixels())))
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "token" in answer.json()["error"]
        right = {"Authorization": "Bearer a secret"}
        assert client.post("/v1/parse", headers=right, **upload(encoded(pixels()))).status_code == 200
        assert client.get("/v1/model").status_code == 401
        assert client.get("/").status_code == client.get("/healthz").status_code == 200
        # in the middle of a computation
        large = raw_request(encoded(pixels(1500, 1500)), "Authorization: Bearer a secret")
        with socket.create_connection((httpx.URL(server.url).host, httpx.URL(server.url).port)) as connection:
            connection.sendall(large)
            while not client.get("/healthz").json()["working"]:
                time.sleep(0.02)
            assert server.stop() == 0
        assert "Traceback" not in server.log.read_text()


def command(*words: str, code: str = "") -> subprocess.CompletedProcess:
    program = (
        f"import sys; {code}\nsys.argv = ['ordnet', 'serve', *{list(words)!r}]\nimport ordnet.commands as c\nc.main()"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


def test_a_port_that_is_taken(server):
    port = str(httpx.URL(server.url).port)
    done = command("--port", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {port}" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("nowhere", "--port", "0"), "", "no model 'nowhere'"),
        # said before torch is loaded, which takes half a minute on a busy machine
        (("--host", "no.such.host.invalid"), "sys.modules['torch'] = None", "no host"),
        (("--token", " "), "", "token is empty"),
        ((), "sys.modules['uvicorn'] = None", "pip install 'ordnet[serve]'"),
    ],
)
def test_what_keeps_it_from_starting(words, code, expected):
    done = command(*words, code=code)
    assert done.returncode == 1
    assert expected in done.stderr and "Traceback" not in done.stderr


def test_the_collector_does_not_look_through_torch(model):
    """A full collection of all that torch brings takes a tenth of a second, in which nobody is answered."""
    left = "uvicorn.Server.run = lambda *_, **__: print(len(gc.get_objects()), 'of', gc.get_freeze_count())"
    done = command(str(model), "--port", "0", code=f"import gc, uvicorn; {left}")
    looked_at, frozen = map(int, re.search(r"(\d+) of (\d+)", done.stdout).groups())
    assert looked_at < frozen / 10


def test_an_open_host_without_token_is_warned_of(model):
    with serving(model, "--host", "0.0.0.0") as server:
        assert "warning" in server.log.read_text() and "ORDNET_TOKEN" in server.log.read_text()
        with server.client() as client:
            assert client.get("/healthz").status_code == 200
        assert server.stop(signal.SIGINT) == 0


def test_json_has_what_the_document_says(client):
    """The keys of real answers are those of the OpenAPI schemas."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    whole = client.post("/v1/parse?labels=true&confidence=true", **upload(encoded(pixels()))).json()
    attention = client.post("/v1/attention", **upload(encoded(pixels()), x=1, y=1)).json()
    assert set(whole) == set(schemas["ParseAnswer"]["properties"])
    assert set(attention) == set(schemas["AttentionAnswer"]["properties"])
    assert set(attention["gate"]) == set(schemas["GateAnswer"]["properties"])
    assert json.dumps(attention, allow_nan=False)
