"""Conservation: one owner for every GPU, and no limit passed. The second half of ``check``.

Counts from the bare rows: what every live run holds, and what the plan gives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from libs.contracts.messages import Placement, Priority, Unit
from services.scheduler.domain.model import Assign, Limit, Plan, Task
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.domain.violations import Fault, Violation


class _Owners:
    """Who has what, filled run by run."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._gpus: dict[tuple[str, int], str] = {}
        self._whole: dict[str, str] = {}
        self._cpu_ranks: Counter[str] = Counter()

    def enter(self, task: Task, placement: Placement) -> list[Violation]:
        """Count one rank; what had an owner before is a violation."""
        node_id = placement.node_id
        clashes = [
            f"{node_id} GPU {gpu} is {self._gpus[node_id, gpu]}'s"
            for gpu in placement.gpus
            if self._gpus.setdefault((node_id, gpu), task.id) != task.id
        ]
        if task.spec.gpus_per_node == 0:
            self._cpu_ranks[node_id] += 1
        elif not placement.gpus and self._whole.setdefault(node_id, task.id) != task.id:
            clashes.append(f"{node_id} is {self._whole[node_id]}'s")
        clashes += self._cpu_clashes(task, node_id)
        return [Violation(Fault.NOT_FREE, task.id, clash) for clash in clashes]

    def _cpu_clashes(self, task: Task, node_id: str) -> Iterator[str]:
        node = self._snapshot.nodes.get(node_id)
        if node is None:
            return
        places = self._snapshot.settings.cpu_ranks_per_node
        if node.cpus > 0:
            places = max(1, int(node.cpus))
        if task.spec.gpus_per_node == 0 and self._cpu_ranks[node_id] > places:
            yield f"{node_id} has {places} CPU places"
        if node_id in self._whole and self._cpu_ranks[node_id]:
            yield f"{node_id} is given whole and shared"


def taken_twice(snapshot: Snapshot, plan: Plan) -> Iterator[Violation]:
    """Every unit has one owner; a run that is leaving still owns what it has."""
    owners = _Owners(snapshot)
    for task in snapshot.tasks.values():
        if task.holds:
            for placement in task.placements:
                # Two holders of one GPU in the tables are no fault of this plan.
                owners.enter(task, placement)
    for decision in plan.decisions:
        task = snapshot.tasks.get(decision.task_id)
        if isinstance(decision, Assign) and task is not None:
            for placement in decision.placements:
                yield from owners.enter(task, placement)


def _applies(limit: Limit, task: Task, level: Priority) -> bool:
    return not limit.removed and all(
        wanted in ("", Priority.UNSPECIFIED, has)
        for wanted, has in (
            (limit.group, task.group),
            (limit.user, task.owner),
            (limit.team, task.team),
            (limit.priority, level),
        )
    )


def limits_broken(snapshot: Snapshot, plan: Plan) -> Iterator[Violation]:
    """No limit that applies to a start is passed by what is held and given."""
    starts: list[tuple[Task, Priority, tuple[Placement, ...]]] = [
        (snapshot.tasks[decision.task_id], decision.level, decision.placements)
        for decision in plan.decisions
        if isinstance(decision, Assign) and decision.task_id in snapshot.tasks
    ]
    if not starts or not snapshot.limits:
        return
    holding = [(t, t.level, t.placements) for t in snapshot.tasks.values() if t.holds]
    for limit in snapshot.limits.values():
        touched = {
            "" if limit.user or limit.team else task.owner
            for task, level, placements in starts
            if _applies(limit, task, level) and _amount(limit, placements)
        }
        if not touched:
            continue
        held: defaultdict[str, int] = defaultdict(int)
        for task, level, placements in (*holding, *starts):
            if _applies(limit, task, level):
                subject = "" if limit.user or limit.team else task.owner
                held[subject] += _amount(limit, placements)
        for subject in sorted(touched):
            if held[subject] > limit.limit:
                detail = f"{held[subject]} of {limit.limit} for {limit.key} {subject}".rstrip()
                yield Violation(Fault.QUOTA, detail=detail)


def _amount(limit: Limit, placements: tuple[Placement, ...]) -> int:
    if limit.unit is Unit.NODES:
        return len(placements)
    return sum(len(placement.gpus) for placement in placements)
