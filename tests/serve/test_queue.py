"""Who waits, who is refused, who makes room: the server's queue and memory without the server."""

import asyncio
import hashlib
import socket
import threading

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.requests import Request

import ordnet
from ordnet.serve.app import make_app
from ordnet.serve.engine import Engine, Picture, Stop, Stopped, WorkQueue
from ordnet.serve.guard import Limits, Refusal
from ordnet.serve.run import Server, bound
from ordnet.serve.upload import Uploads
from tests.serving import COLOURS, NAMES, encoded, pixels


def parser(variant="ordnet"):
    return ordnet.Parser(ordnet.build(variant, classes=4, backbone="tiny"), NAMES, COLOURS, device="cpu")


def picture_of(array: np.ndarray) -> Picture:
    return Picture(hashlib.sha256(array.tobytes()).hexdigest(), array)


async def forever() -> None:
    await asyncio.Event().wait()


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def busy(entered: threading.Event):
    """Work that goes on until it is told to stop."""

    def work(stop: Stop) -> str:
        entered.set()
        assert stop.wait(30)
        raise Stopped

    return work


def test_places_are_bounded():
    turns = WorkQueue(1)
    with turns.place(), turns.place():
        with pytest.raises(Refusal) as refusal, turns.place():
            pass
        assert refusal.value.status == 503
        assert int(refusal.value.headers["Retry-After"]) >= 1
    assert turns.taken == 0


def test_one_at_a_time_in_order():
    order, inside = [], []

    def work(number):
        def run(stop):
            inside.append(number)
            assert inside == [number]
            order.append(number)
            inside.remove(number)
            return number

        return run

    async def main():
        turns = WorkQueue(8)
        results = await asyncio.gather(*(turns.run(work(number), forever(), 30) for number in range(6)))
        await turns.close()
        return results

    assert asyncio.run(main()) == order == list(range(6))


def test_who_goes_away_is_stopped_and_the_next_one_runs():
    async def main():
        turns, left, entered = WorkQueue(8), asyncio.Event(), threading.Event()
        first = asyncio.create_task(turns.run(busy(entered), left.wait(), 30))
        await until(entered.is_set)
        waiting_left = asyncio.Event()
        second = asyncio.create_task(turns.run(lambda stop: pytest.fail("it had gone"), waiting_left.wait(), 30))
        third = asyncio.create_task(turns.run(lambda stop: "third", forever(), 30))
        await asyncio.sleep(0.01)
        waiting_left.set()  # goes away while it waits: the first still runs
        with pytest.raises(Refusal, match="went away"):
            await second
        assert not first.done()
        left.set()
        with pytest.raises(Refusal, match="went away"):
            await first
        assert await third == "third"
        assert not turns.working

    asyncio.run(main())


def test_time_out_stops_the_work():
    async def main():
        turns, entered = WorkQueue(8), threading.Event()
        with pytest.raises(Refusal) as refusal:
            await turns.run(busy(entered), forever(), 0.05)
        assert refusal.value.status == 504
        assert await turns.run(lambda stop: "next", forever(), 30) == "next"

    asyncio.run(main())


def test_failures_reach_the_one_who_asked():
    def fails(stop):
        raise KeyError("mine")

    async def main():
        turns = WorkQueue(0)
        with pytest.raises(KeyError, match="mine"):
            await turns.run(fails, forever(), 30)
        assert await turns.run(lambda stop: 1, forever(), 30) == 1

    asyncio.run(main())


def test_a_pass_stops_between_layers():
    """The stop comes while the network runs: the pass ends, and the same picture can be parsed afterwards."""
    made = parser()
    engine, stop, layers = Engine(made, 10**6), Stop(), []
    for layer in made.net.modules():
        layer.register_forward_hook(lambda *_: (layers.append(1), stop.set() if len(layers) == 5 else None)[1])
    picture = picture_of(pixels())
    with pytest.raises(Stopped):
        engine.parse(picture, False, stop)
    assert len(layers) == 5
    assert engine.parse(picture, False, Stop()).parse.labels.shape == (48, 64)


def test_last_parses_are_kept_up_to_a_number_of_bytes():
    made = parser()
    size = made(pixels(), attention=True).nbytes
    assert size > 4 * 48 * 64  # the picture, its labels, and what a click needs
    engine = Engine(made, 3 * size + size // 2)
    pictures = [picture_of(pixels(seed=seed)) for seed in range(5)]
    first = [engine.parse(picture, False, Stop()) for picture in pictures]
    assert [picture.key in engine._last for picture in pictures] == [False, False, True, True, True]
    assert engine.parse(pictures[2], False, Stop()) is first[2]
    engine.parse(pictures[0], False, Stop())  # the least recent one goes: not the one just used
    assert engine.known(pictures[2].key) is first[2] and engine.known(pictures[3].key) is None
    with_confidence = engine.parse(pictures[2], True, Stop())
    assert with_confidence.parse.confidence is not None
    assert engine.parse(pictures[2], False, Stop()) is with_confidence
    large = picture_of(np.zeros((200, 200, 3), np.uint8))
    assert engine.parse(large, False, Stop()).parse.labels.shape == (200, 200)
    assert engine.known(large.key) is None


def test_last_parses_are_kept_up_to_a_number_of_them():
    """Pictures of one pixel weigh next to nothing, and must not be gathered without end all the same."""
    engine = Engine(parser(), 10**9, parses=7)
    for red in range(20):
        engine.parse(picture_of(np.full((1, 1, 3), red, np.uint8)), False, Stop())
    assert len(engine._last) == 7


def test_a_click_counts_for_what_is_kept():
    made = parser()
    engine = Engine(made, 10**9)
    parsed = engine.parse(picture_of(pixels()), False, Stop())
    assert not parsed.parse.__dict__.get("_explainer")  # a parse itself is not slowed down by it
    before = parsed.parse.nbytes
    found = engine.attend(parsed, 3, 4, Stop())
    np.testing.assert_allclose(found.long, made(pixels()).attention(3, 4).long, rtol=1e-4, atol=1e-6)
    assert parsed.parse.nbytes >= before - 48 * 64 * 64


def test_several_compute_at_once_and_share_the_threads():
    async def main():
        turns, inside, both = WorkQueue(8, at_once=2), [], threading.Event()

        def work(stop):
            inside.append(1)
            if len(inside) == 2:
                both.set()
            assert both.wait(30)
            return len(inside)

        assert await asyncio.gather(*(turns.run(work, forever(), 30) for _ in range(2))) == [2, 2]
        await turns.close()

    asyncio.run(main())


def test_the_next_picture_is_decoded_meanwhile_but_not_a_third():
    async def main():
        turns, decoded, go = WorkQueue(8), [], threading.Event()
        tasks = [
            asyncio.create_task(
                turns.run(lambda stop: go.wait(30), forever(), 30, lambda number=number: decoded.append(number))
            )
            for number in range(4)
        ]
        await until(lambda: len(decoded) == 2)
        await asyncio.sleep(0.05)
        assert decoded == [0, 1]
        go.set()
        await asyncio.gather(*tasks)
        assert decoded == [0, 1, 2, 3]
        await turns.close()

    asyncio.run(main())


def ask(app, method, address, **options) -> httpx.Response:
    async def main():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, address, **options)

    return asyncio.run(main())


def test_a_model_without_attention_says_so():
    app = make_app({"plain": parser("dilated-fcn")})
    assert ask(app, "GET", "/v1/model").json()["explains"] is False
    picture = {"image": ("a", encoded(pixels()))}
    answer = ask(app, "POST", "/v1/attention", files=picture, data={"x": 1, "y": 1})
    assert answer.status_code == 422 and "checkpoint" in answer.json()["error"]


def test_time_out_and_slow_uploads_are_answered():
    app = make_app({"tiny": parser()}, Limits(seconds=0.0))
    answer = ask(app, "POST", "/v1/parse", files={"image": ("a", encoded(pixels()))})
    assert answer.status_code in (408, 504) and "error" in answer.json()


def test_mistakes_of_our_own_are_guarded_too():
    class Broken:
        classes, colours, protocol, explains = NAMES, COLOURS, "whole", False

        def __call__(self, picture, progress=None, confidence=False):
            raise ZeroDivisionError

    answer = ask(make_app({"broken": Broken()}), "POST", "/v1/parse", files={"image": ("a", encoded(pixels()))})
    assert answer.status_code == 500
    assert "log" in answer.json()["error"] and "x-frame-options" in answer.headers


def test_the_address_is_said_once_it_is_answered_from(capsys):
    """Whoever asked before would wait for as long as the server takes to start."""
    before = []

    async def app(scope, receive, send):
        await receive()
        before.append(capsys.readouterr().out)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def start():
        server = Server(uvicorn.Config(app, lifespan="on", log_level="warning"), "here")
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        listener = bound("127.0.0.1", 0)
        await server.startup([listener])
        with socket.create_connection(listener.getsockname()):
            await server.shutdown([listener])

    asyncio.run(start())
    assert before == [""]
    assert capsys.readouterr().out == "here\n"


def test_a_file_of_any_chunks_is_the_file():
    """Pieces are neither as many as the chunks nor as large as the file."""
    data = np.random.default_rng(0).bytes(300_000)
    body = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + data + b"\r\n--b--\r\n"

    async def read(chunk):
        coming = iter(range(0, len(body), chunk))

        async def receive():
            start = next(coming)
            more = start + chunk < len(body)
            return {"type": "http.request", "body": body[start : start + chunk], "more_body": more}

        headers = [(b"content-type", b"multipart/form-data; boundary=b")]
        return await Uploads(Limits()).read(Request({"type": "http", "method": "POST", "headers": headers}, receive))

    for chunk in (7, 65_536, len(body)):
        upload = asyncio.run(read(chunk))
        assert b"".join(upload.picture) == data
        assert upload.key == hashlib.sha256(data).hexdigest()
        assert len(upload.picture) <= 6
