"""The differences between two plans for one time."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.ids import TaskId
from libs.contracts.messages import Priority, Reason, ReasonCode, TaskState
from services.scheduler.domain.model.decisions import Assign, Decision, Hold, Plan, Preempt, Reorder
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import NO_ORDER_KEY
from services.scheduler.dry_run import DryRun, diff
from tests.kit.builders import a_checkpoint, a_task, on_nodes, running
from tests.kit.clock import at

NOW = at(1000.0)
ALL = {"n0": tuple(range(8))}


def why(code: ReasonCode, **numbers: float) -> Reason:
    return Reason(code=code, numbers=numbers)


def plan(*decisions: Decision, **waits: Reason) -> Plan:
    return Plan(version=1, decided_at=NOW, decisions=decisions, explanations=waits)


def assign(task: Task, node: str = "n0") -> Assign:
    return Assign(
        task_id=task.id,
        attempt=1,
        level=Priority.NORMAL,
        placements=on_nodes(task, {node: tuple(range(8))}),
        start_deadline_at=at(1300.0),
        resume_from=None,
        reason=why(ReasonCode.PLACED),
    )


def preempt(task: Task, beneficiary: str) -> Preempt:
    return Preempt(
        task_id=task.id,
        attempt=1,
        reason=why(ReasonCode.PREEMPTED_BY),
        deadline_at=at(1060.0),
        beneficiary=beneficiary,
    )


WAITS = why(ReasonCode.WAITS_FOR_CAPACITY)
RUNS = running(a_task("runs"), ALL, since=0.0)
NEW = a_task("new", owner="bob")
TASKS: dict[str, Task] = {"runs": RUNS, "new": NEW}


def compared(
    before: Plan, after: Plan, tasks: dict[str, Task] = TASKS, effects_max: int = 9
) -> DryRun:
    return diff(before, after, tasks, effects_max=effects_max)


def test_equal_plans_have_no_effects() -> None:
    same = plan(preempt(RUNS, "new"), new=WAITS)
    result = compared(same, same)
    assert (result.effects, result.more) == ((), 0)
    (outlook,) = result.outlooks
    assert outlook.now == outlook.then


def test_other_placements_and_other_numbers_are_no_difference() -> None:
    before = plan(assign(NEW, "n1"))
    assert compared(before, plan(assign(NEW, "n2"))).effects == ()
    fewer = plan(new=why(ReasonCode.WAITS_FOR_CAPACITY, free=1))
    assert compared(fewer, plan(new=why(ReasonCode.WAITS_FOR_CAPACITY, free=2))).effects == ()


def test_an_additional_preemption_is_listed_with_its_costs() -> None:
    tasks = {**TASKS, "runs": replace(RUNS, checkpoint=a_checkpoint(1, saved=400.0))}
    result = compared(plan(new=WAITS), plan(preempt(RUNS, "new"), new=WAITS), tasks)
    (effect,) = result.effects
    assert (effect.task_id, effect.owner, effect.state) == ("runs", "ann", TaskState.RUNNING)
    assert (effect.now.kind, effect.then.kind) == ("", "preempt")
    assert effect.then.beneficiary == "new"
    (outlook,) = result.outlooks
    assert (outlook.now.preemptions, outlook.now.gpus_held, outlook.now.waiting) == (0, 8, 1)
    assert (outlook.then.preemptions, outlook.then.promised, outlook.then.waiting) == (1, 1, 1)
    assert outlook.then.gpus_handed_over == 8
    # Since the checkpoint at 400, on eight GPUs.
    assert outlook.then.gpu_seconds_at_risk == 8 * 600.0


def test_an_additional_start_counts_its_gpus() -> None:
    result = compared(plan(new=WAITS), plan(assign(NEW, "n1")))
    (effect,) = result.effects
    assert (effect.now.kind, effect.then.kind) == ("wait", "assign")
    (outlook,) = result.outlooks
    assert (outlook.then.starts, outlook.then.gpus_held, outlook.then.waiting) == (1, 16, 0)


def test_another_reason_to_wait_is_a_difference() -> None:
    other = Hold(TaskId("new"), why(ReasonCode.WAITS_FOR_QUOTA), accepted=True)
    (effect,) = compared(plan(new=WAITS), plan(other)).effects
    assert effect.then.reason is not None
    assert effect.then.reason.code is ReasonCode.WAITS_FOR_QUOTA


def test_a_demotion_is_a_difference_and_a_new_order_key_is_none() -> None:
    reorder = Reorder(RUNS.id, why(ReasonCode.STARTED), NO_ORDER_KEY)
    assert compared(plan(), plan(reorder)).effects == ()
    assert compared(plan(), plan(replace(reorder, level=RUNS.level))).effects == ()
    (effect,) = compared(plan(), plan(replace(reorder, level=Priority.LOW))).effects
    assert effect.then.kind == "sink"


def test_the_most_important_effects_come_first_and_the_rest_is_counted() -> None:
    waiting = {f"w{number}": a_task(f"w{number}") for number in range(5)}
    tasks: dict[str, Task] = {**TASKS, **waiting}
    before = plan(**dict.fromkeys([*waiting, "new"], WAITS))
    quota = why(ReasonCode.WAITS_FOR_QUOTA)
    after = plan(assign(NEW), preempt(RUNS, "w0"), **dict.fromkeys(waiting, quota))
    result = compared(before, after, tasks, effects_max=3)
    assert [effect.task_id for effect in result.effects] == ["runs", "new", "w0"]
    assert result.more == 4


def test_sums_are_kept_for_each_group() -> None:
    elsewhere = a_task("other", group="dev")
    result = compared(plan(), plan(assign(elsewhere)), {**TASKS, "other": elsewhere})
    assert [(each.group, each.then.starts) for each in result.outlooks] == [
        ("default", 0),
        ("dev", 1),
    ]
