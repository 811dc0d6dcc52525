"""Whatever is sent, the server answers in plain words, lives on, and forgets it."""

import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import features

from tests.serving import encoded, pixels, raw_request, serving, tiny_checkpoint

KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(("AVIF",) if features.check("avif") else ()))
GOOD = {kind: encoded(pixels(), kind) for kind in KINDS}
GOOD["progressive JPEG"] = encoded(pixels(), "JPEG", progressive=True)
GOOD["packed TIFF"] = encoded(pixels(), "TIFF", compression="tiff_lzw")
ANSWERS = {200, 413, 415, 422}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny.safetensors")
    limits = ("--max-megabytes", "1", "--max-megapixels", "0.2", "--queue", "4", "--keep", "0.05")
    with serving(model, *limits) as running:
        yield running


def giant_png(width: int, height: int) -> bytes:
    """Valid in all but the promise of its header."""
    data = bytearray(GOOD["PNG"])
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


@st.composite
def damaged(draw) -> bytes:
    """A file of a known kind with a part cut off, turned over, doubled or exchanged."""
    data = bytearray(GOOD[draw(st.sampled_from(sorted(GOOD)))])
    for _ in range(draw(st.integers(1, 4))):
        # headers are where the harm is
        place = draw(st.integers(0, min(len(data) - 1, draw(st.sampled_from([40, 400, 10**6])))))
        what = draw(st.sampled_from(["cut", "flip", "double", "exchange"]))
        if what == "cut":
            del data[max(place, 1) :]
        elif what == "flip":
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif what == "double":
            data[place:place] = data[place : place + draw(st.integers(1, 200))]
        else:
            new = draw(st.binary(max_size=8))
            data[place : place + len(new)] = new
    return bytes(data)


hostile = st.one_of(
    damaged(),
    damaged(),
    st.binary(max_size=300),
    st.builds(giant_png, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.builds(lambda kind, rest: GOOD[kind][:12] + rest, st.sampled_from(KINDS), st.binary(max_size=200)),
    st.sampled_from([b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"PK\x03\x04", b"\x00" * 5000]),
)


def test_hostile_uploads(server):
    with server.client() as client:

        def send(data: bytes) -> httpx.Response:
            return client.post("/v1/parse?confidence=true", files={"image": ("a", data)})

        @settings(max_examples=200, suppress_health_check=list(HealthCheck))
        @given(hostile)
        def run(data):
            answer = send(data)
            assert answer.status_code in ANSWERS
            if answer.status_code != 200:
                assert list(answer.json()) == ["error"]

        for data in GOOD.values():  # every decoder has its own memory from now on
            assert send(data).status_code == 200
        before = server.memory()
        run()
        assert all(send(data).status_code == 200 for data in GOOD.values())
        assert client.get("/healthz").json()["requests"] == 0
    assert server.memory() - before < 40
    assert "Traceback" not in server.log.read_text()


FRAGMENTS = (
    b"--b", b"--b--", b"\r\n", b"\r\n\r\n", b"Content-Disposition: form-data; name=", b'"image"',
    b"image; filename=\xff", b"x" * 300, b"\x00", b": ", GOOD["GIF"],
)  # fmt: skip
FORMS = (
    "multipart/form-data; boundary=b", "multipart/form-data", "multipart/form-data; boundary=" + "b" * 300,
    'multipart/form-data; boundary="', "text/plain", "",
)  # fmt: skip


def test_hostile_forms(server):
    with server.client() as client:

        @settings(max_examples=100, suppress_health_check=list(HealthCheck))
        @given(
            st.lists(st.sampled_from(FRAGMENTS), max_size=12),
            st.sampled_from(FORMS),
            st.sampled_from(["/v1/parse", "/v1/attention"]),
        )
        def run(parts, kind, address):
            answer = client.post(address, content=b"".join(parts), headers={"Content-Type": kind})
            assert answer.status_code in ANSWERS

        run()
    assert "Traceback" not in server.log.read_text()


def test_fifty_at_once(server):
    """Each is answered or told to come back; health answers all the while."""
    data = [encoded(pixels(440, 440, seed), "BMP") for seed in range(50)]
    over, health = threading.Event(), []

    def watch():
        with server.client() as client:
            while not over.is_set():
                health.append(client.get("/healthz").json()["status"])
                time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with server.client(limits=httpx.Limits(max_connections=None)) as client, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda one: client.post("/v1/parse", files={"image": ("a", one)}), data))
    over.set()
    watcher.join()
    assert {answer.status_code for answer in answers} <= {200, 503}
    done = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert done and refused
    assert all(int(answer.headers["retry-after"]) >= 1 and "busy" in answer.json()["error"] for answer in refused)
    assert health and set(health) == {"ok"}


def test_clients_that_go_away_free_their_places(server):
    """As many as there are places send a picture and leave; the next one is answered."""
    address = httpx.URL(server.url)
    with server.client() as client:
        for turn in range(3):
            connections = [socket.create_connection((address.host, address.port)) for _ in range(5)]
            for number, connection in enumerate(connections):
                connection.sendall(raw_request(encoded(pixels(440, 440, 100 + 5 * turn + number))))
            # on a slow turn all five may be done before anybody asks
            asked = time.monotonic()
            while not client.get("/healthz").json()["working"] and time.monotonic() < asked + 5:
                time.sleep(0.005)
            for connection in connections:
                connection.close()
        while client.get("/healthz").json()["requests"]:
            time.sleep(0.02)
        assert client.post("/v1/parse", files={"image": ("a", GOOD["PNG"])}).status_code == 200
    assert "Traceback" not in server.log.read_text()


def test_requests_that_are_no_http(server):
    address = httpx.URL(server.url)
    for nonsense in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/parse HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(nonsense)
            connection.settimeout(10)
            connection.recv(100)
    with server.client() as client:
        assert client.get("/healthz").status_code == 200
