"""Files on the Hugging Face hub, by `hf:user/name[@revision][/file]`, and an offline mirror of it.

A revision is a commit, a branch or a tag; without one the hub's `main` is meant. When weights for training are first
fetched, the commit of `main` is remembered on this computer, and later runs use the same one.

With the environment variable ORDNET_HUB=FOLDER nothing goes over the network: files are read from and written to
FOLDER/user/name/file, whatever the revision.
"""

import json
import os
import re
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from ordnet.errors import OrdnetError
from ordnet.files import write_atomically, write_text

PREFIX = "hf:"
FILE = "model.safetensors"
"""The file that is meant where an address names none."""
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_COMMIT = r"[0-9a-f]{40}"


def is_address(text: str | Path) -> bool:
    return str(text).startswith(PREFIX)


def split(address: str | Path) -> tuple[str, str, str | None]:
    """hf:user/name[@revision][/file] → the repository, the file, and the revision if one is named."""
    user, _, rest = str(address).removeprefix(PREFIX).partition("/")
    name, _, file = rest.partition("/")
    name, at, revision = name.partition("@")
    if at and not re.fullmatch(_WORD, revision):
        raise OrdnetError(f"{address}: {revision!r} is no revision; expected a commit, a branch or a tag after @")
    return f"{user}/{name}", file or FILE, revision or None


def locate(address: str | Path) -> Path:
    """hf:user/name[@revision][/file] → the file on this machine, downloaded if need be."""
    return fetch(*split(address))


def fetch(repo: str, file: str, revision: str | None = None) -> Path:
    """A file of the repository user/name; one that was fetched before comes from the cache."""
    check(repo)
    if ".." in Path(file).parts or Path(file).is_absolute():
        raise OrdnetError(f"hf:{repo}/{file} leads out of its repository")
    if root := mirror():
        path = root / repo / file
        if not path.is_file():
            raise OrdnetError(f"hf:{repo}/{file}: there is no {path} (ORDNET_HUB names {root} as the hub)")
        return path
    hub = _library()
    try:
        return _download(hub, repo, file, revision=revision)
    except Exception as error:  # whatever the library's HTTP client met
        raise OrdnetError(f"hf:{repo}/{file} cannot be had: {_reason(hub, error, repo)}") from None


def fetch_checked(repo: str, file: str, revision: str | None) -> tuple[Path, str, str | None]:
    """A file of the hub at a revision → the file, the commit it is of, and the sha256 that the hub gives for it.

    Without a revision it is the commit that was taken the first time. A file that was fetched before comes from the
    cache; without a network, its hash cannot be asked for (None).
    """
    check(repo)
    hub = _library()
    asked = revision or _known_commits().get(repo) or "main"
    try:
        path = _download(hub, repo, file, revision=asked, etag_timeout=10)
    except Exception as error:  # whatever the library's HTTP client met
        raise OrdnetError(_reason(hub, error, repo)) from None
    # SNAPSHOTS/commit/folders/file
    parts = path.parts
    commit = parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-2] else asked
    if re.fullmatch(_COMMIT, commit) and revision in (None, "main"):
        _remember(repo, commit)
    # large files are kept in the cache under the hash of their content
    name = path.resolve().name
    return path, commit, name if re.fullmatch("[0-9a-f]{64}", name) else None


def _download(hub: Any, repo: str, file: str, **options: Any) -> Path:
    """The file; from the cache alone where the hub's name cannot be looked up.

    The library would try five times, for half a minute, before giving up. Behind a proxy this says nothing, since the
    proxy looks names up.
    """
    offline = False
    if not getproxies():
        try:
            socket.getaddrinfo(urlsplit(hub.constants.ENDPOINT).hostname, None)
        except OSError:
            offline = True
    return Path(hub.hf_hub_download(repo, file, local_files_only=offline, **options))


def _memory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ordnet", "hub_revisions.json")


def _known_commits() -> dict[str, str]:
    """Repository → the commit that weights for training were first taken from."""
    try:
        found = json.loads(_memory().read_text(encoding="utf-8") if _memory().is_file() else "{}")
        known = {repo: commit for repo, commit in found.items() if re.fullmatch(_COMMIT, str(commit))}
    except (OSError, ValueError, AttributeError, RecursionError):  # unreadable or damaged
        return {}
    return known


def _remember(repo: str, commit: str) -> None:
    known = _known_commits()
    if known.get(repo) != commit:
        with suppress(OSError):  # a home that cannot be written: then the next run asks again
            write_text(_memory(), json.dumps({**known, repo: commit}, indent=1) + "\n")


def push(folder: Path, repo: str, private: bool = False) -> str:
    """Upload the files of a folder into the repository user/name, created if need be → where it can be seen."""
    check(repo)
    if root := mirror():
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            target = root / repo / file.relative_to(folder)
            write_atomically(target, lambda temporary, file=file: shutil.copyfile(file, temporary))  # type: ignore[misc]
        return str(root / repo)
    hub = _library()
    try:
        api = hub.HfApi()
        url = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder)
    except Exception as error:
        raise OrdnetError(f"nothing was pushed to hf:{repo}: {_reason(hub, error, repo)}") from None
    return str(url)


def check(repo: str) -> None:
    """Refuse what cannot be the name of a repository."""
    if not re.fullmatch(f"{_WORD}/{_WORD}", repo):
        raise OrdnetError(
            f"{repo!r} is no repository of the hub; expected user/name, and hf:user/name[@revision][/file] for a file"
        )


def mirror() -> Path | None:
    folder = os.environ.get("ORDNET_HUB")
    if not folder:
        return None
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise OrdnetError(f"ORDNET_HUB={folder} is no folder; it stands for the hub, laid out as user/name/file")
    return path


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise OrdnetError(f"the hub needs the extra `hub`: pip install 'ordnet[hub]' ({error})") from None
    return huggingface_hub


def _reason(hub: Any, error: Exception, repo: str) -> str:
    """What went wrong in plain words; the library's errors derive from each other, so special ones come first."""
    known = hub.errors
    if isinstance(error, known.GatedRepoError):
        return f"{repo} asks for consent: give it at {hub.constants.ENDPOINT}/{repo}, and log in with `hf auth login`"
    if isinstance(error, known.RepositoryNotFoundError):
        return f"there is no repository {repo}, or it is private and you are not logged in (`hf auth login`)"
    unreached = isinstance(error, known.LocalEntryNotFoundError | known.OfflineModeIsEnabled)
    if unreached or "Connect" in type(error).__name__:  # the HTTP client below is not always the same
        return "the hub was not reached; check the network, or let ORDNET_HUB name a folder that mirrors it"
    if isinstance(error, known.EntryNotFoundError):
        return f"the repository {repo} has no such file"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, known.LocalTokenNotFoundError) or status in (401, 403):
        return "you are not logged in, or may not write there; `hf auth login` takes a token with write access"
    first = next(iter(str(error).strip().splitlines()), "no reason was given")
    return f"{type(error).__name__}: {first}"
