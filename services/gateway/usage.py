"""The usage ledger: one entry for each attempt, folded from events; and what entries add up to.

``handlers.py`` folds each event into its attempt's entry. Each fact is set once, or has a version,
or the earliest or latest wins: any order and repetition of events leads to the same entry.
``api/usage.py`` asks for sums. Definitions: docs/adr/0035-usage-ledger.md.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.store.port import Op, Span, SpanGroup, SpanQuery, Where
from services.gateway.json_values import PRIORITIES, enum_name
from services.gateway.rows import UsageRow


class Outcome(StrEnum):
    """How an attempt ended, or what it does now."""

    SUCCEEDED = "succeeded"
    # A rank failed, or the rules of the task decided so.
    FAILED = "failed"
    # The platform or the cluster ended it: a lost node, a start that was impossible or too late.
    LOST = "lost"
    # Others needed its nodes, or they were drained.
    PREEMPTED = "preempted"
    # Its program handed the nodes over on its own.
    YIELDED = "yielded"
    # Its owner paused or stopped the task, or turned debug mode on or off.
    PAUSED = "paused"
    STOPPED = "stopped"
    MODE_CHANGED = "mode_changed"
    # It lasted as long as it may.
    TIMED_OUT = "timed_out"
    # Its ranks ended in debug mode.
    DEBUG = "debug"
    # It holds nodes: no process runs yet, or it runs.
    STARTING = "starting"
    RUNNING = "running"
    # That it ended is known from a restored entry, and not how.
    UNKNOWN = "unknown"


_OF_KIND: Mapping[str, Outcome] = {
    enum_name(m.ExitKind.OK): Outcome.SUCCEEDED,
    enum_name(m.ExitKind.FAILED): Outcome.FAILED,
    enum_name(m.ExitKind.LOST): Outcome.LOST,
    Outcome.YIELDED: Outcome.YIELDED,
    Outcome.DEBUG: Outcome.DEBUG,
}
# Of runs that the platform ended, by the reason of the first request.
_OF_REQUEST: Mapping[str, Outcome] = {
    enum_name(code): outcome
    for code, outcome in (
        (m.ReasonCode.GOAL_PAUSE, Outcome.PAUSED),
        (m.ReasonCode.GOAL_STOP, Outcome.STOPPED),
        (m.ReasonCode.MODE_CHANGED, Outcome.MODE_CHANGED),
        (m.ReasonCode.MAX_RUN_TIME, Outcome.TIMED_OUT),
        (m.ReasonCode.DEBUG_ENDED, Outcome.TIMED_OUT),
        (m.ReasonCode.START_EXPIRED, Outcome.LOST),
        (m.ReasonCode.START_ATTEMPTS_USED_UP, Outcome.LOST),
    )
}
# Attempts that ended so lost what they had not saved.
LOST_TO_PREEMPTION = frozenset({Outcome.PREEMPTED})
LOST_TO_FAILURE = frozenset({Outcome.FAILED, Outcome.LOST})


def entered(row: UsageRow, event: Message) -> UsageRow:
    """The entry of an attempt with one more fact; the same entry if the fact is not new."""
    after = _FOLDS[type(event)](row, event)
    held_from = after.assigned_at or after.started_at
    after = replace(after, held_from=held_from, outcome=str(_outcome(after)))
    return row if after == row else after


def _outcome(row: UsageRow) -> Outcome:
    if row.held_until is None:
        return Outcome.STARTING if row.started_at is None else Outcome.RUNNING
    if not row.ended:
        return Outcome.UNKNOWN
    if row.ended in _OF_KIND:
        return _OF_KIND[row.ended]
    if not row.asked_for and row.ended != enum_name(m.ExitKind.PREEMPTED):
        # It was killed, and a restored entry does not know why.
        return Outcome.UNKNOWN
    return _OF_REQUEST.get(row.asked_for, Outcome.PREEMPTED)


def _with_holder(row: UsageRow, owner: str, team: str, group: str) -> UsageRow:
    """An attempt's owner, team and group never change; some events do not have them."""
    return replace(row, user=row.user or owner, team=row.team or team, group=row.group or group)


def _with_places(row: UsageRow, placements: Sequence[m.Placement]) -> UsageRow:
    if row.nodes or not placements:
        return row
    return replace(
        row,
        gpus=sum(len(each.gpus) for each in placements),
        nodes=len({each.node_id for each in placements}),
    )


def _on_assigned(row: UsageRow, event: m.RunAssigned | m.RunResumed) -> UsageRow:
    row = _with_holder(row, event.owner, event.team, event.spec.group)
    row = _with_places(row, event.placements)
    return replace(
        row,
        assigned_at=row.assigned_at or event.assigned_at,
        # What the task was submitted with, until the scheduler has published its level.
        priority=row.priority or enum_name(event.spec.priority),
    )


def _on_state(row: UsageRow, event: m.TaskStateChanged) -> UsageRow:
    """The first state of an attempt has the priority that the task had at its start."""
    row = _with_holder(row, event.owner, event.team, event.group)
    known = row.priority_version
    if event.priority is not m.Priority.UNSPECIFIED and (not known or event.version < known):
        row = replace(row, priority=enum_name(event.priority), priority_version=event.version)
    if event.exit is not None and event.exit.attempt == row.attempt:
        row = _with_exit(row, event.exit)
    return row


def _on_started(row: UsageRow, event: m.RunStarted) -> UsageRow:
    row = _with_places(row, event.placements)
    return row if row.started_at is not None else replace(row, started_at=event.started_at)


def _on_request(row: UsageRow, event: m.PreemptionRequested | m.KillRequested) -> UsageRow:
    """The first request says why the run ended: a later one shortens its time."""
    asked = (event.requested_at, enum_name(event.reason.code))
    if row.asked_at is not None and (row.asked_at, row.asked_for) <= asked:
        return row
    return replace(row, asked_at=asked[0], asked_for=asked[1])


def _with_checkpoint(row: UsageRow, saved: m.Checkpoint | None) -> UsageRow:
    if saved is None or saved.attempt != row.attempt:
        return row
    if row.saved_at is not None and row.saved_at >= saved.saved_at:
        return row
    return replace(row, saved_at=saved.saved_at)


def _with_exit(row: UsageRow, exit_: m.RunExit) -> UsageRow:
    if row.ended:
        return row
    ended = enum_name(exit_.kind)
    if exit_.yielded:
        ended = str(Outcome.YIELDED)
    elif exit_.debug and exit_.kind in (m.ExitKind.OK, m.ExitKind.FAILED):
        ended = str(Outcome.DEBUG)
    return replace(row, ended=ended, held_until=exit_.exited_at)


def _on_exited(row: UsageRow, event: m.RunExited) -> UsageRow:
    row = _with_checkpoint(_with_places(row, event.placements), event.checkpoint)
    return _with_exit(row, event.exit)


def _on_recorded(row: UsageRow, event: m.UsageRecorded) -> UsageRow:
    """What quota keeps of a run restores what only a forgotten assignment had."""
    row = _with_holder(row, event.owner, event.team, event.group)
    if not row.nodes:
        row = replace(row, gpus=event.gpus, nodes=event.nodes)
    return replace(
        row,
        started_at=row.started_at or event.started_at,
        held_until=row.held_until or event.ended_at,
    )


def _on_activity(row: UsageRow, event: m.RunActivityChanged) -> UsageRow:
    """The newest report wins. Its sums become an average over the time that it covers, so that a
    part of the attempt counts with that part."""
    if row.measured_until is not None and row.measured_until >= event.measured_until:
        return row
    seconds = (event.measured_until - event.measured_from).total_seconds()
    if seconds <= 0:
        return row
    return replace(
        row,
        measured_until=event.measured_until,
        measured_milligpus=round(event.measured_gpu_seconds / seconds * MILLI),
        idle_milligpus=round(event.idle_gpu_seconds / seconds * MILLI),
    )


_FOLDS: Mapping[type[Message], Callable[[UsageRow, Any], UsageRow]] = {
    m.RunAssigned: _on_assigned,
    m.RunResumed: _on_assigned,
    m.TaskStateChanged: _on_state,
    m.RunStarted: _on_started,
    m.CheckpointSaved: lambda row, event: _with_checkpoint(row, event.checkpoint),
    m.PreemptionRequested: _on_request,
    m.KillRequested: _on_request,
    m.RunExited: _on_exited,
    m.UsageRecorded: _on_recorded,
    m.RunActivityChanged: _on_activity,
}
EVENTS = frozenset(_FOLDS)


# Sums


# The columns of the ledger by the names that HTTP gives them. ``day`` is no column.
COLUMNS: Mapping[str, str] = {
    "user": "user",
    "team": "team",
    "group": "group",
    "priority": "priority",
    "outcome": "outcome",
    "task": "task_id",
}
DAY = "day"
DIMENSIONS = (*COLUMNS, DAY)
_STARTING = Span(end="started_at")
_UNSAVED = Span(begin="saved_at")
MILLI = 1000


def _lost(outcomes: Iterable[Outcome]) -> Span:
    return replace(_UNSAVED, where=(Where("outcome", Op.IN, sorted(outcomes)),))


# What is added up, by the names of ``Amounts``.
_SPANS: Mapping[str, Span] = {
    "held_gpu": Span(weight="gpus"),
    "held_node": Span(weight="nodes"),
    "starting": _STARTING,
    "starting_gpu": replace(_STARTING, weight="gpus"),
    **{
        f"{what}_gpu": Span(begin="started_at", weight=f"{what}_milligpus")
        for what in ("measured", "idle")
    },
    **{
        f"lost_to_{cause}_{unit}": replace(_lost(outcomes), weight=f"{unit}s")
        for cause, outcomes in (("preemption", LOST_TO_PREEMPTION), ("failure", LOST_TO_FAILURE))
        for unit in ("gpu", "node")
    },
}
# Of thousandths of GPUs.
_IN_MILLI = frozenset({"measured_gpu", "idle_gpu"})
LEVELS = tuple(name for name, level in PRIORITIES.items() if level is not m.Priority.UNSPECIFIED)
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of the ledger is added up, and by which of ``DIMENSIONS``."""

    since: datetime
    # At the latest now: attempts that have not ended count until then.
    until: datetime
    group_by: tuple[str, ...] = ()
    # Values by the names of ``COLUMNS``.
    filters: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Amounts:
    """What attempts held, in microseconds of one GPU or one node; ``attempts`` began."""

    attempts: int = 0
    held_gpu: int = 0
    held_node: int = 0
    # From the assignment until the processes ran: seconds of attempts, and of GPUs.
    starting: int = 0
    starting_gpu: int = 0
    # For how long GPUs were measured, and were idle meanwhile.
    measured_gpu: int = 0
    idle_gpu: int = 0
    # Held after the last checkpoint, by attempts that others or a failure ended.
    lost_to_preemption_gpu: int = 0
    lost_to_preemption_node: int = 0
    lost_to_failure_gpu: int = 0
    lost_to_failure_node: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        """Both together."""
        return Amounts(*map(operator.add, _parts(self), _parts(other)))

    def seconds(self) -> dict[str, float]:
        """The amounts as HTTP shows them: ``attempts``, and each other one in seconds."""
        found: dict[str, float] = {"attempts": self.attempts}
        for each, value in zip(fields(self)[1:], _parts(self)[1:], strict=True):
            found[f"{each.name}_seconds"] = value / _MICROSECONDS
        return found


_parts: Callable[[Amounts], tuple[int, ...]] = operator.attrgetter(
    *(each.name for each in fields(Amounts))
)


@dataclass(frozen=True, slots=True)
class Sums:
    """The values of a selection's dimensions, and what their attempts held."""

    # By the names of the dimensions; a day is written ``2026-11-23``.
    key: Mapping[str, str]
    amounts: Amounts


def query(selection: Selection, groups_max: int) -> SpanQuery:
    """The question to the store."""
    return SpanQuery(
        begin="held_from",
        end="held_until",
        since=selection.since,
        until=selection.until,
        spans=tuple(_SPANS.values()),
        by=[COLUMNS[name] for name in selection.group_by if name != DAY],
        daily=DAY in selection.group_by,
        where=[Where(COLUMNS[name], Op.EQ, value) for name, value in selection.filters.items()],
        limit=groups_max,
    )


def sums(selection: Selection, groups: Iterable[SpanGroup]) -> list[Sums]:
    """The groups under their names; those of nothing are left out. They are in the order of day
    and of the other dimensions."""
    names = [name for name in selection.group_by if name != DAY]
    found: list[Sums] = []
    for group in groups:
        values = dict(zip(names, group.key, strict=True))
        if group.day is not None:
            values[DAY] = f"{group.day:%Y-%m-%d}"
        if group.begun or any(group.sums):
            amounts = Amounts(
                group.begun,
                **{
                    name: value // MILLI if name in _IN_MILLI else value
                    for name, value in zip(_SPANS, group.sums, strict=True)
                },
            )
            found.append(Sums({name: values[name] for name in selection.group_by}, amounts))
    return found


def total(found: Iterable[Sums]) -> Amounts:
    """All groups together."""
    return sum((each.amounts for each in found), Amounts())
