"""The scratch pad of one round of ``decide``: what is free, promised, decided and explained so far.

Two capacities move along: ``free`` is observed free and not promised to anybody yet; ``coming``
adds what leaving runs will set free. An assignment takes from both; a promise takes from
``coming``, and from ``free`` what is there already, so that nobody slips in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain.lifecycle import LEAVING
from services.scheduler.domain.model import Assign, Decision, Hold, Kill, Preempt, Shape, Task
from services.scheduler.domain.place import Slot, slots_of
from services.scheduler.domain.quota import Ledger, Need
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.domain.why import reason, same


class Candidate(NamedTuple):
    """A run that might be asked to go, in the order of asking (ids are unique)."""

    weight: int
    lost: float
    id: str
    task: Task


class Round:
    """One run of ``decide``."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.snapshot = snapshot
        self.settings = snapshot.settings
        self.now = now
        self.free = snapshot.capacity.copy()
        self.coming = snapshot.capacity.copy()
        self.ledger = Ledger(snapshot.limits, snapshot.held.values())
        self.decisions: list[Decision] = []
        self.explanations: dict[str, Reason] = {}
        # Tasks that got a decision which moves them.
        self.moved: set[str] = set()
        # Runs on their way out, by the task they make room for (empty: nobody's).
        self.leaving_for: dict[str, list[Task]] = {}
        # By weight: what waiting tasks of that level hold free for themselves.
        self.held_back: dict[int, set[str]] = {}
        # Level and shape of tasks that found no place: the next of the kind need not look.
        self.stuck: set[tuple[int, Shape]] = set()
        # Runs that could be asked to go, cheapest first; made by ``room.py`` when needed.
        self.candidates: list[Candidate] | None = None
        self.due_at: datetime | None = None
        self._waits: dict[tuple[ReasonCode, Shape], Reason] = {}
        for task in snapshot.held.values():
            if task.state in LEAVING:
                self._sees_leaving(task, task.preempted_for)

    def _sees_leaving(self, task: Task, beneficiary: str) -> None:
        self.leaving_for.setdefault(beneficiary, []).append(task)
        self.coming.give(slots_of(task))

    def decide(self, decision: Decision) -> None:
        """Note a decision that moves a task; a run told to go counts as leaving from here on."""
        self.decisions.append(decision)
        self.moved.add(decision.task_id)
        if isinstance(decision, Preempt | Kill):
            task = self.snapshot.tasks[decision.task_id]
            if task.state not in LEAVING:
                self._sees_leaving(task, decision.beneficiary)

    def explain(self, task: Task, why: Reason, *, accepted: bool = True) -> None:
        """Note why a queued task waits on; a decision of its own if that is news."""
        self.explanations[task.id] = why
        if not same(task.reason, why) or (accepted and not task.accepted):
            self.decisions.append(Hold(task.id, why, accepted or task.accepted))

    def assign(self, task: Task, slots: tuple[Slot, ...], decision: Assign) -> None:
        """Note an assignment, take its slots and count them."""
        self.decisions.append(decision)
        self.explanations[task.id] = decision.reason
        self.free.take(slots)
        self.coming.take(slots)
        gpus = sum(len(placement.gpus) for placement in decision.placements)
        self.ledger.charge(task, decision.level, Need(gpus, len(decision.placements)))

    def promise(self, slots: Iterable[Slot]) -> None:
        """Keep slots, free or coming, for a task that waits for their rest."""
        for slot in slots:
            self.coming.take((slot,))
            if slot.mask:
                self.free.take((Slot(slot.node_id, slot.mask & self.free.free[slot.node_id]),))
            elif self.free.covers(slot):
                self.free.take((slot,))

    def waits(self, code: ReasonCode, shape: Shape) -> Reason:
        """The reason for waiting with this size; made once per round and shape."""
        found = self._waits.get((code, shape))
        if found is None:
            names = {"group": shape.group}
            found = reason(code, names=names, nodes=shape.nodes, gpus=shape.gpus)
            self._waits[code, shape] = found
        return found

    def wake_at(self, moment: datetime | None) -> None:
        """The round should be run again at this moment, if it is still to come."""
        if (
            moment is not None
            and moment > self.now
            and (self.due_at is None or moment < self.due_at)
        ):
            self.due_at = moment

    def after(self, seconds: float) -> datetime:
        """The moment so many seconds from now."""
        return self.now + timedelta(seconds=seconds)
