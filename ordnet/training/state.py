"""The state a run resumes from: written atomically, the previous one kept, read without running any pickle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ordnet.errors import OrdnetError
from ordnet.files import write_atomically

VERSION = 1


def save(folder: Path, state: dict[str, Any]) -> None:
    """Bring the state to disk as state.pt; what was there before becomes previous.pt."""
    current, previous = folder / "state.pt", folder / "previous.pt"

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            torch.save({**state, "version": VERSION}, file)
        # from here on the new state is complete: the old one may step aside
        if current.exists():
            current.replace(previous)

    try:
        write_atomically(current, write)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        raise OrdnetError(
            f"the state could not be written to {folder} ({error}); is the disk full? "
            f"The last good state is kept: make room and continue with --resume"
        ) from None


def load(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest readable state; None where there is none. A damaged one is passed over, said aloud."""
    for name in ("state.pt", "previous.pt"):
        path = folder / name
        if not path.exists():
            continue
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever the reader met in a damaged file
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            say(f"{path} is damaged ({reason}); trying the state before it")
            continue
        if state.get("version") != VERSION:
            raise OrdnetError(f"{path} was written by another version of ordnet (format {state.get('version')})")
        return state
    if any((folder / name).exists() for name in ("state.pt", "previous.pt")):
        raise OrdnetError(f"no state in {folder} can be read; start over with --force")
    return None
