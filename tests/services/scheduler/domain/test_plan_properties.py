"""Properties of single plans: decisions compared with the bare rows of one random snapshot.

A snapshot may be any consistent state, also one that no short history reaches: promises, runs on
their way out, order keys of another discipline, retries that wait. The properties hold for every
discipline and whatever the policy becomes.

Only this suite finds a rule that is wrong in the same way in the incremental and the rebuilt index,
such as a task that waits beside free nodes. Histories are ``test_index_machine.py``'s.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from libs.contracts.ids import TaskId
from libs.contracts.messages import Goal, ReasonCode, TaskState
from libs.contracts.task_states import HOLDING
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.disciplines.interface import Filling
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.facts.timers import protected_until
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED, VirtualClusters
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Preempt
from services.scheduler.domain.model.lifecycle import LEAVING
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS
from services.scheduler.domain.placement.slots import Slot, slots_of
from tests.kit.builders import a_snapshot, a_spec, played
from tests.kit.strategies import NOW, snapshots
from tests.services.scheduler.domain.domain_harness import committed

EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def with_twins(snapshot: Snapshot) -> Snapshot:
    """The snapshot with more tasks for each that waits. All want one GPU; all but the last also
    want most of a node's memory."""
    twins = [
        replace(
            task,
            id=TaskId(f"{task.id}{name}"),
            spec=a_spec(
                gpus=1, memory_bytes=memory, group=task.group, priority=task.priority, retries=1
            ),
            goal=Goal.RUN,
            not_before_at=None,
            promised=(),
        )
        for task in snapshot.tasks.values()
        if task.state is TaskState.QUEUED
        for name, memory in (("heavya", 8), ("heavyb", 8), ("heavyc", 8), ("light", None))
    ]
    return a_snapshot(
        [*snapshot.tasks.values(), *twins],
        list(snapshot.nodes.values()),
        limits=list(snapshot.limits.values()),
        policies=list(snapshot.index.policies.values()),
        listed=snapshot.inventory_listed,
        settings=snapshot.settings,
        version=snapshot.version,
    )


def shuffled(snapshot: Snapshot, order: list[int]) -> Snapshot:
    """The same snapshot from rows in another order."""
    tasks, nodes = list(snapshot.tasks.values()), list(snapshot.nodes.values())
    limits = list(snapshot.limits.values())
    policies = list(snapshot.index.policies.values())
    for rows in (tasks, nodes, limits, policies):
        rows.sort(key=lambda row: order[hash(str(row)) % len(order)])
        rows.reverse()
    return a_snapshot(
        tasks,
        nodes,
        limits=limits,
        policies=policies,
        listed=snapshot.inventory_listed,
        settings=snapshot.settings,
        version=snapshot.version,
    )


@EXAMPLES
@given(snapshots())
def test_check_finds_nothing_wrong(snapshot: Snapshot) -> None:
    plan = decide(snapshot, NOW)
    assert check(snapshot, plan, deep=True) == []
    assert check(snapshot, plan) == []


@EXAMPLES
@given(snapshots())
def test_no_gpu_has_two_owners_and_gangs_are_whole(snapshot: Snapshot) -> None:
    after = played(snapshot, decide(snapshot, NOW))
    owners: Counter[tuple[str, int]] = Counter()
    for task in after.tasks.values():
        if task.holds:
            assert len(task.placements) == task.spec.nodes
            if not task.shape.parts:
                assert len({placement.node_id for placement in task.placements}) == task.spec.nodes
            names = [role.name for role in task.spec.roles]
            sizes = dict(zip(names, task.shape.each, strict=False))
            for placement in task.placements:
                owners.update((placement.node_id, gpu) for gpu in placement.gpus)
                wanted = sizes[placement.role].gpus if task.shape.parts else task.shape.gpus
                if wanted is None:
                    wanted = after.nodes[placement.node_id].gpus
                assert len(placement.gpus) == wanted
        else:
            assert not task.placements
    assert all(count == 1 for count in owners.values())


@EXAMPLES
@given(snapshots())
def test_nothing_is_placed_on_capacity_that_is_only_promised(snapshot: Snapshot) -> None:
    held = {
        (placement.node_id, gpu)
        for task in snapshot.tasks.values()
        if task.state in HOLDING
        for placement in task.placements
        for gpu in placement.gpus
    }
    for decision in decide(snapshot, NOW).decisions:
        if isinstance(decision, Assign):
            given_ = {(p.node_id, gpu) for p in decision.placements for gpu in p.gpus}
            assert not given_ & held


@EXAMPLES
@given(snapshots())
def test_victims_are_strictly_lower_and_their_beneficiary_waits(snapshot: Snapshot) -> None:
    plan = decide(snapshot, NOW)
    for decision in plan.decisions:
        if isinstance(decision, Preempt | Kill) and decision.reason.code is ReasonCode.PREEMPTED_BY:
            victim = snapshot.tasks[decision.task_id]
            named = decision.reason.names["priority"]
            weights = {level.value: weight for level, weight in WEIGHTS.items()}
            assert WEIGHTS[victim.level] < weights[named]
            waits = plan.explanations[decision.beneficiary]
            assert waits.code is ReasonCode.WAITS_FOR_VICTIMS


@EXAMPLES
@given(snapshots())
def test_every_victim_is_needed(snapshot: Snapshot) -> None:
    """Without any one of them, the place would not be there."""
    plan = decide(snapshot, NOW)
    for decision in plan.decisions:
        if isinstance(decision, Preempt | Kill) and decision.reason.code is ReasonCode.PREEMPTED_BY:
            victim = snapshot.tasks[decision.task_id]
            better = snapshot.tasks[decision.beneficiary]
            nodes = {placement.node_id for placement in victim.placements}
            assert any(snapshot.nodes[node].group == better.group for node in nodes)
            assert any(snapshot.nodes[node].offered for node in nodes)


@EXAMPLES
@given(snapshots())
def test_every_queued_task_is_explained(snapshot: Snapshot) -> None:
    plan = decide(snapshot, NOW)
    queued = {task.id for task in snapshot.tasks.values() if task.state is TaskState.QUEUED}
    # One that is promised its nodes goes on waiting for them, for the reason that it has.
    waits_on = {task.id for task in snapshot.tasks.values() if task.promised}
    assert queued - waits_on <= set(plan.explanations)
    after = played(snapshot, plan)
    for task in after.tasks.values():
        if task.state is TaskState.QUEUED:
            assert task.reason == plan.explanations.get(task.id, task.reason)
            assert task.reason.code is not ReasonCode.UNSPECIFIED


@EXAMPLES
@given(snapshots(), st.lists(st.integers(), min_size=7, max_size=7))
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot, order: list[int]) -> None:
    plan, again = decide(snapshot, NOW), decide(shuffled(snapshot, order), NOW)
    assert plan == again


@EXAMPLES
@given(snapshots())
def test_deciding_again_on_the_result_decides_nothing(snapshot: Snapshot) -> None:
    after = committed(snapshot, decide(snapshot, NOW))
    again = decide(after, NOW)
    assert again.decisions == ()
    assert again.ledgers == ()


@EXAMPLES
@given(snapshots())
def test_a_new_leader_decides_nothing_new_without_time_slices(snapshot: Snapshot) -> None:
    """With time slices a new leader begins with a slice round of its own."""
    after = played(snapshot, decide(snapshot, NOW))
    assume(not any(pool.discipline.preempts for pool in after.pools.values()))
    assert decide(after, NOW).decisions == ()


@EXAMPLES
@given(snapshots())
def test_the_next_timer_is_in_the_future_and_nothing_happens_before_it(snapshot: Snapshot) -> None:
    after = committed(snapshot, decide(snapshot, NOW))
    plan = decide(after, NOW)
    after.index.settle(plan)
    if plan.due_at is not None:
        assert plan.due_at > NOW
        assert decide(after, NOW + (plan.due_at - NOW) * 0.99).decisions == ()


@EXAMPLES
@given(snapshots(healthy=True))
def test_the_first_task_in_the_queue_starts_if_it_fits_the_free_nodes(snapshot: Snapshot) -> None:
    """No work is held back for nobody: the head of each level waits only for a reason."""
    plan = decide(snapshot, NOW)
    for decision in plan.decisions:
        if isinstance(decision, Hold) and decision.reason.code is ReasonCode.WAITS_BEHIND_OTHERS:
            level = snapshot.tasks[decision.task_id].priority
            ahead = [
                why.code
                for task_id, why in plan.explanations.items()
                if task_id != decision.task_id
                and (
                    snapshot.tasks[task_id].priority is level
                    or "AUTO" in level + snapshot.tasks[task_id].priority
                )
            ]
            assert {ReasonCode.WAITS_FOR_CAPACITY, ReasonCode.WAITS_BEHIND_OTHERS} & set(ahead)


@EXAMPLES
@given(snapshots(healthy=True))
def test_no_task_waits_for_capacity_that_is_free(snapshot: Snapshot) -> None:
    """A larger task that finds no place does not keep one that fits from starting."""
    crowded = with_twins(snapshot)
    after = committed(crowded, decide(crowded, NOW))
    for pool in after.pools.values():
        if pool.discipline.filling is not Filling.GREEDY or pool.group in after.index.totals.zoned:
            continue
        for task in after.tasks.values():
            waits = task.group == pool.group and task.state is TaskState.QUEUED
            if waits and task.reason.code is ReasonCode.WAITS_FOR_CAPACITY and not task.promised:
                assert after.capacity.pick(task.shape) is None, task.id


def uncovered(pool: Pool, snapshot: Snapshot, task: Task) -> bool:
    """True if no guarantee covers a waiting task."""
    return depth_of(pool, snapshot, task) >= UNCOVERED


def holding(pool: Pool, snapshot: Snapshot) -> list[Task]:
    return [
        task
        for task in snapshot.tasks.values()
        if task.group == pool.group and (task.holds or task.promised)
    ]


def depth_of(pool: Pool, snapshot: Snapshot, task: Task) -> int:
    """Counted again from the rows."""
    clusters = VirtualClusters(pool.policy)
    for each in holding(pool, snapshot):
        clusters.charge(clusters.of(each), pool.size(each))
    return clusters.depth(clusters.of(task), pool.size(task))


def reclaimable(pool: Pool, snapshot: Snapshot, depth: int) -> list[Slot]:
    """What runs that are covered less than so hold, and what runs on their way out do."""
    runs = holding(pool, snapshot)
    sizes = {task.id: pool.size(task) for task in runs}
    depths = VirtualClusters(pool.policy).coverage(runs, sizes)
    kept: defaultdict[str, int] = defaultdict(int)
    for task in runs:
        if task.promised:
            for node_id, mask, _ in slots_of(task):
                kept[node_id] |= mask
    found: list[Slot] = []
    for task in runs:
        until = protected_until(task, pool.protected_seconds)
        goes = task.state in LEAVING or (
            depths[task.id] > depth and (until is None or until <= NOW)
        )
        if task.holds and goes:
            found += [Slot(node_id, mask & ~kept[node_id]) for node_id, mask, _ in slots_of(task)]
    return [slot for slot in found if slot.mask]


@EXAMPLES
@given(snapshots())
def test_guaranteed_demand_is_met_by_what_is_free_or_can_be_taken_back(snapshot: Snapshot) -> None:
    """No task waits for capacity that a guarantee covers while borrowers hold enough of it."""
    after = committed(snapshot, decide(snapshot, NOW))
    for pool in after.pools.values():
        if not pool.clusters or pool.discipline.filling is not Filling.GREEDY:
            continue
        for task in after.tasks.values():
            waits = task.group == pool.group and task.state is TaskState.QUEUED
            if not waits or task.reason.code is not ReasonCode.WAITS_FOR_CAPACITY:
                continue
            if uncovered(pool, after, task) or task.shape.gpus == 0:
                continue
            trial = after.capacity.copy()
            trial.give(reclaimable(pool, after, depth_of(pool, after, task)))
            assert trial.pick(task.shape) is None, task.id
