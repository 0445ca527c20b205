"""Every fault is planted once in a good plan, and found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.ids import TaskId
from libs.contracts.messages import Goal, Placement, Priority, ReasonCode, TaskState
from services.scheduler.domain.check.isolate import decide_checked
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import (
    Assign,
    Decision,
    Hold,
    Kill,
    Move,
    Plan,
    Preempt,
    Reject,
    Reorder,
)
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings, VirtualCluster
from services.scheduler.domain.model.lifecycle import Trigger
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey, reason
from tests.kit.builders import (
    a_checkpoint,
    a_limit,
    a_node,
    a_snapshot,
    a_task,
    preempting,
    running,
    some_nodes,
    starting,
)
from tests.kit.clock import at

ALL = tuple(range(8))
WHY = reason(ReasonCode.QUEUED)


def the_snapshot(*more: Task, **changes: Any) -> Snapshot:
    """A gang that fits, a runner that can be preempted, one that waits for its nodes."""
    gang = replace(a_task("gang", nodes=2, gpus=2), attempt=1, checkpoint=a_checkpoint(3))
    tasks = {
        task.id: task
        for task in (
            gang,
            a_task("waits", gpus=8, priority=Priority.HIGH, owner="bob"),
            running(a_task("low", priority=Priority.LOW, owner="bob"), {"n2": ALL}, since=0),
            *more,
        )
    }
    nodes = [
        a_node("n0", gpus=4, cpus=2.0),
        a_node("n1", gpus=4, unusable=(3,), cpus=2.0),
        a_node("n2"),
        a_node("cordoned", schedulable=False),
        a_node("other", group="dev"),
        a_node("plain", gpus=0, cpus=1.0),
    ]
    return a_snapshot(tasks.values(), nodes, **changes)


def good(snapshot: Snapshot, now: float = 10) -> Plan:
    plan = decide(snapshot, at(now))
    assert check(snapshot, plan) == []
    return plan


def changed(plan: Plan, task_id: str, change: Callable[[Any], Decision | None]) -> Plan:
    """The plan with one task's moving decision changed, or dropped."""
    decisions = [
        change(each) if each.task_id == task_id and not isinstance(each, Hold | Reorder) else each
        for each in plan.decisions
    ]
    return replace(plan, decisions=tuple(each for each in decisions if each is not None))


def with_decision(plan: Plan, *decisions: Decision) -> Plan:
    return replace(plan, decisions=(*plan.decisions, *decisions))


def placed(decision: Assign, rank: int, **values: object) -> Assign:
    """The assignment with one placement changed."""
    placements = list(decision.placements)
    placements[rank] = placements[rank].model_copy(update=values)
    return replace(decision, placements=tuple(placements))


@dataclass(frozen=True)
class Planted:
    fault: Fault
    task_id: str
    change: Callable[[Any], Decision | None]


def gang(fault: Fault, change: Callable[[Any], Decision | None]) -> Planted:
    return Planted(fault, "gang", change)


PLANTED = {
    "attempt skipped": gang(Fault.WRONG_ATTEMPT, lambda d: replace(d, attempt=3)),
    "attempt again": gang(Fault.WRONG_ATTEMPT, lambda d: replace(d, attempt=1)),
    "no checkpoint": gang(Fault.WRONG_CHECKPOINT, lambda d: replace(d, resume_from=None)),
    "old checkpoint": gang(
        Fault.WRONG_CHECKPOINT, lambda d: replace(d, resume_from=a_checkpoint(2))
    ),
    "start deadline passed": gang(Fault.DEADLINE, lambda d: replace(d, start_deadline_at=at(10))),
    "half a gang": gang(Fault.GANG, lambda d: replace(d, placements=d.placements[:1])),
    "one node for both": gang(Fault.GANG, lambda d: placed(d, 1, node_id="n0", gpus=(2, 3))),
    "a GPU less": gang(Fault.GANG, lambda d: placed(d, 1, gpus=(0,))),
    "a GPU twice": gang(Fault.GANG, lambda d: placed(d, 1, gpus=(0, 0))),
    "ranks exchanged": gang(Fault.GANG, lambda d: replace(d, placements=d.placements[::-1])),
    "no such node": gang(Fault.NODE, lambda d: placed(d, 0, node_id="nowhere")),
    "cordoned node": gang(Fault.NODE, lambda d: placed(d, 0, node_id="cordoned")),
    "node of another group": gang(Fault.NODE, lambda d: placed(d, 0, node_id="other")),
    "no such GPU": gang(Fault.GPU, lambda d: placed(d, 0, gpus=(3, 4))),
    "sick GPU": gang(Fault.GPU, lambda d: placed(d, 1, gpus=(2, 3))),
    "GPU of a run": gang(Fault.NOT_FREE, lambda d: placed(d, 0, node_id="n2")),
    "not live": Planted(Fault.WRONG_ATTEMPT, "low", lambda d: replace(d, attempt=2)),
    "deadline passed": Planted(Fault.DEADLINE, "low", lambda d: replace(d, deadline_at=at(10))),
    "for itself": Planted(Fault.NO_BENEFICIARY, "low", lambda d: replace(d, beneficiary="low")),
    "for nobody": Planted(Fault.NO_BENEFICIARY, "low", lambda d: replace(d, beneficiary="x")),
    "for a task that is promised nothing": Planted(
        Fault.NO_BENEFICIARY, "low", lambda d: replace(d, beneficiary="gang")
    ),
    "promised and not asked to go": Planted(Fault.PROMISED, "low", lambda _: None),
    "ack not expired": Planted(
        Fault.ILLEGAL, "low", lambda d: Kill(d.task_id, 1, WHY, Trigger.ACK_EXPIRED)
    ),
    "unknown task": Planted(
        Fault.UNKNOWN_TASK, "low", lambda d: replace(d, task_id=TaskId("nobody"))
    ),
    "started twice": Planted(
        Fault.ILLEGAL,
        "low",
        lambda d: Assign(d.task_id, 2, Priority.LOW, (), at(99), None, WHY),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    snapshot, planted = the_snapshot(), PLANTED[name]
    plan = changed(good(snapshot), planted.task_id, planted.change)
    assert planted.fault in {violation.fault for violation in check(snapshot, plan)}


def faults(snapshot: Snapshot, plan: Plan) -> set[Fault]:
    found = {violation.fault for violation in check(snapshot, plan)}
    # The index's record of the holders agrees with the bare rows.
    assert found == {violation.fault for violation in check(snapshot, plan, deep=True)}
    return found


def test_a_plan_for_another_version() -> None:
    snapshot = the_snapshot()
    assert faults(snapshot, replace(good(snapshot), version=99)) == {Fault.STALE}


def test_two_decisions_about_one_task_are_refused() -> None:
    snapshot = the_snapshot()
    plan = good(snapshot)
    preempt = next(each for each in plan.decisions if isinstance(each, Preempt))
    assert Fault.TWICE in faults(snapshot, with_decision(plan, preempt))


def test_one_gpu_for_two_tasks_of_the_plan() -> None:
    arrival = GroupPolicy("default", policy="backfill")
    snapshot = the_snapshot(a_task("twin", gpus=2), policies=[arrival])
    plan = good(snapshot)
    first = next(d for d in plan.decisions if isinstance(d, Assign) and d.task_id == "gang")
    gpus, node = first.placements[0].gpus, first.placements[0].node_id
    both = changed(plan, "twin", lambda d: placed(d, 0, node_id=node, gpus=gpus))
    assert faults(snapshot, both) == {Fault.NOT_FREE, Fault.PROMISED}


def test_a_second_attempt_while_the_first_lives() -> None:
    torn = replace(starting(a_task("torn", gpus=1), {"n0": (0,)}), state=TaskState.QUEUED)
    snapshot = the_snapshot(torn)
    start = Assign(
        torn.id,
        2,
        Priority.NORMAL,
        (Placement(role="worker", node_id="n0", gpus=(3,)),),
        at(99),
        None,
        WHY,
    )
    plan = replace(decide(the_snapshot(), at(10)), decisions=(start,))
    assert Fault.TWO_LIVE in faults(snapshot, plan)


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (replace(a_task("t", gpus=1), goal=Goal.STOP), Fault.NOT_WANTED),
        (replace(a_task("t", gpus=1), not_before_at=at(99)), Fault.TOO_EARLY),
    ],
)
def test_a_start_of_a_task_that_may_not_start(task: Task, fault: Fault) -> None:
    allowed = the_snapshot(replace(task, goal=Goal.RUN, not_before_at=None))
    assert fault in faults(the_snapshot(task), good(allowed))


def test_cpu_places_and_whole_nodes_are_counted() -> None:
    shared = running(a_task("c1", gpus=0), {"plain": ()})
    snapshot = the_snapshot(shared)
    start = Assign(
        TaskId("waits"),
        1,
        Priority.HIGH,
        (Placement(role="worker", node_id="plain"),),
        at(99),
        None,
        WHY,
    )
    for gpus in (0, None):
        waits = a_task("waits", gpus=gpus, priority=Priority.HIGH)
        crowded = the_snapshot(shared, waits)
        plan = replace(good(snapshot), decisions=(start,), explanations={"gang": WHY, "waits": WHY})
        assert Fault.NOT_FREE in faults(crowded, plan)


def test_a_broken_limit() -> None:
    for limit in (a_limit(3, user="ann"), a_limit(3, team="vision"), a_limit(3), a_limit(0)):
        plan = good(the_snapshot())
        found = faults(the_snapshot(limits=[limit]), plan)
        assert found == {Fault.QUOTA}
    # Not touched by the plan: a limit that was lowered below what runs stops nobody.
    assert faults(the_snapshot(limits=[a_limit(0, user="bob")]), good(the_snapshot())) == set()


def test_a_victim_that_is_not_lower() -> None:
    plan = good(the_snapshot())
    equal = running(a_task("low", priority=Priority.HIGH, owner="bob"), {"n2": ALL}, since=0)
    assert faults(the_snapshot(equal), plan) == {Fault.VICTIM_NOT_LOWER}


def test_a_promise_of_what_is_promised_to_another() -> None:
    plan = good(the_snapshot())
    (held,) = [each for each in plan.decisions if isinstance(each, Hold) and each.reserved]
    other = replace(a_task("other", owner="bob"), promised=held.reserved, level=Priority.NORMAL)
    assert Fault.PROMISED in faults(the_snapshot(other), plan)


def test_a_level_that_rises_by_itself() -> None:
    snapshot = the_snapshot()
    for level in (Priority.LOW, Priority.HIGH):
        plan = with_decision(good(snapshot), Reorder(TaskId("low"), WHY, OrderKey(), level))
        assert faults(snapshot, plan) == {Fault.LEVEL_ROSE}


def turns(waits: float, runs: float, **changes: Any) -> Snapshot:
    """One node, one run of a discipline that takes turns, and one that waits for it."""
    settings = PolicySettings(policy="las")
    run = running(a_task("r", submitted=runs), {"n0": ALL}, since=0)
    run = replace(run, marks=OrderKey(policy="las", waiting=False, key=at(runs).timestamp()))
    options: dict[str, Any] = {"settings": settings, **changes}
    return a_snapshot([run, a_task("w", submitted=waits)], [a_node("n0")], **options)


def test_slice_victims_that_may_not_be_taken() -> None:
    snapshot = turns(1, 2)
    plan = good(snapshot)
    assert [type(each) for each in plan.decisions if each.task_id == "r"] == [Preempt]
    assert faults(turns(1, 0), plan) == {Fault.VICTIM_NOT_LATER}
    assert faults(turns(1, 2, settings=PolicySettings(policy="fifo")), plan) == {Fault.NO_SLICES}
    run = snapshot.tasks["r"]
    held = replace(run, marks=replace(run.marks, held_until=at(11)))
    settings = PolicySettings(policy="las")
    left_alone = a_snapshot([held, snapshot.tasks["w"]], [a_node("n0")], settings=settings)
    assert faults(left_alone, plan) == {Fault.VICTIM_PROTECTED}


def test_a_slice_victim_for_a_task_of_a_lower_level() -> None:
    plan = good(turns(1, 2))
    lower = a_task("w", submitted=1, priority=Priority.LOW)
    run = turns(1, 2).tasks["r"]
    snapshot = a_snapshot([run, lower], [a_node("n0")], settings=PolicySettings(policy="las"))
    assert Fault.VICTIM_NOT_LOWER in faults(snapshot, plan)


def test_a_virtual_cluster_beyond_its_maximum() -> None:
    plan = good(the_snapshot())
    small = VirtualCluster("small", 0.25, users=("ann",), nodes_max=0.25)
    policy = GroupPolicy("default", virtual_clusters=(small,))
    assert Fault.CLUSTER in faults(the_snapshot(policies=[policy]), plan)


def test_a_run_that_a_guarantee_covers_is_no_victim() -> None:
    plan = good(turns(1, 2))
    owned = VirtualCluster("owned", 1.0, users=("ann",))
    run = turns(1, 2).tasks["r"]
    others = a_task("w", submitted=1, owner="bob")
    policy = GroupPolicy("default", policy="las", virtual_clusters=(owned,))
    snapshot = a_snapshot([run, others], [a_node("n0")], policies=[policy])
    assert Fault.VICTIM_NOT_LOWER in faults(snapshot, plan)


def test_inside_a_virtual_cluster_borrowing_takes_nothing_that_its_guarantee_covers() -> None:
    """Level counts there, but only for tasks that the guarantee would cover instead."""
    owned = VirtualCluster("owned", 1.0, users=("ann",))
    policy = GroupPolicy("default", policy="backfill", virtual_clusters=(owned,))
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=0)

    def contested(size: int, high: Priority) -> Snapshot:
        waits = a_task("waits", priority=high, nodes=size)
        return a_snapshot([low, waits], some_nodes(size), policies=[policy])

    # One node for one node of the guarantee: the higher level has it.
    plan = good(contested(1, Priority.HIGH))
    assert [each.task_id for each in plan.decisions if isinstance(each, Preempt)] == ["low"]
    # Two nodes are more than is guaranteed: then the covered run is safe.
    assert not any(isinstance(d, Preempt) for d in good(contested(2, Priority.HIGH)).decisions)
    asked = next(each for each in plan.decisions if isinstance(each, Preempt))
    both = tuple(
        Placement(rank=rank, role="worker", role_index=rank, node_id=f"n{rank}", gpus=ALL)
        for rank in (0, 1)
    )
    hold = Hold(TaskId("waits"), WHY, accepted=True, reserved=both, level=Priority.HIGH)
    forced = replace(good(contested(2, Priority.HIGH)), decisions=(asked, hold))
    assert Fault.VICTIM_NOT_LOWER in faults(contested(2, Priority.HIGH), forced)


def test_a_start_time_from_a_clock_that_is_ahead_protects_no_run() -> None:
    """Without a protected time; otherwise the reported start protects it."""
    ahead = running(a_task("low", priority=Priority.LOW, owner="bob"), {"n2": ALL}, since=500)
    plan = good(the_snapshot(ahead))
    assert any(isinstance(each, Preempt) for each in plan.decisions)
    settings = PolicySettings(protected_seconds=60)
    assert faults(the_snapshot(ahead, settings=settings), plan) == {Fault.VICTIM_PROTECTED}
    assert not any(
        isinstance(d, Preempt) for d in good(the_snapshot(ahead, settings=settings)).decisions
    )


def test_a_protected_victim() -> None:
    settings = PolicySettings(protected_seconds=60)
    plan = good(the_snapshot())
    assert faults(the_snapshot(settings=settings), plan) == {Fault.VICTIM_PROTECTED}


def test_a_deadline_that_has_not_passed() -> None:
    snapshot = the_snapshot(
        starting(a_task("s", gpus=1), {"n0": (3,)}), preempting(a_task("p", gpus=1), {"n1": (2,)})
    )
    plan = good(snapshot)
    for kill in (
        Kill(TaskId("s"), 1, WHY, Trigger.START_EXPIRED),
        Kill(TaskId("p"), 1, WHY, Trigger.ACK_EXPIRED),
    ):
        assert faults(snapshot, with_decision(plan, kill)) == {Fault.NOT_EXPIRED}


def test_a_drain_without_a_draining_node() -> None:
    kill = Kill(TaskId("s"), 1, reason(ReasonCode.NODE_DRAINED, names={"node": "n0"}))
    snapshot = the_snapshot(starting(a_task("s", gpus=1), {"n0": (3,)}))
    assert faults(snapshot, with_decision(good(snapshot), kill)) == {Fault.NOT_DRAINED}


def test_a_hasty_rejection() -> None:
    never = reason(ReasonCode.NEVER_FITS)
    plan = changed(good(the_snapshot()), "gang", lambda d: Reject(d.task_id, never))
    assert faults(the_snapshot(), plan) == {Fault.HASTY_REJECT}
    unlisted = the_snapshot(replace(a_task("gang"), accepted=False), listed=False)
    assert faults(unlisted, plan) == {Fault.HASTY_REJECT}


def test_a_queued_task_without_a_reason() -> None:
    snapshot = the_snapshot()
    plan = good(snapshot)
    silent = {key: why for key, why in plan.explanations.items() if key != "waits"}
    assert faults(snapshot, replace(plan, explanations=silent)) == {Fault.UNEXPLAINED}


def test_a_hold_of_a_task_that_runs() -> None:
    snapshot = the_snapshot()
    plan = with_decision(good(snapshot), Hold(TaskId("low"), WHY, accepted=True))
    assert faults(snapshot, plan) == {Fault.ILLEGAL}


def test_resume_and_start_in_one_plan_are_legal_but_not_the_other_way_round() -> None:
    snapshot = the_snapshot(replace(a_task("p", gpus=1), state=TaskState.PAUSED))
    plan = good(snapshot)
    assert {type(each) for each in plan.decisions if each.task_id == "p"} == {Move, Assign}
    backwards = replace(plan, decisions=plan.decisions[::-1])
    assert Fault.ILLEGAL in faults(snapshot, backwards)


def test_a_check_that_raises_is_a_violation() -> None:
    def raises(_snapshot: Snapshot, plan: Plan) -> list[Violation]:
        raise ValueError(len(plan.decisions))

    snapshot = the_snapshot()
    checked = decide_checked(snapshot, at(60), decide, raises)
    assert checked.plan.decisions == ()
    assert {each.fault for each in checked.violations} == {Fault.RAISED}
    assert set(checked.refused) == set(checked.plan.left_out) == {"default"}


def test_every_fault_is_planted_somewhere() -> None:
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_check*.py"))
    assert [fault.name for fault in Fault if f"Fault.{fault.name}" not in here] == []
