"""Starting the server: its socket, the warning about strangers, serving until a signal comes."""

import ipaddress
import signal
import socket
import sys

import uvicorn

from ordnet.errors import OrdnetError
from ordnet.inference.parser import load
from ordnet.serve.app import make_app
from ordnet.serve.guard import Limits

_GRACE = 3
"""Seconds that answers under way are given when the server ends."""


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


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run(model: str, listener: socket.socket, limits: Limits, token: str | None) -> None:
    """Serve on an opened socket until SIGINT or SIGTERM."""
    app = make_app(load(model), model, limits, token)
    host, port = listener.getsockname()[:2]
    if token is None and not is_loopback(host):
        print(
            f"ordnet: warning: {host} can be reached from other machines, and no token is set: whoever reaches it "
            "can use it. Set ORDNET_TOKEN, or leave --host away.",
            file=sys.stderr,
        )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"{model} on {address} (API: {address}/docs); Ctrl-C ends it", flush=True)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE, lifespan="on"
    )
    # uvicorn ends by these signals and then raises them once more; that second time they mean nothing
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
    print("ended")
