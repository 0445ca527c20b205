"""The event log: which facts enter it, under which name, and at which position.

Called by the handlers, inside the projector's transaction. The projector is the only writer, so
positions have no gaps. A fact that its owner publishes again enters once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.store.port import Op, Order, Tx, Where
from services.gateway import store, views
from services.gateway.rows import EventHeadRow, EventRow, TaskRow

_SUBJECT = re.compile(r"evt\.(\w+)\.\{\w+\}\.(\w+)")


@dataclass(frozen=True, slots=True)
class Fact:
    """How to find the time and the natural key of one type of event."""

    at: str
    key: tuple[str, ...]


FACTS: Mapping[type[Message], Fact] = {
    m.TaskSubmitted: Fact("submitted_at", ("task_id",)),
    m.GoalChanged: Fact("changed_at", ("task_id", "revision")),
    m.ModeChanged: Fact("changed_at", ("task_id", "revision")),
    m.PriorityChanged: Fact("changed_at", ("task_id", "revision")),
    m.TaskStateChanged: Fact("changed_at", ("task_id", "version")),
    m.RunAssigned: Fact("assigned_at", ("task_id", "attempt")),
    m.RunResumed: Fact("assigned_at", ("task_id", "attempt")),
    m.PreemptionRequested: Fact("requested_at", ("task_id", "attempt")),
    m.KillRequested: Fact("requested_at", ("task_id", "attempt")),
    m.RunActivityChanged: Fact("measured_until", ("task_id", "attempt", "measured_until")),
    m.RunDelayed: Fact("noted_at", ("task_id", "attempt", "noted_at")),
    m.RunStarted: Fact("started_at", ("task_id", "attempt")),
    m.RankRestarted: Fact("noted_at", ("task_id", "attempt", "rank", "restarts")),
    m.RankEnded: Fact("noted_at", ("task_id", "attempt", "exit.rank")),
    m.RunListened: Fact("asked_at", ("task_id", "attempt")),
    m.RunYielded: Fact("requested_at", ("task_id", "attempt")),
    m.LifeStateSaved: Fact("saved_at", ("task_id", "version")),
    m.CheckpointSaved: Fact("checkpoint.saved_at", ("task_id", "checkpoint.no")),
    m.RunExited: Fact("exit.exited_at", ("task_id", "attempt")),
    m.ErrorLinesFound: Fact("found_at", ("task_id", "attempt")),
    m.AbnormalTaskChanged: Fact("changed_at", ("task_id", "rule", "version")),
    m.AbnormalActionSettled: Fact(
        "settled_at", ("task_id", "rule", "version", "action", "node_id")
    ),
    m.NodeChanged: Fact("changed_at", ("node_id", "version")),
    m.QuotaChanged: Fact("changed_at", ("version",)),
    m.PolicyChanged: Fact("changed_at", ("group", "version")),
    m.UsageRecorded: Fact("ended_at", ("task_id", "attempt")),
}


# Facts that only the event log keeps.
NEVER_NEWS = frozenset({m.UsageRecorded, m.PolicyChanged, m.AbnormalActionSettled})


def type_name(kind: type[Message]) -> str:
    """``run.exited``: aggregate and fact, from the subject."""
    found = _SUBJECT.fullmatch(ROUTES[kind].subject)
    assert found is not None, f"{kind.__name__} is no event"
    return f"{found[1]}.{found[2]}"


TYPES: Mapping[str, type[Message]] = {type_name(kind): kind for kind in FACTS}


_NAMES: Mapping[type[Message], str] = {kind: name for name, kind in TYPES.items()}
# What an event takes besides its data.
COLUMNS_BYTES = 250
_KNOWN = "facts known in the event log"


def _key(message: Message) -> str:
    """The fact's natural key."""
    kind = type(message)
    return "/".join([_NAMES[kind], *(str(_read(message, field)) for field in FACTS[kind].key)])


async def read_ahead(tx: Tx, messages: Sequence[Message]) -> None:
    """Read in one query which facts of a batch are in the log already."""
    keys = sorted({_key(message) for message in messages if type(message) in NEVER_NEWS})
    if keys:
        rows = await tx.select(EventRow, Where("fact", Op.IN, keys))
        tx.memo[_KNOWN] = dict.fromkeys(keys, False) | dict.fromkeys((r.fact for r in rows), True)


async def _is_logged(tx: Tx, key: str) -> bool:
    """True if the log has the fact."""
    found = tx.memo.setdefault(_KNOWN, {}).get(key)
    if found is None:
        return bool(await tx.select(EventRow, Where("fact", Op.EQ, key), limit=1))
    return bool(found)


async def append(tx: Tx, message: Message, *, is_news: bool) -> None:
    """Enter a fact. One that changed nothing in the read model may be a repetition."""
    kind = type(message)
    fact, name, key = FACTS[kind], _NAMES[kind], _key(message)
    if not is_news and await _is_logged(tx, key):
        return
    tx.memo.setdefault(_KNOWN, {})[key] = True
    ends = await store.head(tx)
    position = ends.position + 1
    data = views.plain(message)
    about = await _about(tx, message)
    tx.put(
        EventHeadRow(ends.name, position, ends.oldest, ends.bytes + _size(data)),
        EventRow(
            position=position,
            type=name,
            fact=key,
            task_id=getattr(message, "task_id", ""),
            attempt=getattr(message, "attempt", 0),
            at=_read(message, fact.at),
            data=data,
            bytes_before=ends.bytes,
            owner=about.owner,
            team=about.team,
            group=about.group,
            entered_at=tx.now,
        ),
    )


@dataclass(frozen=True, slots=True)
class _About:
    """Whose an event is."""

    owner: str = ""
    team: str = ""
    group: str = ""


async def _about(tx: Tx, message: Any) -> _About:  # noqa: ANN401 - any event
    """The owner, team and group of a task; of other things their group. Nothing, if the task's
    submission is not projected yet: ``claim`` adds it then."""
    task_id = getattr(message, "task_id", "")
    if not task_id:
        part = getattr(message, "node", None) or getattr(message, "quota", None) or message
        return _About(group=getattr(part, "group", ""))
    row = await tx.get(TaskRow, task_id)
    if row is not None and row.owner:
        return _About(row.owner, row.team, row.group)
    if owner := getattr(message, "owner", ""):
        group = message.spec.group if hasattr(message, "spec") else getattr(message, "group", "")
        return _About(owner, getattr(message, "team", ""), group)
    if row is None:
        # The task is known to have events before its submission.
        tx.put(TaskRow(task_id))
    return _About()


async def claim(tx: Tx, row: TaskRow) -> None:
    """Enter the owner, team and group in events that came before their task's submission."""
    ownerless = Where("task_id", Op.EQ, row.task_id), Where("owner", Op.EQ, "")
    for event in await tx.select(EventRow, *ownerless):
        tx.put(replace(event, owner=row.owner, team=row.team, group=row.group))


async def claim_all(tx: Tx, limit: int) -> int:
    """The same for the newest of such events whose tasks are known by now: a process of a version
    that did not enter owners may have written them. Returns how many it has found."""
    ownerless = Where("owner", Op.EQ, ""), Where("task_id", Op.NE, "")
    newest = (Order("position", descending=True),)
    events = await tx.select(EventRow, *ownerless, order_by=newest, limit=limit)
    ids = sorted({event.task_id for event in events})
    tasks = await tx.select(TaskRow, Where("task_id", Op.IN, ids), Where("owner", Op.NE, ""))
    known = {row.task_id: row for row in tasks}
    found = [event for event in events if event.task_id in known]
    for event in found:
        row = known[event.task_id]
        tx.put(replace(event, owner=row.owner, team=row.team, group=row.group))
    return len(found)


def _size(data: Mapping[str, Any]) -> int:
    """About how many bytes the event takes: its text in whatever form, and the other columns."""
    return len(repr(data).encode(errors="replace")) + COLUMNS_BYTES


def _read(message: Message, path: str) -> Any:  # noqa: ANN401 - a field of any type
    value: Any = message
    for name in path.split("."):
        value = getattr(value, name)
    return value
