"""A change of a task's level, by its owner or by running time, exceeds no quota."""

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
from tests.services.scheduler.domain.domain_harness import DomainHarness

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


def a_harness(
    *limits: Limit, nodes: int = 4, demotions: tuple[Demotion, ...] = ()
) -> DomainHarness:
    policy = GroupPolicy("default", policy="fifo", demotions=demotions)
    return DomainHarness(some_nodes(nodes), limits=limits, policies=[policy])


def runs(harness: DomainHarness, count: int, priority: Priority, *, name: str = "t") -> list[str]:
    """Submit and start ``count`` tasks of one node, one after the other."""
    names = [f"{name}{number}" for number in range(count)]
    for task_id in names:
        harness.submit(a_task(task_id, priority=priority, submitted=harness.seconds))
        harness.rounds()
        harness.start(task_id)
        harness.rounds()
    return names


def raised(harness: DomainHarness, task_id: str, priority: Priority) -> None:
    harness.rank(task_id, priority)
    harness.rounds()


def levels(harness: DomainHarness, names: list[str]) -> list[Priority]:
    return [harness.tasks[name].level for name in names]


# Raises.


def test_runs_that_are_raised_hold_no_more_than_the_quota_of_their_new_level() -> None:
    """Four tasks begin at LOW, where nothing is limited, and are raised to HIGH."""
    harness = a_harness(one_node(HIGH))
    names = runs(harness, 4, LOW)
    for name in names:
        raised(harness, name, HIGH)
    assert sorted(levels(harness, names)) == sorted([HIGH, LOW, LOW, LOW])
    assert all(harness.tasks[name].priority is HIGH for name in names)


def test_a_raise_that_a_quota_stops_takes_effect_when_the_quota_admits_it() -> None:
    harness = a_harness(one_node(HIGH))
    first, second, third = runs(harness, 3, LOW)
    for name in (first, second, third):
        raised(harness, name, HIGH)
    assert levels(harness, [first, second, third]) == [HIGH, LOW, LOW]
    harness.exit(first, ExitKind.OK)
    harness.rounds()
    assert levels(harness, [second, third]) == [HIGH, LOW]
    # A limit that is lifted admits the rest.
    harness.put(replace(one_node(HIGH, 9), version=2))
    harness.rounds()
    assert levels(harness, [second, third]) == [HIGH, HIGH]


def test_a_raise_that_waits_is_kept_by_a_new_leader() -> None:
    """The rows contain it; the harness compares every plan with a rebuilt index."""
    harness = a_harness(one_node(HIGH))
    first, second = runs(harness, 2, LOW)
    raised(harness, first, HIGH)
    raised(harness, second, HIGH)
    raised(harness, first, NORMAL)
    assert levels(harness, [first, second]) == [NORMAL, HIGH]


def test_a_raise_waits_for_quota_that_runs_in_other_groups_hold() -> None:
    harness = DomainHarness(
        [*some_nodes(1), *(replace(each, id=f"d{each.id}", group="dev") for each in some_nodes(1))],
        limits=[one_node(HIGH)],
    )
    runs(harness, 1, HIGH)
    harness.submit(replace(dev := a_task("dev", priority=LOW), spec=of_group(dev, "dev")))
    harness.rounds()
    harness.start("dev")
    raised(harness, "dev", HIGH)
    assert levels(harness, ["dev"]) == [LOW]
    harness.exit("t0", ExitKind.OK)
    harness.rounds()
    assert levels(harness, ["dev"]) == [HIGH]


def of_group(task: object, group: str) -> object:
    return task.spec.model_copy(update={"group": group})  # type: ignore[attr-defined]


def test_a_quota_over_all_levels_does_not_stop_a_raise() -> None:
    """The quota over all levels counts the run already."""
    harness = a_harness(a_limit(1, unit=Unit.NODES))
    (name,) = runs(harness, 1, LOW)
    raised(harness, name, HIGH)
    assert levels(harness, [name]) == [HIGH]


def test_a_raise_that_waits_neither_takes_nor_gives_up_nodes() -> None:
    """The run counts at its old level for everybody: a NORMAL task may take its nodes."""
    harness = a_harness(one_node(HIGH), nodes=2)
    first, second = runs(harness, 2, LOW)
    raised(harness, first, HIGH)
    raised(harness, second, HIGH)
    harness.submit(a_task("bob", owner="bob", priority=NORMAL))
    harness.rounds()
    assert harness.tasks[second].state is TaskState.PREEMPTING
    assert harness.tasks[first].state is TaskState.RUNNING


def test_a_run_that_is_raised_is_safe_from_tasks_below_its_new_level_at_once() -> None:
    harness = a_harness(nodes=1)
    (name,) = runs(harness, 1, LOW)
    harness.rank(name, HIGH)
    harness.submit(a_task("bob", owner="bob", priority=NORMAL))
    harness.rounds()
    assert harness.tasks[name].state is TaskState.RUNNING


def test_explain_reports_that_a_raise_waits_for_quota() -> None:
    harness = a_harness(one_node(HIGH))
    first, second = runs(harness, 2, LOW)
    raised(harness, first, HIGH)
    raised(harness, second, HIGH)
    text = " ".join(remedies(harness, second))
    assert "counts at level low" in text
    assert "level high as soon as the quota there admits it" in text
    assert "1 of 1 nodes are held" in text
    assert not remedies(harness, first)


def remedies(harness: DomainHarness, task_id: str) -> tuple[str, ...]:
    return of_row(harness.index, harness.tasks[task_id], harness.now).remedies


def test_the_check_refuses_a_level_beyond_its_quota_or_the_priority() -> None:
    harness = a_harness(one_node(HIGH))
    first, second = runs(harness, 2, LOW)
    raised(harness, first, HIGH)
    snapshot = Snapshot.view(harness.index)
    plan = decide(snapshot, harness.now)

    def faults(task_id: str, level: Priority) -> set[Fault]:
        why = reason(ReasonCode.LEVEL_CHANGED)
        reorder = Reorder(TaskId(task_id), why, harness.tasks[task_id].marks, level)
        return {
            each.fault for each in check(snapshot, replace(plan, decisions=(reorder,)), deep=True)
        }

    # Only its owner raises a task.
    assert faults(second, NORMAL) == {Fault.LEVEL_ROSE}
    assert faults(second, HIGH) == {Fault.LEVEL_ROSE, Fault.QUOTA}
    assert faults(second, IDLE) == set()


# Lower levels.


def test_runs_that_sink_hold_no_more_than_the_quota_of_the_lower_level() -> None:
    """Those that the quota of NORMAL does not admit sink to the next level that admits them."""
    harness = a_harness(one_node(NORMAL), demotions=SINKS)
    names = runs(harness, 3, ABOVE)
    harness.until(100.0)
    assert sorted(levels(harness, names)) == sorted([NORMAL, BELOW, BELOW])


def test_a_run_that_sank_further_comes_back_when_the_quota_admits_it() -> None:
    harness = a_harness(one_node(NORMAL), demotions=SINKS)
    first, second = runs(harness, 2, ABOVE)
    harness.until(100.0)
    assert levels(harness, [first, second]) == [NORMAL, BELOW]
    harness.exit(first, ExitKind.OK)
    harness.rounds()
    assert levels(harness, [second]) == [NORMAL]


def test_a_run_for_which_no_lower_level_has_quota_stays() -> None:
    harness = a_harness(
        *(one_node(each, 0) for each in (NORMAL, BELOW, LOW, IDLE)), demotions=SINKS
    )
    names = runs(harness, 1, ABOVE)
    harness.until(100.0)
    assert levels(harness, names) == [ABOVE]
    harness.put(replace(one_node(LOW), version=2))
    harness.rounds()
    assert levels(harness, names) == [LOW]


def test_a_run_that_its_owner_lowers_exceeds_no_quota_either() -> None:
    harness = a_harness(one_node(LOW))
    names = runs(harness, 2, HIGH)
    for name in names:
        raised(harness, name, LOW)
    assert levels(harness, names) == [LOW, IDLE]


def test_two_runs_exchange_their_levels() -> None:
    """What one gives back admits the other in the same round."""
    harness = a_harness(one_node(HIGH), one_node(LOW))
    (low,) = runs(harness, 1, LOW, name="low")
    (high,) = runs(harness, 1, HIGH, name="high")
    harness.rank(low, HIGH)
    harness.rank(high, NORMAL)
    harness.rounds()
    assert levels(harness, [low, high]) == [HIGH, NORMAL]


def test_a_run_at_auto_sinks_and_exceeds_no_quota() -> None:
    harness = a_harness(
        one_node(BELOW),
        demotions=(Demotion(NORMAL, BELOW, 60.0),),
    )
    names = runs(harness, 2, Priority.AUTO)
    assert levels(harness, names) == [NORMAL, NORMAL]
    harness.until(100.0)
    assert levels(harness, names) == [BELOW, LOW]


# Promises.


def promised(harness: DomainHarness) -> None:
    """A LOW run is preempted for `mine`, at NORMAL."""
    runs(harness, 1, LOW, name="low")
    harness.submit(a_task("mine", owner="ann", priority=NORMAL))
    harness.rounds()
    assert harness.tasks["mine"].promised


def test_a_task_that_is_lowered_gives_up_what_is_promised_to_it_to_those_before_it() -> None:
    harness = a_harness(nodes=1)
    promised(harness)
    harness.submit(a_task("bob", owner="bob", priority=BELOW, submitted=1))
    harness.rounds()
    raised(harness, "mine", IDLE)
    assert not harness.tasks["mine"].promised
    harness.exit("low0", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["bob"].state is TaskState.STARTING
    assert harness.tasks["bob"].level is BELOW


def test_a_task_that_is_raised_begins_at_its_new_level() -> None:
    harness = a_harness(nodes=1)
    promised(harness)
    raised(harness, "mine", HIGH)
    # Nodes that are being released for it still go to it.
    assert harness.tasks["mine"].promised
    harness.submit(a_task("bob", owner="bob", priority=ABOVE))
    harness.rounds()
    harness.exit("low0", ExitKind.PREEMPTED)
    harness.rounds()
    assert (harness.tasks["mine"].state, harness.tasks["mine"].level) == (TaskState.STARTING, HIGH)


@pytest.mark.parametrize("first", ["raise", "promise"])
def test_a_promise_is_made_within_the_quota_of_the_present_level(first: str) -> None:
    harness = a_harness(one_node(HIGH), nodes=2)
    runs(harness, 1, HIGH, name="high")
    runs(harness, 1, LOW, name="low")
    harness.submit(a_task("mine", priority=NORMAL))
    if first == "promise":
        harness.rounds()
        assert harness.tasks["mine"].promised
    raised(harness, "mine", HIGH)
    assert not harness.tasks["mine"].promised
    assert harness.tasks["mine"].reason.code is ReasonCode.WAITS_FOR_QUOTA


def test_the_same_priority_again_keeps_a_promise() -> None:
    harness = a_harness(nodes=1)
    promised(harness)
    kept = harness.tasks["mine"].promised
    harness.rank("mine", NORMAL)
    assert harness.tasks["mine"].promised is kept


def test_a_promise_may_change_to_auto() -> None:
    harness = a_harness(nodes=1)
    promised(harness)
    raised(harness, "mine", Priority.AUTO)
    harness.exit("low0", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["mine"].level is NORMAL


def test_a_run_on_its_way_out_keeps_its_level() -> None:
    harness = a_harness(one_node(HIGH), nodes=1)
    (name,) = runs(harness, 1, LOW)
    harness.want(name, Goal.PAUSE)
    harness.rounds()
    raised(harness, name, HIGH)
    assert levels(harness, [name]) == [LOW]


def test_a_run_that_is_preempted_does_not_change_its_level_in_the_same_round() -> None:
    """Otherwise it would hold quota of the higher level until it has left, while the quota that it
    releases counts at its old level."""
    harness = a_harness(one_node(HIGH), nodes=2)
    (name,) = runs(harness, 1, LOW)
    harness.rank(name, HIGH)
    harness.want(name, Goal.PAUSE)
    harness.submit(a_task("next", priority=HIGH, submitted=harness.seconds))
    harness.rounds()
    assert harness.tasks[name].state is TaskState.PREEMPTING
    assert levels(harness, [name]) == [LOW]
    assert harness.tasks["next"].state is TaskState.STARTING


# Whole nodes of several kinds.


def mixed(*limits: Limit) -> DomainHarness:
    return DomainHarness([a_node("big", gpus=8), a_node("small", gpus=4)], limits=limits)


def placed(harness: DomainHarness, task_id: str) -> list[str]:
    return [each.node_id for each in harness.tasks[task_id].placements]


def test_whole_nodes_of_a_smaller_kind_are_taken_where_the_quota_admits_only_them() -> None:
    harness = mixed(a_limit(4))
    harness.submit(a_task("first"))
    harness.submit(a_task("second", submitted=1))
    harness.rounds()
    assert placed(harness, "first") == ["small"]
    # The quota is used up; the task waits for it, and is not rejected.
    assert harness.tasks["second"].reason.code is ReasonCode.WAITS_FOR_QUOTA
    harness.exit("first", ExitKind.OK)
    harness.rounds()
    assert placed(harness, "second") == ["small"]


def test_a_task_waits_for_smaller_nodes_that_others_hold() -> None:
    harness = mixed(a_limit(4, user="ann"))
    harness.submit(a_task("other", owner="bob", gpus=1))
    harness.rounds()
    assert placed(harness, "other") == ["small"]
    harness.submit(a_task("mine"))
    harness.rounds()
    assert harness.tasks["mine"].reason.code is ReasonCode.WAITS_FOR_QUOTA
    harness.exit("other", ExitKind.OK)
    harness.rounds()
    assert placed(harness, "mine") == ["small"]


def test_a_quota_below_the_smallest_kind_rejects() -> None:
    harness = mixed(a_limit(3))
    harness.submit(a_task("never"))
    harness.rounds()
    assert "never" not in harness.tasks


def test_auto_takes_the_highest_level_that_admits_the_smaller_kind() -> None:
    harness = mixed(a_limit(4))
    harness.submit(a_task("mine", priority=Priority.AUTO))
    harness.rounds()
    assert (placed(harness, "mine"), harness.tasks["mine"].level) == (["small"], NORMAL)
