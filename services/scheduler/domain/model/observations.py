"""What an observed event does to its task: ``on_*(task, event, ...) -> Change | Drop``.

Called by ``handlers.py``. Correct under duplicates and any order: an event about a run counts only
for the live attempt, an event of submit's only if its revision is newer, and the checkpoint with
the highest number wins whenever it arrives.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Protocol, TypeAlias

from libs.contracts.ids import TaskId
from libs.contracts.messages import (
    Checkpoint,
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    KillRequested,
    ModeChanged,
    PreemptionRequested,
    PreemptMode,
    Priority,
    PriorityChanged,
    Reason,
    ReasonCode,
    RunExit,
    RunExited,
    RunListened,
    RunMode,
    RunStarted,
    TaskState,
    TaskSubmitted,
)
from libs.contracts.start_order import starts_more
from services.scheduler.domain.model.changes import Change, state_changed, transitioned
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.lifecycle import (
    KILLING,
    PAUSED,
    PREEMPTING,
    QUEUED,
    STARTING,
    TRANSITIONS,
    ExitVerdict,
    RunEnd,
    Trigger,
    exit_rule,
)
from services.scheduler.domain.model.retry_limits import RetryCount, retry_count, with_retry
from services.scheduler.domain.model.rows import EarlyFacts, Task
from services.scheduler.domain.model.values import reason


class Drop(Enum):
    """Why an event changed nothing; counted, so that a flood of them shows."""

    UNKNOWN_TASK = "unknown_task"
    ENDED_TASK = "ended_task"
    OTHER_ATTEMPT = "other_attempt"
    OLD_REVISION = "old_revision"
    OLD_CHECKPOINT = "old_checkpoint"
    OLD_VERSION = "old_version"
    DUPLICATE = "duplicate"


# No move counts for more: the longest deadline, and a start.
MOVE_SECONDS_MAX = 7200.0
# A task avoids at most so many nodes; beyond that the task is likelier at fault.
AVOIDED_MAX = 64
# A submission that claims to be older counts as this old, and one in the future as of now: a wrong
# clock must not put its tasks before or behind all others for ever.
SUBMITTED_AGO_MAX = timedelta(days=30)


ChangeOrDrop: TypeAlias = Change | Drop


class ExitReport(Protocol):
    """The end of a run: the launcher's event, or what a simulation reports."""

    @property
    def attempt(self) -> int:
        """Which run ended."""
        ...

    @property
    def exit(self) -> RunExit:
        """How and when it ended."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint that is saved."""
        ...


def early_goal(early: EarlyFacts, event: GoalChanged) -> EarlyFacts:
    """Keeps a goal that arrived before its task."""
    if event.revision <= early.goal_revision:
        return early
    return replace(
        early,
        goal=event.goal,
        goal_now=event.now,
        goal_by=event.changed_by,
        goal_revision=event.revision,
    )


def early_mode(early: EarlyFacts, event: ModeChanged) -> EarlyFacts:
    """Keeps a mode that arrived before its task."""
    if event.revision <= early.mode_revision:
        return early
    return replace(early, debug=event.mode is RunMode.DEBUG, mode_revision=event.revision)


def early_priority(early: EarlyFacts, event: PriorityChanged) -> EarlyFacts:
    """Keeps a priority that arrived before its task."""
    if event.revision <= early.priority_revision:
        return early
    return replace(early, priority=event.priority, priority_revision=event.revision)


def on_submitted(event: TaskSubmitted, early: EarlyFacts | None, now: datetime) -> Change:
    """A new task, queued or paused, with the facts that overtook its submission."""
    early = early or EarlyFacts(TaskId(event.task_id))
    changed = early.priority_revision > event.revision
    mode = event.spec.run_mode
    goal = Goal.PAUSE if mode is RunMode.PAUSE else Goal.RUN
    if early.goal_revision > event.revision:
        goal = early.goal
    paused = goal is Goal.PAUSE
    task = Task(
        id=TaskId(event.task_id),
        owner=event.owner,
        team=event.team,
        spec=event.spec,
        submitted_at=max(min(event.submitted_at, now), now - SUBMITTED_AGO_MAX),
        priority=early.priority if changed else event.spec.priority,
        goal=goal,
        goal_now=early.goal_now and early.goal_revision > event.revision,
        goal_by=early.goal_by if early.goal_revision > event.revision else "",
        revision=max(
            event.revision, early.goal_revision, early.priority_revision, early.mode_revision
        ),
        goal_revision=max(event.revision, early.goal_revision),
        priority_revision=max(event.revision, early.priority_revision),
        mode_revision=max(event.revision, early.mode_revision),
        debug=early.debug if early.mode_revision > event.revision else mode is RunMode.DEBUG,
        state=PAUSED if paused else QUEUED,
        reason=reason(ReasonCode.GOAL_PAUSE if paused else ReasonCode.QUEUED),
        unserved_since=now if paused else None,
        version=1,
        expected_seconds=event.spec.max_run_seconds,
        checkpoint=event.spec.continues.checkpoint if event.spec.continues else None,
    )
    return Change(task, (state_changed(task, TaskState.UNSPECIFIED, now),))


def _published(task: Task, now: datetime) -> Change:
    """A change that moves no state but must be published, such as an observed revision."""
    after = replace(task, version=task.version + 1)
    return Change(after, (state_changed(after, task.state, now),))


def on_goal_changed(
    task: Task, event: GoalChanged, now: datetime, settings: PolicySettings
) -> ChangeOrDrop:
    """Notes the goal; ``decide`` acts on it.

    A run that is already leaving gets no more time than the new goal allows from now on: otherwise
    the stop of a run that is being preempted would wait for the longer deadline of the preemption.
    A goal that ends the run now leaves it no time, also where its end was ordered before.
    """
    if event.revision <= task.goal_revision:
        return Drop.OLD_REVISION
    revision = max(task.revision, event.revision)
    after = replace(
        task,
        goal=event.goal,
        goal_now=event.now,
        goal_by=event.changed_by,
        goal_revision=event.revision,
        debug_ended=False,
        revision=revision,
    )
    if task.state is PAUSED and event.goal is Goal.PAUSE:
        # It was paused because its attempt in debug mode ended; now its owner wants that.
        after = replace(after, reason=after.goal_reason)
    if task.state is KILLING and after.ends_now and not task.ends_now:
        assert task.live_attempt is not None, "a run that is being ended is live"
        kill = KillRequested(
            task_id=task.id,
            attempt=task.live_attempt,
            reason=after.goal_reason,
            requested_at=now,
            now=True,
        )
        change = _published(after, now)
        return replace(change, messages=(kill, *change.messages))
    deadline_at = now + timedelta(seconds=after.ack_seconds(settings))
    if task.state is not PREEMPTING or not _is_sooner(deadline_at, task.ack_deadline_at):
        return _published(after, now)
    after = replace(after, ack_deadline_at=deadline_at)
    change = _published(after, now)
    assert task.live_attempt is not None, "a run that is asked to go is live"
    request = PreemptionRequested(
        task_id=task.id,
        attempt=task.live_attempt,
        reason=after.goal_reason,
        requested_at=now,
        deadline_at=deadline_at,
        silent_deadline_at=after.silent_deadline_at(settings.silent_ack_seconds_max),
    )
    return replace(change, messages=(request, *change.messages))


def _is_sooner(one: datetime, other: datetime | None) -> bool:
    return other is None or one < other


def on_mode_changed(task: Task, event: ModeChanged, now: datetime) -> ChangeOrDrop:
    """Notes the mode; ``decide`` acts on it. A task that is paused because its attempt in debug
    mode ended goes on normally once that mode is off."""
    if event.revision <= task.mode_revision:
        return Drop.OLD_REVISION
    debug = event.mode is RunMode.DEBUG
    resumes = task.debug_ended and not debug
    after = replace(
        task,
        debug=debug,
        mode_revision=event.revision,
        debug_ended=task.debug_ended and debug,
        goal=Goal.RUN if resumes else task.goal,
        revision=max(task.revision, event.revision),
    )
    return _published(after, now)


def on_priority_changed(task: Task, event: PriorityChanged, now: datetime) -> ChangeOrDrop:
    """Notes the priority; ``decide`` moves a live run to its level (with AUTO it keeps the old
    one).

    A reservation at the old level ends: the next round decides who gets the nodes, at the level
    that the task has now.
    """
    if event.revision <= task.priority_revision:
        return Drop.OLD_REVISION
    loses_nodes = task.promised and event.priority is not task.priority
    after = replace(
        task,
        priority=event.priority,
        promised=() if loses_nodes else task.promised,
        level=Priority.UNSPECIFIED if loses_nodes else task.level,
        priority_revision=event.revision,
        revision=max(task.revision, event.revision),
    )
    return _published(after, now)


def on_run_started(task: Task, event: RunStarted, now: datetime) -> ChangeOrDrop:
    """Every rank of the run that waits for no other one has a process."""
    if event.attempt != task.live_attempt:
        return Drop.OTHER_ATTEMPT
    if task.run_started_at is not None:
        return Drop.DUPLICATE
    observed = replace(task, listens=task.listens or False)
    after = started(observed, _plausible(event.started_at, task.assigned_at, now))
    if after.state is task.state:
        # It was requested to leave meanwhile; its run time counts all the same.
        return Change(after)
    return Change(after, (state_changed(after, task.state, now),))


def on_run_listened(task: Task, event: RunListened) -> ChangeOrDrop:
    """The program of the live run asked for the first time whether to leave. If the run was already
    requested to leave, it now has the whole deadline, which counts from the request."""
    if event.attempt != task.live_attempt:
        return Drop.OTHER_ATTEMPT
    if task.listens:
        return Drop.DUPLICATE
    return Change(replace(task, listens=True))


def started(task: Task, at: datetime) -> Task:
    """The task once its run has started. Where ranks start while it runs, failed starts count on
    until its end."""
    noted: dict[str, Any] = {
        "run_started_at": at,
        "first_started_at": task.first_started_at or at,
    }
    if not starts_more(task.spec.roles):
        noted |= {"start_attempts": 0, "avoids": ()}
    if (task.state, Trigger.STARTED) not in TRANSITIONS:
        return replace(task, **noted)
    resumes = task.attempt > 1 or task.began_from_checkpoint
    again = _resume_point(task, task.began_from_checkpoint) if resumes else {}
    if task.debugging:
        # Nothing is resumed: its ranks wait for people, or run what their roles have for debugging.
        again = {"debug": 1}
    why = reason(ReasonCode.STARTED, names=None, attempt=task.attempt, **again)
    return transitioned(task, Trigger.STARTED, why, **noted)


def _plausible(at: datetime, since: datetime | None, now: datetime) -> datetime:
    """The launcher's time if ours allows it: after the event that it followed, and not in the
    future. Otherwise ``now``.

    The clocks may differ by hours. A run that has just begun would then seem to have used its
    slice, and equal tasks would preempt each other for ever.
    """
    return at if (since is None or since <= at) and at <= now else now


def newest(one: Checkpoint | None, other: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint with the highest number: not the highest step, for a task may go back."""
    found = [checkpoint for checkpoint in (one, other) if checkpoint is not None]
    return max(found, key=lambda checkpoint: checkpoint.no, default=None)


def on_checkpoint_saved(task: Task, event: CheckpointSaved) -> ChangeOrDrop:
    """Notes the checkpoint, whichever attempt saved it: it is durable."""
    if task.checkpoint is not None and event.checkpoint.no <= task.checkpoint.no:
        return Drop.OLD_CHECKPOINT
    return Change(replace(task, checkpoint=event.checkpoint))


def on_run_exited(
    task: Task, event: RunExited, now: datetime, settings: PolicySettings
) -> ChangeOrDrop:
    """The exit was observed: the exit rule says where the task goes, and its capacity is free."""
    if event.attempt != task.live_attempt:
        return Drop.OTHER_ATTEMPT
    after = exited(task, event, now, settings)
    return Change(after, (state_changed(after, task.state, now),))


def exited(task: Task, event: ExitReport, now: datetime, settings: PolicySettings) -> Task:
    """The task once no process of its live run is left."""
    retries = None if task.debugging else retry_count(task, event.exit)
    # A run that the site cannot start is tried elsewhere, but not for ever, and not at once.
    lost_start = _lost_start(task, event)
    expired = task.state is KILLING and task.reason.code is ReasonCode.START_EXPIRED
    worked = task.run_started_at is not None and not lost_start
    start_attempts = 0 if worked else task.start_attempts + lost_start
    end = RunEnd(
        kind=event.exit.kind,
        state=task.state,
        goal=task.goal,
        end_reason=task.end_reason.code if task.end_reason else None,
        retries_left=retries is not None and retries.left,
        starts_used_up=lost_start and start_attempts >= settings.start_attempts_max,
        limits_losses=retries is not None,
        final=event.exit.final,
        yielded=event.exit.yielded,
        debugging=task.debugging,
        debug=task.debug,
    )
    verdict = exit_rule(end, has_limit=retries is not None and bool(retries.limit or retries.field))
    checkpoint = newest(task.checkpoint, event.checkpoint)
    counted = with_retry(task, retries) if retries and verdict.spends_retry else task
    short_yields = _short_yields(task, event, verdict, settings, now)
    not_before_at = _not_before(_doublings(task, event, verdict, retries), settings, now)
    # Nobody but its owner lets it go on.
    debug_ended = verdict.code is ReasonCode.DEBUG_ENDED
    run_seconds = _run_seconds(task, event, now)
    if verdict.code is ReasonCode.YIELDED:
        not_before_at = _after_yield(short_yields, settings, now)
    elif short_yields > 1:
        # One change of the mode, or one pause, costs nothing.
        not_before_at = _after_yield(short_yields - 1, settings, now)
    return transitioned(
        counted,
        verdict.trigger,
        _exit_reason(
            task, event, verdict, checkpoint, retries=retries, not_before_at=not_before_at
        ),
        level=Priority.UNSPECIFIED,
        live_attempt=None,
        placements=(),
        assigned_at=None,
        start_deadline_at=None,
        run_started_at=None,
        listens=None,
        ack_deadline_at=None,
        preempted_for="",
        preempt_requested_at=None,
        end_reason=None,
        exit=event.exit,
        unserved_since=now,
        move_seconds=_move_seconds(task, event, now),
        checkpoint=checkpoint,
        run_seconds=task.run_seconds + run_seconds,
        debug_seconds=task.debug_seconds + (run_seconds if task.debugging else 0.0),
        debugging=False,
        debug_ended=debug_ended,
        goal=Goal.PAUSE if debug_ended else task.goal,
        goal_now=task.goal_now and not debug_ended,
        attempts_without_progress=_without_progress(task, event, checkpoint),
        start_attempts=start_attempts,
        avoids=_avoids(task, event) if lost_start or expired else () if worked else task.avoids,
        not_before_at=not_before_at,
        short_yields=short_yields,
    )


def _lost_start(task: Task, event: ExitReport) -> bool:
    """Whether the site could not start the run, or ranks of it that start while it runs."""
    lost = event.exit.kind is ExitKind.LOST
    return lost and (task.state is STARTING or event.exit.start_failed)


def _avoids(task: Task, event: ExitReport) -> tuple[str, ...]:
    """The nodes that the next start avoids while others could hold the task.

    Those are the nodes of ranks whose end nobody observed, as far as that is known. The newest
    failures come first: they count if there are too many, or if the other nodes cannot hold the
    task.
    """
    by_rank = {placement.rank: placement.node_id for placement in task.placements}
    ended = {
        rank.rank for rank in event.exit.ranks if rank.code is not None or rank.signal is not None
    }
    failed = {node_id for rank, node_id in by_rank.items() if rank not in ended}
    failed = failed or set(by_rank.values())
    older = [node_id for node_id in task.avoids if node_id not in failed]
    kept = max(0, AVOIDED_MAX - len(failed))
    return (*sorted(failed)[:AVOIDED_MAX], *older[:kept])


def _run_seconds(task: Task, event: ExitReport, now: datetime) -> float:
    if task.run_started_at is None:
        return 0.0
    ended_at = _plausible(event.exit.exited_at, task.run_started_at, now)
    return max(0.0, (ended_at - task.run_started_at).total_seconds())


def _move_seconds(task: Task, event: ExitReport, now: datetime) -> float | None:
    """What a move costs this task: its start and its release, as last measured."""
    if event.exit.kind is not ExitKind.PREEMPTED or task.preempt_requested_at is None:
        return task.move_seconds
    ended_at = _plausible(event.exit.exited_at, task.preempt_requested_at, now)
    seconds = (ended_at - task.preempt_requested_at).total_seconds()
    if task.run_started_at is not None and task.assigned_at is not None:
        seconds += (task.run_started_at - task.assigned_at).total_seconds()
    measured = min(max(0.0, seconds), MOVE_SECONDS_MAX)
    # One slow disk on one day is not the task's nature.
    return measured if task.move_seconds is None else (task.move_seconds + measured) / 2


def _without_progress(task: Task, event: ExitReport, checkpoint: Checkpoint | None) -> int:
    """The number of attempts in a row that worked and left no newer checkpoint. Those in debug mode
    do not count."""
    if checkpoint is not None and checkpoint.no > task.began_from_checkpoint:
        return 0
    worked = not task.debugging and (task.run_started_at is not None or _has_ended_ranks(event))
    return task.attempts_without_progress + worked


def _has_ended_ranks(event: ExitReport) -> bool:
    return any(rank.code is not None or rank.signal is not None for rank in event.exit.ranks)


def _doublings(
    task: Task, event: ExitReport, verdict: ExitVerdict, retries: RetryCount | None
) -> int | None:
    """How often the delay of the next start is doubled; None: it starts at once. A start after a
    lost one waits, and so does a retry after a failure; a run that was lost later starts again
    elsewhere."""
    lost = event.exit.kind is ExitKind.LOST
    if _lost_start(task, event):
        return task.start_attempts
    return retries.used if retries is not None and verdict.spends_retry and not lost else None


def _not_before(doublings: int | None, settings: PolicySettings, now: datetime) -> datetime | None:
    """When the next start may be tried: each waits twice as long as the one before, up to the
    maximum. None: at once."""
    if doublings is None:
        return None
    delay = settings.retry_delay_seconds * 2.0 ** min(doublings, 30)
    return now + timedelta(seconds=min(delay, settings.retry_delay_seconds_max))


def _short_yields(
    task: Task, event: ExitReport, verdict: ExitVerdict, settings: PolicySettings, now: datetime
) -> int:
    """The number of runs in a row that ended soon after the start because they handed their nodes
    over on their own, or because their owner changed the mode or paused the task. One that ran
    longer ends the row, however it ended."""
    soon = _run_seconds(task, event, now) < settings.yield_soon_seconds
    wanted = verdict.code in (ReasonCode.YIELDED, ReasonCode.GOAL_PAUSE)
    wanted = wanted or task.reason.code is ReasonCode.MODE_CHANGED
    return task.short_yields + 1 if soon and wanted else 0


def _after_yield(short_yields: int, settings: PolicySettings, now: datetime) -> datetime:
    """When a task that handed its nodes over on its own may start again: the others are decided on
    first, and a task that yields again and again keeps no node busy with starts."""
    delay = settings.yield_delay_seconds * 2.0 ** min(short_yields, 30)
    return now + timedelta(seconds=min(delay, settings.yield_delay_seconds_max))


def _resume_point(task: Task, checkpoint_no: int) -> dict[str, float]:
    """Where a later attempt resumes, for its reason: at a step, or at the beginning. Nobody knows
    what a program saves that is requested to leave by a signal."""
    if task.preempt_mode is PreemptMode.SIGNAL:
        return {}
    if not checkpoint_no:
        return {"from_beginning": 1}
    saved = task.checkpoint
    return {"step": saved.step} if saved is not None and saved.no == checkpoint_no else {}


_SAY_WHERE_IT_GOES_ON = (ReasonCode.RUN_KILLED, ReasonCode.RUN_LOST, ReasonCode.YIELDED)


def _exit_reason(
    task: Task,
    event: ExitReport,
    verdict: ExitVerdict,
    checkpoint: Checkpoint | None,
    *,
    retries: RetryCount | None,
    not_before_at: datetime | None,
) -> Reason:
    ends_all = verdict.trigger is Trigger.EXIT_FAILED or verdict.code is ReasonCode.DEBUG_ENDED
    if ends_all and task.end_reason is not None:
        return task.end_reason
    names = {"detail": event.exit.detail[:200]} if event.exit.detail else {}
    numbers: dict[str, float] = {}
    code = verdict.code
    if code is ReasonCode.START_ATTEMPTS_USED_UP:
        numbers["attempts"] = task.start_attempts + 1
    elif code is ReasonCode.RETRIES_USED_UP and retries is not None:
        numbers["retries"] = retries.used
        names |= retries.names
    elif verdict.spends_retry and retries is not None:
        numbers |= {"retry": retries.used + 1, "retries_max": retries.limit}
        names |= retries.names
    elif code is ReasonCode.RESTART_NOT_ALLOWED:
        names["role"] = _failed_role(task, event.exit)
    elif code in (ReasonCode.GOAL_STOP, ReasonCode.GOAL_PAUSE):
        names |= task.goal_names
    elif code is ReasonCode.YIELDED and not_before_at is not None:
        names["at"] = not_before_at.isoformat(timespec="seconds")
    if code in _SAY_WHERE_IT_GOES_ON and task.run_started_at is not None:
        numbers |= _resume_point(
            replace(task, checkpoint=checkpoint), checkpoint.no if checkpoint else 0
        )
    if code is ReasonCode.RUN_KILLED and task.reason.code is ReasonCode.NEVER_ASKED:
        code = ReasonCode.NEVER_ASKED
    return reason(code, names=names, attempt=event.attempt, **numbers)


def _failed_role(task: Task, ended: RunExit) -> str:
    roles = (place.role for place in task.placements if place.rank == ended.failed_rank)
    return next(roles, "")
