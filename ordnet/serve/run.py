"""Starting the server: its socket, the warning about strangers, serving until a signal comes."""

import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace

import uvicorn

from ordnet.errors import OrdnetError
from ordnet.inference.parser import load
from ordnet.serve.app import make_app
from ordnet.serve.connections import Connections, QuietLog
from ordnet.serve.guard import Hosts, is_loopback
from ordnet.serve.limits import Limits

_GRACE = 3
"""Seconds that answers under way are given when the server ends."""
_BACKLOG = 64
"""Connections that are accepted at once, before the first of them is looked at."""
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
    model: str, listener: socket.socket, limits: Limits, token: str | None, allowed_hosts: Sequence[str] = ()
) -> None:
    """Serve on an opened socket until SIGINT or SIGTERM."""
    host, port = listener.getsockname()[:2]
    limits = replace(limits, connections=min(limits.connections, _affordable()))
    app = make_app(load(model), model, limits, token, Hosts(host, allowed_hosts))
    if token is None and not is_loopback(host):
        print(
            f"ordnet: warning: {host} can be reached from other machines, and no token is set: whoever reaches it "
            "can use it. Set ORDNET_TOKEN, or leave --host away.",
            file=sys.stderr,
        )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"{model} on {address} (API: {address}/docs); Ctrl-C ends it", flush=True)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=_GRACE,
        http=Connections(limits).protocol,  # type: ignore[arg-type]  # it is called like a class
        ws="none", loop="asyncio", backlog=_BACKLOG, h11_max_incomplete_event_size=_HEADERS,
        timeout_keep_alive=round(limits.idle / 2) or 1,
    )  # fmt: skip
    quiet = QuietLog()
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(quiet)
    # the thread that answers is not kept waiting by the threads that compute for more than this
    sys.setswitchinterval(0.001)
    # uvicorn ends by these signals and then raises them once more; that second time they mean nothing
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
    print("ended")


def _affordable() -> int:
    """Connections for which there are file descriptors, when as many again as are accepted at once come on top."""
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
