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
from pathlib import Path
from typing import Any, BinaryIO

from ordnet.data.shards import member
from ordnet.errors import OrdnetError

_LARGEST_TEXT = 100_000_000


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
        return json.loads(regular_file(file).read_bytes())
    except OrdnetError:
        raise
    except RecursionError:
        raise OrdnetError(f"{file} is not readable as JSON: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise OrdnetError(f"{file} is not readable as JSON: {error}") from None


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
_TEXT = 65_536
"""Bytes within which the numbers of a PPM must come."""
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
"""TIFF's types → bytes of one value."""
_PIECE_TAGS = (273, 279, 324, 325)
"""Places and sizes of strips and tiles."""
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
    for tag, kind, values, _ in struct.iter_unpack(entry, table[:whole]):
        total += values * _SIZES.get(kind, 1)
        if tag in _PIECE_TAGS and values > _PIECES:
            raise OrdnetError(f"it has {values:,} strips or tiles, more than the {_PIECES:,} that are read")
        if total > _BYTES:
            raise OrdnetError(f"its TIFF tags take more than {_BYTES:,} bytes")
