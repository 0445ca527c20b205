"""How the nodes of one pool are allocated in one round.

Fourth step of ``decide``, called for each pool that changed or is due. It starts the runs whose
promised nodes have become free, then evaluates the waiting tasks in order: each gets nodes, is
promised nodes that others leave, or gets the reason why it waits. ``victims.py`` finds runs that
leave for a higher level or a guarantee, ``slice_round.py`` lets runs of one level take turns. The
discipline decides only the order, and which tasks may pass one that found no place.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from math import inf, nextafter

from libs.contracts.messages import Priority, ReasonCode
from services.scheduler.domain.backfill import Reservation, expected_end_if_begun, reserve
from services.scheduler.domain.blockers import blocked_by, flood_reason, is_blocked, retry_later
from services.scheduler.domain.disciplines.interface import Filling
from services.scheduler.domain.facts.pool import Pool, units_of
from services.scheduler.domain.facts.timers import Timer, TimerKind
from services.scheduler.domain.facts.totals import Totals
from services.scheduler.domain.limits.quota_usage import Need, QuotaUsage, auto_level
from services.scheduler.domain.limits.virtual_clusters import ALMOST, UNCOVERED, Depth
from services.scheduler.domain.model.decisions import Assign, PoolScan
from services.scheduler.domain.model.lifecycle import QUEUED
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import (
    NO_RESOURCES,
    WEIGHTS,
    Key,
    NodeResources,
    Shape,
    reason,
)
from services.scheduler.domain.placement.capacity import Allowed
from services.scheduler.domain.placement.slots import Slot, nodes_of, placements_of
from services.scheduler.domain.preemption import defragment, victims
from services.scheduler.domain.queue.entry import Entry, rank_of
from services.scheduler.domain.queue.walk import Outcome, QueueWalk
from services.scheduler.domain.round import Round
from services.scheduler.domain.slices import levels, order_keys
from services.scheduler.domain.slices.slice_round import SliceRound
from services.scheduler.domain.slices.starvation import grant


def allocate(round_: Round, pool: Pool, timers: list[Timer], resumed: list[Task]) -> None:
    """Make every decision about one pool."""
    order_keys.sample_load(round_, pool, resumed=bool(resumed))
    order_keys.end_slices(round_, pool, timers)
    stopped = levels.update_levels(round_, pool, timers)
    Allocation(round_, pool, timers, resumed).run()
    round_.scans[pool.group] = round_.scans[pool.group]._replace(level_blocked=stopped)


def note_displaced(round_: Round, pool: Pool) -> None:
    """Note that tasks of a pool lost their promises after the pool was allocated.

    A task of the same owner in another pool took their quota. The next round evaluates them.
    """
    allocation = Allocation(round_, pool, [], [])
    for task in sorted(allocation.displaced(), key=_arrival):
        entry = allocation.entry(task)
        if blocked_by(round_, pool, entry) is None:
            round_.explain(task, round_.waits(ReasonCode.WAITS_FOR_CAPACITY, entry.shape))


class Allocation:
    """One pool in one round."""

    def __init__(self, round_: Round, pool: Pool, timers: list[Timer], resumed: list[Task]) -> None:
        self.round = round_
        self.pool = pool
        self.full_scan = (
            pool.full_scan
            or pool.group in round_.releasing
            or any(timer.kind is not TimerKind.RETRIES for timer in timers)
            or (
                # A new task may hold others back or wait behind them; one that leaves ends that.
                pool.holds_back
                and (bool(pool.arrived or resumed or timers) or pool.group in round_.groups_left)
            )
            or (pool.due_at is not None and pool.due_at <= round_.now)
        )
        # These were moved in this round already, and are evaluated all the same.
        self._resumed = {task.id for task in resumed}
        self.individual = self._newcomers(timers, resumed)
        # By rank: the shapes that found no place, with their virtual cluster, and what is reserved.
        self._stuck: dict[int, dict[tuple[Shape, str], None]] = {}
        self._reserved: dict[int, Reservation] = {}
        # True: the head of every queue is evaluated. Else: the shapes for which there is no place.
        self._all = pool.nodes_changed or pool.discipline.filling is not Filling.GREEDY
        self._full: set[Shape] = set()
        self._full_at = (0, 0)
        self._yielded = self._second_walk = False
        self.slice_round = SliceRound(round_, pool)
        self._promises = Promises(round_, pool)
        self._owner_order = OwnerOrder(round_, pool)

    def _newcomers(self, timers: list[Timer], resumed: list[Task]) -> dict[str, Task]:
        """Tasks that are evaluated whatever their queue: new, back, or changed."""
        tasks = self.round.index.tasks
        retried = [tasks[each.task_id] for each in timers if each.kind is TimerKind.RETRIES]
        individual = {
            task.id: task
            for task in (
                *self.pool.unkeyed.values(),
                *self.pool.arrived.values(),
                *retried,
                *resumed,
            )
            if task.id not in self.pool.promised
        }
        moved = self.round.moved - self._resumed
        return {
            task_id: individual[task_id] for task_id in sorted(individual) if task_id not in moved
        }

    def run(self) -> None:
        """Allocate the pool: walk along the waiting tasks once, or more often as slices require."""
        if self.full_scan:
            self._promises.sort_out()
        self.individual |= {task.id: task for task in self.displaced()}
        for task in sorted(self.individual.values(), key=_arrival):
            self._ensure_order_key(task)
        granted_due = self._grant()
        if self.slice_round.open and self.pool.discipline.pays:
            # Free nodes are given in order first; tasks that still wait may then preempt equals.
            self.slice_round.paused = True
            self._walk(full_scan=self.full_scan)
            self.slice_round.paused = False
            self._restart()
        self._walk(full_scan=self.full_scan or self.slice_round.open)
        if self._yielded:
            # Nodes that are still free are open to flooding owners, too.
            self._second_walk = True
            self._restart()
            self._walk(full_scan=True)
        due_at = min(
            (timer for timer in (granted_due, self.slice_round.due_at) if timer is not None),
            default=None,
        )
        self.round.scans[self.pool.group] = PoolScan(due_at, self.slice_round.slice_round_at)
        self.round.wake_at(due_at)

    def _restart(self) -> None:
        """Evaluate tasks that found no place once more."""
        self._stuck.clear()
        done = self.round.served | (self.round.moved - self._resumed)
        self.individual = {
            task_id: task for task_id, task in self.individual.items() if task_id not in done
        }

    def _grant(self) -> datetime | None:
        """Give a starvation grant if one is due; returns when the next is due, as far as known."""
        if not self.slice_round.open or not self.pool.discipline.pays:
            return None
        granted, due_at = grant(self.round, self.pool, self.entry)
        if granted is not None:
            self.individual[granted.id] = granted
        return due_at

    def _ensure_order_key(self, task: Task) -> None:
        if task.id not in self.round.order_keys and not (
            task.state is QUEUED and self.pool.has_order_key(task)
        ):
            order_keys.set_waiting_key(self.round, self.pool, task)

    def displaced(self) -> list[Task]:
        """Tasks whose promises were withdrawn since the last call; they wait again."""
        return self.round.displaced.pop(self.pool.group, [])

    def _walk(self, *, full_scan: bool) -> None:
        entries = [self.entry(task) for task in self.individual.values()] + self._promises.entries()
        self._owner_order.begin(self.individual.values())
        keyed, ranked = not self.pool.discipline.by_user, bool(self.pool.clusters)
        self._walk_now = walk = QueueWalk(
            self.pool.queues, self.make_entry, entries, keyed=keyed, ranked=ranked
        )
        walk.walk(self, full_scan=full_scan)

    def releases(self) -> tuple[int, int]:
        """Runs of this pool released, and promises withdrawn, in this round."""
        return len(self.round.releasing.get(self.pool.group, ())), len(self.round.withdrawn)

    def fits_again(self, rank: int, shape: Shape, cluster: str) -> bool:
        """True if what was released meanwhile is enough for tasks that found no place."""
        greedy = self.pool.discipline.filling is Filling.GREEDY
        if fits := greedy and self.round.available_soon(self.pool).fits(shape):
            self._stuck.get(rank, {}).pop((shape, cluster), None)
        return fits

    def units_available(self) -> float:
        """Node equivalents that are free or being released, and not promised."""
        return self.round.available_soon(self.pool).free_units(self.pool.group) + ALMOST

    # Entries of the walk.

    def entry(self, task: Task, key: float | None = None) -> Entry:
        """A waiting task with its place in the order of this round."""
        round_, pool = self.round, self.pool
        if key is None:
            key = pool.key(round_.order_key_of(task))
        key = order_keys.current_key(round_, pool, task, key)
        shape, level, cluster, depth = task.shape, pool.level(task), "", UNCOVERED
        if task.is_auto:
            most = round_.settings.auto_level_max
            level = chosen_level(task, round_.totals, round_.quota_usage, most)
        if pool.clusters:
            cluster = pool.clusters.of(task)
            depth = round_.clusters(pool).depth(cluster, pool.size(task))
        return Entry(
            rank_of(WEIGHTS[level], depth), key, task.id, task, shape, level, cluster, depth
        )

    def make_entry(self, task_id: str, key: float | None) -> Entry | None:
        """The entry of a task that is due; None if it is not evaluated."""
        if task_id in self.round.served:
            return None
        if task_id in self._promises:
            return self._promises[task_id]
        individual = self.individual.get(task_id)
        if individual is not None:
            return self.entry(individual)
        if task_id in self.round.moved:
            return None
        return self.entry(self.round.index.tasks[task_id], key)

    def rank(self, weight: int, shape: Shape, cluster: str) -> int:
        """The rank that tasks of a level, a shape and a virtual cluster have now."""
        if not cluster:
            return -weight
        size = units_of(shape, self.pool.width)
        return rank_of(weight, self.round.clusters(self.pool).depth(cluster, size))

    def larger_needs_more(self, weight: int) -> bool:
        """True if larger gangs of a level always need more node equivalents."""
        return (
            self.pool.least_node_share == 1.0
            and not self._all
            and not self.slice_round.worth(weight)
        )

    def size(self, shape: Shape) -> float:
        """Node equivalents of a gang."""
        return units_of(shape, self.pool.width)

    def order(self, shape: Shape) -> float:
        """Where queues of this shape stand among others of a level: a larger one needs more."""
        # CPU-only ranks have a size, but need no free units.
        return self.pool.least_units(shape) if shape.parts else self.size(shape)

    def units_needed(self, weight: int, shape: Shape, cluster: str) -> float:
        """What would have to be available for evaluating these queues to move anything."""
        pool, round_ = self.pool, self.round
        if self._all or (self.slice_round.worth(weight) and round_.totals.fits_now(shape)):
            return -inf
        if self._full_at != (releases := self.releases()):
            self._full_at = releases
            self._full.clear()
        if shape not in self._full:
            if round_.available_soon(pool).fits(shape):
                return -inf
            self._full.add(shape)
        least = pool.least_units(shape)
        most = victims.takeable(round_, pool, weight, shape, cluster)
        if most or (cluster and round_.clusters(pool).depth(cluster, self.size(shape)) < UNCOVERED):
            # Where a guarantee covers it, runs in the wrong places are moved together.
            return least - most
        # With nothing to take, more must be available than is, however that is spread.
        return max(least, nextafter(self.units_available(), inf))

    def blocked(self, entry: Entry) -> Outcome | None:
        """What stops the task regardless of others; None: nothing does."""
        found = blocked_by(self.round, self.pool, entry)
        if found is None and not self._second_walk:
            why = flood_reason(self.round, self.pool, entry)
            if why is not None:
                self._yielded = True
                self.round.explain(entry.task, why)
                return Outcome.LIMITED
        return found

    # One task.

    def evaluate(self, entry: Entry) -> Outcome:
        """Give the task nodes, promise them to it, or note why it waits."""
        if entry.id in self._promises:
            return self._redeem(entry)
        blocked = self.blocked(entry) or self._owner_order.stops(entry, self.entry)
        if blocked is not None:
            return self._limited(entry) if blocked is Outcome.LIMITED else blocked
        if self._is_held_back(entry):
            return self._waits_on(entry, behind=True)
        slots = self._place(entry)
        if slots is not None:
            self.assign(entry, slots)
            return Outcome.SERVED
        if entry.rank in self._reserved:
            return self._unless_shorter(entry, behind=True)
        made = None if self._second_walk else self._from_others(entry)
        return self._stops(entry) if made is None else self._use(entry, made)

    def _use(self, entry: Entry, made: tuple[Slot, ...], *, later: bool = False) -> Outcome:
        """Promise the nodes that others leave (``later``: even if all are free).

        Tasks that lost a promise are evaluated again.
        """
        if not later and self.round.may_begin(self.pool, made):
            # No run has to leave: the nodes were only promised to others.
            self.assign(entry, made)
        else:
            self.promise(entry, made)
        for task in self.displaced():
            self.individual[task.id] = task
            self._ensure_order_key(task)
            self._owner_order.add(task)
            self._walk_now.push(self.entry(task))
        return Outcome.SERVED

    def _is_held_back(self, entry: Entry) -> bool:
        """True if an earlier equivalent task found no place, or holds back what it could use."""
        stuck = self._stuck.setdefault(entry.rank, {})
        if (entry.shape, entry.cluster) in stuck:
            return True
        if self.pool.discipline.filling is Filling.STRICT and self._held_back(entry):
            stuck[entry.shape, entry.cluster] = None
            return True
        return False

    def _stops(self, entry: Entry) -> Outcome:
        """Note that it has no place: equivalent tasks wait too, or respect its reservation."""
        if self.pool.discipline.filling is Filling.RESERVE:
            self._reserved[entry.rank] = reserve(self.round, self.pool, entry)
            return self._unless_shorter(entry, behind=False)
        self._stuck[entry.rank][entry.shape, entry.cluster] = None
        return self._waits_on(entry, behind=False)

    def _from_others(self, entry: Entry) -> tuple[Slot, ...] | None:
        """A place that less entitled runs leave, or equals whose slice is over."""
        allowed = self._allowed(entry)
        slots = victims.find(self.round, self.pool, entry, allowed)
        if slots is None:
            slots = defragment.find(self.round, self.pool, entry, allowed)
        if slots is None and self.slice_round.worth(entry.weight):
            return self.slice_round.take(entry)
        return slots

    def _limited(self, entry: Entry) -> Outcome:
        """Try a task that a limit stops on smaller nodes, or on those of its owner's lower runs."""
        smaller = self._smaller(entry)
        if smaller is not None:
            self.assign(entry, smaller)
            return Outcome.SERVED
        within = self._within_quota(entry)
        return Outcome.LIMITED if within is None else self._use(entry, within, later=True)

    def _within_quota(self, entry: Entry) -> tuple[Slot, ...] | None:
        """A place for a task whose quota its owner's own lower runs use up."""
        if (
            self._second_walk
            or self._is_held_back(entry)
            or self._owner_order.behind(entry, self.entry)
        ):
            return None
        return victims.find_within_quota(self.round, self.pool, entry, self._allowed(entry))

    def _smaller(self, entry: Entry) -> tuple[Slot, ...] | None:
        """Free nodes of a smaller kind, for a gang of whole nodes that its quota admits only there.

        No run leaves for it, and nothing is promised to it.
        """
        round_, pool, shape = self.round, self.pool, entry.shape
        if shape.parts or shape.gpus is not None or len(kinds := round_.totals.kinds(shape)) == 1:
            return None
        stopped = (
            self._second_walk
            or entry.rank in self._reserved
            or self._is_held_back(entry)
            or self._owner_order.behind(entry, self.entry)
            or (entry.cluster and round_.clusters(pool).full(entry.cluster, pool.size(entry.task)))
            or flood_reason(round_, pool, entry)
        )
        if stopped:
            return None
        allowed, nodes = self._allowed(entry), round_.free.nodes
        for gpus in reversed(kinds):
            if round_.quota_usage.excess(
                entry.task, entry.level, Need(gpus * shape.nodes, shape.nodes)
            ):
                continue
            slots = round_.free.pick(
                shape,
                lambda node_id, gpus=gpus: (
                    nodes[node_id].gpus == gpus and (allowed is None or allowed(node_id))
                ),
                topology=round_.topology(pool),
            )
            if slots is not None:
                return slots
        return None

    def _unless_shorter(self, entry: Entry, *, behind: bool) -> Outcome:
        """Let it wait; one of its shape that ends earlier may still start if nodes are free."""
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
        if not self._second_walk or entry.id not in self.round.explanations:
            self.round.explain(entry.task, self.round.waits(code, entry.shape))
        return Outcome.STUCK

    def _place(self, entry: Entry) -> tuple[Slot, ...] | None:
        """A place that is free now and that no earlier task of the level holds back."""
        round_, pool = self.round, self.pool
        topology = round_.topology(pool)
        reservation = self._reserved.get(entry.rank)
        if reservation is not None:
            ends_at = expected_end_if_begun(entry.task, round_.now)
            return reservation.place(round_.free, entry.shape, ends_at, topology)
        return round_.free.pick(entry.shape, self._allowed(entry), topology=topology)

    def _allowed(self, entry: Entry) -> Allowed | None:
        """Which nodes no earlier task of the level holds back; None: all."""
        stuck = self._stuck.get(entry.rank)
        if self.pool.discipline.filling is not Filling.STRICT or not stuck:
            return None
        totals, nodes = self.round.totals, self.round.free.nodes
        kept = frozenset[str]().union(*(totals.eligible(shape) for shape, _ in stuck))
        cpu = "/cpu" if entry.shape.gpus == 0 else ""
        return lambda node_id: node_id + (cpu if nodes[node_id].gpus else "") not in kept

    def _redeem(self, entry: Entry) -> Outcome:
        """Start a run on the nodes that it was promised, if no higher task took them."""
        slots = self._promises.take(entry)
        if slots is None:
            return Outcome.ASIDE
        self.assign(entry, slots, counted=True)
        return Outcome.SERVED

    def assign(self, entry: Entry, slots: tuple[Slot, ...], *, counted: bool = False) -> None:
        """Start an attempt on these slots."""
        round_, pool, task = self.round, self.pool, entry.task
        if not counted:
            round_.take(slots)
        start_deadline_at = round_.after(round_.settings.start_deadline_seconds)
        if round_.crosses(pool, slots):
            round_.crossing(pool).begin(promised=counted)
        names = {"node_ids": ", ".join(nodes_of(slots)[:3]), "group": task.group}
        decision = Assign(
            task_id=task.id,
            attempt=task.attempt + 1,
            level=entry.level,
            placements=placements_of(slots, task.spec, round_.index.nodes),
            start_deadline_at=start_deadline_at,
            resume_from=task.checkpoint,
            reason=reason(ReasonCode.PLACED, names=names, **entry.shape.numbers),
            order_key=order_keys.starting_key(round_, pool, task),
        )
        round_.wake_at(start_deadline_at)
        round_.assign(task, decision, pool.size(task), counted=counted)

    def promise(self, entry: Entry, slots: tuple[Slot, ...]) -> None:
        """Reserve these slots for the task until all of them are observed free."""
        round_, pool, task = self.round, self.pool, entry.task
        round_.keep(slots)
        if round_.crosses(pool, slots):
            round_.crossing(pool).promise()
        round_.charge(task, entry.level, round_.totals.need(entry.shape), pool.size(task))
        round_.explain(
            task,
            round_.waits(ReasonCode.WAITS_FOR_VICTIMS, entry.shape),
            promised=slots,
            level=entry.level,
        )


def chosen_level(
    task: Task, totals: Totals, quota_usage: QuotaUsage, level_max: Priority
) -> Priority:
    """The level at which a waiting AUTO task counts now."""
    need = totals.need(task.shape)
    level = auto_level(task, need, quota_usage, level_max)
    if level is Priority.IDLE and (least := totals.least_need(task.shape)) != need:
        # No level has quota left for whole nodes of the largest kind.
        level = auto_level(task, least, quota_usage, level_max)
    return level


def _arrival(task: Task) -> tuple[datetime, str]:
    return task.submitted_at, task.id


class Promises:
    """The promises of one pool that can be redeemed in this round.

    The walk evaluates them with the waiting tasks, each before all others of its rank: a higher
    level that arrives when a promise is ripe takes the nodes instead of the promised run.
    """

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
        """Withdraw promises that cannot be kept, and find those whose nodes are free now."""
        round_, pool = self._round, self._pool
        depths: Mapping[str, Depth] = round_.coverage(pool) if pool.clusters else {}
        for task_id, task in sorted(pool.promised.items()):
            if task_id in round_.moved or task_id in round_.withdrawn:
                continue
            passed = self._passed(task)
            if round_.index.broken(task, round_.withdrawn) or (
                # What leaving runs still hold of a quota may be what the task waits for.
                passed and self._passed(task, round_.leaving())
            ):
                round_.withdraw_promise(task)
            elif not passed and self._is_ripe(task) and not retry_later(task, round_.now):
                depth = depths.get(task_id, UNCOVERED)
                rank, own = rank_of(WEIGHTS[task.level], depth), f"{task_id}/promised"
                cluster = pool.clusters.of(task) if pool.clusters else ""
                self._ripe[own] = Entry(
                    rank, -inf, own, task, task.shape, task.level, cluster, depth
                )

    def _passed(self, task: Task, leaving: Iterable[Task] = ()) -> bool:
        """True if a limit, or the most that its virtual cluster may hold, is passed.

        Even once the runs in ``leaving`` have left; the promise itself is counted.
        """
        round_, pool = self._round, self._pool
        runs = list(leaving)
        if round_.quota_usage.passed(task, task.level, runs):
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
        """The promises that were not redeemed yet."""
        return [entry for entry in self._ripe.values() if entry.task.id not in self._round.served]

    def take(self, entry: Entry) -> tuple[Slot, ...] | None:
        """The promised slots; None if another task took them meanwhile."""
        round_, task = self._round, entry.task
        if task.id in round_.withdrawn or not self._is_ripe(task):
            return None
        slots = round_.index.slots(task)
        self._begun.update(slot.node_id for slot in slots if not slot.mask)
        for node_id, _, resources in slots:
            if resources is not NO_RESOURCES:
                before = self._given.get(node_id, NO_RESOURCES)
                self._given[node_id] = NodeResources(
                    before.cpus + resources.cpus, before.memory_bytes + resources.memory_bytes
                )
        return slots


class OwnerOrder:
    """First come, first served inside a user, where a discipline orders by user (``rotation``).

    A task waits while an earlier one of its owner and level waits for nodes that it could use. Else
    the owner's later small tasks would fill every node that comes free, and because no task takes
    nodes from its own owner's runs, a gang of the owner would wait for as long as such tasks
    arrive.
    Tasks of other users are not held back.
    """

    def __init__(self, round_: Round, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        # Tasks that are in no queue, by owner: those without an order key, those that are back from
        # a pause, and those whose promises were withdrawn.
        self._individual: dict[str, list[Key]] = {}

    def begin(self, individual: Iterable[Task]) -> None:
        """Note the tasks that are evaluated individually in the walk that begins."""
        self._individual.clear()
        if self._pool.discipline.by_user:
            for task in individual:
                self.add(task)

    def add(self, task: Task) -> None:
        """Note one more."""
        pool = self._pool
        in_queues = task.state is QUEUED and pool.has_order_key(task) and not task.promised
        if pool.discipline.by_user and not in_queues:
            insort(self._individual.setdefault(task.owner, []), self._key(task))

    def _key(self, task: Task) -> Key:
        return self._pool.key(self._round.order_key_of(task)), task.id

    def stops(self, entry: Entry, entry_of: Callable[[Task], Entry]) -> Outcome | None:
        """Let a task wait behind an earlier one of its owner; None: there is none."""
        if not self.behind(entry, entry_of):
            return None
        why = self._round.waits(ReasonCode.WAITS_BEHIND_OTHERS, entry.shape)
        self._round.explain(entry.task, why)
        return Outcome.BEHIND

    def behind(self, entry: Entry, entry_of: Callable[[Task], Entry]) -> bool:
        """True if an earlier task of the owner waits for nodes that this one could use."""
        if not self._pool.discipline.by_user:
            return False
        totals = self._round.totals
        return any(
            each.rank == entry.rank
            and each.level is entry.level
            and totals.competes(entry.shape, each.shape)
            for each in self._earlier(entry.task, entry_of)
        )

    def _earlier(self, task: Task, entry_of: Callable[[Task], Entry]) -> Iterator[Entry]:
        """For each kind of earlier task of the owner, the first that nothing but nodes stops."""
        tasks, own = self._round.index.tasks, self._key(task)
        rows = [queue.keys for queue in self._pool.queues.owned(task.owner)]
        for keys in (*rows, *([key] for key in self._individual.get(task.owner, ()))):
            for key in keys:
                if key >= own:
                    break
                each = tasks[key[1]]
                if self._gone(each):
                    continue
                entry = entry_of(each)
                if not is_blocked(self._round, self._pool, entry):
                    yield entry
                # The next of a queue are of the same level and shape, and stopped by the same.
                break

    def _gone(self, task: Task) -> bool:
        """True if it no longer waits, or waits for its retry."""
        round_ = self._round
        moved = task.id in round_.moved and task.state is QUEUED
        return task.id in round_.served or moved or retry_later(task, round_.now)
