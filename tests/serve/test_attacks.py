"""Attacks that once took the server down, as they were made: each is answered, and nobody else notices."""

import contextlib
import logging
import os
import re
import resource
import socket
import struct
import threading
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from ordnet.serve import decoder as decoding
from ordnet.serve.decoder import Decoder, is_hostile_tiff
from ordnet.serve.guard import Hosts, Limits, Refusal
from ordnet.serve.run import QuietLog
from tests.serving import encoded, pixels, raw_request, serving, tiny_checkpoint

GOOD = encoded(pixels())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture(scope="module")
def decoder():
    made = Decoder(Limits())
    yield made
    made.close()


def honest(client) -> int:
    return client.post("/v1/parse", files={"image": ("a", GOOD)}).status_code


def strips_tiff(strips: int) -> bytes:
    """A TIFF that promises so many strips, with a table for all of them."""
    table = 8 + 2 + 12 * 8 + 4
    entries = [
        (256, 4, 1, 1), (257, 4, 1, strips), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1),
        (273, 4, strips, table), (278, 4, 1, 1), (279, 4, strips, table),
    ]  # fmt: skip
    directory = struct.pack("<H", 8) + b"".join(struct.pack("<HHII", *each) for each in entries) + b"\0" * 4
    return b"II*\0" + struct.pack("<I", 8) + directory + struct.pack("<I", 8) * strips


# ---- files ----------------------------------------------------------------------------------------------------


def test_a_tiff_with_millions_of_strips(model):
    """18 MB of strips, more of them than there are places: each is refused at once, and honest pictures are parsed."""
    bomb = strips_tiff(4_500_000)
    assert 18_000_000 < len(bomb) < 20_000_000
    with serving(model) as server, server.client() as client:
        assert honest(client) == 200
        before = server.memory()
        statuses = []
        threads = [
            threading.Thread(
                target=lambda: statuses.append(
                    httpx.post(f"{server.url}/v1/parse", files={"image": ("a", bomb)}, timeout=60).status_code
                )
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert all(honest(client) == 200 for _ in range(5))
        for thread in threads:
            thread.join()
        assert set(statuses) <= {415, 503}
        assert server.memory() - before < 150
        assert "Traceback" not in server.log.read_text()


def test_directories_of_honest_and_hostile_tiffs():
    assert is_hostile_tiff(strips_tiff(100_000))
    assert not is_hostile_tiff(strips_tiff(5_000))
    for kind in ("raw", "tiff_lzw", "tiff_adobe_deflate"):
        assert not is_hostile_tiff(encoded(pixels(300, 200), "TIFF", compression=kind))
    big = bytearray(b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 1) + struct.pack("<HHQQ", 273, 16, 10**7, 0))
    assert is_hostile_tiff(bytes(big))
    for cut in (b"", b"II", b"II*\0", b"MM\0*" + b"\xff" * 12, bytes(big[:20])):
        assert not is_hostile_tiff(cut)


def test_the_decoder_gives_what_pillow_gives(decoder):
    for kind in ("PNG", "BMP", "TIFF", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        np.testing.assert_array_equal(decoder.decode([encoded(pixels(40, 30), kind, **options)]), pixels(40, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoder.decode([encoded(pixels(40, 30), "JPEG", exif=exif)]).shape == (30, 40, 3)


def test_a_picture_that_takes_too_long_ends_its_decoder_and_nothing_else(decoder, monkeypatch):
    decoder.decode([GOOD])
    child = decoder._child
    monkeypatch.setattr(decoding, "SECONDS", -10.0)
    with pytest.raises(Refusal, match="too long") as refusal:
        decoder.decode([encoded(np.random.default_rng(0).integers(0, 256, (2000, 2000, 3), dtype=np.uint8))])
    assert refusal.value.status == 422
    assert child.poll() is not None
    monkeypatch.undo()
    assert decoder.decode([GOOD]).shape == (48, 64, 3)


def test_a_decoder_that_dies_costs_one_picture(decoder):
    decoder.decode([GOOD])
    decoder._child.kill()
    decoder._child.wait()
    assert decoder.decode([GOOD]).shape == (48, 64, 3)


def test_a_decoder_has_no_more_memory_than_its_pictures_need():
    """It cannot write files either, and refuses by the header what has more pixels than are taken."""
    small = Decoder(Limits(bytes=1_000_000, pixels=1_000_000))
    try:
        assert small.decode([GOOD]).shape == (48, 64, 3)
        most, _ = resource.prlimit(small._child.pid, resource.RLIMIT_AS)
        assert 0 < most < 2_000_000_000
        assert resource.prlimit(small._child.pid, resource.RLIMIT_FSIZE) == (0, 0)
        with pytest.raises(Refusal) as refusal:
            small.decode([encoded(np.zeros((1001, 1000, 3), np.uint8))])
        assert refusal.value.status == 413
    finally:
        small.close()


def test_memory_for_pixels_is_taken_as_they_come():
    """Filling it beforehand would hold Python's lock: 187 ms for 25 megapixels in which nobody was answered."""
    size = 400_000_000
    receiving, sending = os.pipe()
    try:
        os.set_blocking(receiving, False)
        before = most_resident_bytes()
        with pytest.raises(TimeoutError):
            decoding._read(receiving, size, time.monotonic() + 0.2)
        os.write(sending, b"abc")
        np.testing.assert_array_equal(decoding._read(receiving, 3, time.monotonic() + 5), list(b"abc"))
        assert most_resident_bytes() - before < size / 4
    finally:
        os.close(receiving)
        os.close(sending)


def most_resident_bytes() -> int:
    """The most memory this process has had; it never falls."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- connections ----------------------------------------------------------------------------------------------


def connect(server) -> socket.socket:
    address = httpx.URL(server.url)
    return socket.create_connection((address.host, address.port), timeout=30)


def test_slow_uploads_take_no_place(model):
    """More uploads of a byte a second than there are places: every honest request is answered, the slow ones end."""
    with serving(model, "--queue", "2") as server, server.client() as client:
        slow = [connect(server) for _ in range(10)]
        for connection in slow:
            connection.sendall(raw_request(b"x" * 100_000)[:300])
        while client.get("/healthz").json()["uploads"] < 10:
            time.sleep(0.02)
        assert [honest(client) for _ in range(30)] == [200] * 30
        over = time.monotonic() + 30
        while client.get("/healthz").json()["uploads"] and time.monotonic() < over:
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.send(b"x")
            time.sleep(0.3)
        assert client.get("/healthz").json()["uploads"] == 0
        first = slow[0].recv(100)
        assert b" 408 " in first
        for connection in slow:
            connection.close()


def test_idle_connections_keep_nobody_out(model):
    """300 connections that say nothing, 256 file descriptors: health answers, and the log says nothing."""
    with serving(model, files=256) as server:
        idle = []
        for _ in range(300):
            try:
                idle.append(connect(server))
            except OSError:
                break
        with server.client() as client:
            for _ in range(10):
                assert client.get("/healthz").status_code == 200
            assert honest(client) == 200
        for connection in idle:
            connection.close()
        with server.client() as client:
            assert client.get("/healthz").status_code == 200
        assert len(server.log.read_text()) < 10_000


def test_headers_have_a_deadline(model):
    with serving(model) as server:
        connection = connect(server)
        connection.settimeout(1)
        ended, over = False, time.monotonic() + 25
        while not ended and time.monotonic() < over:
            try:
                connection.sendall(b"X")  # a header that never ends
                time.sleep(0.5)
            except OSError:
                ended = True
        assert ended


def test_a_flood_of_messages_is_cut_short():
    log = logging.getLogger("a test of ordnet")
    log.addFilter(QuietLog(most=5, seconds=0.2))
    shown = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())
    log.addHandler(handler)
    for number in range(1000):
        log.warning("no %d", number)
    assert len(shown) == 5
    time.sleep(0.25)
    log.warning("last")
    assert shown[-1] == "(995 messages were left out) last"


def test_forms_that_are_none_do_not_fill_the_log(model):
    """The parser of forms had a word to say about each, past the bound on messages."""
    with serving(model) as server, server.client() as client:
        for _ in range(60):
            kind = {"Content-Type": "multipart/form-data; boundary=x"}
            assert client.post("/v1/parse", content=b"--y\r\n", headers=kind).status_code == 422
        assert server.log.read_text().count("\n") <= 20


# ---- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "allowed", "host", "answered"),
    [
        ("127.0.0.1", [], "127.0.0.1:8000", True),
        ("127.0.0.1", [], "localhost:8000", True),
        ("127.0.0.1", [], "LOCALHOST.", True),
        ("127.0.0.1", [], "[::1]:8000", True),
        ("127.0.0.1", [], "192.168.0.5:8000", False),
        ("127.0.0.1", [], "evil.example", False),
        ("127.0.0.1", ["parser.example"], "parser.example:443", True),
        ("127.0.0.1", ["*"], "evil.example", True),
        ("0.0.0.0", [], "192.168.0.5:8000", True),
        ("0.0.0.0", [], "evil.example", False),
        ("0.0.0.0", [], socket.gethostname(), True),
    ],
)
def test_names_that_are_answered(bound, allowed, host, answered):
    assert Hosts(bound, allowed).allow(host) is answered


# ---- forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (b"X: " + b"a" * 1_000_000 + b"\r\n\r\n", r"longer than 4,096|cannot be read"),
        (b"X" * 1_000_000 + b": a\r\n\r\n", r"longer than 4,096|cannot be read"),
        (
            b'Content-Disposition: form-data; name="' + b"\\" * 50_000 + b'"\r\n\r\n',
            r"longer than 4,096|cannot be read",
        ),
        (b"X: a\r\n" * 100_000 + b"\r\n", r"more than 16 headers|cannot be read"),
    ],
)
def test_headers_of_a_form_are_bounded(model, part, says):
    """They are read where nobody else is answered meanwhile."""
    with serving(model) as server, server.client() as client:
        body = b"--b\r\n" + part + b"x\r\n--b--\r\n"
        answer = client.post("/v1/parse", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
        assert answer.status_code == 422 and re.search(says, answer.json()["error"])
        assert honest(client) == 200
