"""What operators see at /metrics of the leader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from libs.contracts.messages import (
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    Priority,
    ReasonCode,
    TaskState,
)
from services.scheduler.cluster_metrics import METRICS, ClusterMetrics
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import (
    a_checkpoint,
    a_spec,
    a_task,
    exited_event,
    some_nodes,
    started_event,
    submitted_event,
)
from tests.services.scheduler.scheduler_harness import SchedulerHarness, node_changed


def gauges(metrics: ClusterMetrics = METRICS) -> dict[str, dict[str, float]]:
    """By metric and state, without those that are 0."""
    return {
        family.name.removeprefix("shiftwork_"): {
            each.labels["state"]: each.value for each in family.samples if each.value
        }
        for family in metrics.collect()
    }


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, {"group": "default", **labels}) or 0.0


LOST = "shiftwork_lost_gpu_seconds_total"


def counted_afresh(scheduler: SchedulerHarness) -> dict[str, dict[str, float]]:
    metrics = ClusterMetrics()
    metrics.loaded(scheduler.service.loops[0].step.__self__.index)  # type: ignore[attr-defined]
    return gauges(metrics)


async def a_scheduler(nodes: int) -> SchedulerHarness:
    return await SchedulerHarness().start(*some_nodes(nodes))


async def test_tasks_nodes_and_gpus_are_counted_through_a_whole_preemption() -> None:
    scheduler = await a_scheduler(1)

    def seen() -> dict[str, float]:
        wait, saved = "shiftwork_queue_wait_seconds", "shiftwork_preemption_checkpoint_seconds"
        return {
            "preemptions": counted("shiftwork_preemptions_total", reason="preempted_by"),
            "low": counted(f"{wait}_count", priority="low"),
            "low s": counted(f"{wait}_sum", priority="low"),
            "high": counted(f"{wait}_count", priority="high"),
            "high s": counted(f"{wait}_sum", priority="high"),
            "checkpoints": counted(f"{saved}_count"),
            "checkpoints s": counted(f"{saved}_sum"),
            "lost": counted(LOST, cause="preemption"),
        }

    before = seen()
    total = gauges()["gpus"]["free"]
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    assert gauges() == {
        "tasks": {"running": 1.0},
        "nodes": {"ready": 1.0},
        "gpus": {"used": total},
    }

    scheduler.clock.move_to(20)
    await scheduler.handle(submitted_event(a_task("high", priority=Priority.HIGH, submitted=20)))
    await scheduler.settle()
    assert gauges()["tasks"] == {"preempting": 1.0, "queued": 1.0}

    saved = a_checkpoint(1, saved=23)
    await scheduler.handle(CheckpointSaved(task_id="low", attempt=1, checkpoint=saved))
    scheduler.clock.move_to(25)
    await scheduler.handle(
        exited_event(await scheduler.task("low"), ExitKind.PREEMPTED, now=25, checkpoint=saved)
    )
    await scheduler.settle()
    assert gauges()["tasks"] == {"starting": 1.0, "queued": 1.0}
    assert gauges() == counted_afresh(scheduler)

    scheduler.clock.move_to(35)
    await scheduler.handle(exited_event(await scheduler.task("high"), now=35))
    await scheduler.settle()
    assert gauges()["tasks"] == {"starting": 1.0}
    assert {name: value - before[name] for name, value in seen().items()} == {
        "preemptions": 1,
        # Low at once, and again 10 s after it left; high 5 s after it came.
        "low": 2,
        "low s": pytest.approx(10),
        "high": 1,
        "high s": pytest.approx(5),
        "checkpoints": 1,
        "checkpoints s": pytest.approx(3),
        # Low left 2 s after it had saved.
        "lost": pytest.approx(2 * total),
    }


@pytest.mark.parametrize(
    ("kind", "saved", "cause", "seconds"),
    [
        (ExitKind.FAILED, None, "failure", 40.0),
        (ExitKind.FAILED, 25.0, "failure", 15.0),
        (ExitKind.LOST, None, "failure", 40.0),
        (ExitKind.OK, None, "", 0.0),
    ],
)
async def test_work_that_a_failure_destroys_counts_from_the_last_checkpoint(
    kind: ExitKind, saved: float | None, cause: str, seconds: float
) -> None:
    scheduler = await a_scheduler(1)
    gpus = gauges()["gpus"]["free"]
    before = {each: counted(LOST, cause=each) for each in ("preemption", "failure")}
    await scheduler.handle(submitted_event(a_task("one")))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("one")))
    scheduler.clock.move_to(40)
    checkpoint = None if saved is None else a_checkpoint(1, saved=saved)
    await scheduler.handle(
        exited_event(await scheduler.task("one"), kind, now=40, checkpoint=checkpoint)
    )
    lost = {each: counted(LOST, cause=each) - was for each, was in before.items()}
    assert lost == {each: seconds * gpus if each == cause else 0.0 for each in before}


@pytest.mark.parametrize(("goal", "lost_s"), [(Goal.RUN, 600.0), (Goal.STOP, 0.0)])
async def test_a_kill_without_a_checkpoint_loses_all_unless_the_owner_wanted_it(
    goal: Goal, lost_s: float
) -> None:
    scheduler = await a_scheduler(1)
    gpus, before = gauges()["gpus"]["free"], counted(LOST, cause="preemption")
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    if goal is Goal.RUN:
        await scheduler.handle(submitted_event(a_task("high", priority=Priority.HIGH)))
    else:
        await scheduler.handle(
            GoalChanged(task_id="low", goal=goal, revision=9, changed_at=scheduler.clock.now())
        )
    await scheduler.settle()
    # It does not leave in time, which is the reason of its last request.
    scheduler.clock.move_to(600)
    await scheduler.settle()
    low = await scheduler.task("low")
    assert (low.state, low.reason.code) == (TaskState.KILLING, ReasonCode.NEVER_ASKED)
    await scheduler.handle(exited_event(low, ExitKind.KILLED, now=600))
    assert counted(LOST, cause="preemption") - before == pytest.approx(lost_s * gpus)


async def test_gpus_of_a_node_that_takes_no_runs_are_neither_used_nor_free() -> None:
    scheduler = await a_scheduler(3)
    one, two, three = some_nodes(3)
    total = gauges()["gpus"]["free"] / 3
    await scheduler.handle(
        node_changed(replace(one, version=2, schedulable=False)),
        node_changed(replace(two, version=2, ready=False)),
        node_changed(replace(three, version=2, unusable_gpus=(0,))),
    )
    await scheduler.settle()
    assert gauges()["nodes"] == {"cordoned": 1.0, "not_ready": 1.0, "ready": 1.0}
    assert gauges()["gpus"] == {"free": total - 1, "unavailable": 2 * total + 1}
    assert gauges() == counted_afresh(scheduler)


async def test_a_draining_node_is_drained_once_nothing_runs_there() -> None:
    scheduler = await a_scheduler(1)
    (node,) = some_nodes(1)
    await scheduler.handle(submitted_event(a_task("runs")))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("runs")))
    await scheduler.handle(node_changed(replace(node, version=2, schedulable=False, draining=True)))
    await scheduler.settle()
    assert gauges()["nodes"] == {"draining": 1.0}
    await scheduler.handle(exited_event(await scheduler.task("runs"), ExitKind.PREEMPTED, now=5))
    await scheduler.settle()
    assert gauges()["nodes"] == {"drained": 1.0}
    assert gauges()["gpus"].keys() == {"unavailable"}


async def test_only_the_leader_reports() -> None:
    scheduler = await a_scheduler(2)
    assert gauges()["nodes"] == {"ready": 2.0}
    scheduler.service.on_lead_end()
    assert gauges() == {}
    await scheduler.restart()
    assert gauges()["nodes"] == {"ready": 2.0}
    assert gauges() == counted_afresh(scheduler)


async def test_groups_that_do_not_exist_have_no_series_of_their_own() -> None:
    scheduler = await a_scheduler(1)
    for number in range(5):
        spec = a_spec(group=f"g-{number}").model_copy(update={"wait_for_nodes": True})
        await scheduler.handle(submitted_event(a_task(f"t{number}", spec=spec)))
    await scheduler.settle()
    (tasks,) = (each for each in METRICS.collect() if each.name == "shiftwork_tasks")
    found = {(each.labels["group"], each.labels["state"]): each.value for each in tasks.samples}
    assert {group for group, _ in found} == {"default", "(other)"}
    assert found["(other)", "queued"] == 5
    assert found["default", "running"] == 0
    for number in range(5):
        async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
            await tx.get(Task, f"t{number}")
            tx.delete(Task, f"t{number}")
    assert METRICS._tasks == {}
    assert {each.labels["group"] for family in METRICS.collect() for each in family.samples} == {
        "default"
    }
