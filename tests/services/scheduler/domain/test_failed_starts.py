"""A start that fails is tried on other nodes, while there are any that could hold the task."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import ExitKind, RankExit, RunExit, RunExited, TaskState
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_task, running, starting
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

ALL = tuple(range(8))


def fails(harness: DomainHarness, task_id: str) -> str:
    """The task's start is lost; returns the node. The clock advances past the retry time."""
    node_id = harness.tasks[task_id].placements[0].node_id
    lost(harness, harness.tasks[task_id])
    harness.until(harness.seconds + 700.0)
    return node_id


def lost(harness: DomainHarness, task: Task, ended: tuple[int, ...] = ()) -> None:
    """A run is lost; of these ranks it was seen how they ended."""
    ranks = tuple(
        RankExit(rank=each.rank, signal=9 if each.rank in ended else None)
        for each in task.placements
    )
    attempt = task.live_attempt or 0
    run_exit = RunExit(
        attempt=attempt,
        kind=ExitKind.LOST,
        ranks=ranks,
        exited_at=at(harness.seconds),
        detail="gone",
    )
    event = RunExited(task_id=task.id, attempt=attempt, exit=run_exit, placements=task.placements)
    harness.fact(observations.on_run_exited(task, event, harness.now, harness.settings))


def test_a_start_that_failed_is_tried_on_another_node() -> None:
    harness = DomainHarness([a_node(f"n{number}") for number in range(3)])
    harness.submit(a_task("t"))
    harness.rounds()
    assert [fails(harness, "t") for _ in range(3)] == ["n0", "n1", "n2"]


def test_where_starts_failed_on_every_node_the_oldest_failure_is_tried_again_first() -> None:
    harness = DomainHarness([a_node("n0"), a_node("n1")])
    harness.submit(a_task("t"))
    harness.rounds()
    assert [fails(harness, "t") for _ in range(4)] == ["n0", "n1", "n0", "n1"]


def test_a_task_waits_for_a_busy_node_rather_than_start_where_it_failed() -> None:
    harness = DomainHarness([a_node("n0"), a_node("n1")])
    harness.put(running(a_task("busy", owner="bob"), {"n1": ALL}))
    harness.submit(a_task("t"))
    harness.rounds()
    assert fails(harness, "t") == "n0"
    assert harness.tasks["t"].state is TaskState.QUEUED
    harness.exit("busy", ExitKind.OK)
    harness.rounds()
    assert harness.tasks["t"].placements[0].node_id == "n1"


def test_the_only_node_that_could_hold_it_is_tried_again() -> None:
    harness = DomainHarness([a_node("n0"), a_node("small", gpus=2)])
    harness.submit(a_task("t", gpus=8))
    harness.rounds()
    assert [fails(harness, "t") for _ in range(4)] == ["n0"] * 4
    fails_once_more = harness.tasks["t"]
    lost(harness, fails_once_more)
    assert "t" not in harness.tasks


def test_the_avoided_node_is_tried_again_when_the_others_are_out_of_service() -> None:
    harness = DomainHarness([a_node("n0"), a_node("n1")])
    harness.submit(a_task("t"))
    harness.rounds()
    harness.put(replace(harness.index.nodes["n1"], ready=False, version=2))
    assert fails(harness, "t") == "n0"
    assert fails(harness, "t") == "n0"


def test_a_gang_avoids_only_the_node_of_its_lost_rank() -> None:
    harness = DomainHarness([a_node(f"n{number}") for number in range(4)])
    harness.submit(a_task("t", nodes=3))
    harness.rounds()
    lost(harness, harness.tasks["t"], ended=(0, 2))
    assert harness.tasks["t"].avoids == ("n1",)
    harness.until(700.0)
    assert [each.node_id for each in harness.tasks["t"].placements] == ["n0", "n2", "n3"]


def test_a_start_that_took_too_long_counts_as_failed_on_its_node() -> None:
    harness = DomainHarness([a_node("n0"), a_node("n1")])
    harness.submit(a_task("t"))
    harness.rounds()
    harness.until(301.0)
    task = harness.tasks["t"]
    assert task.state is TaskState.KILLING
    killed = RunExit(attempt=1, kind=ExitKind.KILLED, exited_at=at(harness.seconds))
    event = RunExited(task_id="t", attempt=1, exit=killed, placements=task.placements)
    harness.fact(observations.on_run_exited(task, event, harness.now, harness.settings))
    harness.until(1000.0)
    assert harness.tasks["t"].placements[0].node_id == "n1"


def test_a_run_that_is_lost_later_avoids_nothing_and_a_start_that_works_forgets() -> None:
    task = replace(starting(a_task("t"), {"n0": ALL}), avoids=("n1",))
    begun = observations.started(task, at(1.0))
    assert begun.avoids == ()
    harness = DomainHarness([a_node("n0"), a_node("n1")], settings=PolicySettings())
    harness.put(begun)
    lost(harness, begun)
    assert harness.tasks["t"].avoids == ()
