"""The scratch pad of one round of ``decide``: what is free, counted, decided and explained so far.

It works on cheap copies, so that the index is unchanged when the round is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.messages import Priority, Reason, ReasonCode
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.quota_usage import Need, held_need, minus
from services.scheduler.domain.limits.virtual_clusters import Depth, VirtualClusters
from services.scheduler.domain.model.decisions import (
    Assign,
    Decision,
    Hold,
    Kill,
    PoolScan,
    Preempt,
    Reject,
    Reorder,
)
from services.scheduler.domain.model.lifecycle import LEAVING
from services.scheduler.domain.model.rows import PoolLedger, Task
from services.scheduler.domain.model.values import (
    WEIGHTS,
    OrderKey,
    Shape,
    reason,
    same_reason,
)
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.slots import Slot, placements_of
from services.scheduler.domain.placement.topology import Topology, crosses_zone

ANYWHERE = Topology()
TOO_SMALL_NOW = ReasonCode.CLUSTER_TOO_SMALL_NOW
TOO_SMALL = (TOO_SMALL_NOW, ReasonCode.NEVER_FITS, ReasonCode.WAITS_FOR_INVENTORY)


@dataclass(slots=True)
class Crossing:
    """How many gangs of a pool lie in more than one of its largest domains."""

    # Those with processes, or that begin in this round.
    running: int = 0
    # Those, and the ones that are promised their nodes.
    now: int = 0
    # The same without runs that are leaving: what counts for tasks that wait for these.
    soon: int = 0

    def promise(self) -> None:
        """A gang that crosses is promised its nodes."""
        self.now += 1
        self.soon += 1

    def begin(self, *, promised: bool) -> None:
        """A gang that crosses begins; ``promised``: it was counted when it was promised nodes."""
        self.running += 1
        if not promised:
            self.promise()


class Round:
    """One run of ``decide``."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.snapshot = snapshot
        self.index = snapshot.index
        self.settings = snapshot.settings
        self.totals = snapshot.totals
        self.now = now
        self.seconds = now.timestamp()
        # What is observed free and not promised; and what limits and virtual clusters count.
        self.free = snapshot.capacity.copy()
        self.quota_usage = self.index.quota_usage.fork()
        # The position of each Hold, which is void if the task is evaluated again.
        self._decisions: list[Decision | None] = []
        self._holds: dict[str, int] = {}
        self.explanations: dict[str, Reason] = {}
        self.ledgers: dict[str, PoolLedger] = {}
        self.scans: dict[str, PoolScan] = {}
        # Tasks that got a decision which moves them; order keys and owners' tags of this round.
        self.moved: set[str] = set()
        # Waiting tasks that got a place or a promise in this round, or were rejected.
        self.served: set[str] = set()
        self.order_keys: dict[str, OrderKey] = {}
        # Runs that count at another level from this round on. Limits count that at once; which
        # tasks may preempt them changes with the commit.
        self.levels: dict[str, Priority] = {}
        self.finishes: dict[tuple[str, str], float] = {}
        # Runs that were requested to leave in this round, by pool.
        self.releasing: dict[str, list[Task]] = {}
        # Pools in which a waiting task left the queue because its owner paused or stopped it.
        self.groups_left: set[str] = set()
        self.releasing_ids: set[str] = set()
        self.promised_bits: dict[str, int] = {}
        # Tasks whose promises were withdrawn in this round.
        self.withdrawn: set[str] = set()
        # Runs begun in this round, by pool, as they will be.
        self.started: dict[str, list[Task]] = {}
        self.displaced: dict[str, list[Task]] = {}
        # Gangs that cross their pool's largest domains: with runs, or about to begin in this
        # round; those and promised ones; and the latter without runs on their way out.
        self._crossing: dict[str, Crossing] = {}
        self._reordered: set[str] = set()
        self._clusters: dict[str, VirtualClusters] = {}
        self._available_soon: dict[str, Capacity] = {}
        self._promised_units: dict[tuple[str, int], float] = {}
        self._waits: dict[tuple[ReasonCode, Shape], Reason] = {}
        self.due_at: datetime | None = None
        # The group that is being shared out, or the task that something urgent is decided about.
        self.group = self.task_id = ""

    def individually(self, task_ids: Iterable[str]) -> Iterator[Task]:
        """Tasks that something urgent is decided about one at a time, in order."""
        for task_id in sorted(task_ids):
            if task_id not in self.snapshot.left_out_tasks:
                self.task_id = task_id
                yield self.index.tasks[task_id]
        self.task_id = ""

    def clusters(self, pool: Pool) -> VirtualClusters:
        """What the pool's virtual clusters hold, with what this round gave."""
        found = self._clusters.get(pool.group)
        if found is None:
            found = self._clusters[pool.group] = pool.clusters.fork()
        return found

    def coverage(self, pool: Pool) -> Mapping[str, Depth]:
        """How each run (and promise) of the pool is covered by guarantees."""
        return pool.coverage.depths()

    def crossing(self, pool: Pool) -> Crossing:
        """How many gangs of a pool cross its largest domains, with what this round decided."""
        found = self._crossing.get(pool.group)
        if found is None:
            found = self._crossing[pool.group] = Crossing()
            for task_id in self.index.crossing(pool.group):
                task = self.index.tasks[task_id]
                runs = bool(task.placements)
                if not runs and task_id in self.withdrawn:
                    continue
                found.running += runs
                found.now += 1
                found.soon += task.state not in LEAVING and task_id not in self.releasing_ids
        return found

    def crosses(self, pool: Pool, slots: tuple[Slot, ...]) -> bool:
        """True if a gang in this place crosses the pool's largest domains."""
        group, totals = pool.group, self.totals
        return group in totals.zoned and crosses_zone(slots, self.index.nodes, totals.levels(group))

    def topology(self, pool: Pool, crossing: int | None = None) -> Topology | None:
        """Whether one more gang may cross the pool's largest domains; None: it has no domains.

        ``crossing``: how many do; else what counts for a gang that begins at once.
        """
        if pool.group not in self.totals.zoned:
            return ANYWHERE
        count = self.crossing(pool).now if crossing is None else crossing
        return Topology(cross_zone_allowed=count < pool.policy.cross_zone_gangs_max)

    def may_begin(self, pool: Pool, slots: tuple[Slot, ...]) -> bool:
        """True if a gang may begin in a place now: all of it is free, and it may cross domains."""
        if not self.free.covers(slots):
            return False
        most = pool.policy.cross_zone_gangs_max
        return not self.crosses(pool, slots) or self.crossing(pool).now < most

    def withdraw_promise(self, task: Task) -> None:
        """Withdraw what was promised to a waiting task; it is evaluated again in this round."""
        if task.id in self.index.crossing(task.group):
            crossing = self.crossing(self.index.pools[task.group])
            crossing.now -= 1
            crossing.soon -= 1
        self.withdrawn.add(task.id)
        self.displaced.setdefault(task.group, []).append(task)
        self.free.give_resources(self.index.slots(task))
        for slot in self.index.slots(task):
            if slot.mask:
                held = 0
                for mask in self.index.holders.get(slot.node_id, {}).values():
                    held |= mask
                if slot.mask & ~held:
                    self.free.give((Slot(slot.node_id, slot.mask & ~held),))
            else:
                self.free.give((Slot(slot.node_id, 0),))
        self._available_soon.pop(task.group, None)
        self.charge(
            task, task.level, minus(held_need(task)), -self.index.pools[task.group].size(task)
        )

    def ledger_of(self, pool: Pool) -> PoolLedger:
        """The pool's ledger, with what this round spent."""
        return self.ledgers.get(pool.group, pool.ledger)

    def order_key_of(self, task: Task) -> OrderKey:
        """A task's order key, with what this round noted."""
        return self.order_keys.get(task.id, task.marks)

    def decide(self, decision: Decision) -> None:
        """Note a decision that moves a task; a run that is to leave counts as leaving from now."""
        self._decisions.append(decision)
        self.moved.add(decision.task_id)
        if isinstance(decision, Preempt | Kill):
            task = self.index.tasks[decision.task_id]
            if task.state not in LEAVING:
                if task.id in self.index.crossing(task.group):
                    self.crossing(self.index.pools[task.group]).soon -= 1
                self.releasing_ids.add(task.id)
                self.releasing.setdefault(task.group, []).append(task)
                if task.group in self._available_soon:
                    self._free(self._available_soon[task.group], task)
        elif isinstance(decision, Reject):
            self.served.add(decision.task_id)

    @property
    def decisions(self) -> list[Decision]:
        """What was decided, in order; of a task that was evaluated twice, the last decision."""
        return [each for each in self._decisions if each is not None]

    def _void(self, task_id: str) -> None:
        """Forget why a task waits."""
        place = self._holds.pop(task_id, None)
        if place is not None:
            self._decisions[place] = None

    def reorder(self, change: Reorder) -> None:
        """Note a run's new place in the order; the pool is unchanged until this is committed."""
        self._decisions.append(change)
        self.order_keys[change.task_id] = change.order_key
        self._reordered.add(change.task_id)
        if change.level is not Priority.UNSPECIFIED:
            run = self.index.tasks[change.task_id]
            self.levels[run.id] = change.level
            need = held_need(run)
            self.quota_usage.charge(run, run.level, minus(need))
            self.quota_usage.charge(run, change.level, need)

    def explain(
        self,
        task: Task,
        why: Reason,
        *,
        accepted: bool = True,
        promised: tuple[Slot, ...] | None = None,
        level: Priority | None = None,
    ) -> None:
        """Note why a queued task waits on; a decision of its own if something about it changed."""
        self._void(task.id)
        self.explanations[task.id] = why
        if promised:
            self.served.add(task.id)
        order_key = None if task.id in self._reordered else self.order_keys.get(task.id)
        released = task.id in self.withdrawn
        kept = () if released else None
        if promised is not None:
            kept = placements_of(promised, task.spec, self.index.nodes) if promised else ()
        news = (
            not same_reason(task.reason, why)
            or (accepted and not task.accepted)
            or order_key is not None
            # Nodes that are promised again are published even if they are the same: the victims of
            # this plan leave for a promise of this plan.
            or (kept is not None and (released or kept != task.promised))
        )
        if news:
            hold = Hold(task.id, why, accepted or task.accepted, order_key, kept, level)
            self._holds[task.id] = len(self._decisions)
            self._decisions.append(hold)

    def assign(self, task: Task, decision: Assign, size: float, *, counted: bool) -> None:
        """Note an assignment; ``counted`` if its nodes were promised to it before."""
        self._void(task.id)
        self._decisions.append(decision)
        self.explanations[task.id] = decision.reason
        self.moved.add(task.id)
        self.served.add(task.id)
        begun = replace(task, placements=decision.placements, promised=())
        self.started.setdefault(task.group, []).append(begun)
        if not counted:
            self.charge(task, decision.level, held_need(begun), size)

    def charge(self, task: Task, level: Priority, need: Need, size: float) -> None:
        """Count what a task gets or is promised."""
        self.quota_usage.charge(task, level, need)
        pool = self.index.pools[task.group]
        if pool.clusters:
            self.clusters(pool).charge(pool.clusters.of(task), size)

    def leaving(self) -> Iterator[Task]:
        """All runs that are leaving, in whatever pool; those of this round, too."""
        for group, pool in self.index.pools.items():
            yield from pool.leaving.values()
            yield from self.releasing.get(group, ())

    def promised_units(self, pool: Pool, weight: int) -> float:
        """Node equivalents that tasks of lower levels are promised."""
        if not pool.promised:
            return 0.0
        found = self._promised_units.get((pool.group, weight))
        if found is None:
            lower = [each for each in pool.promised.values() if WEIGHTS[each.level] < weight]
            found = self._promised_units[pool.group, weight] = sum(map(pool.size, lower))
        return found

    def take(self, slots: tuple[Slot, ...]) -> None:
        """Take free slots for a run that begins."""
        self.free.take(slots)
        for capacity in self._available_soon.values():
            capacity.take(slots)

    def keep(self, slots: tuple[Slot, ...]) -> None:
        """Promise slots, free or being released, to a task that waits for the rest of them."""
        for capacity in self._available_soon.values():
            capacity.take(slots)
        self.free.take_resources(slots)
        for slot in slots:
            if slot.mask:
                self.promised_bits[slot.node_id] = (
                    self.promised_bits.get(slot.node_id, 0) | slot.mask
                )
                free = slot.mask & self.free.free.get(slot.node_id, 0)
                if free:
                    self.free.take((Slot(slot.node_id, free),))
            else:
                # Places for CPU-only ranks are counted: one that is still held counts twice.
                self.free.take((Slot(slot.node_id, 0),))

    def _free(self, capacity: Capacity, task: Task) -> None:
        """Give what a run that is leaving will release and what is not promised."""
        # What others are promised of CPUs and memory was taken already.
        capacity.give_resources(self.index.slots(task))
        capacity.give(self._freed(task))

    def _freed(self, task: Task) -> Iterator[Slot]:
        """The units that a run will release and that are not promised."""
        keepers = self.index.keepers
        for slot in self.index.slots(task):
            if slot.mask:
                kept = self.promised_bits.get(slot.node_id, 0)
                there = keepers.get(slot.node_id)
                for owner, mask in there.items() if there else ():
                    kept |= 0 if owner in self.withdrawn else mask
                if slot.mask & ~kept:
                    yield Slot(slot.node_id, slot.mask & ~kept)
            else:
                yield Slot(slot.node_id, 0)

    def available_soon(self, pool: Pool) -> Capacity:
        """What is free or being released, and not promised; the caller must not change it."""
        found = self._available_soon.get(pool.group)
        if found is None:
            if not pool.leaving and pool.group not in self.releasing:
                return self.free
            found = self._available_soon[pool.group] = self.free.copy()
            leaving = (*pool.leaving.values(), *self.releasing.get(pool.group, ()))
            found.give([slot for task in leaving for slot in self._freed(task)])
            for task in leaving:
                found.give_resources(self.index.slots(task))
        return found

    def waits(self, code: ReasonCode, shape: Shape) -> Reason:
        """The reason for waiting with this size; made once per round and shape."""
        found = self._waits.get((code, shape))
        if found is None:
            names = {"group": shape.group}
            if code in TOO_SMALL:
                names |= self.totals.narrowed_by(shape, now=code is TOO_SMALL_NOW)
            found = reason(code, names=names, **shape.numbers)
            self._waits[code, shape] = found
        return found

    def wake_at(self, at: datetime | None) -> None:
        """Ask for another round at this time, if it is in the future."""
        if at is not None and at > self.now and (self.due_at is None or at < self.due_at):
            self.due_at = at

    def after(self, seconds: float) -> datetime:
        """The time so many seconds from now."""
        return self.now + timedelta(seconds=seconds)
