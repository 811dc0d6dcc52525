"""What keeps the server safe: its limits, how it refuses, and what stands before every route.

`Guard` adds headers that keep a browser careful, and asks for a token where one is set.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """How much the server takes."""

    bytes: int = 20_000_000
    """The largest uploaded file."""
    pixels: int = 25_000_000
    """The largest picture; larger ones are refused by their header, before they are decoded."""
    queue: int = 16
    """Requests that may be under way beside the one that is computed. More are told to come back later."""
    seconds: float = 120.0
    """From the first byte of a request to its answer."""
    keep: int = 25_000_000
    """Pixels of the last parses that are kept in memory, so that a click does not parse again."""


@dataclass(eq=False)
class Refusal(Exception):
    """An answer other than 200, in words for whoever sent the request."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


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

# The page's scripts and styles are files of its own; pictures are also drawn from memory.
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
_PROTECTED = "/v1/"


class Guard:
    """ASGI around the application. The token is asked for under /v1/ only: the page itself is no secret."""

    def __init__(self, app: App, token: str | None = None) -> None:
        self.app = app
        self.expected = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        headers = dict(scope["headers"])
        if scope["path"].startswith(_PROTECTED):
            if headers.get(b"sec-fetch-site") == b"cross-site":
                await _refuse(send_guarded, 403, "Pages of other sites may not use this server.")
                return
            if not self._knows(headers.get(b"authorization", b"")):
                challenge = (b"www-authenticate", b"Bearer")
                await _refuse(send_guarded, 401, "This server asks for a token: Authorization: Bearer …", challenge)
                return
        await self.app(scope, receive, send_guarded)

    def _knows(self, given: bytes) -> bool:
        return self.expected is None or hmac.compare_digest(given, self.expected)


async def _refuse(send: Send, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps({"error": message}, ensure_ascii=False).encode()
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})
