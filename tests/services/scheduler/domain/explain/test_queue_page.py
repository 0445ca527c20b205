"""The queue is listed in the order in which ``decide`` gives nodes to it."""

from __future__ import annotations

import sys
from types import FrameType

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from libs.contracts.messages import ExitKind, Priority, TaskState, WaitingTask
from services.scheduler.domain.disciplines import DISCIPLINES
from services.scheduler.domain.explain.queue_page import NEW_MAX, Place, queue_page
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_spec, a_task, some_nodes
from tests.kit.clock import START
from tests.services.scheduler.domain.domain_harness import DomainHarness

LEVELS = (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.AUTO)
CLUSTERS = (
    VirtualCluster("ours", nodes=1.0, users=("ann",)),
    VirtualCluster("theirs", nodes=2.0, users=("bob",)),
    # Nothing is taken back from those that hold the nodes at first.
    VirtualCluster("holders", nodes=50.0, users=("eve",)),
)
# Of every discipline.
EXAMPLES = 8


def listed(harness: DomainHarness, group: str = "default", limit: int = 1_000) -> list[WaitingTask]:
    """All pages of the queue, one after another."""
    found: list[WaitingTask] = []
    after: Place | None = None
    while True:
        page = queue_page(harness.index, group, after, limit, harness.now.timestamp())
        found += page.tasks
        assert len(page.tasks) <= limit
        if page.next is None:
            return found
        after = page.next


def ids(found: list[WaitingTask]) -> list[str]:
    return [each.task_id for each in found]


def a_full_cluster(policy: GroupPolicy, nodes: int) -> DomainHarness:
    """Every node runs a task that no other may preempt."""
    harness = DomainHarness(some_nodes(nodes), policies=[policy], oracle=False)
    for number in range(nodes):
        holder = f"holds{number}"
        harness.submit(a_task(holder, owner="eve", priority=Priority.VERY_HIGH))
        harness.rounds()
        harness.start(holder)
    return harness


def a_waiting(number: int, submitted: float, owner: str, level: Priority) -> Task:
    return a_task(
        f"t{number}", submitted=submitted, owner=owner, team="", priority=level, accepted=False
    )


QUEUES = st.lists(
    st.tuples(
        st.floats(0.0, 90.0), st.sampled_from(("ann", "bob", "cleo")), st.sampled_from(LEVELS)
    ),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize("policy", sorted(DISCIPLINES))
@pytest.mark.parametrize("clusters", [(), CLUSTERS], ids=["", "clusters"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(queue=QUEUES, limit=st.integers(1, 8))
def test_nodes_that_become_free_go_to_the_queue_in_its_order(
    policy: str,
    clusters: tuple[VirtualCluster, ...],
    queue: list[tuple[float, str, Priority]],
    limit: int,
) -> None:
    """Nodes become free one at a time, and nothing else changes: the next task is always the first
    of the queue. Where no key and no rank depends on what an owner was given meanwhile, the queue
    as it was listed at first is the whole order."""
    group = GroupPolicy("default", policy=policy, virtual_clusters=clusters)
    harness = a_full_cluster(group, len(queue))
    harness.seconds = 100.0
    for number, each in enumerate(queue):
        harness.submit(a_waiting(number, *each))
    harness.rounds()
    first = ids(listed(harness))
    assert ids(listed(harness, limit=limit)) == first
    admitted: list[str] = []
    for number in range(len(queue)):
        whole = listed(harness)
        assert [each.position for each in whole] == list(range(1, len(whole) + 1))
        harness.exit(f"holds{number}", ExitKind.OK)
        harness.rounds()
        started = [task.id for task in harness.tasks.values() if task.state is TaskState.STARTING]
        assert started == [whole[0].task_id]
        admitted += started
        harness.start(started[0])
    if not clusters and not DISCIPLINES[policy].by_user:
        assert admitted == first


def test_a_task_that_nodes_are_kept_for_comes_first_in_its_level() -> None:
    harness = DomainHarness(
        some_nodes(2), policies=[GroupPolicy("default", policy="fifo")], oracle=False
    )
    for name in ("a", "b"):
        harness.submit(a_task(name, priority=Priority.LOW))
        harness.rounds()
        harness.start(name)
    harness.until(3600.0)
    harness.submit(a_task("gang", nodes=2, submitted=3600.0))
    harness.rounds()
    harness.submit(a_task("early", nodes=2, submitted=3000.0))
    harness.rounds()
    gang, early = listed(harness)
    assert (gang.task_id, early.task_id) == ("gang", "early")
    assert gang.promised_nodes == 2
    assert gang.promised_until is not None
    assert gang.promised_until > harness.now
    assert (gang.position, early.position) == (1, 2)
    assert early.promised_nodes == 0


def test_tasks_that_come_and_go_move_no_other_between_pages() -> None:
    """A page goes on behind the last task of the one before, even if that is gone."""
    harness = a_full_cluster(GroupPolicy("default", policy="fifo"), 1)
    for number in range(6):
        harness.submit(a_waiting(number, float(number), "ann", Priority.NORMAL))
    harness.rounds()
    page = queue_page(harness.index, "default", None, 3, 0.0)
    assert ids(page.tasks) == ["t0", "t1", "t2"]
    for gone in ("t0", "t2"):
        harness.index.apply(deleted=[(Task, (gone,))])
    harness.submit(a_waiting(7, 0.5, "ann", Priority.HIGH))
    harness.rounds()
    rest = queue_page(harness.index, "default", page.next, 3, 0.0)
    assert ids(rest.tasks) == ["t3", "t4", "t5"]
    # Of this moment: behind t7, which came, and t1.
    assert [each.position for each in rest.tasks] == [3, 4, 5]
    assert rest.next is None


def test_all_groups_are_listed_by_name_each_with_its_own_positions() -> None:
    harness = DomainHarness([a_node("a0", group="a"), a_node("b0", group="b")], oracle=False)
    for group in ("b", "a"):
        for number in range(3):
            task = a_task(f"{group}{number}", group=group, submitted=number, nodes=1)
            harness.submit(task)
            harness.rounds()
    found = listed(harness, "", limit=1)
    assert ids(found) == ["a1", "a2", "b1", "b2"]
    assert [each.position for each in found] == [1, 2, 1, 2]
    assert ids(listed(harness, "b")) == ["b1", "b2"]
    assert listed(harness, "elsewhere") == []


def test_tasks_that_no_round_has_evaluated_come_last_and_are_bounded() -> None:
    harness = a_full_cluster(GroupPolicy("default", policy="fifo"), 1)
    harness.seconds = 2.0 * NEW_MAX
    harness.submit(a_waiting(0, 50.0, "ann", Priority.LOW))
    harness.rounds()
    for number in range(1, NEW_MAX + 10):
        harness.submit(a_waiting(number, float(number), "ann", Priority.HIGH))
    found = listed(harness, limit=97)
    assert len(found) == NEW_MAX + 1
    assert ids(found)[:3] == ["t0", "t1", "t2"]


def _calls(index: Index, after: Place | None) -> int:
    found = 0

    def note(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal found
        found += what in {"call", "c_call"}

    sys.setprofile(note)
    try:
        page = queue_page(index, "default", after, 20, START.timestamp())
    finally:
        sys.setprofile(None)
    assert len(page.tasks) == 20
    return found


@pytest.mark.slow
def test_a_page_costs_the_same_however_long_the_queue_is() -> None:
    """Tasks of many owners and of a shape each; a page in the middle of the queue."""

    def cost(size: int) -> int:
        harness = DomainHarness(
            [a_node("n0")], policies=[GroupPolicy("default", policy="fifo")], oracle=False
        )
        harness.put(
            *(
                a_task(
                    f"t{number}",
                    submitted=float(number),
                    owner=f"user{number % 50}",
                    spec=a_spec(
                        gpus=1, memory_bytes=1_000_000 + number, priority=LEVELS[number % 3]
                    ),
                )
                for number in range(size)
            )
        )
        harness.commit(harness.plan())
        page = queue_page(harness.index, "default", None, size // 2, START.timestamp())
        _calls(harness.index, page.next)
        return _calls(harness.index, page.next)

    assert cost(4_000) <= 1.2 * cost(400)
