"""Gangs that cross the largest domains of the network: how many may, and which are preempted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import ExitKind, Priority, TaskState
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.domain.model.values import OrderKey
from tests.kit.builders import a_node, a_snapshot, a_task, running
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

ALL = tuple(range(8))


def zones(**sizes: int) -> list[Node]:
    """The given number of nodes in each zone: ``a0``, ``a1``, … in zone a."""
    return [
        a_node(f"{zone}{place}", labels={"zone": zone})
        for zone, count in sizes.items()
        for place in range(count)
    ]


def victims(tasks: list[Task], nodes: list[Node], policy: GroupPolicy) -> list[str]:
    snapshot = a_snapshot(tasks, nodes, policies=[policy])
    plan = decide(snapshot, at(0))
    assert check(snapshot, plan, deep=True) == []
    return sorted(d.task_id for d in plan.decisions if isinstance(d, Preempt | Kill))


@pytest.mark.parametrize("name", ["timeshare", "fifo", "backfill", "rotation", "las"])
def test_a_gang_that_must_cross_zones_preempts_a_lower_one_that_crosses(name: str) -> None:
    """The lower one's place among those that may cross is free with its nodes."""
    harness = DomainHarness(zones(a=2, b=2), policies=[GroupPolicy("default", policy=name)])
    harness.submit(a_task("low", nodes=3, priority=Priority.LOW))
    harness.rounds()
    harness.start("low")
    harness.until(4000.0)
    harness.submit(a_task("high", nodes=3, priority=Priority.HIGH, submitted=4000.0))
    harness.rounds()
    assert harness.tasks["low"].state is TaskState.PREEMPTING
    harness.exit("low", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["high"].state is TaskState.STARTING


def test_only_the_gang_that_crosses_is_in_the_way_though_enough_gpus_are_free() -> None:
    """That gang is asked to leave, and has left before the other begins."""
    harness = DomainHarness(zones(a=1, b=1), policies=[GroupPolicy("default", policy="backfill")])
    harness.submit(a_task("low", nodes=2, gpus=4, priority=Priority.LOW))
    harness.rounds()
    harness.start("low")
    harness.until(4000.0)
    harness.submit(a_task("high", nodes=2, gpus=4, priority=Priority.HIGH, submitted=4000.0))
    harness.rounds()
    assert harness.tasks["low"].state is TaskState.PREEMPTING
    assert harness.tasks["high"].state is TaskState.QUEUED
    assert harness.tasks["high"].promised
    harness.exit("low", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["high"].state is TaskState.STARTING


def test_a_promise_across_zones_is_withdrawn_if_another_gang_takes_the_crossing() -> None:
    """A higher gang takes the promise of a lower one, which is not asked to cross any more."""
    harness = DomainHarness(zones(a=2, b=2), policies=[GroupPolicy("default", policy="backfill")])
    harness.submit(a_task("idle", nodes=3, priority=Priority.IDLE))
    harness.rounds()
    harness.start("idle")
    harness.until(4000.0)
    for number, level in enumerate((Priority.LOW, Priority.HIGH)):
        task_id = level.value.removeprefix("PRIORITY_").lower()
        harness.submit(a_task(task_id, nodes=3, priority=level, submitted=4000.0 + number))
        harness.rounds()
        assert harness.tasks[task_id].promised
    assert not harness.tasks["low"].promised
    harness.exit("idle", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["high"].state is TaskState.STARTING


def test_a_guarantee_takes_the_place_of_a_borrower_that_crosses() -> None:
    red = VirtualCluster("red", 3.0, teams=("red",))
    policy = GroupPolicy("default", policy="timeshare", virtual_clusters=(red,))
    borrows = running(a_task("borrows", nodes=3), {"a0": ALL, "a1": ALL, "b0": ALL})
    comes = a_task("comes", nodes=3, owner="rob", team="red")
    assert victims([borrows, comes], zones(a=2, b=2), policy) == ["borrows"]


def test_no_more_gangs_cross_than_may_while_some_are_on_their_way_out() -> None:
    """A leaving gang still crosses: no other begins to, unless the place was promised to it."""
    harness = DomainHarness(zones(a=2, b=2), policies=[GroupPolicy("default", policy="backfill")])
    harness.submit(a_task("first", nodes=2, gpus=4))
    harness.submit(a_task("big", nodes=3, gpus=4, submitted=1.0))
    harness.rounds()
    harness.start("big")
    harness.submit(a_task("next", nodes=3, gpus=2, submitted=2.0))
    harness.rounds()
    assert harness.tasks["next"].state is TaskState.QUEUED
    harness.exit("big", ExitKind.OK)
    harness.rounds()
    assert harness.tasks["next"].state is TaskState.STARTING


def costing(task_id: str, node: str, seconds: float) -> Task:
    """A run on a node that loses so many seconds of work."""
    return running(a_task(task_id, priority=Priority.LOW), {node: ALL}, since=-seconds)


def test_victims_inside_one_zone_are_preferred_to_slightly_cheaper_ones_across() -> None:
    """230 across the zones would also take the only place for a gang that crosses."""
    runs = [
        costing("east1", "a0", 120.0),
        costing("east2", "a1", 121.0),
        costing("west1", "b0", 110.0),
        costing("west2", "b1", 90_000.0),
    ]
    policy = GroupPolicy("default", policy="backfill")
    high = a_task("high", nodes=2, priority=Priority.HIGH)
    assert victims([*runs, high], zones(a=2, b=2), policy) == ["east1", "east2"]


def test_much_cheaper_victims_across_zones_are_preferred() -> None:
    runs = [
        costing("east1", "a0", 10.0),
        costing("east2", "a1", 90_000.0),
        costing("west1", "b0", 10.0),
        costing("west2", "b1", 90_000.0),
    ]
    policy = GroupPolicy("default", policy="backfill")
    high = a_task("high", nodes=2, priority=Priority.HIGH)
    assert victims([*runs, high], zones(a=2, b=2), policy) == ["east1", "west1"]


def test_a_higher_level_is_not_preempted_only_to_stay_inside_a_zone() -> None:
    normal = running(a_task("normal"), {"a1": ALL}, since=-10)
    runs = [costing("low1", "a0", 10.0), costing("low2", "b0", 10.0), normal]
    policy = GroupPolicy("default", policy="backfill")
    high = a_task("high", nodes=2, priority=Priority.HIGH)
    assert victims([*runs, high], zones(a=2, b=1), policy) == ["low1", "low2"]


def test_slice_rounds_stay_inside_one_zone_if_that_is_enough() -> None:
    """The two runs that come last in the order lie in different zones."""
    keys = {"a0": 4000.0, "b0": 3900.0, "a1": 3800.0, "b1": 3700.0}
    runs = [
        replace(
            running(a_task(node_id), {node_id: ALL}),
            marks=OrderKey("timeshare", waiting=False, key=at(key).timestamp()),
        )
        for node_id, key in keys.items()
    ]
    gang = replace(
        a_task("gang", nodes=2, owner="zoe"),
        marks=OrderKey("timeshare", waiting=True, key=at(0).timestamp()),
    )
    policy = GroupPolicy("default", policy="timeshare")
    assert victims([*runs, gang], zones(a=2, b=2), policy) == ["a0", "a1"]


def test_nothing_is_assigned_across_zones_beyond_the_maximum() -> None:
    there = running(a_task("there", nodes=3), {"a0": ALL, "a1": ALL, "b0": ALL})
    comes = a_task("comes", nodes=2, gpus=1)
    snapshot = a_snapshot([there, comes], [*zones(a=2, b=2), *zones(c=1)])
    plan = decide(snapshot, at(0))
    assert check(snapshot, plan, deep=True) == []
    given = [d for d in plan.decisions if isinstance(d, Assign | Hold) and d.task_id == "comes"]
    assert all(not isinstance(each, Assign) for each in given)
