"""What is paused wants nothing: it is no load, no backlog, and does not grow older."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import ExitKind, Goal, TaskState
from services.scheduler.domain.model.group_policy import GroupPolicy, Timeshare
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_task, some_nodes
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import Stage

HOUR, DAY = 3600.0, 86_400.0
PLAIN = GroupPolicy("default", timeshare=Timeshare(adapt_times=False))


def a_stage(nodes: int = 4) -> Stage:
    return Stage(some_nodes(nodes), policies=[PLAIN])


def arrives(stage: Stage, task_id: str, **how: object) -> Task:
    stage.submit(a_task(task_id, submitted=stage.seconds, **how))  # type: ignore[arg-type]
    stage.rounds()
    return stage.tasks[task_id]


def sampled_for(stage: Stage, seconds: float) -> float:
    """Let time pass with a short task each hour, so that the load is sampled; its scale then."""
    end = stage.seconds + seconds
    place = 0
    while stage.seconds < end:
        name = f"short{stage.seconds:.0f}x{place}"
        arrives(stage, name, owner="bob")
        if stage.tasks[name].state is TaskState.STARTING:
            stage.start(name)
        stage.until(stage.seconds + HOUR)
        if stage.tasks[name].holds:
            stage.exit(name, ExitKind.OK)
        stage.rounds()
        place += 1
    return stage.index.pool("default").ledger.scale


@pytest.mark.parametrize("ran", [False, True])
def test_paused_work_is_no_load_while_it_is_paused_and_none_when_it_is_back(ran: bool) -> None:
    stage = a_stage()
    arrives(stage, "gang", nodes=3)
    if ran:
        stage.start("gang")
        stage.until(60.0)
        stage.want("gang", Goal.PAUSE)
        stage.rounds()
        stage.exit("gang", ExitKind.PREEMPTED)
    else:
        stage.exit("gang", ExitKind.LOST)
        stage.want("gang", Goal.PAUSE)
    stage.rounds()
    assert stage.tasks["gang"].state is TaskState.PAUSED
    stage.until(30 * DAY)
    assert sampled_for(stage, 2 * DAY) == 1.0
    stage.want("gang", Goal.RUN)
    stage.rounds()
    assert stage.tasks["gang"].state is TaskState.STARTING
    stage.start("gang")
    assert sampled_for(stage, 2 * DAY) == 1.0


def test_a_run_of_ten_days_is_load() -> None:
    stage = a_stage(40)
    arrives(stage, "gang", nodes=30)
    stage.start("gang")
    stage.until(10 * DAY)
    assert sampled_for(stage, 2 * DAY) > 1.0


def test_a_pause_does_not_make_a_task_older() -> None:
    """Two of one kind, submitted together: the one that waited comes before the one that paused."""
    stage = a_stage(1)
    arrives(stage, "runs", owner="cat")
    stage.start("runs")
    arrives(stage, "paused", owner="ann")
    arrives(stage, "waits", owner="bob")
    stage.until(100.0)
    stage.want("paused", Goal.PAUSE)
    stage.rounds()
    stage.until(5 * HOUR)
    stage.want("paused", Goal.RUN)
    stage.rounds()
    pool = stage.index.pool("default")
    marks = stage.tasks["paused"].marks
    assert marks.base == pytest.approx(at(5 * HOUR - 100.0).timestamp(), abs=1e-3)
    assert pool.key(marks) > pool.key(stage.tasks["waits"].marks)
    # Waiting goes on to count.
    assert stage.tasks["waits"].marks.base == pytest.approx(at(0.0).timestamp(), abs=1e-3)


def test_two_pauses_add_up() -> None:
    stage = a_stage(1)
    arrives(stage, "runs", owner="cat")
    stage.start("runs")
    arrives(stage, "task", owner="ann")
    for seconds in (1000.0, 3000.0):
        stage.until(seconds)
        stage.want("task", Goal.PAUSE)
        stage.rounds()
        stage.until(seconds + 500.0)
        stage.want("task", Goal.RUN)
        stage.rounds()
    assert stage.tasks["task"].marks.base == pytest.approx(at(1000.0).timestamp(), abs=1e-3)


def test_paused_tasks_are_neither_backlog_nor_users_that_share_the_pool() -> None:
    stage = a_stage(1)
    arrives(stage, "runs", owner="cat")
    for number in range(5):
        arrives(stage, f"ann{number}", owner="ann")
        stage.want(f"ann{number}", Goal.PAUSE)
        stage.rounds()
    pool = stage.index.pool("default")
    assert pool.owners == {"cat": 1}
    assert pool.owner_units == {"cat": 1.0}
    # The owner still has tasks, so what is kept of the owner is not forgotten.
    assert pool.unended["ann"] == 5
    assert "ann" in pool.finishes
    stage.want("ann0", Goal.STOP)
    stage.rounds()
    assert "ann" in pool.finishes


def test_a_paused_row_from_before_pauses_were_noted_is_resumed_as_it_was() -> None:
    stage = a_stage(1)
    arrives(stage, "runs", owner="cat")
    arrives(stage, "task", owner="ann")
    stage.want("task", Goal.PAUSE)
    stage.rounds()
    stage.put(replace(stage.tasks["task"], unserved_since=None))
    stage.until(1000.0)
    stage.want("task", Goal.RUN)
    stage.rounds()
    assert stage.tasks["task"].marks.base == pytest.approx(at(0.0).timestamp(), abs=1e-3)
