"""The event log: which facts enter it, under which name, and at which position.

Called by the handlers, inside the projector's transaction. The projector is the only writer, so
positions have no gaps; a fact that is said again (an owner was asked to) enters once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.store.port import Op, Tx, Where
from services.gateway import store, views
from services.gateway.rows import EventHeadRow, EventRow

_SUBJECT = re.compile(r"evt\.(\w+)\.\{\w+\}\.(\w+)")


@dataclass(frozen=True, slots=True)
class Fact:
    """How to find the time and the natural key of one type of event."""

    at: str
    key: tuple[str, ...]


FACTS: Mapping[type[Message], Fact] = {
    m.TaskSubmitted: Fact("submitted_at", ("task_id",)),
    m.GoalChanged: Fact("changed_at", ("task_id", "revision")),
    m.PriorityChanged: Fact("changed_at", ("task_id", "revision")),
    m.TaskStateChanged: Fact("changed_at", ("task_id", "version")),
    m.RunAssigned: Fact("assigned_at", ("task_id", "attempt")),
    m.RunResumed: Fact("assigned_at", ("task_id", "attempt")),
    m.PreemptionRequested: Fact("requested_at", ("task_id", "attempt")),
    m.KillRequested: Fact("requested_at", ("task_id", "attempt")),
    m.RunStarted: Fact("started_at", ("task_id", "attempt")),
    m.CheckpointSaved: Fact("checkpoint.saved_at", ("task_id", "checkpoint.no")),
    m.RunExited: Fact("exit.exited_at", ("task_id", "attempt")),
    m.NodeChanged: Fact("changed_at", ("node_id", "version")),
    m.QuotaChanged: Fact("changed_at", ("version",)),
    m.UsageRecorded: Fact("ended_at", ("task_id", "attempt")),
}


def type_name(kind: type[Message]) -> str:
    """``run.exited``: aggregate and fact, from the subject."""
    found = _SUBJECT.fullmatch(ROUTES[kind].subject)
    assert found is not None, f"{kind.__name__} is no event"
    return f"{found[1]}.{found[2]}"


TYPES: Mapping[str, type[Message]] = {type_name(kind): kind for kind in FACTS}


async def append(tx: Tx, message: Message, *, is_news: bool) -> None:
    """Enter a fact. What told the read model nothing new may have been here before: look."""
    kind = type(message)
    fact = FACTS[kind]
    name = type_name(kind)
    key = "/".join([name, *(str(_read(message, field)) for field in fact.key)])
    if not is_news and await tx.select(EventRow, Where("fact", Op.EQ, key), limit=1):
        return
    ends = await store.head(tx)
    position = ends.position + 1
    tx.put(
        EventHeadRow(ends.name, position, ends.oldest),
        EventRow(
            position=position,
            type=name,
            fact=key,
            task_id=getattr(message, "task_id", ""),
            attempt=getattr(message, "attempt", 0),
            at=_read(message, fact.at),
            data=views.plain(message),
        ),
    )


def _read(message: Message, path: str) -> Any:  # noqa: ANN401 - a field of any type
    value: Any = message
    for name in path.split("."):
        value = getattr(value, name)
    return value
