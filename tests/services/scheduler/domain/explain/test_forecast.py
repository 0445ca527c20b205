from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.messages import (
    ExitKind,
    ExplainReply,
    Forecast,
    PreemptMode,
    Priority,
    TaskState,
)
from services.scheduler.domain.explain.explanation import explain
from services.scheduler.domain.explain.forecast import HORIZON_SECONDS, NO_TIME
from services.scheduler.domain.explain.group_simulation import Bounds
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.group_policy import (
    GroupPolicy,
    Rotation,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_limit, a_spec, a_task, running
from tests.kit.clock import START, at
from tests.kit.strategies import NOW, snapshots
from tests.services.scheduler.domain.domain_harness import DomainHarness, at_ten_seconds
from tests.services.scheduler.domain.explain.copies import Copies, copy_of

ALL = tuple(range(8))


def runs(
    task_id: str, node: str, *, ends: float | None, since: float = -100.0, **options: object
) -> Task:
    """A run on a whole node that its owner's limit ends at a time of the test's clock."""
    task = running(a_task(task_id, **options), {node: ALL}, since=since)  # type: ignore[arg-type]
    return replace(task, expected_seconds=None if ends is None else ends - since)


def waits(task_id: str, *, takes: float | None = None, **options: Any) -> Task:
    """A task that waits, and how long its owner lets it run."""
    return replace(a_task(task_id, **options), expected_seconds=takes)


def decided(policy: GroupPolicy | str, *tasks: Task, **more: Any) -> DomainHarness:
    """The tasks as they are after the decisions at ten seconds."""
    harness = at_ten_seconds(DomainHarness, policy, *tasks, **more)
    harness.rounds()
    return harness


def explained(harness: DomainHarness, task_id: str) -> ExplainReply:
    return explain(copy_of(harness.index), harness.tasks[task_id], harness.now, Copies()).reply


def forecast(harness: DomainHarness, task_id: str) -> Forecast:
    found = explained(harness, task_id).forecast
    assert found is not None
    return found


def seconds(found: Forecast) -> float:
    assert found.starts_at is not None, found.unknown
    return (found.starts_at - START).total_seconds()


def test_first_come_first_served_by_hand() -> None:
    """Two nodes that are free at 400 and 1000 s; both for the gang, then one for the next task."""
    harness = decided(
        "fifo",
        runs("a", "n0", ends=400),
        runs("b", "n1", ends=1000),
        waits("gang", nodes=2, takes=500, submitted=1),
        waits("next", takes=60, submitted=2),
        waits("last", takes=60, submitted=3, nodes=2),
    )
    assert seconds(forecast(harness, "gang")) == 1000
    assert seconds(forecast(harness, "next")) == 1500
    assert seconds(forecast(harness, "last")) == 1560
    assert forecast(harness, "last").assumptions == (
        "nothing new is submitted, nothing fails, and nodes and policies stay as they are",
        "runs end at their owners' time limits",
        "runs that are asked to go take as long to save as they may",
    )


def test_backfill_lets_later_tasks_that_fit_pass() -> None:
    harness = decided(
        "backfill",
        runs("a", "n0", ends=400),
        runs("b", "n1", ends=1000),
        waits("gang", nodes=2, takes=500, submitted=1),
        waits("next", takes=700, submitted=2),
    )
    # The small one takes n0 at 400 and keeps it until 1100, so the gang waits beyond 1000.
    assert seconds(forecast(harness, "next")) == 400
    assert seconds(forecast(harness, "gang")) == 1100


def test_easy_lets_tasks_pass_that_do_not_delay_the_first() -> None:
    """The gang is reserved at 1000; 550 seconds fit before it, 650 do not."""
    harness = decided(
        "easy",
        runs("a", "n0", ends=400),
        runs("b", "n1", ends=1000),
        waits("gang", nodes=2, takes=500, submitted=1),
        waits("long", takes=650, submitted=2),
        waits("short", takes=550, submitted=3),
    )
    assert seconds(forecast(harness, "gang")) == 1000
    assert seconds(forecast(harness, "short")) == 400
    assert seconds(forecast(harness, "long")) == 1500


def test_rotation_counts_what_owners_use_on_the_way() -> None:
    """One node, slices of an hour: ann has it, then bob, then cat, then ann's second task."""
    policy = GroupPolicy(
        "default",
        policy="rotation",
        rotation=Rotation(first_slice_seconds=3600, slice_seconds=3600, half_life_seconds=86_400),
    )
    harness = decided(policy, nodes=1)
    for number, owner in enumerate(["ann", "bob", "cat"]):
        harness.submit(a_task(f"{owner}1", owner=owner, submitted=number))
    harness.rounds()
    harness.start("ann1")
    harness.submit(a_task("ann2", owner="ann", submitted=3))
    harness.rounds()
    assert seconds(forecast(harness, "bob1")) == pytest.approx(10 + 3600 + 60, abs=60)
    assert seconds(forecast(harness, "cat1")) == pytest.approx(10 + 2 * 3600 + 60, abs=120)
    # ann's first one is served before ann's second, for as long as it runs.
    assert forecast(harness, "ann2").starts_at is None


def test_there_is_no_forecast_if_run_times_are_unknown() -> None:
    harness = decided(
        "fifo", runs("a", "n0", ends=None), runs("b", "n1", ends=50), waits("w", nodes=2)
    )
    found = forecast(harness, "w")
    assert found.starts_at is None
    assert found.unknown == ("nobody knows how long these runs take, which hold nodes: a")


def test_the_predictor_is_used_for_runs_without_a_limit() -> None:
    """After five ends of 600 s, a task of the same owner is taken to need about as long."""
    harness = decided("fifo", waits("w"), nodes=1)
    harness.until(20)
    for number in range(6):
        name = f"done{number}"
        harness.submit(a_task(name, submitted=number, priority=Priority.HIGH))
        harness.rounds()
        if harness.tasks["w"].state is not TaskState.QUEUED:
            harness.exit("w", ExitKind.PREEMPTED)
            harness.rounds()
        harness.start(name)
        harness.until(harness.seconds + 600)
        harness.exit(name, ExitKind.OK)
    harness.submit(a_task("now", submitted=1, priority=Priority.HIGH))
    harness.rounds()
    harness.exit("w", ExitKind.PREEMPTED)
    harness.rounds()
    harness.start("now")
    harness.rounds()
    found = forecast(harness, "w")
    assert 300 < seconds(found) - harness.seconds < 900
    # The learned durations give the bounds: the six took 600 s each.
    assert found.earliest_at is not None
    assert found.latest_at is not None
    assert harness.now < found.earliest_at < found.starts_at < found.latest_at  # type: ignore[operator]
    assert in_range(found, harness.now + timedelta(seconds=600))
    assert (
        "runs end at their owners' time limits; where there is none, after as long as half of the"
        " tasks like them took (6 ends known in group default)"
    ) in found.assumptions


def test_a_limit_is_waited_for() -> None:
    held = runs("held", "n0", ends=300)
    harness = decided("fifo", held, waits("q"), limits=(a_limit(8, user="ann"),))
    assert seconds(forecast(harness, "q")) == 300


def test_there_is_no_forecast_if_a_limit_never_admits_the_task() -> None:
    harness = decided("fifo", waits("q", nodes=2), limits=(a_limit(8, user="ann"),))
    assert forecast(harness, "q").unknown == "its quota never allows it"


def test_protected_lower_runs_are_waited_for_and_get_their_time_to_save() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=0)
    harness = decided("fifo", low, waits("hi"), nodes=1, protected=200)
    assert seconds(forecast(harness, "hi")) == 200 + 60


def test_promised_nodes_are_free_when_the_last_run_has_left() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=-5000)
    harness = decided("fifo", low, waits("hi"), nodes=1)
    assert harness.tasks["hi"].promised
    assert seconds(forecast(harness, "hi")) == 10 + 60


def test_a_retry_is_waited_for() -> None:
    task = replace(a_task("r", spec=a_spec(retries=2)), not_before_at=at(40), retries_used=1)
    assert seconds(forecast(decided("fifo", task), "r")) == 40


def test_there_is_no_forecast_if_no_known_nodes_fit() -> None:
    harness = decided("fifo", waits("big", nodes=3))
    assert forecast(harness, "big").unknown == "nobody knows when nodes come back or are added"


def test_a_task_starts_when_a_time_slice_ends() -> None:
    """Alone since long, a run is set back at the end of its slice, and the other has its turn."""
    policy = GroupPolicy("default", timeshare=Timeshare(slice_seconds_min=600, adapt_times=False))
    harness = decided(policy, nodes=1)
    harness.submit(a_task("long"))
    harness.rounds()
    harness.start("long")
    harness.until(300)
    harness.submit(a_task("new", owner="bob", submitted=299))
    harness.rounds()
    found = forecast(harness, "new")
    rekey_at = harness.tasks["long"].marks.rekey_at
    assert rekey_at is not None
    assert found.starts_at is not None
    assert found.starts_at >= rekey_at
    # The scheduler does what was predicted, within one slice.
    for _ in range(200):
        if harness.tasks["new"].promised:
            break
        assert harness.due is not None
        harness.until(harness.due)
    assert harness.seconds + 60 == seconds(found)


def test_a_slice_round_waits_until_the_budget_is_enough() -> None:
    policy = GroupPolicy("default", timeshare=Timeshare(budget_share=0.1))
    old = replace(
        running(a_task("old", mode=PreemptMode.KILL), {"n0": ALL}, since=-90_000),
        submitted_at=at(-90_000),
    )
    harness = decided(policy, old, nodes=1)
    ledger = replace(harness.index.ledgers["default"], tokens=40.0, tokens_at=at(10))
    harness.put(ledger)
    harness.put(a_task("new", submitted=10, owner="bob"))
    harness.rounds()
    # Full are 4 restarts of 60 s on one node, of which a small task may use all but one: the cost
    # is more, so it is paid from a full account. 240 - 40 at a tenth a second.
    # A run of mode kill has nothing to save: it goes at once.
    assert seconds(forecast(harness, "new")) == pytest.approx(10 + 2000, abs=1)


def test_the_longest_unserved_is_granted_the_first_place() -> None:
    """Behind a stream that comes before it for ever, it is next when it waited for long."""
    policy = GroupPolicy(
        "default",
        timeshare=Timeshare(grant_after_seconds=5000, grant_share=1.0, adapt_times=False),
    )
    old = replace(waits("old", nodes=1, owner="bob", submitted=9), unserved_since=at(9))
    first = replace(
        running(a_task("first"), {"n0": ALL}, since=0), submitted_at=START - timedelta(days=30)
    )
    harness = decided(policy, first, old, nodes=1)
    found = forecast(harness, "old")
    assert seconds(found) == pytest.approx(9 + 5000 + 60, abs=1)


def test_a_guaranteed_run_of_a_lower_level_stays() -> None:
    clusters = (VirtualCluster("red", 1.0, users=("red",)),)
    policy = GroupPolicy("default", policy="fifo", virtual_clusters=clusters)
    covered = runs("covered", "n0", ends=700, owner="red", priority=Priority.LOW)
    harness = decided(policy, covered, waits("hi", owner="bob", priority=Priority.HIGH), nodes=1)
    assert seconds(forecast(harness, "hi")) == 700


def test_there_is_no_forecast_beyond_the_horizon() -> None:
    harness = decided("fifo", runs("a", "n0", ends=HORIZON_SECONDS * 2), waits("w"), nodes=1)
    assert forecast(harness, "w").unknown == "not within 30 days"


def crowd() -> DomainHarness:
    """Forty runs that end one after the other, and sixty tasks before the gang of the forecast."""
    held = [runs(f"r{n}", f"n{n}", ends=100 + n) for n in range(40)]
    ahead = [waits(f"a{n:03d}", takes=50.0, nodes=1 + n % 7, submitted=1 + n) for n in range(60)]
    return decided("backfill", *held, *ahead, waits("me", nodes=40, submitted=99), nodes=40)


def test_the_work_for_one_query_is_bounded() -> None:
    harness = crowd()
    bounds = Bounds(trials_max=0, rounds_max=12)
    found = explain(
        copy_of(harness.index), harness.tasks["me"], harness.now, Copies(), bounds
    ).reply
    assert found.remedies == ()
    assert found.position == 61
    assert found.forecast is not None
    assert found.forecast.unknown.startswith("too much happens here to look further ahead: not")


def test_without_time_the_rest_of_the_answer_is_given() -> None:
    harness = crowd()
    bounds = Bounds(used=lambda: 0.9)
    found = explain(
        copy_of(harness.index), harness.tasks["me"], harness.now, Copies(), bounds
    ).reply
    assert found.position == 61
    assert found.remedies == ()
    assert found.forecast == Forecast(unknown=NO_TIME)


# Exact foresight: where limits are what tasks take and nothing new comes, the forecast is exact.
DISCIPLINES = st.sampled_from(["fifo", "backfill", "easy"])
SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), min_size=2, max_size=9)


@settings(max_examples=60, deadline=None)
@given(DISCIPLINES, SIZES)
def test_the_task_starts_when_the_forecast_predicted(
    policy: str, sizes: list[tuple[int, int]]
) -> None:
    tasks = [
        waits(f"t{number}", nodes=nodes, takes=10.0 * length, submitted=number)
        for number, (nodes, length) in enumerate(sizes)
    ]
    harness = decided(policy, *tasks, nodes=3)
    queued = [each.id for each in tasks if harness.tasks[each.id].state is TaskState.QUEUED]
    found = {task_id: forecast(harness, task_id) for task_id in queued}
    predicted = {task_id: seconds(each) for task_id, each in found.items()}
    ends: dict[str, float] = {}
    began: dict[str, float] = {}
    while harness.tasks:
        for task in list(harness.tasks.values()):
            if task.state is TaskState.STARTING:
                harness.start(task.id)
                began[task.id] = harness.seconds
                ends[task.id] = harness.seconds + (task.expected_seconds or 0.0)
        harness.rounds()
        harness.seconds = min(ends.values())
        for task_id in [name for name, end in ends.items() if end == harness.seconds]:
            del ends[task_id]
            harness.exit(task_id, ExitKind.OK)
        harness.rounds()
    assert {task_id: began[task_id] for task_id in queued} == pytest.approx(predicted)
    for task_id, each in found.items():
        assert in_range(each, at(began[task_id]))


def in_range(found: Forecast, began_at: datetime) -> bool:
    """True if a real start lies within the forecast."""
    assert found.starts_at is not None
    earliest, latest = found.earliest_at or found.starts_at, found.latest_at or found.starts_at
    return earliest <= began_at <= latest


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 60))
def test_a_start_lies_in_the_range_however_long_the_victim_saves(save_seconds: int) -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=-5000)
    harness = decided("fifo", low, waits("hi"), nodes=1)
    found = forecast(harness, "hi")
    assert (found.earliest_at, found.latest_at) == (at(10), at(70))
    harness.seconds += save_seconds
    harness.exit("low", ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["hi"].state is TaskState.STARTING
    assert in_range(found, harness.now)


@settings(max_examples=30, deadline=None)
@given(snapshots())
def test_explain_answers_at_any_time(snapshot: Snapshot) -> None:
    bounds = Bounds(trials_max=8, rounds_max=50)
    for task in snapshot.tasks.values():
        reply = explain(copy_of(snapshot.index), task, NOW, Copies(), bounds).reply
        if task.state is not TaskState.QUEUED:
            assert reply.forecast is None
            continue
        found = reply.forecast
        assert found is not None
        assert (found.starts_at is None) == bool(found.unknown)
        assert found.starts_at is None or found.starts_at >= NOW


def test_a_query_changes_nothing() -> None:
    harness = decided(
        "timeshare",
        runs("a", "n0", ends=400),
        runs("b", "n1", ends=1000),
        waits("gang", nodes=2, takes=500, submitted=1, owner="bob"),
        waits("next", takes=60, submitted=2, owner="cat"),
    )
    before: list[datetime | None] = [forecast(harness, "next").starts_at for _ in range(3)]
    assert len(set(before)) == 1
    assert harness.plan().decisions == ()
