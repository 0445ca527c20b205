"""What an observed fact does to its task: ``on_*(task, event, ...) -> Change | Drop``.

Called by the handlers. Right under duplicates and any order: a fact about a run counts only for
the live attempt, a fact of submit's only if its revision is newer, and the checkpoint with the
highest number wins whenever it comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    PreemptionRequested,
    PreemptMode,
    Priority,
    PriorityChanged,
    Reason,
    ReasonCode,
    RunExit,
    RunExited,
    RunListened,
    RunStarted,
    TaskState,
    TaskSubmitted,
)
from services.scheduler.domain.apply import Change, moved
from services.scheduler.domain.handover import ack_seconds
from services.scheduler.domain.lifecycle import (
    KILLING,
    PREEMPTING,
    STARTING,
    TRANSITIONS,
    Ended,
    Trigger,
    Verdict,
    exit_rule,
)
from services.scheduler.domain.model import PolicySettings, Task
from services.scheduler.domain.outgoing import state_changed
from services.scheduler.domain.why import reason


class Drop(Enum):
    """Why a fact changed nothing; counted, so that a flood of them shows."""

    UNKNOWN_TASK = "unknown_task"
    ENDED_TASK = "ended_task"
    OTHER_ATTEMPT = "other_attempt"
    OLD_REVISION = "old_revision"
    OLD_CHECKPOINT = "old_checkpoint"
    OLD_VERSION = "old_version"
    DUPLICATE = "duplicate"


# No hand-over counts for more: the longest deadline, and a start.
MOVE_SECONDS_MAX = 7200.0
# A task avoids so many nodes at most; beyond that it is likelier that the task is at fault.
AVOIDED_MAX = 64
# A submission that claims to be older counts as this old, and one that is still to come as of now:
# one wrong clock must not put its tasks before or behind all others for ever.
SUBMITTED_AGO_MAX = timedelta(days=30)
Outcome: TypeAlias = Change | Drop


class Exit(Protocol):
    """What is told of the end of a run: the event, or the lab's word for it."""

    @property
    def attempt(self) -> int:
        """Which run."""
        ...

    @property
    def exit(self) -> RunExit:
        """How and when."""
        ...

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The last that is saved."""
        ...


@dataclass(frozen=True, slots=True)
class Early:
    """Submit's facts about a task whose submission has not arrived yet; a revision of 0: none."""

    task_id: TaskId
    goal: Goal = Goal.RUN
    goal_now: bool = False
    goal_revision: int = 0
    priority: Priority = Priority.UNSPECIFIED
    priority_revision: int = 0
    # When the first of them came.
    first_at: datetime | None = None


def early_goal(early: Early, event: GoalChanged) -> Early:
    """Keep a goal that came before its task."""
    if event.revision <= early.goal_revision:
        return early
    return replace(early, goal=event.goal, goal_now=event.now, goal_revision=event.revision)


def early_priority(early: Early, event: PriorityChanged) -> Early:
    """Keep a priority that came before its task."""
    if event.revision <= early.priority_revision:
        return early
    return replace(early, priority=event.priority, priority_revision=event.revision)


def on_submitted(event: TaskSubmitted, early: Early | None, now: datetime) -> Change:
    """A new task, queued; with the facts that overtook its submission."""
    early = early or Early(TaskId(event.task_id))
    changed = early.priority_revision > event.revision
    task = Task(
        id=TaskId(event.task_id),
        owner=event.owner,
        team=event.team,
        spec=event.spec,
        submitted_at=max(min(event.submitted_at, now), now - SUBMITTED_AGO_MAX),
        priority=early.priority if changed else event.spec.priority,
        goal=early.goal if early.goal_revision > event.revision else Goal.RUN,
        goal_now=early.goal_now and early.goal_revision > event.revision,
        revision=max(event.revision, early.goal_revision, early.priority_revision),
        goal_revision=max(event.revision, early.goal_revision),
        priority_revision=max(event.revision, early.priority_revision),
        version=1,
        expected_seconds=event.spec.max_run_seconds,
    )
    return Change(task, (state_changed(task, TaskState.UNSPECIFIED, now),))


def _told(task: Task, now: datetime) -> Change:
    """A change that moves no state but must be seen, like an observed revision."""
    after = replace(task, version=task.version + 1)
    return Change(after, (state_changed(after, task.state, now),))


def on_goal_changed(
    task: Task, event: GoalChanged, now: datetime, settings: PolicySettings
) -> Outcome:
    """Note the goal; ``decide`` acts on it.

    A run that is already asked to go gets no more time than the new goal allows from now on: else a
    stop of a run that is being preempted would wait for the longer deadline of the preemption. One
    that is to end at once gets none.
    """
    if event.revision <= task.goal_revision:
        return Drop.OLD_REVISION
    revision = max(task.revision, event.revision)
    after = replace(
        task,
        goal=event.goal,
        goal_now=event.now,
        goal_revision=event.revision,
        revision=revision,
    )
    deadline_at = now + timedelta(seconds=ack_seconds(after, settings))
    if task.state is not PREEMPTING or not _is_sooner(deadline_at, task.ack_deadline_at):
        return _told(after, now)
    after = replace(after, ack_deadline_at=deadline_at)
    change = _told(after, now)
    assert task.live_attempt is not None, "a run that is asked to go is live"
    request = PreemptionRequested(
        task_id=task.id,
        attempt=task.live_attempt,
        reason=reason(ReasonCode.GOAL_STOP if event.goal is Goal.STOP else ReasonCode.GOAL_PAUSE),
        requested_at=now,
        deadline_at=deadline_at,
        silent_deadline_at=after.silent_deadline_at(settings.silent_ack_seconds_max),
    )
    return replace(change, messages=(request, *change.messages))


def _is_sooner(one: datetime, other: datetime | None) -> bool:
    return other is None or one < other


def on_priority_changed(task: Task, event: PriorityChanged, now: datetime) -> Outcome:
    """Note the priority; ``decide`` lets a live run count at its level (AUTO keeps the old one).

    Nodes that were promised at the old level are given up: who gets them is decided again, at the
    level that the task has now.
    """
    if event.revision <= task.priority_revision:
        return Drop.OLD_REVISION
    gives_up = task.promised and event.priority is not task.priority
    after = replace(
        task,
        priority=event.priority,
        promised=() if gives_up else task.promised,
        level=Priority.UNSPECIFIED if gives_up else task.level,
        priority_revision=event.revision,
        revision=max(task.revision, event.revision),
    )
    return _told(after, now)


def on_run_started(task: Task, event: RunStarted, now: datetime) -> Outcome:
    """Every rank's process exists."""
    if event.attempt != task.live_attempt:
        return Drop.OTHER_ATTEMPT
    if task.run_started_at is not None:
        return Drop.DUPLICATE
    heard = replace(task, listens=task.listens or False)
    after = started(heard, _believed(event.started_at, task.assigned_at, now))
    if after.state is task.state:
        # It was told to go meanwhile; its run time counts all the same.
        return Change(after)
    return Change(after, (state_changed(after, task.state, now),))


def on_run_listened(task: Task, event: RunListened) -> Outcome:
    """The live run's program asks whether to leave. If it was asked to meanwhile, it now has the
    whole deadline, which counts from the request."""
    if event.attempt != task.live_attempt:
        return Drop.OTHER_ATTEMPT
    if task.listens:
        return Drop.DUPLICATE
    return Change(replace(task, listens=True))


def started(task: Task, at: datetime) -> Task:
    """The task once every rank's process exists."""
    noted: dict[str, Any] = {
        "run_started_at": at,
        "first_started_at": task.first_started_at or at,
        "start_attempts": 0,
        "avoids": (),
    }
    if (task.state, Trigger.STARTED) not in TRANSITIONS:
        return replace(task, **noted)
    again = _goes_on(task, task.began_from_checkpoint) if task.attempt > 1 else {}
    why = reason(ReasonCode.STARTED, names=None, attempt=task.attempt, **again)
    return moved(task, Trigger.STARTED, why, **noted)


def _believed(at: datetime, since: datetime | None, now: datetime) -> datetime:
    """A moment of the launcher's clock, if it is possible by ours: after what it followed, and not
    to come. Else the clocks differ, perhaps by hours, and it counts as of now: a run that has just
    begun would seem to have had its turn, and equals would send each other away for ever."""
    return at if (since is None or since <= at) and at <= now else now


def newest(one: Checkpoint | None, other: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint with the highest number: not the highest step, for a task may go back."""
    found = [checkpoint for checkpoint in (one, other) if checkpoint is not None]
    return max(found, key=lambda checkpoint: checkpoint.no, default=None)


def on_checkpoint_saved(task: Task, event: CheckpointSaved) -> Outcome:
    """Note the checkpoint; of whatever attempt, it is durable."""
    if task.checkpoint is not None and event.checkpoint.no <= task.checkpoint.no:
        return Drop.OLD_CHECKPOINT
    return Change(replace(task, checkpoint=event.checkpoint))


def on_run_exited(task: Task, event: RunExited, now: datetime, settings: PolicySettings) -> Outcome:
    """The exit was observed: the exit rule says where the task goes; its capacity is free."""
    if event.attempt != task.live_attempt:
        return Drop.OTHER_ATTEMPT
    after = exited(task, event, now, settings)
    return Change(after, (state_changed(after, task.state, now),))


def exited(task: Task, event: Exit, now: datetime, settings: PolicySettings) -> Task:
    """The task once no process of its live run is left."""
    retries_max = task.spec.retry.max_retries
    # A run that the site cannot start is tried elsewhere, but not for ever, and not at once.
    lost_start = event.exit.kind is ExitKind.LOST and task.state is STARTING
    expired = task.state is KILLING and task.reason.code is ReasonCode.START_EXPIRED
    start_attempts = task.start_attempts + lost_start
    end = Ended(
        kind=event.exit.kind,
        state=task.state,
        goal=task.goal,
        end_reason=task.end_reason.code if task.end_reason else None,
        retries_left=task.retries_used < retries_max,
        starts_used_up=lost_start and start_attempts >= settings.start_attempts_max,
    )
    verdict = exit_rule(end, retries_max=retries_max)
    checkpoint = newest(task.checkpoint, event.checkpoint)
    return moved(
        task,
        verdict.trigger,
        _exit_reason(task, event, verdict, checkpoint),
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
        run_seconds=task.run_seconds + _run_seconds(task, event, now),
        attempts_without_progress=_without_progress(task, event, checkpoint),
        retries_used=task.retries_used + verdict.spends_retry,
        start_attempts=start_attempts,
        avoids=_avoids(task, event) if lost_start or expired else task.avoids,
        not_before_at=_not_before(task, verdict, lost_start, settings, now),
    )


def _avoids(task: Task, event: Exit) -> tuple[str, ...]:
    """The nodes that the next start is not tried on, while others could hold the task.

    Those whose ranks nobody saw end, as far as that is known. The newest failures come first: they
    count if there are too many, or if the others could not hold the task.
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


def _run_seconds(task: Task, event: Exit, now: datetime) -> float:
    if task.run_started_at is None:
        return 0.0
    ended_at = _believed(event.exit.exited_at, task.run_started_at, now)
    return max(0.0, (ended_at - task.run_started_at).total_seconds())


def _move_seconds(task: Task, event: Exit, now: datetime) -> float | None:
    """What being moved costs this task: its start and its hand-over, as last measured."""
    if event.exit.kind is not ExitKind.PREEMPTED or task.preempt_requested_at is None:
        return task.move_seconds
    ended_at = _believed(event.exit.exited_at, task.preempt_requested_at, now)
    seconds = (ended_at - task.preempt_requested_at).total_seconds()
    if task.run_started_at is not None and task.assigned_at is not None:
        seconds += (task.run_started_at - task.assigned_at).total_seconds()
    measured = min(max(0.0, seconds), MOVE_SECONDS_MAX)
    # One slow disk on one day is not the task's nature.
    return measured if task.move_seconds is None else (task.move_seconds + measured) / 2


def _without_progress(task: Task, event: Exit, checkpoint: Checkpoint | None) -> int:
    """Attempts in a row that worked and left no newer checkpoint."""
    if checkpoint is not None and checkpoint.no > task.began_from_checkpoint:
        return 0
    worked = task.run_started_at is not None or any(
        rank.code is not None or rank.signal is not None for rank in event.exit.ranks
    )
    return task.attempts_without_progress + worked


def _not_before(
    task: Task, verdict: Verdict, lost_start: bool, settings: PolicySettings, now: datetime
) -> datetime | None:
    """Each retry, and each start after one that was lost, waits twice as long as the one before,
    up to the maximum; None: it may start at once."""
    if not (verdict.spends_retry or lost_start):
        return None
    doublings = min(task.start_attempts if lost_start else task.retries_used, 30)
    delay = settings.retry_delay_seconds * 2.0**doublings
    return now + timedelta(seconds=min(delay, settings.retry_delay_seconds_max))


def _goes_on(task: Task, checkpoint_no: int) -> dict[str, float]:
    """From where a later attempt goes on, for its reason: a step, or the beginning. What a program
    that is asked by a signal saves is its own affair."""
    if task.preempt_mode is PreemptMode.SIGNAL:
        return {}
    if not checkpoint_no:
        return {"from_beginning": 1}
    saved = task.checkpoint
    return {"step": saved.step} if saved is not None and saved.no == checkpoint_no else {}


def _exit_reason(
    task: Task, event: Exit, verdict: Verdict, checkpoint: Checkpoint | None
) -> Reason:
    if verdict.trigger is Trigger.EXIT_FAILED and task.end_reason is not None:
        return task.end_reason
    names = {"detail": event.exit.detail[:200]} if event.exit.detail else {}
    retries = task.retries_used if verdict.code is ReasonCode.RETRIES_USED_UP else None
    used_up = verdict.code is ReasonCode.START_ATTEMPTS_USED_UP
    attempts = task.start_attempts + 1 if used_up else None
    code, again = verdict.code, {}
    if code in (ReasonCode.RUN_KILLED, ReasonCode.RUN_LOST) and task.run_started_at is not None:
        again = _goes_on(replace(task, checkpoint=checkpoint), checkpoint.no if checkpoint else 0)
    if code is ReasonCode.RUN_KILLED and task.reason.code is ReasonCode.NEVER_ASKED:
        code = ReasonCode.NEVER_ASKED
    return reason(
        code, names=names, attempt=event.attempt, retries=retries, attempts=attempts, **again
    )
