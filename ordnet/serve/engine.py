"""What the server computes: parse, attend. It ends soon when told to stop, and keeps the last parses for clicks."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ordnet.inference.parse import Parse
from ordnet.inference.parser import Parser
from ordnet.picture.overlay import Colour
from ordnet.serve.queue import Stop


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
    """A decoded upload."""

    key: str
    """SHA-256 of its file."""
    pixels: np.ndarray
    """Upright RGB (H, W, 3) uint8."""
    seconds: float = 0.0
    """Spent on decoding it."""


@dataclass(frozen=True)
class Parsed:
    """A parse that can be asked for again by its key."""

    key: str
    parse: Parse
    seconds: float
    """Decoding and parsing."""


class Engine:
    """A parser, and the last parses it made. Several threads may use it at once."""

    def __init__(self, parser: AnyParser, keep: int, parses: int = 100) -> None:
        """`keep` bytes of the last parses stay in memory, but not more than `parses` of them."""
        self.parser = parser
        self._keep, self._parses = keep, parses
        self._last: OrderedDict[str, Parsed] = OrderedDict()
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._running = 0
        self._threads = torch.get_num_threads()
        self.at_once = min(2, self._threads) if getattr(parser, "device", torch.device("cpu")).type == "cpu" else 1
        """Two pictures with half of the threads each are done sooner than one after the other with all of them."""
        self.progress: float | None = None
        """How far the present computation is, 0 to 1; None where it is not known."""
        if isinstance(parser, Parser):
            # before every layer: a pass of seconds ends within milliseconds
            for layer in parser.net.modules():
                layer.register_forward_pre_hook(self._look)

    def parse(self, picture: Picture, confidence: bool, stop: Stop) -> Parsed:
        known = self.known(picture.key)
        if known and (known.parse.confidence is not None or not confidence):
            return known
        start = time.perf_counter()
        with self._computing(stop):
            self._look()
            # the first click after a parse should not have to run the network again
            looking: dict[str, bool] = {"attention": True} if isinstance(self.parser, Parser) else {}
            parse = self.parser(picture.pixels, progress=self._note, confidence=confidence, **looking)
        parsed = Parsed(picture.key, parse, picture.seconds + time.perf_counter() - start)
        self.remember(parsed)
        return parsed

    def knows(self, key: str, confidence: bool) -> bool:
        """Whether this needs no computing."""
        known = self.known(key)
        return known is not None and (known.parse.confidence is not None or not confidence)

    def known(self, key: str) -> Parsed | None:
        """A parse that is still kept."""
        with self._lock:
            if key in self._last:
                self._last.move_to_end(key)
            return self._last.get(key)

    def attend(self, parsed: Parsed, x: int, y: int, stop: Stop) -> Any:
        with self._computing(stop):
            found = parsed.parse.attention(x, y)
        self.remember(parsed)  # it may have grown
        return found

    def remember(self, parsed: Parsed) -> None:
        with self._lock:
            self._last.pop(parsed.key, None)
            self._last[parsed.key] = parsed
            while self._last and (
                len(self._last) > self._parses or sum(each.parse.nbytes for each in self._last.values()) > self._keep
            ):
                self._last.popitem(last=False)

    @contextmanager
    def _computing(self, stop: Stop) -> Iterator[None]:
        """While several compute, they share the threads."""
        self._mine.stop = stop
        self._share(+1)
        try:
            yield
        finally:
            self.progress = None
            self._share(-1)

    def _share(self, change: int) -> None:
        with self._lock:
            self._running += change
            torch.set_num_threads(max(1, self._threads // max(1, self._running)))

    def _note(self, done: int, total: int) -> None:
        self.progress = done / total
        self._look()

    def _look(self, *_: Any) -> None:
        stop = getattr(self._mine, "stop", None)
        if stop is not None and stop.is_set():
            raise Stopped


def hexadecimal(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)
