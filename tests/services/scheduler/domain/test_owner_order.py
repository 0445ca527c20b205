"""``rotation``: first come, first served inside a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from libs.contracts.messages import ExitKind, Goal, Priority, ReasonCode, TaskState, Unit
from services.scheduler.domain.model.group_policy import GroupPolicy, Rotation
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_limit, a_task, some_nodes
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

HOUR = 3600.0
NUMBERS = Rotation(first_slice_seconds=900.0, slice_seconds=4 * HOUR)


def a_harness(nodes: int, *limits: object, policy: str = "rotation") -> DomainHarness:
    harness = DomainHarness(
        some_nodes(nodes), policies=[GroupPolicy("default", policy=policy, rotation=NUMBERS)]
    )
    harness.put(*limits)
    return harness


def arrives(harness: DomainHarness, task_id: str, nodes: int = 1, **how: object) -> None:
    submitted = how.pop("submitted", harness.seconds)
    task = a_task(task_id, nodes=nodes, submitted=submitted, **how)  # type: ignore[arg-type]
    harness.submit(task)
    goes_on(harness)


def goes_on(harness: DomainHarness) -> None:
    """All assigned tasks run, and all preempted ones have left."""
    harness.rounds()
    for task in list(harness.tasks.values()):
        if task.state is TaskState.STARTING:
            harness.start(task.id)
        elif task.state is TaskState.PREEMPTING:
            harness.exit(task.id, ExitKind.PREEMPTED)
            goes_on(harness)
            return
    harness.rounds()


def ends(harness: DomainHarness, task_id: str) -> None:
    harness.exit(task_id, ExitKind.OK)
    goes_on(harness)


def running(harness: DomainHarness) -> list[str]:
    return sorted(task.id for task in harness.tasks.values() if task.holds)


def test_a_gang_does_not_wait_behind_later_tasks_of_its_owner() -> None:
    """Each hour one of the owner's small tasks ends and another comes."""
    harness = a_harness(4)
    for number in range(4):
        arrives(harness, f"s{number}")
    arrives(harness, "gang", 4)
    for number in range(4, 30):
        harness.until(harness.seconds + HOUR)
        arrives(harness, f"s{number}")
        small = [each for each in running(harness) if each != "gang"]
        if small:
            ends(harness, small[0])
        if running(harness) == ["gang"]:
            break
    # The four that were there before it have ended; none of the later ones began.
    assert running(harness) == ["gang"]
    assert number == 7
    assert harness.tasks["s5"].reason.code is ReasonCode.WAITS_BEHIND_OTHERS
    ends(harness, "gang")
    assert running(harness) == ["s4", "s5", "s6", "s7"]


def test_other_users_are_not_held_back() -> None:
    harness = a_harness(2)
    arrives(harness, "first")
    arrives(harness, "gang", 2)
    arrives(harness, "later")
    arrives(harness, "bobs", owner="bob")
    assert running(harness) == ["bobs", "first"]


def test_nodes_that_the_gang_could_not_use_are_not_held_back() -> None:
    harness = a_harness(2)
    arrives(harness, "first")
    arrives(harness, "gang", 2)
    arrives(harness, "cpu", gpus=0)
    arrives(harness, "other", priority=Priority.LOW)
    assert running(harness) == ["cpu", "first", "other"]


def test_a_task_that_its_quota_stops_holds_no_task_back() -> None:
    harness = a_harness(2, a_limit(1, user="ann", priority=Priority.NORMAL, unit=Unit.NODES))
    arrives(harness, "gang", 2)
    assert harness.tasks.get("gang") is None or harness.tasks["gang"].state is TaskState.QUEUED
    arrives(harness, "small")
    assert "small" in running(harness)


def test_a_task_that_waits_for_its_retry_holds_no_task_back() -> None:
    harness = a_harness(2)
    arrives(harness, "first")
    arrives(harness, "gang", 2)
    harness.put(replace(harness.tasks["gang"], not_before_at=at(600.0)))
    arrives(harness, "small")
    assert running(harness) == ["first", "small"]


@pytest.mark.parametrize("policy", ["rotation", "fifo"])
@pytest.mark.parametrize("goal", [Goal.STOP, Goal.PAUSE])
def test_later_tasks_start_when_the_gang_is_stopped_or_paused(policy: str, goal: Goal) -> None:
    harness = a_harness(2, policy=policy)
    arrives(harness, "first")
    arrives(harness, "gang", 2)
    arrives(harness, "small")
    assert running(harness) == ["first"]
    harness.want("gang", goal)
    goes_on(harness)
    assert running(harness) == ["first", "small"]


def test_later_tasks_start_when_the_gang_has_another_level() -> None:
    harness = a_harness(2)
    arrives(harness, "first")
    arrives(harness, "gang", 2)
    arrives(harness, "small")
    harness.rank("gang", Priority.LOW)
    goes_on(harness)
    assert running(harness) == ["first", "small"]


def test_a_gang_preempts_another_users_run_and_then_its_owners_later_tasks_go_on() -> None:
    harness = a_harness(2)
    arrives(harness, "bob1", owner="bob")
    arrives(harness, "bob2", owner="bob")
    arrives(harness, "gang", 2)
    arrives(harness, "small")
    assert running(harness) == ["bob1", "bob2"]
    # Bob's first slices are over.
    harness.until(901.0)
    goes_on(harness)
    assert running(harness) == ["gang"]
    ends(harness, "gang")
    assert "small" in running(harness)


def passed(task: Task, others: Sequence[Task]) -> list[str]:
    """Waiting tasks of the owner and level that came before this one, and need no more nodes."""
    return [
        each.id
        for each in others
        if each.state is TaskState.QUEUED
        and each.owner == task.owner
        and each.priority is task.priority
        and not each.promised
        and (each.submitted_at, each.id) < (task.submitted_at, task.id)
        and each.not_before_at is None
    ]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob"]),
            st.integers(1, 4),
            st.sampled_from(["arrive", "arrive", "end", "wait", "stop"]),
        ),
        min_size=5,
        max_size=25,
    )
)
def test_no_task_starts_while_an_earlier_one_of_its_owner_waits(
    steps: list[tuple[str, int, str]],
) -> None:
    """All tasks ask for whole nodes of the same kind, so each could use what the other could."""
    harness = a_harness(4)
    for place, (owner, number, what) in enumerate(steps):
        before = set(running(harness))
        if what == "arrive":
            arrives(harness, f"t{place:02}", number, owner=owner)
        elif what == "end" and before:
            ends(harness, sorted(before)[number % len(before)])
        elif what == "stop" and harness.tasks:
            harness.want(sorted(harness.tasks)[number % len(harness.tasks)], Goal.STOP)
            goes_on(harness)
        else:
            harness.until(harness.seconds + number * 1000.0)
            goes_on(harness)
        # A run that was asked to go in this step waits only since then: what it leaves over may
        # have been promised meanwhile.
        everything = [task for task in harness.tasks.values() if task.id not in before]
        for task_id in set(running(harness)) - before:
            task = harness.tasks[task_id]
            assert not passed(task, everything), (task_id, passed(task, everything))
