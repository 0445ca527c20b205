"""Puts messages into the outbox of deliveries. Called by handlers and by the loop of waiting tasks,
in their transactions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from libs.contracts.ids import ids_in, without_hidden_ids
from libs.contracts.messages import NotificationChannel, Occasion
from libs.store.port import Tx, UnreadableRowError
from services.monitor import store
from services.monitor.domain.recipients import is_about
from services.monitor.messages.message_metrics import GivenUp, note_given_up
from services.monitor.store import MessageRow, NotificationRow, ReceiverRow, Stage, TaskRow

_MEMO = "notifications and receivers"


@dataclass
class _Known:
    """What a batch knows of notifications, read once."""

    rows: Sequence[NotificationRow]
    receivers: dict[tuple[str, str], ReceiverRow]
    waiting: dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class TaskOccasion:
    """One occasion of a task."""

    task: TaskRow
    occasion: Occasion
    at: datetime
    # Unique among the task's occasions of this kind, and the same whenever it is handled.
    number: str
    details: dict[str, Any]


@dataclass
class MessageOutbox:
    """Adds the messages of each occasion: one for each notification that is about it."""

    waiting_max: int
    # Mail waits for what comes with it.
    mail_gather_seconds: float = 0.0
    # Something was added since the delivery looked.
    _added: bool = False

    def note_added(self) -> None:
        """Let the delivery look after the commit."""
        self._added = True

    def take_added(self) -> bool:
        """True if something was added since the last call."""
        added, self._added = self._added, False
        return added

    async def put(self, tx: Tx, task_occasion: TaskOccasion) -> None:
        """Add a message for each notification that is about this."""
        known = await _known(tx)
        for row in known.rows:
            if concerns(row, task_occasion):
                await self._put(tx, known, row, task_occasion)

    async def _put(
        self, tx: Tx, known: _Known, row: NotificationRow, task_occasion: TaskOccasion
    ) -> None:
        key = row.owner, row.name
        task, word = task_occasion.task, word_of(task_occasion.occasion)
        message_id = f"{task.task_id}.{word}.{task_occasion.number}.{row.owner}.{row.name}"
        try:
            if await tx.get(MessageRow, message_id) is not None:
                return
        except UnreadableRowError:
            # It was added before.
            return
        if key not in known.waiting:
            waiting = await store.messages_of(tx, row.key, Stage.WAITING, self.waiting_max)
            known.waiting[key] = len(waiting)
        receiver = known.receivers.get(key)
        stage, problem, due_at = Stage.WAITING, "", tx.now
        if receiver is not None and receiver.paused_at is not None:
            stage, problem = Stage.DEAD, "the receiver is paused"
        elif known.waiting[key] >= self.waiting_max:
            stage, problem = Stage.DEAD, f"{self.waiting_max} messages were waiting already"
        elif receiver is not None and receiver.held_until is not None:
            due_at = max(due_at, receiver.held_until)
        if row.channel is NotificationChannel.MAIL:
            due_at += timedelta(seconds=self.mail_gather_seconds)
        known.waiting[key] += stage is Stage.WAITING
        self.note_added()
        tx.put(
            MessageRow(
                id=message_id,
                owner=row.owner,
                name=row.name,
                task_id=task.task_id,
                occasion=task_occasion.occasion,
                body=json.dumps(_body(task_occasion, await _details_for(tx, row, task_occasion))),
                happened_at=task_occasion.at,
                stage=stage,
                due_at=due_at,
                problem=problem,
                channel=row.channel,
                notification_made_at=row.made_at,
            )
        )
        if stage is Stage.DEAD:
            note_given_up(row.channel, GivenUp.NO_ROOM)


async def _known(tx: Tx) -> _Known:
    known: _Known | None = tx.memo.get(_MEMO)
    if known is None:
        rows = await store.notifications(tx)
        receivers = dict(await store.receivers(tx)) if rows else {}
        known = tx.memo[_MEMO] = _Known(rows, receivers, {})
    return known


def concerns(row: NotificationRow, task_occasion: TaskOccasion) -> bool:
    """True if the notification is about this occasion of this task."""
    if word_of(task_occasion.occasion) not in row.occasions.split():
        return False
    return _reaches(row, task_occasion.task)


def _reaches(row: NotificationRow, task: TaskRow) -> bool:
    """True if the notification may be about this task."""
    return is_about(row.tasks, row.owner, row.team, task_owner=task.owner, task_team=task.team)


def word_of(occasion: Occasion) -> str:
    """How people write it."""
    return occasion.name.lower()


async def _details_for(
    tx: Tx, row: NotificationRow, task_occasion: TaskOccasion
) -> Mapping[str, Any]:
    """The details with ``hidden-1`` and so on instead of the other tasks that the notification does
    not reach: its owner may not see them, whatever the site shows of tasks."""
    text = json.dumps(task_occasion.details)
    shown = {task_occasion.task.task_id}
    for task_id in ids_in(text):
        task = await tx.get(TaskRow, task_id)
        if task is not None and _reaches(row, task):
            shown.add(task_id)
    hidden: dict[str, Any] = json.loads(without_hidden_ids(text, shown))
    return hidden


def _body(task_occasion: TaskOccasion, details: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a webhook: type, timestamp and data, as Standard Webhooks has them."""
    task = task_occasion.task
    return {
        "type": f"task.{word_of(task_occasion.occasion)}",
        "timestamp": task_occasion.at.isoformat(),
        "data": {
            "task_id": task.task_id,
            "name": task.name,
            "owner": task.owner,
            "team": task.team or None,
            "group": task.group or None,
            "attempt": task.attempt,
            **details,
        },
    }
