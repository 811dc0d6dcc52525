"""Requests to stop: SIGTERM and Ctrl-C ask a run to save and end; a second Ctrl-C ends it at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ordnet.errors import OrdnetError


class StopRequest:
    """True once somebody has asked."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class Stopped(OrdnetError):
    """The run was asked to end, and has saved its state."""

    def __init__(self, message: str, request: StopRequest) -> None:
        super().__init__(message)
        # as a shell would report it; another process may have been the one that was asked
        self.exit_code = 128 + (request.signal or signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Collect requests while the block is open. Outside the main thread (a notebook's worker) there are none."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
