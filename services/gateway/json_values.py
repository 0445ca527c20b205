"""The short words of HTTP (``queued``, ``very_high``) and the enums of the messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum

from libs.contracts.grants import ASCENDING
from libs.contracts.messages import Goal, PreemptMode, Priority, RunMode, TaskState, Unit

PRIORITIES: Mapping[str, Priority] = {level.name.lower(): level for level in Priority}
GOALS: Mapping[str, Goal] = {goal.name.lower(): goal for goal in Goal}
RUN_MODES: Mapping[str, RunMode] = {mode.name.lower(): mode for mode in RunMode}
STATES: Mapping[str, TaskState] = {state.name.lower(): state for state in TaskState}
MODES: Mapping[str, PreemptMode] = {mode.name.lower(): mode for mode in PreemptMode}
UNITS: Mapping[str, Unit] = {unit.name.lower(): unit for unit in Unit}

# The order of levels, lowest first; the weights behind them are the scheduler's.
_PRIORITIES_ASCENDING = (Priority.AUTO, *ASCENDING)
PRIORITY_ORDER: Mapping[Priority, int] = {
    Priority.UNSPECIFIED: _PRIORITIES_ASCENDING.index(Priority.NORMAL),
    **{level: place for place, level in enumerate(_PRIORITIES_ASCENDING)},
}


def enum_name(member: Enum) -> str:
    """The short lower-case word of an enum's member."""
    return member.name.lower()


def enum_name_or_empty(member: Enum) -> str:
    """The same; empty for UNSPECIFIED."""
    return "" if member.name == "UNSPECIFIED" else member.name.lower()


# Below it every whole float is exactly that whole number, and JSON readers agree on it.
EXACT_INTEGER_MAX = 2.0**53


def json_numbers(values: Mapping[str, float]) -> dict[str, float | str]:
    """JSON cannot write NaN and infinities as numbers; they become texts, as in protobuf's JSON."""
    return {name: json_number(value) for name, value in values.items()}


def json_number(value: float) -> float | str:
    """The number, or ``NaN``, ``Infinity`` or ``-Infinity``."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def rfc3339(at: datetime | None) -> str | None:
    """RFC 3339 in UTC, ending in Z."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
