"""Starting the server: its socket, a warning if others can reach it, its connections, serving until a signal comes.

Connections are bounded in number, in all and per address, and ended where nothing happens. uvicorn has no deadline for
a request's headers, for a client that does not read its answer, or for the rest of a body that nobody wants. Here a
connection without a request under way lives for `Limits.idle` seconds at most, whatever bytes trickle in. At the limit
a new connection takes the place of the one that has been idle longest, so that idle ones can never keep anybody out;
connections with a request under way are bounded elsewhere (uploads, the queue).
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ordnet.errors import OrdnetError
from ordnet.serve.guard import Hosts, Limits, is_loopback

_UNREAD = 20.0
"""Seconds for which a client may read nothing of an answer that waits for it."""


class Connections:
    """All open connections of one server; decides which of them to end."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open: dict[Connection, None] = {}
        """In the order in which they were opened."""
        self._sweeping = False

    def protocol(self, **arguments: Any) -> "Connection":
        """The protocol that uvicorn creates for every connection."""
        return Connection(self, **arguments)

    def add(self, new: "Connection") -> bool:
        """Take a new connection in, if need be in place of an idle one; returns whether there was room."""
        neighbours = [each for each in self.open if each.address == new.address]
        for crowd, most in ((neighbours, self.limits.per_address), (list(self.open), self.limits.connections)):
            if len(crowd) >= most and not self._end_idlest(crowd):
                return False
        self.open[new] = None
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(1.0, self._sweep)
        return True

    def _end_idlest(self, crowd: "list[Connection]") -> bool:
        idle = [each for each in crowd if each in self.open and not each.at_work]
        if not idle:
            return False
        self.end(min(idle, key=lambda each: each.since))
        return True

    def end(self, connection: "Connection") -> None:
        self.open.pop(connection, None)
        connection.transport.abort()

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self.open if each.overdue(now)]:
            self.end(connection)
        self._sweeping = bool(self.open)
        if self._sweeping:
            asyncio.get_running_loop().call_later(1.0, self._sweep)


class Connection(H11Protocol):
    """uvicorn's connection with deadlines."""

    def __init__(self, pool: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pool = pool
        self.address = ""
        self.since = time.monotonic()
        """When it was opened, or when its last answer was complete."""
        self._unread, self._unread_since = 0, 0.0

    @property
    def at_work(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        super().connection_made(transport)
        if not self.pool.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.open.pop(self, None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.since = time.monotonic()
        super().on_response_complete()

    def overdue(self, now: float) -> bool:
        waiting = self.transport.get_write_buffer_size()
        if waiting != self._unread or not waiting:
            self._unread, self._unread_since = waiting, now
        if waiting:
            return now - self._unread_since > _UNREAD
        return not self.at_work and now - self.since > self.pool.limits.idle


class QuietLog(logging.Filter):
    """Lets `most` messages pass in any `seconds`; those left out are counted and reported with the next one."""

    def __init__(self, most: int = 20, seconds: float = 60.0) -> None:
        super().__init__()
        self._most, self._seconds = most, seconds
        self._start, self._passed, self._left_out = 0.0, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - self._start > self._seconds:
            self._start, self._passed = now, 0
        self._passed += 1
        if self._passed > self._most:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg, record.args = f"({self._left_out} messages were left out) {record.getMessage()}", ()
            self._left_out = 0
        return True


_GRACE = 3
"""Seconds that answers under way are given when the server ends."""
_BACKLOG = 64
"""Connections that are accepted before the first of them is handled."""
_HEADERS = 16_384
"""Bytes of a request's headers."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens on an address of this machine; port 0 takes any that is free.

    It is opened before anything heavy is loaded, so that a taken port is known at once.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except socket.gaierror:
        raise OrdnetError(
            f"there is no host {host!r}; --host takes an address of this machine, such as 127.0.0.1"
        ) from None
    except OSError as error:
        raise OrdnetError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port, or end what uses this one"
        ) from None


def run(
    models: Sequence[str],
    listener: socket.socket,
    limits: Limits,
    token: str | None,
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Serve these models on an opened socket until SIGINT or SIGTERM; the first answers unless another is named."""
    # torch takes seconds to import: a taken port or an unknown host has been reported before
    from ordnet.inference.parser import load
    from ordnet.serve.app import make_app

    host, port = listener.getsockname()[:2]
    limits = replace(limits, connections=min(limits.connections, _affordable()))
    app = make_app({model: load(model) for model in models}, limits, token, Hosts(host, allowed_hosts))
    if token is None and not is_loopback(host):
        print(
            f"ordnet: warning: {host} can be reached from other machines, and no token is set: whoever reaches it "
            "can use it. Set ORDNET_TOKEN, or leave --host away.",
            file=sys.stderr,
        )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=_GRACE,
        http=Connections(limits).protocol,  # type: ignore[arg-type]  # it is called like a class
        ws="none", loop="asyncio", backlog=_BACKLOG, h11_max_incomplete_event_size=_HEADERS,
        timeout_keep_alive=round(limits.idle / 2) or 1,
    )  # fmt: skip
    quiet = QuietLog()
    for name in ("uvicorn.error", "asyncio", "python_multipart.multipart"):
        logging.getLogger(name).addFilter(quiet)
    # threads that compute keep the thread that answers waiting for no longer than this
    sys.setswitchinterval(0.001)
    # the collector would look through all of torch now and then: a tenth of a second in which nobody is answered
    gc.collect()
    gc.freeze()
    # uvicorn ends by these signals and then raises them once more; that second time they mean nothing
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Server(config, f"{', '.join(models)} on {address} (API: {address}/docs); Ctrl-C ends it").run(sockets=[listener])
    print("ended")


class Server(uvicorn.Server):
    """uvicorn's server, which says where it is once it answers: whoever asked before would wait for its start."""

    def __init__(self, config: uvicorn.Config, words: str) -> None:
        super().__init__(config)
        self._words = words

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._words, flush=True)


def _affordable() -> int:
    """Connections for which there are file descriptors, apart from those in the backlog and some in reserve."""
    try:
        import resource
    except ImportError:
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(8, soft - _BACKLOG - 64) if soft != resource.RLIM_INFINITY else sys.maxsize
