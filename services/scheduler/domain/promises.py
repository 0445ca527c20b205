"""Promises in one round: those that are void are taken back, those that are ripe come up in order.

``share.py`` walks along them with the waiting tasks, each before all others of its rank: a higher
level that comes at the very moment at which a promise is ripe takes it, instead of the run that
would begin by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

from services.scheduler.domain.clusters import ALMOST, UNCOVERED, Depth
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import NO_RESOURCES, WEIGHTS, NodeResources
from services.scheduler.domain.order import Entry, rank_of
from services.scheduler.domain.placement.capacity import Slot
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round
from services.scheduler.domain.waits import retry_later


class Promises:
    """The promises of one pool that are to be redeemed in this round."""

    def __init__(self, round_: Round, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        # By an id of their own: the task may come up by itself, once its promise is taken.
        self._ripe: dict[str, Entry] = {}
        # CPU-only ranks by node that were redeemed already; they share what is promised.
        self._begun: Counter[str] = Counter()
        # CPUs and memory by node that were redeemed.
        self._given: dict[str, NodeResources] = {}

    def sort_out(self) -> None:
        """Take back what can no longer be had, and find what is free by now."""
        round_, pool = self._round, self._pool
        depths: Mapping[str, Depth] = round_.coverage(pool) if pool.clusters else {}
        for task_id, task in sorted(pool.promised.items()):
            if task_id in round_.moved or task_id in round_.released:
                continue
            passed = self._passed(task)
            if round_.index.broken(task, round_.released) or (
                # What leaving runs still hold of a quota may be what the task waits for.
                passed and self._passed(task, round_.leaving())
            ):
                round_.release(task)
            elif not passed and self._is_ripe(task) and not retry_later(task, round_.now):
                depth = depths.get(task_id, UNCOVERED)
                rank, own = rank_of(WEIGHTS[task.level], depth), f"{task_id}/promised"
                cluster = pool.clusters.of(task) if pool.clusters else ""
                self._ripe[own] = Entry(
                    rank, -inf, own, task, task.shape, task.level, cluster, depth
                )

    def _passed(self, task: Task, leaving: Iterable[Task] = ()) -> bool:
        """True if a limit, or the most that its virtual cluster may hold, is passed.

        Even once the runs in ``leaving`` have gone; the promise itself is counted.
        """
        round_, pool = self._round, self._pool
        runs = list(leaving)
        if round_.ledger.passed(task, task.level, runs):
            return True
        if not pool.clusters.bounded:
            return False
        over = round_.clusters(pool).lacking(pool.clusters.of(task), 0.0)
        if over:
            for run in runs:
                if run.group == pool.group:
                    for name in pool.clusters.above(pool.clusters.of(run)):
                        if name in over:
                            over[name] -= pool.size(run)
        return any(each > ALMOST for each in over.values())

    def _is_ripe(self, task: Task) -> bool:
        """True if it may begin on what it is promised now."""
        round_, pool = self._round, self._pool
        if task.id in round_.index.crossing(pool.group):
            # Gangs that cross and are on their way out leave first, on whatever nodes. A limit
            # that was lowered meanwhile is no reason: the promise was counted under the old one.
            crossing = round_.crossing(pool)
            full = crossing.running >= pool.policy.cross_zone_gangs_max
            if full and crossing.now > crossing.soon:
                return False
        return round_.index.ripe(task, self._begun, self._given)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._ripe

    def __getitem__(self, entry_id: str) -> Entry:
        return self._ripe[entry_id]

    def entries(self) -> list[Entry]:
        """Those that were not redeemed yet."""
        return [entry for entry in self._ripe.values() if entry.task.id not in self._round.served]

    def take(self, entry: Entry) -> tuple[Slot, ...] | None:
        """What was promised, to begin with; None if another took it meanwhile."""
        round_, task = self._round, entry.task
        if task.id in round_.released or not self._is_ripe(task):
            return None
        slots, resources = round_.index.slots(task), task.shape.resources
        self._begun.update(slot.node_id for slot in slots if not slot.mask)
        if resources != NO_RESOURCES:
            for node_id, _ in slots:
                before = self._given.get(node_id, NO_RESOURCES)
                self._given[node_id] = NodeResources(
                    before.cpus + resources.cpus, before.memory_bytes + resources.memory_bytes
                )
        return slots
