"""A run's folder: what it holds, who may write to it, and its log.

settings.yaml  log.jsonl  curves.png  best.safetensors  last.safetensors  report.html  state/
"""

import fcntl
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ordnet.errors import OrdnetError

OWN = ("settings.yaml", "log.jsonl", "curves.png", "best.safetensors", "last.safetensors", "report.html", "state",
       "tensorboard")  # fmt: skip
"""What a run writes."""


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
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise OrdnetError(f"the run folder {self.path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OrdnetError(f"another process is training in {self.path}; choose another --out") from None
        for left_over in self.path.rglob(".*.tmp.*"):  # files that a killed run was just writing
            left_over.unlink()

    def release(self) -> None:
        """Let others in; a run that failed before it wrote anything leaves no folder of its own behind."""
        if self._lock is None:
            return
        if [path.name for path in self.path.iterdir()] == [".lock"]:
            (self.path / ".lock").unlink()
            with suppress(OSError):  # another run has come into the folder above
                for path in self._made:
                    path.rmdir()
        self._lock.close()

    def clear(self) -> None:
        """Take away what an earlier run wrote, and nothing else."""
        for name in OWN:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def append(self, record: dict[str, Any]) -> None:
        """Add one line to the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def cut_log(self, size: int) -> None:
        """Forget what was logged after the state that is resumed: it will be logged again."""
        if self.log_size() > size:
            with self.log.open("r+b") as file:
                file.truncate(size)

    def records(self) -> list[dict[str, Any]]:
        """All that was logged: one record for each start, each resumption and each epoch."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def epochs(self) -> list[dict[str, Any]]:
        """The log's epoch records."""
        return [record for record in self.records() if record["event"] == "epoch"]
