"""Victims for a waiting task: the least set of runs that must leave so that its gang fits.

Nodes that are being released anyway come first. Candidates are runs that are covered less by a
guarantee than the task would be (``virtual_clusters.py``), and runs of a strictly lower level that
are covered no better; past their protected minimum, or not started yet. Promises to lower tasks are
taken first, which costs nothing. Runs are added from the lowest level and the cheapest on
(node-seconds since the last checkpoint, and what being moved costs) until the gang fits; then, in
reverse, each that is not needed is spared. A gang crosses the largest domains of the network only
where that is much cheaper than to preempt inside one of them. Where a guarantee fails by
fragmentation alone, ``defragment.py`` moves runs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.blockers import flood_reason
from services.scheduler.domain.facts.pool import Pool, saved_until, units_of
from services.scheduler.domain.facts.timers import protected_until
from services.scheduler.domain.limits.quota_usage import Account
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED, Depth
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS, Shape, reason
from services.scheduler.domain.placement.capacity import Allowed, Capacity
from services.scheduler.domain.placement.slots import Slot
from services.scheduler.domain.placement.topology import address
from services.scheduler.domain.preemption.release import request_release
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.round import Round

ALMOST = 1e-6
# How many times as much victims inside one of the largest domains may cost as victims across them.
INSIDE_COST_MAX = 2.0


def preemption_cost(pool: Pool, task: Task, now: float) -> float:
    """What preempting a run costs now, in node-seconds: unsaved work, and being moved."""
    return pool.size(task) * (max(0.0, now - saved_until(task)) + pool.move_seconds(task))


class Trial:
    """What a waiting task would find if some runs had left and some promises were withdrawn.

    ``inside``: the gang may not cross the pool's largest domains. ``allowed`` narrows the nodes.
    """

    def __init__(
        self,
        round_: Round,
        pool: Pool,
        entry: Entry,
        allowed: Allowed | None = None,
        *,
        inside: bool = False,
    ) -> None:
        self.round, self.pool, self.entry = round_, pool, entry
        self.capacity: Capacity = round_.available_soon(pool).copy()
        # The tasks whose runs and promises count as free, by id.
        self.given: dict[str, Task] = {}
        self._allowed, self._inside = allowed, inside
        self._crossing = round_.crossing(pool).soon
        self._across = round_.index.crossing(pool.group)

    def copy(self) -> Trial:
        """An independent copy."""
        twin = Trial(self.round, self.pool, self.entry, self._allowed, inside=self._inside)
        twin.capacity, twin.given = self.capacity.copy(), self.given.copy()
        twin._crossing = self._crossing
        return twin

    def give(self, task: Task) -> None:
        """Count what a run holds, or a task is promised, as free."""
        index = self.round.index
        self.capacity.give(index.slots(task))
        self._crossing -= task.id in self._across
        self.given[task.id] = task

    def take_back(self, task: Task) -> None:
        """Count it as held again."""
        index = self.round.index
        self.capacity.take(index.slots(task))
        self._crossing += task.id in self._across
        del self.given[task.id]

    def pick(self) -> tuple[Slot, ...] | None:
        """A place for the task's gang, as the pool's topology wants it."""
        shape = self.entry.shape
        if not self.capacity.fits(shape):
            return None
        most = self.pool.policy.cross_zone_gangs_max
        crossing = most if self._inside else self._crossing
        topology = self.round.topology(self.pool, crossing)
        return self.capacity.pick(shape, self._allowed, topology=topology)

    def spare(self, works: Callable[[], bool] | None = None) -> None:
        """Of what was given, last first, leave alone what is not needed; all of it together is."""
        works = works or (lambda: self.pick() is not None)
        for task in reversed([*self.given.values()]):
            self.take_back(task)
            if not works():
                self.give(task)

    @property
    def taken(self) -> list[Task]:
        """The tasks whose runs or promises would be taken."""
        return [*self.given.values()]

    @property
    def runs(self) -> list[Task]:
        """Those of them that run."""
        return [task for task in self.given.values() if not task.promised]

    def cost(self) -> float:
        """What preempting these runs costs now."""
        return sum(preemption_cost(self.pool, task, self.round.seconds) for task in self.runs)

    def most_entitled(self) -> tuple[int, int]:
        """The best covered of these runs, of those the highest level; larger is more entitled."""
        depths: Mapping[str, Depth] = self.round.coverage(self.pool) if self.pool.clusters else {}
        return max(
            ((-depths.get(task.id, UNCOVERED), WEIGHTS[task.level]) for task in self.runs),
            default=(-UNCOVERED, -1),
        )


# From the domain that the victims should lie in (None: any) to what then works, or does not.
Search = Callable[[str | None], Trial | None]


def find(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """Slots for the task among what is free, being released, or can be preempted; preempts victims.

    ``allowed`` narrows the nodes.
    """
    slots = place_from_releases(round_, pool, entry, allowed)
    most = takeable(round_, pool, entry.weight, entry.shape, entry.cluster)
    if slots is None and most > 0 and enough(round_, pool, entry):
        slots = _make(round_, pool, entry, allowed)
    return slots


def find_within_quota(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """Slots for a task that only lower runs of its own owner keep from its quota; preempts these.

    Else a user whose own lower run uses the quota up could not run anything more urgent until that
    run ends. The quota is a limit, or the most that its virtual cluster may hold. A limit may count
    several groups: runs of those go for the quota alone. Runs of others go only for nodes, as for
    any task.
    """
    own = _own_over_quota(round_, pool, entry)
    if not own or flood_reason(round_, pool, entry) is not None:
        return None
    elsewhere = [task for task in own if task.group != pool.group]
    trial = Trial(round_, pool, entry, allowed)
    for task in own:
        if task.group == pool.group:
            trial.give(task)
    given_first = set(trial.given)

    def works() -> bool:
        """The gang fits, and the limits admit it because all of the owner's runs go."""
        return given_first <= trial.given.keys() and trial.pick() is not None

    if not works():
        for task in candidates(round_, pool, entry):
            if task.id not in given_first:
                trial.give(task)
                if works():
                    break
        else:
            return None
        trial.spare(works)
    code = ReasonCode.RECLAIMED_BY if entry.depth < UNCOVERED else ReasonCode.PREEMPTED_BY
    slots = trial.pick()
    preempt(round_, pool, trial.taken, entry, code)
    # A guarantee of this group does not cover the task in another one.
    preempt(round_, pool, elsewhere, entry, ReasonCode.PREEMPTED_BY)
    return slots


# A limit and whose holdings it counts; or the name of a virtual cluster that has a maximum.
_Quota: TypeAlias = Account | str


def _own_over_quota(round_: Round, pool: Pool, entry: Entry) -> list[Task]:
    """The owner's cheapest lower runs and promises without which the quotas admit the task.

    Empty if those are not enough, or if what leaves anyway is.
    """
    quota_usage, task, need = round_.quota_usage, entry.task, round_.totals.need(entry.shape)
    lacking: dict[_Quota, float] = {**quota_usage.lacking(task, entry.level, need)}
    if entry.cluster:
        lacking |= round_.clusters(pool).lacking(entry.cluster, pool.size(task))
    if not lacking:
        return []

    def counted(run: Task) -> Mapping[_Quota, float]:
        return _counted(round_, pool, run)

    for run in round_.leaving():
        _give_back(lacking, counted(run))
    lower = [*_own_lower(round_, pool, entry)]
    if quota_usage.across:
        for other in round_.index.pools.values():
            if other is not pool and other.group not in round_.snapshot.left_out:
                lower += _own_lower(round_, other, entry)
    lower.sort(key=lambda each: (WEIGHTS[each.level], *_own_cost(round_, each)))
    return _enough(lower, lacking, counted)


def _enough(
    lower: list[Task],
    lacking: dict[_Quota, float],
    counted: Callable[[Task], Mapping[_Quota, float]],
) -> list[Task]:
    """The first of these that give all that is lacking, without those not needed; else nothing."""
    chosen: list[Task] = []
    for each in lower:
        gives = counted(each)
        if any(over > ALMOST and gives.get(quota) for quota, over in lacking.items()):
            _give_back(lacking, gives)
            chosen.append(each)
    if any(over > ALMOST for over in lacking.values()):
        return []
    for each in reversed(chosen.copy()):
        gives = counted(each)
        if all(over + gives.get(quota, 0) <= ALMOST for quota, over in lacking.items()):
            _give_back(lacking, {quota: -amount for quota, amount in gives.items()})
            chosen.remove(each)
    return chosen


def _counted(round_: Round, pool: Pool, run: Task) -> Mapping[_Quota, float]:
    """What a run (or promise) takes of each limit, and of the pool's virtual clusters."""
    found: dict[_Quota, float] = {**round_.quota_usage.counted(run)}
    if pool.clusters and run.group == pool.group:
        found |= dict.fromkeys(pool.clusters.above(pool.clusters.of(run)), pool.size(run))
    return found


def _own_lower(round_: Round, pool: Pool, entry: Entry) -> Iterator[Task]:
    """The lower runs and promises in a pool, of the task's own or another, of the task's owner.

    In its own pool, those that it may take. In another pool it takes no nodes, so guarantees there
    do not count: among an owner's own tasks, levels decide which of them use the quota.
    """
    owner, own_pool = entry.task.owner, pool.group == entry.task.group
    own = [*pool.runs_of.get(owner, {}).values()]
    own += (each for each in _promised(round_, pool) if each.owner == owner)
    for each in own:
        if (
            WEIGHTS[each.level] < entry.weight
            and each.id not in round_.levels
            and (each.promised or is_preemptible(round_, pool, each))
            and (not pool.clusters or not own_pool or _outranks_own(round_, pool, entry, each))
        ):
            yield each


def _outranks_own(round_: Round, pool: Pool, entry: Entry, task: Task) -> bool:
    """True if the task may preempt its own owner's run: not if a guarantee covers only the run."""
    claim = pool.coverage.claim(entry.cluster, pool.size(entry.task), entry.weight)
    depth = round_.coverage(pool)[task.id]
    return outranks(entry, entry.cluster, claim, task, depth, pool.clusters.of(task))


def _own_cost(round_: Round, task: Task) -> tuple[float, str]:
    pool = round_.index.pools[task.group]
    return 0.0 if task.promised else preemption_cost(pool, task, round_.seconds), task.id


def _give_back(lacking: dict[_Quota, float], counted: Mapping[_Quota, float]) -> None:
    for quota, amount in counted.items():
        if quota in lacking:
            lacking[quota] -= amount


def place_from_releases(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """A place in what leaving runs release and what is not promised."""
    crossing = round_.crossing(pool)
    if round_.available_soon(pool) is round_.free and crossing.soon == crossing.now:
        return None
    return pick(round_, pool, entry, round_.available_soon(pool), allowed)


def pick(
    round_: Round, pool: Pool, entry: Entry, capacity: Capacity, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """A place for a gang as the pool's topology wants it, once leaving runs have left."""
    topology = round_.topology(pool, round_.crossing(pool).soon)
    return capacity.pick(entry.shape, allowed, topology=topology)


def takeable(round_: Round, pool: Pool, weight: int, shape: Shape, cluster: str) -> float:
    """Node equivalents that a task might take from runs and promises, at most."""
    if not pool.clusters:
        return pool.lower_units(weight) + round_.promised_units(pool, weight)
    depth = round_.clusters(pool).depth(cluster, units_of(shape, pool.width))
    return pool.coverage.takeable(cluster, depth, weight)


def enough(round_: Round, pool: Pool, entry: Entry) -> bool:
    """False if not even all that it may take would be enough; counts only."""
    most = takeable(round_, pool, entry.weight, entry.shape, entry.cluster)
    there = round_.available_soon(pool).free_units(pool.group) + most
    return there >= pool.least_units(entry.shape) - ALMOST


def _make(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None
) -> tuple[Slot, ...] | None:
    """Preempt the least that lets the gang fit; None, and nothing is preempted, if all is not
    enough."""

    def search(domain: str | None) -> Trial | None:
        trial = Trial(round_, pool, entry, allowed, inside=domain is not None)
        for task in candidates(round_, pool, entry):
            if domain is not None and not touches(round_, pool, task, domain):
                continue
            trial.give(task)
            if trial.pick() is not None:
                trial.spare()
                return trial
        return None

    trial = least_disruptive(round_, pool, search)
    if trial is None:
        return None
    code = ReasonCode.RECLAIMED_BY if entry.depth < UNCOVERED else ReasonCode.PREEMPTED_BY
    slots = trial.pick()
    preempt(round_, pool, trial.taken, entry, code)
    return slots


def least_disruptive(round_: Round, pool: Pool, search: Search) -> Trial | None:
    """What works at the least cost; across the largest domains only if that is much cheaper.

    ``search`` is called for each domain only where the cheapest that works crosses them.
    """
    found = search(None)
    slots = None if found is None else found.pick()
    if found is None or slots is None or not round_.crosses(pool, slots):
        return found
    inside = [
        trial for domain in round_.totals.zones(pool.group) if (trial := search(domain)) is not None
    ]
    best = min(inside, key=lambda each: (each.most_entitled(), each.cost()), default=None)
    if (
        best is not None
        and best.most_entitled() <= found.most_entitled()
        and best.cost() <= INSIDE_COST_MAX * found.cost() + ALMOST
    ):
        return best
    return found


def touches(round_: Round, pool: Pool, task: Task, domain: str) -> bool:
    """True if a run or promise has a part in this one of the pool's largest domains."""
    nodes, levels = round_.index.nodes, round_.totals.levels(pool.group)[:1]
    return any(
        slot.node_id in nodes and address(nodes[slot.node_id], levels) == (domain,)
        for slot in round_.index.slots(task)
    )


def preempt(
    round_: Round, pool: Pool, victims: Iterable[Task], entry: Entry, code: ReasonCode
) -> None:
    """Preempt runs and withdraw promises for a task; each reason has the cost."""
    names = {"task": entry.id, "priority": entry.level.value}
    if code is ReasonCode.RECLAIMED_BY:
        names["cluster"] = pool.clusters.of(entry.task)
    for task in sorted(victims, key=lambda each: each.id):
        if task.promised:
            round_.withdraw_promise(task)
        else:
            cost = round(preemption_cost(round_.index.pools[task.group], task, round_.seconds))
            why = reason(code, names=names, cost_node_seconds=cost)
            request_release(round_, task, why, beneficiary=entry.id)


def is_preemptible(round_: Round, pool: Pool, task: Task) -> bool:
    """True if a run may be requested to leave at all now."""
    if task.id in round_.moved:
        return False
    level = round_.levels.get(task.id)
    if level is not None and WEIGHTS[level] > WEIGHTS[task.level]:
        # It is being raised: it must not be taken at the level that it leaves.
        return False
    until = protected_until(task, pool.protected_seconds)
    return until is None or until <= round_.now


def candidates(round_: Round, pool: Pool, entry: Entry) -> Iterator[Task]:
    """Promises and runs that may be taken for the task, cheapest first."""
    tasks = round_.index.tasks
    if pool.clusters:
        yield from _less_covered(round_, pool, entry)
        return
    for weight in sorted({*pool.costs, *(WEIGHTS[t.level] for t in pool.promised.values())}):
        if weight >= entry.weight:
            return
        for task in _promised(round_, pool):
            if WEIGHTS[task.level] == weight:
                yield task
        for _, task_id in pool.cheapest(weight, round_.seconds):
            if is_preemptible(round_, pool, tasks[task_id]):
                yield tasks[task_id]


def _promised(round_: Round, pool: Pool) -> list[Task]:
    return [
        task
        for task_id, task in sorted(pool.promised.items())
        if task_id not in round_.withdrawn and task_id not in round_.moved
    ]


def outranks(  # noqa: PLR0917 - both sides of a comparison
    entry: Entry, cluster: str, claim: Depth, task: Task, depth: Depth, of: str
) -> bool:
    """True if the waiting task may take what ``task`` has, given how both are covered."""
    lower = WEIGHTS[task.level] < entry.weight
    if cluster and of == cluster:
        return lower and depth >= claim
    return depth > entry.depth or (depth == entry.depth and lower)


def _less_covered(round_: Round, pool: Pool, entry: Entry) -> Iterator[Task]:
    claim = pool.coverage.claim(entry.cluster, pool.size(entry.task), entry.weight)
    entitled = entry.cluster, entry.depth, claim, entry.weight
    for task_id in pool.coverage.candidates(*entitled, round_.seconds):
        task = round_.index.tasks[task_id]
        if task_id not in round_.withdrawn and is_preemptible(round_, pool, task):
            yield task
