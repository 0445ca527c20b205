"""A user's lower runs make room in the user's quota for the user's higher tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from libs.contracts.messages import ExitKind, Priority, ReasonCode, TaskState, Unit
from services.scheduler.domain.check.isolate import decide_checked
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings, VirtualCluster
from services.scheduler.domain.model.rows import Limit
from tests.kit.builders import a_limit, a_node, a_task, some_nodes
from tests.services.scheduler.domain.domain_harness import Stage

HIGH, LOW = Priority.HIGH, Priority.LOW
ONE = a_limit(1, user="ann", unit=Unit.NODES)


def a_stage(
    *limits: Limit, nodes: int = 2, policy: str = "timeshare", protected: float = 0
) -> Stage:
    return Stage(
        some_nodes(nodes),
        settings=PolicySettings(protected_seconds=protected),
        limits=limits,
        policies=[GroupPolicy("default", policy=policy)],
    )


def arrives(
    stage: Stage, task_id: str, priority: Priority = Priority.NORMAL, **how: object
) -> None:
    task = a_task(task_id, priority=priority, submitted=stage.seconds, **how)  # type: ignore[arg-type]
    stage.submit(task)
    stage.rounds()
    if stage.tasks[task_id].state is TaskState.STARTING:
        stage.start(task_id)
        stage.rounds()


def state(stage: Stage, task_id: str) -> TaskState:
    return stage.tasks[task_id].state


def leaves(stage: Stage, task_id: str) -> None:
    stage.exit(task_id, ExitKind.PREEMPTED)
    stage.rounds()


def test_ones_own_lower_run_goes_for_ones_own_higher_task_at_quota() -> None:
    """Also where nodes are free: it is the quota that is full."""
    stage = a_stage(ONE)
    arrives(stage, "low", LOW)
    stage.until(100.0)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.PREEMPTING
    assert stage.tasks["low"].preempted_for == "high"
    # It does not start before the limit admits it.
    assert state(stage, "high") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.STARTING
    assert state(stage, "low") is TaskState.QUEUED
    stage.exit("high", ExitKind.OK)
    stage.rounds()
    assert state(stage, "low") is TaskState.STARTING


def test_every_policy_does_so() -> None:
    for policy in ("fifo", "easy", "backfill", "rotation", "las"):
        stage = a_stage(ONE, policy=policy)
        arrives(stage, "low", LOW)
        arrives(stage, "high", HIGH)
        assert state(stage, "low") is TaskState.PREEMPTING, policy
        leaves(stage, "low")
        assert state(stage, "high") is TaskState.STARTING, policy


def test_runs_of_ones_own_level_and_of_team_mates_stay() -> None:
    stage = a_stage(ONE)
    arrives(stage, "same", HIGH)
    arrives(stage, "high", HIGH)
    assert state(stage, "same") is TaskState.RUNNING
    stage = a_stage(a_limit(1, team="vision", unit=Unit.NODES))
    arrives(stage, "bobs", LOW, owner="bob")
    arrives(stage, "high", HIGH)
    assert state(stage, "bobs") is TaskState.RUNNING


def test_only_runs_that_the_limit_counts_are_asked_and_no_more_than_are_needed() -> None:
    rows = (
        a_limit(16, user="ann", group="default", priority=HIGH),
        a_limit(2, user="ann", unit=Unit.NODES),
    )
    stage = a_stage(*rows, nodes=4)
    arrives(stage, "low1", LOW)
    stage.until(50.0)
    arrives(stage, "low2", LOW)
    stage.until(100.0)
    arrives(stage, "high", HIGH)
    # The younger of the two loses less.
    assert state(stage, "low1") is TaskState.RUNNING
    assert state(stage, "low2") is TaskState.PREEMPTING
    # A limit on the higher level alone counts no lower run.
    stage = a_stage(a_limit(1, user="ann", priority=HIGH, unit=Unit.NODES))
    arrives(stage, "low", LOW)
    arrives(stage, "first", HIGH)
    arrives(stage, "second", HIGH)
    assert state(stage, "low") is TaskState.RUNNING


def test_nobody_is_asked_if_that_leads_to_no_place() -> None:
    """The quota would be free, but the nodes are another's of a higher level."""
    stage = a_stage(a_limit(2, user="ann", unit=Unit.NODES))
    arrives(stage, "low", LOW)
    arrives(stage, "top", Priority.EXTREME_HIGH, owner="bob")
    arrives(stage, "gang", HIGH, nodes=2)
    assert state(stage, "low") is TaskState.RUNNING
    assert state(stage, "gang") is TaskState.QUEUED


def test_others_go_for_nodes_and_ones_own_run_for_the_quota() -> None:
    stage = a_stage(a_limit(2, user="ann", unit=Unit.NODES), nodes=2)
    arrives(stage, "low", LOW)
    arrives(stage, "bobs", owner="bob")
    arrives(stage, "gang", HIGH, nodes=2)
    assert state(stage, "low") is TaskState.PREEMPTING
    assert state(stage, "bobs") is TaskState.PREEMPTING
    leaves(stage, "bobs")
    assert state(stage, "gang") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "gang") is TaskState.STARTING


def test_two_higher_tasks_ask_no_more_than_they_need() -> None:
    stage = a_stage(a_limit(8, user="ann"), nodes=3)
    arrives(stage, "low", LOW)
    arrives(stage, "one", HIGH, gpus=4)
    arrives(stage, "two", HIGH, gpus=4)
    assert state(stage, "two") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "one") is TaskState.STARTING
    assert state(stage, "two") is TaskState.STARTING


def test_a_protected_run_goes_when_its_minimum_is_over() -> None:
    stage = a_stage(ONE, protected=60.0)
    arrives(stage, "low", LOW)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.RUNNING
    stage.until(60.0)
    assert state(stage, "low") is TaskState.PREEMPTING


def test_a_covered_run_stays_for_a_gang_of_its_owner_that_borrows() -> None:
    """And one that is not covered goes; ``Stage`` checks every plan."""
    for nodes, goes in ((1.0, False), (0.0, True)):
        cluster = VirtualCluster("anns", nodes, users=("ann",))
        policy = GroupPolicy("default", virtual_clusters=(cluster,))
        limit = a_limit(2, user="ann", unit=Unit.NODES)
        stage = Stage(some_nodes(3), limits=[limit], policies=[policy])
        arrives(stage, "low", LOW)
        arrives(stage, "gang", HIGH, nodes=2)
        assert (state(stage, "low") is TaskState.PREEMPTING) is goes


def test_the_promise_is_kept_while_the_run_leaves_and_taken_back_when_the_limit_is_lowered() -> (
    None
):
    stage = a_stage(ONE)
    arrives(stage, "low", LOW)
    arrives(stage, "high", HIGH)
    stage.until(30.0)
    assert stage.tasks["high"].promised
    stage.put(replace(ONE, limit=0, version=2))
    stage.rounds()
    assert not stage.tasks["high"].promised
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.QUEUED


def two_groups(*limits: Limit, protected: float = 0, policies: Sequence[GroupPolicy] = ()) -> Stage:
    return Stage(
        [a_node("n0"), a_node("n1"), a_node("d0", group="dev"), a_node("d1", group="dev")],
        settings=PolicySettings(protected_seconds=protected),
        limits=limits,
        policies=policies,
    )


# Counts what ann holds in all groups together.
EVERYWHERE = a_limit(1, user="ann", group="", unit=Unit.NODES)


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_ones_own_lower_run_in_another_group_goes_where_the_limit_counts_both(
    here: str, there: str
) -> None:
    stage = two_groups(EVERYWHERE)
    arrives(stage, "low", LOW, group=there)
    arrives(stage, "bobs", LOW, group=there, owner="bob")
    stage.until(100.0)
    arrives(stage, "high", HIGH, group=here)
    assert state(stage, "low") is TaskState.PREEMPTING
    assert stage.tasks["low"].preempted_for == "high"
    assert state(stage, "bobs") is TaskState.RUNNING
    assert state(stage, "high") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.STARTING
    stage.exit("high", ExitKind.OK)
    stage.rounds()
    assert state(stage, "low") is TaskState.STARTING


def test_a_run_in_another_group_stays_where_that_leads_to_nothing() -> None:
    # A limit on its own group is not what stops the higher task.
    stage = two_groups(
        a_limit(1, user="ann", group="dev", unit=Unit.NODES),
        a_limit(1, user="ann", group="default", unit=Unit.NODES),
    )
    arrives(stage, "low", LOW, group="dev")
    arrives(stage, "first", HIGH)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.RUNNING
    # The same level.
    stage = two_groups(EVERYWHERE)
    arrives(stage, "same", HIGH, group="dev")
    arrives(stage, "high", HIGH)
    assert state(stage, "same") is TaskState.RUNNING
    # The nodes are another's of a higher level.
    stage = two_groups(EVERYWHERE)
    arrives(stage, "low", LOW, group="dev")
    arrives(stage, "top", Priority.EXTREME_HIGH, owner="bob", nodes=2)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.RUNNING


def test_runs_of_both_groups_go_if_both_are_needed() -> None:
    stage = two_groups(a_limit(2, user="ann", group="", unit=Unit.NODES))
    arrives(stage, "here", LOW)
    arrives(stage, "there", LOW, group="dev")
    arrives(stage, "gang", HIGH, nodes=2)
    assert state(stage, "here") is TaskState.PREEMPTING
    assert state(stage, "there") is TaskState.PREEMPTING
    leaves(stage, "here")
    assert state(stage, "gang") is TaskState.QUEUED
    leaves(stage, "there")
    assert state(stage, "gang") is TaskState.STARTING


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_a_protected_run_of_another_group_goes_when_its_minimum_is_over(
    here: str, there: str
) -> None:
    stage = two_groups(EVERYWHERE, protected=60.0)
    arrives(stage, "low", LOW, group=there)
    arrives(stage, "high", HIGH, group=here)
    assert state(stage, "low") is TaskState.RUNNING
    stage.until(60.0)
    assert state(stage, "low") is TaskState.PREEMPTING


def test_a_run_that_a_guarantee_of_its_group_covers_goes_for_a_higher_one_of_its_owner() -> None:
    """The guarantee keeps others from the nodes; which task uses the quota the owner says."""
    cluster = VirtualCluster("anns", 1.0, users=("ann",))
    stage = two_groups(EVERYWHERE, policies=[GroupPolicy("dev", virtual_clusters=(cluster,))])
    arrives(stage, "low", LOW, group="dev")
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.PREEMPTING
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.STARTING


def full_cluster(nodes: float = 1.0, most: float = 1.0) -> Stage:
    """A virtual cluster of ann and bob that may hold so much of four nodes."""
    lab = VirtualCluster("lab", nodes, users=("ann", "bob"), nodes_max=most)
    policy = GroupPolicy("default", virtual_clusters=(lab,))
    return Stage(some_nodes(4), policies=[policy])


@pytest.mark.parametrize("guaranteed", [1.0, 0.0])
def test_ones_own_lower_run_goes_where_the_virtual_cluster_holds_its_most(
    guaranteed: float,
) -> None:
    stage = full_cluster(guaranteed)
    arrives(stage, "low", LOW)
    stage.until(100.0)
    arrives(stage, "high", HIGH)
    assert state(stage, "low") is TaskState.PREEMPTING
    assert state(stage, "high") is TaskState.QUEUED
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.STARTING
    assert state(stage, "low") is TaskState.QUEUED
    stage.exit("high", ExitKind.OK)
    stage.rounds()
    assert state(stage, "low") is TaskState.STARTING


def test_runs_of_others_stay_where_the_virtual_cluster_holds_its_most() -> None:
    """As with a limit on a team: runs of others go for nodes alone."""
    stage = full_cluster()
    arrives(stage, "bobs", LOW, owner="bob")
    arrives(stage, "high", HIGH)
    assert state(stage, "bobs") is TaskState.RUNNING
    assert state(stage, "high") is TaskState.QUEUED
    # What ann has is not enough for the gang.
    stage = full_cluster(2.0, 2.0)
    arrives(stage, "low", LOW)
    arrives(stage, "bobs", LOW, owner="bob")
    arrives(stage, "gang", HIGH, nodes=2)
    assert state(stage, "low") is TaskState.RUNNING


def test_a_promise_past_the_most_is_taken_back_if_nothing_leaves_for_it_any_more() -> None:
    stage = full_cluster(2.0, 2.0)
    arrives(stage, "low", LOW, nodes=2)
    arrives(stage, "high", HIGH)
    assert stage.tasks["high"].promised
    lab = VirtualCluster("lab", 0.0, users=("ann", "bob"), nodes_max=0.5)
    stage.put(GroupPolicy("default", version=2, virtual_clusters=(lab,)))
    stage.rounds()
    assert not stage.tasks["high"].promised
    leaves(stage, "low")
    assert state(stage, "high") is TaskState.QUEUED


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_a_run_of_another_group_stays_if_the_decision_that_it_would_go_for_is_refused(
    here: str, there: str
) -> None:
    stage = two_groups(EVERYWHERE)
    arrives(stage, "low", LOW, group=there)
    stage.submit(a_task("high", priority=HIGH, submitted=stage.seconds, group=here))
    stage.submit(a_task("bobs", submitted=stage.seconds, group=there, owner="bob"))
    plan = stage.plan()
    assert {each.task_id for each in plan.decisions} == {"low", "high", "bobs"}

    def refuse(snapshot: Snapshot, plan: Plan) -> list[Violation]:
        wrong = [each for each in plan.decisions if each.task_id == "high"]
        return [Violation(Fault.GANG, "high", group=here)] if wrong else check(snapshot, plan)

    checked = decide_checked(Snapshot.view(stage.index), plan.decided_at, decide, refuse)
    assert [each.task_id for each in checked.plan.decisions] == ["bobs"]
    assert set(checked.refused) == {here}


def test_a_promise_that_is_given_again_under_a_lowered_limit_stands_in_the_plan() -> None:
    """The nodes are the same, but a further run of the owner goes for them in that plan."""
    limit = a_limit(2, user="ann", unit=Unit.NODES)
    stage = a_stage(limit, nodes=3)
    for owner, name in (("ann", "first"), ("bob", "bobs"), ("ann", "second")):
        arrives(stage, name, LOW, owner=owner)
    arrives(stage, "high", HIGH)
    assert state(stage, "first") is TaskState.PREEMPTING
    assert state(stage, "second") is TaskState.RUNNING
    stage.put(replace(limit, limit=1, version=2))
    stage.rounds()
    assert state(stage, "second") is TaskState.PREEMPTING
    leaves(stage, "first")
    assert state(stage, "high") is TaskState.QUEUED
    leaves(stage, "second")
    assert state(stage, "high") is TaskState.STARTING


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_a_promise_in_another_group_that_gives_its_quota_up_is_withdrawn_in_that_plan(
    here: str, there: str
) -> None:
    """Else more than the quota is promised until that group is evaluated again."""
    stage = two_groups(EVERYWHERE)
    arrives(stage, "bobs", LOW, owner="bob", group=there, nodes=2)
    arrives(stage, "waits", group=there)
    assert stage.tasks["waits"].promised
    arrives(stage, "high", HIGH, group=here)
    assert not stage.tasks["waits"].promised
    reason = stage.tasks["waits"].reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert state(stage, "high") is TaskState.RUNNING
