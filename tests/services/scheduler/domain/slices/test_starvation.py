"""Grants go to the longest unserved task that a grant can help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from libs.contracts.messages import Priority, Unit
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.model.decisions import Plan, Reorder
from services.scheduler.domain.model.group_policy import GroupPolicy, Timeshare, VirtualCluster
from services.scheduler.domain.model.rows import Limit, Node, Task
from services.scheduler.domain.queue.queues import NO_SCOPE, QueueName
from services.scheduler.domain.queue.unserved import Unserved
from tests.kit.builders import a_limit, a_snapshot, a_task, running, some_nodes
from tests.kit.clock import at

LONG = 3 * 86_400.0
HOUR = 3600.0
NUMBERS = Timeshare(adapt_times=False)
PLAIN = GroupPolicy("default", timeshare=NUMBERS)
ALL = tuple(range(8))


def waits(task_id: str, *, nodes: int = 1, since: float = -LONG, **how: object) -> Task:
    task = a_task(task_id, nodes=nodes, submitted=since, **how)  # type: ignore[arg-type]
    return replace(task, unserved_since=at(since))


def runs(task_id: str, node: str, *, owner: str = "cat", **how: object) -> Task:
    """A run that has just begun, so that only a granted task comes before it."""
    task = a_task(task_id, owner=owner, submitted=-2 * LONG, **how)  # type: ignore[arg-type]
    return running(task, {node: ALL}, since=-60.0)


def granted(
    tasks: Iterable[Task],
    nodes: Iterable[Node],
    *,
    limits: Iterable[Limit] = (),
    policy: GroupPolicy = PLAIN,
) -> list[str]:
    """Which tasks the first plan grants the first place, if any."""
    snapshot = a_snapshot(tasks, nodes, limits=limits, policies=[policy])
    plan: Plan = decide(snapshot, at(0))
    assert check(snapshot, plan, deep=True) == []
    return [
        each.task_id
        for each in plan.decisions
        if isinstance(each, Reorder) and each.order_key.granted
    ]


def test_the_longest_unserved_is_granted_the_first_place() -> None:
    tasks = [
        runs("r", "n0"),
        waits("second", owner="bob", since=-LONG + 1),
        waits("first", owner="ann"),
    ]
    assert granted(tasks, some_nodes(1)) == ["first"]


def test_a_task_that_its_quota_stops_gets_no_grant() -> None:
    """Many such tasks wait, and for longer than the task that gets the grant."""
    tasks = [
        runs("anns", "n0", owner="ann"),
        runs("r", "n1"),
        *(waits(f"ann{number}", owner="ann", since=-2 * LONG) for number in range(20)),
        waits("bob", owner="bob"),
    ]
    limit = a_limit(1, user="ann", unit=Unit.NODES)
    assert granted(tasks, some_nodes(2), limits=[limit]) == ["bob"]


def test_a_task_that_waits_for_its_retry_gets_no_grant() -> None:
    late = replace(waits("late", owner="ann", since=-2 * LONG), not_before_at=at(60))
    assert granted([runs("r", "n0"), late, waits("bob", owner="bob")], some_nodes(1)) == ["bob"]


def test_a_lower_level_that_can_take_nothing_gets_no_grant() -> None:
    tasks = [
        runs("high", "n0", priority=Priority.HIGH),
        runs("normal", "n1"),
        waits("low", owner="ann", since=-2 * LONG, priority=Priority.LOW),
        # One of the two nodes is a higher level's: the gang of two can never be assembled.
        waits("gang", owner="ann", nodes=2, since=-1.5 * LONG),
        waits("bob", owner="bob"),
    ]
    assert granted(tasks, some_nodes(2)) == ["bob"]


def test_a_lower_level_that_can_take_something_is_granted() -> None:
    tasks = [
        runs("high", "n0", priority=Priority.HIGH),
        runs("lows", "n1", priority=Priority.LOW),
        waits("low", owner="ann", since=-2 * LONG, priority=Priority.LOW),
        waits("bob", owner="bob", since=-1.5 * LONG, priority=Priority.HIGH, nodes=3),
    ]
    assert granted(tasks, some_nodes(2)) == ["low"]


def test_a_gang_that_a_guarantee_keeps_out_gets_no_grant() -> None:
    clusters = (VirtualCluster("red", 1.0, users=("red",)),)
    policy = GroupPolicy("default", timeshare=NUMBERS, virtual_clusters=clusters)
    tasks = [
        runs("covered", "n0", owner="red"),
        runs("r", "n1"),
        waits("gang", owner="ann", nodes=2, since=-2 * LONG),
        waits("bob", owner="bob"),
    ]
    assert granted(tasks, some_nodes(2), policy=policy) == ["bob"]


def test_a_virtual_cluster_at_its_maximum_gets_no_grant() -> None:
    clusters = (VirtualCluster("red", 0.0, users=("red",), nodes_max=1.0),)
    policy = GroupPolicy("default", timeshare=NUMBERS, virtual_clusters=clusters)
    tasks = [
        runs("reds", "n0", owner="red"),
        runs("r", "n1"),
        waits("red", owner="red", since=-2 * LONG),
        waits("bob", owner="bob"),
    ]
    assert granted(tasks, some_nodes(2), policy=policy) == ["bob"]


def test_a_flood_beyond_its_part_gets_no_grant() -> None:
    numbers = Timeshare(adapt_times=False, flood_guard=True)
    policy = GroupPolicy("default", timeshare=numbers)
    flood = [waits(f"flo{number:03}", owner="flo", since=-2 * LONG) for number in range(200)]
    tasks = [runs("flos", "n0", owner="flo"), runs("r", "n1"), *flood, waits("bob", owner="bob")]
    assert granted(tasks, some_nodes(2), policy=policy) == ["bob"]


def test_a_smaller_task_does_not_jump_ahead_of_one_whose_nodes_are_only_held_for_a_while() -> None:
    gang = runs("held", "n0")
    held = replace(gang, marks=replace(gang.marks, held_until=at(HOUR)))
    tasks = [held, runs("r", "n1"), waits("gang", owner="ann", nodes=2, since=-2 * LONG)]
    tasks.append(waits("bob", owner="bob"))
    assert granted(tasks, some_nodes(2)) == ["gang"]


def test_the_search_for_a_grant_evaluates_each_queue_once() -> None:
    """The search evaluates only one of 3,000 tasks that a quota stops."""
    tasks = [
        runs("anns", "n0", owner="ann"),
        runs("r", "n1"),
        *(waits(f"ann{number}", owner="ann", since=-2 * LONG) for number in range(3000)),
    ]
    snapshot = a_snapshot(
        tasks, some_nodes(2), limits=[a_limit(1, user="ann", unit=Unit.NODES)], policies=[PLAIN]
    )
    walked = list(snapshot.pools["default"].unserved.walk(set()))
    assert len(walked) == 3000
    passed_over: set[QueueName] = set()
    count = 0
    for _, name in snapshot.pools["default"].unserved.walk(passed_over):
        passed_over.add(name)
        count += 1
    assert count == 1


NAMES = [
    QueueName(weight, a_task(nodes=nodes).shape, NO_SCOPE) for weight in (5, 10) for nodes in (1, 2)
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30),
    st.lists(st.integers(0, 29), max_size=30),
    st.sets(st.integers(0, 3)),
)
def test_unserved_tasks_stay_in_order_when_tasks_come_and_go(
    rows: list[tuple[int, int]], gone: list[int], stopped: set[int]
) -> None:
    unserved = Unserved()
    keys = [(name, (float(since), f"t{place:02}")) for place, (name, since) in enumerate(rows)]
    for name, key in keys:
        unserved.add(NAMES[name], key)
    for place in sorted({each for each in gone if each < len(keys)}, reverse=True):
        name, key = keys.pop(place)
        unserved.remove(NAMES[name], key)
    assert len(unserved) == len(keys)
    assert list(unserved) == sorted(key for _, key in keys)
    passed_over = {NAMES[each] for each in stopped}
    expected = sorted(key for name, key in keys if NAMES[name] not in passed_over)
    assert [key for key, _ in unserved.walk(passed_over)] == expected
