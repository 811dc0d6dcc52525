"""How much the server takes, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    bytes: int = 20_000_000
    """Of an uploaded file."""
    pixels: int = 25_000_000
    """Of a picture; larger ones are refused by their header, before they are decoded."""
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
