"""Reading label files: one raw value per pixel, from index pictures, colour pictures or MATLAB files.

MATLAB files are slow to read and are kept as PNGs of their raw values, in a folder beside the labels' own, or under the
user's cache directory where that cannot be written. Each PNG carries a stamp of the file it was made from, so that a
changed file is read again; a damaged PNG counts as none.
"""

import hashlib
import math
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ordnet.data.labels import Colour
from ordnet.data.pictures import largest_pixels, opened
from ordnet.data.reading import regular_file
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically

LABEL_ENDINGS = (".png", ".bmp", ".tif", ".tiff")
"""Formats that keep every value exactly."""
LOSSY_ENDINGS = (".jpg", ".jpeg")
"""Formats that change values a little, so that the nearest known one is taken."""
_APART = 32
"""How far values or colours must lie apart so that JPEG's changes cannot confuse them."""

# Pillow spreads grey values of 2 and 4 bits over 0…255; labels need the stored ones
_SPREAD = {"L;2": 85, "L;4": 17}
_STAMP = "ordnet-source"
_SHOWN = 8
"""Colours of a picture that an error names."""


def read_index(path: str) -> np.ndarray:
    """Raw values (H, W) of a grey picture (1 to 16 bits), or the indices of a paletted one.

    Colour pictures in which red, green and blue are equal everywhere count as grey.
    """
    with opened(path, pixels=True) as image:
        spread = _SPREAD.get(_stored_mode(image), 1)
        raw = np.asarray(image)
    if raw.ndim == 3 and (raw[..., :3] == raw[..., :1]).all() and not (raw[..., 3:] != 255).any():
        raw = raw[..., 0]
    if raw.ndim != 2 or raw.dtype.kind not in "uib":
        raise OrdnetError(
            f"{path} is a colour picture ({image.mode}), but a label holds one class index per pixel: save it as an "
            "8-bit grey or paletted PNG, or in the layout of folder:PATH give each class its colour in classes.txt "
            f"(`road #804080`){_colours_words(raw)}"
        )
    return raw.astype(np.uint8) if raw.dtype == bool else raw // spread if spread > 1 else raw


def _colours_words(raw: np.ndarray) -> str:
    """Some of the colours of a picture (H, W, 3 or 4), the most frequent first."""
    if raw.ndim != 3 or raw.dtype != np.uint8:
        return ""
    step = max(1, max(raw.shape[:2]) // 512)
    values, counts = np.unique(raw[::step, ::step, :3].reshape(-1, 3), axis=0, return_counts=True)
    shown = ["#{:02x}{:02x}{:02x}".format(*values[place]) for place in np.argsort(-counts)[:_SHOWN]]
    return f"; it has {', '.join(shown)}" + (f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else "")


def read_colours(path: str, palette: Mapping[Colour, int]) -> np.ndarray:
    """Raw values (H, W) of a picture whose colours stand for them."""
    with opened(path, pixels=True) as image:
        colours = np.asarray(image.convert("RGB"))
    return _values(colours, palette, path)


def read_label(path: str, palette: Mapping[Colour, int], one_bit: int = 1) -> np.ndarray:
    """Raw values (H, W): indices of a grey or paletted picture, otherwise through the palette.

    `one_bit` is the raw value of the set pixels of a 1-bit mask.
    """
    with opened(path) as image:
        coloured, bits = image.mode in ("RGB", "RGBA", "RGBX"), image.mode == "1"
    raw = read_colours(path, palette) if coloured and palette else read_index(path)
    return raw * np.uint8(one_bit) if bits else raw


def read_lossy(path: str, palette: Mapping[Colour, int], values: Sequence[int]) -> np.ndarray:
    """Raw values (H, W) of a picture whose pixels are only near their values or colours: the nearest of them."""
    with opened(path, pixels=True) as image:
        pixels = np.asarray(image.convert("RGB" if palette else "L"), np.int32)
    if not palette:
        # a look-up table over all grey values
        table = np.array(values)[np.abs(np.arange(256)[:, None] - np.array(values)[None]).argmin(axis=1)]
        return table[pixels]
    known = np.array(list(palette), np.int32)
    nearest = np.zeros(pixels.shape[:2], np.int64)
    distance = np.full(pixels.shape[:2], np.iinfo(np.int32).max, np.int32)
    for place, colour in enumerate(known):  # one colour at a time: all at once would take gigabytes
        here = ((pixels - colour) ** 2).sum(axis=2)
        np.copyto(nearest, place, where=here < distance)
        np.minimum(distance, here, out=distance)
    return np.array(list(palette.values()), np.int32)[nearest]


def far_apart(values: Collection[int] | Collection[Colour]) -> bool:
    """Whether JPEG's changes can never turn one value or colour into another."""
    known = np.array(list(values), np.int32).reshape(len(values), -1)
    distance = np.abs(known[:, None] - known[None]).max(axis=2) + 1000 * np.eye(len(known), dtype=np.int32)
    return int(distance.min(initial=1000)) >= _APART


def _values(colours: np.ndarray, palette: Mapping[Colour, int], path: str) -> np.ndarray:
    codes = _code(colours.astype(np.int32))
    known = _code(np.array(list(palette), dtype=np.int32))
    order = np.argsort(known)
    place = order[np.searchsorted(known, codes, sorter=order).clip(max=len(known) - 1)]
    strange = known[place] != codes
    if strange.any():
        found, counts = np.unique(codes[strange], return_counts=True)
        largest = np.argsort(-counts)[:8]
        listed = ", ".join(f"#{found[i]:06x} ({counts[i]:,} pixels)" for i in largest)
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        raise OrdnetError(
            f"{path}: colours that no class has: {listed}{more}; add them to classes.txt as a class (`road #804080`) "
            "or as `ignore #000000`. Many such colours come from smoothing or lossy files: save labels without either"
        )
    return np.array(list(palette.values()), dtype=np.int32)[place]


def _code(colours: np.ndarray) -> np.ndarray:
    """Colours (…, 3) → one number each, 0xrrggbb."""
    return colours[..., 0] << 16 | colours[..., 1] << 8 | colours[..., 2]


def _stored_mode(image: Image.Image) -> str:
    """How the file packs its pixels, in Pillow's words, where that is one word."""
    tiles = getattr(image, "tile", None)
    return str(tiles[0][3]) if tiles else image.mode


def read_mat(path: str, key: str) -> np.ndarray:
    """Raw values (H, W) of the variable `key`; "GTcls.Segmentation" is a field of a structure."""
    source = Path(path)
    regular_file(source)
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
    """The paths where the PNG may lie, the preferred one first."""
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
        from scipy.io import loadmat, whosmat
    except ImportError:
        raise OrdnetError(f"reading {source} needs scipy: pip install 'ordnet[coco]'") from None
    variable, _, field = key.partition(".")
    try:
        # shapes come from headers: a small file can claim, and unpack to, more than there is memory
        claimed = max((math.prod(shape) for name, shape, _ in whosmat(str(source)) if name == variable), default=0)
        if claimed > largest_pixels():
            raise OrdnetError(f"{claimed:,} values are more than the {largest_pixels():,} that are read at once")
        _refuse_bombs(source)
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


def _refuse_bombs(source: Path) -> None:
    """Raise OrdnetError where variables of a MATLAB file unpack to more than a label takes: headers do not tell how
    large the fields of a structure are.

    After 128 bytes, whose last two give the byte order, comes a kind (4 bytes), a length (4 bytes) and the content for
    each variable; kind 15 is packed by zlib.
    """
    most = 2 * largest_pixels() + (1 << 20)  # labels go up to 65535
    with source.open("rb") as file:
        order: Literal["little", "big"] = "little" if file.read(128)[126:] == b"IM" else "big"
        while len(tag := file.read(8)) == 8:
            kind, size = (int.from_bytes(part, order) for part in (tag[:4], tag[4:]))
            end, unpacked, packer = file.tell() + size, 0, zlib.decompressobj()
            while kind == 15 and (piece := packer.unconsumed_tail or file.read(min(1 << 16, end - file.tell()))):
                unpacked += len(packer.decompress(piece, 1 << 20))
                if unpacked > most:
                    raise OrdnetError(f"it unpacks to more than {most:,} bytes")
            file.seek(end)
