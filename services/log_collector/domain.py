"""The pure core of log-collector: pieces, limits, the index of times, and when to look again.

Called by ``collector.py`` and ``handlers.py``. Offsets are bytes from the beginning of a rank's
output and are the same in the source and in the kept copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

NEWLINE = b"\n"
RETURN = b"\r"
UTF8_BYTES_MAX = 4
# Every byte that a character of several does not begin with.
UTF8_REST = bytes(range(0x80, 0xC0))
# A line that is being rewritten is held back up to this size; a longer one is kept as it is.
LINE_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True, order=True)
class OutputKey:
    """One rank of one attempt: what has one output."""

    task_id: str
    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank runs, which is where its output comes from."""

    key: OutputKey
    node_id: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Part of the index: the bytes from ``offset`` on were collected from ``first_at`` to
    ``last_at``, up to the next entry's offset."""

    offset: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class IndexGrain:
    """How fine the index is: an entry covers at most so many bytes, and so much time if it has
    enough bytes by then. So the index costs a bounded part of what it describes."""

    seconds: float
    bytes: int
    # An entry with fewer bytes covers more time, up to so much.
    bytes_min: int = 0
    seconds_max: float = math.inf


@dataclass(frozen=True, slots=True)
class Pace:
    """When to look at the sources again, in seconds."""

    active: float
    idle_min: float
    idle_max: float
    # So much waiting for each output looked at keeps an idle collector's cost down.
    idle_for_each: float
    # Outputs stay quick for so long after their last byte.
    linger: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The collector's limits, in bytes and seconds; see ``settings.py``."""

    read_bytes_max: int
    pass_bytes_max: int
    output_bytes_max: int
    record_seconds: float
    record_bytes: int
    unreadable_seconds_max: float
    piece_bytes_max: int
    live_bytes_max: int
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class Answers:
    """The limits of one answer to a reader; see ``settings.py``."""

    reply_bytes_max: int
    tail_lines_max: int
    tail_bytes_max: int
    list_outputs_max: int
    list_runs_max: int


@dataclass(frozen=True, slots=True)
class Folded:
    """New output without the states of lines that were overwritten before their end."""

    # What is kept now.
    data: bytes
    # What was read for it: as long, and longer by what is skipped.
    source: bytes
    # The state of a line that may still be overwritten: read after that, and not kept yet.
    line: bytes = b""

    @property
    def skipped(self) -> int:
        """How many bytes are not kept."""
        return len(self.source) - len(self.data)


def fold(line: bytes, data: bytes) -> Folded:
    """Leave out what a carriage return lets the rest of its line overwrite, as a terminal does.

    So a progress bar of any length becomes one line. ``line`` is what the call before held back.
    Text without a carriage return is kept at once, with or without the end of its line.
    """
    text = line + data
    if RETURN not in text:
        return Folded(text, text)
    *ended, rest = text.split(NEWLINE)
    kept = b"".join(_last_state(each) + NEWLINE for each in ended)
    if RETURN in rest:
        rest = _last_state(rest)
        if len(rest) <= LINE_BYTES_MAX:
            return Folded(kept, text[: len(text) - len(rest)], rest)
    return Folded(kept + rest, text)


def is_text(data: bytes) -> bool:
    """False for bytes that cannot be part of a text in UTF-8, whose first and last characters may
    be cut. Bytes that are none must not be folded: a carriage return means nothing in them."""
    head = data[: UTF8_BYTES_MAX - 1]
    cut = len(head) - len(head.lstrip(UTF8_REST))
    try:
        data[cut:].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
    return b"\0" not in data


def _last_state(line: bytes) -> bytes:
    """From the last carriage return that something follows; the line itself if there is none."""
    return line[max(0, line.rfind(RETURN, 0, len(line.rstrip(RETURN)))) :]


def keep(size: int, data: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """What of ``data`` is kept after ``size`` kept bytes, and whether the limit is reached.

    At the limit a line says so, once: it is part of what is kept.
    """
    if size + len(data) <= bytes_max:
        return data, False
    return data[: bytes_max - size] + limit_line(bytes_max), True


def limit_line(bytes_max: int) -> bytes:
    """The last line of an output that reached the limit."""
    return (
        b"\n[shiftwork: the limit of %d bytes is reached; what follows is not kept]\n" % bytes_max
    )


def gap_line(why: str) -> bytes:
    """The last line of an output of which the rest cannot be had."""
    return f"[shiftwork: output is missing from here on: {why}]\n".encode()


def pieces(offset: int, data: bytes, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Cut for live readers: whole lines where a line fits, at most ``bytes_max`` bytes each."""
    at = 0
    while at < len(data):
        end = min(len(data), at + bytes_max)
        if end < len(data):
            newline = data.rfind(NEWLINE, at, end)
            end = newline + 1 if newline >= 0 else end
        yield offset + at, data[at:end]
        at = end


def newest(offset: int, data: bytes, bytes_max: int) -> tuple[int, bytes]:
    """The end of a burst that live readers are told; they see the gap by its offset."""
    skipped = max(0, len(data) - bytes_max)
    return offset + skipped, data[skipped:]


def index(last: Entry | None, offset: int, now: datetime, grain: IndexGrain) -> Entry:
    """The entry that covers bytes collected now from ``offset`` on: ``last``, or a new one."""
    if last is None or _is_full(last, offset, now, grain):
        return Entry(offset, now, now)
    return replace(last, last_at=max(now, last.last_at))


def _is_full(entry: Entry, offset: int, now: datetime, grain: IndexGrain) -> bool:
    age = (now - entry.first_at).total_seconds()
    size = offset - entry.offset
    old = age >= (grain.seconds if size >= grain.bytes_min else grain.seconds_max)
    return old or age < 0 or size >= grain.bytes


def start_since(entries: Sequence[Entry], since: datetime, size: int) -> int:
    """The offset of the first bytes collected at or after ``since``, as fine as the index is.

    Needs the last entry that begins before ``since`` and those after it. Never skips such bytes.
    """
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.last_at >= since:
            return entry.offset
    return size


def start_of_range(offset: int, size: int) -> int:
    """The first byte of an asked range: a negative offset counts from the end."""
    return max(0, size + offset) if offset < 0 else min(offset, size)


def start_of_last_lines(data: bytes, lines: int) -> int | None:
    """Where in ``data`` its last so many lines begin; None if it holds fewer lines than that."""
    at = len(data) - 1 if data.endswith(NEWLINE) else len(data)
    for _ in range(lines):
        at = data.rfind(NEWLINE, 0, at)
        if at < 0:
            return None
    return at + 1


def next_look(pace: Pace, *, outputs: int, more: bool, quiet_seconds: float) -> float | None:
    """In how many seconds to look again; None when there is nothing to look at."""
    if not outputs:
        return None
    if more:
        return 0.0
    if quiet_seconds < pace.linger:
        return pace.active
    return min(pace.idle_max, max(pace.idle_min, pace.idle_for_each * outputs))
