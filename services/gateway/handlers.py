"""Events into the read model. Called by the consumer, on the leading process only.

Each fact has a version, a revision, an attempt or is set once, so that duplicates and any order
lead to the same rows. Each handler returns whether something changed; then the fact enters the
event log in the same transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from zlib import crc32

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.service.definition import Handler, Reads
from libs.store.port import Tx
from services.gateway import eventlog, usage, views
from services.gateway.conversion import quota_row
from services.gateway.ids import sortable_id
from services.gateway.json_values import PRIORITY_ORDER, enum_name, enum_name_or_empty
from services.gateway.rows import (
    PLATFORM,
    AcceptedRow,
    AuditRow,
    NodeRow,
    QuotaRow,
    RunRow,
    TaskRow,
    UsageRow,
)

E = TypeVar("E", bound=Message)
T = TypeVar("T", bound=TaskRow)


def with_submission(row: T, event: m.TaskSubmitted) -> T:
    """A task's row with the content of its submission; later goals, modes and priorities stay."""
    spec = event.spec
    if event.revision > row.goal_revision and spec.run_mode is m.RunMode.PAUSE:
        row = replace(row, goal=enum_name(m.Goal.PAUSE), goal_revision=event.revision)
        if not row.state_version:
            paused = m.Reason(code=m.ReasonCode.GOAL_PAUSE)
            row = replace(row, state=enum_name(m.TaskState.PAUSED), reason=paused)
    row = _with_mode(row, spec.run_mode, event.revision)
    row = replace(
        row,
        submitted_at=event.submitted_at,
        owner=event.owner,
        team=event.team,
        name=spec.name,
        group=spec.group,
        labels=dict(spec.labels),
        spec=spec,
        warnings=event.warnings,
        revision=max(row.revision, event.revision),
        chain=spec.continues.chain if spec.continues else row.task_id,
        checkpoint=_newer(row.checkpoint, spec.continues.checkpoint if spec.continues else None),
    )
    return _with_priority(row, spec.priority, event.revision)


def _with_mode(row: T, mode: m.RunMode, revision: int) -> T:
    if revision <= row.mode_revision:
        return row
    return replace(
        row,
        debug=mode is m.RunMode.DEBUG,
        mode_revision=revision,
        revision=max(row.revision, revision),
    )


def _with_priority(row: T, level: m.Priority, revision: int) -> T:
    if revision <= row.priority_revision:
        return row
    return replace(
        row,
        priority=enum_name(level),
        priority_order=PRIORITY_ORDER[level],
        priority_revision=revision,
        revision=max(row.revision, revision),
    )


def _newer(known: m.Checkpoint | None, reported: m.Checkpoint | None) -> m.Checkpoint | None:
    """The checkpoint with the higher number: the launcher counts them per task."""
    if known is None or reported is None:
        return known or reported
    return reported if reported.no > known.no else known


def _later(known: m.RunExit | None, reported: m.RunExit | None) -> m.RunExit | None:
    """The exit of the later attempt."""
    if known is None or reported is None:
        return known or reported
    return reported if reported.attempt > known.attempt else known


async def _task(tx: Tx, task_id: str) -> TaskRow:
    return await tx.get(TaskRow, task_id) or TaskRow(task_id)


async def _run(tx: Tx, task_id: str, attempt: int) -> RunRow:
    return await tx.get(RunRow, task_id, attempt) or RunRow(task_id, attempt)


async def on_task_submitted(tx: Tx, event: m.TaskSubmitted) -> bool:
    """A new task. Events of it may have come before this one."""
    before = await tx.get(TaskRow, event.task_id)
    tx.delete(AcceptedRow, event.task_id)
    if before is not None and before.submitted_at is not None:
        return False
    row = with_submission(before or TaskRow(event.task_id), event)
    tx.put(row)
    if before is not None:
        await eventlog.claim(tx, row)
    return True


async def on_goal_changed(tx: Tx, event: m.GoalChanged) -> bool:
    """The highest revision wins."""
    row = await _task(tx, event.task_id)
    if event.revision <= row.goal_revision:
        return False
    tx.put(
        replace(
            row,
            goal=enum_name(event.goal),
            goal_revision=event.revision,
            revision=max(row.revision, event.revision),
        )
    )
    return True


async def on_mode_changed(tx: Tx, event: m.ModeChanged) -> bool:
    """The highest revision wins."""
    row = await _task(tx, event.task_id)
    if event.revision <= row.mode_revision:
        return False
    tx.put(_with_mode(row, event.mode, event.revision))
    return True


async def on_priority_changed(tx: Tx, event: m.PriorityChanged) -> bool:
    """The highest revision wins."""
    row = await _task(tx, event.task_id)
    if event.revision <= row.priority_revision:
        return False
    tx.put(_with_priority(row, event.priority, event.revision))
    return True


async def on_task_state_changed(tx: Tx, event: m.TaskStateChanged) -> bool:
    """The highest version wins."""
    row = await _task(tx, event.task_id)
    if event.version <= row.state_version:
        return False
    tx.put(
        replace(
            row,
            state=enum_name(event.state),
            state_version=event.version,
            reason=event.reason,
            attempt=max(row.attempt, event.attempt),
            observed_revision=max(row.observed_revision, event.observed_revision),
            started_at=event.started_at,
            finished_at=event.finished_at,
            checkpoint=_newer(row.checkpoint, event.checkpoint),
            exit=_later(row.exit, event.exit),
            held_gpus=event.held_gpus,
            held_nodes=event.held_nodes,
            attempts_without_progress=event.attempts_without_progress,
            retries_used=event.retries_used,
            class_retries=event.class_retries,
            changed_at=event.changed_at,
        )
    )
    return True


async def on_run_placed(tx: Tx, event: m.RunAssigned | m.RunResumed) -> bool:
    """An attempt has its nodes; every older one is superseded."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.assigned_at is not None:
        return False
    tx.put(
        replace(
            run,
            assigned_at=event.assigned_at,
            placements=event.placements,
            start_deadline_at=event.start_deadline_at,
            resume_from=event.resume_from,
            live=run.exit is None,
            debug=event.spec.run_mode is m.RunMode.DEBUG,
        )
    )
    row = await _task(tx, event.task_id)
    if event.attempt > row.attempt:
        tx.put(replace(row, attempt=event.attempt))
    return True


async def on_preemption_requested(tx: Tx, event: m.PreemptionRequested) -> bool:
    """The run is to hand over: releases its long-polls. A later request may shorten the time."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.preempt_requested_at is not None:
        if run.preempt_deadline_at is None or event.deadline_at < run.preempt_deadline_at:
            # The request is in the log already; the stop that shortened it is, too.
            asked_at = min(run.preempt_requested_at, event.requested_at)
            tx.put(
                replace(run, preempt_requested_at=asked_at, preempt_deadline_at=event.deadline_at)
            )
        return False
    tx.put(
        replace(
            run,
            preempt_requested_at=event.requested_at,
            preempt_deadline_at=event.deadline_at,
            preempt_reason=event.reason,
        )
    )
    return True


async def on_kill_requested(tx: Tx, event: m.KillRequested) -> bool:
    """The run is to be ended by force."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.kill_requested_at is not None:
        return False
    tx.put(replace(run, kill_requested_at=event.requested_at, kill_reason=event.reason))
    return True


async def on_run_delayed(tx: Tx, event: m.RunDelayed) -> bool:
    """The newest report wins, until every process exists or none will. Once the run has started,
    only reports about what starts while it runs count."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.exit is not None or (run.started_at is not None and not event.running):
        return False
    if run.delayed is not None and event.noted_at <= run.delayed.noted_at:
        return False
    tx.put(replace(run, delayed=event))
    return True


async def on_run_activity(tx: Tx, event: m.RunActivityChanged) -> None:
    """The newest report wins. The event log has those that begin or end an idle time: the others
    only bring sums, and come often."""
    run = await _run(tx, event.task_id, event.attempt)
    before = run.activity
    if before is None or before.measured_until < event.measured_until:
        tx.put(replace(run, activity=event))
        if _idleness(event) != (_idleness(before) if before else (0, False)):
            await eventlog.append(tx, event, is_news=True)
    await _enter_usage(tx, event)


def _idleness(event: m.RunActivityChanged) -> tuple[int, bool]:
    return (event.idle_gpus, event.quiet_since is not None)


async def on_run_started(tx: Tx, event: m.RunStarted) -> bool:
    """The process of every rank exists that waits for no other one."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.started_at is not None:
        return False
    placements = run.placements or event.placements
    live = run.exit is None
    tx.put(
        replace(
            run,
            started_at=event.started_at,
            placements=placements,
            live=live,
            delayed=run.delayed if run.delayed is not None and run.delayed.running else None,
            endpoints=event.endpoints if live else (),
        )
    )
    if event.endpoints and live:
        row = await _task(tx, event.task_id)
        tx.put(replace(row, endpoints=event.endpoints))
    return True


async def on_rank_restarted(tx: Tx, event: m.RankRestarted) -> bool:
    """Only the event log keeps it."""
    del tx, event
    return True


async def on_rank_ended(tx: Tx, event: m.RankEnded) -> bool:
    """A rank of a run in debug mode ends once."""
    run = await _run(tx, event.task_id, event.attempt)
    if any(each.exit.rank == event.exit.rank for each in run.ended_ranks):
        return False
    tx.put(replace(run, ended_ranks=(*run.ended_ranks, event)))
    return True


async def on_run_listened(tx: Tx, event: m.RunListened) -> bool:
    """The first one counts: each process that serves may report it."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.listening_at is not None:
        return False
    tx.put(replace(run, listening_at=event.asked_at))
    return True


async def on_run_yielded(tx: Tx, event: m.RunYielded) -> bool:
    """The run's program hands its nodes over: releases the long-polls of its other ranks."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.yielded is not None:
        return False
    tx.put(replace(run, yielded=event))
    return True


async def on_life_state_saved(tx: Tx, event: m.LifeStateSaved) -> bool:
    """The highest version wins."""
    row = await _task(tx, event.task_id)
    if row.life_state is not None and event.version <= row.life_state.version:
        return False
    tx.put(replace(row, life_state=event))
    return True


async def on_checkpoint_saved(tx: Tx, event: m.CheckpointSaved) -> bool:
    """The highest number wins, for the run and for the task."""
    saved = event.checkpoint
    run = await _run(tx, event.task_id, event.attempt)
    row = await _task(tx, event.task_id)
    newer = _newer(run.checkpoint, saved)
    if newer is run.checkpoint:
        return False
    tx.put(
        replace(run, checkpoint=newer),
        replace(row, checkpoint=_newer(row.checkpoint, saved)),
    )
    return True


async def on_run_exited(tx: Tx, event: m.RunExited) -> bool:
    """No process is left: the nodes' GPUs are free."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.exit is not None:
        return False
    row = await _task(tx, event.task_id)
    tx.put(
        replace(
            run,
            exit=event.exit,
            live=False,
            placements=run.placements or event.placements,
            delayed=None,
            endpoints=(),
        ),
        replace(
            row,
            exit=_later(row.exit, event.exit),
            checkpoint=_newer(row.checkpoint, event.checkpoint),
            # A later run may have its own already.
            endpoints=() if row.endpoints == run.endpoints else row.endpoints,
        ),
    )
    return True


async def on_error_lines_found(tx: Tx, event: m.ErrorLinesFound) -> bool:
    """The output of a failed run is complete and searched."""
    run = await _run(tx, event.task_id, event.attempt)
    if run.error_lines == event.ranks:
        return False
    tx.put(replace(run, error_lines=event.ranks))
    return True


async def on_abnormal_task(tx: Tx, event: m.AbnormalTaskChanged) -> bool:
    """The highest version of each rule wins."""
    row = await _task(tx, event.task_id)
    if event.version <= abs(row.abnormal.get(event.rule, 0)):
        return False
    version = event.version if event.tagged and event.ended_at is None else -event.version
    tx.put(replace(row, abnormal={**row.abnormal, event.rule: version}))
    return True


async def on_abnormal_action(tx: Tx, event: m.AbnormalActionSettled) -> bool:
    """The audit trail has what a rule did, would have done, or was refused; the event log has also
    what came too late. A repetition of the event makes the same entry."""
    outcome = _AUDITED.get(event.outcome)
    if outcome is not None:
        action = enum_name(event.action)
        fact = f"{event.task_id}/{event.rule}/{event.version}/{action}/{event.node_id}"
        tx.put(
            AuditRow(
                id=sortable_id(event.settled_at, crc32(fact.encode()).to_bytes(4, "big")),
                at=event.settled_at,
                who=f"rule:{event.rule}",
                action=f"abnormal.{action}",
                target=event.node_id or event.task_id,
                outcome=outcome,
                detail=f"{event.detail} (task {event.task_id}, attempt {event.attempt})",
                address=PLATFORM,
            )
        )
    return False


_AUDITED = {
    m.AbnormalOutcome.DONE: "done",
    m.AbnormalOutcome.REFUSED: "refused",
    m.AbnormalOutcome.DRY_RUN: "dry_run",
}


async def on_node_changed(tx: Tx, event: m.NodeChanged) -> bool:
    """The highest version wins."""
    row = await tx.get(NodeRow, event.node_id)
    if row is not None and event.version <= row.version:
        return False
    tx.put(
        NodeRow(
            node_id=event.node_id,
            version=event.version,
            group=event.node.group,
            node=event.node,
            removed=event.removed,
            changed_at=event.changed_at,
        )
    )
    return True


def _expiry_entry(event: m.QuotaChanged, before: QuotaRow | None) -> AuditRow:
    """The entry of a row that was removed because its time was over. A repetition of the event
    makes the same entry."""
    quota = event.quota
    names = ("group", quota.group), ("user", quota.user), ("team", quota.team)
    priority = enum_name_or_empty(quota.priority)
    subject = " ".join(f"{name}={value or '*'}" for name, value in (*names, ("priority", priority)))
    return AuditRow(
        id=sortable_id(event.changed_at, (event.version % 2**32).to_bytes(4, "big")),
        at=event.changed_at,
        who="quota",
        action="quota.expire",
        target=f"{'grant ' if quota.grant else ''}{subject}",
        outcome="done",
        detail=f"its time was over, as {event.changed_by} set it",
        address=PLATFORM,
        before=views.quota(before) if before is not None else None,
    )


async def on_quota_changed(tx: Tx, event: m.QuotaChanged) -> bool:
    """The highest version wins; a removed limit keeps its version."""
    new = replace(
        quota_row(event.quota, event.changed_by, event.changed_at),
        version=event.version,
        removed=event.removed,
    )
    row = await tx.get(QuotaRow, new.group, new.user, new.team, new.priority, new.unit, new.grant)
    if row is not None and event.version <= row.version:
        return False
    if event.expired:
        # Nobody requests a removal by time, so there is no entry of a request for it.
        tx.put(_expiry_entry(event, row))
    tx.put(new)
    return True


async def on_policy_changed(tx: Tx, event: m.PolicyChanged) -> bool:
    """Only the event log keeps it: the scheduler answers queries for policies."""
    del tx, event
    return False


async def on_usage_recorded(tx: Tx, event: m.UsageRecorded) -> bool:
    """Only the event log and the ledger keep it; it may have been here before."""
    del tx, event
    return False


def _logged(record: Callable[[Tx, E], Awaitable[bool]]) -> Handler:
    """A handler that also enters its fact in the event log, and in the ledger what concerns it."""

    async def handler(tx: Tx, event: E) -> None:
        await eventlog.append(tx, event, is_news=await record(tx, event))
        await _enter_usage(tx, event)

    return handler


async def _enter_usage(tx: Tx, event: Message) -> None:
    for key in _entry_of(event):
        before = await tx.get(UsageRow, *key) or UsageRow(*key)
        entry = usage.entered(before, event)
        if entry is not before:
            tx.put(entry)


def _entry_of(event: Any) -> list[tuple[str, int]]:  # noqa: ANN401 - any event
    """The key of the entry in the ledger that an event concerns; none if it concerns no attempt."""
    if type(event) not in usage.EVENTS or event.attempt < 1:
        return []
    return [(event.task_id, event.attempt)]


def _task_of(event: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - any event about a task
    return [(TaskRow, event.task_id), *_ledger_of(event)]


def _run_of(event: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - any event about a run
    run = (RunRow, event.task_id, event.attempt)
    return [(TaskRow, event.task_id), run, *_ledger_of(event)]


def _ledger_of(event: Any) -> list[tuple[Any, ...]]:  # noqa: ANN401 - any event
    return [(UsageRow, *key) for key in _entry_of(event)]


READS: Mapping[type[Message], Reads] = {
    **dict.fromkeys(
        (
            m.TaskSubmitted,
            m.GoalChanged,
            m.ModeChanged,
            m.PriorityChanged,
            m.TaskStateChanged,
            m.LifeStateSaved,
            m.AbnormalTaskChanged,
            m.AbnormalActionSettled,
        ),
        _task_of,
    ),
    **dict.fromkeys(
        (
            m.RunAssigned,
            m.RunResumed,
            m.PreemptionRequested,
            m.KillRequested,
            m.RunActivityChanged,
            m.RunDelayed,
            m.RunStarted,
            m.RankRestarted,
            m.RankEnded,
            m.RunListened,
            m.RunYielded,
            m.CheckpointSaved,
            m.RunExited,
            m.ErrorLinesFound,
        ),
        _run_of,
    ),
    m.NodeChanged: lambda event: [(NodeRow, event.node_id)],
    m.UsageRecorded: _task_of,
}
HANDLERS: Mapping[type[Message], Handler] = {
    m.TaskSubmitted: _logged(on_task_submitted),
    m.GoalChanged: _logged(on_goal_changed),
    m.ModeChanged: _logged(on_mode_changed),
    m.PriorityChanged: _logged(on_priority_changed),
    m.TaskStateChanged: _logged(on_task_state_changed),
    m.RunAssigned: _logged(on_run_placed),
    m.RunResumed: _logged(on_run_placed),
    m.PreemptionRequested: _logged(on_preemption_requested),
    m.KillRequested: _logged(on_kill_requested),
    m.RunActivityChanged: on_run_activity,
    m.RunDelayed: _logged(on_run_delayed),
    m.RunStarted: _logged(on_run_started),
    m.RankRestarted: _logged(on_rank_restarted),
    m.RankEnded: _logged(on_rank_ended),
    m.RunListened: _logged(on_run_listened),
    m.RunYielded: _logged(on_run_yielded),
    m.LifeStateSaved: _logged(on_life_state_saved),
    m.CheckpointSaved: _logged(on_checkpoint_saved),
    m.RunExited: _logged(on_run_exited),
    m.ErrorLinesFound: _logged(on_error_lines_found),
    m.AbnormalTaskChanged: _logged(on_abnormal_task),
    m.AbnormalActionSettled: _logged(on_abnormal_action),
    m.NodeChanged: _logged(on_node_changed),
    m.QuotaChanged: _logged(on_quota_changed),
    m.PolicyChanged: _logged(on_policy_changed),
    m.UsageRecorded: _logged(on_usage_recorded),
}
