"""Blocks: all signals of one subject over 60 steps of time, as arrays. Pure.

A block of the finest step has one value for each signal and step. Coarser ones have the average,
the minimum and the maximum of the finer points in each step. A gap is not a number (NaN) and counts
for nothing, so the average of a step is that of the points that are there.

A block is stored as one row. Its floats are grouped by the place of their bytes before they are
compressed: the first bytes of similar numbers are equal.
"""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

POINTS = 60
FLOAT = 4
NAN = math.nan
# A block holds so many signals; further ones are left out.
KEYS_MAX = 8_192
COMPRESSION = 1


class SignalKey(NamedTuple):
    """One signal of a block. ``number``: the GPU of a node, the rank of a run; -1: of neither."""

    signal: str
    number: int = -1


class BlockKey(NamedTuple):
    """Which block: its subject, how fine, since when in seconds since 1970. ``part`` is the node
    of a part of a run."""

    subject: str
    part: str
    step_s: int
    begins_s: int

    @property
    def ends_s(self) -> int:
        """The first second behind it."""
        return self.begins_s + POINTS * self.step_s


def node_subject(node_id: str) -> str:
    """The subject of a node."""
    return f"node/{node_id}"


def run_subject(task_id: str, attempt: int) -> str:
    """The subject of a run. Those of one task sort by attempt, next to each other."""
    return f"{runs_of(task_id)}{attempt:09d}"


def runs_of(task_id: str) -> str:
    """How the subjects of all runs of a task begin."""
    return f"run/{task_id}/"


def attempt_of(subject: str) -> int:
    """The attempt of a run's subject."""
    return int(subject.rpartition("/")[2])


# Whether a point is missing.
is_gap = math.isnan


def begin_of(step_s: int, at_s: float) -> int:
    """When the block begins in which a moment lies."""
    length = POINTS * step_s
    return int(at_s // length) * length


def _empty() -> array[float]:
    return array("f", [NAN]) * POINTS


@dataclass
class Points:
    """One signal. Minima and maxima are those of the averages in a block of the finest step."""

    averages: array[float] = field(default_factory=_empty)
    minima: array[float] | None = None
    maxima: array[float] | None = None

    @property
    def lows(self) -> array[float]:
        """The smallest value of each step."""
        return self.averages if self.minima is None else self.minima

    @property
    def highs(self) -> array[float]:
        """The largest value of each step."""
        return self.averages if self.maxima is None else self.maxima


@dataclass
class Block:
    """The points of one subject."""

    place: BlockKey
    points: dict[SignalKey, Points] = field(default_factory=dict[SignalKey, Points])
    # Of a run: the GPUs that each of its ranks holds on the part's node.
    gpus: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    def put(self, at_s: float, values: Mapping[SignalKey, float]) -> None:
        """Enter values of one moment in this block. Within a step the last one counts."""
        point = int(at_s - self.place.begins_s) // self.place.step_s
        for key, value in values.items():
            found = self.points.get(key)
            if found is None:
                if len(self.points) >= KEYS_MAX:
                    continue
                found = self.points[key] = Points()
            found.averages[point] = value

    def complete(self, before: Block) -> None:
        """Take the points of an earlier state of this block that this one does not have."""
        for key, old in before.points.items():
            new = self.points.setdefault(key, Points())
            for point, value in enumerate(old.averages):
                if is_gap(new.averages[point]):
                    new.averages[point] = value
        self.gpus = {**before.gpus, **self.gpus}

    def fold(self, finer: Block) -> None:
        """Enter the points of a finer block, which lies in this one. Doing it again changes
        nothing."""
        width = self.place.step_s // finer.place.step_s
        shift = (finer.place.begins_s - self.place.begins_s) // self.place.step_s
        for key, points in finer.points.items():
            mine = self.points.get(key)
            if mine is None:
                mine = self.points[key] = Points(_empty(), _empty(), _empty())
            for place in range(max(1, POINTS // width)):
                step = slice(place * width, (place + 1) * width)
                known = [value for value in points.averages[step] if not is_gap(value)]
                if known:
                    point = shift + place
                    mine.averages[point] = math.fsum(known) / len(known)
                    mine.lows[point] = min(v for v in points.lows[step] if not is_gap(v))
                    mine.highs[point] = max(v for v in points.highs[step] if not is_gap(v))
        self.gpus |= finer.gpus


def little_endian(numbers: array[float]) -> bytes:
    """The numbers as bytes, the same on every machine."""
    if sys.byteorder == "big":
        numbers = array("f", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def encoded(block: Block) -> bytes:
    """The block's content as it is stored."""
    fine = all(points.minima is None for points in block.points.values())
    head = orjson.dumps(
        {
            "keys": [tuple(key) for key in block.points],
            "gpus": list(block.gpus.items()),
            "fine": fine,
        }
    )
    numbers = array("f")
    for points in block.points.values():
        numbers += points.averages
        if not fine:
            numbers += points.lows
            numbers += points.highs
    raw = little_endian(numbers)
    by_place = b"".join(raw[place::FLOAT] for place in range(FLOAT))
    return zlib.compress(len(head).to_bytes(4, "little") + head + by_place, COMPRESSION)


def decoded(place: BlockKey, data: bytes) -> Block:
    """The block of a stored content; ValueError if it is damaged."""
    try:
        text = zlib.decompress(data)
        size = int.from_bytes(text[:4], "little")
        head = orjson.loads(text[4 : 4 + size])
        by_place = text[4 + size :]
        keys = [SignalKey(signal, index) for signal, index in head["keys"]]
        gpus = {int(rank): tuple(held) for rank, held in head["gpus"]}
        per_key = POINTS * (1 if head["fine"] else 3)
    except (zlib.error, orjson.JSONDecodeError, KeyError, TypeError) as problem:
        raise ValueError(f"the block {place} cannot be read: {problem}") from problem
    if len(by_place) != len(keys) * per_key * FLOAT:
        raise ValueError(f"the block {place} has {len(by_place)} bytes for {len(keys)} signals")
    raw = bytearray(len(by_place))
    quarter = len(by_place) // FLOAT
    for position in range(FLOAT):
        raw[position::FLOAT] = by_place[position * quarter : (position + 1) * quarter]
    numbers = array("f", bytes(raw))
    if sys.byteorder == "big":
        numbers.byteswap()
    block = Block(place, gpus=gpus)
    for key, columns in zip(keys, _columns(numbers, per_key), strict=True):
        block.points[key] = Points(*columns)
    return block


def _columns(numbers: array[float], per_key: int) -> Iterator[list[array[float]]]:
    for begin in range(0, len(numbers), per_key):
        yield [numbers[at : at + POINTS] for at in range(begin, begin + per_key, POINTS)]
