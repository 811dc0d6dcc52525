"""What the server computes: decode, parse, attend. All of it runs in one thread, and ends soon when told to stop."""

import hashlib
import io
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import features

from ordnet.data.pictures import open_rgb, opened
from ordnet.errors import OrdnetError
from ordnet.inference.parse import Parse
from ordnet.inference.parser import Parser
from ordnet.picture.overlay import Colour
from ordnet.serve.guard import Limits, Refusal, too_many_pixels
from ordnet.serve.queue import Stop

# Named one by one: Pillow hands others on to outside programs, or has hardly tested them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(("AVIF",) if features.check("avif") else ()))


class AnyParser(Protocol):
    """What the server needs of a parser, whatever it runs on."""

    classes: tuple[str, ...]
    colours: tuple[Colour, ...]
    protocol: str

    @property
    def explains(self) -> bool: ...
    def __call__(self, picture: np.ndarray, *, progress: Any = None, confidence: bool = False) -> Parse: ...


class Stopped(Exception):
    """Nobody waits for this any more."""


@dataclass(frozen=True)
class Picture:
    """An upload that is known to be a picture within the limits; not decoded yet."""

    data: bytes
    key: str
    """SHA-256 of the bytes."""
    width: int
    height: int


@dataclass(frozen=True)
class Parsed:
    key: str
    parse: Parse
    seconds: float
    """Decoding and parsing."""


def inspect(data: bytes, limits: Limits) -> Picture:
    """Read the header only; the sides are the stored ones, before the picture is turned upright."""
    try:
        with opened(io.BytesIO(data), largest=2**62, formats=FORMATS) as image:
            width, height = image.size
    except OrdnetError:
        raise _unreadable("The file is no picture that can be read") from None
    if width * height > limits.pixels:
        raise too_many_pixels(width, height, limits)
    return Picture(data, hashlib.sha256(data).hexdigest(), width, height)


def _unreadable(what: str) -> Refusal:
    return Refusal(415, f"{what}. Known are {', '.join(FORMATS)}.")


class Engine:
    """A parser, and the last parses it made."""

    def __init__(self, parser: AnyParser, keep: int) -> None:
        """`keep` pixels of the last parses stay in memory."""
        self.parser = parser
        self._keep = keep
        self._last: OrderedDict[str, Parsed] = OrderedDict()
        self._stop = Stop()
        self.progress: float | None = None
        """How far the present computation is, 0 to 1; None where it is not known."""
        if isinstance(parser, Parser):
            # before every layer: a pass of seconds ends within milliseconds
            for layer in parser.net.modules():
                layer.register_forward_pre_hook(self._look)

    def parse(self, picture: Picture, confidence: bool, stop: Stop) -> Parsed:
        known = self._last.get(picture.key)
        if known and (known.parse.confidence is not None or not confidence):
            self._last.move_to_end(picture.key)
            return known
        self._stop = stop
        start = time.perf_counter()
        try:
            pixels = np.asarray(open_rgb(io.BytesIO(picture.data), formats=FORMATS))
        except OrdnetError:
            raise _unreadable("The picture is damaged, or of a kind that cannot be shown") from None
        self._look()
        try:
            # the first click after a parse should not have to run the network again
            looking: dict[str, bool] = {"attention": True} if isinstance(self.parser, Parser) else {}
            parse = self.parser(pixels, progress=self._note, confidence=confidence, **looking)
        finally:
            self.progress = None
        parsed = Parsed(picture.key, parse, time.perf_counter() - start)
        self._remember(parsed)
        return parsed

    def known(self, key: str, stop: Stop) -> Parsed | None:
        """A parse that is still kept."""
        self._stop = stop  # what follows may compute
        return self._last.get(key)

    def _remember(self, parsed: Parsed) -> None:
        self._last.pop(parsed.key, None)
        self._last[parsed.key] = parsed
        while sum(each.parse.labels.size for each in self._last.values()) > self._keep:
            self._last.popitem(last=False)

    def _note(self, done: int, total: int) -> None:
        self.progress = done / total
        self._look()

    def _look(self, *_: Any) -> None:
        if self._stop.is_set():
            raise Stopped


def hexadecimal(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)
