"""The steps of a document: its fenced blocks, and remarks that readers do not see. Pure.

A block of ``sh`` is run. A block of ``text`` right behind it is what it must print, with ``...``
for anything. A remark stands on a line of its own before a block:

- ``<!-- first-hour: skip REASON -->``: the next block of ``sh`` is not run.
- ``<!-- first-hour: file NAME -->``: the next block becomes that file.
- ``<!-- first-hour: run COMMAND -->``: what the page takes for granted at this place.

Blocks of ``python`` and ``json`` that become no file must at least be read by their language.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

_FENCE = re.compile(r"^ *```(\w*)\s*$")
_REMARK = re.compile(r"^ *<!-- first-hour: (\w+)(?: (.*?))? -->\s*$")
_REMARKS = ("skip", "file", "run")
_READ: Mapping[str, Callable[[str], object]] = {
    "python": lambda text: compile(text, "example", "exec"),
    "json": json.loads,
}


class DocumentError(Exception):
    """A document that cannot be followed: where, and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do: run ``text``, or write it into ``file``."""

    where: str
    text: str
    file: str = ""
    # Why it is not run.
    skipped: str = ""
    # What it must print; None if the document shows no output.
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class _Block:
    line: int
    language: str
    text: str


def steps(name: str, document: str) -> list[Step]:
    """The steps of a document in their order. Raises DocumentError with the line."""
    found: list[Step] = []
    # The last remark that waits for its block, and whether nothing stands between two blocks.
    waiting: tuple[str, str] | None = None
    adjoining = False
    for piece in _pieces(name, document):
        where = f"{name}:{piece.line}"
        if isinstance(piece, _Remark):
            waiting, adjoining = _remarked(where, piece, found, waiting), False
        elif isinstance(piece, _Block):
            if waiting and waiting[0] == "file":
                found.append(Step(where, piece.text, file=waiting[1]))
            elif piece.language == "sh":
                found.append(Step(where, piece.text, skipped=waiting[1] if waiting else ""))
            elif waiting:
                raise DocumentError(f"{where}: a {piece.language or 'plain'} block is never run")
            elif piece.language == "text" and adjoining:
                found[-1] = replace(found[-1], expected=piece.text)
            else:
                _understood(where, piece)
            waiting, adjoining = None, piece.language == "sh"
        else:
            adjoining = False
    if waiting:
        raise DocumentError(f"{name}: the remark `{' '.join(waiting)}` stands before no block")
    return found


@dataclass(frozen=True, slots=True)
class _Remark:
    line: int
    word: str
    value: str


@dataclass(frozen=True, slots=True)
class _Prose:
    line: int


def _pieces(name: str, document: str) -> Iterator[_Block | _Remark | _Prose]:
    """Blocks, remarks and everything else but empty lines."""
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(document.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened and fence and not fence[1]:
            yield _Block(*opened, textwrap.dedent("\n".join(inside) + "\n"))
            opened, inside = None, []
        elif opened:
            inside.append(line)
        elif fence:
            opened = (number, fence[1])
        elif remark := _REMARK.match(line):
            yield _Remark(number, remark[1], remark[2] or "")
        elif line.strip():
            yield _Prose(number)
    if opened:
        raise DocumentError(f"{name}:{opened[0]}: the block is not closed")


def _remarked(
    where: str, remark: _Remark, found: list[Step], waiting: tuple[str, str] | None
) -> tuple[str, str] | None:
    """Take a remark; what then waits for a block."""
    if remark.word not in _REMARKS:
        raise DocumentError(f"{where}: {remark.word!r} is none of {', '.join(_REMARKS)}")
    if not remark.value:
        raise DocumentError(f"{where}: give a file or a reason: first-hour: {remark.word} ...")
    if remark.word == "run":
        found.append(Step(where, remark.value + "\n"))
        return waiting
    return remark.word, remark.value


def _understood(where: str, block: _Block) -> None:
    """Raise DocumentError if its own language does not understand an example."""
    try:
        _READ.get(block.language, str)(block.text)
    except (SyntaxError, ValueError) as error:
        raise DocumentError(f"{where}: the {block.language} example is wrong: {error}") from None


def printed_as_shown(expected: str, printed: str) -> bool:
    """Whether a command printed what the document shows: ``...`` stands for anything, and how
    many spaces separate words does not count."""
    pattern = r".*".join(_words(piece) for piece in expected.strip().split("..."))
    return re.fullmatch(pattern, _spaced(printed.strip()), re.DOTALL) is not None


def _words(text: str) -> str:
    return re.escape(_spaced(text))


def _spaced(text: str) -> str:
    return "\n".join(re.sub(r"[ \t]+", " ", line).rstrip(" ") for line in text.split("\n"))
