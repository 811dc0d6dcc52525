"""Writing files so that a reader sees the old content or the new, never half of it."""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ordnet.errors import OrdnetError


def refuse_file(out: Path) -> None:
    """Raise an error where --out has to be a folder and is not."""
    if out.exists() and not out.is_dir():
        raise OrdnetError(f"--out {out} is a file; give a folder")


def check_file(path: Path, endings: tuple[str, ...] | None = None) -> None:
    """Refuse a name that nothing can be written to, before the work begins."""
    if endings and path.suffix.lower() not in endings:
        raise OrdnetError(f"--out {path}: expected a file that ends in {', '.join(endings)}")
    if path.is_dir():
        raise OrdnetError(f"{path} is a folder: name a file")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk, then rename it into place.

    The temporary name is random, so that several threads, processes and machines may write the same file at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # the ending stays last: libraries choose the format by it
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")
    try:
        # restored after writing: some libraries make a file that nobody else may read
        mode = _usual_mode(temporary)
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename is not None and Path(error.filename).name == temporary.name:
            error.filename, error.filename2 = str(path), None  # the name that the user knows
        raise
    finally:
        temporary.unlink(missing_ok=True)
    # the rename itself reaches the disk with the folder
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
