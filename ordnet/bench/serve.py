"""The server under a small real load: three processes, one that serves, one that keeps it busy, one that measures."""

import http.client
import io
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from ordnet.bench.measure import Measurement
from ordnet.data.pictures import open_rgb, sample_picture
from ordnet.errors import OrdnetError
from ordnet.progress import progress

_TURNS = 20
"""Requests of each kind when nothing else is going on."""


def compare_requests(model: str, height: int, width: int, clients: int, seconds: float) -> list[Measurement]:
    """Each kind of request alone, then parses by `clients` at once for `seconds` with health asked all the while."""
    picture = sample_jpeg(height, width)
    with progress() as bar, serving(model) as server:
        address = server.address
        task = bar.add_task("alone", total=None)
        key = json.loads(_parse(address, picture, 0))["picture"]
        rows = [
            row("health, alone", [timed(partial(health, address)) for _ in range(_TURNS)]),
            row("parse, alone", [timed(partial(_parse, address, picture, number + 1)) for number in range(_TURNS)]),
        ]
        _parse(address, picture, 0)
        clicks = [timed(partial(_attention, address, key, step, step)) for step in range(_TURNS + 1)]
        rows += [row("attention, first click", clicks[:1]), row("attention, next clicks", clicks[1:])]
        bar.update(task, description=f"{clients} clients for {seconds:g} s")
        rows += _under_load(address, picture, clients, seconds)
    return rows


def _under_load(address: str, picture: bytes, clients: int, seconds: float) -> list[Measurement]:
    """Load comes from a process of its own, so that it does not delay the one that measures."""
    command = [sys.executable, "-m", "ordnet.bench.serve", address, str(clients), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as load:
        taken: list[float] = []
        assert load.stdin and load.stdout
        load.stdin.write(picture)
        load.stdin.close()
        while load.poll() is None:
            taken.append(timed(partial(health, address)))
            time.sleep(0.02)
        answers: list[tuple[int, float]] = json.loads(load.stdout.read())
    done = [seconds_taken for status, seconds_taken in answers if status == 200]
    refused = sum(status == 503 for status, _ in answers)
    if not done:
        raise OrdnetError(f"no picture was parsed within {seconds:g} s; give --seconds more, or a smaller --size")
    name = f"{clients} clients"
    return [
        row(f"health, {name}", taken),
        row(f"parse, {name}", done, refused=refused, per_second=len(done) / seconds),
    ]


def row(name: str, taken: list[float], **extra: Any) -> Measurement:
    ordered = sorted(taken)
    slow = ordered[int(0.95 * (len(ordered) - 1))]
    figures = {"requests": len(ordered), "p95_ms": 1000 * slow, "worst_ms": 1000 * ordered[-1], **extra}
    return Measurement(name, statistics.median(ordered), extra=figures)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def sample_jpeg(height: int, width: int) -> bytes:
    file = io.BytesIO()
    open_rgb(sample_picture()).resize((width, height), Image.Resampling.LANCZOS).save(file, "JPEG", quality=90)
    return file.getvalue()


@dataclass(frozen=True)
class Server:
    """A running server."""

    address: str
    """Its host and port."""
    process: "subprocess.Popen[str]"


@contextmanager
def serving(model: str) -> Iterator[Server]:
    """`ordnet serve` in a process of its own, until the block ends."""
    command = [sys.executable, "-m", "ordnet", "serve", model, "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "ORDNET_TOKEN"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout
            found = re.search(r"http://([\w.:]+)", server.stdout.readline())
            if not found:
                raise OrdnetError("the server did not start; ordnet serve says why")
            yield Server(found[1], server)
        finally:
            server.terminate()


def health(address: str) -> bytes:
    return _send(address, "GET", "/healthz", b"", {})[1]


def _parse(address: str, picture: bytes, number: int) -> bytes:
    """Upload a picture that the server does not know yet: `number` follows the end of the JPEG, where it is ignored."""
    return _checked(form(address, "/v1/parse", {"image": picture + number.to_bytes(4, "big")}))


def _attention(address: str, key: str, x: int, y: int) -> bytes:
    return _checked(form(address, "/v1/attention", {"picture": key.encode(), "x": b"%d" % x, "y": b"%d" % y}))


def _checked(answer: tuple[int, bytes]) -> bytes:
    if answer[0] != 200:
        raise OrdnetError(f"the server answered with {answer[0]}: {answer[1].decode()}")
    return answer[1]


def form(address: str, path: str, fields: dict[str, bytes]) -> tuple[int, bytes]:
    parts = [b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value)
             for name, value in fields.items()]  # fmt: skip
    body = b"".join(parts) + b"--b--\r\n"
    return _send(address, "POST", path, body, {"Content-Type": "multipart/form-data; boundary=b"})


def _send(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=300)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _load(address: str, clients: int, seconds: float, picture: bytes) -> list[tuple[int, float]]:
    """Status and seconds of every parse; a client that is refused tries again a little later."""
    answers: list[tuple[int, float]] = []
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        turn = 0
        while time.monotonic() < end:
            turn += 1
            start = time.perf_counter()
            fresh = picture + (1_000_000 * (number + 1) + turn).to_bytes(4, "big")
            status, _ = form(address, "/v1/parse", {"image": fresh})
            answers.append((status, time.perf_counter() - start))
            if status != 200:
                time.sleep(0.1)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


if __name__ == "__main__":
    print(json.dumps(_load(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.stdin.buffer.read())))
