"""Where in a container's files which byte of its output is: one check-point every MiB.

Decoding begins at the nearest check-point before a wanted byte, so it is never long. They are kept
in a file, because after a restart of the agent nothing else knows them; one that is damaged (the
node lost power) is cut there, and the rest is decoded again. Used by ``output.py``.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from services.log_collector.agent.cri import Inside

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


class Checkpoints:
    """The check-points of one output, in their order."""

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
                # What comes after it is as doubtful, and could not be told from new ones.
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
