"""Which task may take nodes from which: the part of ``check`` about victims.

Works from the rows: levels, order keys and guarantees are compared here, not taken from ``decide``.
What all victims of a plan are compared with is counted once per plan, and only for the trees of
virtual clusters that a victim or its beneficiary belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cached_property

from libs.contracts.messages import Priority, ReasonCode
from services.scheduler.domain.check.conservation import applying, taken_back
from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.virtual_clusters import (
    UNCOVERED,
    CoverageRow,
    Depth,
    VirtualClusters,
    entitlement,
)
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Plan, Preempt, Reorder
from services.scheduler.domain.model.lifecycle import RUNNING
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS, OrderKey

# Reasons for which a run is preempted for another task.
TAKING = frozenset(
    {
        ReasonCode.PREEMPTED_BY,
        ReasonCode.RECLAIMED_BY,
        ReasonCode.TURN_OF,
        ReasonCode.MOVED_FOR,
    }
)


class Victims:
    """Compares one plan's victims with the tasks that they are preempted for."""

    def __init__(self, snapshot: Snapshot, plan: Plan, *, deep: bool) -> None:
        self._snapshot = snapshot
        self._plan = plan
        self._deep = deep
        self._clusters: dict[str, VirtualClusters] = {}
        self._rows: dict[tuple[str, str], list[CoverageRow]] = {}
        self._depths: dict[tuple[str, str], dict[str, Depth]] = {}
        self._claims: dict[tuple[str, Priority], Depth] = {}

    # Facts about the whole plan, collected once.

    @cached_property
    def _promised(self) -> set[str]:
        """Waiting tasks that the plan promises nodes."""
        return {e.task_id for e in self._plan.decisions if isinstance(e, Hold) and e.reserved}

    @cached_property
    def _noted(self) -> dict[str, OrderKey]:
        """The last order key that the plan notes, by task."""
        return {
            each.task_id: each.order_key
            for each in self._plan.decisions
            if isinstance(each, Hold | Reorder) and each.order_key is not None
        }

    @cached_property
    def _taken(self) -> dict[str, float]:
        """Node equivalents that the plan takes in slice rounds, by beneficiary.

        A run that was requested to leave earlier, and is killed at its deadline now, is no victim
        of a slice round: its reason differs.
        """
        found: dict[str, float] = defaultdict(float)
        for each in self._plan.decisions:
            task = self._snapshot.tasks.get(each.task_id)
            if task is None or not isinstance(each, Preempt | Kill):
                continue
            if each.reason.code is ReasonCode.TURN_OF:
                found[each.beneficiary] += self._snapshot.pools[task.group].size(task)
        return found

    @cached_property
    def _released(self) -> set[str]:
        return taken_back(self._plan)

    @cached_property
    def _place(self) -> dict[int, int]:
        """The place of each decision in the plan, by its identity."""
        return {id(each): place for place, each in enumerate(self._plan.decisions)}

    @cached_property
    def _finishes(self) -> dict[str, list[tuple[int, float]]]:
        """By owner: the ends of tags that the plan notes, with the place of the decision."""
        found: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, each in enumerate(self._plan.decisions):
            noted = each.order_key if isinstance(each, Assign | Hold | Reorder) else None
            task = self._snapshot.tasks.get(each.task_id)
            if noted is not None and task is not None:
                found[task.owner].append((place, noted.user_finish))
        return found

    def wrong(self, task: Task, decision: Preempt | Kill) -> Iterator[Violation]:
        """A victim needs a beneficiary that waits, is promised its nodes, and is more entitled."""
        better = self._snapshot.tasks.get(decision.beneficiary)
        if better is None or better.id not in self._promised:
            yield Violation(Fault.NO_BENEFICIARY, task.id, decision.beneficiary)
            return
        level = _level(self._snapshot, better, decision)
        code = decision.reason.code
        if code is ReasonCode.TURN_OF:
            yield from self._turn(task, decision, level)
        elif code is ReasonCode.MOVED_FOR:
            if not self._may_move(task, better, decision):
                detail = f"may not be moved for {better.id}"
                yield Violation(Fault.VICTIM_NOT_LOWER, task.id, detail)
        elif not self._may_take(task, better, level):
            yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"for {better.id}")
        pool = self._snapshot.pools[task.group]
        protected = timedelta(seconds=pool.protected_seconds)
        started = task.run_started_at if protected and task.state is RUNNING else None
        # Another clock tells the start: where nothing is protected, it may be still to come.
        if started is not None and started + protected > self._plan.decided_at:
            yield Violation(Fault.VICTIM_PROTECTED, task.id)

    def _may_take(self, task: Task, better: Task, level: Priority) -> bool:
        """True if the run has a lower level and is covered no better, or is another's and covered
        less; of another group, only if it is the owner's own and what it holds is in the way."""
        lower = WEIGHTS[task.level] < WEIGHTS[level]
        if task.group != better.group:
            return lower and self._share_limit(task, better, level)
        clusters = self._snapshot.pools[task.group].clusters
        if not clusters:
            return lower
        own, theirs = self._compared(task, better, level)
        of = clusters.of(better)
        return (lower and theirs >= own) or (theirs > own and (not of or clusters.of(task) != of))

    def _share_limit(self, task: Task, better: Task, level: Priority) -> bool:
        """True if both are of one owner, and one limit counts them though their groups differ.

        Nodes of one group are no use to a task of another, but what its owner holds may be.
        """
        return task.owner == better.owner and any(
            not limit.group
            and not limit.grant
            and limit in set(applying(self._snapshot, better, level))
            for limit in applying(self._snapshot, task, task.level)
        )

    def _may_move(self, task: Task, better: Task, decision: Preempt | Kill) -> bool:
        """True if a guarantee covers the waiting task, no better one the run, and that has a place.

        Whether that place is valid and free is checked with the promises.
        """
        pool = self._snapshot.pools[task.group]
        if not pool.clusters or better.group != task.group or not decision.moves_to:
            return False
        clusters = self._held(pool)
        depth = clusters.depth(clusters.of(better), pool.size(better))
        return depth < UNCOVERED and self._depth(pool, task) >= depth

    def _covered_better(self, task: Task, better: Task, level: Priority) -> bool:
        """True if a guarantee covers the run, and none so well the waiting task of another's."""
        own, theirs = self._compared(task, better, level)
        clusters = self._snapshot.pools[task.group].clusters
        return clusters.of(task) != clusters.of(better) and theirs < own

    def _compared(self, task: Task, better: Task, level: Priority) -> tuple[Depth, Depth]:
        """How the waiting task would be covered, and how the run is.

        Between two of one virtual cluster, the waiting task uses its guarantee before lower levels
        do.
        """
        pool = self._snapshot.pools[task.group]
        clusters = self._held(pool)
        name = clusters.of(better)
        if name and clusters.of(task) == name:
            depth = self._claim(pool, better, level)
        else:
            depth = clusters.depth(name, pool.size(better))
        return depth, self._depth(pool, task)

    def _claim(self, pool: Pool, better: Task, level: Priority) -> Depth:
        """How the waiting task would be covered if lower levels held nothing."""
        found = self._claims.get((better.id, level))
        if found is None:
            clusters, weight = pool.clusters, WEIGHTS[level]
            name = clusters.of(better)
            rows = self._tree(pool, clusters.root(name))
            first = [row for row in rows if -row[0] >= weight and row[2] != better.id]
            own = (-weight, 0.0, "", pool.size(better), name)
            found = clusters.counted([*first, own])[own[2]]
            self._claims[better.id, level] = found
        return found

    def _depth(self, pool: Pool, task: Task) -> Depth:
        """How a run is covered; only its tree of virtual clusters decides about that."""
        root = pool.clusters.root(pool.clusters.of(task))
        if not root:
            return UNCOVERED
        found = self._depths.get((pool.group, root))
        if found is None:
            found = pool.clusters.counted(self._tree(pool, root))
            self._depths[pool.group, root] = found
        return found[task.id]

    def _tree(self, pool: Pool, root: str) -> Iterable[CoverageRow]:
        """The runs and promises of a tree of virtual clusters, the most entitled first."""
        if not self._deep:
            return pool.coverage.rows(root)
        found = self._rows.get((pool.group, root))
        if found is None:
            clusters = pool.clusters
            found = [
                (*entitlement(each), pool.sizes[each.id], clusters.of(each))
                for each in sorted(self._all(pool), key=entitlement)
                if clusters.root(clusters.of(each)) == root
            ]
            self._rows[pool.group, root] = found
        return found

    def _all(self, pool: Pool) -> list[Task]:
        runs = [each for each in self._snapshot.held.values() if each.group == pool.group]
        return [*runs, *pool.promised.values()]

    def _held(self, pool: Pool) -> VirtualClusters:
        """What the virtual clusters hold but for promises that the plan takes back."""
        found = self._clusters.get(pool.group)
        if found is None:
            if self._deep:
                found = VirtualClusters(pool.policy)
                for each in self._all(pool):
                    found.charge(found.of(each), pool.size(each))
            else:
                found = pool.clusters.fork()
            for task_id in self._released & pool.promised.keys():
                task = pool.promised[task_id]
                found.charge(found.of(task), -pool.size(task))
            self._clusters[pool.group] = found
        return found

    def _turn(self, task: Task, decision: Preempt | Kill, level: Priority) -> Iterator[Violation]:
        snapshot, plan = self._snapshot, self._plan
        pool, better = snapshot.pools[task.group], snapshot.tasks[decision.beneficiary]
        # In the order of the plan: what owners get after this decision is for the next to count.
        place = self._place[id(decision)]
        if not pool.discipline.preempts:
            yield Violation(Fault.NO_SLICES, task.id, pool.discipline.name)
        if pool.clusters and self._covered_better(task, better, level):
            yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"covered better than {better.id}")
        if task.level is not level:
            yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"{task.level} is not {level}")
        order_key = self._noted.get(task.id, task.marks)
        ahead = self._noted.get(better.id, better.marks)
        reach = self._key(better, ahead, place)
        if not ahead.granted:
            ratio = self._taken[better.id] / pool.size(better)
            reach = pool.discipline.reach(pool, better, ahead, reach, ratio)
        if self._key(task, order_key, place) < reach + pool.discipline.lead(plan.decided_at):
            yield Violation(Fault.VICTIM_NOT_LATER, task.id, f"before {better.id}")
        if order_key.held_until is not None and order_key.held_until > plan.decided_at:
            yield Violation(Fault.VICTIM_PROTECTED, task.id, "held")

    def _key(self, task: Task, order_key: OrderKey, before: int) -> float:
        """A task's place in the order of the plan's moment, after the decisions before a place."""
        pool = self._snapshot.pools[task.group]
        if not pool.discipline.by_user:
            return pool.key(order_key)
        finish = pool.finishes.get(task.owner, 0.0)
        for place, noted in self._finishes.get(task.owner, ()):
            if place >= before:
                break
            finish = max(finish, noted)
        return pool.discipline.order(pool, pool.key(order_key), finish, self._plan.decided_at)


def _level(snapshot: Snapshot, better: Task, decision: Preempt | Kill) -> Priority:
    """The level the waiting task counts at; what AUTO came to is written in the reason."""
    named = decision.reason.names.get("priority", "")
    if better.is_auto and named:
        return Priority(named)
    return snapshot.pools[better.group].level(better)
