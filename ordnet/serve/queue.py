"""A few computations at a time, outside the event loop; a bounded number of requests waits.

A client that goes away makes room for the next.
"""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from ordnet.serve.limits import Refusal, busy

T = TypeVar("T")
Stop = threading.Event
"""Set when nobody waits for a computation any more; it looks at it now and then, and ends."""


class WorkQueue:
    """Places for requests, the threads that compute, and the one that decodes."""

    def __init__(self, queue: int, at_once: int = 1) -> None:
        """`queue` requests may wait beside the `at_once` that are computed."""
        self._places = queue + at_once
        self._taken = 0
        self._at_once = at_once
        self._computing = 0
        # one picture more than are computed: the next is decoded meanwhile, and no further ones lie in memory
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

        `decode` is called before it, while others are computed. Work that was begun is told to stop. The next turn
        starts when it has.
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
    """The result of a thread's work. Cancelled, it is told to stop, and waited for: threads cannot be ended."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop.set()
        await asyncio.wait({future})
        future.exception()  # nobody is there to hear of it
        raise
