"""One rank's output as the collector reads it: bytes by offset, whatever became of the files.

The offset of a byte is how many bytes the container wrote before it, in the order of its log files.
What has been given out keeps its offset for good: a file is left for the next one only when
nothing can come into it any more (``_may_pass``), and where the next one begins is then written
down as a position. Used by ``spool.py``, by one thread at a time.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from services.log_collector.agent import cri
from services.log_collector.agent.cri import Inside
from services.log_collector.agent.folder import OutputFolder
from services.log_collector.agent.segments import Placeholder, Segment, filler

CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 65_536, 262_144
POSITION_BYTES = 1_048_576
# One call decodes at most so much; only finding a far place again needs more.
DECODE_BYTES_MAX = 64 * 1_048_576
# One answer about an output ends when it has so many time stamps.
STAMPS_MAX = 4096
_RECORD = struct.Struct("<IQQB")
_CHECK = struct.Struct("<I")
RECORD_BYTES = _RECORD.size + _CHECK.size


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the output: its byte ``offset`` comes from byte ``raw`` of a segment."""

    segment: int
    raw: int
    offset: int
    inside: Inside = Inside.NOTHING

    @property
    def order(self) -> tuple[int, int]:
        """The later place has the larger one."""
        return self.segment, self.raw


class Positions:
    """The positions of one output, in their order."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._segments, self._raws = array("L"), array("Q")
        self._offsets, self._insides = array("Q"), bytearray()
        # By segment: the offset of its first byte.
        self.starts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def at(self, number: int) -> Position:
        """One of them."""
        return Position(
            self._segments[number],
            self._raws[number],
            self._offsets[number],
            Inside(self._insides[number]),
        )

    def before(self, offset: int) -> Position | None:
        """The last one at or before an offset."""
        number = bisect_right(self._offsets, offset) - 1
        return self.at(number) if number >= 0 else None

    def add(self, position: Position) -> None:
        """Note one that comes after all others."""
        self._note(position)
        number = os.open(
            self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            os.write(number, _packed(position))
        finally:
            os.close(number)

    def load(self, first: Position, sizes: dict[int, int]) -> None:
        """Read what an earlier process noted, from ``first`` on. ``sizes``: each segment's raw
        bytes; nothing beyond them is believed."""
        self._note(first)
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - as everywhere here: no Path objects
                data = file.read()
        except FileNotFoundError:
            return
        for start in range(0, len(data), RECORD_BYTES):
            position = _unpacked(data[start : start + RECORD_BYTES])
            if position is not None and position.order <= first.order:
                continue
            if position is None or not self._follows(position, sizes):
                # The following ones are doubtful too, and could not be distinguished from new ones.
                self.keep(lambda _: True)
                return
            self._note(position)

    def _follows(self, position: Position, sizes: dict[int, int]) -> bool:
        last = self.at(len(self) - 1)
        later = position.order > last.order and position.offset >= last.offset
        return later and position.raw <= sizes.get(position.segment, -1)

    def keep(self, wanted: Callable[[Position], bool]) -> None:
        """Forget all others, in the file too."""
        kept = [each for each in map(self.at, range(len(self))) if wanted(each)]
        self._segments, self._raws = array("L"), array("Q")
        self._offsets, self._insides = array("Q"), bytearray()
        self.starts = {}
        for position in kept:
            self._note(position)
        replacement = self._path + ".new"
        with open(replacement, "wb") as file:  # noqa: PTH123
            file.write(b"".join(_packed(position) for position in kept))
        os.rename(replacement, self._path)  # noqa: PTH104

    def _note(self, position: Position) -> None:
        self._segments.append(position.segment)
        self._raws.append(position.raw)
        self._offsets.append(position.offset)
        self._insides.append(position.inside)
        if position.raw == 0:
            self.starts[position.segment] = position.offset


def _packed(position: Position) -> bytes:
    record = _RECORD.pack(position.segment, position.raw, position.offset, position.inside)
    return record + _CHECK.pack(zlib.crc32(record))


def _unpacked(record: bytes) -> Position | None:
    if len(record) != RECORD_BYTES:
        return None
    body = record[: _RECORD.size]
    if _CHECK.unpack(record[_RECORD.size :])[0] != zlib.crc32(body):
        return None
    segment, raw, offset, inside = _RECORD.unpack(body)
    return Position(segment, raw, offset, Inside(inside)) if inside in iter(Inside) else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an output. ``unsure``: there may be more that is not known yet."""

    data: bytes = b""
    unsure: bool = False
    # Why the requested offset is not there; empty if it is.
    moved: str = ""
    # The times of its bytes, by offsets in ``data``.
    stamps: tuple[cri.Stamp, ...] = ()


class Step(NamedTuple):
    """The bytes after a position, and the position after them."""

    data: bytes
    after: Position
    stamps: tuple[cri.Stamp, ...] = ()

    def stamps_of(self, begin: int, end: int, at: int) -> list[cri.Stamp]:
        """The times of some of its bytes, which stand at an offset of an answer."""
        inside = [each for each in self.stamps if each.offset < end]
        before = [each.micros for each in inside if each.offset <= begin][-1:]
        first = [cri.Stamp(at, micros) for micros in before]
        return first + [
            cri.Stamp(at + each.offset - begin, each.micros)
            for each in inside
            if each.offset > begin
        ]


class Output:
    """The output of one pod's container."""

    def __init__(
        self, folder: OutputFolder, *, settle_seconds: float, monotonic: Callable[[], float]
    ) -> None:
        self.folder = folder
        self.bad_lines = 0
        self._settle_seconds = settle_seconds
        self._monotonic = monotonic
        self._positions = Positions(str(folder.path / "checkpoints"))
        record = folder.record
        sizes = {number: segment.size() for number, segment in folder.segments.items()}
        self._positions.load(Position(record.first, 0, record.first_offset), sizes)
        # How far it has been decoded, and where the last read ended.
        self.frontier = self._positions.at(len(self._positions) - 1)
        self._cursor = self.frontier
        # An earlier process may have given out bytes after the last recorded position.
        self._frontier_known = len(folder.segments) == 0
        # When a file that has a successor was last seen to grow: (segment, size) and since when.
        self._quiet: tuple[int, int] = (-1, -1)
        self._quiet_since = 0.0

    def read(self, offset: int, bytes_max: int) -> Piece:
        """Up to so many bytes from an offset on. Fewer, and not unsure: that is all there is."""
        begin = self.folder.record.first_offset
        if offset < begin:
            return Piece(filler(offset, min(bytes_max, begin - offset)))
        position, decoded = self._nearest(offset), 0
        pieces: list[bytes] = []
        stamps: list[cri.Stamp] = []
        size, waiting = 0, False
        while size < bytes_max:
            found = self._step(position, offset + bytes_max - position.offset)
            if found is None:
                waiting = self.folder.after(position.segment) is not None
                break
            data, after = found.data, found.after
            self._note(after)
            start = offset + size - position.offset
            piece = data[start : start + bytes_max - size] if start < len(data) else b""
            if piece:
                stamps += found.stamps_of(start, start + len(piece), size)
            pieces.append(piece)
            size += len(piece)
            if start + len(piece) < len(data) and size >= bytes_max:
                break
            decoded += max(len(data), after.raw - position.raw)
            position = after
            if decoded >= DECODE_BYTES_MAX or len(stamps) >= STAMPS_MAX:
                waiting = True
                break
        self._cursor = position
        if not size and not waiting and position.offset < offset:
            return Piece(
                moved=f"only {position.offset} bytes are here, and bytes from {offset} are asked"
            )
        unsure = waiting and size < bytes_max
        return Piece(b"".join(pieces), unsure=unsure, stamps=tuple(stamps))

    @property
    def is_read(self) -> bool:
        """All that is here has been decoded, and is kept by the collector."""
        if self.folder.record.done:
            return True
        last = max(self.folder.segments, default=None)
        if last is None:
            return True
        end = self.frontier.segment == last and self.frontier.raw >= self._size(last)
        return end and self.folder.record.kept >= self.frontier.offset

    def forget(self) -> int:
        """Drop the files that are before what the collector has kept; returns how many."""
        starts, segments = self._positions.starts, self.folder.segments
        kept = self.folder.record.kept
        until = max(
            (n for n in segments if n - 1 in segments and starts.get(n, kept + 1) <= kept),
            default=None,
        )
        if until is None:
            return 0
        before = len(segments)
        self.folder.drop(until, starts[until])
        self._positions.keep(lambda position: position.segment >= until)
        if self._cursor.segment < until:
            self._cursor = self._positions.at(0)
        return before - len(self.folder.segments)

    def lose(self, segment: Segment) -> int:
        """Drop a segment that was not kept, to save the node's disk; returns the bytes lost.

        A placeholder takes its place. The part that may have been given out keeps its length.
        """
        size = segment.size()
        start = self._positions.starts.get(segment.number)
        until = self._positions.starts.get(segment.number + 1)
        if until is None and start is not None and not self._frontier_known:
            until = self._decode_to_end(segment)
        end = self.frontier.offset if until is None else until
        counted = 0 if start is None else end - start
        text = "" if until is not None else f"[shiftwork: {size} bytes of log file are lost here]\n"
        placeholder = Placeholder(counted, text)
        self.folder.replace(segment, placeholder)
        number = segment.number
        self._positions.keep(lambda place: place.segment != number or place.raw == 0)
        if start is not None and until is None:
            self.frontier = Position(number, counted, start + counted)
        if self._cursor.segment == number:
            self._cursor = self._positions.before(self._cursor.offset) or self.frontier
        return size

    # -- inside

    def _nearest(self, offset: int) -> Position:
        if self._cursor.offset == offset:
            return self._cursor
        found = self._positions.before(offset) or self._positions.at(0)
        for other in (self.frontier, self._cursor):
            if found.order < other.order and other.offset <= offset:
                found = other
        return found

    def _step(self, position: Position, wanted: int) -> Step | None:
        """The next bytes from a position on; None at the end."""
        number = position.segment
        segment = self.folder.segments.get(number)
        if segment is None:
            return None
        # Where it has been left for the next one: nothing after that counts.
        end = self._positions.starts.get(number + 1)
        left = None if end is None else end - position.offset
        found = None
        if left != 0:
            read = self._step_in_placeholder if segment.placeholder else self._step_in_file
            found = read(segment, position, wanted)
        if found is not None and left is not None:
            data = found.data[:left]
            after = replace(found.after, offset=position.offset + len(data))
            return Step(data, after, found.stamps)
        if left:
            # The file is shorter than it was: the node lost power, and with it these bytes.
            lost = filler(position.offset, min(left, CHUNK_BYTES_MAX))
            return Step(lost, replace(position, offset=position.offset + len(lost)))
        if found is None and (left == 0 or self._may_pass(segment)):
            return Step(b"", Position(number + 1, 0, position.offset))
        return found

    def _step_in_file(self, segment: Segment, position: Position, wanted: int) -> Step | None:
        if segment.size() <= position.raw:
            return None
        raw_max = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, wanted + wanted // 4))
        number = os.open(segment.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            raw = os.pread(number, raw_max, position.raw)
        finally:
            os.close(number)
        found = cri.decode_stamped(raw, position.inside)
        if not found.used:
            return None
        if position.order >= self.frontier.order:
            self.bad_lines += found.bad
        offset = position.offset + len(found.data)
        after = Position(segment.number, position.raw + found.used, offset, found.inside)
        return Step(found.data, after, found.stamps)

    def _step_in_placeholder(
        self, segment: Segment, position: Position, wanted: int
    ) -> Step | None:
        assert segment.placeholder is not None
        data = segment.placeholder.read(position.raw, max(1, min(wanted, CHUNK_BYTES_MAX)))
        if not data:
            return None
        raw, offset = position.raw + len(data), position.offset + len(data)
        return Step(data, Position(segment.number, raw, offset))

    def _may_pass(self, segment: Segment) -> bool:
        """Whether reading may pass to the next segment: there is one, and this one has ended.

        After a rotation the runtime still writes what it has in hand to the old file, so that one
        must have been quiet for a while.
        """
        if self.folder.after(segment.number) is None:
            return False
        if segment.closed or segment.placeholder is not None or self.folder.record.ended_at:
            return True
        now, state = self._monotonic(), (segment.number, segment.size())
        if state != self._quiet:
            self._quiet, self._quiet_since = state, now
        return now - self._quiet_since >= self._settle_seconds

    def _note(self, position: Position) -> None:
        """Remember how far it has been decoded."""
        if position.order <= self.frontier.order:
            return
        last = self._positions.at(len(self._positions) - 1)
        self.frontier = position
        if position.segment != last.segment or position.raw - last.raw >= POSITION_BYTES:
            self._positions.add(position)
            # What comes from here on is given out by this process alone.
            self._frontier_known = True

    def _decode_to_end(self, segment: Segment) -> int:
        """Decode the rest of a segment and leave it; returns where the next one begins."""
        position = self.frontier
        while position.segment == segment.number:
            found = self._step(position, CHUNK_BYTES_MAX)
            if found is None:
                position = Position(segment.number + 1, 0, position.offset)
                self._note(position)
                break
            position = found.after
            self._note(position)
        return position.offset

    def _size(self, number: int) -> int:
        return self.folder.segments[number].size()


def open_output(
    path: Path,
    *,
    settle_seconds: float,
    unpacked_bytes_max: int,
    monotonic: Callable[[], float],
) -> Output:
    """An output's folder with what an earlier process left in it, or a new one."""
    folder = OutputFolder(path, unpacked_bytes_max=unpacked_bytes_max)
    folder.load()
    return Output(folder, settle_seconds=settle_seconds, monotonic=monotonic)
