"""Simulates one node group with ``decide`` on a virtual clock, on an index of its own.

Used by ``explanation.py``, ``remedies.py`` and ``forecast.py``. A run starts when it is placed,
ends at its expected time, and takes all the time it is allowed for saving when it is requested to
leave. Nothing is submitted and nothing fails. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from libs.contracts.messages import Checkpoint, ExitKind, Reason, RunExit
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.disciplines.timeshare.discipline import features_of
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import state_changed, task_after
from services.scheduler.domain.model.decisions import Decision, Kill, Plan, Preempt
from services.scheduler.domain.model.lifecycle import KILLING, PREEMPTING, QUEUED, STARTING
from services.scheduler.domain.model.rows import EndedTask, Task
from services.scheduler.domain.virtual_clock import VirtualClock

# The predictor is not used until it has learned from so many ends.
ENDS_MIN = 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one query may cost; it also records what was left out because of that."""

    # How many changes are tried, and how many rounds the forecast simulates.
    trials_max: int = 60
    rounds_max: int = 10_000
    # Which part of the query's time is used up; after 1 there is no answer at all.
    used: Callable[[], float] = float

    def over(self, part: float) -> Callable[[], bool]:
        """Whether so much of the time is used up."""
        return lambda: self.used() >= part


class Pace(Enum):
    """How soon runs end, within what is known about them."""

    # At their limits, else at the predictor's median; they use all their time to save.
    EXPECTED = "expected"
    # As early as one in ten of similar tasks, and at once when they are requested to leave.
    EARLY = "early"
    # At their limits, else as late as nine in ten of similar tasks.
    LATE = "late"


_PARTS = {Pace.EXPECTED: 0.5, Pace.EARLY: 0.1, Pace.LATE: 0.9}


class Stopped(Enum):
    """Why a simulation ended before the task started."""

    # Nothing more will happen, or nothing within the horizon.
    NOTHING_LEFT = "nothing left"
    TOO_FAR = "too far"
    # The bounds of one query were reached.
    TOO_LONG = "too long"


@dataclass(frozen=True, slots=True)
class _Exit:
    """What the launcher would report about the end of a run."""

    attempt: int
    exit: RunExit
    checkpoint: Checkpoint | None = None


def expected_left(
    pool: Pool, task: Task, now: datetime, pace: Pace = Pace.EXPECTED
) -> float | None:
    """How long a run will still take: by its limit, else by the predictor; None: unknown."""
    attained = pool.attained(task, now)
    limit: float | None = None
    if task.expected_seconds is not None:
        limit = max(0.0, task.expected_seconds - attained)
        if pace is not Pace.EARLY:
            return limit
    if pool.history.ends >= ENDS_MIN:
        learned = pool.history.left(features_of(pool, task), attained, _PARTS[pace])
        return learned if limit is None else min(limit, learned)
    return limit


class IndexCopies(Protocol):
    """Gives each trial a copy of an index, so that it changes nothing else."""

    def with_copy(self, index: Index, simulation: Callable[[Index], Any]) -> Any:  # noqa: ANN401 - what it returns
        """The result of ``simulation`` on a copy of the index of its own; None: no time is left."""
        ...


class GroupSimulation:
    """The group of one task from a given time on. It changes the index it is given."""

    def __init__(
        self,
        index: Index,
        task_id: str,
        now: datetime,
        *,
        expired: Callable[[], bool] = bool,
        pace: Pace = Pace.EXPECTED,
    ) -> None:
        self._clock: VirtualClock[tuple[str, int]] = VirtualClock(index, now)
        self.task_id = task_id
        # The decisions that preempt a run for the task, and the latest reason why it waits.
        self.chosen: dict[str, Preempt | Kill] = {}
        self.why: Reason | None = None
        # True once a run was preempted for anything else.
        self.disturbed = False
        self.rounds = 0
        # Runs whose end is unknown; whether the predictor was used, and from how many ends it has
        # learned.
        self.endless: set[str] = set()
        self.by_history = False
        # Whether any run would have ended at another time at another pace.
        self.uncertain = False
        self.ends_known = index.pools[index.tasks[task_id].group].history.ends
        self._expired = expired
        self._pace = pace
        # The time from which the ends of runs are simulated.
        self._running = False

    def on_copy(self, index: Index, pace: Pace) -> GroupSimulation:
        """The same time on a copy of the index, at another pace."""
        twin = copy(self)
        twin._clock, twin._pace = self._clock.copy(index), pace  # noqa: SLF001 - of the same class
        twin.chosen, twin.endless = dict(self.chosen), set(self.endless)
        return twin

    @property
    def index(self) -> Index:
        """The rows at this moment."""
        return self._clock.index

    @property
    def now(self) -> datetime:
        """The time in the simulation."""
        return self._clock.now

    @property
    def task(self) -> Task | None:
        """The task as it is now; None once it has ended."""
        return self.index.tasks.get(self.task_id)

    @property
    def started(self) -> bool:
        """True if the task has a run."""
        task = self.task
        return task is not None and task.holds

    @property
    def served(self) -> bool:
        """True if the task has a run, or is promised nodes that other runs still have to leave."""
        task = self.task
        return task is not None and (task.holds or bool(task.promised))

    # Rounds.

    def settle(self) -> None:
        """Decide until nothing more is decided at this moment."""
        self._clock.settle(self._commit)

    def _commit(self, _snapshot: Snapshot, plan: Plan) -> bool:
        """Commit a plan, if it decides anything; True if there may be more to decide."""
        self.rounds += 1
        self.why = plan.explanations.get(self.task_id, self.why)
        if not plan.decisions and not plan.ledgers:
            return False
        self._carry_out(plan)
        return not self._expired()

    def _carry_out(self, plan: Plan) -> None:
        rows: dict[str, Task] = {}
        for decision in plan.decisions:
            task = rows.get(decision.task_id) or self.index.tasks[decision.task_id]
            rows[task.id] = task_after(task, decision, self.now)
            self._note(decision)
        begun = {task.id: self._begun(task) for task in rows.values()}
        self._put(*begun.values(), ledgers=plan.ledgers)
        if self._running:
            for task in begun.values():
                self._expect(task)

    def _note(self, decision: Decision) -> None:
        if isinstance(decision, Preempt | Kill):
            if decision.beneficiary == self.task_id:
                self.chosen[decision.task_id] = decision
            else:
                self.disturbed = True

    def _begun(self, task: Task) -> Task:
        return observations.started(task, self.now) if task.state is STARTING else task

    def _put(self, *tasks: Task, ledgers: tuple[object, ...] = ()) -> None:
        """Commit tasks as they are now; those that have ended leave."""
        over = [task for task in tasks if task.state in TERMINAL]
        self.index.apply(
            put=[*ledgers, *(task for task in tasks if task.state not in TERMINAL)]
            + [
                EndedTask(
                    task.id, self.now, state_changed(task, task.state, self.now), task.run_seconds
                )
                for task in over
            ],
            deleted=[(Task, (task.id,)) for task in over],
        )

    # Changes from outside the scheduler.

    def put(self, *rows: object) -> None:
        """Change rows as an event would."""
        self.index.apply(put=rows)

    def exit(self, task_id: str, kind: ExitKind) -> None:
        """A run ends."""
        task = self.index.tasks[task_id]
        saved = None
        if kind is ExitKind.PREEMPTED:
            last = task.checkpoint
            number = last.no + 1 if last else 1
            step = last.step if last else 0
            saved = Checkpoint(no=number, attempt=task.attempt, step=step, saved_at=self.now)
        ended = RunExit(attempt=task.attempt, kind=kind, ranks=(), exited_at=self.now, detail="")
        event = _Exit(task.attempt, ended, saved)
        self._put(observations.exited(task, event, self.now, self.index.settings))

    def leave_queue(self, task_id: str) -> None:
        """Delete a waiting task."""
        self.index.apply(deleted=[(Task, (task_id,))])

    def _expect(self, task: Task) -> None:
        """Note when a run is expected to end."""
        self.endless.discard(task.id)
        if task.state is KILLING:
            self._clock.at(self._clock.seconds, (task.id, task.attempt))
        elif task.state is PREEMPTING:
            by = self._gone_by(task)
            # A silent run stays until its deadline; another may save at once.
            self.uncertain = self.uncertain or not task.is_silent
            early = self._pace is Pace.EARLY and not task.is_silent
            at = self.now if early or by is None else by
            self._clock.at((at - self._clock.origin).total_seconds(), (task.id, task.attempt))
        elif task.holds:
            pool = self.index.pools[task.group]
            left = expected_left(pool, task, self.now, self._pace)
            self.uncertain = self.uncertain or pool.history.ends >= ENDS_MIN
            if left is None:
                self.endless.add(task.id)
            else:
                self.by_history = self.by_history or task.expected_seconds is None
                self._clock.at(self._clock.seconds + left, (task.id, task.attempt))

    def _gone_by(self, task: Task) -> datetime | None:
        return task.forced_at(self.index.settings.silent_ack_seconds_max)

    # Time.

    def run(self, *, until: datetime, rounds_max: int, ends: bool = True) -> Stopped | None:
        """Let time pass until the task starts; returns None then, and ``now`` is the start.

        ``ends`` False: no run ends, so only time changes anything, and the simulation stops as soon
        as nodes are promised to the task.
        """
        self._running = ends
        held = sorted(self.index.held) if ends else ()
        if ends:
            self._put(*(self._begun(self.index.tasks[task_id]) for task_id in held))
        for task_id in held:
            self._expect(self.index.tasks[task_id])
        while not (self.started if ends else self.served):
            if self.task is None or self.task.state is not QUEUED:
                return Stopped.NOTHING_LEFT
            if self.rounds >= rounds_max or self._expired():
                return Stopped.TOO_LONG
            seconds = min(self._clock.next_times(), default=None)
            if seconds is None:
                return Stopped.NOTHING_LEFT
            limit = (until - self._clock.origin).total_seconds()
            self._clock.seconds = min(max(self._clock.seconds, seconds), limit)
            if seconds > limit:
                return Stopped.TOO_FAR
            self._happen()
            self.settle()
        return None

    def _happen(self) -> None:
        for task_id, attempt in self._clock.happening():
            task = self.index.tasks.get(task_id)
            if task is None or task.live_attempt != attempt:
                continue
            kind = ExitKind.OK
            if task.state is KILLING:
                kind = ExitKind.KILLED
            elif task.state is PREEMPTING and (at := self._gone_by(task)) is not None:
                leaves = ExitKind.KILLED if task.is_silent else ExitKind.PREEMPTED
                saves_early = self._pace is Pace.EARLY or at <= self.now
                kind = leaves if saves_early else ExitKind.OK
            self.endless.discard(task_id)
            self.exit(task_id, kind)
