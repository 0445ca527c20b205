"""Conservation: one owner for every GPU, and no limit passed. The second half of ``check``.

Counts from the bare rows: what every live run holds, and what the plan gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import product

from libs.contracts.grants import Names, deciding
from libs.contracts.messages import Placement, Priority, Unit
from libs.contracts.rank_sizes import sizes_of
from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.quota_usage import account_of
from services.scheduler.domain.limits.virtual_clusters import VirtualClusters
from services.scheduler.domain.model.decisions import (
    Assign,
    Decision,
    Hold,
    Kill,
    Plan,
    Preempt,
    Reorder,
)
from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.domain.model.lifecycle import LEAVING
from services.scheduler.domain.model.rows import Limit, Node, Task


class _Owners:
    """The owner of each unit, filled run by run."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._gpus: dict[tuple[str, int], tuple[str, int]] = {}
        self._whole: dict[str, tuple[str, int]] = {}
        self._cpu_ranks: Counter[str] = Counter()

    def enter(self, task: Task, placement: Placement) -> list[Violation]:
        """Count one rank; a unit that already has an owner is a violation."""
        node_id, rank = placement.node_id, (task.id, placement.rank)
        clashes = [
            f"{node_id} GPU {gpu} is {self._gpus[node_id, gpu][0]}'s"
            for gpu in placement.gpus
            if self._gpus.setdefault((node_id, gpu), rank) != rank
        ]
        cpu_only = not placement.gpus and _is_cpu_only(task, placement)
        if cpu_only:
            self._cpu_ranks[node_id] += 1
        elif not placement.gpus and self._whole.setdefault(node_id, rank) != rank:
            clashes.append(f"{node_id} is {self._whole[node_id][0]}'s")
        clashes += self._cpu_clashes(node_id, cpu_only=cpu_only)
        return [Violation(Fault.NOT_FREE, task.id, clash) for clash in clashes]

    def _cpu_clashes(self, node_id: str, *, cpu_only: bool) -> Iterator[str]:
        node = self._snapshot.nodes.get(node_id)
        if node is None:
            return
        places = cpu_places(self._snapshot, node)
        if cpu_only and self._cpu_ranks[node_id] > places:
            yield f"{node_id} has {places} CPU places"
        # A node that was rebuilt with GPUs has room for CPU-only ranks beside whatever runs there.
        if not node.gpus and node_id in self._whole and self._cpu_ranks[node_id]:
            yield f"{node_id} is given whole and shared"


def cpu_places(snapshot: Snapshot, node: Node) -> int:
    """How many CPU-only ranks a node holds."""
    return max(1, int(node.cpus)) if node.cpus > 0 else snapshot.settings.cpu_ranks_per_node


def _is_cpu_only(task: Task, placement: Placement) -> bool:
    """True for a rank of a size without GPUs, unlike one with a whole node that has none."""
    size = sizes_of(task.spec).get(placement.role)
    return (task.spec.gpus_per_node if size is None else size.gpus) == 0


def taken_twice(snapshot: Snapshot, plan: Plan, *, deep: bool) -> Iterator[Violation]:
    """Every unit has one owner; a run that is leaving still owns what it has."""
    owners = _Owners(snapshot)
    starts = [each for each in plan.decisions if isinstance(each, Assign)]
    promises = [each for each in plan.decisions if isinstance(each, Hold) and each.reserved]
    given = [each.placements for each in starts] + [each.reserved or () for each in promises]
    nodes = {placement.node_id for placements in given for placement in placements}
    for task in _holders(snapshot, nodes, deep=deep):
        for placement in task.placements:
            if placement.node_id in nodes:
                # Two holders of one GPU in the tables are not an error of this plan.
                owners.enter(task, placement)
    for decision in starts:
        task = snapshot.tasks.get(decision.task_id)
        for placement in decision.placements if task is not None else ():
            yield from owners.enter(task, placement)  # type: ignore[arg-type]  # not None
    yield from _promised_twice(snapshot, plan, promises, starts)


def _holders(snapshot: Snapshot, nodes: set[str], *, deep: bool) -> list[Task]:
    """The runs on these nodes: from the index, or from a scan of every task."""
    if deep:
        return [task for task in snapshot.tasks.values() if task.holds]
    there = {task_id for node in nodes for task_id in snapshot.index.holders.get(node, ())}
    return [snapshot.tasks[task_id] for task_id in sorted(there)]


def _promised_twice(
    snapshot: Snapshot, plan: Plan, promises: list[Hold], starts: list[Assign]
) -> Iterator[Violation]:
    """A unit is promised to one task, and only if it is free or its owner is on the way out."""
    void = taken_back(plan) | {each.task_id for each in starts}
    if not promises and not starts:
        return
    kept: dict[tuple[str, int], str] = {}
    for pool in snapshot.pools.values():
        for task in pool.promised.values():
            if task.id not in void:
                kept.update(((p.node_id, gpu), task.id) for p in task.promised for gpu in p.gpus)
    released = {each.task_id for each in plan.decisions if isinstance(each, Preempt | Kill)}
    later: list[tuple[Decision, tuple[Placement, ...]]]
    later = [(each, each.reserved or ()) for each in promises]
    # A run that only moves has a place that no other task is given.
    later += [
        (each, each.moves_to)
        for each in plan.decisions
        if isinstance(each, Preempt | Kill) and each.moves_to
    ]
    for decision, placements in (*((each, each.placements) for each in starts), *later):
        for placement in placements:
            # What is given must be free already, which ``_Owners`` sees to.
            leaves = not isinstance(decision, Assign)
            owners = _stays(snapshot, placement, released) if leaves else {}
            for gpu in placement.gpus:
                owner = kept.setdefault((placement.node_id, gpu), decision.task_id)
                if owner != decision.task_id:
                    yield Violation(Fault.PROMISED, decision.task_id, f"{owner} is promised it")
                if gpu in owners:
                    yield Violation(Fault.PROMISED, decision.task_id, f"{owners[gpu]} stays")


def _stays(snapshot: Snapshot, placement: Placement, released: Container[str]) -> dict[int, str]:
    """GPUs of the node whose owner is not on the way out."""
    found: dict[int, str] = {}
    for task_id in snapshot.index.holders.get(placement.node_id, ()):
        task = snapshot.tasks[task_id]
        if task.state not in LEAVING and task_id not in released:
            for each in task.placements:
                if each.node_id == placement.node_id:
                    found.update(dict.fromkeys(each.gpus, task_id))
    return found


def taken_back(plan: Plan) -> set[str]:
    """Waiting tasks that the plan promises something else than before, or nothing."""
    return {
        each.task_id
        for each in plan.decisions
        if isinstance(each, Hold) and each.reserved is not None
    }


def _groups(snapshot: Snapshot, plan: Plan) -> list[str]:
    """The node groups in which a task is given something, whatever the plan says it evaluated."""
    given = [
        snapshot.tasks.get(each.task_id)
        for each in plan.decisions
        if isinstance(each, Assign | Hold)
    ]
    return sorted({task.group for task in given if task is not None})


def clusters_broken(snapshot: Snapshot, plan: Plan) -> Iterator[Violation]:
    """No virtual cluster is given more than the most it may hold.

    What is promised may count on the end of runs on their way out; what begins may not.
    """
    released = [
        snapshot.tasks[each.task_id]
        for each in plan.decisions
        if isinstance(each, Preempt | Kill) and each.task_id in snapshot.tasks
    ]
    for group in _groups(snapshot, plan):
        pool = snapshot.pools[group]
        if not pool.clusters.bounded:
            continue
        ending = [task for task in released if task.group == group and task.holds]
        holdings = _Holdings(pool, taken_back(plan), ending)
        for decision in plan.decisions:
            task = snapshot.tasks.get(decision.task_id)
            if task is None or task.group != group:
                continue
            full = None
            if isinstance(decision, Assign):
                full = holdings.begin(task)
            elif isinstance(decision, Hold) and decision.reserved:
                full = holdings.promise(task)
            if full is not None:
                yield Violation(Fault.CLUSTER, task.id, full.name)


class _Holdings:
    """What the virtual clusters of a pool hold while the decisions of a plan are applied in
    order."""

    def __init__(self, pool: Pool, withdrawn: Container[str], released: Iterable[Task]) -> None:
        self._pool = pool
        # Runs and promises, runs alone, and both without runs on their way out.
        self._all, self._runs, self._soon = (pool.clusters.fork() for _ in range(3))
        for task in pool.promised.values():
            self._charge(task, -1, self._runs)
            if task.id in withdrawn:
                # What was promised before counts already, unless the plan takes it back.
                self._charge(task, -1, self._all, self._soon)
        for run in {run.id: run for run in (*pool.leaving.values(), *released)}.values():
            self._charge(run, -1, self._soon)

    def _charge(self, task: Task, times: int, *holdings: VirtualClusters) -> None:
        for each in holdings:
            each.charge(each.of(task), times * self._pool.size(task))

    def _full(self, task: Task, *holdings: VirtualClusters) -> VirtualCluster | None:
        found = (each.full(each.of(task), self._pool.size(task)) for each in holdings)
        return next((full for full in found if full is not None), None)

    def begin(self, task: Task) -> VirtualCluster | None:
        """A run begins; the virtual cluster that would hold too much by it."""
        if task.promised:
            full = self._full(task, self._runs)
            self._charge(task, 1, self._runs)
        else:
            full = self._full(task, self._runs, self._all)
            self._charge(task, 1, self._runs, self._all, self._soon)
        return full

    def promise(self, task: Task) -> VirtualCluster | None:
        """A task is promised nodes; the virtual cluster that would hold too much by it."""
        full = self._full(task, self._soon)
        self._charge(task, 1, self._all, self._soon)
        return full


def too_many_crossing(snapshot: Snapshot, plan: Plan) -> Iterator[Violation]:
    """No gang begins to span the largest domains of a group where as many do as may.

    One that is promised its nodes may count on the end of runs on their way out; one that begins
    may not.
    """
    replaced = taken_back(plan) | _started_elsewhere(snapshot, plan)
    released = {each.task_id for each in plan.decisions if isinstance(each, Preempt | Kill)}
    for group in _groups(snapshot, plan):
        pool = snapshot.pools[group]
        new: list[tuple[str, bool]] = []
        redeemed: set[str] = set()
        for decision in plan.decisions:
            task = snapshot.tasks.get(decision.task_id)
            if task is None or task.group != group or not isinstance(decision, Assign | Hold):
                continue
            ranks = decision.placements if isinstance(decision, Assign) else decision.reserved
            begins = isinstance(decision, Assign)
            if not ranks or not _crosses(snapshot, pool, ranks):
                continue
            if begins and ranks == task.promised:
                redeemed.add(task.id)
            else:
                new.append((task.id, begins))
        if not new and not redeemed:
            continue
        runs = [task for task in snapshot.held.values() if task.group == group]
        runs = [task for task in runs if _crosses(snapshot, pool, task.placements)]
        leave = sum(task.state in LEAVING or task.id in released for task in runs)
        kept = sum(
            _crosses(snapshot, pool, each.promised)
            for each in pool.promised.values()
            if each.id not in replaced
        )
        most = pool.policy.cross_zone_gangs_max
        waits = any(task.state in LEAVING for task in runs)
        if redeemed and waits and len(runs) + len(redeemed) > most:
            # These wait for those to end; a limit that was lowered meanwhile is not an error.
            detail = f"{len(runs) + len(redeemed)} of {most}"
            yield Violation(Fault.CROSSING, min(redeemed), detail)
        count = len(runs) - leave + kept
        for task_id, begins in new:
            count += 1
            if count + (leave if begins else 0) > most:
                yield Violation(Fault.CROSSING, task_id, f"{count} of {most}")


def _started_elsewhere(snapshot: Snapshot, plan: Plan) -> set[str]:
    """The tasks that start on other nodes than those that they were promised."""
    return {
        each.task_id
        for each in plan.decisions
        if isinstance(each, Assign)
        and each.task_id in snapshot.tasks
        and each.placements != snapshot.tasks[each.task_id].promised
    }


def _crosses(snapshot: Snapshot, pool: Pool, ranks: tuple[Placement, ...]) -> bool:
    """True if ranks lie in more than one of the pool's largest domains."""
    label = next(iter(pool.policy.topology), None)
    nodes = [snapshot.nodes.get(rank.node_id) for rank in ranks]
    return len({dict(node.labels).get(label or "", "") for node in nodes if node}) > 1


# A task, the level that it counts at, and what it takes.
_Charge = tuple[Task, Priority, tuple[Placement, ...]]


def limits_broken(snapshot: Snapshot, plan: Plan, *, deep: bool) -> Iterator[Violation]:
    """No limit that applies to a start, or to a run at its new level, is passed by all there is."""
    given: list[_Charge] = [
        (snapshot.tasks[decision.task_id], decision.level, decision.placements)
        for decision in plan.decisions
        if isinstance(decision, Assign) and decision.task_id in snapshot.tasks
    ]
    relevelled = [
        (snapshot.tasks[decision.task_id], decision.level)
        for decision in plan.decisions
        if isinstance(decision, Reorder)
        and decision.level is not Priority.UNSPECIFIED
        and decision.task_id in snapshot.tasks
    ]
    if not (given or relevelled) or not snapshot.limits:
        return
    added, leaving = _by_limit(snapshot, given, relevelled)
    for limit in sorted(added, key=lambda each: (each.key, each.limit)):
        mine, left = added[limit], leaving.get(limit, [])
        for subject in sorted({account_of(limit, task)[1] for task, _, _ in mine}):
            own = [each for each in mine if account_of(limit, each[0])[1] == subject]
            more = sum(_amount(limit, task, placements) for task, _, placements in own)
            if not more and not limit.forbids:
                continue
            held = _held(snapshot, limit, own[0][0], deep=deep)
            held -= sum(
                _amount(limit, r, r.placements) for r in left if account_of(limit, r)[1] == subject
            )
            if limit.forbids or held + more > limit.limit:
                kind = "grant" if limit.grant else "cap"
                detail = f"{held + more} of {limit.limit} for {kind} {limit.key[:4]} {subject}"
                # A limit may span groups: each group that gives some of it is in violation.
                for group in sorted({task.group for task, _, _ in own}):
                    yield Violation(Fault.QUOTA, detail=detail.rstrip(), group=group)


def _by_limit(
    snapshot: Snapshot, given: list[_Charge], relevelled: list[tuple[Task, Priority]]
) -> tuple[dict[Limit, list[_Charge]], dict[Limit, list[Task]]]:
    """What each limit would count in addition, and the runs that it would no longer count.

    Most rows apply to none of these, so each looks up the rows that can name it.
    """
    added: dict[Limit, list[_Charge]] = {}
    leaving: dict[Limit, list[Task]] = {}
    for charge in given:
        for limit in applying(snapshot, charge[0], charge[1]):
            added.setdefault(limit, []).append(charge)
    for run, level in relevelled:
        before = set(applying(snapshot, run, run.level))
        after = set(applying(snapshot, run, level))
        for limit in after - before:
            added.setdefault(limit, []).append((run, level, run.placements))
        for limit in before - after:
            leaving.setdefault(limit, []).append(run)
    return added, leaving


def applying(snapshot: Snapshot, task: Task, level: Priority) -> Iterator[Limit]:
    """The caps that apply to a task at a level, where each part is named or empty; and the grant
    that decides, unless it permits any amount."""
    levels = {Priority.UNSPECIFIED, level}
    for names in product({"", task.group}, {"", task.owner}, {"", task.team}, levels):
        limit = snapshot.limits.get((*names, False))
        if limit is not None and not limit.removed:
            yield limit

    def in_force(names: Names) -> Limit | None:
        row = snapshot.limits.get((*names, True))
        return row if row and not row.removed else None

    grant = deciding(in_force, task.owner, task.team, task.group, level)
    limit = grant and grant.at(level)
    if limit is not None:
        yield limit


def _held(snapshot: Snapshot, limit: Limit, task: Task, *, deep: bool) -> int:
    """What the subject holds under a limit, promises to others apart."""
    account = account_of(limit, task)

    def counts(run: Task) -> bool:
        return account_of(limit, run) == account and any(
            row.key == limit.key for row in applying(snapshot, run, run.level)
        )

    if not deep:
        promised = sum(
            _amount(limit, each, each.promised)
            for pool in snapshot.pools.values()
            for each in pool.promised.values()
            if counts(each)
        )
        return snapshot.index.quota_usage.held(limit, task) - promised
    return sum(
        _amount(limit, each, each.placements)
        for each in snapshot.tasks.values()
        if each.holds and counts(each)
    )


def _amount(limit: Limit, task: Task, placements: tuple[Placement, ...]) -> int:
    gpus = sum(len(placement.gpus) for placement in placements)
    if limit.unit is not Unit.NODES and (gpus or limit.unit is not Unit.GPUS_OR_NODES):
        return gpus
    sizes = sizes_of(task.spec)
    return sum(each.role not in sizes or not sizes[each.role].auxiliary for each in placements)
