"""Decodes the log format of container runtimes to what a container wrote, byte for byte.

A container's log file has one entry a line: ``<time> stdout|stderr <tag> <text>``. The tag ``P``
means that the text continues in the next entry (the runtime splits long lines, and a last line
without an end); any other that it was a whole line. Entries of both streams are taken in their
order in the file, as the API server's log endpoint does, so that both give the same bytes. Called
by ``output.py``; pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

# Entries within so much time share the time stamp of the first of them.
STAMP_MICROS = 50_000
# No entry's header is longer. A line that has none within so many bytes is no entry.
HEADER_BYTES_MAX = 256
NEWLINE = b"\n"

_HEAD = rb"\d{4}-\d\d-\d\dT[^ \n]{1,64} std(?:out|err) "
_HEADER = re.compile(_HEAD + rb"([^ \n]{0,64}) ")
# One match is one line; a group is what the container wrote of it. Nothing, if it is no entry.
_WHOLE_LINES = re.compile(_HEAD + rb"[^ \n]{0,64} ([^\n]*\n)|[^\n]*\n")
_LINES = re.compile(
    _HEAD + rb"(?:P(?::[^ \n]{0,62})? ([^\n]*)\n|[^ \n]{0,64} ([^\n]*\n))|([^\n]*\n)"
)
_STAMP = re.compile(rb"[^ \n]{1,80} ")


class Inside(IntEnum):
    """The decoder's state between two calls."""

    NOTHING = 0  # at the beginning of an entry
    WHOLE = 1  # in the text of a whole line
    PART = 2  # in a text that goes on in the next entry
    BAD = 3  # in a line that is no entry


class Stamp(NamedTuple):
    """The text from a byte on was written so many microseconds after 1970."""

    offset: int
    micros: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text in the first ``used`` bytes. ``bad``: the number of lines that are no entries."""

    data: bytes
    used: int
    inside: Inside
    bad: int = 0
    stamps: tuple[Stamp, ...] = ()


def decode(raw: bytes, inside: Inside) -> Decoded:
    """Decode the bytes of a log file that follow a position; the result does not depend on where
    they are cut.

    What is left unused is the beginning of a header: it comes again with the next bytes.
    """
    parts: list[bytes] = []
    at = 0
    if inside is not Inside.NOTHING:
        newline = raw.find(NEWLINE)
        at = len(raw) if newline < 0 else newline + 1
        if inside is not Inside.BAD:
            parts.append(raw[: at - 1] if inside is Inside.PART and newline >= 0 else raw[:at])
        if newline < 0:
            return Decoded(b"".join(parts), at, inside)
        inside = Inside.NOTHING
    bad = 0
    end = raw.rfind(NEWLINE, at) + 1
    if end > at:
        text, bad = _lines(raw[at:end] if at or end < len(raw) else raw)
        parts.append(text)
        at = end
    header = _HEADER.match(raw, at)
    if header is not None:
        inside = Inside.PART if _is_part(header[1]) else Inside.WHOLE
        parts.append(raw[header.end() :])
        at = len(raw)
    elif len(raw) - at >= HEADER_BYTES_MAX:
        inside, at, bad = Inside.BAD, len(raw), bad + 1
    return Decoded(parts[0] if len(parts) == 1 else b"".join(parts), at, inside, bad)


def decode_stamped(raw: bytes, inside: Inside) -> Decoded:
    """The same, with the times of the entries. Text whose entry begins before ``raw`` has none.

    Each piece of text between two time stamps is decoded individually. Few times are read where
    much was written at once: of a chunk within 50 ms that of its first and that of its last entry.
    """
    begin = 0 if inside is Inside.NOTHING else raw.find(NEWLINE) + 1
    cuts: list[Stamp] = []
    if begin or inside is Inside.NOTHING:
        first = _micros(raw, begin)
        if first is not None:
            cuts.append(Stamp(begin, first))
        _cut(raw, begin, len(raw), cuts)
    places = [0, *(cut.offset for cut in cuts if cut.offset), len(raw)]
    found = Decoded(b"", 0, inside)
    parts: list[bytes] = []
    stamps: list[Stamp] = []
    times = dict(cuts)
    size = 0
    for place, end in pairwise(places):
        part = decode(raw[place:end] if place or end < len(raw) else raw, found.inside)
        if place in times and part.data:
            stamps.append(Stamp(size, times[place]))
        parts.append(part.data)
        size += len(part.data)
        found = replace(part, used=place + part.used, bad=found.bad + part.bad)
    return replace(found, data=b"".join(parts), stamps=tuple(stamps))


def _cut(raw: bytes, begin: int, end: int, cuts: list[Stamp]) -> None:
    """Add the places between two line beginnings from which on another time stamp holds."""
    last = raw.rfind(NEWLINE, begin, end - 1) + 1
    if last <= begin or not _is_later(_micros(raw, last), cuts, unknown=True):
        return
    middle = raw.find(NEWLINE, (begin + end) // 2, last) + 1 or last
    _cut(raw, begin, middle, cuts)
    micros = _micros(raw, middle)
    if micros is not None and _is_later(micros, cuts):
        cuts.append(Stamp(middle, micros))
    _cut(raw, middle, end, cuts)


def _is_later(micros: int | None, cuts: list[Stamp], *, unknown: bool = False) -> bool:
    if micros is None or not cuts:
        return unknown or micros is not None
    return micros - cuts[-1].micros >= STAMP_MICROS


def _micros(raw: bytes, begin: int) -> int | None:
    """The time of the entry that begins there; None if it is not there, or is none."""
    found = _STAMP.match(raw, begin)
    try:
        at = datetime.fromisoformat(found[0].decode("ascii").strip()) if found else None
    except ValueError:
        return None
    if at is None or at.tzinfo is None:
        return None
    return (at - _EPOCH) // _MICROSECOND


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def stamp(beginning: bytes) -> str:
    """The first entry's time, which identifies a file of a container; empty if there is none yet.

    Times have nanoseconds, and one container has one clock.
    """
    found = _STAMP.match(beginning)
    return found[0].decode("ascii", "replace").strip() if found else ""


def _is_part(tag: bytes) -> bool:
    return tag == b"P" or tag.startswith(b"P:")


def _lines(lines: bytes) -> tuple[bytes, int]:
    """The text of whole lines, and how many of them are no entries."""
    if b"out P" not in lines and b"err P" not in lines:
        texts = _WHOLE_LINES.findall(lines)
        return b"".join(texts), texts.count(b"")
    parts = _LINES.findall(lines)
    text = b"".join([part or whole for part, whole, _ in parts])
    return text, sum(1 for _, _, other in parts if other)
