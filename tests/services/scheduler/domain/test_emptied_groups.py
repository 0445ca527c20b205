"""A group that was scaled to zero keeps its tasks waiting; a group that nobody knows refuses."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import ReasonCode, TaskState
from services.scheduler.domain.model.group_policy import GroupPolicy
from tests.kit.builders import a_node, a_spec, a_task
from tests.services.scheduler.domain.domain_harness import DomainHarness


def waiting(group: str) -> DomainHarness:
    harness = DomainHarness([a_node("n0", gpus=4)], policies=[GroupPolicy("planned")])
    harness.rounds()
    harness.submit(a_task("t0", spec=a_spec(gpus=8, group=group), submitted=harness.seconds))
    return harness


def test_a_task_waits_for_a_group_that_is_scaled_to_zero_and_starts_when_nodes_come() -> None:
    harness = DomainHarness([a_node("n0", gpus=4), a_node("d0", gpus=4, group="dev")])
    harness.rounds()
    node = harness.index.nodes["d0"]
    harness.put(replace(node, version=node.version + 1, removed=True))
    harness.submit(a_task("t0", spec=a_spec(gpus=4, group="dev"), submitted=harness.seconds))
    harness.rounds()
    assert harness.tasks["t0"].state is TaskState.QUEUED
    assert harness.tasks["t0"].reason.code is ReasonCode.CLUSTER_TOO_SMALL_NOW
    harness.put(a_node("d1", gpus=4, group="dev"))
    harness.rounds()
    assert harness.tasks["t0"].holds


def test_a_task_waits_for_a_group_with_a_policy_and_is_rejected_once_its_nodes_are_too_small() -> (
    None
):
    harness = waiting("planned")
    harness.rounds()
    assert harness.tasks["t0"].state is TaskState.QUEUED
    harness.put(a_node("p0", gpus=4, group="planned"))
    harness.rounds()
    assert "t0" not in harness.tasks


def test_a_task_for_an_unknown_group_is_rejected() -> None:
    harness = waiting("typo")
    harness.rounds()
    assert "t0" not in harness.tasks


def test_a_task_that_waits_for_nodes_to_come_is_not_rejected_and_starts_when_they_are_there() -> (
    None
):
    harness = DomainHarness([a_node("n0", gpus=4)])
    harness.rounds()
    wanted = a_spec(gpus=4).model_copy(update={"node_selector": {"disk": "nvme"}})
    forced = wanted.model_copy(update={"wait_for_nodes": True})
    elsewhere = a_spec(gpus=4, group="new").model_copy(update={"wait_for_nodes": True})
    for name, spec in (("t0", wanted), ("t1", forced), ("t2", elsewhere)):
        harness.submit(a_task(name, spec=spec, submitted=harness.seconds, accepted=False))
    harness.rounds()
    assert sorted(harness.tasks) == ["t1", "t2"]
    for task in harness.tasks.values():
        assert task.state is TaskState.QUEUED
        assert task.reason.code is ReasonCode.CLUSTER_TOO_SMALL_NOW
    harness.put(a_node("n1", gpus=4, labels={"disk": "nvme"}))
    harness.put(a_node("d0", gpus=4, group="new"))
    harness.rounds()
    assert harness.tasks["t1"].holds
    assert harness.tasks["t2"].holds
