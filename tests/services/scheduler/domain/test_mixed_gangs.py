"""Gangs whose ranks differ or share nodes, through changes of nodes, failures and policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import ExitKind, Goal, Priority, Role, TaskState
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_spec, a_task
from tests.services.scheduler.domain.domain_harness import DomainHarness
from tests.services.scheduler.domain.placement.test_packing import a_role

BOARD = a_role("board", auxiliary=True)
STARTING, QUEUED = TaskState.STARTING, TaskState.QUEUED


def gang(
    task_id: str,
    *roles: Role,
    gpus: int | None = None,
    priority: Priority = Priority.NORMAL,
    submitted: float = 0.0,
    team: str = "vision",
) -> Task:
    spec = a_spec(roles=roles or None, gpus=gpus, priority=priority)
    return a_task(task_id, spec=spec, submitted=submitted, team=team, accepted=False)


def nodes_of(harness: DomainHarness, task_id: str) -> list[str]:
    return [placement.node_id for placement in harness.tasks[task_id].placements]


def test_after_a_failed_start_a_gang_that_needs_all_nodes_is_tried_again() -> None:
    harness = DomainHarness([a_node("a", gpus=4), a_node("b", gpus=4)])
    harness.submit(gang("g", a_role("chief", gpus=4), a_role("worker", gpus=4, cpus=1.0)))
    harness.rounds()
    harness.exit("g", ExitKind.LOST)
    assert harness.tasks["g"].avoids
    harness.until(2000)
    assert harness.tasks["g"].start_attempts > 1


def test_after_a_failed_start_a_packed_gang_goes_to_another_node() -> None:
    harness = DomainHarness([a_node("a", gpus=4), a_node("b", gpus=4)])
    harness.submit(gang("g", a_role(replicas=4, gpus=1)))
    harness.rounds()
    assert set(nodes_of(harness, "g")) == {"a"}
    harness.put(replace(harness.tasks["g"], avoids=("a",), version=9))
    harness.exit("g", ExitKind.LOST)
    harness.until(2000)
    assert set(nodes_of(harness, "g")) == {"b"}


def test_a_promise_of_more_cpu_ranks_than_the_node_has_cpus_is_withdrawn() -> None:
    harness = DomainHarness([a_node("a", gpus=0, cpus=8.0)])
    for number in range(8):
        harness.submit(gang(f"low{number}", gpus=0, priority=Priority.LOW))
    harness.rounds()
    for task_id in list(harness.tasks):
        harness.start(task_id)
    harness.until(5000)
    harness.submit(gang("g", a_role(replicas=6, gpus=0), priority=Priority.HIGH))
    harness.rounds()
    assert harness.tasks["g"].promised
    harness.put(replace(harness.index.nodes["a"], cpus=4.0, version=2))
    harness.rounds()
    assert not harness.tasks["g"].promised


def test_a_node_with_more_cpus_holds_more_cpu_ranks() -> None:
    harness = DomainHarness([a_node("a", gpus=0, cpus=4.0)], oracle=True)
    harness.submit(gang("g", a_role(replicas=6, gpus=0)))
    harness.put(replace(harness.tasks["g"], accepted=True))
    harness.rounds()
    assert harness.tasks["g"].state is QUEUED
    harness.put(replace(harness.index.nodes["a"], cpus=8.0, version=2))
    harness.rounds()
    assert harness.tasks["g"].state is STARTING


@pytest.mark.parametrize("roles", [(), (BOARD,)])
def test_an_auxiliary_rank_costs_a_virtual_cluster_nothing(roles: tuple[Role, ...]) -> None:
    lab = VirtualCluster("lab", 2.0, teams=("vision",), nodes_max=2.0)
    policy = GroupPolicy("default", virtual_clusters=(lab,))
    harness = DomainHarness([a_node(f"n{each}", gpus=8) for each in range(3)], policies=[policy])
    harness.submit(gang("g", a_role(replicas=2), *roles))
    harness.rounds()
    assert harness.tasks["g"].state is STARTING
    assert len(set(nodes_of(harness, "g"))) == 2


@pytest.mark.parametrize("roles", [(), (BOARD,)])
def test_a_later_gang_does_not_pass_its_owners_earlier_one(roles: tuple[Role, ...]) -> None:
    harness = DomainHarness(
        [a_node("a", gpus=4)], policies=[GroupPolicy("default", policy="rotation")]
    )
    harness.submit(gang("first", a_role(gpus=2), *roles))
    harness.rounds()
    harness.start("first")
    harness.submit(gang("large", submitted=0.5))
    harness.rounds()
    harness.seconds = 1
    harness.submit(gang("small", a_role(gpus=2), *roles, submitted=1))
    harness.rounds()
    assert harness.tasks["small"].state is QUEUED


def test_a_gang_with_many_cpu_ranks_is_not_passed_over_behind_a_smaller_one() -> None:
    harness = DomainHarness([a_node("a", gpus=8, cpus=400.0)], oracle=True)
    for task_id, gpus in (("run", 4), ("waits", 8), ("x", 4)):
        harness.submit(gang(task_id, gpus=gpus))
        harness.rounds()
    harness.start("run")
    harness.start("x")
    harness.submit(gang("g", a_role(gpus=4), a_role("c", 100, gpus=0)))
    harness.rounds()
    harness.exit("x", ExitKind.OK)
    harness.rounds()
    assert harness.tasks["g"].state is STARTING


def test_a_promised_gpu_on_a_node_without_gpus_is_withdrawn() -> None:
    harness = DomainHarness([a_node("a", gpus=1)])
    harness.submit(gang("low", gpus=1, priority=Priority.LOW))
    harness.rounds()
    harness.start("low")
    harness.until(5000)
    harness.submit(gang("g", gpus=1, priority=Priority.HIGH))
    harness.rounds()
    assert harness.tasks["g"].promised
    harness.put(replace(harness.index.nodes["a"], gpus=0, version=2))
    harness.rounds()
    assert not harness.tasks["g"].promised


def test_absurd_amounts_harm_only_their_own_task() -> None:
    harness = DomainHarness([a_node("a", gpus=4, cpus=8.0)])
    harness.submit(gang("absurd", a_role(replicas=2, gpus=1, cpus=1e306)))
    harness.submit(gang("plain", gpus=1))
    harness.rounds()
    assert harness.tasks["plain"].state is STARTING


def test_a_promise_of_what_is_free_begins_without_another_event() -> None:
    harness = DomainHarness([a_node("a", gpus=1, cpus=4.0)])
    harness.submit(gang("x", gpus=1, priority=Priority.LOW))
    for number in range(3):
        harness.submit(gang(f"low{number}", gpus=0))
    harness.rounds()
    for task_id in list(harness.tasks):
        harness.start(task_id)
    harness.until(5000)
    # The fourth place is promised to a gang that waits for the GPU.
    roles = a_role("trainer", gpus=1), a_role("loader", gpus=0)
    harness.submit(gang("g", *roles, priority=Priority.HIGH))
    harness.rounds()
    assert harness.tasks["g"].promised
    # A run leaves: of its place and the free one, one is enough for the gang.
    harness.want("low2", Goal.STOP)
    harness.rounds()
    harness.submit(gang("h", gpus=0))
    harness.rounds()
    assert harness.tasks["h"].state is STARTING
