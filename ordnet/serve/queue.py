"""One computation at a time, outside the event loop; a bounded number of requests waits.

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

from ordnet.serve.guard import Refusal

T = TypeVar("T")
Stop = threading.Event
"""Set when nobody waits for a computation any more; it looks at it now and then, and ends."""


class WorkQueue:
    """Places for requests, and the one thread that computes."""

    def __init__(self, queue: int) -> None:
        """`queue` requests may be under way beside the one that is computed."""
        self._queue = queue
        self._taken = 0
        self._device = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "ordnet-inference")
        self._running: set[asyncio.Task[object]] = set()
        self._lasts = 1.0

    @property
    def taken(self) -> int:
        """Requests under way."""
        return self._taken

    @property
    def working(self) -> bool:
        return self._device.locked()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Room for one request, from before its upload is read until it is answered: so memory is bounded too."""
        if self._taken > self._queue:
            wait = max(1, math.ceil(self._taken * self._lasts))
            message = f"The server is busy: {self._taken} requests are under way. Try again in {wait} seconds."
            raise Refusal(503, message, {"Retry-After": str(wait)})
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    async def run(self, work: Callable[[Stop], T], gone: Awaitable[None], seconds: float) -> T:
        """The result of `work` when its turn has come; refused after `seconds`, or when `gone` says that nobody waits.

        Work that was begun is told to stop. The next turn starts when it has.
        """
        turn: asyncio.Task[T] = asyncio.create_task(self._turn(work))
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

    async def _turn(self, work: Callable[[Stop], T]) -> T:
        async with self._device:
            stop = Stop()
            start = time.monotonic()
            future = asyncio.get_running_loop().run_in_executor(self._thread, work, stop)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait({future})
                future.exception()  # nobody is there to hear of it
                raise
            finally:
                # a mean over the last few, for Retry-After
                self._lasts += 0.3 * (time.monotonic() - start - self._lasts)

    async def close(self) -> None:
        """Stop whatever runs and wait until it has ended."""
        for turn in list(self._running):
            turn.cancel()
        if self._running:
            await asyncio.wait(set(self._running))
        self._thread.shutdown()
