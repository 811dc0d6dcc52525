"""Writing files so that a reader sees the old content or the new, never half of it."""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ordnet.errors import OrdnetError

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
"""The system does not let this user write there; a full disk and the like speak for themselves."""


class CannotWrite(OSError):
    """The place of a file may not be written to: `filename` is the name that the user knows."""

    def __str__(self) -> str:
        return cannot_write(self.filename, self.strerror or "")


def cannot_write(path: Path | str, why: str, option: str = "--out") -> str:
    """What is said of a place that may not be written to; `option` is what named it."""
    return f"cannot write to {path}: {why[:1].lower()}{why[1:]}; choose another {option}"


def refuse_unwritable(path: Path, option: str = "--out") -> None:
    """Refuse a file or folder that could not be made or filled, before the work that would then be lost."""
    # a file is written beside its old content; of folders that are missing, the first one's parent counts
    held = path.absolute()
    there = held if os.path.isdir(held) else next(each for each in held.parents if os.path.lexists(each))  # noqa: PTH112
    if not os.path.isdir(there):  # noqa: PTH112 (pathlib's raises an error where the folder above may not be read)
        raise OrdnetError(cannot_write(path, f"{there} is no folder", option))
    if not os.access(there, os.W_OK | os.X_OK):
        read_only = os.statvfs(there).f_flag & os.ST_RDONLY
        raise OrdnetError(cannot_write(path, os.strerror(errno.EROFS if read_only else errno.EACCES), option))


def refuse_file(out: Path) -> None:
    """Raise an error where --out has to be a folder that can be written to and is not."""
    refuse_unwritable(out)
    if out.exists() and not out.is_dir():
        raise OrdnetError(f"--out {out} is a file; give a folder")


def check_file(path: Path, endings: tuple[str, ...] | None = None, option: str = "--out") -> None:
    """Refuse a name that nothing can be written to, before the work begins; `option` is what named it."""
    refuse_unwritable(path, option)
    if endings and path.suffix.lower() not in endings:
        raise OrdnetError(f"--out {path}: expected a file that ends in {', '.join(endings)}")
    if path.is_dir():
        raise OrdnetError(f"{path} is a folder: name a file")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk, then rename it into place.

    The temporary name is random, so that several threads, processes and machines may write the same file at once.
    """
    # the ending stays last: libraries choose the format by it
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # restored after writing: some libraries make a file that nobody else may read
        mode = _usual_mode(temporary)
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename is not None and Path(error.filename) in (temporary, *path.parents):
            if error.errno in _REFUSED:
                raise CannotWrite(error.errno, error.strerror, str(path)) from None
            error.filename, error.filename2 = str(path), None  # the name that the user knows
        raise
    finally:
        with suppress(OSError):  # it was never made
            temporary.unlink(missing_ok=True)
    # the rename itself reaches the disk with the folder
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def visible(error: Exception) -> Exception:
    """The same error; where it names a hidden file, such as a mark of ours, it names that file's folder instead."""
    if isinstance(error, OSError) and error.filename is not None and Path(error.filename).name.startswith("."):
        error.filename = str(Path(error.filename).parent)
    return error


def _usual_mode(path: Path) -> int:
    """Create the file and return the mode that the user's umask gives it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        return stat.S_IMODE(os.fstat(file).st_mode)
    finally:
        os.close(file)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8. Invalid characters (of file names in another encoding) are escaped, as JSON reads them back."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))


@contextmanager
def filled_folder(out: Path) -> Iterator[Path]:
    """A folder whose content becomes that of `out`, which is new or empty, at the end; nothing of it if that is not
    reached.

    An empty folder stays where it is, and what is moved stays within it: it may be the one that the user is in (`.`),
    or a disk of its own.
    """
    there = out.exists()
    place = out if there else out.parent
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".ordnet-", dir=place) as made:
        folder = Path(made) / "new"
        folder.mkdir()
        yield folder
        if there:
            for entry in sorted(folder.iterdir()):
                entry.rename(out / entry.name)
        else:
            folder.rename(out)
