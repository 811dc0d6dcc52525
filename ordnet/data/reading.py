"""Reading files that others have written: regular files only, and errors that name them instead of trace-backs."""

import hashlib
import json
from pathlib import Path
from typing import Any

from ordnet.errors import OrdnetError
from ordnet.files import regular_file

_LARGEST_TEXT = 100_000_000


def read_text(file: Path, missing: str, errors: str = "strict") -> str:
    """The text of a UTF-8 file; `missing` says what to do where there is none."""
    try:
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
    with regular_file(file).open("rb") as content:
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
