"""What is paused wants nothing: it is no load, no backlog, and does not grow older."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import ExitKind, Goal, TaskState
from services.scheduler.domain.model.group_policy import GroupPolicy, Timeshare
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_task, some_nodes
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

HOUR, DAY = 3600.0, 86_400.0
PLAIN = GroupPolicy("default", timeshare=Timeshare(adapt_times=False))


def a_harness(nodes: int = 4) -> DomainHarness:
    return DomainHarness(some_nodes(nodes), policies=[PLAIN])


def arrives(harness: DomainHarness, task_id: str, **how: object) -> Task:
    harness.submit(a_task(task_id, submitted=harness.seconds, **how))  # type: ignore[arg-type]
    harness.rounds()
    return harness.tasks[task_id]


def sampled_for(harness: DomainHarness, seconds: float) -> float:
    """Let time pass with a short task each hour, so that the load is sampled; its scale then."""
    end = harness.seconds + seconds
    place = 0
    while harness.seconds < end:
        name = f"short{harness.seconds:.0f}x{place}"
        arrives(harness, name, owner="bob")
        if harness.tasks[name].state is TaskState.STARTING:
            harness.start(name)
        harness.until(harness.seconds + HOUR)
        if harness.tasks[name].holds:
            harness.exit(name, ExitKind.OK)
        harness.rounds()
        place += 1
    return harness.index.pool("default").ledger.scale


@pytest.mark.parametrize("ran", [False, True])
def test_paused_work_is_no_load_while_it_is_paused_and_none_when_it_is_back(ran: bool) -> None:
    harness = a_harness()
    arrives(harness, "gang", nodes=3)
    if ran:
        harness.start("gang")
        harness.until(60.0)
        harness.want("gang", Goal.PAUSE)
        harness.rounds()
        harness.exit("gang", ExitKind.PREEMPTED)
    else:
        harness.exit("gang", ExitKind.LOST)
        harness.want("gang", Goal.PAUSE)
    harness.rounds()
    assert harness.tasks["gang"].state is TaskState.PAUSED
    harness.until(30 * DAY)
    assert sampled_for(harness, 2 * DAY) == 1.0
    harness.want("gang", Goal.RUN)
    harness.rounds()
    assert harness.tasks["gang"].state is TaskState.STARTING
    harness.start("gang")
    assert sampled_for(harness, 2 * DAY) == 1.0


def test_a_run_of_ten_days_counts_as_load() -> None:
    harness = a_harness(40)
    arrives(harness, "gang", nodes=30)
    harness.start("gang")
    harness.until(10 * DAY)
    assert sampled_for(harness, 2 * DAY) > 1.0


def test_a_pause_does_not_make_a_task_older() -> None:
    """Two of one kind, submitted together: the one that waited comes before the one that paused."""
    harness = a_harness(1)
    arrives(harness, "runs", owner="cat")
    harness.start("runs")
    arrives(harness, "paused", owner="ann")
    arrives(harness, "waits", owner="bob")
    harness.until(100.0)
    harness.want("paused", Goal.PAUSE)
    harness.rounds()
    harness.until(5 * HOUR)
    harness.want("paused", Goal.RUN)
    harness.rounds()
    pool = harness.index.pool("default")
    order_key = harness.tasks["paused"].marks
    assert order_key.base == pytest.approx(at(5 * HOUR - 100.0).timestamp(), abs=1e-3)
    assert pool.key(order_key) > pool.key(harness.tasks["waits"].marks)
    # Waiting goes on to count.
    assert harness.tasks["waits"].marks.base == pytest.approx(at(0.0).timestamp(), abs=1e-3)


def test_two_pauses_add_up() -> None:
    harness = a_harness(1)
    arrives(harness, "runs", owner="cat")
    harness.start("runs")
    arrives(harness, "task", owner="ann")
    for seconds in (1000.0, 3000.0):
        harness.until(seconds)
        harness.want("task", Goal.PAUSE)
        harness.rounds()
        harness.until(seconds + 500.0)
        harness.want("task", Goal.RUN)
        harness.rounds()
    assert harness.tasks["task"].marks.base == pytest.approx(at(1000.0).timestamp(), abs=1e-3)


def test_paused_tasks_are_neither_backlog_nor_users_that_share_the_pool() -> None:
    harness = a_harness(1)
    arrives(harness, "runs", owner="cat")
    for number in range(5):
        arrives(harness, f"ann{number}", owner="ann")
        harness.want(f"ann{number}", Goal.PAUSE)
        harness.rounds()
    pool = harness.index.pool("default")
    assert pool.owners == {"cat": 1}
    assert pool.owner_units == {"cat": 1.0}
    # The owner still has tasks, so what is kept of the owner is not forgotten.
    assert pool.unended["ann"] == 5
    assert "ann" in pool.finishes
    harness.want("ann0", Goal.STOP)
    harness.rounds()
    assert "ann" in pool.finishes


def test_a_paused_row_from_before_pauses_were_noted_is_resumed_as_it_was() -> None:
    harness = a_harness(1)
    arrives(harness, "runs", owner="cat")
    arrives(harness, "task", owner="ann")
    harness.want("task", Goal.PAUSE)
    harness.rounds()
    harness.put(replace(harness.tasks["task"], unserved_since=None))
    harness.until(1000.0)
    harness.want("task", Goal.RUN)
    harness.rounds()
    assert harness.tasks["task"].marks.base == pytest.approx(at(0.0).timestamp(), abs=1e-3)
