"""The rows and the indexes over them, kept up to date change by change.

``loop.py`` and the policy lab feed it every committed change; ``decide`` reads it through
``Snapshot``. ``settle`` records that a round has evaluated everything so far: the next round
evaluates only what changed since. In an index that was just built from bare rows, everything is
still to be evaluated.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import cast

from libs.contracts.ids import TaskId
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.disciplines.timeshare.history import History
from services.scheduler.domain.facts.pool import Pool, waiting_since
from services.scheduler.domain.facts.timers import Timer, TimerKind, Timers, timers_of
from services.scheduler.domain.facts.totals import Totals
from services.scheduler.domain.limits.quota_usage import QuotaUsage, held_need, minus
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.lifecycle import GOALS, LEAVING, QUEUED, RUNNING, STARTING
from services.scheduler.domain.model.rows import (
    EndedTask,
    Inventory,
    Limit,
    LimitKey,
    Node,
    PoolLedger,
    Task,
)
from services.scheduler.domain.model.values import NO_RESOURCES, NodeResources
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.node_index import (
    admits,
    cpu_ranks_max,
    memory_of,
    millicpus_of,
    usable_mask,
)
from services.scheduler.domain.placement.slots import Share, Slot, share_of, shares_of, slots_of
from services.scheduler.domain.placement.topology import crosses_zone

# From this many tasks in one batch on, they are sorted first, which is faster.
MANY = 1_000


class Index:
    """The mutable working set of the leader."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings
        self.tasks: dict[str, Task] = {}
        self.nodes: dict[str, Node] = {}
        self.limits: dict[LimitKey, Limit] = {}
        self.inventories: dict[str, Inventory] = {}
        self.policies: dict[str, GroupPolicy] = {}
        self.ledgers: dict[str, PoolLedger] = {}
        self.pools: dict[str, Pool] = {}
        self.held: dict[str, Task] = {}
        self.unsettled: set[str] = set()
        self.timers = Timers()
        self.quota_usage = QuotaUsage(self.limits)
        self.totals = Totals((), settings)
        self.capacity = Capacity((), settings)
        # The tasks that hold bits of a node, and those that are promised bits of it.
        self.holders: dict[str, dict[str, int]] = {}
        self.keepers: dict[str, dict[str, int]] = {}
        # The runs on draining nodes that are not on their way out.
        self.drained: set[str] = set()
        self.settled_at: datetime | None = None
        # Timers that were already due when they were added: no round has handled them.
        self.overdue: set[Timer] = set()
        # Nodes that take no new runs because a run on them is not among the tasks here.
        self.withheld: AbstractSet[str] = frozenset()
        self._slots: dict[str, tuple[Slot, ...]] = {}
        # Those of them whose ranks differ or share nodes.
        self._sharing: set[str] = set()
        self._crossing: dict[str, set[str]] = {}
        self._nodes_stale = False
        self._changed_limits: set[LimitKey] = set()

    def apply(
        self,
        put: Iterable[object] = (),
        deleted: Iterable[tuple[type[object], tuple[object, ...]]] = (),
    ) -> bool:
        """Take over committed rows; returns True if any of them concerns scheduling."""
        rows = list(put)
        new = {row.id: row for row in rows if isinstance(row, Task)}
        if len(new) > MANY:
            # Sorted like the longest of the lists that they go into, so that each is appended at
            # its end.
            new = {row.id: row for row in sorted(new.values(), key=waiting_since)}
        deleted = list(deleted)
        gone = [TaskId(str(key[0])) for kind, key in deleted if kind is Task]
        # Removals come first, because one run may take what another has released.
        changed = [(self.tasks.pop(task_id, None), new.get(task_id)) for task_id in (*gone, *new)]
        ended = {row.task_id: row for row in rows if isinstance(row, EndedTask)}
        for old, after in changed:
            if old is not None:
                self.pools[old.group].observe(old, after, ended.get(old.id))
                self._leave(old, after)
        concerned = bool(gone) or bool(new)
        for kind, key in deleted:
            concerned = self._forget_row(kind, key) or concerned
        for row in rows:
            if not isinstance(row, Task):
                concerned = self._put(row) or concerned
        for old, after in changed:
            if after is not None and after.state not in TERMINAL:
                self.tasks[after.id] = after
                self._enter(after, old)
            elif old is not None:
                self.pools[old.group].forget_idle_owner(old.owner)
        return concerned

    def _put(self, row: object) -> bool:
        if isinstance(row, Node):
            self._put_node(row)
        elif isinstance(row, Limit):
            self.limits[row.key] = row
            self._changed_limits.add(row.key)
        elif isinstance(row, Inventory):
            self.inventories[row.runtime] = row
            self._widen()
        elif isinstance(row, GroupPolicy):
            self.policies[row.group] = row
            self._nodes_stale = True
            self._rebuild(row.group)
        elif isinstance(row, PoolLedger):
            self.ledgers[row.group] = row
            if row.group in self.pools:
                pool = self.pools[row.group]
                moved = row.scale != pool.ledger.scale
                pool.rescale(row, self.tasks)
                # The new order may begin with other tasks.
                pool.full_scan = pool.full_scan or moved
        else:
            return False
        return True

    def _put_node(self, node: Node) -> None:
        if node.id in self.withheld:
            node = replace(node, schedulable=False)
        old = self.nodes.get(node.id)
        self.nodes[node.id] = node
        if self._nodes_stale or old is None or not old.same_place(node):
            self._nodes_stale = True
        elif not node.removed and not old.same_state(node):
            changed = self.totals.change(old, node, self.capacity)
            for owners in (self.holders, self.keepers):
                self._take_all(node.id, owners.get(node.id, {}))
            if old.draining != node.draining:
                for task_id in self.holders.get(node.id, ()):
                    # A run of the same batch of rows may be about to enter.
                    if task_id in self.tasks:
                        self._note_drained(self.tasks[task_id])
            pool = self.pools.get(node.group)
            if pool is not None:
                pool.units, pool.full_scan = self.totals.units(node.group), True
                pool.nodes_changed = pool.nodes_changed or changed

    def _forget_node(self, node_id: str) -> bool:
        """Forget a removed node, which was kept for its version and its group."""
        known = self.nodes.pop(node_id, None) is not None
        self._nodes_stale = self._nodes_stale or known
        return known

    def _forget_row(self, kind: type[object], key: tuple[object, ...]) -> bool:
        """Forget a removed node or limit; returns True if that concerns scheduling.

        Nothing depends on a removed limit, unless its removal is not evaluated yet: then the next
        leader forgets it.
        """
        if kind is Limit and key not in self._changed_limits:
            self.limits.pop(cast("LimitKey", key), None)
        return kind is Node and self._forget_node(str(key[0]))

    def _take_all(self, node_id: str, masks: Mapping[str, int]) -> None:
        """Take what tasks hold or are promised of a node; all of it was free."""
        for task_id in masks:
            self.capacity.take(self._slots_on(node_id, task_id))

    def _widen(self) -> None:
        for pool in self.pools.values():
            pool.full_scan = pool.nodes_changed = True

    def pool(self, group: str) -> Pool:
        """The pool of a group, made when it is first named."""
        found = self.pools.get(group)
        if found is None:
            policy = self.policies.get(group)
            if policy is None or policy.removed:
                policy = GroupPolicy(group, policy=self.settings.policy)
            found = Pool(group, policy, self.settings, width=self.totals.width(group))
            found.units, found.least_node_share = (
                self.totals.units(group),
                self.totals.least_node_share(group),
            )
            found.ledger = self.ledgers.get(group, found.ledger)
            found.limited = bool(self.limits)
            self.pools[group] = found
        return found

    def _rebuild(self, group: str) -> None:
        """Rebuild a pool from its tasks, because its policy or the size of its nodes changed."""
        old = self.pools.pop(group, None)
        if old is None:
            return
        new = self.pool(group)
        new.finishes, new.history = old.finishes, old.history
        for task_id in old.sizes:
            task = self.tasks[task_id]
            for timer in self._timers_of(task, old):
                self._forget(timer)
            for timer in self._timers_of(task, new):
                self._expect(timer)
            new.enter(task)
            self._compare_level(new, task)

    # Tasks.

    def _timers_of(self, task: Task, pool: Pool) -> Iterator[Timer]:
        return timers_of(task, pool.policy, pool.protected_seconds, self.settings)

    def _expect(self, timer: Timer) -> None:
        self.timers.add(timer)
        settled = self.settled_at
        if settled and timer.at <= settled.timestamp() and timer.kind is not TimerKind.OPENS:
            self.overdue.add(timer)

    def _forget(self, timer: Timer) -> None:
        self.timers.remove(timer)
        self.overdue.discard(timer)

    def _leave(self, old: Task, after: Task | None) -> None:
        pool = self.pools[old.group]
        for timer in self._timers_of(old, pool):
            self._forget(timer)
        self.unsettled.discard(old.id)
        if after is None or after.state is not QUEUED or after.promised:
            pool.arrived.pop(old.id, None)
        pool.leave(old)
        if after is None or after.state not in (STARTING, RUNNING):
            pool.relevel.discard(old.id)
            pool.level_blocked.discard(old.id)
        if old.holds:
            self.held.pop(old.id, None)
            self.drained.discard(old.id)
        if (old.placements or old.promised) and not old.same_holdings(after):
            self._take_back(old)
            pool.full_scan = True
            if self.quota_usage.across:
                # Other tasks of its owner may run in other pools.
                for other in self.pools.values():
                    other.full_scan = True

    def _enter(self, task: Task, old: Task | None) -> None:
        pool = self.pool(task.group)
        pool.enter(task)
        for timer in self._timers_of(task, pool):
            self._expect(timer)
        if GOALS[task.goal, task.state] is not None or task.changes_mode:
            self.unsettled.add(task.id)
        if task.holds:
            self.held[task.id] = task
            if old is None or not old.holds or old.priority is not task.priority:
                self._compare_level(pool, task)
            if self.totals.draining:
                self._note_drained(task)
        elif (
            task.state is QUEUED
            and not task.promised
            and (old is None or task.id in pool.arrived or not old.waits_unchanged(task))
        ):
            pool.arrived[task.id] = task
        if (task.placements or task.promised) and (old is None or not task.same_holdings(old)):
            self._give(task)
            # Which tasks a guarantee covers changes with what the owner's other tasks hold.
            pool.full_scan = pool.full_scan or bool(pool.clusters)
        if old is not None and old.is_silent and task.holds and not task.is_silent:
            # It can save from now on, so preempting it at a slice end costs less.
            pool.full_scan = True
        if task.state in LEAVING and (old is None or old.state not in LEAVING):
            # What it holds is being released, except what is promised to its beneficiary.
            pool.full_scan = True

    @staticmethod
    def _compare_level(pool: Pool, task: Task) -> None:
        """Let the next round evaluate a run that counts at another level than its priority.

        AUTO runs have no level of their own; changes of level by running time come as timers.
        """
        if (
            task.state in (STARTING, RUNNING)
            and not task.is_auto
            and task.level is not pool.level(task)
        ):
            pool.relevel.add(task.id)

    def _note_drained(self, task: Task) -> None:
        """Note whether a run is to leave a draining node."""
        if task.state not in LEAVING and self.totals.drained_node(task) is not None:
            self.drained.add(task.id)
        else:
            self.drained.discard(task.id)

    def slots(self, task: Task) -> tuple[Slot, ...]:
        """What a task has, or is promised."""
        found = self._slots.get(task.id)
        return slots_of(task) if found is None else found

    def _slots_on(self, node_id: str, task_id: str) -> tuple[Slot, ...]:
        """What a task has, or is promised, of one node."""
        if task_id in self._sharing:
            return tuple(slot for slot in self._slots[task_id] if slot.node_id == node_id)
        owners = self.holders.get(node_id, {})
        mask = owners[task_id] if task_id in owners else self.keepers[node_id][task_id]
        # All ranks of the gang take the same.
        return (Slot(node_id, mask, self._slots[task_id][0].resources),)

    def _give(self, task: Task) -> None:
        """The task has (or is promised) its slots."""
        owners = self.holders if task.placements else self.keepers
        slots = self._slots[task.id] = slots_of(task)
        if task.shape.parts:
            self._sharing.add(task.id)
        for node_id, mask, _ in slots:
            there = owners.get(node_id)
            if there is None:
                owners[node_id] = {task.id: mask}
            else:
                there[task.id] = there.get(task.id, 0) | mask
        self._sync(slots, shared=False, taken=True)
        if not task.placements and not self._nodes_stale and self.ripe(task, {}, {}):
            # Places for CPU-only ranks that others are promised count as taken, so a task may be
            # promised what is free: the next round starts it, although nothing else changes.
            self.pool(task.group).full_scan = True
        self.quota_usage.charge(task, task.level, held_need(task))
        if task.group in self.totals.zoned and len(slots) > 1:
            self._note_crossing(task)

    def _note_crossing(self, task: Task) -> None:
        ranks = task.placements or task.promised
        if crosses_zone(ranks, self.nodes, self.totals.levels(task.group)):
            self._crossing.setdefault(task.group, set()).add(task.id)

    def crossing(self, group: str) -> AbstractSet[str]:
        """The tasks whose gangs lie, or are promised to lie, in more than one largest domain."""
        return self._crossing.get(group, set())

    def _take_back(self, task: Task) -> None:
        if self._crossing:
            self._crossing.get(task.group, set()).discard(task.id)
        owners, others = self.holders, self.keepers
        if not task.placements:
            owners, others = others, owners
        slots, shared = self._slots.pop(task.id), False
        self._sharing.discard(task.id)
        for slot in slots:
            node_id = slot.node_id
            there = owners.get(node_id)
            if there is not None:
                there.pop(task.id, None)
                if not there:
                    del owners[node_id]
            shared = shared or node_id in others or bool(there)
        self._sync(slots, shared=shared, taken=False)
        self.quota_usage.charge(task, task.level, minus(held_need(task)))

    def _sync(self, slots: tuple[Slot, ...], *, shared: bool, taken: bool) -> None:
        """Set the free bits of nodes to those that no task holds or is promised.

        ``shared``: other tasks hold, or are promised, something of the same nodes.
        """
        if self._nodes_stale:
            return
        if taken:
            # Bits that are taken already stay taken; CPU-only ranks are counted individually.
            self.capacity.take(slots)
        elif not shared:
            self.capacity.give(slots)
        else:
            self.capacity.give_resources(slots)
            self.capacity.give(
                Slot(node_id, mask & ~self.taken(node_id)) if mask else Slot(node_id, 0)
                for node_id, mask, _ in slots
                if not mask or mask & ~self.taken(node_id)
            )

    def taken(self, node_id: str) -> int:
        """The bits of a node that some task holds or is promised."""
        mask = 0
        for owners in (self.holders.get(node_id), self.keepers.get(node_id)):
            if owners:
                for each in owners.values():
                    mask |= each
        return mask

    def ripe(
        self, task: Task, begun: Mapping[str, int], given: Mapping[str, NodeResources]
    ) -> bool:
        """True if all that is promised to a task is observed free, on nodes that take new runs.

        ``begun`` and ``given``: CPU-only ranks, and CPUs and memory, by node, of what was promised
        to others and begins in this round.
        """
        for share in shares_of(self.slots(task)):
            node_id, mask = share.node_id, share.mask
            node = self.capacity.nodes.get(node_id)
            if node is None:
                return False
            held = self.share(node_id, self.holders.get(node_id, ()))
            if mask & held.mask:
                return False
            if share.cpu_ranks or not node.gpus:
                ranks = held.cpu_ranks + begun.get(node_id, 0) + share.cpu_ranks
                if ranks > (0 if mask and not node.gpus else cpu_ranks_max(node, self.settings)):
                    return False
                if not node.gpus and held.mask:
                    return False
            if share.resources is not NO_RESOURCES and exceeds(
                node, share.resources, [held.resources, given.get(node_id, NO_RESOURCES)]
            ):
                return False
        return True

    def share(self, node_id: str, task_ids: Iterable[str]) -> Share:
        """What these tasks hold, or are promised, of a node together."""
        return share_of(
            node_id, (slot for each in task_ids for slot in self._slots_on(node_id, each))
        )

    def broken(self, task: Task, released: Container[str] = ()) -> bool:
        """True if a promise can no longer be kept: the task could not be placed on its promised
        nodes now, even if they were free.

        ``released``: tasks whose promises were taken back in this round.
        """
        nodes, shape = self.capacity.nodes, task.shape
        for share in shares_of(self.slots(task)):
            node_id, resources = share.node_id, share.resources
            node = nodes.get(node_id)
            if (
                node is None
                or node.group != task.group
                or share.mask & ~usable_mask(node)
                or not admits(node, shape)
                or share.cpu_ranks > cpu_ranks_max(node, self.settings)
                or exceeds(node, resources, ())
            ):
                return True
            if resources is not NO_RESOURCES:
                # A node that offers less than it did breaks what it cannot hold any more.
                held, kept = self.holders.get(node_id, {}), self.keepers.get(node_id, {})
                stay = [other for other in held if self.tasks[other].state not in LEAVING]
                others = [each for each in kept if each != task.id and each not in released]
                beside = [self.share(node_id, each).resources for each in (stay, others)]
                if exceeds(node, resources, beside):
                    return True
        # A whole node is all of it, also after it was rebuilt.
        whole = {
            role.name
            for role, size in zip(task.spec.roles, shape.each, strict=False)
            if size.gpus is None
        }
        return any(
            len(rank.gpus) != nodes[rank.node_id].gpus
            if rank.role in whole or (not shape.parts and shape.gpus is None)
            # The one unit of a node that was rebuilt without GPUs is no GPU.
            else len(rank.gpus) > nodes[rank.node_id].gpus
            for rank in task.promised
        )

    # Nodes and limits change rarely: what depends on them follows before the next round.

    def refresh(self) -> None:
        """Bring everything up to date; ``Snapshot`` calls it before each read."""
        if self._nodes_stale:
            self._refresh_nodes()
        if self._changed_limits:
            self._refresh_limits()

    def _refresh_nodes(self) -> None:
        levels = {each.group: each.topology for each in self.policies.values() if not each.removed}
        self.totals = Totals(self.nodes.values(), self.settings, levels)
        self.capacity = self.totals.offered.copy()
        self._nodes_stale = False
        for slots in self._slots.values():
            self.capacity.take(slots)
        self._crossing.clear()
        for task in self.tasks.values() if self.totals.zoned else ():
            if task.group in self.totals.zoned and len(task.placements or task.promised) > 1:
                self._note_crossing(task)
        self.drained.clear()
        for node_id in self.totals.draining:
            for task_id in self.holders.get(node_id, ()):
                self._note_drained(self.tasks[task_id])
        for group, pool in list(self.pools.items()):
            pool.units, pool.least_node_share = (
                self.totals.units(group),
                self.totals.least_node_share(group),
            )
            if pool.width != self.totals.width(group):
                self._rebuild(group)
        self._widen()

    def _refresh_limits(self) -> None:
        """Follow the limits that changed: what they count, and what waits for them."""
        changed = [self.limits[key] for key in sorted(self._changed_limits)]
        self._changed_limits.clear()
        self.quota_usage.change(changed, self._held_by)
        for group, pool in list(self.pools.items()):
            if pool.limited != bool(self.limits):
                self._rebuild(group)
                self.pools[group].full_scan = self.pools[group].nodes_changed = True
        for row in changed:
            own = self.pools.get(row.group)
            for pool in self.pools.values() if not row.group else [own] if own else []:
                self._reconsider(pool, row)

    def _held_by(self, owners: Collection[str] | None) -> Iterator[Task]:
        """The runs and promises of some owners (None: of all); others' may be among them."""
        for pool in self.pools.values():
            for owner in pool.runs_of if owners is None else owners:
                yield from pool.runs_of.get(owner, {}).values()
            yield from pool.leaving.values()
            yield from pool.promised.values()

    def _reconsider(self, pool: Pool, row: Limit) -> None:
        """A limit changed: the next round evaluates again what waits and may be stopped by it.

        Of a user's or a team's limit those are the first tasks of its queues; the others of a queue
        are stopped by the same.
        """
        pool.full_scan = True
        if not row.user and not row.team:
            pool.nodes_changed = True
            return
        queues = pool.queues
        for queue in queues.owned(row.user) if row.user else queues.of_team(row.team):
            task_id = queue.keys[0][1]
            pool.arrived[task_id] = self.tasks[task_id]

    def listed(self) -> bool:
        """True once every runtime's full list of nodes was received, and all of these nodes are
        known."""
        return bool(self.inventories) and all(
            node_id in self.nodes
            for inventory in self.inventories.values()
            for node_id in inventory.node_ids
        )

    def remember(self, group: str, learned: object) -> None:
        """Take over what a pool's discipline had learned; what cannot be read is forgotten."""
        with suppress(ValueError):
            self.pool(group).history = History.load(learned)

    def learned(self) -> dict[str, dict[str, object]]:
        """What the pools' disciplines have learned and is not saved."""
        found = {group: pool.learned() for group, pool in self.pools.items()}
        return {group: learned for group, learned in found.items() if learned is not None}

    def saved(self, learned: Mapping[str, Mapping[str, object]]) -> None:
        """What ``learned`` returned was committed."""
        for group, value in learned.items():
            self.pool(group).saved(value)

    def due(self, now: datetime) -> list[Timer]:
        """The timers that became due since the last round, in order."""
        seconds = now.timestamp()
        after = self.settled_at.timestamp() if self.settled_at else None
        # If the clock was set back, timers that were due may be in the future again.
        overdue = {timer for timer in self.overdue if timer.at <= seconds}
        return sorted({*overdue, *self.timers.between(after, seconds)})

    def unsettle(self, task_id: str) -> None:
        """Forget what rounds have settled: the next one evaluates everything, as a new leader's,
        and this task individually.

        Only for a copy of the index, for which the fate of earlier plans does not matter.
        """
        self.settled_at = None
        self.overdue.clear()
        for pool in self.pools.values():
            pool.full_scan = pool.nodes_changed = True
            pool.due_at = None
            tasks = (self.tasks[task_id] for _, task_id in pool.unserved)
            pool.arrived = {task.id: task for task in tasks if not task.promised}
            pool.skip_known_arrivals()
        task = self.tasks[task_id]
        if task.state is QUEUED and not task.promised:
            self.pools[task.group].arrived[task_id] = task

    def narrow(self, group: str) -> bool:
        """Forget the tasks of other groups; False if limits count several groups together.

        Only for a copy of the index that is about one group.
        """
        if self.quota_usage.across:
            return False
        own = self.pools[group]
        self.pools = {group: own}
        self.tasks = {task_id: self.tasks[task_id] for task_id in own.sizes}
        self.held = {task_id: task for task_id, task in self.held.items() if task_id in self.tasks}
        self.unsettled &= self.tasks.keys()
        self.drained &= self.tasks.keys()
        self.holders, self.keepers = self._own(self.holders), self._own(self.keepers)
        self.timers = self.timers.of(self.tasks)
        self.overdue = {timer for timer in self.overdue if timer.task_id in self.tasks}
        return True

    def _own(self, owners: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        return {
            node_id: kept
            for node_id, masks in owners.items()
            if (kept := {each: mask for each, mask in masks.items() if each in self.tasks})
        }

    def settle(self, plan: Plan) -> None:
        """The plan covers everything so far: the next round evaluates only later changes.

        For groups that the plan leaves out nothing is settled: their timers stay due.
        """
        left_out: list[Timer] = []
        if plan.left_out or plan.left_out_tasks:
            left_out = [each for each in self.due(plan.decided_at) if self._left_out(each, plan)]
        self.settled_at = plan.decided_at
        self.overdue.clear()
        self.overdue.update(left_out)
        for group, scan in plan.scans.items():
            pool = self.pools[group]
            pool.arrived.clear()
            pool.full_scan = pool.nodes_changed = False
            pool.relevel.clear()
            # What was decided about a single task may have been left out; and the end of a run
            # may have been observed meanwhile.
            pool.level_blocked = {
                each
                for each in scan.level_blocked | plan.left_out_tasks
                if each in pool.sizes and self.tasks[each].state in (STARTING, RUNNING)
            }
            pool.due_at = scan.due_at
            pool.slice_round_at = scan.slice_round_at

    def _left_out(self, timer: Timer, plan: Plan) -> bool:
        """True if the plan leaves out the group or the task of a timer."""
        if timer.task_id in plan.left_out_tasks:
            return True
        group = self.tasks[timer.task_id].group
        return group in plan.left_out and timer.kind is not TimerKind.EXPIRES


def exceeds(node: Node, resources: NodeResources, others: Iterable[NodeResources]) -> bool:
    """True if a rank and the others request more than the node offers, of a resource that the rank
    requests."""
    cpus, memory, each_other = millicpus_of(node), memory_of(node), list(others)
    for total, own, rest in (
        (cpus, resources.cpus, sum(other.cpus for other in each_other)),
        (memory, resources.memory_bytes, sum(other.memory_bytes for other in each_other)),
    ):
        if total is not None and own and own + rest > total:
            return True
    return False
