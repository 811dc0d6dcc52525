"""The size at which a network sees a picture.

A network knows things at the size they had in its training pictures: a tree ten times as large is no tree to it. So a
checkpoint keeps how long the long side of those was, and pictures that are much larger are made smaller on their way
in. Labels come out at the picture's own size: scores are enlarged to it, not labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from ordnet.errors import OrdnetError
from ordnet.model.pixels import padded

OWN = "own"
LongSide = int | Literal["own"] | None
"""What may be asked for: a number of pixels, the picture's own size, or (None) what the checkpoint was trained for."""
LARGER = 1.25
"""Pictures up to this many times as large as those trained on are left alone: training scales them more than that."""


def long_side_of(asked: LongSide, about: Mapping[str, Any]) -> int | None:
    """The long side that larger pictures are brought to; None leaves all at their own size."""
    if asked == OWN:
        return None
    if asked is None:
        known = about.get("long_side")
        return int(known) if isinstance(known, int | float) and known >= 1 else None
    if not isinstance(asked, int) or asked < 1:
        raise OrdnetError(f"the long side is a number of pixels or {OWN!r}, got {asked!r}")
    return asked


def parse_long_side(text: str | None) -> LongSide:
    """The same from the command line."""
    if text is None or text == OWN:
        return text  # type: ignore[return-value]
    if not text.isdecimal() or int(text) < 1:
        raise OrdnetError(f"--long-side {text}: expected a number of pixels, or {OWN} for every picture's own size")
    return int(text)


def fitted(pixels: np.ndarray, long_side: int | None) -> np.ndarray:
    """RGB (H, W, 3) → the copy that the network sees; the picture itself where it is not much larger."""
    height, width = pixels.shape[:2]
    longest = max(height, width)
    if long_side is None or longest <= LARGER * long_side:
        return pixels
    size = (max(1, round(width * long_side / longest)), max(1, round(height * long_side / longest)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0))


@dataclass(frozen=True)
class Seen:
    """A picture as the network gets it."""

    pixels: np.ndarray
    """The copy, continued to the least size that the network takes."""
    size: tuple[int, int]
    """Height and width that its scores are enlarged to: the picture is the upper left part of that."""


def seen_by(pixels: np.ndarray, long_side: int | None, least_side: int) -> Seen:
    copy = fitted(pixels, long_side)
    ready = padded(copy, least_side)
    if copy is pixels:
        return Seen(ready, (ready.shape[0], ready.shape[1]))
    rows, columns = (-(-ready.shape[i] * pixels.shape[i] // copy.shape[i]) for i in (0, 1))
    return Seen(ready, (rows, columns))
