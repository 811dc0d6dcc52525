"""Which pictures a user means by files, folders and patterns, and what their results are called."""

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ordnet.data.layout import IMAGE_ENDINGS
from ordnet.errors import OrdnetError

ENDINGS = (*IMAGE_ENDINGS, ".gif")


@dataclass(frozen=True)
class Listed:
    path: Path
    """Absolute, links followed."""
    stem: str
    """What its results are called: no ending, folders where they are needed to tell pictures apart."""


def find_pictures(words: Sequence[str], leave_out: Path | None = None) -> list[Listed]:
    """Pictures by file (any ending), folder (with all folders in it) or pattern such as 'photos/*.jpg', each once.

    `leave_out` is a folder whose pictures do not count: that of the results.

    A file's results are named after it, those of a folder's pictures keep their place in the folder. Where two would
    get one name, both keep their ending, and if that does not tell them apart, their folders.
    """
    names: dict[Path, str] = {}
    for word in words:
        for path, name in _expanded(word):
            if leave_out is None or leave_out.resolve() not in path.parents:
                names.setdefault(path, name)
    if not names:
        raise OrdnetError(f"no pictures in {', '.join(words)}; looked for {' '.join(ENDINGS)}")
    return [Listed(path, stem) for path, stem in _told_apart(names).items()]


def _expanded(word: str) -> list[tuple[Path, str]]:
    """Absolute paths and names with ending."""
    path = Path(word).expanduser()
    if path.is_dir():
        return [
            (found.resolve(), found.relative_to(path).as_posix())
            for found in sorted(path.rglob("*"))
            if found.suffix.lower() in ENDINGS and not _hidden(found.relative_to(path)) and found.is_file()
        ]
    if path.is_file():  # before patterns: a name may hold brackets
        return [(path.resolve(), path.name)]
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 (absolute patterns)
    if not found:
        raise OrdnetError(f"there is no picture, folder or match for {word}")
    return [(match.resolve(), match.name) for match in found if match.is_file()]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _told_apart(names: dict[Path, str]) -> dict[Path, str]:
    root = Path(os.path.commonpath([path.parent for path in names]))
    longer = {
        path: (name.removesuffix(path.suffix), name, path.relative_to(root).as_posix()) for path, name in names.items()
    }
    level = dict.fromkeys(names, 0)
    while True:
        chosen = {path: longer[path][level[path]] for path in names}
        # on some file systems A and a are one name
        taken = Counter(stem.lower() for stem in chosen.values())
        clashing = [path for path, stem in chosen.items() if taken[stem.lower()] > 1 and level[path] < 2]
        if not clashing:
            return chosen
        for path in clashing:
            level[path] += 1
