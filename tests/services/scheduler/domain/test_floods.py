"""The flood guard: whose backlog is more than a day of all nodes yields while others wait."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import ExitKind, ReasonCode
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Hold, Plan, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy, Timeshare
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey
from tests.kit.builders import a_snapshot, a_task, running, some_nodes
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

NODES = 10
GUARDED = GroupPolicy("default", timeshare=Timeshare(flood_guard=True))
OPEN = GroupPolicy("default", timeshare=Timeshare(flood_guard=False))


def many(owner: str, count: int, *, submitted: float = 0.0, nodes: int = 1) -> list[Task]:
    return [
        a_task(f"{owner}{place:03}", owner=owner, nodes=nodes, submitted=submitted)
        for place in range(count)
    ]


def snapshot_of(tasks: list[Task], policy: GroupPolicy, *, nodes: int = NODES) -> Snapshot:
    return a_snapshot(tasks, some_nodes(nodes), policies=[policy])


def decided(snapshot: Snapshot, now: float = 60.0) -> Plan:
    plan = decide(snapshot, at(now))
    assert check(snapshot, plan, deep=True) == []
    # Each is started once, or explained once.
    starts = [each.task_id for each in plan.decisions if isinstance(each, Assign)]
    holds = [each.task_id for each in plan.decisions if isinstance(each, Hold)]
    assert len(starts) == len(set(starts))
    assert len(holds) == len(set(holds))
    assert not set(starts) & set(holds)
    return plan


def started(plan: Plan, owner: str) -> int:
    return sum(
        isinstance(each, Assign) and each.task_id.startswith(owner) for each in plan.decisions
    )


def test_a_flood_yields_while_others_wait() -> None:
    """300 tasks of an hour are 30 h of ten nodes: a quarter of them by 24 h in 30 is two nodes."""
    flood, others = many("flo", 300), many("bob", 30, submitted=30)
    guarded = decided(snapshot_of([*flood, *others], GUARDED))
    assert started(guarded, "flo") == 2
    assert started(guarded, "bob") == NODES - 2
    # Without it the first to come are served first.
    assert started(decided(snapshot_of([*flood, *others], OPEN)), "flo") > 2


def test_a_yielding_task_gives_the_flood_as_reason_with_numbers() -> None:
    plan = decided(snapshot_of([*many("flo", 300), *many("bob", 30)], GUARDED))
    codes = {
        why.code: why for task_id, why in plan.explanations.items() if task_id.startswith("flo")
    }
    why = codes[ReasonCode.WAITS_FOR_SHARE]
    assert why.numbers["hours"] == 30
    assert why.numbers["limit"] == 2
    codes = {why.code for key, why in plan.explanations.items() if key.startswith("bob")}
    assert ReasonCode.WAITS_FOR_SHARE not in codes


def test_nodes_that_others_leave_free_are_open_to_a_flood() -> None:
    """No node is idle: three run tasks of others, and the flood gets the rest."""
    plan = decided(snapshot_of([*many("flo", 300), *many("bob", 3)], GUARDED))
    assert started(plan, "bob") == 3
    assert started(plan, "flo") == NODES - 3


def test_a_single_owner_causes_no_flood() -> None:
    plan = decided(snapshot_of(many("flo", 300), GUARDED))
    assert started(plan, "flo") == NODES
    assert ReasonCode.WAITS_FOR_SHARE not in {why.code for why in plan.explanations.values()}


def test_less_than_a_day_of_all_nodes_is_no_flood() -> None:
    plan = decided(snapshot_of([*many("flo", 40), *many("bob", 40)], GUARDED))
    assert ReasonCode.WAITS_FOR_SHARE not in {why.code for why in plan.explanations.values()}


def test_one_task_of_each_owner_may_always_run() -> None:
    """This holds for every length of the backlog and every size of the task."""
    flood = many("flo", 300, nodes=4)
    plan = decided(snapshot_of([*flood, *many("bob", 30, submitted=30)], GUARDED))
    assert started(plan, "flo") == 1


def test_no_run_is_preempted_for_tasks_beyond_a_floods_part() -> None:
    """The one task that may always run gets free nodes, never the turn of another owner."""
    flood = many("flo", 40, nodes=8)
    # Both others come much later in the order than the flood does: without the guard they go.
    others = [
        running(a_task(f"bob{place}", owner="bob", nodes=5, submitted=0), held, since=0)
        for place, held in enumerate(
            (
                {f"n{n}": tuple(range(8)) for n in range(5)},
                {f"n{n}": tuple(range(8)) for n in range(5, 10)},
            )
        )
    ]
    late = OrderKey(policy="timeshare", waiting=False, key=at(10 * 86_400).timestamp())
    others = [replace(each, marks=late) for each in others]
    now = 3600.0
    for policy, gone in ((OPEN, {"bob0", "bob1"}), (GUARDED, set[str]())):
        plan = decide(snapshot_of([*flood, *others], policy), at(now))
        assert {each.task_id for each in plan.decisions if isinstance(each, Preempt)} == gone


def test_running_tasks_count_towards_the_part_of_a_flood() -> None:
    """Three of the flood's run, of which two may."""
    there = [
        running(task, {f"n{place}": tuple(range(8))}, since=0)
        for place, task in enumerate(many("flo", 3))
    ]
    waiting = [*many("flo", 300)[3:], *many("bob", 30, submitted=30)]
    plan = decided(snapshot_of([*there, *waiting], GUARDED))
    assert started(plan, "flo") == 0
    assert started(plan, "bob") == NODES - 3


def test_a_long_flood_is_decided_the_same_incrementally_and_from_scratch() -> None:
    """Tasks that the first walk assigns are not evaluated in the second."""
    harness = DomainHarness(some_nodes(2), policies=[GUARDED])
    for task in [*many("flo", 90), *many("bob", 2)]:
        harness.submit(task)
    harness.rounds()
    for step in range(8):
        for task_id in sorted(harness.index.held):
            harness.start(task_id)
        harness.until(harness.seconds + 3500)
        # The next to come is waiting when they end.
        harness.submit(a_task(f"cat{step}", owner="cat", submitted=harness.seconds))
        for task_id in sorted(harness.index.held):
            harness.exit(task_id, ExitKind.OK)
        harness.rounds()
        # One of the flood's may always run; the other node goes to another owner that waits.
        owners = [task.owner for task in harness.index.held.values()]
        assert len(owners) == 2
        assert owners.count("flo") <= 1
