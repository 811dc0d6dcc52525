"""A run's folder: what it holds, who may write to it, which files in it are the run's own, and its log.

settings.yaml  log.jsonl  curves.png  best.safetensors  last.safetensors  report.html  state/  tensorboard/

Only files that a run wrote are ever replaced or removed. `.ordnet-files` lists their names; it is written before any of
them, after a check that none of them exists yet.
"""

import fcntl
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ordnet.data.reading import regular_file
from ordnet.errors import OrdnetError
from ordnet.files import write_text

OWN = ("settings.yaml", "log.jsonl", "curves.png", "best.safetensors", "last.safetensors", "report.html",
       "state/state.pt", "state/previous.pt", "tensorboard")  # fmt: skip
"""What a run writes."""
_LIST = ".ordnet-files"
_BOARD = "events.out.tfevents.*"
"""What TensorBoard's writer calls its files."""


class RunFolder:
    """One run's files. Only one process at a time may write to them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.yaml"
        self.log = path / "log.jsonl"
        self.curves = path / "curves.png"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"
        self.report = path / "report.html"
        self.state = path / "state"
        self._lock: IO[str] | None = None
        self._made: list[Path] = []

    def claim(self) -> None:
        """Keep every other process out until this one ends, however it ends."""
        self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = regular_file(self.path / ".lock").open("a")
        except OSError as error:
            raise OrdnetError(f"the run folder {self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OrdnetError(f"another process is training in {self.path}; choose another --out") from None

    def release(self) -> None:
        """Let others in. If the run failed before it wrote anything, remove the folders it created."""
        if self._lock is None:
            return
        lock = self.path / ".lock"
        # our lock is empty, and our list names files
        own = {".lock"} if lock.exists() and lock.stat().st_size == 0 else set()
        own |= {_LIST} if self._listed() else set()
        if {path.name for path in self.path.iterdir()} <= own:
            for name in own:
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # one of them holds another run by now
                for path in self._made:
                    path.rmdir()
        self._lock.close()

    # ---- whose files these are -----------------------------------------------------------------------------------

    def refuse_foreign(self, board: bool = False) -> None:
        """Raise OrdnetError where a file that no run wrote has a name that this run would write to.

        `board` is whether the run writes for TensorBoard.
        """
        own = self._own()
        foreign = [name for name in _wanted(board) if name not in own and _is_there(self.path / name)]
        if self.state.exists() and not self.state.is_dir():
            foreign.append("state")
        if foreign:
            raise OrdnetError(
                f"{self.path / foreign[0]} is in the way: no run wrote it, and this one would overwrite it; "
                f"choose another --out, or move it away"
            )

    def own_all(self, board: bool = False) -> None:
        """Claim all names that a run writes; `refuse_foreign` must have found nobody else's files under them."""
        own = self._own() | set(_wanted(board))
        if self._listed() != own:
            write_text(self.path / _LIST, "".join(f"{name}\n" for name in OWN if name in own))

    def clear(self) -> None:
        """Remove what an earlier run wrote, and nothing else.

        Its state goes first: a run is whole as long as it can be resumed, wherever this is interrupted.
        """
        self.sweep()
        own = self._own()
        for name in (name for name in reversed(OWN) if name in own):
            path = self.path / name
            if name == "tensorboard":
                for file in path.glob(_BOARD):
                    file.unlink()
            else:
                path.unlink(missing_ok=True)
        for folder in (self.state, self.path / "tensorboard"):
            with suppress(OSError):  # it does not exist, or holds somebody else's files
                folder.rmdir()

    def sweep(self) -> None:
        """Remove files that a killed run was in the middle of writing (ordnet.files names them)."""
        names = {Path(name).name for name in (*OWN, _LIST)}
        for folder in (self.path, self.state):
            for path in folder.glob(".*.tmp*"):
                unfinished = re.fullmatch(r"\.(.+)\.[0-9a-f]{8}\.tmp(\.\w+)?", path.name)
                if unfinished and unfinished[1] + (unfinished[2] or "") in names:
                    path.unlink(missing_ok=True)

    def _own(self) -> set[str]:
        """The names that a run wrote here. Runs from before there was a list are recognised by their log."""
        listed = self._listed()
        if not listed and any(record.get("event") == "start" and "ordnet" in record for record in self.records()):
            return set(OWN)
        return listed

    def _listed(self) -> set[str]:
        try:
            return set(OWN) & set(regular_file(self.path / _LIST).read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError):
            return set()

    # ---- its log -------------------------------------------------------------------------------------------------

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def cut_log(self, size: int) -> None:
        """Drop what was logged after the state that is resumed: it will be logged again. A torn line gets its end."""
        if not self.log.exists():
            return
        with self.log.open("r+b") as file:
            file.truncate(min(size, self.log_size()))
            if self.log_size() == 0:
                return
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def records(self) -> list[dict[str, Any]]:
        """All that was logged: one record for each start, each resumption and each epoch. Torn lines are left out."""
        if not self.log.is_file():
            return []
        found = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and "event" in record:
                    found.append(record)
        return found

    def epochs(self) -> list[dict[str, Any]]:
        """The log's epoch records."""
        return [record for record in self.records() if record["event"] == "epoch"]

    def last_epoch(self) -> dict[str, Any]:
        """The record of a finished run's last epoch."""
        found = self.epochs()
        if not found:
            raise OrdnetError(
                f"{self.log} holds no epoch any more: the checkpoints beside it are as they were, but the figures of "
                f"this finished run are lost; score it with `ordnet evaluate {self.best}`, or train anew with --force"
            )
        return found[-1]


def _wanted(board: bool) -> tuple[str, ...]:
    return tuple(name for name in OWN if board or name != "tensorboard")


def _is_there(path: Path) -> bool:
    """Whether anything has that name, even a dangling link."""
    return path.exists() or path.is_symlink()
