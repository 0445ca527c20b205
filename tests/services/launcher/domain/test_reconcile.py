from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.messages import Completion, ExitKind, Placement, PreemptMode, Role
from services.launcher.domain.model import (
    EndCause,
    Fault,
    Listing,
    ObservedRank,
    ObservedRun,
    Refused,
    Run,
    RunState,
)
from services.launcher.domain.rank_faults import PendingLimits
from services.launcher.domain.reconcile import (
    Action,
    End,
    Forget,
    Launch,
    Policy,
    Scan,
    Signal,
)
from services.launcher.domain.worklist import Outcome
from tests.kit.clock import START, at
from tests.kit.launcher_builders import (
    a_listing,
    a_run,
    a_spec,
    exited,
    lost,
    observed,
    pending,
    reconcile,
    run_id,
)

POLICY = Policy(
    exit_grace=timedelta(seconds=10),
    pending_limits=PendingLimits(image_pull=timedelta(seconds=20), create=timedelta(seconds=10)),
)
RUN = run_id()


def step(
    run: Run, ranks: Sequence[ObservedRank] | None = None, *, seconds: float = 5, **more: object
) -> tuple[Run, Outcome]:
    done = frozenset(more.pop("done", ()))  # type: ignore[call-overload]
    refused: Refused | None = more.pop("refused", None)  # type: ignore[assignment]
    listing = a_listing({} if ranks is None else {RUN: ranks}, **more)  # type: ignore[arg-type]
    scan = Scan(listing, done, {RUN: refused} if refused else {})
    outcome = reconcile([run], scan, at(seconds), POLICY)
    return (outcome.runs[0] if outcome.runs else run), outcome


def test_an_assigned_run_is_launched() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED))
    assert run.state is RunState.ASSIGNED
    assert outcome.actions == (Launch(RUN),)


def test_half_a_gang_is_launched_again_and_not_started() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=2), [observed(0)])
    assert run.state is RunState.ASSIGNED
    assert outcome.actions == (Launch(RUN),)


def test_started_when_every_rank_exists() -> None:
    ranks = [observed(0), observed(1, started_at=at(3))]
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=2), ranks)
    assert (run.state, run.started_at) == (RunState.RUNNING, at(3))
    assert outcome.actions == ()


def test_a_pending_rank_exists_and_has_not_started() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=2), [observed(0), pending(1)])
    assert run.state is RunState.ASSIGNED
    assert outcome.actions == ()
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=3), [observed(0), pending(1)])
    assert outcome.actions == (Launch(RUN),)


def test_a_run_is_not_over_while_a_rank_is_pending() -> None:
    ending = a_run(RunState.ENDING, ranks=2, ending_at=START, end_cause=EndCause.KILL)
    run, _ = step(ending, [exited(0, None, 9), pending(1)], done=[End(RUN)])
    assert run.state is RunState.ENDING
    run, _ = step(ending, [exited(0, None, 9)], done=[End(RUN)])
    assert run.state is RunState.EXITED


def test_a_rank_that_fails_before_the_others_began_ends_the_gang() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=2), [exited(0, 1), pending(1)])
    assert (run.end_cause, run.end_note) == (EndCause.RANK_FAILED, "rank 0 ended with code 1")
    assert outcome.actions == (End(RUN),)
    # What was known when it was decided stays, whatever the runtime forgets.
    over, _ = step(run, [], done=[End(RUN)])
    assert over.exit is not None
    assert (over.exit.kind, over.exit.detail) == (ExitKind.FAILED, "rank 0 ended with code 1")


@pytest.mark.parametrize(
    ("fault", "cause", "kind"),
    [
        (Fault.INVALID_POD, EndCause.CANNOT_START, ExitKind.FAILED),
        (Fault.AGAINST_POLICY, EndCause.CANNOT_START, ExitKind.FAILED),
        (Fault.OVER_QUOTA, EndCause.REJECTED_BY_SITE, ExitKind.LOST),
        (Fault.NAME_TAKEN, EndCause.REJECTED_BY_SITE, ExitKind.LOST),
    ],
)
def test_a_refused_launch_ends_the_run(fault: Fault, cause: EndCause, kind: ExitKind) -> None:
    refused = Refused(fault, "because")
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=2), [pending(0)], refused=refused)
    assert (run.end_cause, run.end_note) == (cause, "because")
    assert outcome.actions == (End(RUN),)
    over, _ = step(run, [], done=[End(RUN)], refused=refused)
    assert over.exit is not None
    assert (over.exit.kind, over.exit.detail) == (kind, "because")
    assert over.started_at is None


def test_a_fault_ends_the_run_when_its_time_is_over() -> None:
    ranks = [
        observed(0),
        pending(1, fault=Fault.IMAGE_PULL, fault_since=START, note="no such image"),
    ]
    assigned = a_run(RunState.ASSIGNED, ranks=2)
    run, outcome = step(assigned, ranks, seconds=19)
    assert (run.state, outcome.due_at) == (RunState.ASSIGNED, at(20))
    run, outcome = step(assigned, ranks, seconds=20)
    assert (run.end_cause, run.end_note) == (
        EndCause.CANNOT_START,
        "rank 1 on local-1: no such image",
    )


@pytest.mark.parametrize("fault", [Fault.UNSCHEDULABLE, Fault.BEING_MADE])
def test_a_fault_that_may_resolve_waits_for_the_start_deadline(fault: Fault) -> None:
    ranks = [pending(0, fault=fault, fault_since=START)]
    run, outcome = step(a_run(RunState.ASSIGNED), ranks, seconds=100_000)
    assert run.state is RunState.ASSIGNED
    assert (outcome.actions, outcome.due_at) == ((), None)


def test_a_run_that_reappears_after_its_exit_is_ended_again() -> None:
    """An outdated leader's order arrived late."""
    over, _ = step(a_run(), [exited(0)])
    for late in (pending(0), observed(0)):
        same, outcome = step(over, [late])
        assert (same.state, outcome.actions) == (RunState.EXITED, (End(RUN),))


def test_a_run_that_ended_before_the_first_scan_has_started_and_exited() -> None:
    run, _ = step(a_run(RunState.ASSIGNED), [exited(0)])
    assert (run.state, run.started_at) == (RunState.EXITED, START)
    assert run.exit is not None
    assert (run.exit.kind, run.exit.exited_at) == (ExitKind.OK, at(5))
    assert run.exit.failed_rank is None


def test_exit_zero_waits_for_the_others() -> None:
    run, outcome = step(a_run(ranks=2), [exited(0), observed(1)])
    assert run.state is RunState.RUNNING
    assert outcome.actions == ()


def test_a_failing_rank_ends_the_gang() -> None:
    run, outcome = step(a_run(ranks=2), [observed(0), exited(1, 3)])
    assert (run.state, run.end_cause) == (RunState.ENDING, EndCause.RANK_FAILED)
    assert outcome.actions == (End(RUN),)
    run, _ = step(run, [exited(0, None, 9), exited(1, 3)])
    assert run.exit is not None
    assert run.exit.kind is ExitKind.FAILED


CHIEF = Completion(success=("chief[0]",), failure=("chief[0]", "worker[2+]"))
GANG = tuple(
    Placement(rank=rank, role=role, role_index=index, node_id=f"n{rank}")
    for rank, (role, index) in enumerate([("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)])
)


def a_chief_run(state: RunState = RunState.RUNNING, **changes: object) -> Run:
    roles = (
        Role(name="chief", replicas=1, command=("a",)),
        Role(name="worker", replicas=2, command=("b",)),
        Role(name="ps", replicas=1, command=("c",)),
    )
    run = a_run(state, ranks=4)
    assert run.spec is not None
    spec = run.spec.model_copy(update={"roles": roles, "nodes": 4, "completion": CHIEF})
    return replace(run, spec=spec, placements=GANG, **changes)  # type: ignore[arg-type]


def test_a_gang_whose_chief_succeeds_is_ended_and_has_succeeded() -> None:
    ranks = [exited(0), observed(1), exited(2, 1), observed(3)]
    run, outcome = step(a_chief_run(), ranks)
    assert (run.state, run.end_cause) == (RunState.ENDING, EndCause.SUCCEEDED)
    assert outcome.actions == (End(RUN),)
    # How the others end does not count, nor what a runtime has forgotten meanwhile.
    for left in ([exited(0), exited(1, 137), exited(2, 1), exited(3, None, 15)], []):
        over, _ = step(run, left, done=[End(RUN)])
        assert over.exit is not None
        detail = "chief[0] succeeded; 1 failed rank tolerated"
        assert (over.exit.kind, over.exit.detail) == (ExitKind.OK, detail)


def test_tolerated_failures_are_counted_where_every_rank_has_ended() -> None:
    over, _ = step(a_chief_run(), [exited(0, seconds=4), exited(1, 1), exited(2), exited(3)])
    assert over.exit is not None
    assert over.exit.detail == "chief[0] succeeded; 1 failed rank tolerated"


def test_failures_below_the_threshold_end_nothing() -> None:
    run, outcome = step(a_chief_run(), [observed(0), exited(1, 1), observed(2), exited(3, 1)])
    assert (run.state, outcome.actions) == (RunState.RUNNING, ())
    run, outcome = step(run, [observed(0), exited(1, 1), exited(2, 1), exited(3, 1)])
    assert (run.state, run.end_cause) == (RunState.ENDING, EndCause.RANK_FAILED)
    over, _ = step(run, [exited(0), *(exited(rank, 1) for rank in (1, 2, 3))], seconds=9)
    assert over.exit is not None
    assert over.exit.kind is ExitKind.FAILED
    assert over.exit.detail.startswith("worker[2+] failed: rank 2 ended with code 1")


def test_a_gang_that_ends_without_a_success_has_failed() -> None:
    run = a_chief_run()
    assert run.spec is not None
    rules = Completion(success=("worker[all]",), failure=("chief[0]",))
    run = replace(run, spec=run.spec.model_copy(update={"completion": rules}))
    over, _ = step(run, [exited(0), exited(1, 1), exited(2), exited(3)])
    assert over.exit is not None
    assert over.exit.kind is ExitKind.FAILED
    assert over.exit.detail == ("no rule for success can be met any more: rank 1 ended with code 1")


def test_a_gang_that_finishes_while_it_is_requested_to_leave_has_succeeded() -> None:
    asked = a_chief_run(preempt_requested_at=START)
    ranks = [exited(0), observed(1), observed(2), observed(3)]
    run, _ = step(asked, ranks)
    assert run.end_cause is EndCause.SUCCEEDED
    # After its acknowledgement it leaves as it does without rules.
    run, outcome = step(replace(asked, acked_at=at(1)), ranks)
    assert (run.state, outcome.actions) == (RunState.RUNNING, ())
    # What ends because the gang is killed proves nothing.
    killed = a_chief_run(RunState.ENDING, end_cause=EndCause.RANK_LOST, ending_at=at(1))
    late = [exited(rank) for rank in (0, 2, 3)]
    over, _ = step(killed, [*late, lost(1)], seconds=9)
    assert over.exit is not None
    assert over.exit.kind is ExitKind.LOST


def test_a_failing_rank_ends_half_a_gang_too() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED, ranks=2), [exited(0, 127)])
    assert run.state is RunState.ENDING
    assert outcome.actions == (End(RUN),)
    run, outcome = step(run, [exited(0, 127)], done=[End(RUN)])
    assert run.exit is not None
    assert (run.exit.kind, [r.rank for r in run.exit.ranks]) == (ExitKind.FAILED, [0])
    assert run.started_at is None


def test_during_preemption_a_rank_may_leave_early() -> None:
    asked = a_run(ranks=2, preempt_requested_at=START)
    for left in (exited(1, 1), lost(1)):
        run, outcome = step(asked, [observed(0), left])
        assert run.state is RunState.RUNNING
        assert outcome.actions == ()


def test_after_the_acknowledgement_the_gang_has_its_grace() -> None:
    acked = a_run(ranks=2, preempt_requested_at=START, acked_at=at(1))
    run, outcome = step(acked, [observed(0), observed(1)], seconds=10.9)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(11))
    run, outcome = step(acked, [observed(0), observed(1)], seconds=11)
    assert (run.state, run.end_cause) == (RunState.ENDING, EndCause.GRACE_OVER)
    assert outcome.actions == (End(RUN),)
    run, _ = step(run, [exited(0, None, 9), exited(1, None, 9)])
    assert run.exit is not None
    assert run.exit.kind is ExitKind.PREEMPTED


def test_sdk_mode_sends_no_signal() -> None:
    assert step(a_run(preempt_requested_at=START), [observed(0)])[1].actions == ()


def test_signal_mode_sends_the_signal_until_it_was_sent() -> None:
    asked = a_run(spec=a_spec(mode=PreemptMode.SIGNAL, signal="TERM"), preempt_requested_at=START)
    run, outcome = step(asked, [observed(0)])
    assert outcome.actions == (Signal(RUN, 15),)
    run, outcome = step(run, [observed(0)], done=[Signal(RUN, 15)])
    assert (run.signalled_at, outcome.actions) == (at(5), ())
    assert step(run, [observed(0)])[1].actions == ()
    run, _ = step(run, [exited(0, None, 15)])
    assert run.exit is not None
    assert run.exit.kind is ExitKind.PREEMPTED


def test_kill_mode_ends_at_once() -> None:
    asked = a_run(spec=a_spec(mode=PreemptMode.KILL), preempt_requested_at=START)
    run, outcome = step(asked, [observed(0)])
    assert run.end_cause is EndCause.KILL
    assert outcome.actions == (End(RUN),)


def test_kill() -> None:
    run, outcome = step(a_run(kill_requested_at=START), [observed(0)])
    assert (run.state, outcome.actions) == (RunState.ENDING, (End(RUN),))
    still, outcome = step(run, [observed(0)], done=[End(RUN)])
    assert (still.state, outcome.actions) == (RunState.ENDING, ())
    over, _ = step(run, [exited(0, None, 9)], done=[End(RUN)])
    assert over.exit is not None
    assert over.exit.kind is ExitKind.KILLED


def test_a_late_kill_changes_nothing() -> None:
    run, _ = step(a_run(kill_requested_at=START), [exited(0, 3)])
    assert run.exit is not None
    assert run.exit.kind is ExitKind.FAILED


def test_killed_before_its_launch_is_over_only_after_the_order_was_carried_out() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED, kill_requested_at=START))
    assert (run.state, outcome.actions) == (RunState.ENDING, (End(RUN),))
    again, outcome = step(run)
    assert (again.state, outcome.actions) == (RunState.ENDING, (End(RUN),))
    over, _ = step(run, done=[End(RUN)])
    assert over.exit is not None
    assert (over.exit.kind, over.exit.ranks) == (ExitKind.KILLED, ())


def test_preempted_before_its_launch_never_starts() -> None:
    run, outcome = step(a_run(RunState.ASSIGNED, preempt_requested_at=START))
    assert outcome.actions == (End(RUN),)
    over, _ = step(run, done=[End(RUN)])
    assert over.exit is not None
    assert over.exit.kind is ExitKind.PREEMPTED


def test_an_early_request_needs_no_action() -> None:
    stone = Run("task", 1, RunState.EARLY_REQUEST, kill_requested_at=START)
    assert step(stone)[1] == Outcome((), ())


def test_a_lost_rank_ends_the_gang() -> None:
    run, outcome = step(a_run(ranks=2), [observed(0), lost(1)])
    assert (run.end_cause, outcome.actions) == (EndCause.RANK_LOST, (End(RUN),))
    run, _ = step(run, [exited(0, None, 9), lost(1)])
    assert run.exit is not None
    assert run.exit.kind is ExitKind.LOST


def test_a_rank_unknown_to_a_node_that_answers_is_lost() -> None:
    run, _ = step(a_run(ranks=2), [observed(0)])
    assert run.end_cause is EndCause.RANK_LOST


def test_a_silent_node_does_not_end_a_run() -> None:
    run, outcome = step(a_run(ranks=2), [observed(0)], silent=["local-1"])
    assert (run.state, outcome.actions) == (RunState.RUNNING, ())


def test_a_run_is_not_over_because_its_node_fell_silent_after_the_order_to_end_it() -> None:
    ending = a_run(RunState.ENDING, end_cause=EndCause.KILL)
    silent = frozenset({ending.placements[0].node_id})
    run, _ = step(ending, None, done=[End(RUN)], silent=silent)
    assert run.state is RunState.ENDING


def test_an_exited_run_is_forgotten_when_the_runtime_has() -> None:
    over, _ = step(a_run(), [exited(0)])
    same, outcome = step(over, [exited(0)])
    assert (same.state, outcome.actions) == (RunState.EXITED, (Forget(RUN),))
    assert step(over, silent=["local-0"])[0].state is RunState.EXITED
    assert step(over)[0].state is RunState.FORGOTTEN


def test_a_run_without_a_row_is_ended_and_then_forgotten() -> None:
    assert reconcile([], Scan(a_listing({RUN: [observed(0)]})), START, POLICY).actions == (
        End(RUN),
    )
    assert reconcile([], Scan(a_listing({RUN: [exited(0)]})), START, POLICY).actions == (
        Forget(RUN),
    )
    # Ended before it began: nothing but a record.
    listing = Listing(a_listing().nodes, {RUN: ObservedRun(RUN, {}, frozenset({"local-0"}))})
    assert reconcile([], Scan(listing), START, POLICY).actions == (Forget(RUN),)


def test_a_newer_attempt_waits_for_the_older_one_which_is_ended() -> None:
    older, newer = a_run(), replace(a_run(RunState.ASSIGNED), attempt=2)
    outcome = reconcile([older, newer], Scan(a_listing({RUN: [observed(0)]})), START, POLICY)
    assert outcome.actions == (End(RUN),)
    assert [run.end_cause for run in outcome.runs] == [EndCause.SUPERSEDED]


RANKS = st.sampled_from(
    [
        observed(0),
        exited(0),
        exited(0, 1),
        exited(0, 75),
        exited(0, None, 9),
        exited(0, None, 10),
        lost(0),
        pending(0),
        pending(0, fault=Fault.IMAGE_PULL, fault_since=START),
        pending(0, fault=Fault.UNSCHEDULABLE, fault_since=START),
    ]
)
REFUSALS = st.one_of(
    st.none(),
    st.sampled_from([Refused(Fault.OVER_QUOTA, "quota"), Refused(Fault.INVALID_POD, "invalid")]),
)
TIMES = st.one_of(st.none(), st.integers(-20, 20).map(at))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    state = draw(st.sampled_from([RunState.ASSIGNED, RunState.RUNNING, RunState.ENDING]))
    ending = state is RunState.ENDING
    return a_run(
        state,
        ranks=2,
        spec=a_spec(2, mode=draw(st.sampled_from(PreemptMode))),
        preempt_requested_at=draw(TIMES),
        kill_requested_at=draw(TIMES),
        acked_at=draw(TIMES),
        ending_at=START if ending else None,
        end_cause=draw(st.sampled_from(EndCause)) if ending else None,
    )


@given(
    run=runs(),
    first=st.one_of(st.none(), RANKS),
    second=st.one_of(st.none(), RANKS),
    ended=st.booleans(),
    silent=st.sets(st.sampled_from(["local-0", "local-1"])),
    refused=REFUSALS,
)
def test_steps_are_total_idempotent_and_correct(
    run: Run,
    *,
    first: ObservedRank | None,
    second: ObservedRank | None,
    ended: bool,
    silent: set[str],
    refused: Refused | None,
) -> None:
    """Any state meets any scan: no exception; a second scan adds nothing; an exit is only
    published when nothing runs and nothing can begin."""
    ranks = [first] if first else []
    ranks += [replace(second, rank=1, node_id="local-1")] if second else []
    done: list[Action] = [End(RUN)] if ended else []
    after, _ = step(run, ranks, done=done, silent=sorted(silent), refused=refused)
    again, outcome = step(after, ranks, done=done, silent=sorted(silent), refused=refused)
    assert again == after or (again.state is RunState.FORGOTTEN and not ranks)
    if after.exit is not None:
        assert all(rank.over for rank in ranks)
        assert len(ranks) == 2 or ended
    assert not (after.state is RunState.RUNNING and Launch(RUN) in outcome.actions)


@pytest.mark.parametrize("seconds", [0, 5, 100])
def test_no_row_and_no_run_needs_no_action(seconds: float) -> None:
    assert reconcile([], Scan(a_listing()), at(seconds), POLICY) == Outcome((), ())


def test_a_run_that_yielded_has_its_grace_to_exit() -> None:
    wish = a_run(ranks=2, yield_requested_at=at(1), yield_reason="no data")
    run, outcome = step(wish, [observed(0), observed(1)], seconds=10.9)
    assert (run.state, outcome.actions) == (RunState.RUNNING, ())
    assert outcome.due_at == at(11)
    run, _ = step(wish, [observed(0), observed(1)], seconds=11)
    assert (run.state, run.end_cause) == (RunState.ENDING, EndCause.GRACE_OVER)


@pytest.mark.parametrize("code", [0, 75, 1])
def test_the_end_of_a_run_that_yielded_is_a_preemption_by_its_own_wish(code: int) -> None:
    wish = a_run(ranks=2, yield_requested_at=at(1), yield_reason="no data")
    run, _ = step(wish, [exited(0, code), observed(1)], seconds=2)
    assert run.state is RunState.RUNNING
    run, _ = step(wish, [exited(0, code), exited(1, code)], seconds=3)
    assert run.exit is not None
    assert (run.exit.kind, run.exit.yielded) == (ExitKind.PREEMPTED, True)
    assert run.exit.detail == "handed its nodes over on its own: no data"


def test_a_run_that_is_asked_to_leave_as_well_did_not_yield() -> None:
    both = a_run(ranks=1, yield_requested_at=at(1), preempt_requested_at=at(2))
    run, _ = step(both, [exited(0, 75)], seconds=3)
    assert run.exit is not None
    assert (run.exit.kind, run.exit.yielded) == (ExitKind.PREEMPTED, False)


def test_a_request_before_the_end_counts_although_the_next_leaders_clock_is_behind() -> None:
    acked = a_run(preempt_requested_at=at(3600), acked_at=START)
    run, _ = step(acked, [observed(0)], seconds=20)
    assert (run.end_cause, run.preempt_requested_at) == (EndCause.GRACE_OVER, at(20))
    run, _ = step(run, [exited(0, 1, seconds=19)], seconds=21)
    assert run.exit is not None
    assert run.exit.kind is ExitKind.PREEMPTED


def test_a_program_that_saves_and_leaves_while_it_is_killed_has_not_succeeded() -> None:
    """The gateway reported the request before the launcher knew of it, and the deadline passed."""
    killed = a_run(
        RunState.ENDING,
        end_cause=EndCause.KILL,
        kill_requested_at=START,
        ending_at=at(1),
        preempt_requested_at=at(2),
        acked_at=at(2),
    )
    run, _ = step(killed, [exited(0)], seconds=3)
    assert run.exit is not None
    assert run.exit.kind is ExitKind.KILLED
    # One that saves nothing on a request has done its work.
    done, _ = step(replace(killed, acked_at=None), [exited(0)], seconds=3)
    assert done.exit is not None
    assert done.exit.kind is ExitKind.OK


def test_a_yield_before_the_end_counts_although_the_next_leaders_clock_is_behind() -> None:
    wish = a_run(yield_requested_at=at(3600), kill_requested_at=at(3600))
    run, _ = step(wish, [observed(0)], seconds=5)
    assert (run.state, run.yield_requested_at) == (RunState.ENDING, at(5))
    late = replace(wish, yield_requested_at=at(3601))
    run, _ = step(late, [observed(0)], seconds=5)
    assert run.yield_requested_at == at(3601)
