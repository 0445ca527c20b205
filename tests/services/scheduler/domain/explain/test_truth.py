"""The scheduler does what ``explain`` predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.messages import ExitKind, Priority, ReasonCode, TaskState
from services.scheduler.domain.decide import decide
from services.scheduler.domain.explain.explanation import Explanation, explain
from services.scheduler.domain.explain.group_simulation import Bounds
from services.scheduler.domain.explain.remedies import Change
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.group_policy import (
    GroupPolicy,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.domain.model.lifecycle import QUEUED, STARTING
from services.scheduler.domain.model.rows import Node, Task
from tests.kit.builders import a_limit, a_node, a_task, running, some_nodes
from tests.kit.clock import START
from tests.services.scheduler.domain.domain_harness import DomainHarness, at_ten_seconds
from tests.services.scheduler.domain.explain.copies import Copies, copy_of

ALL = tuple(range(8))
ROUNDS_MAX = 3_000


class Real(DomainHarness):
    """The scheduler and everybody else, as they go on when nothing new comes: runs start when they
    are placed, end at their limits, and take all the time to save that they are given."""

    ends: dict[str, float]

    def rest(self) -> None:
        for _ in range(ROUNDS_MAX):
            plan = decide(Snapshot.view(self.index), self.now)
            self.index.settle(plan)
            self.due = None if plan.due_at is None else (plan.due_at - START).total_seconds()
            if not plan.decisions and not plan.ledgers:
                return
            self.commit(plan)
            self.begin()
        raise AssertionError("no rest")

    def begin(self) -> None:
        for task in list(self.tasks.values()):
            if task.state is STARTING:
                self.start(task.id)

    def over_at(self, task: Task) -> float:
        """When a run is over."""
        if task.state is TaskState.KILLING:
            return self.seconds
        ends = float("inf")
        if task.expected_seconds is not None and task.run_started_at is not None:
            began = (task.run_started_at - START).total_seconds()
            ends = began + task.expected_seconds - task.run_seconds
        if task.ack_deadline_at is not None:
            ends = min(ends, (task.ack_deadline_at - START).total_seconds())
        return max(self.seconds, ends)

    def until_started(self, task_id: str) -> float | None:
        """Go on until a task starts: when; None: it never does."""
        self.begin()
        for _ in range(ROUNDS_MAX):
            self.rest()
            if self.tasks[task_id].state is not QUEUED:
                return self.seconds
            ends = {each.id: self.over_at(each) for each in self.tasks.values() if each.holds}
            next_seconds = min([*ends.values(), float("inf") if self.due is None else self.due])
            if next_seconds == float("inf"):
                return None
            self.seconds = max(self.seconds, next_seconds)
            for each in sorted(ends, key=lambda each: ends[each]):
                if ends[each] <= self.seconds:
                    self.exit(each, self.kind(self.tasks[each]))
        return None

    def kind(self, task: Task) -> ExitKind:
        if task.state is TaskState.KILLING:
            return ExitKind.KILLED
        asked = task.state is TaskState.PREEMPTING and task.ack_deadline_at is not None
        return ExitKind.PREEMPTED if asked and task.ack_deadline_at <= self.now else ExitKind.OK  # type: ignore[operator]


def real(policy: GroupPolicy | str, *tasks: Task, **more: Any) -> Real:
    """The tasks as they are after the decisions at ten seconds."""
    harness = at_ten_seconds(Real, policy, *tasks, **more)
    harness.rest()
    return harness


def explained(harness: DomainHarness, task_id: str, bounds: Bounds | None = None) -> Explanation:
    index = copy_of(harness.index)
    return explain(
        index, harness.tasks[task_id], harness.now, Copies(), bounds or Bounds(trials_max=0)
    )


def starts(harness: DomainHarness, task_id: str) -> float | None:
    found = explained(harness, task_id).reply.forecast
    assert found is not None
    return None if found.starts_at is None else (found.starts_at - START).total_seconds()


def runs(task_id: str, *on: str, ends: float | None, since: float = -100.0, **options: Any) -> Task:
    task = running(a_task(task_id, nodes=len(on), **options), dict.fromkeys(on, ALL), since=since)
    return replace(task, expected_seconds=None if ends is None else ends - since)


def waits(task_id: str, *, takes: float | None = None, **options: Any) -> Task:
    return replace(a_task(task_id, **options), expected_seconds=takes)


# Predictions that were wrong once.


def zoned(count: int) -> list[Node]:
    return [
        a_node(f"{zone}{number}", labels={"zone": zone}) for zone in "ab" for number in range(count)
    ]


def test_a_gang_that_must_cross_zones_waits_for_the_one_that_crosses_now() -> None:
    """One gang may cross at a time: four nodes are free at 100, but ``crosses`` runs until 1000."""
    harness = real(
        "backfill",
        runs("crosses", "a0", "b0", ends=1000),
        runs("short", "a1", "a2", ends=100),
        waits("wide", nodes=4, submitted=5),
        nodes=zoned(3),
    )
    assert starts(harness, "wide") == 1000
    assert harness.until_started("wide") == 1000


def test_a_task_whose_plan_was_not_committed_starts_with_the_next_decision() -> None:
    harness = real("fifo", nodes=1)
    harness.put(waits("next"))
    # A round is settled, and its plan is lost before it is committed.
    harness.index.settle(decide(Snapshot.view(harness.index), harness.now))
    task = harness.tasks["next"]
    reply = explain(harness.index, task, harness.now, Copies()).reply
    assert reply.remedies == ("nothing: it starts with the next decision",)
    assert reply.forecast is not None
    assert reply.forecast.starts_at == harness.now
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.QUEUED


def test_the_forecast_does_not_count_on_a_promise_that_a_raised_task_takes() -> None:
    """``low`` is promised the node when ``raised``, which waits behind it, becomes the first."""
    harness = real(
        "fifo",
        runs("idle", "n0", ends=None, priority=Priority.IDLE),
        waits("low", priority=Priority.LOW, takes=50, submitted=1),
        waits("raised", priority=Priority.LOW, takes=500, submitted=2),
        nodes=1,
    )
    assert harness.tasks["low"].promised
    assert starts(harness, "low") == 70
    harness.rank("raised", Priority.HIGH)
    assert starts(harness, "low") == 570
    assert starts(harness, "raised") == 70
    assert harness.until_started("low") == 570


def test_the_reason_names_the_flood_guard() -> None:
    policy = GroupPolicy("default", timeshare=Timeshare(flood_guard=True, adapt_times=False))
    flood = [waits(f"f{n:03d}", takes=40_000, submitted=n / 100) for n in range(400)]
    holds = [runs(f"h{n}", f"n{n}", ends=30_000 + n) for n in range(3)]
    harness = real(policy, *holds, *flood, waits("other", owner="bob", nodes=3), nodes=4)
    held_back = [
        task.id
        for task in harness.tasks.values()
        if task.reason.code is ReasonCode.WAITS_FOR_SHARE and not task.promised
    ]
    assert held_back
    reply = explained(harness, held_back[0]).reply
    assert reply.reason == harness.tasks[held_back[0]].reason


def test_the_forecast_does_not_count_on_a_run_that_a_guarantee_will_cover() -> None:
    """``second`` borrows until ``first`` ends; from then on red's guarantee covers it, so nobody
    takes its node when its protection is over."""
    red = VirtualCluster("red", 1.0, users=("red",))
    policy = GroupPolicy("default", policy="fifo", virtual_clusters=(red,), protected_seconds=300.0)
    harness = real(
        policy,
        runs("first", "n0", ends=100, owner="red", priority=Priority.LOW, since=-90),
        runs("second", "n1", ends=2000, owner="red", priority=Priority.LOW, since=-80),
        waits("one", owner="bob", takes=5000, submitted=1),
        waits("two", owner="bob", takes=100, submitted=2),
    )
    assert starts(harness, "two") == 2000
    assert harness.until_started("two") == 2000


# For random small clusters.

PRIORITIES = st.sampled_from([Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.AUTO])
POLICIES = st.sampled_from(["fifo", "backfill", "easy", "timeshare", "rotation"])


@st.composite
def worlds(draw: st.DrawFn) -> Real:
    """Tasks with limits of their own in a group of any policy, at rest."""
    name = draw(POLICIES)
    clusters = (VirtualCluster("red", 1.0, users=("red",), nodes_max=2.0),)
    policy = GroupPolicy(
        "default",
        policy=name,
        virtual_clusters=clusters if draw(st.booleans()) else (),
        timeshare=Timeshare(flood_guard=draw(st.booleans())),
    )
    nodes = zoned(2) if draw(st.booleans()) else some_nodes(3)
    limits = (a_limit(draw(st.sampled_from([8, 16])), user="ann"),) if draw(st.booleans()) else ()
    tasks = [
        waits(
            f"t{number}",
            nodes=draw(st.integers(1, 3)),
            gpus=draw(st.sampled_from([None, None, 4])),
            takes=float(draw(st.integers(1, 60)) * 100),
            priority=draw(PRIORITIES),
            owner=draw(st.sampled_from(["ann", "bob", "red"])),
            submitted=number,
        )
        for number in range(draw(st.integers(2, 9)))
    ]
    return real(
        policy, *tasks, nodes=nodes, limits=limits, protected=draw(st.sampled_from([0.0, 120.0]))
    )


@settings(max_examples=40, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_if_nothing_new_comes_the_forecast_is_right(harness: Real, random: Any) -> None:
    queued = [task.id for task in harness.tasks.values() if task.state is QUEUED]
    if not queued:
        return
    task_id = random.choice(queued)
    predicted = starts(harness, task_id)
    found = harness.until_started(task_id)
    assert predicted == (found if found is None else pytest.approx(found))


@settings(max_examples=25, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_every_remedy_lets_the_task_start(harness: Real, random: Any) -> None:
    queued = [task.id for task in harness.tasks.values() if task.state is QUEUED]
    if not queued:
        return
    task_id = random.choice(queued)
    found = explained(harness, task_id, Bounds(trials_max=30, rounds_max=0))
    for remedy in found.remedies:
        twin = Real((), settings=harness.settings, oracle=False)
        twin.index, twin.seconds = copy_of(harness.index), harness.seconds
        happens(twin, remedy.change)
        task = twin.tasks[task_id]
        assert task.holds or task.promised, remedy.text


def happens(harness: Real, change: Change) -> None:
    """Apply a remedy to the scheduler's own rows."""
    harness.put(*change.put)
    for task_id in change.ends:
        harness.exit(task_id, ExitKind.OK)
    harness.index.apply(deleted=[(Task, (task_id,)) for task_id in change.gone])
    harness.rest()
    if change.within_seconds is not None:
        until = harness.seconds + change.within_seconds
        while harness.due is not None and harness.due <= until:
            harness.seconds = max(harness.seconds, harness.due)
            harness.rest()
