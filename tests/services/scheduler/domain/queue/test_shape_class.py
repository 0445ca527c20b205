"""Tasks that differ only in CPUs and memory are walked along as one class, with the same result."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import HealthCheck, example, given, settings

from libs.contracts.messages import ExitKind, Priority, TaskState
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import Key, Shape
from services.scheduler.domain.queue import queues
from services.scheduler.domain.queue.queues import (
    NO_SCOPE,
    Branch,
    QueueName,
    Queues,
    ShapeRow,
    Tree,
)
from tests.kit.builders import a_node, a_spec, a_task
from tests.services.scheduler.domain.domain_harness import DomainHarness

PLAIN = Shape("default", 1, None, 0.0, 0)
# Some are equal in thousandths of a CPU.
CPUS = st.sampled_from([0.0, 0.5, 0.0001, 0.0002, 1.0, 3.0])
MEMORY = st.one_of(st.integers(0, 9), st.sampled_from([2**40, 2**40 + 1, 2**70]))


@st.composite
def some_shapes(draw: st.DrawFn) -> Shape:
    return PLAIN._replace(cpus=draw(CPUS), memory_bytes=draw(MEMORY))


def rows_of(tree: Tree) -> Iterator[ShapeRow]:
    if isinstance(tree, Branch):
        yield from rows_of(tree.low)
        yield from rows_of(tree.high)
    else:
        yield tree


def verify(tree: Tree, parent: Branch | None = None) -> None:
    """Every branch knows the first of its tasks and the smallest request of any."""
    assert tree.parent is parent
    rows = list(rows_of(tree))
    assert tree.first == min(head[:2] for row in rows for head in row.heads)
    shapes = [head[2].name.shape for row in rows for head in row.heads]
    assert tree.least.cpus == min(
        shape.cpus for shape in shapes
    ) or tree.least.resources.cpus == min(shape.resources.cpus for shape in shapes)
    assert tree.least.memory_bytes == min(shape.memory_bytes for shape in shapes)
    if isinstance(tree, Branch):
        verify(tree.low, tree)
        verify(tree.high, tree)


def drawn(tree: Tree | None) -> object:
    if isinstance(tree, Branch):
        return tree.bit, drawn(tree.low), drawn(tree.high)
    return None if tree is None else (tree.code, [head[:2] for head in tree.heads])


@given(
    st.lists(st.tuples(some_shapes(), st.integers(0, 5), st.sampled_from(["ann", "bob"]))),
    st.data(),
)
def test_a_class_follows_its_tasks_as_they_come_and_go(
    tasks: list[tuple[Shape, int, str]], data: st.DataObject
) -> None:
    found = Queues()
    there: dict[Key, QueueName] = {}
    for number, (shape, key, owner) in enumerate(tasks):
        at = (float(key), f"t{number}")
        there[at] = QueueName(10, shape, ("", owner, ""))
        found.add(there[at], at)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(there)))
            found.remove(there.pop(gone), gone)
        for classes in found.groups.values():
            for each in classes.values():
                assert each.top is not None
                verify(each.top)
    assert {key: name for name, key in found} == there
    again = Queues()
    for key in sorted(there, reverse=True):
        again.add(there[key], key)
    assert found.groups.keys() == again.groups.keys()
    for group, classes in found.groups.items():
        for named, each in classes.items():
            assert drawn(each.top) == drawn(again.groups[group][named].top)
    found.rekey(lambda keys: sorted((-float(task_id[1:]), task_id) for _, task_id in keys))
    for classes in found.groups.values():
        for each in classes.values():
            assert each.top is not None
            verify(each.top)


def test_shapes_that_avoid_nodes_are_classes_of_their_own() -> None:
    found = Queues()
    for number, avoids in enumerate([(), ("n1",), ("n1",)]):
        shape = PLAIN._replace(memory_bytes=number + 1, avoids=avoids)
        found.add(QueueName(10, shape, NO_SCOPE), (0.0, f"t{number}"))
    assert len(found.groups[10, ""]) == 3


def play(tasks: list[Task], memory: list[int], policy: GroupPolicy, ends: list[int]) -> list[str]:
    """What is decided in a cluster in which runs end in turn."""
    nodes = [
        a_node(f"n{place}", gpus=4, cpus=4.0, memory_bytes=each)
        for place, each in enumerate(memory)
    ]
    harness = DomainHarness(nodes, policies=[policy], oracle=False)
    plans: list[str] = []

    def rounds() -> None:
        while True:
            plan = harness.plan()
            harness.index.settle(plan)
            plans.append(repr((plan.decisions, plan.ledgers, plan.due_at)))
            if not plan.decisions and not plan.ledgers:
                return
            harness.commit(plan)
            for task in list(harness.tasks.values()):
                if task.state is TaskState.STARTING:
                    harness.start(task.id)
                elif task.state in (TaskState.PREEMPTING, TaskState.KILLING):
                    harness.exit(task.id, ExitKind.PREEMPTED)

    for task in tasks:
        harness.submit(task)
        rounds()
    for end in ends:
        # At times long enough for a pass, in which tasks of one level take turns.
        harness.seconds += 20.0 + 2_000.0 * (end % 3)
        running = sorted(harness.index.held)
        if running:
            harness.exit(running[end % len(running)], ExitKind.OK)
        rounds()
    return plans


@st.composite
def some_tasks(draw: st.DrawFn) -> list[Task]:
    levels = st.sampled_from([*[Priority.NORMAL] * 5, Priority.HIGH, Priority.AUTO])
    found: list[Task] = []
    for number in range(draw(st.integers(6, 14))):
        spec = a_spec(
            nodes=draw(st.sampled_from([1, 1, 1, 1, 2])),
            gpus=draw(st.sampled_from([1, 1, 1, 1, 0, None])),
            cpus=draw(st.sampled_from([None, None, None, 0.5, 1.5])),
            memory_bytes=draw(st.integers(1, 9)),
            priority=draw(levels),
        )
        owner, team = draw(st.sampled_from([("ann", "vision"), ("bob", "speech")]))
        found.append(a_task(f"t{number:02}", spec=spec, owner=owner, team=team, submitted=number))
    return found


def alone(shape: Shape) -> Shape:
    """Each shape is a class of its own."""
    return shape


TREE = (VirtualCluster("eyes", 1.0, teams=("vision",)), VirtualCluster("ears", 0.5, users=("bob",)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(
    [
        a_task(f"t{number}", spec=a_spec(gpus=1, memory_bytes=each), submitted=number)
        for number, each in enumerate([3, 5, 9, 8, 4, 7, 3, 2])
    ],
    [10],
    ("timeshare", ()),
    [0, 0, 0, 0],
)
@given(
    some_tasks(),
    st.lists(st.sampled_from([10, 10, 8]), min_size=1, max_size=2),
    st.tuples(
        st.sampled_from(["timeshare", "timeshare", "fifo", "rotation", "easy", "las"]),
        st.sampled_from([(), (), TREE]),
    ),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_decisions_are_the_same_with_shape_classes_and_without(
    tasks: list[Task],
    memory: list[int],
    policy: tuple[str, tuple[VirtualCluster, ...]],
    ends: list[int],
) -> None:
    group = GroupPolicy("default", policy=policy[0], virtual_clusters=policy[1])
    found = play(tasks, memory, group, ends)
    with patch.object(queues, "class_of", alone):
        expected = play(tasks, memory, group, ends)
    assert found == expected


def test_the_name_of_a_class_has_no_amounts() -> None:
    shape = PLAIN._replace(cpus=2.0, memory_bytes=7)
    assert queues.class_of(shape) is not shape
    assert queues.class_of(shape) == PLAIN
    assert queues.class_of(PLAIN) is PLAIN
