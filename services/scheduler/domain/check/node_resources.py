"""What ranks share of a node apart from its GPUs: CPUs, memory and places of CPU-only ranks.

Part of ``check``. Adds up the rows, node by node. A node that does not report CPUs or memory
limits nothing by them, and a rank that requests none is counted by its GPUs alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from libs.contracts.messages import Placement
from libs.contracts.rank_sizes import sizes_of
from services.scheduler.domain.check.conservation import cpu_places
from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Decision, Hold, Kill, Plan, Preempt
from services.scheduler.domain.model.lifecycle import LEAVING
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.domain.model.values import CPUS_MAX


def overcommitted(snapshot: Snapshot, plan: Plan, *, deep: bool) -> Iterator[Violation]:
    """No rank is given, or promised, more of its node than others leave: CPUs, memory, a place for
    a CPU-only rank, or a node without GPUs.

    What begins must find it free of every run, on its way out or not; what is promised must find
    it once those have gone, beside everything else that is promised.
    """
    if not _requested(snapshot, plan):
        return
    starts, promises, decided = _given(snapshot, plan)
    wanted = {
        node_id
        for given in (starts, promises)
        for node_id, ranks in given.items()
        if any(rank.cpus or rank.memory_bytes or rank.cpu_only or rank.whole for rank in ranks)
    }
    if not wanted:
        return
    redeemed = _redeemed(snapshot, plan)
    released = {each.task_id for each in plan.decisions if isinstance(each, Preempt | Kill)}
    for node_id, held, kept in _there(snapshot, wanted, deep=deep):
        node = snapshot.nodes.get(node_id)
        if node is None:
            continue
        # A promise that the plan changes, or keeps by a start, does not count as it was.
        others = [task for task in kept if task.id not in decided]
        staying = [task for task in held if task.state not in LEAVING and task.id not in released]
        begun, promised_ranks = starts[node_id], promises[node_id]
        holding = _ranks_on(node_id, ((task, task.placements) for task in held))
        staying_ranks = _ranks_on(node_id, ((task, task.placements) for task in staying))
        staying_ranks += _ranks_on(node_id, ((task, task.promised) for task in others))
        yield from _beyond(node, begun, holding)
        given = [*begun, *promised_ranks]
        yield from _beyond(node, given, staying_ranks)
        # A start on what the task was promised takes nothing new from other promises, which an
        # operator may have made too many by a smaller node.
        kept_ranks = [rank for rank in given if rank.task_id in redeemed]
        given = [rank for rank in given if rank.task_id not in redeemed]
        yield from _crowded(node, cpu_places(snapshot, node), given, staying_ranks + kept_ranks)


def _requested(snapshot: Snapshot, plan: Plan) -> bool:
    """True if a task of the plan requests CPUs or memory, or is given a place without GPUs; most
    plans have none."""
    for decision in plan.decisions:
        task = snapshot.tasks.get(decision.task_id)
        if task is None:
            continue
        if task.shape.cpus or task.shape.memory_bytes:
            return True
        if any(not each.gpus for each in _placements(decision) or ()):
            return True
    return False


def _placements(decision: Decision) -> tuple[Placement, ...] | None:
    """What a decision gives or promises; None: it changes nothing of that."""
    if isinstance(decision, Assign):
        return decision.placements
    if isinstance(decision, Hold):
        return decision.reserved
    if isinstance(decision, Preempt | Kill):
        # A run that is only to move has a place that nobody else is given.
        return decision.moves_to or None
    return None


def _redeemed(snapshot: Snapshot, plan: Plan) -> set[str]:
    """The tasks that start on what they were promised."""
    return {
        each.task_id
        for each in plan.decisions
        if isinstance(each, Assign)
        and each.task_id in snapshot.tasks
        and each.placements == snapshot.tasks[each.task_id].promised
    }


class _Rank(NamedTuple):
    """What one rank requests."""

    task_id: str
    # Thousandths.
    cpus: int
    memory_bytes: int
    # It takes a place for CPU-only ranks; or a whole node that has no GPUs.
    cpu_only: bool
    whole: bool


def _ranks(task: Task, placements: Iterable[Placement]) -> Iterator[tuple[str, _Rank]]:
    """Each rank with its node."""
    sizes = sizes_of(task.spec)
    for placement in placements:
        size = sizes.get(placement.role)
        if size is not None:
            cpus = max(1, round(min(size.cpus, CPUS_MAX) * 1000)) if size.cpus else 0
            cpu_only = size.gpus == 0
            whole = not placement.gpus and not cpu_only
            yield placement.node_id, _Rank(task.id, cpus, size.memory_bytes, cpu_only, whole)


def _ranks_on(node_id: str, runs: Iterable[tuple[Task, tuple[Placement, ...]]]) -> list[_Rank]:
    return [
        rank
        for task, placements in runs
        for there, rank in _ranks(task, (each for each in placements if each.node_id == node_id))
        if there == node_id
    ]


def _given(
    snapshot: Snapshot, plan: Plan
) -> tuple[dict[str, list[_Rank]], dict[str, list[_Rank]], set[str]]:
    """By node: what begins there, what is promised a part of it; and all tasks that are meant."""
    starts: dict[str, list[_Rank]] = defaultdict(list)
    promises: dict[str, list[_Rank]] = defaultdict(list)
    decided: set[str] = set()
    for decision in plan.decisions:
        task = snapshot.tasks.get(decision.task_id)
        if task is None:
            continue
        given = starts if isinstance(decision, Assign) else promises
        placements = _placements(decision)
        if placements is not None:
            decided.add(task.id)
            for node_id, rank in _ranks(task, placements):
                given[node_id].append(rank)
    return starts, promises, decided


def _nodes_of(placements: Iterable[Placement]) -> set[str]:
    return {placement.node_id for placement in placements}


def _there(
    snapshot: Snapshot, node_ids: set[str], *, deep: bool
) -> Iterator[tuple[str, list[Task], list[Task]]]:
    """The runs on each node and the tasks that are promised a part of it."""
    held: Mapping[str, Iterable[str]] = snapshot.index.holders
    kept: Mapping[str, Iterable[str]] = snapshot.index.keepers
    if deep:
        tasks = snapshot.tasks.values()
        held = _by_node((task.id, task.placements) for task in tasks)
        kept = _by_node((task.id, task.promised) for task in tasks)
    for node_id in sorted(node_ids):
        both = [[snapshot.tasks[each] for each in own.get(node_id, ())] for own in (held, kept)]
        yield node_id, both[0], both[1]


def _by_node(
    tasks: Iterable[tuple[str, tuple[Placement, ...]]],
) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for task_id, placements in tasks:
        for node_id in _nodes_of(placements):
            found.setdefault(node_id, set()).add(task_id)
    return found


def _beyond(node: Node, given: list[_Rank], others: list[_Rank]) -> Iterator[Violation]:
    """The violations of one node: more is requested than it has, by a task that is given
    something."""
    for name, total, amounts in (
        ("CPUs in thousandths", round(node.cpus * 1000), _thousandths),
        ("bytes of memory", node.memory_bytes, _memory),
    ):
        mine, others_amount = sum(map(amounts, given)), sum(map(amounts, others))
        if total > 0 and mine and mine + others_amount > total:
            detail = f"{mine + others_amount} of {total} {name} on {node.id}"
            yield Violation(Fault.TOO_FULL, given[-1].task_id, detail)


def _crowded(
    node: Node, places: int, given: list[_Rank], others: list[_Rank]
) -> Iterator[Violation]:
    """More CPU-only ranks than a node has places, or a node without GPUs that is one rank's whole
    and another's too."""
    ranks = [*given, *others]
    cpu_only = sum(rank.cpu_only for rank in ranks)
    last = next((rank.task_id for rank in reversed(given) if rank.cpu_only), None)
    if last is not None and cpu_only > places:
        yield Violation(Fault.PROMISED, last, f"{cpu_only} of {places} CPU places of {node.id}")
    whole = sum(rank.whole for rank in ranks)
    last = next((rank.task_id for rank in reversed(given) if rank.cpu_only or rank.whole), None)
    if last is not None and not node.gpus and whole and whole + cpu_only > 1:
        yield Violation(Fault.PROMISED, last, f"{node.id} is given whole and shared")


def _thousandths(rank: _Rank) -> int:
    return rank.cpus


def _memory(rank: _Rank) -> int:
    return rank.memory_bytes
