"""What would let a waiting task start: clauses with the numbers of now, by the reason it waits for.

Called by ``explain.py``. A clause is true by itself: any one of them may be what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from libs.contracts.messages import ReasonCode, TaskState, Unit
from libs.contracts.reasons import level_name
from services.scheduler.domain import room
from services.scheduler.domain.accounts import counted, entitled, turn_budget
from services.scheduler.domain.clusters import UNCOVERED
from services.scheduler.domain.explanation.standing import Standing, reach, run_key
from services.scheduler.domain.explanation.words import counted as number
from services.scheduler.domain.explanation.words import moment, named, span
from services.scheduler.domain.lifecycle import PREEMPTING
from services.scheduler.domain.model import Node, Shape, Task
from services.scheduler.domain.moments import protected_until
from services.scheduler.domain.order import LEVEL_OF_WEIGHT
from services.scheduler.domain.passes import turn_cost
from services.scheduler.domain.placement.place import Capacity, slots_of
from services.scheduler.domain.snapshot import Snapshot

# Runs of one level that are looked at; beyond them the answer says less, not something wrong.
RUNS_LOOKED_MAX = 2_000


def of_any(snapshot: Snapshot, task: Task) -> Iterator[str]:
    """What helps whatever state the task is in."""
    if task.attempts_without_progress >= snapshot.settings.no_progress_attempts:
        yield (
            f"save checkpoints more often: {task.attempts_without_progress} attempts in a row"
            " ended without a newer one"
        )
    if task.state is TaskState.PAUSED:
        yield "resume it"


def remedies(standing: Standing, now: datetime) -> Iterator[str]:
    """What would let a queued task start."""
    remedy = _REMEDIES.get(standing.why.code)
    if remedy is not None:
        yield from remedy(standing, now)


def _capacity(standing: Standing, now: datetime) -> Iterator[str]:
    shape = standing.entry.shape
    missing = shape.nodes - _fitting(standing.round.free, shape)
    if missing > 0:
        verb = "comes" if missing == 1 else "come"
        yield f"{missing} more of its {number(shape.nodes, 'node')} {verb} free"
    else:
        yield "its nodes are free but lie in different domains of the network, or others come first"
    yield from _lower(standing, now)
    if standing.pool.discipline.preempts:
        yield from _turns(standing, now)
    yield from _higher(standing)
    yield from _guarantee(standing)
    cordoned = _not_offered(standing, shape)
    if cordoned:
        yield f"nodes that are cordoned or not ready come back: {named(cordoned)}"


def _behind(standing: Standing, now: datetime) -> Iterator[str]:
    count = standing.above + standing.before
    if count:
        verb = "starts or leaves" if count == 1 else "start or leave"
        yield f"the {number(count, 'task')} before it {verb} the queue"
    yield from _capacity(standing, now)


def _fitting(free: Capacity, shape: Shape) -> int:
    """How many of the gang's nodes could be had at once."""
    low, high = 0, shape.nodes
    while low < high:
        middle = (low + high + 1) // 2
        fits = free.pick(shape._replace(nodes=middle)) is not None
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _runs(standing: Standing, weight: int) -> list[Task]:
    """Runs of one level, the last in its order first."""
    tasks, row = standing.round.index.tasks, standing.pool.running.get(weight, [])
    return [tasks[task_id] for _, task_id in islice(reversed(row), RUNS_LOOKED_MAX)]


def _lower(standing: Standing, now: datetime) -> Iterator[str]:
    """Runs of lower levels: why they do not make room already."""
    pool, own = standing.pool, standing.entry.weight
    lower = [task for weight in pool.running if weight < own for task in _runs(standing, weight)]
    if not lower:
        return
    ends = [protected_until(task, pool.protected_seconds) for task in lower]
    soon = sorted(end for end in ends if end is not None and end > now)
    if soon:
        yield f"{number(len(soon), 'lower run')} may be preempted from {moment(soon[0])}"
    if len(soon) < len(lower):
        yield (
            f"the other {number(len(lower) - len(soon), 'lower run')} would go at once, but even"
            " with all that they hold the gang would not fit"
            if soon
            else f"the {number(len(lower), 'lower run')} would go at once, but even with all that"
            " they hold the gang would not fit"
        )


def _higher(standing: Standing) -> Iterator[str]:
    """What a higher priority would do."""
    pool, own = standing.pool, standing.entry.weight
    others = {weight: len(row) for weight, row in pool.running.items() if weight >= own}
    if others:
        lowest = LEVEL_OF_WEIGHT[min(others)]
        count = sum(others.values())
        which = "the 1 run that is" if count == 1 else f"some of the {count} runs that are"
        yield f"a priority above {level_name(lowest)} could preempt {which} not below it"


def _guarantee(standing: Standing) -> Iterator[str]:
    """What its virtual cluster would give it."""
    entry = standing.entry
    if not entry.cluster:
        return
    clusters = standing.round.clusters(standing.pool)
    guaranteed, held = clusters.guaranteed(entry.cluster), clusters.held(entry.cluster)
    if entry.depth == UNCOVERED:
        yield (
            f"virtual cluster {entry.cluster} holds {held:g} of {number(guaranteed, 'node')} that"
            " it is guaranteed: with this task it would borrow, and what is borrowed takes nothing"
            " from others"
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """What it takes to give a task the nodes of runs of its own level that come after it."""

    # Runs after it in the order, and of these those that are held or protected for now.
    later: int
    kept_until: datetime | None
    kept: int
    # Who would be asked, and what that costs; None: all of them together are not enough.
    victims: tuple[str, ...] | None = None
    cost: float = 0.0
    # What the pool's budget holds now, and when it holds enough; None: never.
    tokens: float = 0.0
    payable_at: datetime | None = None


def turn_of(standing: Standing, now: datetime) -> Turn:
    """Look at a turn as the next pass would."""
    round_, pool, entry = standing.round, standing.pool, standing.entry
    spares = pool.discipline.spares
    runs = [
        (run_key(round_, pool, task), task)
        for task in _runs(standing, entry.weight)
        if not spares(entry.task, task)
    ]
    keys = {task.id: key for key, task in runs}
    size = pool.size(entry.task)
    free = round_.free.free_units(pool.group) + standing.sharing.turns.coming_units()
    after = reach(round_, pool, entry, max(0.0, size - free) / size)
    runs.sort(key=lambda each: (-each[0], each[1].id))
    later = [task for key, task in runs if key > after]
    opens = {task.id: _opens(standing, task, now) for task in later}
    kept = [at for at in opens.values() if at is not None]
    none = Turn(len(later), min(kept, default=None), len(kept))
    trial = room.Trial(round_, pool, entry)
    for task in later:
        if opens[task.id] is None:
            trial.give(task)
            if trial.pick() is not None:
                break
    else:
        return none
    trial.spare()
    victims = trial.taken
    gone = sum(map(pool.size, victims)) / size
    if not victims or min(keys[task.id] for task in victims) <= reach(round_, pool, entry, gone):
        return none
    cost = sum(turn_cost(pool, task, round_.seconds) for task in victims)
    budget = turn_budget(pool)
    account = counted(budget, pool.book.tokens, pool.book.tokens_at, round_)
    may = entitled(round_, pool, entry.task)
    at = budget.covered_at(account, cost, entitled=may) if pool.discipline.pays else 0.0
    return Turn(
        len(later),
        min(kept, default=None),
        len(kept),
        tuple(sorted(str(task.id) for task in victims)),
        cost,
        account.tokens,
        None if at is None else max(now, datetime.fromtimestamp(at, UTC)),
    )


def _opens(standing: Standing, task: Task, now: datetime) -> datetime | None:
    """Until when a run is held or protected; None: it may be asked to go now."""
    held = standing.round.marks_of(task).held_until
    protected = protected_until(task, standing.pool.protected_seconds)
    last = max((at for at in (held, protected) if at is not None), default=None)
    return last if last is not None and last > now else None


def _turns(standing: Standing, now: datetime) -> Iterator[str]:
    """When the order of its level gives it the nodes of others."""
    pool, level = standing.pool, level_name(standing.entry.level)
    turn = turn_of(standing, now)
    if turn.kept and turn.kept_until is not None:
        yield (
            f"{number(turn.kept, 'run')} of level {level} after it in the order may be asked to go"
            f" later, the first from {moment(turn.kept_until)}"
        )
    if turn.victims is not None:
        cost = f"for {span(turn.cost)} of one node ({turn.cost:.0f} node-seconds)"
        who = f"its turn: {number(len(turn.victims), 'run')} of level {level} after it in the order"
        who += f" ({named(turn.victims)}) could be asked to go"
        if not pool.discipline.pays:
            yield who
        elif turn.payable_at is None:
            yield f"{who} {cost}, but the pool's budget for turns is 0"
        elif turn.payable_at > now:
            has = f"holds {turn.tokens:.0f}" if turn.tokens >= 0 else f"owes {-turn.tokens:.0f}"
            yield (
                f"{who} {cost}; the pool's budget {has} and is enough from"
                f" {moment(turn.payable_at)}, if nobody before it spends it"
            )
        elif standing.before:
            yield f"{who} {cost}, once the {number(standing.before, 'task')} before it are served"
        else:
            yield f"{who} {cost}, at the next pass"
    elif turn.later:
        yield (
            f"the {number(turn.later, 'run')} of level {level} after it in the order that could be"
            " asked to go hold too little together"
        )
    yield from _slices(standing, now)
    if pool.discipline.pays:
        yield from _grant(standing, now)


def _slices(standing: Standing, now: datetime) -> Iterator[str]:
    """When runs that come before it get a new place in the order."""
    round_, pool, entry = standing.round, standing.pool, standing.entry
    runs = _runs(standing, entry.weight)
    most = reach(round_, pool, entry, 1.0)
    before = [task for task in runs if run_key(round_, pool, task) <= most]
    ends = sorted(
        task.marks.rekey_at
        for task in before
        if task.marks.rekey_at is not None and task.marks.rekey_at > now
    )
    if ends:
        yield (
            f"of the {number(len(before), 'run')} before it in the order the next slice ends at"
            f" {moment(ends[0])}; after that the run may come later than it"
        )


def _grant(standing: Standing, now: datetime) -> Iterator[str]:
    """When it has gone without service for so long that it is next."""
    task, numbers = standing.task, standing.pool.tempo.numbers
    if standing.round.marks_of(task).granted:
        yield "it went without service for long and is next in its level"
        return
    due = (task.unserved_since or task.submitted_at) + timedelta(
        seconds=numbers.grant_after_seconds
    )
    when = f"from {moment(due)} on" if due > now else "as soon as the account of grants covers it"
    yield f"{when} it may be granted the first place, as a task that went without service for long"


def _not_offered(standing: Standing, shape: Shape) -> list[str]:
    return [node.id for node in _nodes(standing, shape.group) if not node.offered]


def _nodes(standing: Standing, group: str) -> Iterator[Node]:
    for node in standing.round.index.nodes.values():
        if node.group == group and not node.removed:
            yield node


def _quota(standing: Standing, _now: datetime) -> Iterator[str]:
    round_, entry = standing.round, standing.entry
    need = round_.totals.need(entry.shape)
    excess = round_.ledger.excess(entry.task, entry.level, need)
    if excess is None:
        yield "nothing: it is looked at again at once"
        return
    limit, amount = excess.limit, need.of(excess.limit.unit)
    unit = "nodes" if limit.unit is Unit.NODES else "GPUs"
    missing = excess.held + amount - limit.limit
    if amount <= limit.limit:
        yield f"{missing} of the {excess.held} {unit} held under this quota come free"
    yield f"raise the quota from {limit.limit} to {excess.held + amount} {unit}"


def _cluster(standing: Standing, _now: datetime) -> Iterator[str]:
    pool, entry = standing.pool, standing.entry
    clusters, size = standing.round.clusters(pool), pool.size(entry.task)
    full = clusters.full(entry.cluster, size)
    if full is None or full.nodes_max is None:
        yield "nothing: it is looked at again at once"
        return
    held = clusters.held(full.name)
    if size <= full.nodes_max:
        missing = number(held + size - full.nodes_max, "node")
        yield f"{missing} of the {held:g} held by virtual cluster {full.name} come free"
    most = f"the most that virtual cluster {full.name} may hold"
    yield f"raise {most} from {full.nodes_max:g} to {number(held + size, 'node')}"


def _retry(standing: Standing, now: datetime) -> Iterator[str]:
    until = standing.task.not_before_at
    if until is not None:
        seconds = max(0.0, (until - now).total_seconds())
        yield f"the retry time comes in {seconds:.0f} s"
    yield "pause and resume it to try at once"


def _too_small(standing: Standing, _now: datetime) -> Iterator[str]:
    shape = standing.entry.shape
    away = _not_offered(standing, shape)
    if away:
        yield f"nodes that are cordoned or not ready come back: {named(away)}"
    nodes = list(_nodes(standing, shape.group))
    sick = [node.id for node in nodes if node.offered and node.unusable_gpus]
    if sick:
        yield f"GPUs that must not be used become usable: on {named(sick)}"
    if shape.selector or any(node.taints for node in nodes):
        yield "nodes get the labels that it selects, or lose taints that it does not tolerate"
    if not away and not sick:
        yield f"nodes are added to group {shape.group}"


def _inventory(_standing: Standing, _now: datetime) -> Iterator[str]:
    yield "the launcher lists its nodes"


def _victims(standing: Standing, now: datetime) -> Iterator[str]:
    """The runs that hold what it is promised go."""
    holders, pool = standing.round.index.holders, standing.pool
    slots = slots_of(standing.task)
    owners = {
        owner
        for node_id, mask in slots
        for owner, bits in holders.get(node_id, {}).items()
        if bits & (mask or bits)
    }
    leaving = [pool.leaving[owner] for owner in owners if owner in pool.leaving]
    one = len(owners) == 1
    yield (
        "the run that still holds what it is promised ends"
        if one
        else f"the {len(owners)} runs that still hold what it is promised end"
    )
    ends = [
        task.ack_deadline_at
        for task in leaving
        if task.state is PREEMPTING and task.ack_deadline_at is not None
    ]
    if ends:
        seconds = max(0.0, (max(ends) - now).total_seconds())
        yield f"at the latest in {seconds:.0f} s {'it is' if one else 'they are'} ended by force"


_REMEDIES: dict[ReasonCode, Callable[[Standing, datetime], Iterator[str]]] = {
    ReasonCode.WAITS_FOR_CAPACITY: _capacity,
    ReasonCode.WAITS_FOR_QUOTA: _quota,
    ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER: _cluster,
    ReasonCode.WAITS_BEHIND_OTHERS: _behind,
    ReasonCode.WAITS_FOR_VICTIMS: _victims,
    ReasonCode.WAITS_FOR_RETRY: _retry,
    ReasonCode.WAITS_FOR_INVENTORY: _inventory,
    ReasonCode.CLUSTER_TOO_SMALL_NOW: _too_small,
    ReasonCode.NEVER_FITS: _too_small,
}
