"""What the route for lines of output answers."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class OutputLine(TypedDict):
    """One line of one rank, without its end: ``text``, or ``data_base64`` for bytes that are no
    text. ``at`` is when its first byte was written."""

    attempt: int
    rank: int
    role: str
    offset: int
    at: str | None
    approximate: NotRequired[bool]
    text: NotRequired[str]
    data_base64: NotRequired[str]


class FoundOutputLine(OutputLine):
    """A line, with the lines of the same rank before and after it, if these were requested."""

    lines_before: NotRequired[list[OutputLine]]
    lines_after: NotRequired[list[OutputLine]]


class UnreadableOutput(TypedDict):
    """A rank whose output a page lacks."""

    attempt: int
    rank: int
    problem: str


class OutputLines(TypedDict):
    """A page of lines in their order. ``begin`` and ``end`` are cursors: ``before=BEGIN`` has the
    lines before the page, ``after=END`` those after it. ``more``: the range goes on in the
    direction that was read; ``left_bytes`` of its output are not searched yet."""

    lines: list[FoundOutputLine]
    begin: str
    end: str
    more: bool
    searched_bytes: int
    left_bytes: int
    unreadable: list[UnreadableOutput]
