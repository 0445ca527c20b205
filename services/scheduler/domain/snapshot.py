"""What ``decide`` looks at: the rows of one moment, with indexes over them.

``Index`` keeps the indexes up to date row by row (the loop feeds it each committed change), so a
round costs what there is to decide. ``Snapshot.of`` builds the same from the bare rows: that is
the slow, obviously right way, used by tests and by ``replay.py``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.scheduler.domain.lifecycle import GOALS, QUEUED, TERMINAL
from services.scheduler.domain.model import (
    Inventory,
    Limit,
    LimitKey,
    Node,
    PolicySettings,
    Shape,
    Task,
)
from services.scheduler.domain.order import Waiting, is_auto, waiting
from services.scheduler.domain.place import Capacity, slots_of
from services.scheduler.domain.quota import Need


class Totals:
    """What the nodes could hold if they were empty; each question is answered once per shape."""

    def __init__(self, nodes: Iterable[Node], settings: PolicySettings) -> None:
        standing = [node for node in nodes if not node.removed]
        # Lost and cordoned nodes and sick GPUs may come back, so they count as known.
        self.known = Capacity((replace(node, unusable_gpus=()) for node in standing), settings)
        self.offered = Capacity((node for node in standing if node.offered), settings)
        # Nodes whose runs are asked to leave.
        self.draining = frozenset(str(node.id) for node in standing if node.draining)
        self._fits_known: dict[Shape, bool] = {}
        self._fits_now: dict[Shape, bool] = {}
        self._needs: dict[Shape, Need] = {}
        self._eligible: dict[Shape, frozenset[str]] = {}

    def fits_known(self, shape: Shape) -> bool:
        """True if the whole known inventory, empty, could hold the gang."""
        if shape not in self._fits_known:
            self._fits_known[shape] = self.known.pick(shape) is not None
        return self._fits_known[shape]

    def fits_now(self, shape: Shape) -> bool:
        """True if the nodes that are ready and not cordoned, empty, could hold the gang."""
        if shape not in self._fits_now:
            self._fits_now[shape] = self.offered.pick(shape) is not None
        return self._fits_now[shape]

    def need(self, shape: Shape) -> Need:
        """What the gang takes of a limit; whole nodes count as the largest kind that it fits."""
        if shape not in self._needs:
            gpus = shape.gpus
            if gpus is None:
                slots = self.offered.pick(shape) or self.known.pick(shape) or ()
                sizes = [self.known.nodes[slot.node_id].gpus for slot in slots]
                gpus = max(sizes, default=0)
            self._needs[shape] = Need(gpus * shape.nodes, shape.nodes)
        return self._needs[shape]

    def eligible(self, shape: Shape) -> frozenset[str]:
        """What the shape competes for among the offered nodes."""
        # However many nodes it wants, the nodes are the same.
        one = shape._replace(nodes=1)
        if one not in self._eligible:
            self._eligible[one] = self.offered.eligible(one)
        return self._eligible[one]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. Made by an ``Index`` it is a view, valid until the index changes."""

    version: int
    # Every task that has not ended, every node (removed ones too), every limit, by key.
    tasks: Mapping[str, Task]
    nodes: Mapping[str, Node]
    limits: Mapping[LimitKey, Limit]
    # True once every runtime's full list of nodes was received and all of them are known.
    inventory_listed: bool
    settings: PolicySettings
    # Indexes: queued tasks in order (AUTO ones apart), those with a live run, those whose goal
    # asks for something, what is free, what could be.
    queue: tuple[Waiting, ...] | list[Waiting] = field(repr=False)
    auto: Mapping[str, Task] = field(repr=False)
    held: Mapping[str, Task] = field(repr=False)
    unsettled: frozenset[str] | set[str] = field(repr=False)
    capacity: Capacity = field(repr=False)
    totals: Totals = field(repr=False)

    @staticmethod
    def of(
        *,
        version: int = 0,
        tasks: Iterable[Task] = (),
        nodes: Iterable[Node] = (),
        limits: Iterable[Limit] = (),
        inventories: Iterable[Inventory] = (),
        settings: PolicySettings | None = None,
    ) -> Snapshot:
        """Build everything from the bare rows."""
        index = Index(settings or PolicySettings())
        index.apply(put=[*nodes, *limits, *inventories, *tasks])
        return index.snapshot(version)


class Index:
    """The rows and the indexes over them, kept up to date change by change."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings
        self.tasks: dict[str, Task] = {}
        self.nodes: dict[str, Node] = {}
        self.limits: dict[LimitKey, Limit] = {}
        self.inventories: dict[str, Inventory] = {}
        self._queue: list[Waiting] = []
        self._auto: dict[str, Task] = {}
        self._held: dict[str, Task] = {}
        self._unsettled: set[str] = set()
        self._capacity = Capacity((), settings)
        self._totals = Totals((), settings)
        self._nodes_stale = False

    def apply(
        self,
        put: Iterable[object] = (),
        deleted: Iterable[tuple[type[object], tuple[object, ...]]] = (),
    ) -> bool:
        """Take over committed rows; returns True if any of them concerns scheduling."""
        rows = list(put)
        gone = [str(key[0]) for kind, key in deleted if kind is Task]
        # All that leaves, leaves first: what one run gave back, another may have taken.
        for task_id in (*gone, *(row.id for row in rows if isinstance(row, Task))):
            old = self.tasks.pop(task_id, None)
            if old is not None:
                self._leave(old)
        concerned = bool(gone)
        for row in rows:
            concerned = self._put(row) or concerned
        return concerned

    def _put(self, row: object) -> bool:
        if isinstance(row, Task):
            if row.state not in TERMINAL:
                self.tasks[row.id] = row
                self._enter(row)
        elif isinstance(row, Node):
            self.nodes[row.id] = row
            self._nodes_stale = True
        elif isinstance(row, Limit):
            self.limits[row.key] = row
        elif isinstance(row, Inventory):
            self.inventories[row.runtime] = row
        else:
            return False
        return True

    def _leave(self, old: Task) -> None:
        if old.state is QUEUED and not is_auto(old):
            # Three fields are enough to find it: ids are unique.
            place = bisect_left(self._queue, waiting(old)[:3], key=_sort_key)
            assert self._queue[place].id == old.id, "the queue is sorted by unique keys"
            del self._queue[place]
        self._auto.pop(old.id, None)
        self._unsettled.discard(old.id)
        if self._held.pop(old.id, None) is not None and not self._nodes_stale:
            self._capacity.give(slots_of(old))

    def _enter(self, task: Task) -> None:
        if task.state is QUEUED:
            if is_auto(task):
                self._auto[task.id] = task
            else:
                insort(self._queue, waiting(task), key=_sort_key)
        if GOALS[task.goal, task.state] is not None:
            self._unsettled.add(task.id)
        if task.holds:
            self._held[task.id] = task
            if not self._nodes_stale:
                self._capacity.take(slots_of(task))

    def _refresh(self) -> None:
        """Nodes change rarely: what depends on them is built anew."""
        if self._nodes_stale:
            self._totals = Totals(self.nodes.values(), self.settings)
            self._capacity = self._totals.offered.copy()
            for task in self._held.values():
                self._capacity.take(slots_of(task))
            self._nodes_stale = False

    def _listed(self) -> bool:
        return bool(self.inventories) and all(
            node_id in self.nodes
            for inventory in self.inventories.values()
            for node_id in inventory.node_ids
        )

    def snapshot(self, version: int) -> Snapshot:
        """The present moment as ``decide`` wants it; O(1) but after a change of nodes."""
        self._refresh()
        return Snapshot(
            version=version,
            tasks=self.tasks,
            nodes=self.nodes,
            limits=self.limits,
            inventory_listed=self._listed(),
            settings=self.settings,
            queue=self._queue,
            auto=self._auto,
            held=self._held,
            unsettled=self._unsettled,
            capacity=self._capacity,
            totals=self._totals,
        )


def _sort_key(entry: Waiting) -> tuple[object, ...]:
    return entry[:3]
