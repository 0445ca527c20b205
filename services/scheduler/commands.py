"""The commands the scheduler answers: Decisions, Reemit; Explain is in ``explaining.py``.

Wired in ``main.py``; answered by the leader, which alone has the working set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.base import Message
from libs.contracts.messages import (
    DecisionRecord,
    Decisions,
    DecisionsReply,
    KillRequested,
    PreemptionRequested,
    Reemit,
    ReemitReply,
    RunAssigned,
    RunResumed,
    TaskState,
)
from libs.service.definition import CommandHandler
from libs.store.port import Tx
from services.scheduler import store
from services.scheduler.domain.model.changes import FIRST_ATTEMPT, state_changed
from services.scheduler.domain.model.rows import Task
from services.scheduler.explaining import unknown
from services.scheduler.policy_commands import policy_changed


def live_run(task: Task, now: datetime, silent_seconds: float) -> list[Message]:
    """The events of the live run: its assignment, and the preemption request if there is one."""
    if task.live_attempt is None or task.assigned_at is None or task.start_deadline_at is None:
        return []
    kind = RunAssigned if task.live_attempt == FIRST_ATTEMPT else RunResumed
    reply: list[Message] = [
        kind(
            task_id=task.id,
            attempt=task.live_attempt,
            owner=task.owner,
            spec=task.spec_of_attempt,
            placements=task.placements,
            start_deadline_at=task.start_deadline_at,
            resume_from=task.checkpoint if task.began_from_checkpoint else None,
            assigned_at=task.assigned_at,
            team=task.team,
        )
    ]
    if task.state is TaskState.PREEMPTING and task.ack_deadline_at is not None:
        reply.append(
            PreemptionRequested(
                task_id=task.id,
                attempt=task.live_attempt,
                reason=task.reason,
                requested_at=now,
                deadline_at=task.ack_deadline_at,
                silent_deadline_at=task.silent_deadline_at(silent_seconds),
            )
        )
    elif task.state is TaskState.KILLING:
        reply.append(
            KillRequested(
                task_id=task.id, attempt=task.live_attempt, reason=task.reason, requested_at=now
            )
        )
    return reply


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands with their settings."""

    decisions_page_max: int
    reemit_tasks_max: int
    silent_seconds: float

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Which command is answered by which function."""
        return {Decisions: self.decisions, Reemit: self.reemit}

    async def decisions(self, tx: Tx, command: Decisions) -> DecisionsReply:
        """One page of a task's history of decisions."""
        limit = min(command.limit or self.decisions_page_max, self.decisions_page_max)
        rows = await store.decisions_of(
            tx, command.task_id, after=command.after, limit=max(1, limit) + 1
        )
        if not rows and await tx.get(Task, command.task_id) is None:
            over = await store.ended(tx, command.task_id)
            if over is None:
                return DecisionsReply(refusal=unknown(command.task_id))
        return DecisionsReply(
            decisions=tuple(
                DecisionRecord(
                    no=row.no,
                    decided_at=row.decided_at,
                    task_id=row.task_id,
                    attempt=row.attempt,
                    kind=row.kind,
                    reason=row.reason,
                )
                for row in rows[: max(1, limit)]
            ),
            more=len(rows) > max(1, limit),
        )

    async def reemit(self, tx: Tx, _command: Reemit) -> ReemitReply:
        """Publish again: every task's state and live assignment, the last events of ended tasks,
        policies."""
        events: list[Message] = [
            row.last for row in await store.ended_newest(tx, self.reemit_tasks_max)
        ]
        for task in await store.tasks_of(tx):
            events.append(state_changed(task, task.state, tx.now))
            events += live_run(task, tx.now, self.silent_seconds)
        events += [policy_changed(row) for row in await store.policies_of(tx)]
        for event in events:
            tx.emit(event)
        return ReemitReply(events=len(events))
