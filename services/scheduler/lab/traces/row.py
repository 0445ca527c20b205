"""One line of any trace, and how its fields are read. Used by every reader in this package.

A reader yields a ``Row`` for each job and a ``SkippedLine`` for each other line. ``fitting.py``
fits rows to a cluster, and counts and lists the skipped lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from libs.contracts.messages import Priority
from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.lab.workload import RoleSize

# Times beyond these are mistakes: milliseconds taken for seconds, or a broken line.
SUBMIT_S_MAX = 1e11
DURATION_S_MAX = 1e9
SIZE_MAX = 1_000_000
NAME_LENGTH_MAX = 256
SHOWN_LENGTH_MAX = 40

LEVELS: Mapping[str, Priority] = MappingProxyType(
    {level.name.lower(): level for level in Priority if level is not Priority.UNSPECIFIED}
)


class BadRowError(ValueError):
    """A field that cannot be used: its name, its value, and what to write."""


@dataclass(frozen=True, slots=True)
class Row:
    """One job of a trace; the cluster is not known here.

    Attributes:
        line: of the file, from 1.
        submit_s: seconds, from any zero.
        nodes: whole nodes, if the trace counts those.
        gpus: GPUs in all, if the trace counts those.
        gpus_per_node: on each of ``nodes``, if the trace has it.
        priority: a level, or a number of a scale of the trace's own.
    """

    line: int
    submit_s: float
    duration_s: float
    nodes: int | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    user: str = ""
    team: str = ""
    priority: Priority | int = Priority.NORMAL
    requested_s: float | None = None
    group: str = ""
    # The roles of a gang whose ranks differ or share nodes; they count instead of the sizes above.
    roles: tuple[RoleSize, ...] = ()
    # Its share of a GPU was rounded up to a whole one.
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class SkippedLine:
    """A line without a job. ``bad``: it is a mistake; else the format allows it."""

    line: int
    what: str
    bad: bool = True


@dataclass(slots=True)
class Parsed:
    """An opened trace: its rows, still to be read, and the cluster on which it ran.

    Attributes:
        even: the virtual clusters' nodes are proportions of the cluster, whatever its size.
    """

    rows: Iterator[Row | SkippedLine]
    nodes: int | None = None
    virtual_clusters: tuple[VirtualCluster, ...] = ()
    even: bool = False
    notes: list[str] = field(default_factory=list[str])


Fields: TypeAlias = Mapping[str, str]


def shown(value: object) -> str:
    """A value as a message shows it: quoted, on one line, not too long."""
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "…"


def number(text: str, name: str, most: float) -> float:
    """A time of the trace. Raises BadRowError unless it is a number from 0 to ``most``."""
    try:
        value = float(text)
    except ValueError:
        raise BadRowError(f"{name} is {shown(text)}: write a number of seconds") from None
    if not math.isfinite(value):
        raise BadRowError(f"{name} is {shown(text)}: write a finite number of seconds")
    if value < 0:
        raise BadRowError(f"{name} is {shown(text)}: it cannot be negative")
    if value > most:
        raise BadRowError(f"{name} is {shown(text)}: above {most:g}; is it in milliseconds?")
    return value


def count(text: str, name: str, least: int) -> int:
    """A size. Raises BadRowError unless it is a whole number from ``least`` up."""
    try:
        value = float(text)
    except ValueError:
        raise BadRowError(f"{name} is {shown(text)}: write a whole number") from None
    if not math.isfinite(value) or value != int(value):
        raise BadRowError(f"{name} is {shown(text)}: write a whole number")
    if not least <= value <= SIZE_MAX:
        raise BadRowError(f"{name} is {shown(text)}: it must be from {least} to {SIZE_MAX}")
    return int(value)


def limit(text: str, name: str) -> float | None:
    """A user's own time limit; None where there is none (empty, 0, or -1)."""
    if not text or text in {"-1", "0"}:
        return None
    return number(text, name, DURATION_S_MAX) or None


def name_of(text: str, name: str) -> str:
    """A user or team. Raises BadRowError if it is longer than any name."""
    if len(text) > NAME_LENGTH_MAX:
        raise BadRowError(f"{name} has {len(text)} characters: at most {NAME_LENGTH_MAX}")
    return text


def priority(text: str) -> Priority | int:
    """One of our levels by name, or a number of the trace's own scale; empty: normal."""
    word = text.strip().lower().replace("-", "_")
    if not word:
        return Priority.NORMAL
    if word in LEVELS:
        return LEVELS[word]
    try:
        return int(word)
    except ValueError:
        raise BadRowError(
            f"priority is {shown(text)}: write a number or one of {', '.join(LEVELS)}"
        ) from None
