"""Uploaded pictures are decoded in a process of their own, which is ended when it overruns its time or memory.

Decoders are where hostile files do harm. The child has a bounded address space, writes no files and starts no programs;
it reports the size first, then the pixels. If it dies or is too slow, it is replaced, and only its picture is refused.

Messages: parent → child a length (8 bytes) and the file; child → parent a verdict, width and height (1 + 4 + 4 bytes)
for the header, the same again for the decoded picture, then its pixels.
"""

import contextlib
import io
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
from PIL import features

from ordnet.serve.guard import Limits, Refusal, too_many_pixels

# Named one by one: Pillow passes others to outside programs, or has hardly tested them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *(("AVIF",) if features.check("avif") else ()))
HEADER_SECONDS = 5.0
"""The time for everything before the pixels; any honest file takes milliseconds."""
SECONDS, SECONDS_PER_MEGAPIXEL = 5.0, 1.0
"""The time for the pixels; a busy machine takes a tenth of it for the slowest format."""
_BYTES_PER_PIXEL = 24
"""Bytes per pixel for the decoder's own buffers and the picture as RGBA, as RGB and turned upright, all at once."""
_PICTURES = 2_000
"""After this many a fresh child takes over, so that leaked memory does not add up."""
_ENTRIES, _VALUES, _STRIPS = 500, 200_000, 65_536
"""Bounds on a TIFF's directory: entries, numbers of an entry, strips or tiles. Honest files have far fewer."""
_OK, _UNREADABLE, _TOO_LARGE, _DAMAGED = range(4)
_LENGTH, _VERDICT = struct.Struct(">Q"), struct.Struct(">BII")


class Decoder:
    """One child that decodes one picture after the other. Threads may share it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._child: subprocess.Popen[bytes] | None = None
        self._done = 0
        self._lock = threading.Lock()

    def decode(self, pieces: Sequence[bytes | bytearray]) -> np.ndarray:
        """A file's picture as upright RGB (H, W, 3) uint8, or a Refusal in words for whoever sent it."""
        with self._lock:
            return self._decode(pieces)

    def _decode(self, pieces: Sequence[bytes | bytearray]) -> np.ndarray:
        try:
            found = self._ask(pieces)
        except (TimeoutError, BrokenPipeError, EOFError) as error:
            self.close()
            slow = isinstance(error, TimeoutError)
            what = "takes too long to decode" if slow else "takes more memory to decode than a picture of its size may"
            raise Refusal(422, f"The picture {what}. Save it anew, as JPEG or PNG.") from None
        except BaseException:
            self.close()  # it may be in the middle of anything
            raise
        if isinstance(found, Refusal):
            raise found
        return found

    def _ask(self, pieces: Sequence[bytes | bytearray]) -> np.ndarray | Refusal:
        child = self._ready()
        assert child.stdin and child.stdout
        answer = child.stdout.fileno()
        end = time.monotonic() + HEADER_SECONDS
        _write(child.stdin.fileno(), _LENGTH.pack(sum(len(piece) for piece in pieces)), end)
        for piece in pieces:
            _write(child.stdin.fileno(), piece, end)
        verdict, width, height = _VERDICT.unpack(_read(answer, _VERDICT.size, end).data)
        if verdict == _UNREADABLE:
            return Refusal(415, f"The file is no picture that can be read. Known are {', '.join(FORMATS)}.")
        if verdict == _TOO_LARGE:
            return too_many_pixels(width, height, self._limits)
        end = time.monotonic() + SECONDS + SECONDS_PER_MEGAPIXEL * width * height / 1e6
        verdict, width, height = _VERDICT.unpack(_read(answer, _VERDICT.size, end).data)
        if verdict == _DAMAGED:
            return Refusal(415, f"The picture is damaged, or cannot be shown. Known are {', '.join(FORMATS)}.")
        return _read(answer, 3 * width * height, end).reshape(height, width, 3)

    def _ready(self) -> "subprocess.Popen[bytes]":
        if self._child is not None and (self._child.poll() is not None or self._done >= _PICTURES):
            self.close()
        if self._child is None:
            self._done = 0
            command = [sys.executable, "-m", "ordnet.serve.decoder", str(self._limits.bytes), str(self._limits.pixels)]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                start_new_session=True,  # Ctrl-C is for the server, which then ends this
            )  # fmt: skip
            assert self._child.stdin and self._child.stdout
            for pipe in (self._child.stdin, self._child.stdout):
                os.set_blocking(pipe.fileno(), False)
            # importing takes a while on a busy machine, and counts for no picture
            _read(self._child.stdout.fileno(), 1, time.monotonic() + 60)
        self._done += 1
        return self._child

    def start(self) -> None:
        """Have the child ready before the first picture comes."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
            child.wait()


def _wait(file: int, event: int, end: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(file, event)
        if not selector.select(max(0.0, end - time.monotonic())):
            raise TimeoutError


def _write(file: int, data: bytes | bytearray, end: float) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:
            _wait(file, selectors.EVENT_WRITE, end)


def _read(file: int, size: int, end: float) -> np.ndarray:
    """So many bytes. Memory is taken as they come: a bytearray would first be filled with zeros, for 25 megapixels a
    fifth of a second in which Python answers nobody."""
    data = np.empty(size, np.uint8)
    view = data.data
    while view:
        try:
            count = os.readv(file, [view])
        except BlockingIOError:
            _wait(file, selectors.EVENT_READ, end)
            continue
        if not count:
            raise EOFError
        view = view[count:]
    return data


# ---- the child ------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer until the parent closes the pipe."""
    from PIL import Image

    from ordnet.data.pictures import opened, upright_rgb

    most_bytes, most_pixels = int(sys.argv[1]), int(sys.argv[2])
    Image.init()  # so that every decoder's own memory is allocated before the limit is set
    _restrict(2 * most_bytes + _BYTES_PER_PIXEL * most_pixels + 64_000_000)
    os.write(1, b"!")
    with contextlib.suppress(EOFError):
        while True:
            (size,) = _LENGTH.unpack(_read(0, _LENGTH.size, 0).data)
            data = bytes(_read(0, size, 0))
            told = False
            try:
                if is_hostile_tiff(data):
                    raise ValueError
                with opened(io.BytesIO(data), largest=2**62, formats=FORMATS) as image:
                    width, height = image.size
                    if width * height > most_pixels:
                        os.write(1, _VERDICT.pack(_TOO_LARGE, min(width, 2**32 - 1), min(height, 2**32 - 1)))
                        continue
                    os.write(1, _VERDICT.pack(_OK, width, height))
                    told = True
                    image.load()
                    pixels = np.asarray(upright_rgb(image))
            except Exception:  # whatever a decoder stumbles over, lack of memory included
                os.write(1, _VERDICT.pack(_DAMAGED if told else _UNREADABLE, 0, 0))
                continue
            _write(1, _VERDICT.pack(_OK, pixels.shape[1], pixels.shape[0]) + pixels.tobytes(), 0)
            del data, pixels, image


def _restrict(more: int) -> None:
    """Limit memory to `more` bytes above what is taken now, and allow no files, no programs, no core dumps."""
    try:
        import resource
    except ImportError:  # Windows has no such limits: time is bounded all the same
        return
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: 0}
    statm = "/proc/self/statm"
    if os.path.exists(statm):  # noqa: PTH110
        with open(statm, encoding="ascii") as file:  # noqa: PTH123
            limits[resource.RLIMIT_AS] = int(file.read().split()[0]) * resource.getpagesize() + more
    for which, most in limits.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (most, most))


def is_hostile_tiff(data: bytes) -> bool:
    """Whether the first directory of a TIFF has more entries, numbers or strips than any honest one.

    Pillow reads all of them as Python numbers before it knows the picture's size: millions take seconds and gigabytes.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 16:
        return False
    (magic,) = struct.unpack_from(f"{order}H", data, 2)
    if magic == 43:  # BigTIFF
        (start,), head, entry = struct.unpack_from(f"{order}Q", data, 8), f"{order}Q", f"{order}HHQQ"
    else:
        (start,), head, entry = struct.unpack_from(f"{order}I", data, 4), f"{order}H", f"{order}HHII"
    try:
        (count,) = struct.unpack_from(head, data, start)
        if count > _ENTRIES:
            return True
        start += struct.calcsize(head)
        entries = [struct.unpack_from(entry, data, start + place * struct.calcsize(entry)) for place in range(count)]
    except struct.error:
        return False  # cut off: the decoder says so
    strips, bytes_and_text = (273, 279, 324, 325), (1, 2, 6, 7)
    return any(
        values > (_STRIPS if tag in strips else _VALUES) and (tag in strips or kind not in bytes_and_text)
        for tag, kind, values, _ in entries
    )


if __name__ == "__main__":
    main()
