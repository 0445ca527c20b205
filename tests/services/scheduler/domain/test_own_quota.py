"""A user's lower runs make room in the user's quota for the user's higher tasks."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import ExitKind, Priority, TaskState, Unit
from services.scheduler.domain.model import Limit, PolicySettings
from services.scheduler.domain.policy import GroupPolicy, VirtualCluster
from tests.builders import a_limit, a_task, some_nodes
from tests.services.scheduler.domain.stage import Stage

HIGH, LOW = Priority.HIGH, Priority.LOW
ONE = a_limit(1, user="ann", unit=Unit.NODES)


def a_stage(
    *limits: Limit, nodes: int = 2, policy: str = "timeshare", protected: float = 0
) -> Stage:
    return Stage(
        some_nodes(nodes),
        settings=PolicySettings(protected_seconds=protected),
        limits=limits,
        policies=[GroupPolicy("default", policy=policy)],
    )


def arrives(
    stage: Stage, task_id: str, priority: Priority = Priority.NORMAL, **how: object
) -> None:
    task = a_task(task_id, priority=priority, submitted=stage.seconds, **how)  # type: ignore[arg-type]
    stage.submit(task)
    stage.rounds()
    if stage.tasks[task_id].state is TaskState.STARTING:
        stage.start(task_id)
        stage.rounds()


def state(stage: Stage, task_id: str) -> TaskState:
    return stage.tasks[task_id].state


def leaves(stage: Stage, task_id: str) -> None:
    stage.exit(task_id, ExitKind.PREEMPTED)
    stage.rounds()


def test_ones_own_lower_run_goes_for_ones_own_higher_task_at_quota() -> None:
    """Also where nodes are free: it is the quota that is full."""
    stage = a_stage(ONE)
    arrives(stage, "low", LOW)
    stage.until(100.0)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.PREEMPTING
    assert stage.tasks["low"].preempted_for == "high"
    # It does not start before the limit admits it.
    assert state(stage, "high") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.STARTING
    assert state(stage, "low") is TaskState.QUEUED
    stage.exit("high", ExitKind.OK)
    stage.rounds()
    assert state(stage, "low") is TaskState.STARTING


def test_every_policy_does_so() -> None:
    for policy in ("fifo", "easy", "backfill", "rotation", "las"):
        stage = a_stage(ONE, policy=policy)
        arrives(stage, "low", LOW)
        arrives(stage, "high", HIGH)
        assert state(stage, "low") is TaskState.PREEMPTING, policy
        leaves(stage, "low")
        assert state(stage, "high") is TaskState.STARTING, policy


def test_runs_of_ones_own_level_and_of_team_mates_stay() -> None:
    stage = a_stage(ONE)
    arrives(stage, "same", HIGH)
    arrives(stage, "high", HIGH)
    assert state(stage, "same") is TaskState.RUNNING
    stage = a_stage(a_limit(1, team="vision", unit=Unit.NODES))
    arrives(stage, "bobs", LOW, owner="bob")
    arrives(stage, "high", HIGH)
    assert state(stage, "bobs") is TaskState.RUNNING


def test_only_runs_that_the_limit_counts_are_asked_and_no_more_than_are_needed() -> None:
    rows = (
        a_limit(16, user="ann", group="default", priority=HIGH),
        a_limit(2, user="ann", unit=Unit.NODES),
    )
    stage = a_stage(*rows, nodes=4)
    arrives(stage, "low1", LOW)
    stage.until(50.0)
    arrives(stage, "low2", LOW)
    stage.until(100.0)
    arrives(stage, "high", HIGH)
    # The younger of the two loses less.
    assert state(stage, "low1") is TaskState.RUNNING
    assert state(stage, "low2") is TaskState.PREEMPTING
    # A limit on the higher level alone counts no lower run.
    stage = a_stage(a_limit(1, user="ann", priority=HIGH, unit=Unit.NODES))
    arrives(stage, "low", LOW)
    arrives(stage, "first", HIGH)
    arrives(stage, "second", HIGH)
    assert state(stage, "low") is TaskState.RUNNING


def test_nobody_is_asked_if_that_leads_to_no_place() -> None:
    """The quota would be free, but the nodes are another's of a higher level."""
    stage = a_stage(a_limit(2, user="ann", unit=Unit.NODES))
    arrives(stage, "low", LOW)
    arrives(stage, "top", Priority.EXTREME_HIGH, owner="bob")
    arrives(stage, "gang", HIGH, nodes=2)
    assert state(stage, "low") is TaskState.RUNNING
    assert state(stage, "gang") is TaskState.QUEUED


def test_others_go_for_nodes_and_ones_own_run_for_the_quota() -> None:
    stage = a_stage(a_limit(2, user="ann", unit=Unit.NODES), nodes=2)
    arrives(stage, "low", LOW)
    arrives(stage, "bobs", owner="bob")
    arrives(stage, "gang", HIGH, nodes=2)
    assert state(stage, "low") is TaskState.PREEMPTING
    assert state(stage, "bobs") is TaskState.PREEMPTING
    leaves(stage, "bobs")
    assert state(stage, "gang") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "gang") is TaskState.STARTING


def test_two_higher_tasks_ask_no_more_than_they_need() -> None:
    stage = a_stage(a_limit(8, user="ann"), nodes=3)
    arrives(stage, "low", LOW)
    arrives(stage, "one", HIGH, gpus=4)
    arrives(stage, "two", HIGH, gpus=4)
    assert state(stage, "two") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "one") is TaskState.STARTING
    assert state(stage, "two") is TaskState.STARTING


def test_a_protected_run_goes_when_its_minimum_is_over() -> None:
    stage = a_stage(ONE, protected=60.0)
    arrives(stage, "low", LOW)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.RUNNING
    stage.until(60.0)
    assert state(stage, "low") is TaskState.PREEMPTING


def test_a_covered_run_stays_for_a_gang_of_its_owner_that_borrows() -> None:
    """And one that is not covered goes; ``Stage`` checks every plan."""
    for nodes, goes in ((1.0, False), (0.0, True)):
        cluster = VirtualCluster("anns", nodes, users=("ann",))
        policy = GroupPolicy("default", virtual_clusters=(cluster,))
        limit = a_limit(2, user="ann", unit=Unit.NODES)
        stage = Stage(some_nodes(3), limits=[limit], policies=[policy])
        arrives(stage, "low", LOW)
        arrives(stage, "gang", HIGH, nodes=2)
        assert (state(stage, "low") is TaskState.PREEMPTING) is goes


def test_the_promise_is_kept_while_the_run_leaves_and_taken_back_when_the_limit_is_lowered() -> (
    None
):
    stage = a_stage(ONE)
    arrives(stage, "low", LOW)
    arrives(stage, "high", HIGH)
    stage.until(30.0)
    assert stage.tasks["high"].promised
    stage.put(replace(ONE, limit=0, version=2))
    stage.rounds()
    assert not stage.tasks["high"].promised
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.QUEUED
