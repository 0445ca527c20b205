"""A worklist that has followed any history gives the same results as a newly built one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.ids import RunId
from services.launcher.domain import worklist
from services.launcher.domain.model import (
    Fault,
    ObservedRank,
    ReadyReport,
    Refused,
    Run,
    RunState,
)
from services.launcher.domain.reconcile import Action, End, Forget, Launch, Policy, Scan, Signal
from services.launcher.domain.worklist import RETRY_SECONDS_MAX, Worklist
from tests.kit.clock import START, at
from tests.kit.launcher_builders import (
    a_listing,
    a_run,
    exited,
    lost,
    observed,
    pending,
    reconcile,
    run_id,
)

POLICY = Policy(exit_grace=timedelta(seconds=3))
RUNS = [run_id("one", 1), run_id("one", 2), run_id("two", 1)]

# Any of them as it may come to stand; most of what is drawn no launcher would ever see.
STATES = st.sampled_from(
    [
        RunState.EARLY_REQUEST,
        RunState.ASSIGNED,
        RunState.ASSIGNED,
        RunState.RUNNING,
        RunState.ENDING,
        RunState.EXITED,
    ]
)
TIMES = st.sampled_from([None, None, None, START, at(2)])
RANKS = st.lists(
    st.sampled_from(
        [
            observed(),
            exited(),
            exited(0, 1),
            lost(),
            pending(),
            pending(fault=Fault.IMAGE_PULL, fault_since=START),
        ]
    ),
    max_size=2,
)
ACTIONS = st.builds(
    lambda run, make: make(run),
    st.sampled_from(RUNS),
    st.sampled_from([End, lambda r: Signal(r, 10)]),
)
REFUSED = Refused(Fault.OVER_QUOTA, "full")
# One difference between a scan and the previous one.
NEWS = st.one_of(
    st.tuples(st.just("ranks"), st.sampled_from(RUNS), st.none() | RANKS),
    st.tuples(st.just("silent"), st.sampled_from(["local-0", "local-1"]), st.booleans()),
    st.tuples(st.just("done"), ACTIONS, st.booleans()),
    st.tuples(st.just("refused"), st.sampled_from(RUNS), st.booleans()),
)


@st.composite
def rows(draw: st.DrawFn) -> Run:
    run = draw(st.sampled_from(RUNS))
    made = a_run(draw(STATES), ranks=draw(st.integers(1, 2)))
    return replace(
        made,
        task_id=run.task_id,
        attempt=run.attempt,
        kill_requested_at=draw(TIMES),
        preempt_requested_at=draw(TIMES),
        acked_at=draw(TIMES),
    )


STEPS = st.lists(
    st.tuples(
        st.tuples(st.just("row"), rows())
        | st.tuples(st.just("gone"), st.sampled_from(RUNS))
        | st.tuples(st.sampled_from(["scan", "numbered scan"]), NEWS),
        st.sampled_from(["", "round", "round", "round", "lost round"]),
        st.sampled_from([0.0, 0.0, 1.0, 40.0]),
    ),
    min_size=3,
    max_size=40,
)


class Sky:
    """What a runtime would show, changed one thing at a time."""

    def __init__(self) -> None:
        self.ranks: dict[RunId, list[ObservedRank]] = {}
        self.silent: set[str] = set()
        self.done: set[Action] = set()
        self.refused: dict[RunId, Refused] = {}
        self.scan = Scan(a_listing())

    def change(self, what: str, which: Any, how: Any, *, numbered: bool) -> Scan:
        match what:
            case "ranks" if how is None:
                self.ranks.pop(which, None)
            case "ranks":
                self.ranks[which] = [
                    replace(rank, rank=n, node_id=f"local-{n}") for n, rank in enumerate(how)
                ]
            case "silent":
                self.silent = self.silent | {which} if how else self.silent - {which}
            case "done":
                self.done = self.done | {which} if how else self.done - {which}
            case _:
                self.refused.pop(which, None)
                self.refused |= {which: REFUSED} if how else {}
        before, listing = self.scan.listing, a_listing(self.ranks, silent=sorted(self.silent))
        every = before.runs.keys() | listing.runs.keys()
        changed = tuple(run for run in every if before.runs.get(run) != listing.runs.get(run))
        number = before.number + 1 if numbered else 0
        listing = replace(listing, number=number, changed=changed)
        self.scan = Scan(listing, frozenset(self.done), dict(self.refused))
        return self.scan


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_the_incremental_worklist_equals_a_rebuilt_one(
    steps: list[tuple[tuple[Any, Any], str, float]],
) -> None:
    work, table, sky, seconds = Worklist(), dict[RunId, Run](), Sky(), 5.0
    work.update_scan(sky.scan)
    for (what, value), then, later in [*steps, (("", None), "round", 0.0)]:
        match what:
            case "row":
                table[value.id] = value
                work.apply([value])
            case "gone":
                if table.pop(value, None) is not None:
                    work.apply((), [(Run, (value.task_id, value.attempt))])
            case "scan" | "numbered scan":
                work.update_scan(sky.change(*value, numbered=what == "numbered scan"))
            case _:
                pass
        seconds += later
        if then:
            a_round(work, table, sky.scan, seconds, lost=then == "lost round")
        assert work.runs == table
        assert {run.id for run in work.starting()} == {
            run.id for run in table.values() if run.state is RunState.ASSIGNED
        }
        for node_id in ("local-0", "local-1"):
            on = [run for run in table.values() if node_id in {p.node_id for p in run.placements}]
            assert work.is_busy(node_id) == any(work.is_live(run.id) for run in on)


def a_round(
    work: Worklist, table: dict[RunId, Run], scan: Scan, seconds: float, *, lost: bool
) -> None:
    dirty = work.take_dirty()
    outcome = work.step(dirty, scan, at(seconds), POLICY)
    rebuilt = reconcile(table.values(), scan, at(seconds), POLICY)
    assert {run.id: run for run in outcome.runs} == {run.id: run for run in rebuilt.runs}
    assert set(outcome.actions) == set(rebuilt.actions)
    assert len(outcome.actions) == len(rebuilt.actions)
    assert outcome.due_at == rebuilt.due_at
    if lost:
        work.restore_dirty(dirty)
        return
    work.commit(outcome)
    # Its rows are committed, too, and this is how the store reports them.
    kept = [run for run in outcome.runs if run.state is not RunState.FORGOTTEN]
    over = [run for run in outcome.runs if run.state is RunState.FORGOTTEN]
    for run in over:
        del table[run.id]
    table |= {run.id: run for run in kept}
    work.apply(kept, [(Run, (run.task_id, run.attempt)) for run in over])


def test_a_round_steps_only_changed_runs() -> None:
    table = {run_id(f"a{letter}"): a_run() for letter in "bcdefgh"}
    table = {run: replace(row, task_id=run.task_id) for run, row in table.items()}
    ranks: dict[RunId, list[ObservedRank]] = {run: [observed()] for run in table}
    work = Worklist(table.values())
    scan = Scan(a_listing(ranks))
    work.update_scan(scan)
    first = work.step(work.take_dirty(), scan, at(1), POLICY)
    assert first.steps.keys() == table.keys()
    work.commit(first)
    one, other = run_id("ab"), run_id("ac")
    scan = Scan(a_listing(ranks | {one: [exited()]}))
    work.update_scan(scan)
    work.apply([replace(table[other], preempt_requested_at=at(1), acked_at=at(1))])
    second = work.step(work.take_dirty(), scan, at(2), POLICY)
    assert second.steps.keys() == {one, other}
    assert [run.id for run in second.runs] == [one]
    assert second.due_at == at(4)
    work.commit(second)
    # Nothing is new, and nothing is evaluated before its time.
    assert work.step(work.take_dirty(), scan, at(3), POLICY).steps == {}
    due = work.step(work.take_dirty(), scan, at(4), POLICY)
    assert due.steps.keys() == {other}
    assert set(due.actions) == {Forget(one), End(other)}
    # A node that falls silent concerns those that are on it.
    scan = Scan(a_listing(ranks | {one: [exited()]}, silent=["local-1"]))
    work.update_scan(scan)
    assert work.take_dirty() == {}


def test_launches_come_in_the_order_of_their_assignments() -> None:
    names = ["zz", "mm", "aa", "yy"]
    work = Worklist(replace(a_run(RunState.ASSIGNED), task_id=name) for name in names)
    scan = Scan(a_listing())
    work.update_scan(scan)
    outcome = work.step(work.take_dirty(), scan, at(1), POLICY)
    assert outcome.actions == tuple(Launch(run_id(name)) for name in names)


def test_a_run_with_an_unreadable_row_is_not_changed() -> None:
    """The launcher neither ends nor forgets its processes and starts no later attempt beside them;
    processes of a run without any row are ended."""
    lost, later = run_id("one", 1), a_run(RunState.ASSIGNED, task_id="one", attempt=2)
    scan = Scan(a_listing({lost: [observed()]}))
    work = Worklist([later], [lost])
    work.update_scan(scan)
    outcome = work.step(work.take_dirty(), scan, at(1), POLICY)
    assert outcome.actions == ()
    work.commit(outcome)
    # The row was repaired, or somebody deleted it.
    work.apply((), [(Run, ("one", 1))])
    outcome = work.step(work.take_dirty(), scan, at(2), POLICY)
    assert End(lost) in outcome.actions


def test_a_refusal_makes_the_run_dirty() -> None:
    run = a_run(RunState.ASSIGNED)
    work, scan = Worklist([run]), Scan(a_listing())
    for refused, actions in (({}, Launch), ({run.id: REFUSED}, End), ({}, Launch)):
        scan = replace(scan, refused=refused)
        work.update_scan(scan)
        outcome = work.step(work.take_dirty(), scan, at(1), POLICY)
        assert outcome.actions == (actions(run.id),)
        work.commit(outcome)


def test_a_step_that_raises_stops_only_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, broken = worklist.step, {"bb"}

    def step(run: Run, *rest: Any) -> worklist.Step:
        if run.task_id in broken:
            raise StopIteration
        return honest(run, *rest)

    monkeypatch.setattr(worklist, "step", step)
    runs = [replace(a_run(RunState.ASSIGNED), task_id=name) for name in ("aa", "bb", "cc")]
    report = ReadyReport("bb", 1, 0, 0, reported_at=at(0))
    work, scan = Worklist(runs, reports=[report]), Scan(a_listing())
    work.update_scan(scan)
    seconds, pauses = 1.0, list[float]()
    for _ in range(8):
        outcome = work.step(work.take_dirty(), scan, at(seconds), POLICY)
        assert outcome.actions == (Launch(run_id("aa")), Launch(run_id("cc")))
        assert list(outcome.failed) == [run_id("bb")]
        work.commit(outcome)
        assert work.fails(run_id("bb"))
        # Whatever happens to it meanwhile, it is tried again when its pause is over.
        work.mark_dirty(run_id("bb"))
        early = work.step(work.take_dirty(), scan, at(seconds + 0.5), POLICY)
        assert (early.failed, early.due_at) == ({}, outcome.due_at)
        assert outcome.due_at is not None
        pauses.append((outcome.due_at - at(seconds)).total_seconds())
        seconds += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, RETRY_SECONDS_MAX, RETRY_SECONDS_MAX]
    broken.clear()
    outcome = work.step({}, scan, at(seconds), POLICY)
    assert Launch(run_id("bb")) in outcome.actions
    assert outcome.reports == (report,)
    work.commit(outcome)
    assert not work.fails(run_id("bb"))
