"""Handles each event and each command: validates, records, replies. Wired in ``main.py``."""

from __future__ import annotations

from collections.abc import Mapping

from libs.contracts.base import Message
from libs.contracts.messages import TaskStateChanged
from libs.contracts.task_states import TERMINAL
from libs.service.definition import CommandHandler, Handler, Reads
from libs.store.port import Tx
from services.monitor.store import TaskRow


async def on_task_state_changed(tx: Tx, event: TaskStateChanged) -> None:
    """Record where the task stands. An older event than the last one changes nothing."""
    before = await tx.get(TaskRow, event.task_id)
    if before is not None and before.version >= event.version:
        return
    tx.put(
        TaskRow(
            task_id=event.task_id,
            version=event.version,
            owner=event.owner,
            team=event.team,
            group=event.group,
            state=event.state,
            attempt=event.attempt,
            changed_at=event.changed_at,
            ended_at=event.changed_at if event.state in TERMINAL else None,
        )
    )


HANDLERS: Mapping[type[Message], Handler] = {TaskStateChanged: on_task_state_changed}
READS: Mapping[type[Message], Reads] = {
    TaskStateChanged: lambda event: [(TaskRow, event.task_id)],
}
COMMANDS: Mapping[type[Message], CommandHandler] = {}
