"""The pure core of pages of lines: patterns, the lines of a piece of output, and cursors.

Called by ``line_pages.py``. A line ends at its newline, or after ``LINE_BYTES_MAX`` bytes: what
follows is a further line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

from services.log_collector.domain import EPOCH, NEWLINE, OutputKey, datetime_of, micros_of

LINE_BYTES_MAX = 65_536
# What a line costs in an answer besides its text.
LINE_OVERHEAD_BYTES = 200
# These match at the ends of a piece of output, which are not those of a line.
_ENDS_OF_TEXT = re.compile(r"(?<!\\)(?:\\\\)*\\[Az]")
_CURSOR = re.compile(r"([rt])(\d{1,18})\.(\d{1,10})\.(\d{1,10})\.(\d{1,19})")
_BY_RANK, _BY_TIME = "r", "t"
_re2 = cast("Any", re2)


class PatternError(ValueError):
    """A pattern that cannot be searched for."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix


class CursorError(ValueError):
    """A cursor that no page of this order has."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression that RE2 has compiled; None for every line."""

    compiled: Any = None

    def lines(self, data: bytes, end: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each line of ``data`` that matches and begins before ``end``. The first
        one begins with ``data``."""
        at, end = 0, min(end, len(data))
        while at < end:
            found = at
            if self.compiled is not None:
                match = self.compiled.search(data, at)
                if match is None:
                    return
                found = match.start()
            begin = max(at, data.rfind(NEWLINE, at, found) + 1)
            line_end = data.find(NEWLINE, found)
            line_end = after = line_end if line_end >= 0 else len(data)
            begin += (found - begin) // LINE_BYTES_MAX * LINE_BYTES_MAX
            if line_end - begin > LINE_BYTES_MAX:
                line_end = after = begin + LINE_BYTES_MAX
            else:
                after += 1
            if begin >= end:
                return
            yield begin, line_end
            at = after


def compiled(pattern: str, *, literal: bool, ignore_case: bool, memory_bytes_max: int) -> Pattern:
    """The pattern, which matches within a line. Raises PatternError.

    RE2 takes time that is linear in the output, whatever the pattern; ``memory_bytes_max`` bounds
    its size, and so the time for each byte.
    """
    if not pattern:
        return Pattern()
    if "\n" in pattern:
        raise PatternError("has a line break", "search for the text of one line")
    if not literal and _ENDS_OF_TEXT.search(pattern):
        raise PatternError(r"has \A or \z", "write ^ and $: they match at the ends of a line")
    options = _re2.Options()
    options.max_mem = memory_bytes_max
    options.literal = literal
    options.case_sensitive = not ignore_case
    options.never_nl = True
    options.never_capture = True
    options.log_errors = False
    try:
        text = pattern if literal else f"(?m)(?:{pattern})"
        # One with more brackets than it may have would close the group around it.
        if not literal:
            _re2.compile(pattern, options)
        return Pattern(_re2.compile(text, options))
    except _re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(
            f"is no regular expression that can be searched for: {reason}",
            "write it in the syntax of RE2 (no lookaround, no references to groups, at most 1000"
            " repetitions), or search for plain text",
        ) from None
    finally:
        # The module would keep every pattern that was ever searched for.
        _re2.purge()


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place between lines: those before it come first. Without an order by time ``at`` is
    ``EPOCH`` everywhere."""

    at: datetime
    attempt: int
    rank: int
    offset: int

    def cursor(self, *, by_time: bool) -> str:
        """As readers get it."""
        kind = _BY_TIME if by_time else _BY_RANK
        return f"{kind}{micros_of(self.at)}.{self.attempt}.{self.rank}.{self.offset}"

    @property
    def rank_of_task(self) -> tuple[int, int]:
        """The attempt and the rank."""
        return self.attempt, self.rank


def position_of(cursor: str, *, by_time: bool) -> Position:
    """What ``cursor`` was made of. Raises CursorError."""
    match = _CURSOR.fullmatch(cursor)
    if match is None or (match[1] == _BY_TIME) is not by_time:
        raise CursorError(cursor)
    micros, attempt, rank, offset = (int(match[group]) for group in (2, 3, 4, 5))
    return Position(datetime_of(micros), attempt, rank, min(offset, 2**62))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of one rank's output; ``end`` is the offset of the line after it."""

    key: OutputKey
    offset: int
    text: bytes
    end: int
    at: datetime = EPOCH
    approximate: bool = False

    @property
    def size(self) -> int:
        """What it takes of an answer."""
        return len(self.text) + LINE_OVERHEAD_BYTES

    def begins(self, *, by_time: bool) -> Position:
        """Its place among the lines."""
        return self._place(self.offset, by_time=by_time)

    def ends(self, *, by_time: bool) -> Position:
        """The place after it."""
        return self._place(self.end, by_time=by_time)

    def _place(self, offset: int, *, by_time: bool) -> Position:
        at = self.at if by_time else EPOCH
        return Position(at, self.key.attempt, self.key.rank, offset)


@dataclass(frozen=True, slots=True)
class Room:
    """How many lines, and bytes of them, still fit into a page. It always has one line."""

    lines: int
    bytes: int

    def first(self, lines: Sequence[Line]) -> list[Line]:
        """Those from the beginning that fit."""
        size, taken = 0, 0
        for line in lines[: self.lines]:
            size += line.size
            if size > self.bytes and taken:
                break
            taken += 1
        return list(lines[:taken])

    def last(self, lines: Sequence[Line]) -> list[Line]:
        """Those from the end that fit."""
        return self.first(lines[::-1])[::-1]


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of an output, of which those that begin before ``end`` count."""

    key: OutputKey
    offset: int
    data: bytes
    end: int


def lines_of(pattern: Pattern, piece: Piece, room: Room, *, last: bool) -> list[Line]:
    """The matching lines of a piece: the first that fit, or the ``last``, and one more."""
    key, offset, data = piece.key, piece.offset, piece.data
    found: deque[Line] = deque()
    size = 0
    for begin, line_end in pattern.lines(data, piece.end - offset):
        after = line_end + (data[line_end : line_end + 1] == NEWLINE)
        line = Line(key, offset + begin, data[begin:line_end], offset + after)
        size += line.size
        found.append(line)
        # One more than fits is kept: so it is known that there are more.
        if not last and (len(found) > room.lines or size > room.bytes):
            break
        while last and len(found) > 1:
            rest = size - found[0].size
            if len(found) <= room.lines + 1 and rest <= room.bytes:
                break
            found.popleft()
            size = rest
    return list(found)


def whole_lines(data: bytes, *, ended: bool) -> int:
    """How much of ``data``, which begins with a line, is whole lines. ``ended``: it is followed by
    nothing."""
    if ended:
        return len(data)
    newline = data.rfind(NEWLINE) + 1
    return newline + (len(data) - newline) // LINE_BYTES_MAX * LINE_BYTES_MAX
