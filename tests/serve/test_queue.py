"""Who waits, who is refused, who makes room: the server's queue and memory without the server."""

import asyncio
import threading

import httpx
import numpy as np
import pytest

import ordnet
from ordnet.serve.app import make_app
from ordnet.serve.engine import Engine, Stopped, inspect
from ordnet.serve.guard import Limits, Refusal
from ordnet.serve.queue import Stop, WorkQueue
from tests.serving import COLOURS, NAMES, encoded, pixels


def parser(variant="ordnet"):
    return ordnet.Parser(ordnet.build(variant, classes=4, backbone="tiny"), NAMES, COLOURS, device="cpu")


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
    picture = inspect(encoded(pixels()), Limits())
    with pytest.raises(Stopped):
        engine.parse(picture, False, stop)
    assert len(layers) == 5
    assert engine.parse(picture, False, Stop()).parse.labels.shape == (48, 64)


def test_last_parses_are_kept_up_to_a_number_of_pixels():
    made = parser()
    engine = Engine(made, 3 * 48 * 64)
    pictures = [inspect(encoded(pixels(seed=seed)), Limits()) for seed in range(5)]
    first = [engine.parse(picture, False, Stop()) for picture in pictures]
    assert [engine.known(picture.key, Stop()) is not None for picture in pictures] == [False, False, True, True, True]
    assert engine.parse(pictures[2], False, Stop()) is first[2]
    engine.parse(pictures[0], False, Stop())  # the least recent one goes: not the one just used
    assert engine.known(pictures[2].key, Stop()) is first[2] and engine.known(pictures[3].key, Stop()) is None
    with_confidence = engine.parse(pictures[2], True, Stop())
    assert with_confidence.parse.confidence is not None
    assert engine.parse(pictures[2], False, Stop()) is with_confidence
    large = inspect(encoded(np.zeros((200, 200, 3), np.uint8)), Limits())
    assert engine.parse(large, False, Stop()).parse.labels.shape == (200, 200)
    assert engine.known(large.key, Stop()) is None


def ask(app, method, address, **options) -> httpx.Response:
    async def main():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, address, **options)

    return asyncio.run(main())


def test_a_model_without_attention_says_so():
    app = make_app(parser("dilated-fcn"), "plain")
    assert ask(app, "GET", "/v1/model").json()["explains"] is False
    picture = {"image": ("a", encoded(pixels()))}
    answer = ask(app, "POST", "/v1/attention", files=picture, data={"x": 1, "y": 1})
    assert answer.status_code == 422 and "checkpoint" in answer.json()["error"]


def test_time_out_and_slow_uploads_are_answered():
    app = make_app(parser(), "tiny", Limits(seconds=0.0))
    answer = ask(app, "POST", "/v1/parse", files={"image": ("a", encoded(pixels()))})
    assert answer.status_code in (408, 504) and "error" in answer.json()


def test_mistakes_of_our_own_are_guarded_too():
    class Broken:
        classes, colours, protocol, explains = NAMES, COLOURS, "whole", False

        def __call__(self, picture, progress=None, confidence=False):
            raise ZeroDivisionError

    answer = ask(make_app(Broken(), "broken"), "POST", "/v1/parse", files={"image": ("a", encoded(pixels()))})
    assert answer.status_code == 500
    assert "log" in answer.json()["error"] and "x-frame-options" in answer.headers
