"""Defragmentation: where a guarantee fails by fragmentation alone, runs are moved together.

Guarantees count node equivalents, and small runs of several virtual clusters may lie so that no
node is whole, though each is within its guarantee. A task that a guarantee covers then has runs
moved that are covered no better: they are preempted like victims, but only if each of them has a
place elsewhere, beside the task. The plan names that place (``moves_to``), so that the check
verifies it, and the round keeps it from others; afterwards the guarantee of the moved run secures
it. ``allocate.py`` calls this after ``victims.py``, which takes from borrowers and lower levels.
"""

from __future__ import annotations

from collections.abc import Iterator

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED
from services.scheduler.domain.model.lifecycle import LEAVING
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.placement.capacity import Allowed
from services.scheduler.domain.placement.node_index import usable_mask
from services.scheduler.domain.placement.slots import Slot, placements_of
from services.scheduler.domain.preemption import victims
from services.scheduler.domain.preemption.release import request_release
from services.scheduler.domain.preemption.victims import Trial
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.round import Round

# No more runs are moved for one task; and from so many of the cheapest nodes it is tried.
MOVES_MAX = 64
TRIES_MAX = 16


def find(
    round_: Round, pool: Pool, entry: Entry, allowed: Allowed | None = None
) -> tuple[Slot, ...] | None:
    """Slots for the task once runs have moved together; requests those to leave."""
    if entry.depth >= UNCOVERED or not victims.enough(round_, pool, entry):
        return None
    borrowed = Trial(round_, pool, entry, allowed)
    for task in victims.candidates(round_, pool, entry):
        borrowed.give(task)
    nodes = list(_nodes(round_, pool, entry, borrowed))
    for first in range(min(len(nodes), TRIES_MAX)):
        found = _moved(borrowed, nodes[first:])
        if found is not None:
            return _send(round_, pool, entry, *found)
    return None


def _nodes(round_: Round, pool: Pool, entry: Entry, borrowed: Trial) -> Iterator[list[Task]]:
    """The runs that may be moved, node by node, cheapest first.

    Only of nodes that hold a rank of the task once those have left.
    """
    tasks, shape, free = round_.index.tasks, entry.shape, borrowed.capacity.free
    there: dict[str, list[Task]] = {}
    for task_id, depth in round_.coverage(pool).items():
        task = tasks.get(task_id)
        if (
            task is not None
            and depth >= entry.depth
            and task_id not in borrowed.given
            and task.holds
            and task.state not in LEAVING
            and victims.is_preemptible(round_, pool, task)
        ):
            for slot in round_.index.slots(task):
                there.setdefault(slot.node_id, []).append(task)
    found: list[tuple[float, str]] = []
    for node_id, runs in there.items():
        node = borrowed.capacity.nodes.get(node_id)
        if node is None:
            continue
        mask = free[node_id]
        for task in runs:
            mask |= round_.index.holders[node_id][task.id]
        usable = usable_mask(node)
        if any(
            mask & usable == usable
            if each.gpus is None
            else (mask & usable).bit_count() >= each.gpus
            for each in shape.each
        ):
            cost = sum(victims.preemption_cost(pool, task, round_.seconds) for task in runs)
            found.append((cost, node_id))
    for _, node_id in sorted(found):
        yield sorted(there[node_id], key=lambda each: each.id)


def _moved(
    borrowed: Trial, nodes: list[list[Task]]
) -> tuple[Trial, dict[str, tuple[Slot, ...]]] | None:
    """What works if the runs of the first of these nodes move, as many nodes as it takes."""
    trial = borrowed.copy()
    moving: dict[str, Task] = {}
    for runs in nodes:
        for task in runs:
            if task.id not in moving:
                moving[task.id] = task
                trial.give(task)
        if len(moving) > MOVES_MAX:
            return None
        if trial.pick() is not None:
            break
    if _new_places(trial, borrowed) is None:
        return None
    trial.spare(lambda: _new_places(trial, borrowed) is not None)
    new_places = _new_places(trial, borrowed)
    return None if new_places is None else (trial, new_places)


def _new_places(trial: Trial, borrowed: Trial) -> dict[str, tuple[Slot, ...]] | None:
    """Places for all that is moved, beside the task; None if one of them finds none."""
    slots, pool = trial.pick(), trial.pool
    if slots is None:
        return None
    left = trial.capacity.copy()
    left.take(slots)
    # None of them crosses the largest domains in its new place.
    inside = trial.round.topology(pool, pool.policy.cross_zone_gangs_max)
    moving = [task for task in trial.taken if task.id not in borrowed.given]
    new_places: dict[str, tuple[Slot, ...]] = {}
    for task in sorted(moving, key=lambda each: (-pool.size(each), each.id)):
        new_place = left.pick(task.shape, topology=inside)
        if new_place is None:
            return None
        left.take(new_place)
        new_places[task.id] = new_place
    return new_places


def _send(
    round_: Round, pool: Pool, entry: Entry, trial: Trial, new_places: dict[str, tuple[Slot, ...]]
) -> tuple[Slot, ...]:
    slots = trial.pick()
    assert slots is not None, "it was found with these runs gone"
    taken = [task for task in trial.taken if task.id not in new_places]
    victims.preempt(round_, pool, taken, entry, ReasonCode.RECLAIMED_BY)
    names = {"task": entry.id, "cluster": entry.cluster}
    for task_id, new_place in sorted(new_places.items()):
        task = round_.index.tasks[task_id]
        cost = round(victims.preemption_cost(pool, task, round_.seconds))
        why = reason(ReasonCode.MOVED_FOR, names=names, cost_node_seconds=cost)
        there = placements_of(new_place, task.spec, round_.index.nodes)
        request_release(round_, task, why, beneficiary=entry.id, moves_to=there)
    for new_place in new_places.values():
        round_.keep(new_place)
    return slots
