"""The pure core of log-collector: pieces, limits, time stamps, the index of times, and the interval
of reads.

Called by ``collector.py`` and ``handlers.py``. Offsets are bytes from the beginning of a rank's
output and are the same in the source and in the kept copy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, Field

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
    """The address of a rank, from which its output comes."""

    key: OutputKey
    node_id: str


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The bytes from ``offset`` on, up to the next one's offset, were written at ``at``."""

    offset: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Entry:
    """Part of the index of times, which versions before the time stamps kept: the bytes from
    ``offset`` on were collected from ``first_at`` to ``last_at``, up to the next entry's offset."""

    offset: int
    first_at: datetime
    last_at: datetime


class Pace(BaseModel):
    """The intervals of reading the sources."""

    # The intervals of reading the sources, in seconds.
    active_seconds: float = Field(default=0.05, gt=0, le=10)
    idle_seconds_min: float = Field(default=0.1, gt=0, le=60)
    idle_seconds_max: float = Field(default=1.0, gt=0, le=60)
    # A wait for each open output bounds an idle collector's cost.
    idle_seconds_for_each: float = Field(default=0.0001, ge=0)
    # Outputs stay quick for so long after their last byte.
    linger_seconds: float = Field(default=2.0, ge=0)


class Bounds(BaseModel):
    """The collector's limits."""

    # How much is read in one pass: for one output, and in all.
    read_bytes_max: int = Field(default=1_048_576, ge=4096)
    pass_bytes_max: int = Field(default=16_777_216, ge=4096)
    # The limit of one rank's kept output; its last line reports the limit.
    output_bytes_max: int = Field(default=16 * 1024**3, ge=1024)
    # What is kept is on disk and in the database after at most so long or so many bytes.
    record_seconds: float = Field(default=5.0, gt=0, le=60)
    record_bytes: int = Field(default=67_108_864, ge=4096)
    # A rank that has ended and cannot be read is given up after so long.
    unreadable_seconds_max: float = Field(default=300.0, ge=0)
    # A disk that refuses is tried again after so long.
    retry_seconds: float = Field(default=5.0, gt=0, le=300)

    # Live readers: the size of one piece, and of the part of a burst that they get.
    piece_bytes_max: int = Field(default=65_536, ge=1024, le=65_536)
    live_bytes_max: int = Field(default=262_144, ge=1024)


class SealOptions(BaseModel):
    """The limits of compressing in the background."""

    # The part of the time in which output of ended runs is compressed; the rest it pauses.
    seal_share: float = Field(default=0.5, gt=0, le=1)
    # About so many bytes are compressed before they count.
    seal_batch_bytes: int = Field(default=67_108_864, ge=4096)
    # A disk or a bucket that refuses is tried again after so long.
    seal_retry_seconds: float = Field(default=10.0, gt=0, le=3600)


class Answers(BaseModel):
    """The limits of one answer to a reader."""

    # Answers: bytes of one (below the bus's payload limit), and what is searched for last lines.
    reply_bytes_max: int = Field(default=524_288, ge=1024, le=524_288)
    # Time stamps of one answer: it ends where the next one would begin.
    reply_timestamps_max: int = Field(default=4096, ge=1, le=4096)
    tail_lines_max: int = Field(default=100_000, ge=1)
    tail_bytes_max: int = Field(default=16_777_216, ge=1024)
    list_outputs_max: int = Field(default=4096, ge=1, le=4096)
    list_runs_max: int = Field(default=1000, ge=1)

    # Pages of lines, and searches: how long one is read for and how many bytes of output, how many
    # lines it has, and how many around each of them.
    page_seconds_max: float = Field(default=1.0, gt=0, le=5)
    page_search_bytes_max: int = Field(default=1_073_741_824, ge=1_048_576)
    page_lines_max: int = Field(default=1000, ge=1, le=1000)
    context_lines_max: int = Field(default=50, ge=0, le=1000)
    # What a pattern may take of memory once it is compiled.
    pattern_bytes_max: int = Field(default=1_048_576, ge=65_536, le=8_388_608)
    # How many pages are read at a time, and how many may wait for that.
    pages_max: int = Field(default=2, ge=1, le=64)
    pages_waiting_max: int = Field(default=12, ge=0, le=1000)


@dataclass(frozen=True, slots=True)
class Folded:
    """New output without the states of lines that were overwritten before their end."""

    # What is kept now.
    data: bytes
    # What was read for it: as long, and longer by what is skipped.
    source: bytes
    # The state of a line that may still be overwritten: read after that, and not kept yet.
    line: bytes = b""
    # When it was written, by offsets in ``data``; none where that is not known.
    timestamps: tuple[Timestamp, ...] = ()

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


def without_folding(line: bytes, data: bytes) -> Folded:
    """Leave nothing out."""
    return Folded(line + data, line + data)


def fold_stamped(
    folding: Callable[[bytes, bytes], Folded],
    line: bytes,
    data: bytes,
    timestamps: Sequence[Timestamp],
) -> Folded:
    """Fold the bytes of each time stamp individually, so that what is kept of them keeps it."""
    if len(timestamps) == 1 and timestamps[0].offset <= 0:  # most of the reads of a file
        folded = folding(line, data)
        stamps = (Timestamp(0, timestamps[0].at),) if folded.data else ()
        return Folded(folded.data, folded.source, folded.line, stamps)
    begins = [*(max(0, each.offset) for each in timestamps), len(data)]
    if not timestamps or begins[0] > 0:
        begins, timestamps = [0, *begins], [Timestamp(0, NEVER), *timestamps]
    kept: list[bytes] = []
    source: list[bytes] = []
    found: list[Timestamp] = []
    size = 0
    for begin, end, stamp in zip(begins, begins[1:], timestamps, strict=False):
        folded = folding(line, data[begin:end])
        if folded.data and stamp.at is not NEVER:
            found.append(Timestamp(size, stamp.at))
        kept.append(folded.data)
        source.append(folded.source)
        size, line = size + len(folded.data), folded.line
    return Folded(b"".join(kept), b"".join(source), line, tuple(found))


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
    """The text from the last carriage return that is not at the end; else the whole line."""
    return line[max(0, line.rfind(RETURN, 0, len(line.rstrip(RETURN)))) :]


def keep(size: int, data: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """What of ``data`` is kept after ``size`` kept bytes, and whether the limit is reached.

    At the limit one line reports it; that line is part of what is kept.
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
    """The end of a burst for live readers; they notice the gap by its offset."""
    skipped = max(0, len(data) - bytes_max)
    return offset + skipped, data[skipped:]


# The time of the bytes before the first time stamp of a piece, which is unknown.
NEVER = datetime.min.replace(tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROS_MAX = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
# An offset, and microseconds since 1970: the lowest byte first.
_TIMESTAMP = struct.Struct("<qq")
TIMESTAMP_BYTES = _TIMESTAMP.size


def datetime_of(micros: int) -> datetime:
    """The time so many microseconds after 1970, limited to the range of ``datetime``."""
    return EPOCH + min(max(micros, 0), _MICROS_MAX) * _MICROSECOND


def micros_of(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - EPOCH) // _MICROSECOND


def packed(timestamps: Sequence[Timestamp]) -> bytes:
    """Time stamps as archives keep them, each of the same size."""
    return b"".join(_TIMESTAMP.pack(each.offset, micros_of(each.at)) for each in timestamps)


def unpacked(data: bytes) -> list[Timestamp]:
    """The time stamps in these bytes; half a one at the end is left out."""
    whole = len(data) - len(data) % TIMESTAMP_BYTES
    return [
        Timestamp(offset, datetime_of(micros))
        for offset, micros in _TIMESTAMP.iter_unpack(data[:whole])
    ]


def stamped(
    offset: int, size: int, found: Sequence[Timestamp], last: datetime | None, now: datetime
) -> list[Timestamp]:
    """The time stamps of ``size`` new bytes that are kept from ``offset`` on.

    ``found`` are those that the source gave, by offsets in the new bytes; without one the bytes
    have the time of reading, ``now``. No time is later than that. None is before ``last``, the
    output's last time: a clock that was set back repeats it until it has caught up.
    """
    at = last
    if not found or found[0].offset > 0:
        # The bytes before the source's first time go on with what came before them.
        first = last if found and last is not None else now
        found = [Timestamp(0, first), *found]
    stamps: list[Timestamp] = []
    for each in found:
        if each.offset >= size:
            break
        at = min(each.at, now) if at is None else max(at, min(each.at, now))
        if not stamps or at != stamps[-1].at:
            stamps.append(Timestamp(offset + each.offset, at))
    return stamps


def covering(timestamps: Sequence[Timestamp], start: int, end: int) -> list[Timestamp]:
    """The time stamps of the bytes from ``start`` to ``end``; the first one begins at ``start``."""
    if timestamps and timestamps[0].offset == start and timestamps[-1].offset < end:
        return list(timestamps)
    before = [each for each in timestamps if each.offset <= start]
    inside = [each for each in timestamps if start < each.offset < end]
    return [*(Timestamp(start, each.at) for each in before[-1:]), *inside]


def credible(
    found: Sequence[Timestamp], offset: int, size: int, last: datetime | None, now: datetime
) -> list[Timestamp]:
    """Keep the plausible time stamps that a crash left for the bytes from ``offset`` to ``size``:
    those before the first that cannot be right. Keep none if the first is not of the first byte."""
    good: list[Timestamp] = []
    for each in found:
        begins = each.offset > good[-1].offset if good else each.offset == offset
        after = good[-1].at if good else last or EPOCH
        if not (begins and each.offset < size and after <= each.at <= now):
            break
        good.append(each)
    return good


def start_since(entries: Sequence[Entry], since: datetime, size: int) -> int:
    """The offset of the first bytes collected at or after ``since``, as fine as the index is.

    Needs the last entry that begins before ``since`` and those after it. Never skips such bytes.
    """
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.last_at >= since:
            return entry.offset
    return size


def start_of_range(offset: int, size: int) -> int:
    """The first byte of a requested range: a negative offset counts from the end."""
    return max(0, size + offset) if offset < 0 else min(offset, size)


def start_of_last_lines(data: bytes, lines: int) -> int | None:
    """The offset in ``data`` of its last so many lines; None if it has fewer lines."""
    at = len(data) - 1 if data.endswith(NEWLINE) else len(data)
    for _ in range(lines):
        at = data.rfind(NEWLINE, 0, at)
        if at < 0:
            return None
    return at + 1


def next_scan_seconds(
    pace: Pace, *, outputs: int, more: bool, quiet_seconds: float
) -> float | None:
    """The number of seconds until the next read; None if there is nothing to read."""
    if not outputs:
        return None
    if more:
        return 0.0
    if quiet_seconds < pace.linger_seconds:
        return pace.active_seconds
    return min(
        pace.idle_seconds_max, max(pace.idle_seconds_min, pace.idle_seconds_for_each * outputs)
    )
