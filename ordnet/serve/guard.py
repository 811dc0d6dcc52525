"""Who may use the server, and how much: limits, host names, origins, the token, and security headers."""

import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Everything that comes in is bounded by one of these."""

    bytes: int = 20_000_000
    """The largest uploaded file."""
    pixels: int = 25_000_000
    """The largest picture; larger ones are refused by their header, before they are decoded."""
    queue: int = 16
    """Requests that may wait besides those that are computed. More are told to come back later."""
    seconds: float = 120.0
    """Seconds from the first byte of a request to its answer."""
    keep: int = 200_000_000
    """Bytes of the last parses that are kept in memory, so that a click does not parse again."""
    parses: int = 100
    """How many parses are kept at most, however small they are."""
    uploads: int = 32
    """Bodies that may be under way at once; they take no place in the queue before they are complete."""
    rate: int = 8_000
    """Bytes a second that a body must reach, on average over `stall` seconds."""
    stall: float = 5.0
    idle: float = 10.0
    """Seconds that a connection may take to send a request's headers, or be idle between two requests."""
    connections: int = 128
    """Connections in all; at the limit a new one takes the place of the one that has been idle longest."""
    per_address: int = 64
    """Connections from one address."""

    @property
    def uploading(self) -> int:
        """Bytes of all bodies that are under way."""
        return 8 * self.bytes


@dataclass(eq=False)
class Refusal(Exception):
    """An answer other than 200, in words for whoever sent the request."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


def busy(why: str, wait: int) -> Refusal:
    return Refusal(503, f"The server is busy: {why}. Try again in {wait} seconds.", {"Retry-After": str(wait)})


def too_many_bytes(limits: Limits) -> Refusal:
    return Refusal(413, f"The file is too large: at most {megabytes(limits.bytes)} are taken.")


def too_many_pixels(width: int, height: int, limits: Limits) -> Refusal:
    most = f"{limits.pixels / 1e6:.3g} megapixels"
    return Refusal(413, f"The picture has {width} x {height} pixels: at most {most} are taken. Make it smaller.")


def megabytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 100_000 else f"{count:,} bytes"


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# Scripts and styles are the page's own files; pictures may also come from memory.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_WITH_TOKEN = "/v1/"
_FOR_PROGRAMS = ("/v1/", "/healthz", "/openapi.json")
"""What pages of other sites may not read; links to the page itself may come from anywhere."""


class Hosts:
    """The host names that the server answers to.

    A web page can make its own name point to 127.0.0.1 and then read what is served there (DNS rebinding). Such a
    request carries that name. So a server that only this machine reaches answers to loopback names alone; one that
    others reach answers to addresses, which cannot be rebound, and to the machine's own names. `allowed` adds to both,
    "*" allows any.
    """

    def __init__(self, bound: str = "127.0.0.1", allowed: Iterable[str] = ()) -> None:
        self._names = {"localhost", bound.lower(), *(name.lower().rstrip(".") for name in allowed)}
        self._loopback_only = is_loopback(bound)
        if not self._loopback_only:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allow(self, header: str) -> bool:
        """Whether a Host header, with or without a port, names this server."""
        name = _without_port(header).lower().rstrip(".")
        if "*" in self._names or name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback_only


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    if host.startswith("["):  # [::1]:8000
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


class Guard:
    """ASGI around the application. The token is asked for under /v1/ only: the page itself is no secret."""

    def __init__(self, app: App, token: str | None = None, hosts: Hosts | None = None) -> None:
        """Without `hosts` every name is answered."""
        self.app = app
        self.hosts = hosts or Hosts(allowed=["*"])
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], headers)
        if refusal is None:
            await self.app(scope, receive, send_guarded)
        else:
            await _refuse(send_guarded, *refusal)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> "tuple[int, str, tuple[bytes, bytes] | None] | None":
        """Status, message and one more header, if the request may not pass."""
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self.hosts.allow(host):  # every browser sends one
            return (
                403,
                f"This server is not called {host[:100]!r}; whoever runs it can allow that: --allowed-host",
                None,
            )
        if path.startswith(_FOR_PROGRAMS) and _from_elsewhere(headers, host):
            return 403, "Pages of other sites may not use this server.", None
        given = headers.get(b"authorization", b"")
        if path.startswith(_WITH_TOKEN) and self.expected and not hmac.compare_digest(given, self.expected):
            return 401, "This server asks for a token: Authorization: Bearer …", (b"www-authenticate", b"Bearer")
        return None


def _from_elsewhere(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a browser says that the request comes from a page of another origin.

    Sec-Fetch-Site says so itself, and no page can change it. Where it is not sent (old browsers, plain HTTP between
    machines) the Origin must be the name that was asked for; behind a proxy that changes the name it cannot be.
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower()


async def _refuse(send: Send, status: int, message: str, header: tuple[bytes, bytes] | None) -> None:
    body = json.dumps({"error": message}, ensure_ascii=False).encode()
    about = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *([header] if header else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})
