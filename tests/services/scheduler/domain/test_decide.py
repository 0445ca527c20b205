"""The policy by example: which tasks start, which wait, which are preempted."""

from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import (
    Goal,
    PreemptMode,
    Priority,
    ReadyProbe,
    Reason,
    ReasonCode,
    Role,
    StartCondition,
    StartsAfter,
    TaskState,
    Unit,
)
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
)
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.lifecycle import Trigger
from services.scheduler.domain.model.rows import Inventory, Limit, Node, Task
from services.scheduler.domain.model.values import OrderKey, reason
from tests.kit.builders import (
    a_checkpoint,
    a_limit,
    a_node,
    a_snapshot,
    a_spec,
    a_task,
    on_nodes,
    played,
    preempting,
    running,
    some_nodes,
    starting,
)
from tests.kit.clock import START, at

ALL = tuple(range(8))
HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
# Strict order, unless a test is about another one.
FIFO = PolicySettings(policy="fifo")


def plan_of(
    *tasks: Task,
    nodes: list[Node] | int = 2,
    limits: tuple[Limit, ...] = (),
    listed: bool = True,
    settings: PolicySettings | None = None,
    now: float = 10.0,
) -> Plan:
    some = some_nodes(nodes) if isinstance(nodes, int) else nodes
    return decide(
        a_snapshot(tasks, some, limits=limits, listed=listed, settings=settings or FIFO), at(now)
    )


def kinds(plan: Plan) -> list[tuple[str, str]]:
    """What moves a task; notes apart."""
    notes = ("hold", "mark")
    return [(each.kind, each.task_id) for each in plan.decisions if each.kind not in notes]


def why(plan: Plan, task_id: str) -> ReasonCode:
    return plan.explanations[task_id].code


def only(plan: Plan, kind: type[Decision]) -> Decision:
    (found,) = [each for each in plan.decisions if isinstance(each, kind)]
    return found


def test_an_assignment_names_every_node_and_gpu() -> None:
    task = replace(a_task(gpus=4), attempt=2, checkpoint=a_checkpoint(7))
    decision = only(plan_of(task), Assign)
    assert decision == Assign(
        task_id=task.id,
        attempt=3,
        level=NORMAL,
        placements=on_nodes(task, {"n0": (0, 1, 2, 3)}),
        start_deadline_at=at(310),
        resume_from=a_checkpoint(7),
        reason=reason(
            ReasonCode.PLACED, names={"node_ids": "n0", "group": "default"}, nodes=1, gpus=4
        ),
        order_key=OrderKey(policy="fifo", waiting=False, key=START.timestamp()),
    )


def test_the_start_deadline_counts_each_role_that_waits_for_another() -> None:
    task = a_task()
    roles = (
        Role(name="ps", replicas=1, ready=ReadyProbe(within_seconds=50)),
        Role(
            name="it",
            replicas=1,
            starts_after=(StartsAfter(role="ps", condition=StartCondition.READY),),
        ),
    )
    task = replace(task, spec=task.spec.model_copy(update={"roles": roles, "nodes": 2}))
    decision = only(plan_of(task, nodes=2), Assign)
    assert isinstance(decision, Assign)
    # Later roles have limits of the launcher's.
    assert decision.start_deadline_at == at(310)


def test_tasks_are_ordered_by_level_then_submission_then_id() -> None:
    tasks = [
        a_task("c", submitted=1),
        a_task("b", submitted=2),
        a_task("a", submitted=2),
        a_task("z", submitted=9, priority=HIGH),
    ]
    order = [
        each.task_id for each in plan_of(*tasks, nodes=4).decisions if isinstance(each, Assign)
    ]
    assert order == ["z", "c", "a", "b"]


def test_a_large_gang_is_not_starved_by_later_small_tasks_of_its_level() -> None:
    busy = running(a_task("busy"), {"n0": ALL})
    plan = plan_of(busy, a_task("big", nodes=2, submitted=1), a_task("small", submitted=2))
    assert kinds(plan) == []
    assert why(plan, "big") is ReasonCode.WAITS_FOR_CAPACITY
    assert why(plan, "small") is ReasonCode.WAITS_BEHIND_OTHERS


def test_lower_levels_run_meanwhile_because_they_can_be_preempted() -> None:
    busy = running(a_task("busy"), {"n0": ALL})
    plan = plan_of(busy, a_task("big", nodes=2, submitted=1), a_task("low", priority=LOW))
    assert kinds(plan) == [("assign", "low")]


def test_nodes_that_the_first_task_could_never_use_are_not_held_back() -> None:
    nodes = [a_node("n0"), a_node("n1", gpus=2), a_node("n2", gpus=0)]
    busy = running(a_task("busy", gpus=8), {"n0": ALL})
    tasks = [
        a_task("big", gpus=8, submitted=1),
        a_task("two", gpus=2, submitted=2),
        a_task("cpu", gpus=0, submitted=3),
    ]
    plan = plan_of(busy, *tasks, nodes=nodes)
    assert kinds(plan) == [("assign", "two"), ("assign", "cpu")]


def test_cpu_only_tasks_pass_those_that_wait_for_gpus() -> None:
    busy = running(a_task("busy"), {"n0": ALL})
    plan = plan_of(busy, a_task("big", nodes=2), a_task("cpu", gpus=0, submitted=1))
    assert kinds(plan) == [("assign", "cpu")]


def test_each_group_has_a_queue_of_its_own() -> None:
    nodes = [a_node("n0"), a_node("d0", group="dev")]
    busy = running(a_task("busy"), {"n0": ALL})
    plan = plan_of(busy, a_task("a"), a_task("d", group="dev", submitted=1), nodes=nodes)
    assert kinds(plan) == [("assign", "d")]


def test_a_higher_level_preempts_the_cheapest_lower_run() -> None:
    low = [
        running(a_task("l0", priority=LOW), {"n0": ALL}, since=-500),
        running(a_task("l1", priority=LOW), {"n1": ALL}, since=-100),
        running(a_task("n", priority=NORMAL), {"n2": ALL}, since=-1),
    ]
    plan = plan_of(*low, a_task("hi", priority=HIGH), nodes=3)
    assert kinds(plan) == [("preempt", "l1")]
    decision = only(plan, Preempt)
    assert isinstance(decision, Preempt)
    assert (decision.beneficiary, decision.deadline_at) == ("hi", at(70))
    assert decision.reason.code is ReasonCode.PREEMPTED_BY
    assert why(plan, "hi") is ReasonCode.WAITS_FOR_VICTIMS


def test_a_fresh_checkpoint_makes_a_run_cheap_to_preempt() -> None:
    saved = replace(a_task("saved", priority=LOW), checkpoint=a_checkpoint(1, attempt=1, saved=9))
    low = [
        running(saved, {"n0": ALL}, since=-500),
        running(a_task("young", priority=LOW), {"n1": ALL}, since=-100),
    ]
    assert kinds(plan_of(*low, a_task("hi", priority=HIGH))) == [("preempt", "saved")]


def test_only_as_many_runs_as_needed_are_preempted() -> None:
    """The small run on n0 is the cheapest, but without n1 it does not help."""
    low = [
        running(a_task("small", priority=LOW, gpus=1), {"n0": (0,)}, since=0),
        running(a_task("other", priority=LOW, gpus=7), {"n0": ALL[1:]}, since=-50),
        running(a_task("whole", priority=LOW), {"n1": ALL}, since=-20),
    ]
    plan = plan_of(*low, a_task("hi", priority=HIGH))
    assert kinds(plan) == [("preempt", "whole")]


def test_equal_levels_never_preempt_each_other() -> None:
    plan = plan_of(running(a_task("r"), {"n0": ALL}), a_task("w"), nodes=1)
    assert kinds(plan) == []
    assert why(plan, "w") is ReasonCode.WAITS_FOR_CAPACITY


def test_no_run_is_preempted_if_all_lower_runs_together_are_not_enough() -> None:
    tasks = [
        running(a_task("low", priority=LOW), {"n0": ALL}),
        running(a_task("same", priority=HIGH), {"n1": ALL}),
    ]
    plan = plan_of(*tasks, a_task("hi", nodes=2, priority=HIGH))
    assert kinds(plan) == []


def test_runs_without_the_sdk_are_killed() -> None:
    kill = running(a_task("k", priority=LOW, mode=PreemptMode.KILL), {"n0": ALL})
    start = starting(a_task("s", priority=LOW), {"n1": ALL})
    plan = plan_of(kill, start, a_task("hi", nodes=2, priority=HIGH))
    assert kinds(plan) == [("kill", "k"), ("kill", "s")]


def test_a_run_is_not_preempted_during_its_protected_minimum() -> None:
    settings = PolicySettings(policy="fifo", protected_seconds=30)
    low = running(a_task("low", priority=LOW), {"n0": ALL}, since=0)
    plan = plan_of(low, a_task("hi", priority=HIGH), nodes=1, settings=settings)
    assert kinds(plan) == []
    assert plan.due_at == at(30)
    late = plan_of(low, a_task("hi", priority=HIGH), nodes=1, settings=settings, now=30)
    assert kinds(late) == [("preempt", "low")]


def test_a_task_waits_for_nodes_that_are_being_released_and_preempts_no_further_run() -> None:
    tasks = [
        preempting(a_task("going", priority=LOW), {"n0": ALL}),
        running(a_task("low", priority=LOW), {"n1": ALL}),
        a_task("hi", priority=HIGH),
    ]
    plan = plan_of(*tasks)
    assert kinds(plan) == []
    assert why(plan, "hi") is ReasonCode.WAITS_FOR_VICTIMS


def test_promised_nodes_are_not_taken_by_later_tasks() -> None:
    """n1 is free, n0 comes free: both are the gang's; the later small task waits."""
    tasks = [
        preempting(a_task("going", priority=LOW), {"n0": ALL}),
        a_task("gang", nodes=2, priority=HIGH),
        a_task("low", priority=LOW, submitted=1),
    ]
    plan = plan_of(*tasks)
    assert kinds(plan) == []
    assert why(plan, "low") is ReasonCode.WAITS_FOR_CAPACITY


def test_nothing_starts_before_the_exit_is_observed() -> None:
    low = running(a_task("low", priority=LOW), {"n0": ALL})
    snapshot = a_snapshot([low, a_task("hi", priority=HIGH)], some_nodes(1))
    asked = played(snapshot, decide(snapshot, at(10)))
    killed = played(asked, decide(asked, at(80)))
    assert killed.tasks["low"].state is TaskState.KILLING
    assert decide(killed, at(5000)).decisions == ()


def test_a_task_at_quota_waits_and_holds_no_task_back() -> None:
    limit = a_limit(8, user="ann")
    tasks = [
        running(a_task("r", gpus=8), {"n0": ALL}),
        a_task("ann2", gpus=1, submitted=1),
        a_task("bob", gpus=1, owner="bob", submitted=2),
    ]
    plan = plan_of(*tasks, limits=(limit,))
    assert kinds(plan) == [("assign", "bob")]
    waits = plan.explanations["ann2"]
    assert waits.code is ReasonCode.WAITS_FOR_QUOTA
    assert waits.numbers == {"limit": 8, "need": 1}
    assert waits.names["user"] == "ann"


def test_one_round_does_not_give_more_than_the_quota() -> None:
    limit = a_limit(1, unit=Unit.NODES)
    plan = plan_of(a_task("a"), a_task("b", submitted=1), limits=(limit,))
    assert kinds(plan) == [("assign", "a")]


def test_auto_tasks_sink_as_their_levels_fill() -> None:
    limits = (a_limit(8, user="ann", priority=HIGH),)
    tasks = [
        a_task("auto1", gpus=8, priority=Priority.AUTO, submitted=1),
        a_task("auto2", gpus=8, priority=Priority.AUTO, submitted=2),
        a_task("norm", gpus=8, submitted=0),
    ]
    levels = {
        each.task_id: each.level
        for each in plan_of(*tasks, nodes=3, limits=limits).decisions
        if isinstance(each, Assign)
    }
    assert levels == {"auto1": HIGH, "norm": NORMAL, "auto2": NORMAL}
    assert list(levels) == ["auto1", "norm", "auto2"]


def test_a_task_that_never_fits_is_rejected_once_the_inventory_is_known() -> None:
    big = a_task("big", nodes=3, accepted=False)
    assert kinds(plan_of(big)) == [("reject", "big")]
    unsure = plan_of(big, listed=False)
    assert kinds(unsure) == []
    assert why(unsure, "big") is ReasonCode.WAITS_FOR_INVENTORY


def test_lost_and_cordoned_nodes_and_sick_gpus_count_as_known() -> None:
    nodes = [
        a_node("n0", ready=False),
        a_node("n1", schedulable=False),
        a_node("n2", unusable=(1,)),
    ]
    plan = plan_of(a_task("w", nodes=3, accepted=False), nodes=nodes)
    assert kinds(plan) == []
    assert why(plan, "w") is ReasonCode.CLUSTER_TOO_SMALL_NOW


def test_a_task_that_fitted_once_waits_when_the_cluster_shrinks() -> None:
    snapshot = a_snapshot(
        [running(a_task("r"), {"n0": ALL}), a_task("w", nodes=2, submitted=1, accepted=False)],
        some_nodes(2),
    )
    waiting = played(snapshot, decide(snapshot, at(1))).tasks["w"]
    assert waiting.accepted
    gone = [a_node("n0"), a_node("n1", removed=True)]
    plan = plan_of(waiting, nodes=gone)
    assert kinds(plan) == []
    assert why(plan, "w") is ReasonCode.CLUSTER_TOO_SMALL_NOW


def test_an_inventory_is_full_when_all_its_nodes_are_known() -> None:
    """The list may overtake the nodes it names."""
    task, full = a_task("w", nodes=2, accepted=False), Inventory("process", ("n0", "n1"), START)
    known = Snapshot.of(tasks=[task], nodes=[a_node("n0")], inventories=[full])
    assert why(decide(known, at(1)), "w") is ReasonCode.WAITS_FOR_INVENTORY
    gone = [a_node("n0"), a_node("n1", removed=True)]
    later = Snapshot.of(tasks=[task], nodes=gone, inventories=[full])
    assert kinds(decide(later, at(1))) == [("reject", "w")]


def test_a_retry_waits_until_its_time() -> None:
    task = replace(a_task("t", spec=a_spec(retries=3)), not_before_at=at(20), retries_used=1)
    plan = plan_of(task, a_task("next", submitted=5), nodes=1)
    assert kinds(plan) == [("assign", "next")]
    assert plan.explanations["t"].numbers == {"retry": 1, "retries_max": 3}
    assert plan.due_at == at(20)
    assert kinds(plan_of(task, nodes=1, now=20)) == [("assign", "t")]


def test_goals_are_followed() -> None:
    tasks = [
        a_task("pq", goal=Goal.PAUSE),
        a_task("sq", goal=Goal.STOP),
        replace(a_task("sp", goal=Goal.STOP), state=TaskState.PAUSED),
        running(a_task("pr", goal=Goal.PAUSE), {"n0": ALL}),
        running(a_task("sr", goal=Goal.STOP), {"n1": ALL}),
        starting(a_task("ss", goal=Goal.STOP), {"n2": ALL}),
        preempting(a_task("going", goal=Goal.STOP), {"n3": ALL}),
    ]
    plan = plan_of(*tasks, nodes=4)
    assert kinds(plan) == [
        ("move", "pq"),
        ("preempt", "pr"),
        ("move", "sp"),
        ("move", "sq"),
        ("preempt", "sr"),
        ("kill", "ss"),
    ]
    deadlines = {d.task_id: d.deadline_at for d in plan.decisions if isinstance(d, Preempt)}
    assert deadlines == {"pr": at(70), "sr": at(40)}, "a task that is to stop gets less time"


def test_a_resumed_task_starts_in_the_same_round() -> None:
    paused = replace(a_task("p"), state=TaskState.PAUSED, attempt=1)
    plan = plan_of(paused)
    assert kinds(plan) == [("move", "p"), ("assign", "p")]
    move = only(plan, Move)
    assert isinstance(move, Move)
    assert move.trigger is Trigger.RESUME


def test_a_start_beyond_its_deadline_is_ended_and_after_five_the_task_fails() -> None:
    late = starting(a_task("late"), {"n0": ALL}, now=-400)
    decision = only(plan_of(late), Kill)
    assert isinstance(decision, Kill)
    assert (decision.trigger, decision.end_reason) == (Trigger.START_EXPIRED, None)
    fifth = only(plan_of(replace(late, start_attempts=4)), Kill)
    assert isinstance(fifth, Kill)
    assert isinstance(fifth.end_reason, Reason)
    assert fifth.end_reason.code is ReasonCode.START_ATTEMPTS_USED_UP


def test_a_run_that_misses_its_acknowledgement_deadline_is_killed() -> None:
    going = preempting(a_task("g"), {"n0": ALL}, deadline=20)
    assert kinds(plan_of(going, now=19.9)) == []
    assert plan_of(going, now=19.9).due_at == at(20)
    decision = only(plan_of(going, now=20), Kill)
    assert isinstance(decision, Kill)
    assert decision.trigger is Trigger.ACK_EXPIRED


def test_the_maximum_run_time_counts_all_attempts() -> None:
    spec = a_spec(max_run_seconds=100)
    task = replace(running(a_task("m", spec=spec), {"n0": ALL}, since=0), run_seconds=60.0)
    assert plan_of(task, now=39).due_at == at(40)
    assert kinds(plan_of(task, now=39)) == []
    decision = only(plan_of(task, now=40), Preempt)
    assert isinstance(decision, Preempt)
    assert decision.end_reason is not None
    assert decision.end_reason.code is ReasonCode.MAX_RUN_TIME


def test_runs_leave_a_drained_node_which_takes_no_new_ones() -> None:
    nodes = [a_node("n0", draining=True), a_node("n1"), a_node("n2", draining=True)]
    tasks = [
        running(a_task("gang", nodes=2), {"n0": ALL, "n1": ALL}),
        starting(a_task("young"), {"n2": ALL}),
        a_task("w", submitted=5),
    ]
    plan = plan_of(*tasks, nodes=nodes)
    assert kinds(plan) == [("preempt", "gang"), ("kill", "young")]
    asked = next(each for each in plan.decisions if isinstance(each, Preempt))
    assert asked.reason == reason(ReasonCode.NODE_DRAINED, names={"node": "n0"})
    assert why(plan, "w") is ReasonCode.WAITS_FOR_VICTIMS, "n1 comes free with the gang"


def test_a_rejection_names_what_does_not_fit() -> None:
    decision = only(plan_of(a_task("big", gpus=16, accepted=False)), Reject)
    assert decision.reason.numbers == {"nodes": 1, "gpus": 16}


def test_a_long_queue_that_cannot_move_is_explained_once() -> None:
    busy = running(a_task("busy"), {"n0": ALL})
    many = [a_task(f"q{number:03}", submitted=number) for number in range(300)]
    snapshot = a_snapshot([busy, *many], some_nodes(1), settings=FIFO)
    first = decide(snapshot, at(1))
    assert len([each for each in first.decisions if isinstance(each, Hold)]) == 300
    after = played(snapshot, first)
    assert decide(after, at(2)).decisions == ()
    # One start changes one reason: the next in line, not the whole queue.
    moved = replace(after.tasks["q000"], state=TaskState.PAUSED, goal=Goal.PAUSE)
    tasks = {**after.tasks, "q000": moved}
    again = decide(a_snapshot(tasks.values(), some_nodes(1), settings=FIFO), at(3))
    assert [each.task_id for each in again.decisions] == ["q001"]
