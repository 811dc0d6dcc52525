"""Reading pictures, and finding the ones a user names.

`open_rgb` makes upright 8-bit RGB of whatever a file holds, or raises an error that names the file. `find_pictures`
turns files, folders and patterns into a list of pictures and the names of their results.
"""

import glob
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError, features

from ordnet.data.reading import check_header, check_scans, regular_file
from ordnet.data.shards import INSIDE, member
from ordnet.errors import OrdnetError

Source = str | Path | BinaryIO


def _has(library: str) -> bool:
    """Whether Pillow was built with a library. Older versions warn of names that they do not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(features.check(library))


_OPTIONAL = {".avif": "avif", ".jp2": "jpg_2000", ".j2k": "jpg_2000"}
"""Endings that Pillow reads where it was built with a certain library."""
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm"),
    *(ending for ending, library in _OPTIONAL.items() if _has(library)),
)
ENDINGS = (*IMAGE_ENDINGS, ".gif")
UNREADABLE = (
    *(".heic", ".heif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".psd", ".svg"),
    *(ending for ending in _OPTIONAL if ending not in IMAGE_ENDINGS),
)
"""Endings of pictures that people have and that cannot be read: they are counted and named, never skipped silently."""
VIDEO_ENDINGS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")
"""Videos: a folder's are counted and named too."""

LARGEST = 200_000_000
"""Pixels of the largest picture that is decoded as a whole, 0.6 GB as RGB; ORDNET_MAX_PIXELS sets another number."""

FORMATS = (
    *("JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM", "GIF"),
    *(("AVIF",) if _has("avif") else ()),
    *(("JPEG2000",) if _has("jpg_2000") else ()),
)
"""Formats that are read, by Pillow's names: others need outside programs (PostScript) or are hardly tested."""

_ORIENTATION = 0x0112
# how to turn the stored picture upright, by the value of its EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)


def open_rgb(
    source: Source,
    at_least: tuple[int, int] | None = None,
    largest: int | None = None,
    formats: tuple[str, ...] = FORMATS,
    stretch: bool = False,
) -> Image.Image:
    """The picture as 8-bit RGB, upright; transparent parts are white.

    `at_least` is a (width, height) that suffices: a JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, never smaller
    than that. `largest` is the number of pixels beyond which the picture is refused before decoding. `formats` are the
    only ones tried, by Pillow's names. `stretch` is that of `as_rgb`.
    """
    with opened(source, largest, formats, pixels=True) as image:
        if at_least is not None:
            image.draft(None, at_least[::-1] if _orientation(image) in _SIDEWAYS else at_least)
        if stretch and isinstance(source, str | Path) and _deep_colours(image):
            return _turned(_stretched_colours(Path(source)), image)
        image.load()
        return upright_rgb(image, stretch)


def upright_rgb(image: Image.Image, stretch: bool = False) -> Image.Image:
    """An opened picture as 8-bit RGB, turned as its EXIF data says."""
    return _turned(as_rgb(image, stretch), image)


def _turned(picture: Image.Image, stored: Image.Image) -> Image.Image:
    move = _UPRIGHT.get(_orientation(stored))
    return picture if move is None else picture.transpose(move)


def _deep_colours(image: Image.Image) -> bool:
    """Whether the file has 16-bit colours, of which Pillow would give only the upper 8 bits."""
    return image.mode in ("RGB", "RGBA", "LA") and ";16" in str(getattr(image, "tile", ""))


def _stretched_colours(path: Path) -> Image.Image:
    """16-bit colours, each band stretched; only GDAL reads them with all their bits."""
    from ordnet.data.raster import Raster

    with Raster(path, stretch=True) as raster:
        return Image.fromarray(raster[: raster.shape[0], : raster.shape[1]])


def as_rgb(image: Image.Image, stretch: bool = False) -> Image.Image:
    """8-bit RGB from grey, 16-bit, paletted, CMYK or transparent pixels; the same object where it is RGB already.

    Grey values of 16 bits are divided by 257, so that 65535 becomes white. Scanners and cameras often use only a part
    of the 16 bits: with `stretch` the darkest and lightest half per cent become black and white, for 32 bits too.
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F" or image.mode.startswith("I"):
        pixels = np.asarray(image)
        return Image.fromarray(_stretched(pixels) if stretch else _eight_bits(pixels)).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


@contextmanager
def opened(
    source: Source, largest: int | None = None, formats: tuple[str, ...] = FORMATS, pixels: bool = False
) -> Iterator[Image.Image]:
    """The picture with only its header read; `pixels` is whether it will be decoded. What goes wrong while it is open
    becomes an error that names the file."""
    largest = largest_pixels() if largest is None else largest
    name = str(source) if isinstance(source, str | Path) else getattr(source, "name", "the picture")
    if isinstance(source, str | Path):
        source = (member(source) if INSIDE in str(source) else None) or regular_file(source)
    try:
        _check(source)
        with _no_limit(), Image.open(source, formats=list(formats)) as image:
            if image.width * image.height > largest:
                raise OrdnetError(
                    f"{image.width} x {image.height} pixels are more than the {largest:,} that are read at once: "
                    f"`ordnet predict` reads larger ones in windows with the extra `geo` (pip install 'ordnet[geo]'); "
                    f"or set ORDNET_MAX_PIXELS={image.width * image.height} and have the memory for it"
                )
            if pixels and image.format in ("JPEG", "MPO"):
                check_scans(image.fp, image.width * image.height)
            yield image
    except OrdnetError as error:
        raise OrdnetError(f"{name}: {error}") from None
    except FileNotFoundError:
        raise OrdnetError(f"no picture at {name}") from None
    except UnidentifiedImageError:
        ending = Path(name).suffix.lower()
        known = f"{ending} cannot be read here, convert it to JPEG or PNG" if ending in UNREADABLE else ""
        raise OrdnetError(
            f"{name} is not a picture that Pillow can read: {known or 'empty, cut off, or in another format'}"
        ) from None
    except Exception as error:  # Pillow's decoders raise whatever they stumble over in broken data
        if "truncated" in str(error).lower():  # Pillow's word, with a number that says nothing
            raise OrdnetError(f"{name} is cut off, its end is missing: copy or download it again") from None
        raise OrdnetError(f"{name} cannot be read: {error or type(error).__name__}") from None


_lock = threading.Lock()
_open_pictures = 0
_limit: int | None = None


def largest_pixels() -> int:
    """How many pixels a picture may have to be decoded as a whole."""
    words = os.environ.get("ORDNET_MAX_PIXELS")
    if words is None:
        return LARGEST
    if not (words.isascii() and words.isdecimal() and len(words) < 19 and int(words) > 0):
        raise OrdnetError(f"ORDNET_MAX_PIXELS is {words!r:.40}: expected a number of pixels, such as {LARGEST}")
    return int(words)


def _check(source: Source) -> None:
    """Check the header; a source that is open already keeps its position."""
    if isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            check_header(file)
    else:
        check_header(source)


@contextmanager
def _no_limit() -> Iterator[None]:
    """Lift Pillow's own limit on pixels, which `largest` replaces; some decoders check it again and again.

    Pillow keeps its limit in a global that other code may rely on, so it is restored as soon as no picture is open.
    """
    global _open_pictures, _limit
    with _lock:
        if _open_pictures == 0:
            _limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _open_pictures += 1
    try:
        yield
    finally:
        with _lock:
            _open_pictures -= 1
            if _open_pictures == 0:
                Image.MAX_IMAGE_PIXELS = _limit


# a worker that is forked while another thread reads a header would otherwise inherit a lock that nobody releases
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # broken EXIF data says nothing about the pixels
        return 1


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    """16-bit grey values (0…65535) → 8-bit, rounded."""
    if pixels.dtype.kind not in "ui" or pixels.min(initial=0) < 0 or pixels.max(initial=0) > 65535:
        raise OrdnetError(
            "32-bit pixels have no fixed white: save the picture with 8 or 16 bits per channel, or use --stretch"
        )
    return ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def _stretched(pixels: np.ndarray) -> np.ndarray:
    """Grey values of any kind → 8-bit; the darkest and the lightest half per cent become black and white."""
    finite = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = np.percentile(finite, (0.5, 99.5)) if finite.size else (0.0, 1.0)
    return np.clip((finite - low) / max(high - low, 1e-12) * 255 + 0.5, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Listed:
    """A picture that was found, and what its results are called."""

    path: Path
    """Absolute, links followed."""
    stem: str
    """The name of its results, without ending; with folders where they are needed to tell pictures apart."""


def find_pictures(
    words: Sequence[str],
    is_result: Callable[[Path], bool] = lambda path: False,
    tell: Callable[[str], object] = lambda message: None,
) -> list[Listed]:
    """Pictures by file (any ending), folder (with all folders in it) or pattern such as 'photos/*.jpg', or in shards
    by tar:PATH; each once.

    Pictures of which `is_result` says that an earlier call made them do not count, unless they are named one by one.
    `tell` is given a sentence about videos and files in formats that cannot be read, where a folder has some.

    A file's results are named after it, those of a folder's pictures keep their place in the folder. Where two would
    get one name, both keep their ending, and if that does not tell them apart, their folders.
    """
    names: dict[Path, str] = {}
    others: Counter[str] = Counter()
    results = 0
    for word in words:
        found, named = _expanded(word, others, is_result), Path(word).expanduser().is_file()
        taken = {path: name for path, name in found if named or not is_result(path)}
        results += len(found) - len(taken)
        names = {**names, **taken, **names}  # in order; the first name of a picture counts
    left_out = list(_left_out(others, ", ".join(words)))
    if not names:
        advice = "".join(f"; found {what}" for what in left_out)
        advice += f"; {results} results of earlier calls do not count" if results else ""
        raise OrdnetError(f"no pictures in {', '.join(words)}; looked for {' '.join(ENDINGS)}{advice}")
    for what in left_out:
        tell(f"left out {what}")
    return [Listed(path, stem) for path, stem in _told_apart(names).items()]


def _left_out(others: Mapping[str, int], where: str) -> Iterator[str]:
    """What was found of formats that cannot be read, and of videos."""
    if unreadable := {ending: count for ending, count in others.items() if ending in UNREADABLE}:
        yield f"{unreadable_words(unreadable)} in {where}"
    if videos := sorted(others.keys() - unreadable):
        count = sum(others[ending] for ending in videos)
        yield f"{count:,} video{'s' if count > 1 else ''} ({', '.join(videos)}): name videos one by one"


def unreadable_words(found: Mapping[str, int]) -> str:
    """Ending → number of files, as words that say what to do."""
    kinds = ", ".join(f"{count:,} {ending}" for ending, count in sorted(found.items()))
    return f"{kinds} (cannot be read here: convert to JPEG or PNG)"


def _expanded(word: str, others: Counter[str], is_result: Callable[[Path], bool]) -> list[tuple[Path, str]]:
    """Absolute paths and names with ending. A folder's videos, and files whose format cannot be read, are counted."""
    if word.startswith("tar:"):
        from ordnet.data import tar  # which reads pictures

        return [(Path(name).absolute(), f"{key}{Path(name).suffix}") for name, key in tar.pictures(word)]
    path = Path(word).expanduser()
    if path.is_dir():
        names = [found.relative_to(path) for found in sorted(path.rglob("*")) if found.is_file()]
        inside = {name: (path / name, name.suffix.lower()) for name in names if "/." not in f"/{name.as_posix()}"}
        known = (*UNREADABLE, *VIDEO_ENDINGS)
        others.update(ending for found, ending in inside.values() if ending in known and not is_result(found))
        return [(found.resolve(), name.as_posix()) for name, (found, ending) in inside.items() if ending in ENDINGS]
    if path.is_file():  # before patterns: a name may hold brackets
        return [(path.resolve(), path.name)]
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 (absolute patterns)
    if not found:
        raise OrdnetError(f"there is no picture, folder or match for {word}")
    return [(match.resolve(), match.name) for match in found if match.is_file()]


def _told_apart(names: dict[Path, str]) -> dict[Path, str]:
    root = Path(os.path.commonpath([path.parent for path in names]))
    longer = {
        path: (name.removesuffix(path.suffix), name, path.relative_to(root).as_posix()) for path, name in names.items()
    }
    level = dict.fromkeys(names, 0)
    while True:
        chosen = {path: longer[path][level[path]] for path in names}
        # on some file systems A and a are one name
        taken = Counter(stem.lower() for stem in chosen.values())
        clashing = [path for path, stem in chosen.items() if taken[stem.lower()] > 1 and level[path] < 2]
        if not clashing:
            return chosen
        for path in clashing:
            level[path] += 1


CREDIT = "Photo by danielbuechele, CC BY 2.0"
"""The licence asks that the author be named where the picture is shown."""


def sample_picture() -> Path:
    """An outdoor photograph, 640 x 427 JPEG (ordnet/samples/README.md has its origin and licence)."""
    return Path(str(files("ordnet"))) / "samples" / "china.jpg"
