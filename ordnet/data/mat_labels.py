"""Labels in MATLAB files, kept as PNGs after the first reading.

The PNGs lie in a folder beside the labels' own, or under the user's cache directory where that cannot be written. They
hold the raw values. Each carries a stamp of the file it was made from, so that a changed file is read anew; a damaged
PNG counts as none.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ordnet.data.pictures import opened
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically

_STAMP = "ordnet-source"


def read_mat(path: str, key: str) -> np.ndarray:
    """Raw values (H, W) of the variable `key`; "GTcls.Segmentation" is a field of a structure."""
    source = Path(path)
    try:
        # taken before reading: a file that changes meanwhile does not fit its stamp and is read again
        status = source.stat()
    except OSError as error:
        raise OrdnetError(f"no label at {path}: {error.strerror}") from None
    stamp = f"{key} {status.st_size} {status.st_mtime_ns}"
    places = _places(source)
    for place in places:
        raw = _kept(place, stamp)
        if raw is not None:
            return raw
    raw = _load(source, key)
    _keep(raw, stamp, places)
    return raw


def _places(source: Path) -> list[Path]:
    """Where the PNG may lie, in order of preference."""
    folder = source.parent
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    mark = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    name = f"{source.stem}.png"
    return [folder.with_name(f"{folder.name}.png-cache") / name, Path(base, "ordnet", "labels", mark, name)]


def _kept(place: Path, stamp: str) -> np.ndarray | None:
    try:
        with opened(place) as image:
            return np.asarray(image) if image.info.get(_STAMP) == stamp else None
    except OrdnetError:
        return None


def _keep(raw: np.ndarray, stamp: str, places: list[Path]) -> None:
    note = PngInfo()
    note.add_text(_STAMP, stamp)
    picture = Image.fromarray(raw)
    for place in places:
        try:
            write_atomically(place, lambda temporary: picture.save(temporary, pnginfo=note))
            return
        except OSError:  # read-only or full: the next place, or none; the label has been read all the same
            continue


def _load(source: Path, key: str) -> np.ndarray:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise OrdnetError(f"reading {source} needs scipy: pip install 'ordnet[coco]'") from None
    variable, _, field = key.partition(".")
    try:
        value = loadmat(str(source), variable_names=[variable])[variable]
        raw = np.asarray(value[field][0, 0] if field else value)
    except Exception as error:  # scipy raises whatever it stumbles over in broken data
        raise OrdnetError(f"{source} holds no readable label `{key}`: {error or type(error).__name__}") from None
    if raw.ndim != 2 or raw.size == 0 or raw.dtype.kind not in "uif":
        raise OrdnetError(
            f"{source}: `{key}` has shape {raw.shape} and type {raw.dtype}; expected one number per pixel"
        )
    if not (np.isfinite(raw).all() and raw.min() >= 0 and raw.max() <= 65535 and (raw == np.floor(raw)).all()):
        raise OrdnetError(f"{source}: `{key}` holds values other than whole numbers from 0 to 65535")
    return raw.astype(np.uint8 if raw.max() < 256 else np.uint16)
