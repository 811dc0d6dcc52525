"""What the readers of annotations share: paths that may lead outside, packed masks, coordinates."""

import base64
import binascii
import io
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.pictures import IMAGE_ENDINGS, opened
from ordnet.data.reading import regular_file
from ordnet.errors import OrdnetError

_FARTHEST = 1e7
"""Coordinates beyond so many pixels are mistakes, and numbers near the largest there are would overflow."""
_LARGEST_MASK = 100_000_000
"""Bytes of a packed mask: beyond that it is a trap, not a mask."""


def inside(folder: Path, name: str) -> Path:
    """The file `name` below `folder`. A name that leads outside, by .. or a link, is refused."""
    try:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OrdnetError(f"{name!r} counts as missing: it leads out of {folder}")
        if not path.is_file():
            raise OrdnetError(f"{path} is missing")
    except (ValueError, OSError, RuntimeError) as error:  # a NUL byte, a name too long, links in a circle
        if isinstance(error, OrdnetError):
            raise
        raise OrdnetError(f"{name!r:.200} is missing in {folder}: {error}") from None
    return path


def somewhere_inside(folder: Path, name: str) -> Path:
    """The file `name` below `folder` or, if it is not there, below the one folder in it that has it: images/default."""
    try:
        return inside(folder, name)
    except OrdnetError as error:
        found = []
        for deeper in sorted(folder.iterdir()) if folder.is_dir() else ():
            with suppress(OrdnetError):
                found.append(inside(folder, f"{deeper.name}/{name}"))
        if len(found) != 1:
            raise error from None
        return found[0]


def picture_for(stem: str, folders: Sequence[Path]) -> Path | None:
    """The picture of that name, with whatever ending, in the first of the folders that has it."""
    candidates = (folder / f"{stem}{ending}" for folder in folders for ending in (*IMAGE_ENDINGS, *_UPPER))
    return next((path for path in candidates if path.is_file()), None)


_UPPER = (".JPG", ".JPEG", ".PNG")


def points(values: Any, least: int = 0) -> np.ndarray:
    """A list of x, y as (N, 2). An error where it is anything else, or has fewer than `least` points."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        found = np.empty(0)
    if found.ndim != 2 or found.shape[1] != 2 or len(found) < least:
        raise OrdnetError(f"expected a list of points x, y, got {values!r:.80}")
    if not (np.abs(found) <= _FARTHEST).all():  # also false for NaN
        raise OrdnetError(f"a list of points x, y has coordinates beyond {_FARTHEST:.0e}, or none: {values!r:.80}")
    return found


def unpacked_mask(text: Any, compressed: bool) -> np.ndarray:
    """A mask (H, W) bool from a PNG in base64, `compressed` once more by zlib as Supervisely does."""
    try:
        content = base64.b64decode(text, validate=True)
        if compressed:
            unzip = zlib.decompressobj()
            content = unzip.decompress(content, _LARGEST_MASK)
            if unzip.unconsumed_tail:
                raise ValueError(f"more than {_LARGEST_MASK:,} bytes")
    except (binascii.Error, TypeError, ValueError, zlib.error) as error:
        raise OrdnetError(f"a packed mask is broken: {error}") from None
    with opened(io.BytesIO(content), formats=("PNG",)) as image:
        pixels = np.asarray(image)
    # Supervisely writes grey or RGBA, whose last channel says what is covered
    return (pixels[..., -1] if pixels.ndim == 3 else pixels) > 0


def reader_of(path: Path) -> Callable[[], bytes]:
    """Reads a picture's file when it is needed: thousands of pictures do not fit into memory."""
    return lambda: regular_file(path).read_bytes()
