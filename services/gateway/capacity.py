"""A summary of free capacity and queue lengths, for dry runs.

One summary serves all dry runs for a while, so that a request
costs the number of different nodes of its group, and not the number of nodes, runs and waiting
tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from libs.contracts.messages import TaskSpec
from libs.contracts.rank_sizes import effective, sizes_differ
from libs.service.clock import Clock
from libs.store.port import Op, Store, Where
from services.gateway.rows import NodeRow, RunRow, TaskRow
from services.gateway.store import After, Sort, keyset

R = TypeVar("R", NodeRow, RunRow, TaskRow)
# Rows that are decoded before control returns to other requests.
PAGE_ROWS = 100
# Of more nodes, live runs or waiting tasks nothing is counted.
ROWS_MAX = 20_000
# A summary serves for so long, and for so many times as long as it took to compute.
KEEP_SECONDS = 2.0
KEEP_TIMES = 20


@dataclass(frozen=True, slots=True)
class NodeClass:
    """The facts about a node that decide whether a task fits on it now."""

    gpus: int
    free_gpus: int
    # No task holds anything of it.
    is_empty: bool
    labels: frozenset[tuple[str, str]]
    taints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The cluster at one time. None: there is too much to count."""

    # How many nodes of each class new runs may be placed on, by group and whether the class
    # includes labels: each node may have labels of its own, and most tasks select none.
    nodes: Mapping[tuple[str, bool], Counter[NodeClass]] | None
    # How many tasks wait, by group and order of priority.
    waiting: Counter[tuple[str, int]] | None

    def free_nodes(self, spec: TaskSpec) -> int | None:
        """Count the nodes of the task's group that have enough free for it; for whole nodes, of the
        most frequent kind. CPUs and memory that others hold are not counted.

        None for ranks of different sizes, too: they may share nodes.
        """
        if self.nodes is None or sizes_differ(spec):
            return None
        spec = effective(spec)
        kinds: Counter[int] = Counter()
        tolerated = set(spec.tolerations)
        whole = spec.gpus_per_node is None
        classes = self.nodes.get((spec.group, bool(spec.node_selector)), Counter[NodeClass]())
        for each, count in classes.items():
            if (
                spec.node_selector.items() <= each.labels
                and all({taint, taint.partition("=")[0]} & tolerated for taint in each.taints)
                and (not whole or (each.is_empty and each.free_gpus == each.gpus))
                and each.free_gpus >= (spec.gpus_per_node or 0)
            ):
                kinds[each.gpus if whole else 0] += count
        return max(kinds.values(), default=0)

    def waiting_in(self, group: str) -> int | None:
        """How many tasks of the group wait; None if there are too many to count."""
        if self.waiting is None:
            return None
        return sum(count for (each, _), count in self.waiting.items() if each == group)

    def ahead(self, group: str, priority_order: int) -> int | None:
        """How many tasks of the group wait at this level or above."""
        if self.waiting is None:
            return None
        return sum(
            count
            for (each, order), count in self.waiting.items()
            if each == group and order >= priority_order
        )


class Capacity:
    """The shared summary. The first caller after it has expired computes it for all."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._computed_at: datetime | None = None
        self._keep = timedelta(0)
        self._summary = Summary(None, None)

    async def now(self) -> Summary:
        """The cluster as it was a few seconds ago at most, if that can be afforded."""
        async with self._lock:
            began = self._clock.now()
            if self._computed_at is None or not (
                timedelta(0) <= began - self._computed_at < self._keep
            ):
                self._summary = Summary(await self._nodes(), await self._waiting())
                self._computed_at = self._clock.now()
                took = self._computed_at - began
                self._keep = max(timedelta(seconds=KEEP_SECONDS), KEEP_TIMES * took)
            return self._summary

    async def _nodes(self) -> Mapping[tuple[str, bool], Counter[NodeClass]] | None:
        held: dict[str, set[int]] = {}
        by_attempt = Sort("task_id", False, "attempt", False)
        rows_read = 0
        async for runs in self._pages(RunRow, by_attempt, Where("live", Op.EQ, True)):
            rows_read += len(runs)
            if rows_read > ROWS_MAX:
                return None
            for run in runs:
                for placed in run.placements:
                    held.setdefault(placed.node_id, set()).update(placed.gpus)
        found: dict[tuple[str, bool], Counter[NodeClass]] = {}
        rows_read = 0
        by_id = Sort("node_id", False, "node_id", False)
        async for rows in self._pages(NodeRow, by_id, Where("removed", Op.EQ, False)):
            rows_read += len(rows)
            if rows_read > ROWS_MAX:
                return None
            for row in rows:
                node = row.node
                if node.ready and node.schedulable:
                    taken = held.get(node.id, set())
                    plain = NodeClass(
                        node.gpus,
                        node.gpus - len(taken.union(node.unusable_gpus)),
                        node.id not in held,
                        frozenset(),
                        tuple(sorted(node.taints)),
                    )
                    labelled = replace(plain, labels=frozenset(node.labels.items()))
                    found.setdefault((node.group, False), Counter())[plain] += 1
                    found.setdefault((node.group, True), Counter())[labelled] += 1
        return found

    async def _waiting(self) -> Counter[tuple[str, int]] | None:
        found: Counter[tuple[str, int]] = Counter()
        by_id = Sort("task_id", False, "task_id", False)
        queued = Where("state", Op.EQ, "queued"), Where("submitted_at", Op.NOT_NULL)
        async for rows in self._pages(TaskRow, by_id, *queued):
            found.update((row.group, row.priority_order) for row in rows)
            if found.total() > ROWS_MAX:
                return None
        return found

    async def _pages(self, kind: type[R], sort: Sort, *where: Where) -> AsyncIterator[Sequence[R]]:
        """Rows by their keys, one page in each transaction; other requests run in between."""
        after: After | None = None
        while True:
            async with self._store.transaction() as tx:
                rows = await keyset(tx, kind, where, sort, after=after, limit=PAGE_ROWS)
            yield rows
            if len(rows) < PAGE_ROWS:
                return
            last = rows[-1]
            after = After(getattr(last, sort.column), getattr(last, sort.key))
