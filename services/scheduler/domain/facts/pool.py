"""One pool (node group): its waiting tasks, its runs, and what its discipline keeps count of.

``index.py`` feeds it the changes of rows; ``decide`` reads it. Everything in it can be rebuilt from
the rows, which a new leader does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import cast

from libs.contracts.messages import Priority
from services.scheduler.domain.disciplines import DISCIPLINES
from services.scheduler.domain.disciplines.interface import Filling
from services.scheduler.domain.disciplines.timeshare.discipline import features_of
from services.scheduler.domain.disciplines.timeshare.history import History
from services.scheduler.domain.disciplines.timeshare.rule import RULE
from services.scheduler.domain.disciplines.timeshare.tempo import Tempo, tempo_of, unit_of
from services.scheduler.domain.limits.coverage import Cost, Coverage, cheapest
from services.scheduler.domain.limits.virtual_clusters import VirtualClusters
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.lifecycle import LEAVING, PAUSED, QUEUED
from services.scheduler.domain.model.rows import EndedTask, PoolLedger, Task
from services.scheduler.domain.model.values import WEIGHTS, Key, OrderKey, Shape
from services.scheduler.domain.queue.queues import AUTO, NO_SCOPE, LimitScope, QueueName, Queues
from services.scheduler.domain.queue.unserved import Unserved
from services.scheduler.domain.queue.waiting_order import WaitingOrder


def units_of(shape: Shape, width: int) -> float:
    """The node equivalents of a gang, on nodes with ``width`` GPUs (1: nodes without)."""
    if shape.parts:
        # Auxiliary ranks ride along.
        return sum(units_of(part.shape, width) for part in shape.parts if not part.auxiliary)
    if shape.gpus is None:
        return float(shape.nodes)
    return shape.nodes * max(shape.gpus, SLIVER) / max(1, width)


# CPU-only ranks count as this part of a GPU, so that no task is of no size.
SLIVER = 0.0625


# Users' cells that are saved: about a megabyte.
LEARNED_CELLS_MAX = 2_000
# Owners without live tasks whose use is remembered.
OWNERS_KEPT_MAX = 10_000


def saved_until(task: Task) -> float:
    """The time up to which a run's work is saved; later work would be lost with the run."""
    began = task.run_started_at or task.assigned_at or task.submitted_at
    if task.checkpoint is not None and task.checkpoint.attempt == task.attempt:
        began = max(began, task.checkpoint.saved_at)
    return began.timestamp()


def waiting_since(task: Task) -> Key:
    """The order in which waiting tasks go without service, the longest first."""
    return (task.unserved_since or task.submitted_at).timestamp(), task.id


class Pool:
    """The mutable index over one group's rows."""

    def __init__(
        self, group: str, policy: GroupPolicy, settings: PolicySettings, *, width: int = 1
    ) -> None:
        self.group = group
        self.policy = policy
        self.settings = settings
        self.discipline = DISCIPLINES[policy.policy]
        # GPUs of the largest node, and node equivalents that are offered.
        self.width = max(1, width)
        self.units = 0.0
        # The smallest node with GPUs as a part of the largest.
        self.least_node_share = 1.0
        self.ledger = PoolLedger(group)
        self.clusters = VirtualClusters(policy)
        self.coverage = Coverage(self.clusters)
        self.limited = False
        self.history = History()
        self.saved_ends = 0
        # The pace, and what it was computed from.
        self._tempo = Tempo(RULE, policy.timeshare)
        self._paced: tuple[float, int] | None = None
        self.queues = Queues()
        # The tasks of the queues as they are listed.
        self._waiting_order = WaitingOrder(
            by_user=self.discipline.by_user, clusters=bool(self.clusters)
        )
        # Queued tasks without a valid order key; those that are promised nodes; leaving runs.
        self.unkeyed: dict[str, Task] = {}
        self.promised: dict[str, Task] = {}
        self.leaving: dict[str, Task] = {}
        # Runs that could be preempted, by weight: by key; by size and cost; and their sizes' sum.
        self.running: dict[int, list[Key]] = {}
        self.costs: dict[int, dict[float, list[Cost]]] = {}
        self.held_units: dict[int, float] = {}
        self.sizes: dict[str, float] = {}
        # The same runs by owner.
        self.runs_of: dict[str, dict[str, Task]] = {}
        # Runs that are held: not preempted by equals for a while.
        self.held_until: set[str] = set()
        # Runs whose level no round has compared with their priority yet; and those that a quota
        # keeps from the level that they should count at.
        self.relevel: set[str] = set()
        self.level_blocked: set[str] = set()
        # Runs whose order key is another discipline's.
        self.foreign: dict[str, Task] = {}
        # Tasks that wait or run (paused ones request nothing): Σ size, Σ size x the time since
        # which they age; by owner: their number, size, what they hold, and the end of their tags.
        self.live_units = 0.0
        self.live_since_sum = 0.0
        self.owners: dict[str, int] = {}
        self.owner_units: dict[str, float] = {}
        self.owner_held: dict[str, float] = {}
        self.finishes: dict[str, float] = {}
        # All tasks that have not ended, paused ones too, by owner.
        self.unended: dict[str, int] = {}
        # Waiting tasks, the longest without service first.
        self.unserved = Unserved()
        # What the next round has to evaluate, and when time alone requires one.
        self.arrived: dict[str, Task] = {}
        self.full_scan = True
        self.nodes_changed = True
        self.due_at: datetime | None = None
        self.slice_round_at: datetime | None = None

    @property
    def guarded(self) -> bool:
        """True if an owner's flood yields while others wait."""
        return self.discipline.pays and self.policy.timeshare.flood_guard

    @property
    def holds_back(self) -> bool:
        """True if a task that waits for nodes may keep later ones from starting."""
        return self.discipline.by_user or self.discipline.filling is not Filling.GREEDY

    @property
    def tempo(self) -> Tempo:
        """The rule's numbers and the group's, as fast as the work of this pool is."""
        seen = self.history.mean_seconds, self.history.ends
        if self._paced != seen:
            self._paced = seen
            self._tempo = tempo_of(RULE, self.policy.timeshare, unit_of(*seen))
        return self._tempo

    @property
    def protected_seconds(self) -> float:
        """How long a run is not preempted at all."""
        own = self.policy.protected_seconds
        return self.settings.protected_seconds if own is None else own

    def size(self, task: Task) -> float:
        """Node equivalents of a task."""
        found = self.sizes.get(task.id)
        return units_of(task.shape, self.width) if found is None else found

    def key(self, order_key: OrderKey) -> float:
        """The order key at the present scale."""
        return order_key.key + self.ledger.scale * order_key.scaled

    def limit_scope(self, task: Task) -> LimitScope:
        """The owner, team and virtual cluster whose limits count for a task."""
        cluster = self.clusters.of(task) if self.clusters else ""
        if self.limited or self.discipline.by_user or self.guarded:
            return cluster, task.owner, task.team if self.limited else ""
        return (cluster, "", "") if cluster else NO_SCOPE

    def level(self, task: Task) -> Priority:
        """The level a task that waits counts at: its own, or what it sank to by running."""
        return self.policy.demoted(task.priority, task.run_seconds)

    def attained(self, task: Task, now: datetime) -> float:
        """Seconds a task has run in all."""
        running = 0.0
        if task.run_started_at is not None:
            running = max(0.0, (now - task.run_started_at).total_seconds())
        return task.run_seconds + running

    def name(self, task: Task) -> QueueName:
        """The queue a waiting task belongs to."""
        weight = AUTO if task.is_auto else WEIGHTS[self.level(task)]
        return QueueName(weight, task.shape, self.limit_scope(task))

    @property
    def waiting_order(self) -> WaitingOrder:
        """The tasks of the queues as they are listed."""
        self._waiting_order.refresh(self.queues)
        return self._waiting_order

    def has_order_key(self, task: Task) -> bool:
        """True if a queued task has an order key of this discipline."""
        return task.marks.policy == self.discipline.name and task.marks.waiting

    # Changes of rows.

    def observe(self, old: Task, new: Task | None, ended: EndedTask | None) -> None:
        """Learn from a change: how long tasks run, and what moving them costs."""
        counted = old.marks.counted_seconds
        if ended is not None and ended.run_seconds > 0:
            if ended.by_itself:
                self.history.ended(features_of(self, old), ended.run_seconds, counted)
            else:
                self.history.outlived(features_of(self, old), counted, ended.run_seconds)
        elif new is not None and new.marks.counted_seconds > counted:
            self.history.outlived(features_of(self, old), counted, new.marks.counted_seconds)

    def least_units(self, shape: Shape) -> float:
        """The least that a gang must find: whole nodes may be small, CPU ranks are only counted."""
        if shape.parts:
            return sum(map(self.least_units, shape.each))
        if shape.gpus is None:
            return shape.nodes * self.least_node_share
        return units_of(shape, self.width) if shape.gpus else 0.0

    def enter(self, task: Task) -> None:
        """Add a task in its new state."""
        size = self.sizes[task.id] = units_of(task.shape, self.width)
        self.unended[task.owner] = self.unended.get(task.owner, 0) + 1
        if task.state is not PAUSED:
            self._count(task, size, 1)
        finish = task.marks.user_finish
        if finish > self.finishes.get(task.owner, 0.0):
            self.finishes[task.owner] = finish
        if task.state is QUEUED:
            self._wait(task)
        elif task.state in LEAVING:
            self.leaving[task.id] = task
        elif task.holds:
            self._run(task, size)
        if self.clusters and (task.holds or task.promised):
            self.clusters.charge(self.clusters.of(task), size)
            cost = None if task.state in LEAVING else self._cost(task)
            self.coverage.enter(task, size, cost)

    def leave(self, task: Task) -> None:
        """Remove a task in its old state."""
        size = self.sizes.pop(task.id)
        self.unended[task.owner] -= 1
        if not self.unended[task.owner]:
            del self.unended[task.owner]
        if task.state is not PAUSED:
            self._count(task, -size, -1)
        if task.state is QUEUED:
            self._unwait(task)
        elif task.state in LEAVING:
            _drop(self.leaving, task.id)
        elif task.holds:
            self._unrun(task, size)
        if self.clusters and (task.holds or task.promised):
            self.clusters.charge(self.clusters.of(task), -size)
            self.coverage.leave(task)

    def _count(self, task: Task, size: float, one: int) -> None:
        """Count a task that wants nodes, or forget it (negative)."""
        owner = task.owner
        self.live_units += size
        self.live_since_sum += size * (task.marks.base or task.submitted_at.timestamp())
        self.owners[owner] = self.owners.get(owner, 0) + one
        if not self.owners[owner]:
            del self.owners[owner], self.owner_units[owner]
            self.owner_held.pop(owner, None)
            if not self.owners:
                # Floating-point sums are reset to exactly 0 at the end.
                self.live_units = self.live_since_sum = 0.0
            return
        self.owner_units[owner] = self.owner_units.get(owner, 0.0) + size
        if task.holds or task.promised:
            self.owner_held[owner] = self.owner_held.get(owner, 0.0) + size

    def skip_known_arrivals(self) -> None:
        """After a restart: tasks that wait with an order key and a reason were evaluated before.

        Their queues are walked along as in any round; only new tasks are evaluated individually.
        """
        evaluated_before = [
            key for key, task in self.arrived.items() if task.accepted and self.has_order_key(task)
        ]
        for task_id in evaluated_before:
            del self.arrived[task_id]

    def forget_idle_owner(self, owner: str) -> None:
        """After a change: forget what an owner without live tasks had."""
        if owner in self.unended:
            return
        if not self.discipline.by_user:
            self.finishes.pop(owner, None)
        elif len(self.finishes) > OWNERS_KEPT_MAX:
            # Their use is the longest ago, so it counts least.
            del self.finishes[min(self.finishes, key=self.finishes.__getitem__)]

    def _wait(self, task: Task) -> None:
        name = self.name(task)
        self.unserved.add(name, waiting_since(task))
        if task.promised:
            self.promised[task.id] = task
        elif self.has_order_key(task):
            key = self.key(task.marks), task.id
            self.queues.add(name, key)
            self._waiting_order.add(name, key)
        else:
            self.unkeyed[task.id] = task

    def _unwait(self, task: Task) -> None:
        name = self.name(task)
        self.unserved.remove(name, waiting_since(task))
        if task.promised:
            _drop(self.promised, task.id)
        elif self.has_order_key(task):
            key = self.key(task.marks), task.id
            self.queues.remove(name, key)
            self._waiting_order.remove(name, key)
        else:
            _drop(self.unkeyed, task.id)

    def _run(self, task: Task, size: float) -> None:
        weight = WEIGHTS[task.level]
        insort(self.running.setdefault(weight, []), (self.key(task.marks), task.id))
        self.held_units[weight] = self.held_units.get(weight, 0.0) + size
        if task.marks.held_until is not None:
            self.held_until.add(task.id)
        if task.marks.policy != self.discipline.name:
            self.foreign[task.id] = task
        insort(self.costs.setdefault(weight, {}).setdefault(size, []), self._cost(task))
        self.runs_of.setdefault(task.owner, {})[task.id] = task

    def _unrun(self, task: Task, size: float) -> None:
        weight = WEIGHTS[task.level]
        _remove(self.running[weight], (self.key(task.marks), task.id))
        self.held_until.discard(task.id)
        self.foreign.pop(task.id, None)
        own = self.runs_of[task.owner]
        del own[task.id]
        if not own:
            del self.runs_of[task.owner]
        costs = self.costs[weight][size]
        _remove(costs, self._cost(task))
        if not costs:
            del self.costs[weight][size]
        if self.running[weight]:
            self.held_units[weight] -= size
        else:
            del self.running[weight], self.costs[weight], self.held_units[weight]

    def move_seconds(self, task: Task) -> float:
        """What being moved costs a task: as measured, else as the policy assumes."""
        measured = task.move_seconds
        return self.policy.timeshare.restart_seconds if measured is None else measured

    def _cost(self, task: Task) -> Cost:
        """Smaller = cheaper for runs of one size; the order is the same at any time."""
        return self.move_seconds(task) - saved_until(task), task.id

    def rescale(self, ledger: PoolLedger, tasks: Mapping[str, Task]) -> None:
        """Take a new ledger over; if the scale changed, all that is in order of keys is sorted
        again. Nothing else depends on the scale.
        """
        moved = ledger.scale != self.ledger.scale
        self.ledger = ledger
        if not moved:
            return

        def keyed(row: list[Key]) -> list[Key]:
            # As ``key``, without a call for each of what may be 100,000 tasks.
            scale = ledger.scale
            return sorted(
                [
                    ((order_key := tasks[task_id].marks).key + scale * order_key.scaled, task_id)
                    for _, task_id in row
                ]
            )

        self.queues.rekey(keyed)
        self._waiting_order.forget()
        for row in self.running.values():
            row[:] = keyed(row)

    def learned(self) -> dict[str, object] | None:
        """What the discipline has learned; None if all of it is saved."""
        if self.history.ends == self.saved_ends:
            return None
        return self.history.dump(LEARNED_CELLS_MAX)

    def saved(self, learned: Mapping[str, object]) -> None:
        """What ``learned`` returned was committed."""
        self.saved_ends = cast("int", learned["ends"])

    def live(self) -> bool:
        """True if anything waits or runs here."""
        return bool(self.owners)

    def waiting_count(self) -> int:
        """How many tasks wait."""
        return len(self.unserved)

    def lower_units(self, weight: int) -> float:
        """Node equivalents held by runs of lower levels that could be preempted."""
        return sum(held for level, held in self.held_units.items() if level < weight)

    def cheapest(self, weight: int, now: float) -> Iterator[Cost]:
        """The runs of one level with what losing them costs (node-seconds), cheapest first."""
        return cheapest(self.costs.get(weight, {}), now)


def _drop(tasks: dict[str, Task], task_id: str) -> None:
    del tasks[task_id]
    if not tasks:
        # Iterating over a dictionary that was large is slow even when it is empty.
        tasks.clear()


def _remove(row: list[tuple[float, str]], key: tuple[float, str]) -> None:
    place = bisect_left(row, key)
    assert row[place] == key, "what was put in is there"
    del row[place]
