"""How guarantees cover the runs of a pool, and which runs could be victims, kept up to date.

``pool.py`` reports every run and promise that begins or ends. What changed is counted again
(``coverage_tree.py``) when ``round.py`` reads the depths. Runs are kept by depth and weight,
cheapest first, so that ``victims.py`` finds victims without a scan of all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple, TypeAlias

from services.scheduler.domain.limits.coverage_tree import Tree
from services.scheduler.domain.limits.virtual_clusters import (
    UNCOVERED,
    CoverageRow,
    Depth,
    VirtualClusters,
    entitlement,
)
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS

# What losing a run of one size costs, smaller = cheaper at every moment alike; and the run's id.
Cost: TypeAlias = tuple[float, str]
BySize: TypeAlias = dict[float, list[Cost]]


class _Open(NamedTuple):
    """A run or promise that could be taken."""

    weight: int
    size: float
    cost: Cost
    cluster: str


class Coverage:
    """The runs and promises of one pool by how they are covered."""

    def __init__(self, clusters: VirtualClusters) -> None:
        self._clusters = clusters
        # By the root of their tree.
        self._trees: dict[str, Tree] = {}
        self._stale: set[str] = set()
        self._depths: dict[str, Depth] = {}
        self._open: dict[str, _Open] = {}
        self._groups: dict[tuple[Depth, int], BySize] = {}
        # Their node equivalents, in all and by virtual cluster.
        self._units: dict[tuple[Depth, int], float] = {}
        self._own: dict[str, dict[tuple[Depth, int], float]] = {}
        # Results of ``takeable`` since the last change.
        self._answers: dict[tuple[str, Depth, int], float] = {}

    def enter(self, task: Task, size: float, cost: Cost | None) -> None:
        """Add a run or promise; ``cost``: None if it cannot be taken."""
        name = self._clusters.of(task)
        if cost is not None:
            self._open[task.id] = _Open(WEIGHTS[task.level], size, cost, name)
        root = self._clusters.root(name)
        if root:
            tree = self._trees.get(root)
            if tree is None:
                tree = self._trees[root] = Tree(self._clusters)
            tree.enter((*entitlement(task), size, name))
            self._stale.add(root)
        else:
            self._place(task.id, UNCOVERED)

    def leave(self, task: Task) -> None:
        """Remove a run or promise, given as it was added."""
        root = self._clusters.root(self._clusters.of(task))
        if root:
            self._trees[root].leave(entitlement(task))
            self._stale.add(root)
        self._displace(task.id)
        self._open.pop(task.id, None)

    def rows(self, root: str) -> Iterable[CoverageRow]:
        """The runs and promises of a tree, the most entitled first."""
        return self._trees.get(root, ())

    def depths(self) -> Mapping[str, Depth]:
        """The depth of each run and promise; a view, valid until the next change."""
        for root in self._stale:
            for task_id, depth in self._trees[root].changed():
                if self._depths.get(task_id) != depth:
                    self._displace(task_id)
                    self._place(task_id, depth)
        self._stale.clear()
        return self._depths

    def _place(self, task_id: str, depth: Depth) -> None:
        self._depths[task_id] = depth
        run = self._open.get(task_id)
        if run is None:
            return
        self._answers.clear()
        group = depth, run.weight
        insort(self._groups.setdefault(group, {}).setdefault(run.size, []), run.cost)
        self._units[group] = self._units.get(group, 0.0) + run.size
        own = self._own.setdefault(run.cluster, {})
        own[group] = own.get(group, 0.0) + run.size

    def _displace(self, task_id: str) -> None:
        depth = self._depths.pop(task_id, None)
        run = self._open.get(task_id)
        if depth is None or run is None:
            return
        self._answers.clear()
        group = depth, run.weight
        by_size = self._groups[group]
        costs = by_size[run.size]
        del costs[bisect_left(costs, run.cost)]
        self._units[group] -= run.size
        self._own[run.cluster][group] -= run.size
        if not costs:
            del by_size[run.size]
        if not by_size:
            del self._groups[group], self._units[group]

    def takeable(self, cluster: str, depth: Depth, weight: int) -> float:
        """About how many node equivalents a task of this depth and weight may take."""
        self.depths()
        found = self._answers.get((cluster, depth, weight))
        if found is None:
            found = _outranked(self._units, depth, weight)
            own = self._own.get(cluster) if cluster else None
            if own:
                found -= _outranked(own, depth, weight)
                found += sum(size for (_, lower), size in own.items() if lower < weight)
            self._answers[cluster, depth, weight] = found
        return found

    def claim(self, cluster: str, size: float, weight: int) -> Depth:
        """The depth of a waiting task if lower levels held nothing."""
        self.depths()
        tree = self._trees.get(self._clusters.root(cluster)) or Tree(self._clusters)
        return tree.claim(weight, size, cluster)

    def candidates(
        self, cluster: str, depth: Depth, claim: Depth, weight: int, now: float
    ) -> Iterator[str]:
        """The runs that a task may take: least covered first, then by level, then by cost.

        Inside a virtual cluster levels decide about its guarantee, so there ``claim`` counts. A run
        that the guarantee covers is safe from borrowing runs of its own virtual cluster: else a
        lower covered run, a higher uncovered one and a borrower in between would alternate for
        ever.
        """
        self.depths()
        for group in sorted(self._groups, key=_least_covered):
            covered, level = group
            lower = level < weight
            others = covered > depth or (covered == depth and lower)
            siblings = bool(cluster) and lower and covered >= claim
            if not others and not siblings:
                continue
            for _, task_id in cheapest(self._groups[group], now):
                own = cluster and self._open[task_id].cluster == cluster
                if siblings if own else others:
                    yield task_id


def cheapest(by_size: BySize, now: float) -> Iterator[Cost]:
    """Runs with what losing them costs at a moment (node-seconds), cheapest first."""
    heap: list[tuple[float, str, float, int]] = []
    for size, costs in by_size.items():
        base, task_id = costs[0]
        heap.append((size * (base + now), task_id, size, 0))
    heapify(heap)
    while heap:
        cost, task_id, size, place = heap[0]
        yield max(0.0, cost), task_id
        costs = by_size[size]
        if place + 1 < len(costs):
            base, next_id = costs[place + 1]
            heapreplace(heap, (size * (base + now), next_id, size, place + 1))
        else:
            heappop(heap)


def _least_covered(group: tuple[Depth, int]) -> tuple[Depth, int]:
    return -group[0], group[1]


def _outranked(units: Mapping[tuple[Depth, int], float], depth: Depth, weight: int) -> float:
    return sum(
        size
        for (covered, lower), size in units.items()
        if covered > depth or (covered == depth and lower < weight)
    )
