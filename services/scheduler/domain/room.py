"""Room for a waiting task: what is coming free anyway, else the least that must be asked to go.

Who may be asked: runs that are covered less by a guarantee than the task would be
(``clusters.py``), and runs of strictly lower weight that are covered no better; past their
protected minimum, or not started yet. Promises to lower tasks are taken first: that costs nothing.
Runs are added from the lowest level and the cheapest on (node-seconds since the last checkpoint,
and what being moved costs) until the gang fits; then, in reverse, each that is not needed is
spared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.clusters import UNCOVERED, Depth
from services.scheduler.domain.floods import flooded
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.moments import protected_until
from services.scheduler.domain.order import Entry
from services.scheduler.domain.placement.place import Allowed, Capacity, Slot
from services.scheduler.domain.pool import Pool, saved_until, units_of
from services.scheduler.domain.quota import Account
from services.scheduler.domain.round import Round
from services.scheduler.domain.why import reason

ALMOST = 1e-6


def move_cost(pool: Pool, task: Task, now: float) -> float:
    """What sending a run away costs now, in node-seconds: unsaved work, and being moved."""
    return pool.size(task) * (max(0.0, now - saved_until(task)) + pool.move_seconds(task))


def find(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """Slots for the task among what is free, coming, or can be made to come; asks who must go.

    ``allowed`` narrows the nodes.
    """
    slots = coming_anyway(round_, pool, entry, allowed)
    if slots is None and _could(round_, pool, entry):
        slots = _make(round_, pool, entry, allowed)
    return slots


def find_within_quota(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """Slots for a task that only lower runs of its own owner keep from its quota; asks them to go.

    Else a user whose own lower run uses the quota up could not run anything more urgent until that
    run ends. Runs of others go only for nodes, as for any task.
    """
    clusters, size = round_.clusters(pool), pool.size(entry.task)
    if entry.cluster and clusters.full(entry.cluster, size) is not None:
        return None
    own = _own_over_quota(round_, pool, entry)
    if not own or flooded(round_, pool, entry) is not None:
        return None
    trial = round_.soon(pool).copy()
    for task in own:
        trial.give(round_.index.slots(task))
    others: list[Task] = []
    if pick(round_, pool, entry, trial, allowed) is None:
        asked = {task.id for task in own}
        for task in _candidates(round_, pool, entry):
            if task.id in asked:
                continue
            trial.give(round_.index.slots(task))
            others.append(task)
            if trial.fits(entry.shape) and pick(round_, pool, entry, trial, allowed) is not None:
                break
        else:
            return None
        others = spare(round_, pool, entry, trial, others, allowed)
    code = ReasonCode.RECLAIMED_BY if entry.depth < UNCOVERED else ReasonCode.PREEMPTED_BY
    send(round_, pool, [*own, *others], entry, code)
    return pick(round_, pool, entry, trial, allowed)


def _own_over_quota(round_: Round, pool: Pool, entry: Entry) -> list[Task]:
    """The owner's cheapest lower runs and promises without which the limits admit the task.

    Empty if those are not enough, or if what leaves anyway is.
    """
    ledger, task = round_.ledger, entry.task
    lacking = ledger.lacking(task, entry.level, round_.totals.need(entry.shape))
    if not lacking:
        return []
    for run in round_.leaving():
        _give_back(lacking, ledger.counted(run))
    own = [*pool.runs_of.get(task.owner, {}).values()]
    own += (each for each in _promised(round_, pool) if each.owner == task.owner)
    lower = [
        each
        for each in own
        if WEIGHTS[each.level] < entry.weight
        and (each.promised or may_go(round_, pool, each))
        and (not pool.clusters or _outranks_own(round_, pool, entry, each))
    ]
    lower.sort(key=lambda each: (WEIGHTS[each.level], *_own_cost(round_, pool, each)))
    chosen: list[Task] = []
    for each in lower:
        counted = ledger.counted(each)
        if any(over > 0 and counted.get(account) for account, over in lacking.items()):
            _give_back(lacking, counted)
            chosen.append(each)
    if any(over > 0 for over in lacking.values()):
        return []
    for each in reversed(chosen.copy()):
        counted = ledger.counted(each)
        if all(over + counted.get(account, 0) <= 0 for account, over in lacking.items()):
            _give_back(lacking, {account: -amount for account, amount in counted.items()})
            chosen.remove(each)
    return chosen


def _outranks_own(round_: Round, pool: Pool, entry: Entry, task: Task) -> bool:
    """What a guarantee covers is safe from a gang of its own owner that borrows."""
    claim = pool.coverage.claim(entry.cluster, pool.size(entry.task), entry.weight)
    depth = round_.coverage(pool)[task.id]
    return outranks(entry, entry.cluster, claim, task, depth, pool.clusters.of(task))


def _own_cost(round_: Round, pool: Pool, task: Task) -> tuple[float, str]:
    return 0.0 if task.promised else move_cost(pool, task, round_.seconds), task.id


def _give_back(lacking: dict[Account, int], counted: Mapping[Account, int]) -> None:
    for account, amount in counted.items():
        if account in lacking:
            lacking[account] -= amount


def coming_anyway(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """A place in what leaving runs set free and nobody is promised."""
    soon = round_.soon(pool)
    return None if soon is round_.free else pick(round_, pool, entry, soon, allowed)


def pick(
    round_: Round, pool: Pool, entry: Entry, capacity: Capacity, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """A place for a gang as the pool's topology wants it."""
    return capacity.pick(entry.shape, allowed, topology=round_.topology(pool))


def takeable(round_: Round, pool: Pool, weight: int, shape: Shape, cluster: str) -> float:
    """Node equivalents that a task might take from runs and promises, at most."""
    if not pool.clusters:
        return pool.lower_units(weight) + round_.promised_units(pool, weight)
    depth = round_.clusters(pool).depth(cluster, units_of(shape, pool.width))
    return pool.coverage.takeable(cluster, depth, weight)


def _could(round_: Round, pool: Pool, entry: Entry) -> bool:
    """False if not even all that it may take would be enough; counts only."""
    most = takeable(round_, pool, entry.weight, entry.shape, entry.cluster)
    there = round_.soon(pool).free_units(pool.group) + most
    return most > 0 and there >= pool.least_units(entry.shape) - ALMOST


def _make(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None
) -> tuple[Slot, ...] | None:
    """Ask the least to go that lets the gang fit; None, and nobody asked, if all is not enough."""
    trial = round_.soon(pool).copy()
    taken: list[Task] = []
    fits = False
    for task in _candidates(round_, pool, entry):
        trial.give(round_.index.slots(task))
        taken.append(task)
        if trial.fits(entry.shape):
            fits = pick(round_, pool, entry, trial, allowed) is not None
            if fits:
                break
    if not fits:
        return None
    victims = spare(round_, pool, entry, trial, taken, allowed)
    code = ReasonCode.RECLAIMED_BY if entry.depth < UNCOVERED else ReasonCode.PREEMPTED_BY
    send(round_, pool, victims, entry, code)
    return pick(round_, pool, entry, trial, allowed)


def spare(  # noqa: PLR0917 - all of them say what is tried
    round_: Round,
    pool: Pool,
    entry: Entry,
    trial: Capacity,
    taken: list[Task],
    allowed: Allowed | None = None,
) -> list[Task]:
    """Of the runs taken, last first, leave those alone that are not needed; ``trial`` follows."""
    victims: list[Task] = []
    for task in reversed(taken):
        slots = round_.index.slots(task)
        trial.take(slots)
        if not trial.fits(entry.shape) or pick(round_, pool, entry, trial, allowed) is None:
            trial.give(slots)
            victims.append(task)
    return victims


def send(
    round_: Round, pool: Pool, victims: Iterable[Task], entry: Entry, code: ReasonCode
) -> None:
    """Ask runs to go and take promises back, for a task; each is told what that costs."""
    names = {"task": entry.id, "priority": entry.level.value}
    if code is ReasonCode.RECLAIMED_BY:
        names["cluster"] = pool.clusters.of(entry.task)
    for task in sorted(victims, key=lambda each: each.id):
        if task.promised:
            round_.release(task)
        else:
            cost = round(move_cost(pool, task, round_.seconds))
            why = reason(code, names=names, cost_node_seconds=cost)
            tell_to_go(round_, task, why, beneficiary=entry.id)


def may_go(round_: Round, pool: Pool, task: Task) -> bool:
    """True if a run may be asked to go at all now."""
    if task.id in round_.moved:
        return False
    until = protected_until(task, pool.protected_seconds)
    return until is None or until <= round_.now


def _candidates(round_: Round, pool: Pool, entry: Entry) -> Iterator[Task]:
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
            if may_go(round_, pool, tasks[task_id]):
                yield tasks[task_id]


def _promised(round_: Round, pool: Pool) -> list[Task]:
    return [
        task
        for task_id, task in sorted(pool.promised.items())
        if task_id not in round_.released and task_id not in round_.moved
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
        if task_id not in round_.released and may_go(round_, pool, task):
            yield task
