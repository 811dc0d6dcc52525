"""Reading files that others have written: regular files only, bounded, with errors that name the file.

The header of a picture is checked before a decoder sees it. Pillow reads headers in Python and under a lock of ours.
Malicious ones take long: 4.5 million strips in a TIFF of 18 MB take 11 seconds and more than a gigabyte, ten megabytes
of JPEG markers 7 seconds, as many blanks in a PPM 4.
"""

import hashlib
import json
import re
import stat
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from ordnet.data.shards import member
from ordnet.errors import OrdnetError, reason

_LARGEST_TEXT = 100_000_000
_LARGEST_JSON = 2_000_000_000
"""Bytes: COCO's own annotations take 0.5 GB."""
_LARGEST_PICTURE = 1 << 30


def regular_file(path: str | Path) -> Path:
    """The path; an error if it is a folder, a pipe, a socket or a device, which may never end or never answer."""
    file = Path(path)
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):  # reading it will say what is wrong
        return file
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise OrdnetError(f"{file} cannot be read: it is {kind}, not a file")
    return file


def read_text(file: Path, missing: str, errors: str = "strict") -> str:
    """The text of a UTF-8 file; `missing` says what to do where there is none."""
    try:
        if (inside := member(file)) is not None:
            return inside.read(_LARGEST_TEXT).decode("utf-8-sig", errors)
        if regular_file(file).stat().st_size > _LARGEST_TEXT:
            raise OrdnetError(f"{file} has more than {_LARGEST_TEXT:,} bytes: no list of names is that long")
        return file.read_text(encoding="utf-8-sig", errors=errors)
    except FileNotFoundError:
        raise OrdnetError(missing) from None
    except OrdnetError:
        raise
    except (OSError, ValueError) as error:  # unreadable, not UTF-8, or no possible name
        raise OrdnetError(f"{file} is not a readable text file: {error}") from None


def read_bytes(file: Path, most: int = _LARGEST_PICTURE) -> bytes:
    """The content of a file. One of more bytes is refused: files with holes in them claim any size, and take none."""
    if (size := regular_file(file).stat().st_size) > most:
        raise OrdnetError(f"{file} has {size:,} bytes, more than the {most:,} that are read at once")
    return file.read_bytes()


def file_digest(file: Path) -> str:
    """A hash of the content, read piece by piece: a file may be larger than memory."""
    hashed = hashlib.blake2b(digest_size=16)
    with member(file) or regular_file(file).open("rb") as content:
        while piece := content.read(1 << 20):
            hashed.update(piece)
    return hashed.hexdigest()


def load_json(file: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_bytes(file, _LARGEST_JSON))
    except OrdnetError:
        raise
    except RecursionError:
        raise OrdnetError(f"{file} is not readable as JSON: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise OrdnetError(f"{file} is not readable as JSON: {reason(error)}") from None


_ENTRIES = 1000
"""Tags of a TIFF directory; cameras write a few dozen."""
_PIECES = 200_000
"""Strips or tiles: far more than one for each row of the tallest picture that is read at once."""
_BYTES = 32_000_000
"""All TIFF tags together: colour profiles and embedded texts take a few."""
_SEGMENTS = 5000
"""JPEG segments or PNG chunks before the pixels: large depth maps take some hundreds."""
_STRAY = 10_000
"""Bytes between JPEG segments that belong to none."""
_SCANS, _SEEN = 20, 4_000_000_000
"""Scans of a JPEG, of which encoders write up to ten; pixels that all of them go over, which takes a few seconds."""
_MARKER = re.compile(rb"\xff+([\x01-\xcf\xd8-\xfe])")
"""What ends the pixels of a JPEG's scan: anything but stuffing and restarts."""
_TEXT = 65_536
"""Bytes within which the numbers of a PPM must come."""
_COMMENTS = 1000
"""Comments among the pixels of a PPM in words: each has Pillow copy a megabyte."""
_RUNS = 20_000_000
"""Pixels of a BMP in run lengths, which Pillow unpacks one by one."""
_TILE = 200_000_000
"""Pixels of a TIFF's tile, which is decoded as a whole however small the picture is."""
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
"""TIFF's types → bytes of one value."""
_PIECE_TAGS = (273, 279, 324, 325)
"""Places and sizes of strips and tiles."""
_SIDE_TAGS = (256, 257, 322, 323)
"""Width and height of the picture and of a tile."""
_ORDERS = {b"II": "<", b"MM": ">"}


def check_header(file: BinaryIO) -> None:
    """Raise OrdnetError where the header is unreasonably large. The position in the file is kept.

    A merely broken header passes: the decoder reports it.
    """
    start = file.tell()
    try:
        head = file.read(16)
        if head[:2] in _ORDERS and len(head) == 16:
            _check_directory(file, start, head, _ORDERS[head[:2]])
        elif head[:2] == b"\xff\xd8":
            file.seek(start + 2)
            _check_segments(file)
        elif head[:8] == b"\x89PNG\r\n\x1a\n":
            file.seek(start + 8)
            _check_chunks(file)
        elif re.match(rb"P[1-7fF]\s", head):
            file.seek(start)
            _check_text(file)
        elif head[:2] == b"BM":
            _check_runs(head + file.read(18))
    finally:
        file.seek(start)


def _check_segments(file: BinaryIO) -> None:
    """JPEG: segments one after another until the pixels start."""
    segments = stray = 0
    while segments <= _SEGMENTS and stray <= _STRAY:
        byte = file.read(1)
        if byte != b"\xff":
            if not byte:
                return
            stray += 1
            continue
        marker = file.read(1)
        while marker == b"\xff" and stray <= _STRAY:  # fill bytes
            marker = file.read(1)
            stray += 1
        if not marker or marker in (b"\xda", b"\xd9"):  # the pixels start, or the picture ends
            return
        segments += 1
        if marker in b"\x00\x01\xd0\xd1\xd2\xd3\xd4\xd5\xd6\xd7\xd8":  # markers without content
            continue
        size = file.read(2)
        if len(size) < 2:
            return
        file.seek(max(0, int.from_bytes(size, "big") - 2), 1)
    what = f"more than {_SEGMENTS:,} segments" if segments > _SEGMENTS else f"more than {_STRAY:,} stray bytes"
    raise OrdnetError(f"its JPEG header has {what}")


def check_scans(file: BinaryIO, pixels: int) -> None:
    """JPEG, opened at its first scan: each further one goes over all pixels again, however few bytes it has.

    Raise OrdnetError where they would go over more than _SEEN in all. The place in the file is kept.
    """
    start, most, found = file.tell(), max(_SCANS, _SEEN // max(1, pixels)), 0
    try:
        while found <= most and (piece := file.read(1 << 20)):
            found += piece.count(b"\xff\xda")
        if found <= most:
            return
        # most of these may lie in what follows the picture: a film, another picture
        file.seek(start)
        content, place, scans = file.read(), 0, 1
        while scans <= most and (marker := _MARKER.search(content, place)) and marker[1] != b"\xd9":
            scans += marker[1] == b"\xda"
            size = 0 if marker[1] == b"\x01" else int.from_bytes(content[marker.end() : marker.end() + 2], "big")
            place = marker.end() + size
    finally:
        file.seek(start)
    if scans > most:
        raise OrdnetError(f"it goes over its pixels more than {most:,} times: save it anew")


def check_companions(path: Path, open_raster: Callable[[Path], Any]) -> None:
    """Raise OrdnetError where GDAL would be led to other files, or to the network, when it reads a raster: by overviews
    that a tag or the .aux.xml beside it names, or by a list in place of the .ovr or .msk beside it."""
    with closing(open_raster(path)) as file:
        elsewhere = file.tags(ns="OVERVIEWS")
    if elsewhere:
        raise OrdnetError(
            f"{path} refers to another file, {next(iter(elsewhere.values()))!r:.200}, which is not opened: "
            f"gdal_translate writes it anew without that"
        )
    for ending in (".ovr", ".OVR", ".msk", ".MSK"):
        beside = Path(f"{path}{ending}")
        if beside.exists():
            with regular_file(beside).open("rb") as companion:
                if companion.read(4) not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
                    raise OrdnetError(f"{beside} is no TIFF file: remove it, or make it anew with gdaladdo")
            check_companions(beside, open_raster)


def _check_chunks(file: BinaryIO) -> None:
    """PNG: chunks one after another until the pixels start."""
    for _ in range(_SEGMENTS):
        head = file.read(8)
        if len(head) < 8 or head[4:] in (b"IDAT", b"IEND"):
            return
        file.seek(int.from_bytes(head[:4], "big") + 4, 1)
    raise OrdnetError(f"its PNG header has more than {_SEGMENTS:,} chunks")


def _check_text(file: BinaryIO) -> None:
    """PPM and its kin: two or three numbers between blanks and comments."""
    head = file.read(_TEXT)
    words = re.sub(rb"#[^\n\r]*", b" ", head).split(maxsplit=3)
    if len(head) == _TEXT and len(words) < 4:
        raise OrdnetError(f"its header takes more than {_TEXT:,} bytes")
    comments, piece = 0, head if head[:2] in (b"P1", b"P2", b"P3") else b""
    while piece and comments <= _COMMENTS:
        comments += piece.count(b"#")
        piece = file.read(1 << 20)
    if comments > _COMMENTS:
        raise OrdnetError(f"it has more than {_COMMENTS:,} comments")


def _check_runs(head: bytes) -> None:
    """BMP: sides and packing stand at fixed places."""
    if len(head) < 34:
        return
    size, width, height, _, _, packing = struct.unpack("<IiiHHI", head[14:34])
    if size >= 40 and packing in (1, 2) and abs(width * height) > _RUNS:
        raise OrdnetError(f"{width} x {abs(height)} pixels in run lengths are more than the {_RUNS:,} that are read")


def _check_directory(file: BinaryIO, start: int, head: bytes, order: str) -> None:
    (magic,) = struct.unpack(f"{order}H", head[2:4])
    if magic == 42:
        place, counted, entry = struct.unpack(f"{order}I", head[4:8])[0], f"{order}H", f"{order}HHI4s"
    elif magic == 43:  # BigTIFF: the same with 64-bit numbers
        place, counted, entry = struct.unpack(f"{order}Q", head[8:16])[0], f"{order}Q", f"{order}HHQ8s"
    else:
        return
    if place >= 2**63:
        return  # no such place: the decoder says so
    file.seek(start + place)
    count = file.read(struct.calcsize(counted))
    if len(count) < struct.calcsize(counted):
        return
    (entries,) = struct.unpack(counted, count)
    if entries > _ENTRIES:
        raise OrdnetError(f"its TIFF directory has {entries:,} tags, more than the {_ENTRIES:,} that are read")
    total = 0
    table = file.read(entries * struct.calcsize(entry))
    whole = len(table) - len(table) % struct.calcsize(entry)
    sides = dict.fromkeys(_SIDE_TAGS, 0)
    for tag, kind, values, place in struct.iter_unpack(entry, table[:whole]):
        total += values * _SIZES.get(kind, 1)
        if tag in sides:
            sides[tag] = int.from_bytes(place[: _SIZES.get(kind, 1)], "little" if order == "<" else "big")
        if tag in _PIECE_TAGS and values > _PIECES:
            raise OrdnetError(f"it has {values:,} strips or tiles, more than the {_PIECES:,} that are read")
        if total > _BYTES:
            raise OrdnetError(f"its TIFF tags take more than {_BYTES:,} bytes")
    width, height, across, down = sides.values()
    if across * down > max(_TILE, 4 * width * height):
        raise OrdnetError(f"its tiles of {across} x {down} pixels are more than the {_TILE:,} that are read at once")
