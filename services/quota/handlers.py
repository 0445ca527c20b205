"""Handles each command and each event: validates, records, replies.

Wired in ``main.py``. The ledger's facts may arrive in any order: a run's use is entered when its
start, its end and its holder are all known, whichever came last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libs.contracts.base import Message
from libs.contracts.grants import scope_of
from libs.contracts.messages import (
    Quota,
    QuotaChanged,
    Reemit,
    ReemitReply,
    RunExited,
    RunStarted,
    SetQuota,
    SetQuotaReply,
    TaskStateChanged,
)
from libs.service.definition import CommandHandler, Handler, Reads
from libs.store.port import Tx
from services.quota import store
from services.quota.domain import (
    OTHERS_SHOWN_MAX,
    Holder,
    Use,
    check,
    group_token,
    held,
    no_row,
    removes,
    usage,
)
from services.quota.store import QuotaRow, RunRow, TaskRow


@dataclass(frozen=True, slots=True)
class Commands:
    """quota's command handlers and their settings."""

    reemit_runs_max: int

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Return the handler of each command."""
        return {SetQuota: set_quota, Reemit: self.reemit}

    async def reemit(self, tx: Tx, _command: Reemit) -> ReemitReply:
        """Publish every row again (also removed ones) and the newest entries of the ledger."""
        events: list[Message] = [_changed(row) for row in await store.all_quotas(tx)]
        for run in await store.newest_use(tx, self.reemit_runs_max):
            task = await tx.get(TaskRow, run.task_id)
            if task is not None:
                events += _usage_of(run, task)
        for event in events:
            tx.emit(event)
        return ReemitReply(events=len(events))


async def set_quota(tx: Tx, command: SetQuota) -> SetQuotaReply:
    """Set or remove a cap or a grant. Setting the same again changes nothing.

    A scope has one row: a row in the other unit replaces it, and both changes are published. To
    remove a row that is not there is refused: it may have been named wrongly.
    """
    refused = check(command, tx.now)
    if refused is not None:
        return SetQuotaReply(refusal=refused)
    scope = scope_of(command.quota)
    before = await tx.get(QuotaRow, scope)
    live = before is not None and not before.removed
    if removes(command):
        if before is None or not live:
            others = await store.rows_of(tx, command.quota, OTHERS_SHOWN_MAX + 1)
            return SetQuotaReply(refusal=no_row(command, others))
        return SetQuotaReply(version=await _remove(tx, before, command.asked_by))
    if before is not None and live:
        if _says(before) == _says(command.quota):
            return SetQuotaReply(version=before.version)
        if before.unit is not command.quota.unit:
            await _remove(tx, before, command.asked_by)
    row = await _row(tx, scope, command.quota, command.asked_by)
    tx.put(row)
    tx.emit(_changed(row))
    return SetQuotaReply(version=row.version)


# Rows that one transaction removes.
EXPIRED_ROWS_MAX = 500


async def expire(tx: Tx) -> float | None:
    """Remove the rows whose time is over; returns in how many seconds the next one expires.

    Nothing but this removes them, so all services agree on the moment: that of the event. A clock
    that is wrong removes a row too early or too late, and nothing else.
    """
    rows = await store.first_expiring(tx, EXPIRED_ROWS_MAX)
    for row in rows:
        assert row.expires_at is not None, "only rows that expire were selected"
        if row.expires_at > tx.now:
            return (row.expires_at - tx.now).total_seconds()
        await _remove(tx, row, row.changed_by, expired=True)
    return 0.0 if len(rows) == EXPIRED_ROWS_MAX else None


async def on_run_started(tx: Tx, event: RunStarted) -> None:
    """Open the run's interval."""
    _note_run(tx, event.task_id)
    row = await store.run_of(tx, event.task_id, event.attempt)
    if row.started_at is None:
        gpus, nodes = held(event.placements)
        row = replace(row, started_at=event.started_at, gpus=gpus, nodes=nodes)
        await _enter(tx, row, await tx.get(TaskRow, event.task_id))


async def on_run_exited(tx: Tx, event: RunExited) -> None:
    """Close the run's interval. A run that never started used nothing and is not entered."""
    _note_run(tx, event.task_id)
    row = await store.run_of(tx, event.task_id, event.attempt)
    if row.ended_at is None:
        row = replace(row, ended_at=event.exit.exited_at)
        await _enter(tx, row, await tx.get(TaskRow, event.task_id))


async def on_task_state_changed(tx: Tx, event: TaskStateChanged) -> None:
    """Record the task's owner; that never changes, so the first event is enough."""
    if await tx.get(TaskRow, event.task_id) is not None:
        return
    task = TaskRow(event.task_id, event.owner, event.team, event.group, heard_at=tx.now)
    tx.put(task)
    noted: set[str] | None = tx.memo.get(_OPEN_RUNS)
    if noted is not None and task.task_id not in noted:
        # The usual order: the task's event comes before its first run.
        return
    for row in await store.open_runs_of(tx, event.task_id):
        await _enter(tx, row, task)


_OPEN_RUNS = "tasks with runs whose use is not in the ledger"


async def prepare(tx: Tx, messages: Sequence[Message]) -> None:
    """Find the tasks of a batch whose runs came before the tasks themselves."""
    task_ids = {event.task_id for event in messages if isinstance(event, TaskStateChanged)}
    tx.memo[_OPEN_RUNS] = (
        await store.with_open_runs(tx, sorted(task_ids)) if task_ids else set[str]()
    )


def _note_run(tx: Tx, task_id: str) -> None:
    """Note a task that has a run in this batch."""
    noted: set[str] | None = tx.memo.get(_OPEN_RUNS)
    if noted is not None:
        noted.add(task_id)


def _rows_of(event: RunStarted | RunExited) -> list[tuple[Any, ...]]:
    return [(RunRow, event.task_id, event.attempt), (TaskRow, event.task_id)]


READS: Mapping[type[Message], Reads] = {
    RunStarted: _rows_of,
    RunExited: _rows_of,
    TaskStateChanged: lambda event: [(TaskRow, event.task_id)],
}
HANDLERS: Mapping[type[Message], Handler] = {
    RunStarted: on_run_started,
    RunExited: on_run_exited,
    TaskStateChanged: on_task_state_changed,
}


async def _enter(tx: Tx, row: RunRow, task: TaskRow | None) -> None:
    """Store what is known of a run; publish its use once all of it is known."""
    events = [] if row.recorded or task is None else _usage_of(row, task)
    tx.put(replace(row, recorded=row.recorded or bool(events)))
    for event in events:
        tx.emit(event)


def _usage_of(row: RunRow, task: TaskRow) -> list[Message]:
    if row.started_at is None or row.ended_at is None:
        return []
    use = Use(row.task_id, row.attempt, row.gpus, row.nodes, row.started_at, row.ended_at)
    return [usage(use, Holder(task.owner, task.team, task.group))]


async def _remove(tx: Tx, row: QuotaRow, asked_by: str, *, expired: bool = False) -> int:
    gone = replace(
        row,
        version=await store.next_version(tx),
        removed=True,
        changed_by=asked_by,
        changed_at=tx.now,
        expired=expired,
    )
    tx.put(gone)
    tx.emit(_changed(gone))
    return gone.version


def _says(row: QuotaRow | Quota) -> tuple[object, ...]:
    """What a row says about its scope: a command that says the same changes nothing."""
    return row.unit, row.limit, row.unlimited, row.level_max, row.expires_at


async def _row(tx: Tx, scope: str, quota: Quota, asked_by: str) -> QuotaRow:
    return QuotaRow(
        scope=scope,
        version=await store.next_version(tx),
        removed=False,
        changed_by=asked_by,
        changed_at=tx.now,
        **{name: getattr(quota, name) for name in Quota.model_fields},
    )


def _changed(row: QuotaRow) -> QuotaChanged:
    quota = Quota(**{name: getattr(row, name) for name in Quota.model_fields})
    return QuotaChanged(
        group_token=group_token(quota),
        quota=quota,
        removed=row.removed,
        version=row.version,
        changed_by=row.changed_by,
        changed_at=row.changed_at,
        expired=row.expired,
    )
