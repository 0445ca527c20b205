"""A user's lower runs free the user's quota for the user's higher tasks."""

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
from tests.services.scheduler.domain.domain_harness import DomainHarness

HIGH, LOW = Priority.HIGH, Priority.LOW
ONE = a_limit(1, user="ann", unit=Unit.NODES)


def a_harness(
    *limits: Limit, nodes: int = 2, policy: str = "timeshare", protected: float = 0
) -> DomainHarness:
    return DomainHarness(
        some_nodes(nodes),
        settings=PolicySettings(protected_seconds=protected),
        limits=limits,
        policies=[GroupPolicy("default", policy=policy)],
    )


def arrives(
    harness: DomainHarness, task_id: str, priority: Priority = Priority.NORMAL, **how: object
) -> None:
    task = a_task(task_id, priority=priority, submitted=harness.seconds, **how)  # type: ignore[arg-type]
    harness.submit(task)
    harness.rounds()
    if harness.tasks[task_id].state is TaskState.STARTING:
        harness.start(task_id)
        harness.rounds()


def state(harness: DomainHarness, task_id: str) -> TaskState:
    return harness.tasks[task_id].state


def leaves(harness: DomainHarness, task_id: str) -> None:
    harness.exit(task_id, ExitKind.PREEMPTED)
    harness.rounds()


def test_an_owners_lower_run_is_preempted_for_a_higher_task_of_the_owner_at_quota() -> None:
    """This holds where nodes are free: the quota is full."""
    harness = a_harness(ONE)
    arrives(harness, "low", LOW)
    harness.until(100.0)
    arrives(harness, "high", HIGH)
    assert state(harness, "low") is TaskState.PREEMPTING
    assert harness.tasks["low"].preempted_for == "high"
    # It does not start before the limit admits it.
    assert state(harness, "high") is TaskState.QUEUED
    leaves(harness, "low")
    assert state(harness, "high") is TaskState.STARTING
    assert state(harness, "low") is TaskState.QUEUED
    harness.exit("high", ExitKind.OK)
    harness.rounds()
    assert state(harness, "low") is TaskState.STARTING


def test_every_policy_preempts_an_owners_lower_run_at_quota() -> None:
    for policy in ("fifo", "easy", "backfill", "rotation", "las"):
        harness = a_harness(ONE, policy=policy)
        arrives(harness, "low", LOW)
        arrives(harness, "high", HIGH)
        assert state(harness, "low") is TaskState.PREEMPTING, policy
        leaves(harness, "low")
        assert state(harness, "high") is TaskState.STARTING, policy


def test_runs_of_the_same_level_and_of_team_mates_are_not_preempted() -> None:
    harness = a_harness(ONE)
    arrives(harness, "same", HIGH)
    arrives(harness, "high", HIGH)
    assert state(harness, "same") is TaskState.RUNNING
    harness = a_harness(a_limit(1, team="vision", unit=Unit.NODES))
    arrives(harness, "bobs", LOW, owner="bob")
    arrives(harness, "high", HIGH)
    assert state(harness, "bobs") is TaskState.RUNNING


def test_only_runs_that_the_limit_counts_are_preempted_and_no_more_than_needed() -> None:
    rows = (
        a_limit(16, user="ann", group="default", priority=HIGH),
        a_limit(2, user="ann", unit=Unit.NODES),
    )
    harness = a_harness(*rows, nodes=4)
    arrives(harness, "low1", LOW)
    harness.until(50.0)
    arrives(harness, "low2", LOW)
    harness.until(100.0)
    arrives(harness, "high", HIGH)
    # The younger of the two loses less.
    assert state(harness, "low1") is TaskState.RUNNING
    assert state(harness, "low2") is TaskState.PREEMPTING
    # A limit on the higher level alone counts no lower run.
    harness = a_harness(a_limit(1, user="ann", priority=HIGH, unit=Unit.NODES))
    arrives(harness, "low", LOW)
    arrives(harness, "first", HIGH)
    arrives(harness, "second", HIGH)
    assert state(harness, "low") is TaskState.RUNNING


def test_no_run_is_preempted_if_the_task_would_still_find_no_place() -> None:
    """The quota would be free, but the nodes are another's of a higher level."""
    harness = a_harness(a_limit(2, user="ann", unit=Unit.NODES))
    arrives(harness, "low", LOW)
    arrives(harness, "top", Priority.EXTREME_HIGH, owner="bob")
    arrives(harness, "gang", HIGH, nodes=2)
    assert state(harness, "low") is TaskState.RUNNING
    assert state(harness, "gang") is TaskState.QUEUED


def test_runs_of_others_are_preempted_for_nodes_and_the_owners_run_for_the_quota() -> None:
    harness = a_harness(a_limit(2, user="ann", unit=Unit.NODES), nodes=2)
    arrives(harness, "low", LOW)
    arrives(harness, "bobs", owner="bob")
    arrives(harness, "gang", HIGH, nodes=2)
    assert state(harness, "low") is TaskState.PREEMPTING
    assert state(harness, "bobs") is TaskState.PREEMPTING
    leaves(harness, "bobs")
    assert state(harness, "gang") is TaskState.QUEUED
    leaves(harness, "low")
    assert state(harness, "gang") is TaskState.STARTING


def test_two_higher_tasks_preempt_no_more_than_they_need() -> None:
    harness = a_harness(a_limit(8, user="ann"), nodes=3)
    arrives(harness, "low", LOW)
    arrives(harness, "one", HIGH, gpus=4)
    arrives(harness, "two", HIGH, gpus=4)
    assert state(harness, "two") is TaskState.QUEUED
    leaves(harness, "low")
    assert state(harness, "one") is TaskState.STARTING
    assert state(harness, "two") is TaskState.STARTING


def test_a_protected_run_is_preempted_after_its_protected_minimum() -> None:
    harness = a_harness(ONE, protected=60.0)
    arrives(harness, "low", LOW)
    arrives(harness, "high", HIGH)
    assert state(harness, "low") is TaskState.RUNNING
    harness.until(60.0)
    assert state(harness, "low") is TaskState.PREEMPTING


def test_a_covered_run_is_not_preempted_for_a_borrowing_gang_of_its_owner() -> None:
    """A run that is not covered is preempted; ``DomainHarness`` checks every plan."""
    for nodes, goes in ((1.0, False), (0.0, True)):
        cluster = VirtualCluster("anns", nodes, users=("ann",))
        policy = GroupPolicy("default", virtual_clusters=(cluster,))
        limit = a_limit(2, user="ann", unit=Unit.NODES)
        harness = DomainHarness(some_nodes(3), limits=[limit], policies=[policy])
        arrives(harness, "low", LOW)
        arrives(harness, "gang", HIGH, nodes=2)
        assert (state(harness, "low") is TaskState.PREEMPTING) is goes


def test_the_promise_is_kept_while_the_run_leaves_and_taken_back_when_the_limit_is_lowered() -> (
    None
):
    harness = a_harness(ONE)
    arrives(harness, "low", LOW)
    arrives(harness, "high", HIGH)
    harness.until(30.0)
    assert harness.tasks["high"].promised
    harness.put(replace(ONE, limit=0, version=2))
    harness.rounds()
    assert not harness.tasks["high"].promised
    leaves(harness, "low")
    assert state(harness, "high") is TaskState.QUEUED


def two_groups(
    *limits: Limit, protected: float = 0, policies: Sequence[GroupPolicy] = ()
) -> DomainHarness:
    return DomainHarness(
        [a_node("n0"), a_node("n1"), a_node("d0", group="dev"), a_node("d1", group="dev")],
        settings=PolicySettings(protected_seconds=protected),
        limits=limits,
        policies=policies,
    )


# Counts what ann holds in all groups together.
EVERYWHERE = a_limit(1, user="ann", group="", unit=Unit.NODES)


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_an_owners_lower_run_in_another_group_is_preempted_if_the_limit_counts_both(
    here: str, there: str
) -> None:
    harness = two_groups(EVERYWHERE)
    arrives(harness, "low", LOW, group=there)
    arrives(harness, "bobs", LOW, group=there, owner="bob")
    harness.until(100.0)
    arrives(harness, "high", HIGH, group=here)
    assert state(harness, "low") is TaskState.PREEMPTING
    assert harness.tasks["low"].preempted_for == "high"
    assert state(harness, "bobs") is TaskState.RUNNING
    assert state(harness, "high") is TaskState.QUEUED
    leaves(harness, "low")
    assert state(harness, "high") is TaskState.STARTING
    harness.exit("high", ExitKind.OK)
    harness.rounds()
    assert state(harness, "low") is TaskState.STARTING


def test_a_run_in_another_group_is_not_preempted_if_that_does_not_help() -> None:
    # A limit on its own group is not what stops the higher task.
    harness = two_groups(
        a_limit(1, user="ann", group="dev", unit=Unit.NODES),
        a_limit(1, user="ann", group="default", unit=Unit.NODES),
    )
    arrives(harness, "low", LOW, group="dev")
    arrives(harness, "first", HIGH)
    arrives(harness, "high", HIGH)
    assert state(harness, "low") is TaskState.RUNNING
    # The same level.
    harness = two_groups(EVERYWHERE)
    arrives(harness, "same", HIGH, group="dev")
    arrives(harness, "high", HIGH)
    assert state(harness, "same") is TaskState.RUNNING
    # The nodes are another's of a higher level.
    harness = two_groups(EVERYWHERE)
    arrives(harness, "low", LOW, group="dev")
    arrives(harness, "top", Priority.EXTREME_HIGH, owner="bob", nodes=2)
    arrives(harness, "high", HIGH)
    assert state(harness, "low") is TaskState.RUNNING


def test_runs_of_both_groups_are_preempted_if_both_are_needed() -> None:
    harness = two_groups(a_limit(2, user="ann", group="", unit=Unit.NODES))
    arrives(harness, "here", LOW)
    arrives(harness, "there", LOW, group="dev")
    arrives(harness, "gang", HIGH, nodes=2)
    assert state(harness, "here") is TaskState.PREEMPTING
    assert state(harness, "there") is TaskState.PREEMPTING
    leaves(harness, "here")
    assert state(harness, "gang") is TaskState.QUEUED
    leaves(harness, "there")
    assert state(harness, "gang") is TaskState.STARTING


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_a_protected_run_of_another_group_is_preempted_after_its_protected_minimum(
    here: str, there: str
) -> None:
    harness = two_groups(EVERYWHERE, protected=60.0)
    arrives(harness, "low", LOW, group=there)
    arrives(harness, "high", HIGH, group=here)
    assert state(harness, "low") is TaskState.RUNNING
    harness.until(60.0)
    assert state(harness, "low") is TaskState.PREEMPTING


def test_a_run_that_a_guarantee_covers_is_preempted_for_a_higher_task_of_its_owner() -> None:
    """The guarantee keeps others from the nodes; the owner decides which task uses the quota."""
    cluster = VirtualCluster("anns", 1.0, users=("ann",))
    harness = two_groups(EVERYWHERE, policies=[GroupPolicy("dev", virtual_clusters=(cluster,))])
    arrives(harness, "low", LOW, group="dev")
    arrives(harness, "high", HIGH)
    assert state(harness, "low") is TaskState.PREEMPTING
    leaves(harness, "low")
    assert state(harness, "high") is TaskState.STARTING


def full_cluster(nodes: float = 1.0, most: float = 1.0) -> DomainHarness:
    """A virtual cluster of ann and bob that may hold so much of four nodes."""
    lab = VirtualCluster("lab", nodes, users=("ann", "bob"), nodes_max=most)
    policy = GroupPolicy("default", virtual_clusters=(lab,))
    return DomainHarness(some_nodes(4), policies=[policy])


@pytest.mark.parametrize("guaranteed", [1.0, 0.0])
def test_an_owners_lower_run_is_preempted_if_the_virtual_cluster_is_at_its_maximum(
    guaranteed: float,
) -> None:
    harness = full_cluster(guaranteed)
    arrives(harness, "low", LOW)
    harness.until(100.0)
    arrives(harness, "high", HIGH)
    assert state(harness, "low") is TaskState.PREEMPTING
    assert state(harness, "high") is TaskState.QUEUED
    leaves(harness, "low")
    assert state(harness, "high") is TaskState.STARTING
    assert state(harness, "low") is TaskState.QUEUED
    harness.exit("high", ExitKind.OK)
    harness.rounds()
    assert state(harness, "low") is TaskState.STARTING


def test_runs_of_others_are_not_preempted_if_the_virtual_cluster_is_at_its_maximum() -> None:
    """The same holds for a limit on a team: runs of others are preempted only for nodes."""
    harness = full_cluster()
    arrives(harness, "bobs", LOW, owner="bob")
    arrives(harness, "high", HIGH)
    assert state(harness, "bobs") is TaskState.RUNNING
    assert state(harness, "high") is TaskState.QUEUED
    # What ann has is not enough for the gang.
    harness = full_cluster(2.0, 2.0)
    arrives(harness, "low", LOW)
    arrives(harness, "bobs", LOW, owner="bob")
    arrives(harness, "gang", HIGH, nodes=2)
    assert state(harness, "low") is TaskState.RUNNING


def test_a_promise_beyond_the_maximum_is_withdrawn_if_no_run_leaves_for_it_any_more() -> None:
    harness = full_cluster(2.0, 2.0)
    arrives(harness, "low", LOW, nodes=2)
    arrives(harness, "high", HIGH)
    assert harness.tasks["high"].promised
    lab = VirtualCluster("lab", 0.0, users=("ann", "bob"), nodes_max=0.5)
    harness.put(GroupPolicy("default", version=2, virtual_clusters=(lab,)))
    harness.rounds()
    assert not harness.tasks["high"].promised
    leaves(harness, "low")
    assert state(harness, "high") is TaskState.QUEUED


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_a_run_of_another_group_is_not_preempted_if_the_decision_for_its_beneficiary_is_refused(
    here: str, there: str
) -> None:
    harness = two_groups(EVERYWHERE)
    arrives(harness, "low", LOW, group=there)
    harness.submit(a_task("high", priority=HIGH, submitted=harness.seconds, group=here))
    harness.submit(a_task("bobs", submitted=harness.seconds, group=there, owner="bob"))
    plan = harness.plan()
    assert {each.task_id for each in plan.decisions} == {"low", "high", "bobs"}

    def refuse(snapshot: Snapshot, plan: Plan) -> list[Violation]:
        wrong = [each for each in plan.decisions if each.task_id == "high"]
        return [Violation(Fault.GANG, "high", group=here)] if wrong else check(snapshot, plan)

    checked = decide_checked(Snapshot.view(harness.index), plan.decided_at, decide, refuse)
    assert [each.task_id for each in checked.plan.decisions] == ["bobs"]
    assert set(checked.refused) == {here}


def test_a_promise_that_is_given_again_under_a_lowered_limit_stands_in_the_plan() -> None:
    """The nodes are the same, but a further run of the owner goes for them in that plan."""
    limit = a_limit(2, user="ann", unit=Unit.NODES)
    harness = a_harness(limit, nodes=3)
    for owner, name in (("ann", "first"), ("bob", "bobs"), ("ann", "second")):
        arrives(harness, name, LOW, owner=owner)
    arrives(harness, "high", HIGH)
    assert state(harness, "first") is TaskState.PREEMPTING
    assert state(harness, "second") is TaskState.RUNNING
    harness.put(replace(limit, limit=1, version=2))
    harness.rounds()
    assert state(harness, "second") is TaskState.PREEMPTING
    leaves(harness, "first")
    assert state(harness, "high") is TaskState.QUEUED
    leaves(harness, "second")
    assert state(harness, "high") is TaskState.STARTING


@pytest.mark.parametrize(("here", "there"), [("default", "dev"), ("dev", "default")])
def test_a_promise_in_another_group_that_gives_its_quota_up_is_withdrawn_in_that_plan(
    here: str, there: str
) -> None:
    """Otherwise more than the quota stays promised until that group is evaluated again."""
    harness = two_groups(EVERYWHERE)
    arrives(harness, "bobs", LOW, owner="bob", group=there, nodes=2)
    arrives(harness, "waits", group=there)
    assert harness.tasks["waits"].promised
    arrives(harness, "high", HIGH, group=here)
    assert not harness.tasks["waits"].promised
    reason = harness.tasks["waits"].reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert state(harness, "high") is TaskState.RUNNING
