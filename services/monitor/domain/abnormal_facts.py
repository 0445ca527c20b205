"""What rules know of one task, and how each event changes it. Pure.

Each function takes the row and an event and returns the row after it. Events that come again or
late change nothing: an attempt, a version, a time or a count decides which is newer. Times with the
ending ``_s`` are steady seconds (``steady_clock.py``) at which the monitor received the event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from libs.contracts.messages import (
    CheckpointSaved,
    Priority,
    RankEnded,
    RankRestarted,
    RunAssigned,
    RunDelayed,
    RunMode,
    RunResumed,
    RunStarted,
    TaskState,
    TaskStateChanged,
)
from libs.contracts.task_states import TERMINAL

# A run with more restarted or ended ranks is abnormal by those that are kept.
RANKS_KEPT_MAX = 256
# Of a delay.
NODES_KEPT_MAX = 16
# The run holds its nodes and works, or saves.
RUNS = frozenset({TaskState.RUNNING, TaskState.PREEMPTING})
# Its ranks should exist.
NEEDS_RANKS = frozenset({TaskState.STARTING, TaskState.RUNNING})


@dataclass(frozen=True, slots=True)
class FactsRow:
    """The facts of one task. Those of an attempt begin again with the next one."""

    task_id: str
    # It has not ended, or something about it is still to be closed: the loop evaluates it.
    watched: bool = True
    # By the last state: its version, and what it says.
    version: int = 0
    state: TaskState = TaskState.QUEUED
    attempt: int = 0
    priority: Priority = Priority.UNSPECIFIED
    gpus: int = 0
    attempts_without_progress: int = 0
    # For how long its runs have run that ended; since when the present one has.
    ran_s: float = 0.0
    runs_since_s: float | None = None
    # People work in the run: it is in debug mode, and how it is used or ends is theirs to judge.
    debugs: bool = False
    # The run has started; then only delays of roles that start later count.
    started: bool = False
    delayed_ranks: int = 0
    delay_while_running: bool = False
    delay_noted_at: datetime | None = None
    delay_detail: str = ""
    # Nodes on which ranks cannot start.
    delay_nodes: tuple[str, ...] = ()
    # Earlier versions filled it. Nothing reads it: ranks end one at a time only in debug mode.
    ended_ranks: tuple[int, ...] = ()
    missing_since_s: float | None = None
    # Restarts of ranks in place: rank, how many, on which node; how many there were at the last
    # checkpoint, and its number.
    restarts: tuple[tuple[int, int, str], ...] = ()
    restarts_saved: int = 0
    checkpoint_no: int = 0
    # Since when it has had GPUs that are idle, and since when it has been quiet; by the loop.
    idle_since_s: float | None = None
    quiet_since_s: float | None = None
    # Since when its program has reported no new step, once that has lasted, and the last one; by
    # the loop.
    stalled_since_s: float | None = None
    stalled_step: float | None = None
    # The rules that find it abnormal now.
    open: tuple[str, ...] = ()
    # When the first event about it came; when the loop was done with it. None: it is not.
    noted_at: datetime | None = None
    closed_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """True once the task has ended."""
        return self.state in TERMINAL

    @property
    def missing_ranks(self) -> int:
        """How many ranks should exist and do not."""
        counts = not self.started or self.delay_while_running
        return self.delayed_ranks if counts and not self.debugs else 0

    @property
    def restarts_since_checkpoint(self) -> int:
        """Restarts in place since the last checkpoint of this attempt."""
        if self.debugs:
            return 0
        return sum(count for _, count, _ in self.restarts) - self.restarts_saved

    def ran_for(self, now_s: float) -> float:
        """For how long its runs have run in all: its time in the queue is not in it."""
        running = now_s - self.runs_since_s if self.runs_since_s is not None else 0.0
        return self.ran_s + max(0.0, running)


def with_state(row: FactsRow, event: TaskStateChanged, now_s: float) -> FactsRow:
    """After the scheduler's event; an older one changes nothing."""
    if event.version <= row.version:
        return row
    row = _at_attempt(row, event.attempt)
    ran_s, since_s = row.ran_s, row.runs_since_s
    if event.state in RUNS:
        since_s = now_s if since_s is None else since_s
    elif since_s is not None:
        ran_s, since_s = ran_s + max(0.0, now_s - since_s), None
    return _settled(
        replace(
            row,
            version=event.version,
            state=event.state,
            priority=event.priority,
            gpus=event.held_gpus,
            attempts_without_progress=event.attempts_without_progress,
            ran_s=ran_s,
            runs_since_s=since_s,
            # It may have been closed while nothing was known of it.
            watched=row.watched or event.state not in TERMINAL,
            closed_at=row.closed_at if event.state in TERMINAL else None,
        ),
        now_s,
    )


def with_assignment(row: FactsRow, event: RunAssigned | RunResumed, now_s: float) -> FactsRow:
    """After an attempt was given nodes: its specification has its mode."""
    if event.attempt < row.attempt:
        return row
    debugs = event.spec.run_mode is RunMode.DEBUG
    row = _at_attempt(row, event.attempt)
    return _settled(replace(row, debugs=row.debugs or debugs), now_s)


def with_start(row: FactsRow, event: RunStarted, now_s: float) -> FactsRow:
    """After every process exists that waits for no other role."""
    if event.attempt < row.attempt:
        return row
    return _settled(replace(_at_attempt(row, event.attempt), started=True), now_s)


def with_delay(row: FactsRow, event: RunDelayed, now_s: float) -> FactsRow:
    """After a report about ranks without a process; the newest one counts."""
    if event.attempt < row.attempt:
        return row
    row = _at_attempt(row, event.attempt)
    if row.delay_noted_at is not None and event.noted_at <= row.delay_noted_at:
        return row
    return _settled(
        replace(
            row,
            delayed_ranks=event.ranks,
            delay_while_running=event.running,
            delay_noted_at=event.noted_at,
            delay_detail=event.detail,
            delay_nodes=tuple(event.node_ids[:NODES_KEPT_MAX]),
        ),
        now_s,
    )


def with_ended_rank(row: FactsRow, event: RankEnded, now_s: float) -> FactsRow:
    """After one rank ended while the others go on, as there is in debug mode alone. A run that was
    assigned before the monitor was upgraded shows by that which mode it has."""
    if event.attempt < row.attempt:
        return row
    return _settled(replace(_at_attempt(row, event.attempt), debugs=True), now_s)


def with_restart(row: FactsRow, event: RankRestarted) -> FactsRow:
    """After a restart of one rank; the highest count of each rank is kept."""
    if event.attempt < row.attempt:
        return row
    row = _at_attempt(row, event.attempt)
    known = {rank: (count, node) for rank, count, node in row.restarts}
    if event.rank not in known and len(known) >= RANKS_KEPT_MAX:
        return row
    if event.restarts > known.get(event.rank, (0, ""))[0]:
        known[event.rank] = (event.restarts, event.node_id)
    return replace(row, restarts=tuple((rank, *known[rank]) for rank in sorted(known)))


def with_checkpoint(row: FactsRow, event: CheckpointSaved) -> FactsRow:
    """After a checkpoint: restarts before it have not been without progress."""
    if event.attempt < row.attempt or event.checkpoint.no <= row.checkpoint_no:
        return row
    row = _at_attempt(row, event.attempt)
    saved = sum(count for _, count, _ in row.restarts)
    return replace(row, restarts_saved=saved, checkpoint_no=event.checkpoint.no)


def _at_attempt(row: FactsRow, attempt: int) -> FactsRow:
    """The row with nothing known of a new attempt."""
    if attempt <= row.attempt:
        return row
    return replace(
        row,
        attempt=attempt,
        debugs=False,
        started=False,
        delayed_ranks=0,
        delay_while_running=False,
        delay_noted_at=None,
        delay_detail="",
        delay_nodes=(),
        missing_since_s=None,
        restarts=(),
        restarts_saved=0,
        idle_since_s=None,
        quiet_since_s=None,
        stalled_since_s=None,
        stalled_step=None,
    )


def _settled(row: FactsRow, now_s: float) -> FactsRow:
    """The row with the time since when ranks are missing."""
    if row.state not in NEEDS_RANKS or row.missing_ranks <= 0:
        return replace(row, missing_since_s=None)
    return row if row.missing_since_s is not None else replace(row, missing_since_s=now_s)
