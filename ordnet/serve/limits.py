"""How much the server takes, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """Everything that comes in is bounded by one of these."""

    bytes: int = 20_000_000
    """The largest uploaded file."""
    pixels: int = 25_000_000
    """The largest picture; larger ones are refused by their header, before they are decoded."""
    queue: int = 16
    """Requests that may wait beside those that are computed. More are told to come back later."""
    seconds: float = 120.0
    """From the first byte of a request to its answer."""
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
    """Seconds that a connection may take to send a request's headers, or rest between two requests."""
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
