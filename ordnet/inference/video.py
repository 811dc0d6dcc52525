"""Videos: every frame parsed, the classes drawn over it, and their shares in a table.

Decoding, parsing and encoding overlap: one thread reads frames ahead, this one parses, another draws and encodes. All
three spend their time outside Python's lock.
"""

import contextlib
import csv
import io
import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ordnet.data.pictures import VIDEO_ENDINGS, largest_pixels
from ordnet.data.reading import regular_file
from ordnet.errors import OrdnetError, reason
from ordnet.files import write_atomically, write_text
from ordnet.inference.parse import probabilities_of, written_of
from ordnet.picture.grid import legend
from ordnet.picture.overlay import QUICK_PNG, overlay

_FORMATS = ("mov", "matroska", "webm", "avi", "mpeg", "mpegts", "mpegvideo", "m4v")
"""Containers that are read, by FFmpeg's names; some others are lists of further files and addresses."""
_CAMERA = "/dev/video"
_AHEAD = 4
"""Frames that wait between two threads."""
_CODECS = ("libx264", "libopenh264", "mpeg4")
"""The first that PyAV was built with is used."""
OnFrame = Callable[[int, int | None, float], object]
"""Called with the frames done, their total where it is known, and the frames per second so far."""
_LEAST = (0.002, 0.01, 0.03, 0.1, 0.3)
"""Shares from which on a class is in the legend: the first with which the legend has room."""
_FADES = 0.95
"""With every frame without it a class counts this much less, so that the legend does not flicker."""
_strip = lru_cache(maxsize=8)(legend)


@dataclass(frozen=True)
class Frame:
    """One picture of a video."""

    number: int
    """Counted from 0, broken ones included."""
    seconds: float
    pixels: np.ndarray
    """Upright RGB (H, W, 3) uint8."""


@dataclass
class Video:
    """A file, or a camera or stream that PyAV can open."""

    source: str
    broken: list[str] = field(default_factory=list)
    """Frames that could not be decoded, in words."""
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        av = _library()
        camera = "v4l2" if self.source.startswith(_CAMERA) else None
        if camera and camera not in av.formats_available:
            raise OrdnetError(
                f"{self.source}: this PyAV was built without cameras. Let ffmpeg send it as a stream, `ffmpeg -f v4l2 "
                f"-i {self.source} -f mpegts udp://127.0.0.1:5000`, and name udp://127.0.0.1:5000 here"
            )
        self.endless = is_endless(self.source)
        # a playlist in disguise would make FFmpeg open other files or addresses
        options = {} if self.endless else {"protocol_whitelist": "file", "format_whitelist": ",".join(_FORMATS)}
        try:
            source = self.source if self.endless else str(regular_file(self.source))
            self._container = av.open(source, format=camera, metadata_errors="ignore", options=options)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise OrdnetError(f"{self.source} cannot be read as a video: {reason(error)}") from None
        if not self._container.streams.video:
            raise OrdnetError(f"{self.source} has no pictures, only {len(self._container.streams)} other streams")
        self._stream = self._container.streams.video[0]
        context = self._stream.codec_context
        if context is None:
            raise OrdnetError(f"{self.source} cannot be read as a video: nobody knows how its pictures are packed")
        self._stream.thread_type = "AUTO"
        if context.width * context.height > largest_pixels():
            raise OrdnetError(
                f"{self.source}: frames of {context.width} x {context.height} pixels are more than the "
                f"{largest_pixels():,} that are read at once"
            )
        context.options = {"max_pixels": str(largest_pixels())}  # frames may change their size
        rate = self._stream.average_rate or self._stream.guessed_rate or 25
        self.rate = max(Fraction(rate).limit_denominator(60_000), Fraction(1, 60_000))  # days a frame are none at all
        self.frames: int | None = self._stream.frames or None

    def read(self) -> Iterator[Frame]:
        """The frames in display order. Broken ones are named in `broken` and left out."""
        av = _library()
        numbers, last = itertools.count(), -1.0
        packets = self._container.demux(self._stream)
        while not self.stop.is_set() and len(self.broken) <= 10_000:
            try:
                packet = next(packets)
                decoded = packet.decode()
            except StopIteration:
                return
            except av.FFmpegError as error:
                self.broken.append(f"frame {next(numbers)}, after {max(0.0, last):.2f} s: {error.strerror or error}")
                continue
            for frame in decoded:
                number = next(numbers)
                seconds = frame.time if frame.time is not None else float(number / self.rate)
                if frame.is_corrupt:
                    self.broken.append(f"frame {number}, at {seconds:.2f} s: damaged")
                    continue
                last = max(seconds, last + 1e-6)  # a clock that runs backwards would make an unreadable file
                turns = round(getattr(frame, "rotation", 0) / 90) % 4
                pixels = np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
                yield Frame(number, last, pixels)

    def close(self) -> None:
        self._container.close()


def predict_video(
    parser: Any,
    source: str,
    out: Path,
    *,
    strength: float = 0.5,
    label_frames: bool = False,
    smoothing: float = 0.0,
    about: dict[str, Any] | None = None,
    tell: OnFrame = lambda done, total, rate: None,
) -> dict[str, Any]:
    """Write STEM.overlay.mp4, STEM.areas.csv and STEM.json into `out`; with `label_frames` STEM.labels/000000.png too.

    The video has the source's size, rate and times. `smoothing` from 0 to 1 is the share that earlier frames keep of
    each pixel's probabilities: 0.5 to 0.8 calm flicker. The JSON's content is returned; it is written last.
    """
    if not 0 <= smoothing < 1:
        raise OrdnetError(f"--smooth goes from 0 to below 1, got {smoothing}")
    video, stem = Video(source), stem_of(source)
    areas: list[tuple[int, float, np.ndarray]] = []  # a frame's number, its time, the share of each class
    started = time.monotonic()

    def write(path: Path) -> None:
        with (
            _Encoder(path, video.rate, parser, strength, out / f"{stem}.labels" if label_frames else None) as encoder,
            contextlib.closing(_parsed(parser, video, smoothing)) as parsed,
        ):
            try:
                for done, (frame, labels) in enumerate(parsed, 1):
                    areas.append((frame.number, frame.seconds, _shares(labels, len(parser.classes))))
                    encoder.add(frame, labels)
                    tell(done, video.frames, done / max(1e-9, time.monotonic() - started))
            except KeyboardInterrupt:
                if not video.endless:
                    raise
            if not areas:
                raise OrdnetError(f"{source}: no frame of it can be decoded")

    with contextlib.closing(video):
        write_atomically(out / f"{stem}.overlay.mp4", write)
    table = io.StringIO()
    rows = ([number, f"{seconds:.3f}", *(f"{share:.4f}" for share in shares)] for number, seconds, shares in areas)
    csv.writer(table).writerows([["frame", "seconds", *parser.classes], *rows])
    write_text(out / f"{stem}.areas.csv", table.getvalue())
    mean = np.mean([shares for _, _, shares in areas], axis=0)
    occur = [number for number in np.argsort(-mean, kind="stable") if mean[number]]
    record = {
        **(about or {}), "frames": len(areas), "rate": float(video.rate), "seconds": areas[-1][1],
        "frames_per_second": len(areas) / (time.monotonic() - started), "smoothing": smoothing, "broken": video.broken,
        "areas": {parser.classes[number]: float(mean[number]) for number in occur},  # as of pictures: largest first
        "colours": {parser.classes[number]: "#{:02x}{:02x}{:02x}".format(*parser.colours[number]) for number in occur},
        "files": written_of(out / stem, video_files(out / stem, label_frames)),
    }  # fmt: skip
    write_text(out / f"{stem}.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def _shares(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(labels.ravel(), minlength=classes)[:classes] / labels.size


def video_files(base: Path, label_frames: bool) -> list[Path]:
    """What `predict_video` writes beside the JSON."""
    return [Path(f"{base}.{kind}") for kind in ("overlay.mp4", "areas.csv", *(("labels",) if label_frames else ()))]


def is_video(word: str) -> bool:
    """Whether what a user named is a video file, a stream (rtsp://…) or a camera (/dev/video0)."""
    return word.lower().endswith(VIDEO_ENDINGS) or is_endless(word)


def is_endless(source: str) -> bool:
    """Whether it is a camera or a stream, which only Ctrl-C ends; the frames until then are kept."""
    return "://" in source or source.startswith(_CAMERA)


def stem_of(source: str) -> str:
    return Path(source.rstrip("/")).stem or "video"


def _parsed(parser: Any, video: Video, smoothing: float) -> Generator[tuple[Frame, np.ndarray], None, None]:
    """Each frame with its class ids (H, W); the next frames are decoded meanwhile."""
    earlier: np.ndarray | None = None  # probabilities (K, H, W)
    for frame in _ahead(video.read(), video.stop):
        if not smoothing:
            yield frame, parser(frame.pixels).labels
            continue
        now = probabilities_of(parser.scores(frame.pixels)).astype(np.float32)
        if earlier is not None and earlier.shape == now.shape:
            now *= 1 - smoothing
            now += smoothing * earlier
        earlier = now
        yield frame, now.argmax(axis=0).astype(np.uint8)


def _ahead(frames: Iterator[Frame], stop: threading.Event) -> Iterator[Frame]:
    """The same frames, read by another thread."""
    waiting: queue.Queue[Frame | BaseException | None] = queue.Queue(_AHEAD)

    def put(item: Frame | BaseException | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.2)
                return

    def read() -> None:
        try:
            for frame in frames:
                put(frame)
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=read, daemon=True, name="ordnet-video-decode")
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join(10)


class _Legend:
    """Which colour is which class, over the lowest rows of every frame."""

    def __init__(self, parser: Any) -> None:
        self._key = list(zip(parser.classes, parser.colours, strict=True))
        self._shares = np.zeros(len(self._key))

    def draw(self, frame: np.ndarray, labels: np.ndarray) -> None:
        """Into the frame (H, W, 3): the classes of its labels (H, W), in a fifth of its height, or nothing."""
        self._shares = np.maximum(_shares(labels, len(self._key)), _FADES * self._shares)
        height, width = frame.shape[:2]
        scale = max(1, min(height, width) // 1080)  # letters are to be read on large frames too
        for least in _LEAST:
            key = tuple(self._key[number] for number in np.flatnonzero(self._shares >= least))
            strip = np.asarray(_strip(key, width // scale)).repeat(scale, axis=0).repeat(scale, axis=1)
            if key and 5 * len(strip) <= height:
                frame[-len(strip) :, : strip.shape[1]] = strip
                return


class _Encoder:
    """Draws and encodes in a thread of its own; an error there is raised by the next `add` or at the end."""

    def __init__(self, path: Path, rate: Fraction, parser: Any, strength: float, labels: Path | None) -> None:
        """`labels` is the folder for every frame's class ids, where they are wanted."""
        self._path, self._rate, self._colours, self._strength = path, rate, parser.colours, strength
        self._labels, self._legend = labels, _Legend(parser)
        self._waiting: queue.Queue[tuple[Frame, np.ndarray] | None] = queue.Queue(_AHEAD)
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="ordnet-video-encode")

    def __enter__(self) -> "_Encoder":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None and _[0] is None:
            raise self._error

    def add(self, frame: Frame, labels: np.ndarray) -> None:
        if self._error is not None:
            raise self._error
        self._waiting.put((frame, labels))

    def _run(self) -> None:
        try:
            self._encode()
        except BaseException as error:
            strange = isinstance(error, _library().FFmpegError)
            self._error = OrdnetError(f"the video cannot be written: {error}") if strange else error
            while not self._ended:  # `add` must not wait for ever
                self._next()

    def _next(self) -> tuple[Frame, np.ndarray] | None:
        """What was added next; None once, at the end."""
        self._ended = (item := self._waiting.get()) is None
        return item

    def _encode(self) -> None:
        av = _library()
        base = Fraction(1, 90_000)
        with av.open(str(self._path), "w", format="mp4") as container:
            stream = None
            while (item := self._next()) is not None:
                frame, labels = item
                height, width = labels.shape
                if stream is None:
                    codec = next((name for name in _CODECS if name in av.codecs_available), _CODECS[-1])
                    stream = container.add_stream(codec, rate=self._rate)
                    # colours at half resolution need even sides
                    stream.width, stream.height, stream.codec_context.time_base = width, height, base
                    stream.pix_fmt = "yuv420p" if width % 2 == height % 2 == 0 else "yuv444p"
                elif (stream.width, stream.height) != (width, height):
                    raise OrdnetError(f"frame {frame.number} has {width} x {height} pixels, the first one another size")
                pixels = overlay(frame.pixels, labels, self._colours, self._strength)
                self._legend.draw(pixels, labels)
                drawn = av.VideoFrame.from_ndarray(pixels, "rgb24")
                drawn.pts, drawn.time_base = round(frame.seconds / base), base
                container.mux(stream.encode(drawn))
                if self._labels is not None:
                    save = partial(Image.fromarray(labels).save, **QUICK_PNG)
                    write_atomically(self._labels / f"{frame.number:06}.png", save)
            if stream is not None:
                container.mux(stream.encode(None))


def _library() -> Any:
    try:
        import av
    except ImportError:
        raise OrdnetError("videos need the extra `video`: pip install 'ordnet[video]'") from None
    return av
