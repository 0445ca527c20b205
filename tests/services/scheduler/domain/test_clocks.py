"""Clocks that are wrong: set back, years ahead or behind. Nothing breaks, and nobody is first or
last for ever because of one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.contracts.messages import ExitKind, TaskState
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.disciplines import DISCIPLINES
from services.scheduler.domain.explain.explanation import explain
from services.scheduler.domain.explain.group_simulation import Bounds
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_snapshot, a_task, some_nodes, submitted_event
from tests.kit.clock import START, at
from tests.kit.strategies import NOW, snapshots
from tests.services.scheduler.domain.domain_harness import DomainHarness, committed
from tests.services.scheduler.domain.explain.copies import Copies, copy_of

EXAMPLES = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
YEAR = 365.25 * 86_400.0
CENTURY = 100 * YEAR
# What a clock may show: long ago, a little off, years from now.
WRONG = st.sampled_from([-CENTURY, -30 * YEAR, -86_400.0, -1.0, 61.0, 3600.0, 30 * YEAR, CENTURY])


def moved_in_time(task: Task, seconds: float) -> Task:
    return replace(task, submitted_at=task.submitted_at + timedelta(seconds=seconds))


@EXAMPLES
@given(snapshots(), st.lists(WRONG, min_size=9, max_size=9))
def test_any_submission_gives_finite_keys_and_a_sound_plan(
    drawn: Snapshot, wrong: list[float]
) -> None:
    """Rows as they may come from another clock, not only as the door lets them in."""
    tasks = [
        moved_in_time(task, seconds)
        for task, seconds in zip(drawn.tasks.values(), wrong, strict=False)
    ]
    snapshot = a_snapshot(
        tasks,
        drawn.nodes.values(),
        limits=drawn.limits.values(),
        policies=drawn.index.policies.values(),
        settings=drawn.settings,
    )
    plan = decide(snapshot, NOW)
    assert check(snapshot, plan, deep=True) == []
    order_keys = [
        each.order_key for each in plan.decisions if getattr(each, "order_key", None) is not None
    ]
    for each in order_keys:
        assert all(map(math.isfinite, (each.key, each.scaled, each.tag, each.user_finish)))
    after = committed(snapshot, plan)
    for pool in after.pools.values():
        for _, (key, task_id) in pool.queues:
            assert math.isfinite(key)
            assert explain(
                copy_of(after.index), after.tasks[task_id], NOW, Copies(), Bounds(trials_max=0)
            ).reply.reason.code
    assert decide(after, NOW).decisions == ()


@EXAMPLES
@given(snapshots(), st.sampled_from([-CENTURY, -7200.0, -1.0, 0.5]), st.integers(1, 4))
def test_rounds_go_on_when_the_clock_jumps(snapshot: Snapshot, jump: float, rounds: int) -> None:
    """Each plan is sound, whatever the clock shows from round to round."""
    after, now = snapshot, NOW
    for number in range(rounds):
        plan = decide(after, now)
        assert check(after, plan, deep=True) == []
        if plan.due_at is not None:
            assert plan.due_at > now
        after = committed(after, plan)
        now = NOW + timedelta(seconds=jump if number % 2 == 0 else 30.0 * number)


@pytest.mark.parametrize("name", sorted(DISCIPLINES))
def test_a_deadline_does_not_pass_because_the_clock_was_set_back(name: str) -> None:
    """An hour back: what starts then has all of its time, for the old hour counts no more."""
    index = Index(PolicySettings())
    index.apply(put=[GroupPolicy("default", policy=name), *some_nodes(1)])

    def round_at(seconds: float) -> list[object]:
        snapshot = Snapshot.view(index)
        plan = decide(snapshot, at(seconds))
        assert check(snapshot, plan, deep=True) == []
        index.settle(plan)
        rows = {each.task_id: facts_after(index, each, at(seconds)) for each in plan.decisions}
        index.apply(put=[*plan.ledgers, *rows.values()])
        return list(plan.decisions)

    round_at(7200)
    index.apply(put=[a_task("late", submitted=3600)])
    assert [type(each) for each in round_at(3600)] == [Assign]
    # A limit of 600 s ends at 4200, long before the time that was settled first.
    task = index.tasks["late"]
    spec = task.spec.model_copy(update={"max_run_seconds": 600.0})
    index.settle(decide(Snapshot.view(index), at(7200)))
    index.apply(put=[replace(observations.started(task, at(3600)), spec=spec)])
    assert not [each for each in round_at(3700) if isinstance(each, Kill | Preempt)]
    ended = [each for each in round_at(4201) if isinstance(each, Kill | Preempt)]
    assert [each.task_id for each in ended] == ["late"]


def facts_after(index: Index, decision: object, now: datetime) -> Task:
    from services.scheduler.domain.model.changes import task_after

    return task_after(index.tasks[decision.task_id], decision, now)  # type: ignore[attr-defined,arg-type]


@pytest.mark.parametrize("seconds", [-CENTURY, CENTURY])
def test_submission_times_far_from_the_clock_are_corrected(seconds: float) -> None:
    event = submitted_event(moved_in_time(a_task("odd"), seconds))
    task = observations.on_submitted(event, None, at(100)).task
    assert at(100) - observations.SUBMITTED_AGO_MAX <= task.submitted_at <= at(100)


@pytest.mark.parametrize("name", sorted(DISCIPLINES))
def test_a_task_of_a_century_ago_breaks_no_order(name: str) -> None:
    """The task may go first; the others keep the order that they would have without it."""
    orders = []
    for age in (None, CENTURY):
        harness = DomainHarness(some_nodes(1), policies=[GroupPolicy("default", policy=name)])
        if age is not None:
            harness.submit(moved_in_time(a_task("old", owner="old"), -age))
        for place in range(4):
            harness.submit(a_task(f"t{place}", owner=f"u{place}", submitted=float(place)))
        order = []
        for _ in range(5):
            harness.rounds()
            for task_id in sorted(harness.index.held):
                harness.start(task_id)
                order.append(task_id)
            harness.until(harness.seconds + 5)
            for task_id in sorted(harness.index.held):
                harness.exit(task_id, ExitKind.OK)
            harness.seconds += 1
        orders.append([task_id for task_id in order if task_id != "old"])
        scale = harness.index.pools["default"].ledger.scale
        assert scale == pytest.approx(1.0, abs=0.5), "one old submission is no load"
    assert orders[0] == orders[1]
    assert len(orders[0]) == 4


def test_slice_rounds_go_on_after_the_clock_was_set_back() -> None:
    """The last pass lies an hour ahead; nobody waits for that hour."""
    harness = DomainHarness(
        [a_node("n0")], policies=[GroupPolicy("default", policy="las")], oracle=False
    )
    harness.seconds = 7200.0
    harness.submit(a_task("first", submitted=7200))
    harness.rounds()
    harness.start("first")
    harness.submit(a_task("other", owner="bob", submitted=7200))
    harness.rounds()
    harness.seconds = 3600.0
    # It comes before all others: its clock is right.
    early = observations.on_submitted(
        submitted_event(a_task("early", submitted=3000)), None, harness.now
    )
    harness.put(early.task)
    harness.rounds()
    assert harness.tasks["first"].state is TaskState.PREEMPTING
    assert harness.tasks["early"].promised
    assert harness.tasks["early"].submitted_at > START


def test_a_task_submitted_before_any_node_is_known_is_not_delayed_for_days() -> None:
    """Until nodes are known each task counts as large as the cluster, and takes an hour."""
    tasks = [a_task(f"t{number}", submitted=number) for number in range(3)]
    plan = decide(a_snapshot(tasks, []), at(3))
    tags = [
        each.order_key.tag for each in plan.decisions if isinstance(each, Hold) and each.order_key
    ]
    assert tags == [0.0, 3600.0, 7200.0]
