"""How one pool is shared in one round: redeem promises, then look at who waits, in order.

Fourth step of ``decide``. A look gives a task its place, promises it one, or says why it waits;
``room.py`` finds who must go for a higher level or a guarantee, ``passes.py`` lets runs of one
level take turns. What the discipline decides is the order and who may pass a task that is stuck.
"""

from __future__ import annotations

from datetime import datetime

from libs.contracts.messages import ReasonCode
from services.scheduler.domain import room, slices
from services.scheduler.domain.clusters import UNCOVERED
from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.floods import flooded
from services.scheduler.domain.grants import grant
from services.scheduler.domain.lifecycle import QUEUED
from services.scheduler.domain.model import WEIGHTS, Assign, Look, Shape, Task
from services.scheduler.domain.moments import Kind, Moment
from services.scheduler.domain.order import Entry, Line, Outcome, auto_level, is_auto, rank_of
from services.scheduler.domain.passes import Turns
from services.scheduler.domain.place import Slot, placements_of
from services.scheduler.domain.pool import Pool, units_of
from services.scheduler.domain.reserve import Reservation, reserve
from services.scheduler.domain.round import Round
from services.scheduler.domain.topology import crosses_zone
from services.scheduler.domain.waits import retry_later, waits_by_itself
from services.scheduler.domain.why import reason


def share(round_: Round, pool: Pool, moments: list[Moment], resumed: list[Task]) -> None:
    """Decide all there is to decide about one pool."""
    slices.sample(round_, pool)
    slices.tend(round_, pool, moments)
    Sharing(round_, pool, moments, resumed).run()


class Sharing:
    """One pool in one round."""

    def __init__(
        self, round_: Round, pool: Pool, moments: list[Moment], resumed: list[Task]
    ) -> None:
        self.round = round_
        self.pool = pool
        self.wide = (
            pool.wide
            or pool.group in round_.told
            or any(moment.kind is not Kind.RETRIES for moment in moments)
            or (pool.discipline.filling is not Filling.GREEDY and bool(pool.arrived or resumed))
            or (pool.due_at is not None and pool.due_at <= round_.now)
        )
        self.late = self._newcomers(moments, resumed)
        # By rank: shapes that found no place, whom they hold back, and what is reserved.
        self._stuck: dict[int, dict[tuple[Shape, str], None]] = {}
        self._reserved: dict[int, Reservation] = {}
        self._spare_units = 0.0
        self._sent_units = -1
        self._yielded = self._second = False
        self.turns = Turns(round_, pool)

    def _newcomers(self, moments: list[Moment], resumed: list[Task]) -> dict[str, Task]:
        """Tasks to be looked at whatever their queue: new, back, or changed."""
        tasks = self.round.index.tasks
        retried = [tasks[each.task_id] for each in moments if each.kind is Kind.RETRIES]
        late = {
            task.id: task
            for task in (*self.pool.fresh.values(), *self.pool.arrived.values(), *retried, *resumed)
            if task.id not in self.pool.promised
        }
        moved = self.round.moved - {task.id for task in resumed}
        return {task_id: late[task_id] for task_id in sorted(late) if task_id not in moved}

    def run(self) -> None:
        """The whole of it."""
        self._redeem()
        for task in sorted(self.late.values(), key=_arrival):
            self._mark(task)
        granted_due = self._grant()
        self._walk(self.late, wide=self.wide or self.turns.open)
        if self._yielded:
            # What is free after the others is anybody's.
            self._second = True
            taken = self.round.served | self.round.moved
            left = {key: task for key, task in self.late.items() if key not in taken}
            self._walk(left, wide=True)
        while displaced := self.round.displaced.pop(self.pool.group, None):
            self._walk({task.id: task for task in displaced}, wide=False)
        due_at = min(
            (moment for moment in (granted_due, self.turns.due_at) if moment is not None),
            default=None,
        )
        self.round.looks[self.pool.group] = Look(due_at, self.turns.passed_at)
        self.round.wake_at(due_at)

    def _grant(self) -> datetime | None:
        """Let the longest unserved be the first; returns when that is due next, as far as known."""
        if not self.turns.open or not self.pool.discipline.pays:
            return None
        granted, due_at = grant(self.round, self.pool)
        if granted is not None:
            self.late[granted.id] = granted
        return due_at

    def _mark(self, task: Task) -> None:
        if task.id not in self.round.marks and not (
            task.state is QUEUED and self.pool.marked(task)
        ):
            slices.mark_waiting(self.round, self.pool, task)

    def _walk(self, late: dict[str, Task], *, wide: bool) -> None:
        entries = [self.entry(task) for task in late.values()]
        fixed = not self.pool.clusters and not self.pool.discipline.by_user
        line = Line(self.pool.lanes, self.make, entries, fixed=fixed)
        self._sent_units = -1
        line.walk(self.look, wide=wide, worth=self._worth, sent=self._sent)

    def _sent(self) -> int:
        """How many runs and promises of this pool were sent away in this round."""
        return len(self.round.told.get(self.pool.group, ())) + len(self.round.released)

    # Entries of the line.

    def entry(self, task: Task, key: float | None = None) -> Entry:
        """A waiting task with its place in the order of this moment."""
        round_, pool = self.round, self.pool
        if key is None:
            key = pool.key(round_.marks_of(task))
        key = slices.order(round_, pool, task, key)
        shape, level, cluster, depth = task.shape, pool.level(task), "", UNCOVERED
        if is_auto(task):
            need = round_.totals.need(shape)
            level = auto_level(task, need, round_.ledger, round_.settings.auto_level_max)
        if pool.clusters:
            cluster = pool.clusters.of(task)
            depth = round_.clusters(pool).depth(cluster, pool.size(task))
        return Entry(
            rank_of(WEIGHTS[level], depth), key, task.id, task, shape, level, cluster, depth
        )

    def make(self, task_id: str, key: float | None) -> Entry | None:
        """The entry of a task that comes up; None if it is not to be looked at."""
        if task_id in self.round.served:
            return None
        late = self.late.get(task_id)
        if late is not None:
            return self.entry(late)
        if task_id in self.round.moved:
            return None
        return self.entry(self.round.index.tasks[task_id], key)

    def _worth(self, weight: int, shape: Shape) -> bool:
        """True if a look at the head of a row could move anything, or must hold others back."""
        pool, round_ = self.pool, self.round
        if self.turns.worth(weight) and round_.totals.fits_now(shape):
            return True
        if pool.nodes_changed or pool.discipline.filling is not Filling.GREEDY or pool.clusters:
            return True
        if round_.free.fits(shape):
            return True
        lower = pool.lower_units(weight)
        if self._sent_units != self._sent():
            self._sent_units = self._sent()
            promised = sum(map(pool.size, pool.promised.values()))
            self._spare_units = self.coming_units() + promised
        if not self._spare_units and not lower:
            return False
        there = round_.free.free_units(pool.group) + lower + self._spare_units
        return there >= units_of(shape, pool.width) - ALMOST

    def aside(self, entry: Entry) -> Outcome | None:
        """What stops the task, whatever others do; None: nothing does."""
        found = waits_by_itself(self.round, self.pool, entry)
        if found is None and not self._second:
            why = flooded(self.round, self.pool, entry)
            if why is not None:
                self._yielded = True
                self.round.explain(entry.task, why)
                return Outcome.LIMITED
        return found

    def coming_units(self) -> float:
        """Node equivalents that runs on their way out hold, whoever they were promised to."""
        pool = self.pool
        leaving = (*pool.leaving.values(), *self.round.told.get(pool.group, ()))
        return sum(pool.size(task) for task in leaving)

    # One look.

    def look(self, entry: Entry) -> Outcome:
        """Give the task a place, promise it one, or say why it waits."""
        aside = self.aside(entry)
        if aside is not None:
            return aside
        if self._barred(entry):
            return self._waits_on(entry, behind=True)
        slots = self._place(entry)
        if slots is not None:
            self.assign(entry, slots)
            return Outcome.SERVED
        if entry.rank in self._reserved:
            return self._unless_shorter(entry, behind=True)
        promised = None if self._second else self._made(entry)
        if promised is not None:
            self.promise(entry, promised)
            return Outcome.SERVED
        return self._stops(entry)

    def _barred(self, entry: Entry) -> bool:
        """True if an earlier one of its kind found no place, or holds back what it could use."""
        stuck = self._stuck.setdefault(entry.rank, {})
        if (entry.shape, entry.cluster) in stuck:
            return True
        if self.pool.discipline.filling is Filling.STRICT and self._held_back(entry):
            stuck[entry.shape, entry.cluster] = None
            return True
        return False

    def _stops(self, entry: Entry) -> Outcome:
        """There is no place for it: those of its kind wait too, or respect its reservation."""
        if self.pool.discipline.filling is Filling.RESERVE:
            self._reserved[entry.rank] = reserve(self.round, self.pool, entry)
            return self._unless_shorter(entry, behind=False)
        self._stuck[entry.rank][entry.shape, entry.cluster] = None
        return self._waits_on(entry, behind=False)

    def _made(self, entry: Entry) -> tuple[Slot, ...] | None:
        """A place that others leave: lower ones, or those whose turn is over."""
        slots = room.find(self.round, self.pool, entry)
        return self.turns.take(entry, self.coming_units()) if slots is None else slots

    def _unless_shorter(self, entry: Entry, *, behind: bool) -> Outcome:
        """It waits; one of the same shape that ends earlier may still start, if there is room."""
        outcome = self._waits_on(entry, behind=behind)
        return Outcome.ASIDE if self.round.free.fits(entry.shape) else outcome

    def _held_back(self, entry: Entry) -> bool:
        """True if every node the task could use is wanted by an earlier one that is stuck."""
        totals = self.round.totals
        return any(
            totals.competes(entry.shape, shape) for shape, _ in self._stuck.get(entry.rank, ())
        )

    def _waits_on(self, entry: Entry, *, behind: bool) -> Outcome:
        strict = self.pool.discipline.filling is not Filling.GREEDY
        code = (
            ReasonCode.WAITS_BEHIND_OTHERS if behind and strict else ReasonCode.WAITS_FOR_CAPACITY
        )
        if not self._second or entry.id not in self.round.explanations:
            self.round.explain(entry.task, self.round.waits(code, entry.shape))
        return Outcome.STUCK

    def _place(self, entry: Entry) -> tuple[Slot, ...] | None:
        """A place that is free now and that no earlier task of the level holds back."""
        round_, pool = self.round, self.pool
        topology = round_.topology(pool)
        reservation = self._reserved.get(entry.rank)
        if reservation is not None:
            return reservation.place(round_, pool, entry)
        stuck = self._stuck.get(entry.rank)
        if pool.discipline.filling is not Filling.STRICT or not stuck:
            return round_.free.pick(entry.shape, topology=topology)
        kept: set[str] = set()
        for shape, _ in stuck:
            kept |= round_.totals.eligible(shape)
        cpu = "/cpu" if entry.shape.gpus == 0 else ""
        nodes = round_.free.nodes
        return round_.free.pick(
            entry.shape,
            lambda node_id: node_id + (cpu if nodes[node_id].gpus else "") not in kept,
            topology=topology,
        )

    def _redeem(self) -> None:
        """Promises whose nodes are all observed free become assignments; broken ones are void."""
        round_, pool = self.round, self.pool
        if not self.wide:
            return
        for task_id in sorted(pool.promised):
            task = pool.promised[task_id]
            if task_id in round_.moved or task_id in round_.released:
                continue
            if round_.index.broken(task) or round_.ledger.passed(task, task.level):
                round_.release(task)
            elif round_.index.ripe(task) and not retry_later(task, round_.now):
                level = task.level
                entry = self.entry(task)._replace(level=level)
                self.assign(entry, round_.index.slots(task), counted=True)

    def assign(self, entry: Entry, slots: tuple[Slot, ...], *, counted: bool = False) -> None:
        """Start an attempt on these slots."""
        round_, pool, task = self.round, self.pool, entry.task
        if not counted:
            round_.free.take(slots)
        start_deadline_at = round_.after(round_.settings.start_deadline_seconds)
        self._note_crossing(slots)
        names = {"node_ids": ", ".join(slot.node_id for slot in slots[:3]), "group": task.group}
        decision = Assign(
            task_id=task.id,
            attempt=task.attempt + 1,
            level=entry.level,
            placements=placements_of(slots, task.spec, round_.index.nodes),
            start_deadline_at=start_deadline_at,
            resume_from=task.checkpoint,
            reason=reason(ReasonCode.PLACED, names=names, nodes=len(slots), gpus=entry.shape.gpus),
            marks=slices.mark_starting(round_, pool, task),
        )
        round_.wake_at(start_deadline_at)
        round_.assign(task, decision, pool.size(task), counted=counted)

    def promise(self, entry: Entry, slots: tuple[Slot, ...]) -> None:
        """Keep these slots for the task until they are all observed free."""
        round_, pool, task = self.round, self.pool, entry.task
        round_.keep(slots)
        self._note_crossing(slots)
        round_.charge(task, entry.level, round_.totals.need(entry.shape), pool.size(task))
        round_.explain(
            task,
            round_.waits(ReasonCode.WAITS_FOR_VICTIMS, entry.shape),
            promised=slots,
            level=entry.level,
        )

    def _note_crossing(self, slots: tuple[Slot, ...]) -> None:
        group, totals = self.pool.group, self.round.totals
        if group in totals.zoned and crosses_zone(
            slots, self.round.index.nodes, totals.levels(group)
        ):
            self.round.crossed[group] = self.round.crossed.get(group, 0) + 1


ALMOST = 1e-6


def _arrival(task: Task) -> tuple[datetime, str]:
    return task.submitted_at, task.id
