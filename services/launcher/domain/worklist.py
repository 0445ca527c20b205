"""Which runs to step, and what is still asked of the rest. Committed rows, looks and the clock each
concern few runs of many, and a round costs no more than those. Used by ``loop.py``; it is in
memory alone, and made again from the rows and the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from libs.contracts.ids import RunId, TaskId
from services.launcher.domain.model import Listing, ObservedRun, Run, RunState
from services.launcher.domain.reconcile import (
    Action,
    Look,
    Policy,
    Sight,
    Step,
    answers,
    step,
    step_unwanted,
)
from services.launcher.domain.run_lifecycle import LIVE

NOTHING = ObservedRun(RunId.parse("nothing.0"), {})

# A set that keeps its order: what was first to come is first to be launched.
Marks = dict[RunId, None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows that changed, everything there is to do, and when to look again at the latest."""

    runs: tuple[Run, ...]
    actions: tuple[Action, ...]
    due_at: datetime | None = None
    # The runs that were looked at.
    steps: Mapping[RunId, Step] = field(default_factory=dict[RunId, Step], compare=False)


class Worklist:
    """Every run that is not forgotten, and the marks on those that are to be stepped."""

    def __init__(self, runs: Iterable[Run] = (), unreadable: Iterable[RunId] = ()) -> None:
        self.runs: dict[RunId, Run] = {}
        # Runs whose rows nobody can read: they are neither cleared away nor followed.
        self._unreadable = set(unreadable)
        self._of_task: dict[str, dict[int, RunId]] = {}
        self._on_node: dict[str, Marks] = {}
        self._assigned: Marks = {}
        self._look: Look | None = None
        self._marks: Marks = {}
        self._wanted: dict[RunId, tuple[Action, ...]] = {}
        self._due: dict[RunId, datetime] = {}
        self.apply(runs)

    # What is known

    def assigned(self) -> Iterator[Run]:
        """Runs that have not started."""
        return (self.runs[run_id] for run_id in self._assigned)

    def is_busy(self, node_id: str) -> bool:
        """Whether a node holds runs that are not over."""
        return any(self.runs[run_id].state in LIVE for run_id in self._on_node.get(node_id, ()))

    def is_live(self, run_id: RunId) -> bool:
        """Whether a run is not over."""
        run = self.runs.get(run_id)
        return run is not None and run.state in LIVE

    # What is learned

    def apply(
        self,
        put: Iterable[object],
        deleted: Iterable[tuple[type[object], tuple[object, ...]]] = (),
    ) -> None:
        """Take over committed rows; an attempt concerns all others of its task."""
        for kind, key in deleted:
            if kind is Run:
                task_id, attempt = key
                assert isinstance(task_id, str), "the key of a run"
                assert isinstance(attempt, int), "the key of a run"
                self._drop(RunId(TaskId(task_id), attempt))
        for row in put:
            if isinstance(row, Run):
                self._put(row)

    def _put(self, run: Run) -> None:
        run_id = run.id
        self._unreadable.discard(run_id)
        before = self.runs.get(run_id)
        self.runs[run_id] = run
        if before is None:
            self._of_task.setdefault(run.task_id, {})[run.attempt] = run_id
        if before is None or before.placements != run.placements:
            self._leave(run_id, before)
            for place in run.placements:
                self._on_node.setdefault(place.node_id, {})[run_id] = None
        if run.state is RunState.ASSIGNED:
            self._assigned[run_id] = None
        else:
            self._assigned.pop(run_id, None)
        self._mark_task(run.task_id)

    def _drop(self, run_id: RunId) -> None:
        if run_id in self._unreadable:
            self._unreadable.discard(run_id)
            self._marks[run_id] = None
        run = self.runs.pop(run_id, None)
        if run is None:
            return
        self._leave(run_id, run)
        self._assigned.pop(run_id, None)
        mates = self._of_task[run.task_id]
        del mates[run.attempt]
        if not mates:
            del self._of_task[run.task_id]
        self._marks[run_id] = None
        self._mark_task(run.task_id)

    def _leave(self, run_id: RunId, run: Run | None) -> None:
        for place in run.placements if run is not None else ():
            there = self._on_node.get(place.node_id, {})
            there.pop(run_id, None)
            if not there:
                self._on_node.pop(place.node_id, None)

    def _mark_task(self, task_id: str) -> None:
        self._mark(self._of_task.get(task_id, {}).values())

    def _mark(self, run_ids: Iterable[RunId]) -> None:
        self._marks.update(dict.fromkeys(run_ids))

    def see(self, look: Look) -> None:
        """Take over the latest look, and mark the runs for which it is news."""
        before, self._look = self._look, look
        if before is None:
            self._mark(self.runs)
            self._mark(look.listing.runs)
            return
        self._mark(_changed_runs(before.listing, look.listing))
        self._mark(sorted({action.run_id for action in before.done ^ look.done}))
        if before.refused != look.refused:
            self._mark(before.refused)
            self._mark(look.refused)
        for node_id in _changed_nodes(before.listing, look.listing):
            self._mark(self._on_node.get(node_id, ()))

    # A round

    def take(self) -> Marks:
        """The marks, for one round; to be given back if it comes to nothing."""
        taken, self._marks = self._marks, {}
        return taken

    def give_back(self, marks: Marks) -> None:
        """The round of these marks was not committed."""
        self._marks = marks | self._marks

    def step(self, marks: Marks, look: Look, now: datetime, policy: Policy) -> Outcome:
        """Step what is marked or due. ``look``: the latest when the marks were taken. Nothing is
        kept of this before ``settle``."""
        due = dict.fromkeys(run_id for run_id, at in self._due.items() if at <= now)
        steps = {run_id: self._step(run_id, look, now, policy) for run_id in marks | due}
        changed = tuple(
            each.run
            for run_id, each in steps.items()
            if each.run is not None and each.run != self.runs[run_id]
        )
        wanted, later = dict(self._wanted), dict(self._due)
        _keep(steps, wanted, later)
        actions = tuple(action for each in wanted.values() for action in each)
        return Outcome(changed, actions, min(later.values(), default=None), steps)

    def settle(self, outcome: Outcome) -> None:
        """The round was committed."""
        _keep(outcome.steps, self._wanted, self._due)

    def _step(self, run_id: RunId, look: Look, now: datetime, policy: Policy) -> Step:
        run, seen = self.runs.get(run_id), look.listing.runs.get(run_id)
        if run is None:
            return step_unwanted(None if run_id in self._unreadable else seen)
        mates = [self.runs[mate] for mate in self._of_task[run.task_id].values()]
        sight = Sight(
            look=look,
            seen=seen or NOTHING,
            waits=any(mate.attempt < run.attempt and mate.state in LIVE for mate in mates)
            or any(
                mate.task_id == run.task_id and mate.attempt < run.attempt
                for mate in self._unreadable
            ),
            superseded=any(
                mate.attempt > run.attempt and mate.state is not RunState.TOMBSTONE
                for mate in mates
            ),
        )
        return step(run, sight, now, policy)


def _keep(
    steps: Mapping[RunId, Step],
    wanted: dict[RunId, tuple[Action, ...]],
    due: dict[RunId, datetime],
) -> None:
    """What these steps say, in the place of what was said of their runs before."""
    for run_id, each in steps.items():
        wanted.pop(run_id, None)
        due.pop(run_id, None)
        if each.actions:
            wanted[run_id] = each.actions
        if each.due_at is not None:
            due[run_id] = each.due_at


def _changed_runs(before: Listing, now: Listing) -> Iterable[RunId]:
    """What a runtime sees differently; where it does not say so itself, each run is compared."""
    if now.number and now.number == before.number + 1:
        return now.changed
    gone = [run_id for run_id in before.runs if run_id not in now.runs]
    return gone + [run_id for run_id, seen in now.runs.items() if before.runs.get(run_id) != seen]


def _changed_nodes(before: Listing, now: Listing) -> Iterator[str]:
    """Nodes that began or ceased to answer."""
    gone = [node_id for node_id in before.nodes if node_id not in now.nodes]
    for node_id in (*gone, *now.nodes):
        same = before.nodes.get(node_id) is now.nodes.get(node_id)
        if not same and answers(node_id, before) != answers(node_id, now):
            yield node_id
