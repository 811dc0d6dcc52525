"""Files inside tar archives, read in place: `street-000.tar!/0001.jpg` is the name of one.

Where the members of an archive begin is looked up once and remembered in the user's cache directory. Only regular
members count, and nothing is ever unpacked.
"""

import hashlib
import io
import json
import os
import stat
import tarfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from ordnet.errors import OrdnetError, is_printable
from ordnet.files import write_text

INSIDE = ".tar!/"
"""What separates an archive's name, without its ending, from a member's."""
_LARGEST_MEMBER = 1 << 30
"""Bytes that are read at once; no picture has more."""
_MOST_MEMBERS = 2_000_000
_LARGEST_HEADER = 1 << 20
"""Bytes of a member's long name and other extended headers."""
_REMEMBERED = 100
"""Archives of fewer members are scanned faster than their index is read."""

Index = dict[str, tuple[int, int]]
"""A member's name → where its bytes begin in the archive, and how many there are."""


def stamp(name: str | Path) -> tuple[int, int] | None:
    """Size and modification time of a file or a member; None if it is missing, generated, or no regular file."""
    try:
        if (parts := _parts(name)) is not None:
            status = parts[0].stat()
            found = shard_index(parts[0]).get(parts[1])
            return None if found is None else (found[1], status.st_mtime_ns)
        status = Path(name).stat()
    except (OSError, ValueError):  # an OrdnetError too: an archive that cannot be read has no members
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def member_name(shard: Path, name: str) -> str:
    """A member's full name, such as street-000.tar!/0001.jpg."""
    return f"{shard}!/{name}"


def member(name: str | Path) -> io.BytesIO | None:
    """The content of a member by its name, such as street-000.tar!/0001.jpg; None where the name is that of a file."""
    parts = _parts(name)
    if parts is None:
        return None
    shard, inside = parts
    place = shard_index(shard).get(inside)
    if place is None:
        raise OrdnetError(f"{shard} has no member {inside}")
    start, size = place
    if size > _LARGEST_MEMBER:
        raise OrdnetError(f"{name} has {size:,} bytes, more than the {_LARGEST_MEMBER:,} that are read at once")
    try:
        with shard.open("rb") as file:
            file.seek(start)
            content = file.read(size)
    except OSError as error:
        raise OrdnetError(f"{name} cannot be read: {error.strerror or error}") from None
    if len(content) < size:
        raise OrdnetError(f"{name} is cut off: {len(content):,} of {size:,} bytes are there")
    return io.BytesIO(content)


def shard_index(shard: Path) -> Index:
    """The regular members of a tar archive, in its order."""
    try:
        status = shard.stat()
    except OSError as error:
        raise OrdnetError(f"no shard {shard}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):  # a pipe may never end
        raise OrdnetError(f"the shard {shard} is no file")
    return _index(shard, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _index(shard: Path, size: int, modified: int) -> Index:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    mark = hashlib.sha256(str(shard.resolve()).encode(errors="replace")).hexdigest()[:24]
    store = Path(base, "ordnet", "shards", f"{mark}.json")
    try:
        kept = json.loads(store.read_bytes())
        if kept["stamp"] == [size, modified]:
            found = {name: (start, length) for name, start, length in kept["members"]}
            if all(_is_place(name, *place, size) for name, place in found.items()):
                return found
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # none yet, or damaged
        pass
    found = _looked_through(shard, size)
    if len(found) > _REMEMBERED:
        listed = [[name, *place] for name, place in found.items()]
        with suppress(OSError, ValueError):  # read-only or full: the only loss is scanning again
            write_text(store, json.dumps({"stamp": [size, modified], "members": listed}))
    return found


def _is_place(name: Any, start: Any, length: Any, size: int) -> bool:
    numbers = isinstance(start, int) and isinstance(length, int)
    return isinstance(name, str) and numbers and 0 <= start <= start + length <= size


class _Headers:
    """An archive of which only headers may be read: tarfile would load names and comments of any length."""

    def __init__(self, file: IO[bytes]) -> None:
        self.tell, self.seek, self._read = file.tell, file.seek, file.read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise OrdnetError(f"a header of {size:,} bytes")
        return self._read(size)


def _looked_through(shard: Path, size: int) -> Index:
    found: Index = {}
    last, end = "its beginning", 0
    try:
        with shard.open("rb") as file:
            archive = tarfile.TarFile(fileobj=_Headers(file), mode="r")  # type: ignore[arg-type]
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # or all headers would be kept
                if entry.offset < end or entry.size < 0 or entry.offset_data + entry.size > size:
                    raise OrdnetError(f"the member {entry.name} claims to go beyond the archive's end")
                last, end = entry.name, entry.offset_data
                if entry.isreg() and not entry.issparse():
                    found[_plain(entry.name)] = (entry.offset_data, entry.size)
                if len(found) > _MOST_MEMBERS:
                    raise OrdnetError(f"more than {_MOST_MEMBERS:,} members: make more and smaller shards")
            file.seek(archive.offset)
            if any(file.read(tarfile.BLOCKSIZE)):  # tarfile takes any broken header but the first for the end
                raise OrdnetError("the next header is broken")
    except (tarfile.TarError, OrdnetError, OSError, ValueError) as error:
        packed = shard.stat().st_size > 2 and _is_packed(shard)
        advice = "; it is compressed: unpack it, shards are plain tar files" if packed else ""
        raise OrdnetError(f"{shard} is no whole tar archive: after {last}: {error}{advice}") from None
    return found


def _is_packed(shard: Path) -> bool:
    with shard.open("rb") as file:
        return file.read(3)[:2] in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5")  # gzip, bzip2, xz, zstandard


def _plain(name: str) -> str:
    """A member's name without ./ and double slashes; results are named after it, so it must not lead elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts or not is_printable(name):
        raise OrdnetError(f"a member is called {name!r}: expected a name below the archive, such as 0001.jpg")
    return "/".join(parts)


def _parts(name: str | Path) -> tuple[Path, str] | None:
    """Archive and member of a member's name."""
    before, mark, inside = str(name).partition(INSIDE)
    return (Path(before + ".tar"), inside) if mark else None
