"""Many pictures, maps or videos and one model → a folder of results that can be continued later."""

import hashlib
import json
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ordnet.data.dataset import neighbours
from ordnet.data.pictures import Listed, find_pictures, open_rgb, opened
from ordnet.data.raster import Raster, is_georeferenced, needs_windows
from ordnet.data.shards import stamp
from ordnet.errors import OrdnetError, reason_of_writing, shown
from ordnet.files import refuse_file, visible, write_text
from ordnet.inference import parse as results
from ordnet.inference.coco import is_merged, merged
from ordnet.inference.maps import map_files, predict_map
from ordnet.inference.parse import FORMS, Parse, file_of, record_of, refuse_foreign, refuse_one_name, replacing
from ordnet.inference.parser import find, load, read
from ordnet.inference.stream import Progress
from ordnet.inference.video import OnFrame, is_endless, predict_video, stem_of, video_files
from ordnet.model.pixels import LARGER, KnownSize, fitted_size

AT_ONCE = 4
"""The most pictures in the network at once, each with its share of the threads: more would wait for Python's lock."""
WRITERS = 4
"""Pictures being drawn and written: most of that time is spent waiting for the disk."""
DECODED = 50_000_000
"""Pixels of all pictures under way, about 0.5 GB with what is drawn of them."""

OnTiles = Callable[[Listed, int, int], object]
"""Called with a streamed picture, its tiles done so far, and all its tiles."""


@dataclass(frozen=True)
class Outcome:
    """What became of one picture."""

    picture: Listed
    skipped: bool = False
    """Whether an earlier call had parsed it."""
    failure: str | None = None
    """What is wrong with it, with its name."""


class Prediction:
    """The pictures that one of `world` processes has to parse, and the folder that takes the results."""

    def __init__(
        self,
        model: str,
        images: Sequence[str],
        out: Path,
        save: Sequence[str],
        *,
        strength: float = 0.5,
        rank: int = 0,
        world: int = 1,
        bands: Sequence[int] | None = None,
        stretch: bool = False,
        tell: Callable[[str], object] = lambda message: None,
        **options: Any,
    ) -> None:
        """`images` are files, folders or patterns, `save` some of FORMS, `options` the parser's.

        `bands` and `stretch` are those of Raster; `tell` is told how a map is seen.
        """
        unknown = [what for what in save if what not in FORMS]
        if unknown or not save:
            raise OrdnetError(f"--save {','.join(save)}: expected some of {', '.join(FORMS)}")
        if "probabilities" in save and options.get("protocol", "whole") != "whole":
            raise OrdnetError("probabilities come from one pass over the picture: leave --protocol at whole")
        refuse_file(out)
        find(model)  # a wrong one is said before pictures are looked for
        # names are given before pictures are shared out: all processes have to agree on them
        self.remarks: list[str] = []
        found = find_pictures(images, results.is_result, self.remarks.append)
        # neighbours may lie in one shard
        self.pictures = [found[place] for place in neighbours(len(found), rank, world)]
        self.out, self.save = out, tuple(save)
        self._whole = out / "coco.json"
        if "coco" in save:
            refuse_one_name(out, [picture.stem for picture in found])
        self.strength, self.bands, self.stretch, self.tell = strength, bands, stretch, tell
        self.parser, self.settings = _loaded(model, options)
        self.settings["strength"] = strength
        self._own_scale = options.get("long_side") is None  # no other was asked for
        self.replaced = Counter[str]()  # other models whose results give way to this one's → pictures

    def is_done(self, picture: Listed) -> bool:
        """Whether all files exist and were made from this picture, as it is now, with this model and these settings.

        Results of another picture that has the same name are not for us to overwrite: that is an error.
        """
        base, wanted = self.out / picture.stem, self._about(picture)
        files = self._files(picture, wanted)
        record = record_of(base, files)
        if record is None:
            return False
        same = _is_same(base, record, wanted, files, str(picture.path))
        if record.get("model_sha256") != self.settings["model_sha256"]:
            self.replaced[str(record.get("model"))] += 1
        return same

    def run(self, force: bool = False, tell: OnTiles = lambda picture, done, total: None) -> Iterator[Outcome]:
        """Every picture's outcome, in order. What was done already is done again only with `force`.

        While the network works, the next picture is decoded and earlier ones are drawn and written. On a CPU, several
        pictures at once with a share of the threads each are done sooner than one at a time with all of them.
        """
        if "coco" in self.save and not force and self._whole.exists() and not is_merged(self._whole):
            refuse_foreign([self._whole])
        threads = torch.get_num_threads()
        at_once = max(1, min(AT_ONCE, threads, len(self.pictures)))
        # one more thread, which decodes meanwhile
        computing = ThreadPoolExecutor(at_once + 1, "ordnet-parse")
        writing = ThreadPoolExecutor(WRITERS, "ordnet-write")
        network = threading.Semaphore(at_once)
        room = _Room()
        over = threading.Event()

        def heard(picture: Listed, done: int, total: int) -> None:
            if over.is_set():  # a map may take hours, and stopping must not wait for it
                raise OrdnetError(f"{picture.path}: stopped after {done} of {total} tiles")
            tell(picture, done, total)

        def parsed(picture: Listed) -> "Future[None] | None":
            if not force and self.is_done(picture):
                return None
            about = self._about(picture)  # the picture's state before it is read
            is_map = "map" in about
            share = 1.0 if is_map else self._share_of_memory(picture)
            room.enter(share)
            try:
                with _named(picture):
                    if is_map:
                        torch.set_num_threads(threads)
                        with replacing(self.out / picture.stem, self._files(picture, about)):
                            self._run_map(picture, about, lambda done, total: heard(picture, done, total))
                        return writing.submit(room.leave, share)
                    pixels = read(open_rgb(picture.path, stretch=True) if self.stretch else picture.path)
                    with network:
                        # this number is per thread: as many pictures of this size as there is room for share them
                        torch.set_num_threads(max(1, threads // max(1, min(at_once, int(1 / max(share, 1e-3))))))
                        parse = self.parser(pixels, lambda done, total: heard(picture, done, total))
                return writing.submit(written, picture, parse, about, share)
            except BaseException:
                room.leave(share)
                raise

        def written(picture: Listed, parse: Parse, about: dict[str, Any], share: float) -> None:
            try:
                with _named(picture), replacing(self.out / picture.stem, self._files(picture, about)):
                    parse.save(self.out, picture.stem, self.save, self.strength, about)
            finally:
                room.leave(share)

        waiting: deque[tuple[Listed, Future[Future[None] | None]]] = deque()
        try:
            for picture in self.pictures:
                waiting.append((picture, computing.submit(parsed, picture)))
                if len(waiting) >= 2 * (at_once + 1):
                    yield _outcome(*waiting.popleft())
            while waiting:
                yield _outcome(*waiting.popleft())
        finally:  # also when the caller stops early
            over.set()
            computing.shutdown(cancel_futures=True)
            writing.shutdown()

    def _share_of_memory(self, picture: Listed) -> float:
        """This picture's share of the memory for all pictures under way; 1 or more if it has to go alone."""
        try:
            with opened(picture.path) as image:
                width, height = image.size
        except OrdnetError:
            return 0.0  # reading it will say what is wrong
        seen = math.prod(fitted_size(height, width, self.parser.known_size))
        return max(width * height / DECODED, seen / max(1, self.parser.whole_up_to))

    def merge_coco(self) -> int:
        """Join the COCO files that were written of the pictures into coco.json; returns their number."""
        bases = [self.out / picture.stem for picture in self.pictures]
        files = [file_of(base, "coco") for base in bases if f"{base.name}.coco.json" in results.written_of(base)]
        there = [file for file in files if file.exists()]
        write_text(self._whole, json.dumps(merged(there)) + "\n")
        return len(there)

    def _files(self, picture: Listed, about: dict[str, Any]) -> list[Path]:
        """The files that are written for it before its JSON."""
        base = self.out / picture.stem
        return map_files(base, self.save) if "map" in about else [file_of(base, what) for what in self.save]

    def _run_map(self, picture: Listed, about: dict[str, Any], progress: Progress | None) -> None:
        with Raster(picture.path, self.bands, self.stretch) as raster:
            long_side = about["long_side"]
            height, width = fitted_size(*raster.shape[:2], KnownSize(long_side))
            seen = "at its own size" if (height, width) == raster.shape[:2] else f"as {width:,} x {height:,} px"
            known = self.parser.long_side
            if long_side is None and known and max(height, width) > LARGER * known:
                seen += f" (the model's pictures had {known} px; --long-side sees it smaller)"
            self.tell(shown(f"{picture.path.name}: {raster.words()}; seen {seen}"))
            predict_map(
                self.parser, raster, self.out / picture.stem, self.save, strength=self.strength, about=about,
                progress=progress, long_side=long_side,
            )  # fmt: skip

    def _about(self, picture: Listed) -> dict[str, Any]:
        about = {"picture": str(picture.path), **_state(picture.path), **self.settings}
        if self.stretch:
            about["stretch"] = True
        if not needs_windows(picture.path, self.bands):
            return about
        about |= {"map": True, **({"bands": list(self.bands)} if self.bands else {})}
        # a map is not a scene of a certain size: unless a scale is asked for, it is seen at its own
        return {**about, "long_side": None} if self._own_scale and is_georeferenced(picture.path) else about


class VideoPrediction:
    """The videos that one of `world` processes has to parse."""

    def __init__(
        self,
        model: str,
        videos: Sequence[str],
        out: Path,
        *,
        strength: float = 0.5,
        label_frames: bool = False,
        smoothing: float = 0.0,
        rank: int = 0,
        world: int = 1,
        **options: Any,
    ) -> None:
        refuse_file(out)
        stems = Counter(stem_of(video) for video in videos)
        if twice := [stem for stem, count in stems.items() if count > 1]:
            raise OrdnetError(f"two videos are called {twice[0]}: give them folders of their own, with a command each")
        if smoothing and options.get("protocol", "whole") != "whole":
            raise OrdnetError("--smooth needs probabilities, which come from one pass: leave --protocol at whole")
        self.videos, self.out = list(videos)[rank::world], out
        self.parser, self.settings = _loaded(model, options)
        self.settings |= {"strength": strength, "smoothing": smoothing, "label_frames": label_frames}

    def is_done(self, video: str) -> bool:
        """Whether the video, as it is now, was parsed with this model and these settings."""
        base, files = self.out / stem_of(video), self._files(video)
        record = record_of(base, files)
        # earlier records had the name as it was given
        return record is not None and _is_same(
            base, record, wanted := self._about(video), files, wanted["video"], video
        )

    def run(self, video: str, tell: OnFrame = lambda done, total, rate: None) -> dict[str, Any]:
        strength, smoothing = self.settings["strength"], self.settings["smoothing"]
        with replacing(self.out / stem_of(video), self._files(video)):
            return predict_video(
                self.parser, video, self.out, strength=strength, label_frames=self.settings["label_frames"],
                smoothing=smoothing, about=self._about(video), tell=tell,
            )  # fmt: skip

    def _files(self, video: str) -> list[Path]:
        return video_files(self.out / stem_of(video), self.settings["label_frames"])

    def _about(self, video: str) -> dict[str, Any]:
        path = Path(video)
        if not path.is_file() and not is_endless(video):
            raise OrdnetError(f"no video at {video}")
        return ({"video": str(path.resolve()), **_state(path)} if path.is_file() else {"video": video}) | self.settings


def _is_same(base: Path, record: dict[str, Any], wanted: dict[str, Any], files: Sequence[Path], *names: str) -> bool:
    """Whether the files were made as `wanted`. Results of what has none of these names are not for us to overwrite."""
    made_of = record.get("picture") or record.get("video")
    if made_of and made_of not in names:
        what = f"{names[0]}: {base}.* are results of {made_of}"
        raise OrdnetError(f"{what}; choose another --out, or --force to replace them")
    kept = {key: value for key, value in wanted.items() if key not in ("model", "video")}  # either may have moved
    return all(record.get(key) == value for key, value in kept.items()) and all(file.exists() for file in files)


class _Room:
    """Memory for pictures under way, as shares of 1. A picture that needs all of it, or more, goes alone."""

    def __init__(self) -> None:
        self._free = 1.0
        self._changed = threading.Condition()

    def enter(self, share: float) -> None:
        share = min(share, 1.0)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= share - 1e-9)
            self._free -= share

    def leave(self, share: float) -> None:
        with self._changed:
            self._free += min(share, 1.0)
            self._changed.notify_all()


def _outcome(picture: Listed, parsed: "Future[Future[None] | None]") -> Outcome:
    """Wait until the picture has been parsed and written."""
    try:
        writing = parsed.result()
        if writing is not None:
            writing.result()
    except (OrdnetError, OSError) as error:
        message, name = shown(reason_of_writing(visible(error))), shown(str(picture.path))
        return Outcome(picture, failure=message if name in message else f"{name}: {message}")
    return Outcome(picture, skipped=writing is None)


@contextmanager
def _named(picture: Listed) -> Iterator[None]:
    """Turn running out of memory into an error that names the picture."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch has an exception of its own only for full GPUs
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise OrdnetError(f"{picture.path}: not enough memory; with a smaller --whole-up-to it is streamed") from None


def _loaded(model: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The parser, and the settings by which a later call recognises results of the same one."""
    file = find(model)
    parser = load(file, **options)
    return parser, {
        "model": str(model),
        "model_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "protocol": parser.protocol,
        "long_side": parser.long_side,
    }


def _state(path: Path) -> dict[str, int]:
    """Size and modification time, to notice that a file has changed."""
    found = stamp(path)
    if found is None:
        raise OrdnetError(f"{path} cannot be read: it is gone, or no file")
    return {"bytes": found[0], "modified": found[1]}
