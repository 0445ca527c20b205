"""Right plans that the check once refused, each by the way in that led to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.messages import ExitKind, Priority
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.model.decisions import Assign, Kill, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy, Rotation
from services.scheduler.domain.model.lifecycle import Trigger
from services.scheduler.domain.model.values import OrderKey
from tests.kit.builders import a_node, a_snapshot, a_spec, a_task, on_nodes, preempting, running
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

ALL = tuple(range(8))


def test_a_kill_at_a_deadline_is_not_a_victim_of_a_slice_round_in_the_same_plan() -> None:
    """The victim of an earlier turn is silent and its node cordoned; its beneficiary takes another
    turn at the time of the deadline. Keys are tried along the reach of that turn."""
    turns = 0
    for key in range(0, 300_000, 1000):
        silent = preempting(a_task("silent", owner="bob"), {"n0": ALL}, deadline=60)
        silent = replace(silent, preempted_for="waits")
        other = running(a_task("other", owner="cat"), {"n1": ALL})
        other = replace(
            other, marks=OrderKey(policy="timeshare", waiting=False, key=at(key).timestamp())
        )
        waits = a_task("waits", submitted=0)
        nodes = [a_node("n0", schedulable=False), a_node("n1")]
        snapshot = a_snapshot([silent, other, waits], nodes)
        plan = decide(snapshot, at(60))
        killed = [each for each in plan.decisions if isinstance(each, Kill)]
        assert [(each.trigger, each.beneficiary) for each in killed] == [
            (Trigger.ACK_EXPIRED, "waits")
        ]
        turns += any(isinstance(each, Preempt) for each in plan.decisions)
        assert check(snapshot, plan, deep=True) == [], key
    assert 0 < turns < 300


def test_under_rotation_later_decisions_of_a_plan_do_not_count_for_earlier_ones() -> None:
    """A user's first task takes a turn; the second one starts on what is free, in the same plan."""
    both = 0
    for finish in range(-6000, 3000, 20):
        order_key = OrderKey(
            policy="rotation",
            waiting=False,
            key=at(-5000).timestamp(),
            user_finish=at(finish).timestamp(),
        )
        tasks = [
            replace(running(a_task("run", owner="bob", gpus=8), {"n0": ALL}), marks=order_key),
            a_task("large", gpus=8, owner="ann", submitted=0),
            a_task("small", gpus=4, owner="ann", submitted=1),
        ]
        rotation = Rotation(half_life_seconds=600.0)
        policy = GroupPolicy("default", policy="rotation", rotation=rotation)
        snapshot = a_snapshot(tasks, [a_node("n0"), a_node("n1", gpus=4)], policies=[policy])
        plan = decide(snapshot, at(60))
        both += {type(each) for each in plan.decisions} >= {Preempt, Assign}
        assert check(snapshot, plan, deep=True) == [], finish
    assert both


@pytest.mark.parametrize(
    "change",
    [
        {"group": "dev"},
        {"gpus": 16},
        {"gpus": 4},
        {"gpus": 0},
        {"taints": ("broken",)},
        {"removed": True},
        {"unusable": (0,)},
        {"draining": True},
    ],
    ids=str,
)
def test_the_promise_of_a_node_that_changed_is_withdrawn(change: dict[str, Any]) -> None:
    harness = DomainHarness([a_node("n0"), a_node("n1")])
    harness.submit(a_task("first", spec=a_spec(nodes=1), owner="ann"))
    harness.submit(a_task("second", spec=a_spec(nodes=1), owner="bob"))
    harness.rounds()
    for task_id in ("first", "second"):
        harness.start(task_id)
    harness.submit(a_task("high", spec=a_spec(nodes=2, priority=Priority.HIGH), submitted=1))
    harness.rounds()
    promised = {each.node_id for each in harness.tasks["high"].promised}
    assert promised == {"n0", "n1"}
    harness.put(a_node("n0", **{"version": 2, **change}))
    harness.rounds()
    # The runs on their way out go, and the promise would be redeemed: each plan is checked.
    for task_id in ("first", "second"):
        harness.exit(task_id, ExitKind.PREEMPTED)
    harness.rounds()


def test_a_promise_that_a_start_elsewhere_replaces_is_not_counted_as_a_second_crossing_gang() -> (
    None
):
    """A GPU of the promised nodes fails, and the gang starts at once on others."""
    east = {"zone": "east"}
    nodes = [a_node("n0"), a_node("n1", labels=east, unusable=(0,)), a_node("n2", labels=east)]
    task = replace(a_task("waits", nodes=2), accepted=True, level=Priority.NORMAL)
    waits = replace(task, promised=on_nodes(task, {"n0": ALL, "n1": ALL}))
    snapshot = a_snapshot([waits], nodes)
    plan = decide(snapshot, at(0))
    assert [type(each) for each in plan.decisions] == [Assign]
    assert check(snapshot, plan, deep=True) == []


def test_a_node_that_is_rebuilt_with_gpus_fits_cpu_ranks_beside_its_whole_run() -> None:
    """A whole node without GPUs is shared by nobody; one with GPUs always is."""
    node = a_node("n0", gpus=0, cpus=2.0)
    harness = DomainHarness([node])
    harness.submit(a_task("whole", submitted=0))
    harness.rounds()
    assert [each.node_id for each in harness.tasks["whole"].placements] == ["n0"]
    harness.submit(a_task("cpus", submitted=1, gpus=0))
    harness.rounds()
    assert not harness.tasks["cpus"].placements
    harness.put(replace(node, gpus=2, version=node.version + 1))
    harness.rounds()
    assert [each.node_id for each in harness.tasks["cpus"].placements] == ["n0"]
