"""A change of a task's level, by its owner or by running time, passes no quota."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.ids import TaskId
from libs.contracts.messages import ExitKind, Goal, Priority, ReasonCode, TaskState, Unit
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault
from services.scheduler.domain.decide import decide
from services.scheduler.domain.explain.explanation import of_row
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Reorder
from services.scheduler.domain.model.group_policy import Demotion, GroupPolicy
from services.scheduler.domain.model.rows import Limit
from services.scheduler.domain.model.values import reason
from tests.kit.builders import a_limit, a_node, a_task, some_nodes
from tests.services.scheduler.domain.domain_harness import Stage

HIGH, ABOVE, NORMAL, BELOW, LOW, IDLE = (
    Priority.HIGH,
    Priority.ABOVE_NORMAL,
    Priority.NORMAL,
    Priority.BELOW_NORMAL,
    Priority.LOW,
    Priority.IDLE,
)
SINKS = (Demotion(ABOVE, NORMAL, 60.0),)


def one_node(priority: Priority, nodes: int = 1) -> Limit:
    """Each user holds at most so many nodes at a level."""
    return a_limit(nodes, priority=priority, unit=Unit.NODES)


def a_stage(*limits: Limit, nodes: int = 4, demotions: tuple[Demotion, ...] = ()) -> Stage:
    policy = GroupPolicy("default", policy="fifo", demotions=demotions)
    return Stage(some_nodes(nodes), limits=limits, policies=[policy])


def runs(stage: Stage, count: int, priority: Priority, *, name: str = "t") -> list[str]:
    """So many tasks of one node, one after the other, all started."""
    names = [f"{name}{number}" for number in range(count)]
    for task_id in names:
        stage.submit(a_task(task_id, priority=priority, submitted=stage.seconds))
        stage.rounds()
        stage.start(task_id)
        stage.rounds()
    return names


def raised(stage: Stage, task_id: str, priority: Priority) -> None:
    stage.rank(task_id, priority)
    stage.rounds()


def levels(stage: Stage, names: list[str]) -> list[Priority]:
    return [stage.tasks[name].level for name in names]


# Raises.


def test_runs_that_are_raised_hold_no_more_than_the_quota_of_their_new_level() -> None:
    """Four tasks begin at LOW, where nothing is limited, and are raised to HIGH."""
    stage = a_stage(one_node(HIGH))
    names = runs(stage, 4, LOW)
    for name in names:
        raised(stage, name, HIGH)
    assert sorted(levels(stage, names)) == sorted([HIGH, LOW, LOW, LOW])
    assert all(stage.tasks[name].priority is HIGH for name in names)


def test_a_raise_that_a_quota_stops_takes_effect_when_the_quota_admits_it() -> None:
    stage = a_stage(one_node(HIGH))
    first, second, third = runs(stage, 3, LOW)
    for name in (first, second, third):
        raised(stage, name, HIGH)
    assert levels(stage, [first, second, third]) == [HIGH, LOW, LOW]
    stage.exit(first, ExitKind.OK)
    stage.rounds()
    assert levels(stage, [second, third]) == [HIGH, LOW]
    # A limit that is lifted admits the rest.
    stage.put(replace(one_node(HIGH, 9), version=2))
    stage.rounds()
    assert levels(stage, [second, third]) == [HIGH, HIGH]


def test_a_raise_that_waits_is_kept_by_a_new_leader() -> None:
    """It is found again in the rows; the stage compares every plan with that."""
    stage = a_stage(one_node(HIGH))
    first, second = runs(stage, 2, LOW)
    raised(stage, first, HIGH)
    raised(stage, second, HIGH)
    raised(stage, first, NORMAL)
    assert levels(stage, [first, second]) == [NORMAL, HIGH]


def test_a_raise_waits_for_quota_that_runs_in_other_groups_hold() -> None:
    stage = Stage(
        [*some_nodes(1), *(replace(each, id=f"d{each.id}", group="dev") for each in some_nodes(1))],
        limits=[one_node(HIGH)],
    )
    runs(stage, 1, HIGH)
    stage.submit(replace(dev := a_task("dev", priority=LOW), spec=of_group(dev, "dev")))
    stage.rounds()
    stage.start("dev")
    raised(stage, "dev", HIGH)
    assert levels(stage, ["dev"]) == [LOW]
    stage.exit("t0", ExitKind.OK)
    stage.rounds()
    assert levels(stage, ["dev"]) == [HIGH]


def of_group(task: object, group: str) -> object:
    return task.spec.model_copy(update={"group": group})  # type: ignore[attr-defined]


def test_a_quota_over_all_levels_does_not_stop_a_raise() -> None:
    """It counts the run already."""
    stage = a_stage(a_limit(1, unit=Unit.NODES))
    (name,) = runs(stage, 1, LOW)
    raised(stage, name, HIGH)
    assert levels(stage, [name]) == [HIGH]


def test_a_raise_that_waits_takes_nobodys_nodes_and_gives_none_up() -> None:
    """The run counts at its old level for everybody: a NORMAL task may take its nodes."""
    stage = a_stage(one_node(HIGH), nodes=2)
    first, second = runs(stage, 2, LOW)
    raised(stage, first, HIGH)
    raised(stage, second, HIGH)
    stage.submit(a_task("bob", owner="bob", priority=NORMAL))
    stage.rounds()
    assert stage.tasks[second].state is TaskState.PREEMPTING
    assert stage.tasks[first].state is TaskState.RUNNING


def test_a_run_that_is_raised_is_safe_from_tasks_below_its_new_level_at_once() -> None:
    stage = a_stage(nodes=1)
    (name,) = runs(stage, 1, LOW)
    stage.rank(name, HIGH)
    stage.submit(a_task("bob", owner="bob", priority=NORMAL))
    stage.rounds()
    assert stage.tasks[name].state is TaskState.RUNNING


def test_explain_says_that_a_raise_waits_for_quota() -> None:
    stage = a_stage(one_node(HIGH))
    first, second = runs(stage, 2, LOW)
    raised(stage, first, HIGH)
    raised(stage, second, HIGH)
    said = " ".join(told(stage, second))
    assert "counts at level low" in said
    assert "level high as soon as the quota there admits it" in said
    assert "1 of 1 nodes are held" in said
    assert not told(stage, first)


def told(stage: Stage, task_id: str) -> tuple[str, ...]:
    return of_row(stage.index, stage.tasks[task_id], stage.now).remedies


def test_the_check_refuses_a_level_that_passes_its_quota_or_the_priority() -> None:
    stage = a_stage(one_node(HIGH))
    first, second = runs(stage, 2, LOW)
    raised(stage, first, HIGH)
    snapshot = Snapshot.view(stage.index)
    plan = decide(snapshot, stage.now)

    def faults(task_id: str, level: Priority) -> set[Fault]:
        why = reason(ReasonCode.LEVEL_CHANGED)
        mark = Reorder(TaskId(task_id), why, stage.tasks[task_id].marks, level)
        return {each.fault for each in check(snapshot, replace(plan, decisions=(mark,)), deep=True)}

    # Only its owner raises a task.
    assert faults(second, NORMAL) == {Fault.LEVEL_ROSE}
    assert faults(second, HIGH) == {Fault.LEVEL_ROSE, Fault.QUOTA}
    assert faults(second, IDLE) == set()


# Lower levels.


def test_runs_that_sink_hold_no_more_than_the_quota_of_the_lower_level() -> None:
    """Those that the quota of NORMAL does not admit sink to the next level that admits them."""
    stage = a_stage(one_node(NORMAL), demotions=SINKS)
    names = runs(stage, 3, ABOVE)
    stage.until(100.0)
    assert sorted(levels(stage, names)) == sorted([NORMAL, BELOW, BELOW])


def test_a_run_that_sank_further_comes_back_when_the_quota_admits_it() -> None:
    stage = a_stage(one_node(NORMAL), demotions=SINKS)
    first, second = runs(stage, 2, ABOVE)
    stage.until(100.0)
    assert levels(stage, [first, second]) == [NORMAL, BELOW]
    stage.exit(first, ExitKind.OK)
    stage.rounds()
    assert levels(stage, [second]) == [NORMAL]


def test_a_run_for_which_no_lower_level_has_quota_stays() -> None:
    stage = a_stage(*(one_node(each, 0) for each in (NORMAL, BELOW, LOW, IDLE)), demotions=SINKS)
    names = runs(stage, 1, ABOVE)
    stage.until(100.0)
    assert levels(stage, names) == [ABOVE]
    stage.put(replace(one_node(LOW), version=2))
    stage.rounds()
    assert levels(stage, names) == [LOW]


def test_an_owner_who_lowers_a_run_passes_no_quota_either() -> None:
    stage = a_stage(one_node(LOW))
    names = runs(stage, 2, HIGH)
    for name in names:
        raised(stage, name, LOW)
    assert levels(stage, names) == [LOW, IDLE]


def test_two_runs_change_places() -> None:
    """What one gives back admits the other in the same round."""
    stage = a_stage(one_node(HIGH), one_node(LOW))
    (low,) = runs(stage, 1, LOW, name="low")
    (high,) = runs(stage, 1, HIGH, name="high")
    stage.rank(low, HIGH)
    stage.rank(high, NORMAL)
    stage.rounds()
    assert levels(stage, [low, high]) == [HIGH, NORMAL]


def test_a_run_at_auto_sinks_and_passes_no_quota() -> None:
    stage = a_stage(
        one_node(BELOW),
        demotions=(Demotion(NORMAL, BELOW, 60.0),),
    )
    names = runs(stage, 2, Priority.AUTO)
    assert levels(stage, names) == [NORMAL, NORMAL]
    stage.until(100.0)
    assert levels(stage, names) == [BELOW, LOW]


# Promises.


def promised(stage: Stage) -> None:
    """A LOW run makes room for `mine`, at NORMAL."""
    runs(stage, 1, LOW, name="low")
    stage.submit(a_task("mine", owner="ann", priority=NORMAL))
    stage.rounds()
    assert stage.tasks["mine"].promised


def test_a_task_that_is_lowered_gives_up_what_is_promised_to_it_to_those_before_it() -> None:
    stage = a_stage(nodes=1)
    promised(stage)
    stage.submit(a_task("bob", owner="bob", priority=BELOW, submitted=1))
    stage.rounds()
    raised(stage, "mine", IDLE)
    assert not stage.tasks["mine"].promised
    stage.exit("low0", ExitKind.PREEMPTED)
    stage.rounds()
    assert stage.tasks["bob"].state is TaskState.STARTING
    assert stage.tasks["bob"].level is BELOW


def test_a_task_that_is_raised_begins_at_its_new_level() -> None:
    stage = a_stage(nodes=1)
    promised(stage)
    raised(stage, "mine", HIGH)
    # Nodes that were asked for it are still coming to it.
    assert stage.tasks["mine"].promised
    stage.submit(a_task("bob", owner="bob", priority=ABOVE))
    stage.rounds()
    stage.exit("low0", ExitKind.PREEMPTED)
    stage.rounds()
    assert (stage.tasks["mine"].state, stage.tasks["mine"].level) == (TaskState.STARTING, HIGH)


@pytest.mark.parametrize("first", ["raise", "promise"])
def test_a_promise_is_made_within_the_quota_of_the_present_level(first: str) -> None:
    stage = a_stage(one_node(HIGH), nodes=2)
    runs(stage, 1, HIGH, name="high")
    runs(stage, 1, LOW, name="low")
    stage.submit(a_task("mine", priority=NORMAL))
    if first == "promise":
        stage.rounds()
        assert stage.tasks["mine"].promised
    raised(stage, "mine", HIGH)
    assert not stage.tasks["mine"].promised
    assert stage.tasks["mine"].reason.code is ReasonCode.WAITS_FOR_QUOTA


def test_the_same_priority_again_keeps_a_promise() -> None:
    stage = a_stage(nodes=1)
    promised(stage)
    kept = stage.tasks["mine"].promised
    stage.rank("mine", NORMAL)
    assert stage.tasks["mine"].promised is kept


def test_a_promise_may_change_to_auto() -> None:
    stage = a_stage(nodes=1)
    promised(stage)
    raised(stage, "mine", Priority.AUTO)
    stage.exit("low0", ExitKind.PREEMPTED)
    stage.rounds()
    assert stage.tasks["mine"].level is NORMAL


def test_a_run_on_its_way_out_keeps_its_level() -> None:
    stage = a_stage(one_node(HIGH), nodes=1)
    (name,) = runs(stage, 1, LOW)
    stage.want(name, Goal.PAUSE)
    stage.rounds()
    raised(stage, name, HIGH)
    assert levels(stage, [name]) == [LOW]


def test_a_run_that_is_told_to_go_does_not_change_its_level_in_the_same_round() -> None:
    """It would hold quota of the level above until it has gone, and limits would count it there,
    while what it is about to give back counts where it began."""
    stage = a_stage(one_node(HIGH), nodes=2)
    (name,) = runs(stage, 1, LOW)
    stage.rank(name, HIGH)
    stage.want(name, Goal.PAUSE)
    stage.submit(a_task("next", priority=HIGH, submitted=stage.seconds))
    stage.rounds()
    assert stage.tasks[name].state is TaskState.PREEMPTING
    assert levels(stage, [name]) == [LOW]
    assert stage.tasks["next"].state is TaskState.STARTING


# Whole nodes of several kinds.


def mixed(*limits: Limit) -> Stage:
    return Stage([a_node("big", gpus=8), a_node("small", gpus=4)], limits=limits)


def placed(stage: Stage, task_id: str) -> list[str]:
    return [each.node_id for each in stage.tasks[task_id].placements]


def test_whole_nodes_of_a_smaller_kind_are_taken_where_the_quota_admits_only_them() -> None:
    stage = mixed(a_limit(4))
    stage.submit(a_task("first"))
    stage.submit(a_task("second", submitted=1))
    stage.rounds()
    assert placed(stage, "first") == ["small"]
    # The quota is used up; the task waits for it, and is not rejected.
    assert stage.tasks["second"].reason.code is ReasonCode.WAITS_FOR_QUOTA
    stage.exit("first", ExitKind.OK)
    stage.rounds()
    assert placed(stage, "second") == ["small"]


def test_a_task_waits_for_smaller_nodes_that_others_hold() -> None:
    stage = mixed(a_limit(4, user="ann"))
    stage.submit(a_task("other", owner="bob", gpus=1))
    stage.rounds()
    assert placed(stage, "other") == ["small"]
    stage.submit(a_task("mine"))
    stage.rounds()
    assert stage.tasks["mine"].reason.code is ReasonCode.WAITS_FOR_QUOTA
    stage.exit("other", ExitKind.OK)
    stage.rounds()
    assert placed(stage, "mine") == ["small"]


def test_a_quota_below_the_smallest_kind_rejects() -> None:
    stage = mixed(a_limit(3))
    stage.submit(a_task("never"))
    stage.rounds()
    assert "never" not in stage.tasks


def test_auto_takes_the_highest_level_that_admits_the_smaller_kind() -> None:
    stage = mixed(a_limit(4))
    stage.submit(a_task("mine", priority=Priority.AUTO))
    stage.rounds()
    assert (placed(stage, "mine"), stage.tasks["mine"].level) == (["small"], NORMAL)
