"""What the server computes: parse, attend; a few computations at a time, outside the event loop.

A bounded number of requests waits. When a client goes away, its computation is told to stop, ends soon, and makes room
for the next. The last parses are kept for clicks.
"""

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from ordnet.inference.parse import Parse
from ordnet.inference.parser import Parser
from ordnet.picture.overlay import Colour
from ordnet.serve.guard import Refusal, busy

T = TypeVar("T")
Stop = threading.Event
"""Set when nobody waits for a computation any more; it checks this now and then, and ends."""


class WorkQueue:
    """Places for requests, the threads that compute, and the one that decodes."""

    def __init__(self, queue: int, at_once: int = 1) -> None:
        """`queue` requests may wait besides the `at_once` that are computed."""
        self._places = queue + at_once
        self._taken = 0
        self._at_once = at_once
        self._computing = 0
        # one picture more than are computed: the next is decoded meanwhile, and no others are held in memory
        self._ahead = asyncio.Semaphore(at_once + 1)
        self._decoder = asyncio.Lock()
        self._devices = asyncio.Semaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, "ordnet-inference")
        self._decoding = ThreadPoolExecutor(1, "ordnet-decoding")
        self._running: set[asyncio.Task[object]] = set()
        self._lasts = 1.0

    @property
    def taken(self) -> int:
        """Requests under way."""
        return self._taken

    @property
    def working(self) -> bool:
        return self._computing > 0

    def refuse_if_full(self) -> None:
        if self._taken >= self._places:
            wait = max(1, math.ceil(self._taken * self._lasts / self._at_once))
            raise busy(f"{self._taken} requests are under way", wait)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Room for one request whose upload is complete, until it is answered."""
        self.refuse_if_full()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    async def run(
        self,
        work: Callable[[Stop], T],
        gone: Awaitable[None],
        seconds: float,
        decode: Callable[[], object] | None = None,
    ) -> T:
        """The result of `work` when its turn has come; refused after `seconds`, or when `gone` says that nobody waits.

        `decode` is called before it, while others are computed. Work that has begun is told to stop, and the next turn
        starts once it has.
        """
        turn: asyncio.Task[T] = asyncio.create_task(self._turn(work, decode))
        self._running.add(turn)
        turn.add_done_callback(self._running.discard)
        leaving = asyncio.ensure_future(gone)
        try:
            ended, _ = await asyncio.wait({turn, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if turn in ended:
                return turn.result()
            if leaving in ended:
                raise Refusal(499, "The client went away.")
            raise Refusal(504, "The answer took too long. Send a smaller picture, or try again when less is going on.")
        except asyncio.CancelledError:
            raise Refusal(503, "The server is ending.") from None
        finally:
            leaving.cancel()
            turn.cancel()

    async def _turn(self, work: Callable[[Stop], T], decode: Callable[[], object] | None) -> T:
        loop = asyncio.get_running_loop()
        async with self._ahead:
            if decode is not None:
                async with self._decoder:
                    await _to_its_end(loop.run_in_executor(self._decoding, decode))
            async with self._devices:
                stop, start = Stop(), time.monotonic()
                self._computing += 1
                try:
                    return await _to_its_end(loop.run_in_executor(self._threads, work, stop), stop)
                finally:
                    self._computing -= 1
                    # a mean over the last few, for Retry-After
                    self._lasts += 0.3 * (time.monotonic() - start - self._lasts)

    async def close(self) -> None:
        """Stop whatever runs and wait until it has ended."""
        for turn in list(self._running):
            turn.cancel()
        if self._running:
            await asyncio.wait(set(self._running))
        self._threads.shutdown()
        self._decoding.shutdown()


async def _to_its_end(future: "asyncio.Future[T]", stop: Stop | None = None) -> T:
    """The result of a thread's work. If cancelled, it is told to stop and waited for: threads cannot be killed."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait({future})
        future.exception()  # retrieved, since nobody else will
        raise


class AnyParser(Protocol):
    """What the server needs from a parser, whatever that runs on."""

    classes: tuple[str, ...]
    colours: tuple[Colour, ...]
    protocol: str

    @property
    def explains(self) -> bool: ...
    def __call__(self, picture: np.ndarray, *, progress: Any = None, confidence: bool = False) -> Parse: ...


class Stopped(Exception):
    """Nobody waits for this any more."""


@dataclass(frozen=True)
class Picture:
    """A decoded upload."""

    key: str
    """SHA-256 of its file."""
    pixels: np.ndarray
    """Upright RGB (H, W, 3) uint8."""
    seconds: float = 0.0
    """Seconds spent on decoding it."""


@dataclass(frozen=True)
class Parsed:
    """A parse that can be asked for again by its key."""

    key: str
    parse: Parse
    seconds: float
    """Seconds of decoding and parsing."""


class Engine:
    """A parser, and the last parses it made. Threads may share an engine, and engines may share threads."""

    _sharing = threading.Lock()
    _running = 0
    """Computations under way, of all engines: they share the process's threads."""

    def __init__(self, parser: AnyParser, keep: int, parses: int = 100) -> None:
        """`keep` bytes of the last parses stay in memory, but not more than `parses` of them."""
        self.parser = parser
        self._keep, self._parses = keep, parses
        self._last: OrderedDict[str, Parsed] = OrderedDict()
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._threads = torch.get_num_threads()
        self.at_once = min(2, self._threads) if getattr(parser, "device", torch.device("cpu")).type == "cpu" else 1
        """Two pictures with half of the threads each are done sooner than one after the other with all of them."""
        self.progress: float | None = None
        """How far the current computation is, 0 to 1; None where it is not known."""
        if isinstance(parser, Parser):
            # checked before every layer, so that a pass of seconds stops within milliseconds
            for layer in parser.net.modules():
                layer.register_forward_pre_hook(self._look)

    def parse(self, picture: Picture, confidence: bool, stop: Stop) -> Parsed:
        known = self.known(picture.key)
        if known and (known.parse.confidence is not None or not confidence):
            return known
        start = time.perf_counter()
        with self._computing(stop):
            self._look()
            # the first click after a parse should not have to run the network again
            looking: dict[str, bool] = {"attention": True} if isinstance(self.parser, Parser) else {}
            parse = self.parser(picture.pixels, progress=self._note, confidence=confidence, **looking)
        parsed = Parsed(picture.key, parse, picture.seconds + time.perf_counter() - start)
        self.remember(parsed)
        return parsed

    def knows(self, key: str, confidence: bool) -> bool:
        """Whether a parse of this picture is kept, with its confidence if that is wanted."""
        known = self.known(key)
        return known is not None and (known.parse.confidence is not None or not confidence)

    def known(self, key: str) -> Parsed | None:
        """A parse that is still kept."""
        with self._lock:
            if key in self._last:
                self._last.move_to_end(key)
            return self._last.get(key)

    def attend(self, parsed: Parsed, x: int, y: int, stop: Stop) -> Any:
        with self._computing(stop):
            found = parsed.parse.attention(x, y)
        self.remember(parsed)  # it may have grown
        return found

    def remember(self, parsed: Parsed) -> None:
        with self._lock:
            self._last.pop(parsed.key, None)
            self._last[parsed.key] = parsed
            while self._last and (
                len(self._last) > self._parses or sum(each.parse.nbytes for each in self._last.values()) > self._keep
            ):
                self._last.popitem(last=False)

    @contextmanager
    def _computing(self, stop: Stop) -> Iterator[None]:
        """Share the threads with other computations under way."""
        self._mine.stop = stop
        self._share(+1)
        try:
            yield
        finally:
            self.progress = None
            self._share(-1)

    def _share(self, change: int) -> None:
        with Engine._sharing:
            Engine._running += change
            torch.set_num_threads(max(1, self._threads // max(1, Engine._running)))

    def _note(self, done: int, total: int) -> None:
        self.progress = done / total
        self._look()

    def _look(self, *_: Any) -> None:
        stop = getattr(self._mine, "stop", None)
        if stop is not None and stop.is_set():
            raise Stopped


def hexadecimal(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)
