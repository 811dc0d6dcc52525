"""What README.md and docs/*.md tell people to type: found, and held against the real command line.

A command stands in a code block (fenced or indented) or in backticks and begins with `ordnet`, `make`, or
`torchrun … -m ordnet`. In a block two spaces or a # end it; the rest is a remark. How what people read becomes words:

    MODEL, FILE.zip, X,Y  a word in capitals stands for a value, be it a word or a number
    …                     after an option the same; elsewhere "and so on", which is left out
    a | b | c             after `ordnet GROUP`: each of these commands exists
    a|b                   within a word: each of them is a command of its own
    `ordnet train`        in backticks without arguments it is a name, which must exist
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from typer.main import get_command

from ordnet.commands import app
from ordnet.config import Settings, override
from ordnet.errors import OrdnetError
from ordnet.recipes import settings_of

ROOT = Path(__file__).parent.parent
STARTS = ("ordnet ", "torchrun ", "make ")
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_,.:/…-]*(\.[a-z]+)?|…")
_FENCE = re.compile(r"\s*```+\s*(\w*)")
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True)
class Command:
    page: Path
    line: int
    text: str
    """As it is to be typed, without remarks."""
    only_named: bool = False
    """Spoken of, not given with its arguments."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


@dataclass(frozen=True)
class Block:
    """Code in a page; `kind` is the fence's word, `indented`, or `inline`."""

    line: int
    kind: str
    text: str


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """All code of a page, in order."""
    found, prose = _code_blocks(page.read_text(encoding="utf-8").splitlines())
    text = "\n".join(prose)
    for match in _INLINE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(line, "inline", re.sub(r"\s*\n\s*", " ", match[1]).replace(r"\|", "|")))
    return sorted(found, key=lambda block: block.line)


def _code_blocks(lines: list[str]) -> tuple[list[Block], list[str]]:
    """Fenced and indented blocks, and the page with empty lines in their places."""
    found, prose, number = [], list(lines), 0
    while number < len(lines):
        start = number
        if fence := _FENCE.match(lines[number]):
            number += 1
            while number < len(lines) and not lines[number].strip().startswith("```"):
                number += 1
            found.append(Block(start + 2, fence[1], "\n".join(lines[start + 1 : number])))
            number += 1
        elif lines[number].startswith("    ") and not (start and lines[start - 1].strip()):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            found.append(Block(start + 1, "indented", "\n".join(line[4:] for line in lines[start:number])))
        else:
            number += 1
            continue
        prose[start:number] = [""] * (number - start)
    return found, prose


def commands(page: Path) -> Iterator[Command]:
    """Everything a page tells to type, in order."""
    for block in blocks(page):
        if block.kind == "inline":
            if block.text.startswith(STARTS):
                yield from _expanded(page, block.line, block.text, True)
        elif block.kind != "python":
            for line, text in _typed(block):
                yield from _expanded(page, line, text, False)


def _typed(block: Block) -> Iterator[tuple[int, str]]:
    """The block's command lines, continued lines joined, remarks cut off."""
    waiting, begun = "", 0
    for line, text in enumerate(block.text.splitlines(), block.line):
        waiting, begun = waiting + text.strip().removeprefix("$ "), begun or line
        if waiting.endswith("\\"):
            waiting = waiting[:-1].rstrip() + " "
            continue
        for part in re.split(r" && | ; ", re.split(r"\s{2,}|\s+#\s", waiting)[0]):
            bare = re.sub(r"^(?:[A-Z_]+=(?:\$\([^)]*\)|\S+) )+", "", part)
            if f"{bare} ".startswith(STARTS):
                yield begun, re.split(r" 2?>+ | &$", bare)[0].strip()
        waiting, begun = "", 0


def _expanded(page: Path, line: int, text: str, inline: bool) -> Iterator[Command]:
    first, *others = text.split(" | ")
    if others and first.count(" ") == 2 and all(" " not in other for other in others):
        group = first.rsplit(" ", 1)[0]
        for name in (first.rsplit(" ", 1)[1], *others):
            yield Command(page, line, f"{group} {name}", only_named=True)
        return
    for words in product(*(word.split("|") for word in shlex.split(first))):
        kept = list(_without_and_so_on(list(words)))
        asked = kept[kept.index("ordnet") + 1 :] if "ordnet" in kept else []
        bare = bool(asked) and len(asked) == len(_names(asked))
        yield Command(page, line, " ".join(map(_quoted, kept)), only_named=bare and (inline or len(kept) < len(words)))


def _quoted(word: str) -> str:
    return shlex.quote(word) if re.search(r"[\s'\"*?$\[\]{}]", word) else word


def _without_and_so_on(words: list[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        if word != "…" or before.startswith("--"):
            yield word if word == "…" else word.rstrip("…")


def _names(words: list[str]) -> list[str]:
    """The words that lead to a command."""
    here, found = get_command(app), []
    for word in words:
        if not hasattr(here, "commands"):
            break
        found.append(word)
        here = here.commands.get(word)
    return found


def problem(command: Command) -> str | None:
    """Why the command cannot be typed so, or None."""
    words = command.words
    try:
        if words[0] == "make":
            return _make_problem(words[1:])
        if words[0] == "torchrun":
            place = words.index("-m")
            _check_torchrun(words[1:place])
            words = words[place + 1 :]
        if words[0] != "ordnet":
            return f"starts {words[0]}"
        _check(words[1:], command.only_named)
    except OrdnetError as error:
        return str(error)
    except SystemExit as error:  # argparse's way; --help ends so too
        return None if not error.code else f"torchrun does not take {' '.join(words)}"
    except Exception as error:  # click's usage errors, whose home depends on typer's version
        format_message = getattr(error, "format_message", None)
        if format_message is None and not hasattr(error, "exit_code"):
            raise
        return format_message() if format_message else None
    return None


def _check(words: list[str], only_named: bool) -> None:
    if words == ["--help"]:
        return
    here: Any = get_command(app)
    context = here.context_class(here, info_name="ordnet")
    while hasattr(here, "commands") and words:
        name, here, words = here.resolve_command(context, words)
        context = here.context_class(here, info_name=name, parent=context)
    if only_named or (hasattr(here, "commands") and here.invoke_without_command):
        return
    parameters = _parsed(here, words)
    override(Settings(), list(parameters.get("set_") or []))
    recipe = parameters.get("recipe")
    if recipe and recipe != "X" and not recipe.endswith((".yaml", ".yml")):
        settings_of(recipe)  # refuses what there is not


def _parsed(leaf: Any, words: list[str]) -> dict[str, Any]:
    """The command's values; each placeholder is tried as a word and as a number."""
    first: Exception | None = None
    for tried in product(*(("X", "1") if PLACEHOLDER.fullmatch(word) else (word,) for word in words)):
        try:
            parsed: dict[str, Any] = leaf.make_context(leaf.name, list(tried)).params
            return parsed
        except Exception as error:  # said only if no other way fits
            first = first or error
    assert first is not None
    raise first


def _check_torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    get_args_parser().parse_args([*(PLACEHOLDER.sub("1", word) for word in words), "script.py"])


def differs(promised: str, printed: str) -> str:
    """The first promised line that was not printed after those before it, numbers and widths aside; empty if there is
    none. Between two promised lines others are allowed only where … stands."""
    lines = [_plain(line) for line in printed.splitlines() if line.strip()]
    place, anywhere = 0, True
    for promise in (line for line in promised.splitlines() if line.strip()):
        if promise.strip() == "…":
            anywhere = True
            continue
        wanted = _plain(promise)
        if not anywhere and lines[place : place + 1] != [wanted]:
            return f"after {lines[place - 1]!r} comes {lines[place : place + 1]}, not {wanted!r}"
        if wanted not in lines[place:]:
            return f"nowhere: {wanted!r}"
        place, anywhere = lines.index(wanted, place) + 1, False
    return ""


def _plain(line: str) -> str:
    """Numbers as N, runs of spaces and of lines as one."""
    line = re.sub(r"\d[\d,.]*(?:e[+-]?\d+)?", "N", line)
    return re.sub(r"[─━]+", "─", re.sub(r"\s+", " ", line)).strip()


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))


def _make_problem(words: list[str]) -> str | None:
    unknown = [word for word in words if "=" not in word and word not in targets() and not PLACEHOLDER.fullmatch(word)]
    return f"the Makefile has no target {unknown[0]}" if unknown else None
