"""CPUs and memory: what runs on a node and begins there is added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.messages import ExitKind, Placement, Priority, ReasonCode, Role, TaskState
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault
from services.scheduler.domain.decide import decide
from services.scheduler.domain.model.decisions import Assign, Kill, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.domain.model.rows import Node, Task
from tests.kit.builders import a_node, a_snapshot, a_spec, a_task, preempting, running
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

GB = 10**9


def asking(task_id: str, **asked: Any) -> Task:
    return a_task(task_id, spec=a_spec(**{"gpus": 1, **asked}))


def starts(tasks: list[Task], nodes: list[Node]) -> dict[str, str]:
    """The node of each one-rank task that begins at once; the plan is checked."""
    snapshot = a_snapshot(tasks, nodes, policies=[GroupPolicy("default", policy="backfill")])
    plan = decide(snapshot, at(10))
    assert check(snapshot, plan, deep=True) == check(snapshot, plan) == []
    found = [each for each in plan.decisions if isinstance(each, Assign)]
    return {each.task_id: each.placements[0].node_id for each in found}


def test_memory_of_ranks_on_one_node_is_added_up() -> None:
    tasks = [asking(f"t{number}", memory_bytes=5 * GB) for number in range(4)]
    nodes = [a_node(f"n{number}", gpus=8, memory_bytes=6 * GB) for number in range(3)]
    found = starts(tasks, nodes)
    assert Counter(found.values()) == {"n0": 1, "n1": 1, "n2": 1}


@pytest.mark.parametrize("gpus", [0, 1])
def test_cpus_of_ranks_on_one_node_are_added_up(gpus: int) -> None:
    tasks = [asking(f"t{number}", gpus=gpus, cpus=1.3) for number in range(4)]
    assert len(starts(tasks, [a_node("n0", gpus=8, cpus=4.0)])) == 3


def test_ten_tenths_of_a_cpu_are_one_cpu() -> None:
    tasks = [asking(f"t{number:02}", cpus=0.1) for number in range(12)]
    assert len(starts(tasks, [a_node("n0", gpus=16, cpus=1.0)])) == 10


def test_a_node_that_reports_neither_limits_nothing() -> None:
    tasks = [asking(f"t{number}", cpus=64.0, memory_bytes=900 * GB) for number in range(4)]
    assert len(starts(tasks, [a_node("n0", gpus=4)])) == 4


def test_a_task_without_requests_takes_no_cpu_and_memory() -> None:
    tasks = [asking("big", memory_bytes=6 * GB), asking("small"), asking("other")]
    assert len(starts(tasks, [a_node("n0", gpus=4, memory_bytes=6 * GB)])) == 3


def test_a_gang_needs_the_memory_on_each_of_its_nodes() -> None:
    there = running(asking("there", memory_bytes=4 * GB), {"n0": (0,)})
    nodes = [a_node(f"n{number}", gpus=4, memory_bytes=6 * GB) for number in range(3)]
    gang = a_task("gang", spec=a_spec(nodes=3, gpus=1, memory_bytes=3 * GB))
    assert starts([there, gang], nodes) == {}
    assert starts([there, replace(gang, spec=a_spec(nodes=2, gpus=1, memory_bytes=3 * GB))], nodes)


def test_a_victim_is_preempted_for_its_memory_and_the_gpu_beside_it_is_reserved() -> None:
    """A GPU is free, the memory is not: the place is promised, and begun on when both are."""
    nodes = [a_node("n0", gpus=2, memory_bytes=6 * GB)]
    harness = DomainHarness(nodes)
    harness.submit(a_task("low", spec=a_spec(gpus=1, memory_bytes=4 * GB, priority=Priority.LOW)))
    harness.rounds()
    harness.start("low")
    harness.seconds = 100.0
    high = a_spec(gpus=1, memory_bytes=4 * GB, priority=Priority.HIGH)
    harness.submit(a_task("high", spec=high))
    harness.rounds()
    assert harness.tasks["low"].state is TaskState.PREEMPTING
    assert harness.tasks["high"].promised
    # What is left of the memory is not given away meanwhile, what nobody needs is.
    harness.submit(a_task("third", spec=a_spec(gpus=1, memory_bytes=3 * GB)))
    harness.rounds()
    assert harness.tasks["third"].state is TaskState.QUEUED
    harness.exit("low", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["high"].state is TaskState.STARTING
    assert harness.tasks["third"].state is TaskState.QUEUED


def test_only_the_run_whose_memory_is_needed_is_preempted() -> None:
    low = {"priority": Priority.LOW, "gpus": 1}
    runs = [
        running(a_task("big", spec=a_spec(memory_bytes=4 * GB, **low)), {"n0": (0,)}),
        running(a_task("small", spec=a_spec(memory_bytes=GB, **low)), {"n0": (1,)}),
    ]
    high = a_task("high", spec=a_spec(gpus=1, memory_bytes=4 * GB, priority=Priority.HIGH))
    snapshot = a_snapshot([*runs, high], [a_node("n0", gpus=4, memory_bytes=6 * GB)])
    plan = decide(snapshot, at(10))
    assert check(snapshot, plan, deep=True) == []
    assert [d.task_id for d in plan.decisions if isinstance(d, Preempt | Kill)] == ["big"]


def test_a_promise_is_taken_back_when_its_node_offers_less_memory() -> None:
    """Pods of others took it: the task waits for another node, and its GPUs are free again."""
    harness = DomainHarness([a_node("n0", gpus=1, memory_bytes=6 * GB)])
    harness.submit(a_task("low", spec=a_spec(gpus=1, priority=Priority.LOW)))
    harness.rounds()
    harness.start("low")
    harness.seconds = 100.0
    harness.submit(a_task("high", spec=a_spec(gpus=1, memory_bytes=5 * GB, priority=Priority.HIGH)))
    harness.rounds()
    assert harness.tasks["high"].promised
    harness.put(replace(harness.index.nodes["n0"], memory_bytes=4 * GB, version=2))
    harness.rounds()
    assert not harness.tasks["high"].promised
    assert harness.tasks["high"].reason.code is ReasonCode.CLUSTER_TOO_SMALL_NOW


def planted(state: TaskState | None) -> set[Fault]:
    """Faults of a start on a node whose memory a run has: it stays, or is on its way out."""
    nodes = [a_node("n0", gpus=2, memory_bytes=6 * GB), a_node("n1", gpus=2)]
    task = asking("t", memory_bytes=4 * GB)
    there = asking("there", memory_bytes=4 * GB)
    holder = running if state is None else preempting
    plan = decide(a_snapshot([task], nodes[1:]), at(10))
    (start,) = [each for each in plan.decisions if isinstance(each, Assign)]
    moved = (Placement(rank=0, role="worker", node_id="n0", gpus=(1,)),)
    wrong = replace(plan, decisions=(replace(start, placements=moved),))
    snapshot = a_snapshot([task, holder(there, {"n0": (0,)})], nodes)
    found = {each.fault for each in check(snapshot, wrong)}
    assert found == {each.fault for each in check(snapshot, wrong, deep=True)}
    return found


def test_the_check_adds_up_what_is_held() -> None:
    assert planted(None) == planted(TaskState.PREEMPTING) == {Fault.TOO_FULL}


def requesting(task_id: str, **changes: Any) -> Task:
    """A task whose limits are above every node; what it requests is counted."""
    spec = a_spec(gpus=1, cpus=100.0, memory_bytes=900 * GB).model_copy(update=changes)
    return a_task(task_id, spec=spec)


def test_requests_are_added_up_and_limits_are_not() -> None:
    requests = {"cpus_request": 1.3, "memory_request_bytes": GB}
    tasks = [requesting(f"t{number}", **requests) for number in range(4)]
    assert len(starts(tasks, [a_node("n0", gpus=8, cpus=4.0, memory_bytes=9 * GB)])) == 3
    tasks = [requesting(f"t{number}", **requests, memory_bytes=GB) for number in range(4)]
    assert len(starts(tasks, [a_node("n0", gpus=8, memory_bytes=2 * GB)])) == 2


@pytest.mark.parametrize("gpus", [0, 1])
def test_requests_of_roles_are_added_up(gpus: int) -> None:
    role = Role(
        name="worker", replicas=3, gpus=gpus, cpus_request=1.3, cpus=50.0, command=("train",)
    )
    gang = a_task("gang", spec=a_spec(nodes=3, roles=(role,)))
    assert starts([gang], [a_node("n0", gpus=8, cpus=4.0)]) == {"gang": "n0"}
    assert starts([gang], [a_node("n0", gpus=8, cpus=3.0)]) == {}
