"""Puts stored blocks together to the series of an answer. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from services.monitor.domain.blocks import (
    NAN,
    Block,
    BlockKey,
    Points,
    SignalKey,
    attempt_of,
    is_gap,
)

GPU_SIGNALS_PREFIX = "gpu_"
# Every rank that is measured has it, so it shows when a rank was there.
PRESENT = "processes"


@dataclass(frozen=True, slots=True)
class Window:
    """The time of an answer: so many points from a whole step on."""

    begins_s: int
    step_s: int
    count: int

    @staticmethod
    def of(begins_s: float, ends_s: float, step_s: int) -> Window:
        """The points whose steps begin in this time, and the one around its beginning."""
        first = math.floor(begins_s / step_s) * step_s
        return Window(first, step_s, max(1, math.ceil((ends_s - first) / step_s)))


@dataclass
class SeriesLine:
    """One series while it is put together."""

    totals: array[float]
    counts: array[int]
    lows: array[float]
    highs: array[float]

    @staticmethod
    def empty(count: int) -> SeriesLine:
        """Without any point."""
        return SeriesLine(
            array("d", [0.0]) * count,
            array("L", [0]) * count,
            array("f", [math.inf]) * count,
            array("f", [-math.inf]) * count,
        )

    def add(self, point: int, average: float, low: float, high: float) -> None:
        """Enter one stored point."""
        self.totals[point] += average
        self.counts[point] += 1
        self.lows[point] = min(self.lows[point], low)
        self.highs[point] = max(self.highs[point], high)

    @property
    def known(self) -> bool:
        """Whether it has any point."""
        return any(self.counts)

    def points(self) -> Points:
        """The finished series."""
        counted = list(self.counts)
        return Points(
            array("f", (t / n if n else NAN for t, n in zip(self.totals, counted, strict=True))),
            array("f", (v if n else NAN for v, n in zip(self.lows, counted, strict=True))),
            array("f", (v if n else NAN for v, n in zip(self.highs, counted, strict=True))),
        )


class Name(NamedTuple):
    """Which series. -1 stands for no rank and no GPU, attempt 0 for no run."""

    signal: str
    node_id: str
    rank: int = -1
    attempt: int = 0
    gpu: int = -1


def node_lines(
    node_id: str, blocks: Iterable[Block], window: Window, signals: frozenset[str]
) -> dict[Name, SeriesLine]:
    """The series of a node."""
    found: dict[Name, SeriesLine] = {}
    for block in blocks:
        for key, points in block.points.items():
            if not signals or key.signal in signals:
                line = _line(found, Name(key.signal, node_id, gpu=key.number), window)
                _enter(line, window, block.place, points)
    return found


def run_lines(
    blocks: Iterable[Block],
    of_nodes: Mapping[tuple[str, int, int], Block],
    window: Window,
    signals: frozenset[str],
    ranks: range,
) -> dict[Name, SeriesLine]:
    """The series of these ranks: their own, and those of the GPUs that they hold, as far as the
    rank was there. ``of_nodes``: blocks of nodes by node, step and begin."""
    found: dict[Name, SeriesLine] = {}
    for block in blocks:
        node_id, attempt = block.place.part, attempt_of(block.place.subject)
        for key, points in block.points.items():
            if key.number in ranks and (not signals or key.signal in signals):
                line = _line(found, Name(key.signal, node_id, key.number, attempt), window)
                _enter(line, window, block.place, points)
        node = of_nodes.get((node_id, block.place.step_s, block.place.begins_s))
        if node is None:
            continue
        for rank, gpus in block.gpus.items():
            there = block.points.get(SignalKey(PRESENT, rank))
            if rank not in ranks or there is None:
                continue
            for key, points in node.points.items():
                if (
                    key.number in gpus
                    and key.signal.startswith(GPU_SIGNALS_PREFIX)
                    and (not signals or key.signal in signals)
                ):
                    name = Name(key.signal, node_id, rank, attempt, key.number)
                    _enter(_line(found, name, window), window, node.place, points, there)
    return found


def _line(found: dict[Name, SeriesLine], name: Name, window: Window) -> SeriesLine:
    line = found.get(name)
    if line is None:
        line = found[name] = SeriesLine.empty(window.count)
    return line


def _enter(
    line: SeriesLine, window: Window, place: BlockKey, points: Points, there: Points | None = None
) -> None:
    """Add the points of a block; only those at which ``there`` has one."""
    lows, highs = points.lows, points.highs
    for point, average in enumerate(points.averages):
        if is_gap(average) or (there is not None and is_gap(there.averages[point])):
            continue
        position = (place.begins_s + point * place.step_s - window.begins_s) // window.step_s
        if 0 <= position < window.count:
            line.add(position, average, lows[point], highs[point])
