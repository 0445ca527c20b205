"""A group that was scaled to zero keeps its tasks waiting; a group that nobody knows refuses."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import ReasonCode, TaskState
from services.scheduler.domain.model.group_policy import GroupPolicy
from tests.kit.builders import a_node, a_spec, a_task
from tests.services.scheduler.domain.domain_harness import Stage


def waiting(group: str) -> Stage:
    stage = Stage([a_node("n0", gpus=4)], policies=[GroupPolicy("planned")])
    stage.rounds()
    stage.submit(a_task("t0", spec=a_spec(gpus=8, group=group), submitted=stage.seconds))
    return stage


def test_a_task_waits_for_a_group_that_is_scaled_to_zero_and_starts_when_nodes_come() -> None:
    stage = Stage([a_node("n0", gpus=4), a_node("d0", gpus=4, group="dev")])
    stage.rounds()
    node = stage.index.nodes["d0"]
    stage.put(replace(node, version=node.version + 1, removed=True))
    stage.submit(a_task("t0", spec=a_spec(gpus=4, group="dev"), submitted=stage.seconds))
    stage.rounds()
    assert stage.tasks["t0"].state is TaskState.QUEUED
    assert stage.tasks["t0"].reason.code is ReasonCode.CLUSTER_TOO_SMALL_NOW
    stage.put(a_node("d1", gpus=4, group="dev"))
    stage.rounds()
    assert stage.tasks["t0"].holds


def test_a_task_waits_for_a_group_with_a_policy_and_is_rejected_once_its_nodes_are_too_small() -> (
    None
):
    stage = waiting("planned")
    stage.rounds()
    assert stage.tasks["t0"].state is TaskState.QUEUED
    stage.put(a_node("p0", gpus=4, group="planned"))
    stage.rounds()
    assert "t0" not in stage.tasks


def test_a_task_for_a_group_that_nobody_knows_is_rejected() -> None:
    stage = waiting("typo")
    stage.rounds()
    assert "t0" not in stage.tasks


def test_a_task_that_waits_for_nodes_to_come_is_not_rejected_and_starts_when_they_are_there() -> (
    None
):
    stage = Stage([a_node("n0", gpus=4)])
    stage.rounds()
    wanted = a_spec(gpus=4).model_copy(update={"node_selector": {"disk": "nvme"}})
    forced = wanted.model_copy(update={"wait_for_nodes": True})
    elsewhere = a_spec(gpus=4, group="new").model_copy(update={"wait_for_nodes": True})
    for name, spec in (("t0", wanted), ("t1", forced), ("t2", elsewhere)):
        stage.submit(a_task(name, spec=spec, submitted=stage.seconds, accepted=False))
    stage.rounds()
    assert sorted(stage.tasks) == ["t1", "t2"]
    for task in stage.tasks.values():
        assert task.state is TaskState.QUEUED
        assert task.reason.code is ReasonCode.CLUSTER_TOO_SMALL_NOW
    stage.put(a_node("n1", gpus=4, labels={"disk": "nvme"}))
    stage.put(a_node("d0", gpus=4, group="new"))
    stage.rounds()
    assert stage.tasks["t1"].holds
    assert stage.tasks["t2"].holds
