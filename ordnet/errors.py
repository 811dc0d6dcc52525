"""The one error type for mistakes a user can mend: the command line prints its message and no trace-back."""

import re
from collections.abc import Sequence

# control characters other than line breaks, marks that change the direction of writing, bytes that were not UTF-8
_HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST = 20_000
"""Characters of a message: more than any terminal shows, however much a file held."""


def shown(text: str) -> str:
    """Text from a file or a name made safe to print: control characters and invalid ones are escaped."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_printable(name: str) -> bool:
    """Whether a name is one line of characters that may be printed and written to a text file."""
    return "\n" not in name and not _HIDDEN.search(name)


def repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs twice; None if all differ."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


class OrdnetError(ValueError):
    """Says what came, what was expected, and what to do."""

    exit_code = 1
    """The exit code of the command line."""

    def __str__(self) -> str:
        message = super().__str__()
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
        return shown(message)


def reason_of_writing(error: Exception) -> str:
    """What an error of the system says of results that could not be written; other errors speak for themselves."""
    if not isinstance(error, OSError):
        return str(error)
    return f"results could not be written: {reason(error)}" + (f", {error.filename}" if error.filename else "")


def reason(error: Exception) -> str:
    """What an error of the system or of a library says, without its number and the file's name."""
    return str(getattr(error, "strerror", None) or error)
