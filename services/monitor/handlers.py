"""Handles each event: records where the task stands, and what is to be notified. Wired in
``main.py``. Events of a task may come in any order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from libs.contracts.base import Message
from libs.contracts.messages import (
    Occasion,
    ReasonCode,
    TaskState,
    TaskStateChanged,
    TaskSubmitted,
)
from libs.contracts.reasons import render
from libs.contracts.task_states import TERMINAL
from libs.service.definition import Handler, Reads
from libs.store.port import Tx
from services.monitor.abnormal import recording
from services.monitor.abnormal.recording import record
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.domain.occasions import occasions_of, waits_for_quota
from services.monitor.messages.message_outbox import MessageOutbox, TaskOccasion
from services.monitor.store import TaskRow


@dataclass(frozen=True, slots=True)
class Handlers:
    """The monitor's event handlers."""

    message_outbox: MessageOutbox

    def table(self) -> Mapping[type[Message], Handler]:
        """Return the handler of each event."""
        return {kind: partial(handler, self) for kind, handler in HANDLERS.items()}

    async def on_fact(self, tx: Tx, event: Any) -> None:  # noqa: ANN401 - one that rules read
        """Record what rules read."""
        await record(tx, event)

    async def on_task_submitted(self, tx: Tx, event: TaskSubmitted) -> None:
        """Record the task's name, which the scheduler's events do not have."""
        before = await tx.get(TaskRow, event.task_id)
        tx.put(_submitted(event) if before is None else replace(before, name=_name(event)))

    async def on_task_state_changed(self, tx: Tx, event: TaskStateChanged) -> None:
        """Record where the task stands, and notify. An older event than the last one changes
        nothing."""
        await record(tx, event)
        before = await tx.get(TaskRow, event.task_id)
        if before is not None and before.version >= event.version:
            return
        known = before is not None and before.version > 0
        quota_notified = before is not None and before.quota_notified
        occasions = occasions_of(
            event, before.state if before and known else None, quota_notified=quota_notified
        )
        row = _row_of(event, before)
        tx.put(row)
        for occasion in occasions:
            await self.message_outbox.put(
                tx,
                TaskOccasion(
                    task=row,
                    occasion=occasion,
                    at=event.changed_at,
                    number=str(event.version),
                    details=_details(event, occasion),
                ),
            )


def _row_of(event: TaskStateChanged, before: TaskRow | None) -> TaskRow:
    queued = event.state is TaskState.QUEUED
    waits_on = queued and before is not None and before.state is TaskState.QUEUED
    since = before.queued_since if waits_on and before else None
    return TaskRow(
        task_id=event.task_id,
        version=event.version,
        owner=event.owner,
        team=event.team,
        group=event.group,
        name=before.name if before else "",
        state=event.state,
        reason=event.reason.code,
        attempt=event.attempt,
        changed_at=event.changed_at,
        queued_since=(since or event.changed_at) if queued else None,
        waiting_notified=bool(waits_on and before and before.waiting_notified),
        # Once for each stay in the queue, however often the reason changes meanwhile.
        quota_notified=waits_for_quota(event)
        or bool(waits_on and before and before.quota_notified),
        ended_at=event.changed_at if event.state in TERMINAL else None,
    )


def _details(event: TaskStateChanged, occasion: Occasion) -> dict[str, Any]:
    details: dict[str, Any] = {"state": event.state.name.lower(), "reason": render(event.reason)}
    if event.exit is not None and occasion in {Occasion.FAILED, Occasion.FINISHED}:
        details["exit_kind"] = event.exit.kind.name.lower()
        details["exit"] = event.exit.detail
    return details


def _name(event: TaskSubmitted) -> str:
    return event.spec.name if event.spec else ""


def _submitted(event: TaskSubmitted) -> TaskRow:
    """The row of a task about which nothing else came yet."""
    return TaskRow(
        task_id=event.task_id,
        version=0,
        owner=event.owner,
        team=event.team,
        group=event.spec.group if event.spec else "",
        name=_name(event),
        state=TaskState.QUEUED,
        reason=ReasonCode.QUEUED,
        attempt=0,
        changed_at=event.submitted_at,
        queued_since=event.submitted_at,
    )


HANDLERS: Mapping[type[Message], Callable[[Handlers, Tx, Any], Awaitable[None]]] = {
    **dict.fromkeys(recording.CHANGES, Handlers.on_fact),
    TaskSubmitted: Handlers.on_task_submitted,
    TaskStateChanged: Handlers.on_task_state_changed,
}
READS: Mapping[type[Message], Reads] = {
    **recording.READS,
    TaskSubmitted: lambda event: [(TaskRow, event.task_id)],
    TaskStateChanged: lambda event: [(TaskRow, event.task_id), (FactsRow, event.task_id)],
}
