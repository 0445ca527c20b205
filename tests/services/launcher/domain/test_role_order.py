"""Roles that wait for others: what is launched when, what is reported, and the order of the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import (
    Completion,
    ExitKind,
    FaultClass,
    Placement,
    PreemptMode,
    ReadyProbe,
    RestartRule,
    RestartScope,
    RestartWhen,
    Role,
    StartCondition,
    StartsAfter,
)
from services.launcher.domain import rank_restarts
from services.launcher.domain.grace_periods import GracePeriods
from services.launcher.domain.model import (
    START_SECONDS,
    EndCause,
    Fault,
    ObservedRank,
    ReadyReport,
    Refused,
    ReportedDelay,
    Run,
    RunState,
)
from services.launcher.domain.reconcile import Action, End, EndRanks, Launch, Policy, Scan
from services.launcher.domain.role_order import end_stages, waiting_roles, why_not_started
from services.launcher.domain.start_delays import cleared_event, delay_of
from services.launcher.domain.worklist import Outcome, Worklist
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

RUN = run_id()
POLICY = Policy(exit_grace=timedelta(seconds=10), grace=GracePeriods(acked=2, mates=4, full=20))
READY = StartCondition.READY
RUNNING = StartCondition.RUNNING
RULE = RestartRule(when=RestartWhen.ON_FAILURE, scope=RestartScope.RANK, max_restarts=2)


def a_role(name: str, replicas: int = 1, *after: StartsAfter, **more: object) -> Role:
    return Role(
        name=name,
        replicas=replicas,
        command=("x",),
        starts_after=after,
        **more,  # type: ignore[arg-type]
    )


def run_of(
    *roles: Role, state: RunState = RunState.ASSIGNED, completion: Completion | None = None
) -> Run:
    places = [(role.name, number) for role in roles for number in range(role.replicas)]
    spec = a_spec(len(places), completion=completion).model_copy(update={"roles": roles})
    return a_run(
        state,
        spec=spec,
        placements=tuple(
            Placement(rank=rank, role=name, role_index=number, node_id=f"local-{rank}")
            for rank, (name, number) in enumerate(places)
        ),
    )


def servers_first(
    condition: StartCondition = READY, state: RunState = RunState.ASSIGNED, **more: object
) -> Run:
    """Two servers, ranks 0 and 1, and a worker, rank 2, that waits for them."""
    return run_of(
        a_role("ps", 2, **more),
        a_role("worker", 1, StartsAfter(role="ps", condition=condition)),
        state=state,
    )


def step(
    run: Run,
    *ranks: ObservedRank,
    seconds: float = 5,
    done: Sequence[Action] = (),
    probed: Sequence[tuple[int, int]] = (),
    reported: Sequence[int] = (),
    new_leader: bool = False,
) -> tuple[Run, Outcome]:
    """``reported``: after how many restarts rank 0 reported that it is ready."""
    scan = Scan(
        a_listing({RUN: ranks} if ranks else {}), frozenset(done), probed={RUN: frozenset(probed)}
    )
    reports = [ReadyReport(run.task_id, run.attempt, 0, each, at(seconds)) for each in reported]
    outcome = reconcile([run], scan, at(seconds), POLICY, reports=reports, new_leader=new_leader)
    return (outcome.runs[0] if outcome.runs else run), outcome


def test_only_the_ranks_of_the_first_roles_are_launched() -> None:
    run, outcome = step(servers_first())
    assert run.state is RunState.ASSIGNED
    assert outcome.actions == (Launch(RUN, (0, 1)),)


@pytest.mark.parametrize("third", [None, pending(1)])
def test_a_role_waits_until_every_rank_of_the_other_runs(third: ObservedRank | None) -> None:
    ranks = [observed(0), *([third] if third else [])]
    run, outcome = step(servers_first(RUNNING), *ranks)
    assert run.state is RunState.ASSIGNED
    assert outcome.actions == (() if third else (Launch(RUN, (0, 1)),))


def test_a_run_runs_when_its_first_roles_do_and_the_next_role_starts() -> None:
    ranks = observed(0), observed(1, started_at=at(2))
    run, outcome = step(servers_first(RUNNING), *ranks)
    assert (run.state, run.started_at) == (RunState.RUNNING, at(2))
    assert outcome.actions == (Launch(RUN, (2,)),)
    assert waiting_roles(run) == {"worker"}
    run, outcome = step(run, *ranks, observed(2))
    assert run.state is RunState.RUNNING
    assert waiting_roles(run) == frozenset()
    assert outcome.actions == ()


def test_the_first_roles_are_those_that_wait_for_nothing() -> None:
    """The second stage may start before all of the first one runs."""
    after = StartsAfter(role="ps")
    run = run_of(a_role("ps"), a_role("board"), a_role("worker", 1, after))
    run, outcome = step(run, observed(0), pending(1))
    assert run.state is RunState.ASSIGNED
    assert outcome.actions == (Launch(RUN),)
    run, outcome = step(run, observed(0), pending(1), observed(2))
    assert (run.state, outcome.actions) == (RunState.ASSIGNED, ())
    run, outcome = step(run, observed(0), observed(1), observed(2))
    assert (run.state, waiting_roles(run)) == (RunState.RUNNING, frozenset())


def test_readiness_is_kept_in_the_row() -> None:
    run, outcome = step(servers_first(), observed(0, ready=True), observed(1))
    assert run.ready_ranks == (0,)
    assert outcome.actions == ()
    # What was ready once was ready, whatever a later probe of the runtime says.
    run, outcome = step(run, observed(0), observed(1, ready=True))
    assert run.ready_ranks == (0, 1)
    assert outcome.actions == (Launch(RUN, (2,)),)
    # And what may start has to start.
    run, outcome = step(run, observed(0), observed(1))
    assert outcome.actions == (Launch(RUN, (2,)),)


def test_a_probe_of_the_launcher_counts_for_the_process_that_answered() -> None:
    ranks = observed(0), observed(1)
    run, _ = step(servers_first(), *ranks, probed=[(0, 0), (1, 1)])
    assert run.ready_ranks == (0,)


def test_a_report_of_a_former_process_does_not_count_for_its_restart() -> None:
    """The end of the process and its report arrive in one round."""
    after = StartsAfter(role="ps", condition=READY)
    run = run_of(a_role("ps", 1, restart=RULE), a_role("worker", 1, after))
    run, _ = step(run, observed(0))
    run, outcome = step(run, exited(0, 1), reported=[0])
    assert [each.count for each in run.restarts] == [1]
    assert (run.ready_ranks, outcome.actions) == ((), ())
    run, _ = step(run, observed(0, start=1), reported=[0])
    assert run.ready_ranks == ()
    run, _ = step(run, observed(0, start=1), reported=[1])
    assert run.ready_ranks == (0,)


def test_readiness_is_not_noted_where_nobody_waits_for_it() -> None:
    run, outcome = step(servers_first(RUNNING), observed(0, ready=True), observed(1))
    assert run.ready_ranks == ()
    assert outcome.actions == (Launch(RUN, (2,)),)


def test_a_role_of_which_a_rank_exists_is_completed() -> None:
    """The launcher died between the orders for two nodes, and a server has ended since then."""
    run = run_of(
        a_role("init", 1),
        a_role("worker", 2, StartsAfter(role="init", condition=READY)),
        completion=Completion(success=("worker[all]",), failure=("worker[any]",)),
    )
    _, outcome = step(run, exited(0, 1), observed(1))
    assert outcome.actions == (Launch(RUN, (2,)),)


@pytest.mark.parametrize(
    ("condition", "ends", "text"),
    [
        (READY, exited(0, 0), "rank 0 of role init ended with code 0 before it was ready"),
        (READY, exited(0, None, 9), "rank 0 of role init ended with signal 9 before it was ready"),
        (RUNNING, exited(0, 3), "rank 0 of role init ended with code 3 before that"),
    ],
)
def test_a_run_fails_if_a_condition_can_never_hold(
    condition: StartCondition, ends: ObservedRank, text: str
) -> None:
    run = run_of(
        a_role("init", 1),
        a_role("worker", 1, StartsAfter(role="init", condition=condition)),
        completion=Completion(success=("worker[all]",), failure=("worker[any]",)),
    )
    run, outcome = step(run, ends)
    assert (run.end_cause, run.end_note) == (
        EndCause.CANNOT_START,
        f"role worker can never start: {text}",
    )
    assert outcome.actions == (End(RUN),)


def test_a_role_that_ran_and_succeeded_has_been_there() -> None:
    run = run_of(a_role("init", 1), a_role("worker", 1, StartsAfter(role="init")))
    _, outcome = step(run, exited(0, 0))
    assert outcome.actions == (Launch(RUN, (1,)),)


def test_a_rank_has_to_be_ready_within_its_time() -> None:
    probe = ReadyProbe(port="rpc", path="/up", within_seconds=30)
    run = servers_first(ready=probe)
    ranks = observed(0, ready=True), observed(1, started_at=at(2))
    run, outcome = step(run, *ranks, seconds=2)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(32))
    run, outcome = step(run, *ranks, seconds=31.9)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(32))
    run, outcome = step(run, *ranks, seconds=32)
    assert run.end_cause is EndCause.CANNOT_START
    assert run.end_note == (
        "rank 1 of role ps was not ready within 30 s, and role worker waits for that; nothing"
        " answered at its port rpc/up"
    )
    over, _ = step(run, done=[End(RUN)])
    assert over.exit is not None
    assert over.exit.kind is ExitKind.FAILED


def test_a_role_may_be_ready_while_its_waiter_waits_for_another_one() -> None:
    after = [StartsAfter(role=name, condition=READY) for name in ("one", "two")]
    late = a_role("late", 1, StartsAfter(role="two", condition=RUNNING))
    run = run_of(a_role("one"), a_role("two"), late, a_role("both", 1, *after))
    run, outcome = step(run, observed(0, ready=True), observed(1), observed(2))
    assert (run.ready_ranks, outcome.actions, outcome.failed) == ((0,), (), {})
    assert outcome.due_at == at(5 + 600)
    # The text names the role that waits for readiness, not one that waits for the process only.
    run, _ = step(run, observed(0), observed(1), observed(2), seconds=605)
    assert "role two was not ready within 600 s, and role both waits for that" in run.end_note


def test_a_program_without_a_probe_has_the_default_time() -> None:
    run, outcome = step(servers_first(), observed(0), observed(1), seconds=0)
    assert outcome.due_at == at(600)
    run, _ = step(run, observed(0), observed(1), seconds=600)
    assert run.end_note.endswith("its program did not call shiftwork.ready()")


def test_the_time_does_not_count_where_nobody_waits() -> None:
    run, _ = step(servers_first(RUNNING), observed(0), observed(1), seconds=0)
    run, outcome = step(run, observed(0), observed(1), observed(2), seconds=10_000)
    assert run.end_cause is None
    assert (outcome.actions, outcome.due_at) == ((), None)


@pytest.mark.parametrize("hours", [-12, 12])
def test_the_time_counts_by_the_launchers_clock(hours: int) -> None:
    """The clock of a node may be hours behind or ahead."""
    begun = START + timedelta(hours=hours)
    ranks = observed(0, started_at=begun), observed(1, started_at=begun)
    run, outcome = step(servers_first(), *ranks, seconds=7)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(607))
    # A successor counts on.
    run, _ = step(run, *ranks, seconds=606)
    assert run.state is RunState.RUNNING
    run, _ = step(run, *ranks, seconds=607)
    assert run.end_cause is EndCause.CANNOT_START


def test_a_restart_begins_the_time_to_become_ready_again() -> None:
    run, _ = step(servers_first(restart=RULE), observed(0), observed(1), seconds=0)
    run, _ = step(run, observed(0), exited(1, 1), seconds=500)
    run, outcome = step(run, observed(0), exited(1, 1), seconds=501)
    assert outcome.actions == (Launch(RUN, (1,)),)
    old = observed(1, start=1, started_at=START - timedelta(hours=1))
    run, outcome = step(run, observed(0), old, seconds=510)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(1110))


# When a new leader first observes a run: after hours in which nobody did, or by a clock that is
# hours behind the former leader's.
TAKEN_OVER = [8000.0, 20_000.0 - 7200.0, 100.0]


@pytest.mark.parametrize("seconds", TAKEN_OVER)
def test_the_time_to_become_ready_begins_again_with_each_leader(seconds: float) -> None:
    ranks = observed(0), observed(1)
    run, _ = step(servers_first(), *ranks, seconds=7300)
    run, outcome = step(run, *ranks, seconds=seconds, new_leader=True)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(seconds + 600))
    # What is ready meanwhile counts, and what is not ends it in the end.
    ready, _ = step(run, *(replace(each, ready=True) for each in ranks), seconds=seconds + 599)
    assert ready.ready_ranks == (0, 1)
    late, _ = step(run, *ranks, seconds=seconds + 600)
    assert late.end_cause is EndCause.CANNOT_START


@pytest.mark.parametrize("seconds", TAKEN_OVER)
def test_the_time_of_a_later_role_begins_again_with_each_leader(seconds: float) -> None:
    """The former leader noted that the role may start, and died before it ordered that."""
    run, outcome = step(servers_first(RUNNING), observed(0), observed(1), seconds=7300)
    assert outcome.actions == (Launch(RUN, (2,)),)
    run, outcome = step(run, observed(0), observed(1), seconds=seconds, new_leader=True)
    assert (run.state, outcome.actions) == (RunState.RUNNING, (Launch(RUN, (2,)),))
    assert outcome.due_at == at(seconds + START_SECONDS)
    late, _ = step(run, observed(0), observed(1), seconds=seconds + START_SECONDS)
    assert late.end_cause is EndCause.REJECTED_BY_SITE


@pytest.mark.parametrize("seconds", TAKEN_OVER)
def test_the_time_of_a_restart_begins_again_with_each_leader(seconds: float) -> None:
    ended = observed(0), exited(1, 1)
    run, _ = step(run_of(a_role("chief"), a_role("it", 1, restart=RULE)), observed(0), observed(1))
    run, _ = step(run, *ended, seconds=7300)
    run, _ = step(run, *ended, seconds=seconds, new_leader=True)
    assert run.state is RunState.RUNNING
    # At most the pause is left, and the time to start after it.
    (again,) = run.restarts
    assert at(seconds) <= again.not_before <= at(seconds + rank_restarts.pause_seconds(0))
    late, _ = step(run, *ended, seconds=seconds + START_SECONDS + 1)
    assert late.end_cause is EndCause.RANK_LOST


def test_no_time_counts_before_a_new_leader_has_observed_all_nodes_of_the_run() -> None:
    ranks = observed(0), observed(1)
    run, _ = step(servers_first(), *ranks)
    work = Worklist([run])
    for seconds, silent in ((1000, ["local-1"]), (2000, ["local-1"]), (3000, []), (3599, [])):
        scan = Scan(a_listing({RUN: ranks}, silent=silent))
        work.update_scan(scan)
        outcome = work.step({RUN: None}, scan, at(seconds), POLICY)
        work.commit(outcome)
        work.apply(outcome.runs)
        assert work.runs[RUN].state is RunState.RUNNING
    assert outcome.due_at == at(3600)
    assert work.step({}, scan, at(3600), POLICY).runs[0].end_cause is EndCause.CANNOT_START


def test_a_later_role_has_the_time_that_the_site_gives_to_a_start() -> None:
    run = replace(servers_first(RUNNING), start_deadline_at=at(1800), assigned_at=at(0))
    run, _ = step(run, observed(0), observed(1), seconds=5)
    assert step(run, observed(0), observed(1), seconds=1804)[0].state is RunState.RUNNING
    run, _ = step(run, observed(0), observed(1), seconds=1805)
    assert "did not start on local-2 within 1800 s" in run.end_note


def waits_for_start() -> Run:
    """The servers run since 5 s, and the worker may start."""
    run, _ = step(servers_first(RUNNING), observed(0), observed(1), seconds=5)
    return run


@pytest.mark.parametrize(
    ("third", "text"),
    [
        ((), ""),
        ((pending(2, note="the pod is being made", fault=Fault.BEING_MADE),), ": the pod is"),
    ],
)
def test_a_later_role_has_to_start_in_time(third: tuple[ObservedRank, ...], text: str) -> None:
    ranks = observed(0), observed(1), *third
    run, outcome = step(waits_for_start(), *ranks, seconds=304)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(305))
    scan = Scan(a_listing({RUN: ranks}), unable={RUN: frozenset({"local-2"})})
    run = reconcile([run], scan, at(305), POLICY).runs[0]
    assert run.end_cause is EndCause.REJECTED_BY_SITE
    assert run.end_note.startswith(
        f"rank 2 of role worker did not start on local-2 within 300 s{ALL_THERE}{text}"
    )
    assert run.failed_nodes == ("local-2",)
    run, _ = step(run, exited(0, None, 9), exited(1, None, 9), seconds=306, done=[End(RUN)])
    assert run.exit is not None
    assert (run.exit.kind, run.exit.start_failed) == (ExitKind.LOST, True)
    assert run.exit.fault_class is FaultClass.PLATFORM


ALL_THERE = " after all that its role waits for"


def test_a_later_rank_that_is_lost_before_it_began_is_a_failed_start() -> None:
    gone = replace(lost(2), started_at=None)
    run, _ = step(waits_for_start(), observed(0), observed(1), gone)
    assert run.end_cause is EndCause.RANK_LOST
    ends = exited(0, None, 9), exited(1, None, 9), gone
    run, _ = step(run, *ends, seconds=306, done=[End(RUN)])
    assert run.exit is not None
    assert (run.exit.kind, run.exit.start_failed) == (ExitKind.LOST, True)
    assert run.failed_nodes == ("local-2",)


def test_a_rank_that_waits_is_not_lost_and_one_that_existed_is() -> None:
    run = waits_for_start()
    for _ in range(3):
        run, _ = step(run, observed(0), observed(1))
        assert run.state is RunState.RUNNING
    run, _ = step(run, observed(0), observed(1), observed(2))
    run, _ = step(run, observed(0), observed(1))
    assert run.end_cause is EndCause.RANK_LOST
    # A server is one of those that existed, too.
    run, _ = step(waits_for_start(), observed(0))
    assert run.end_cause is EndCause.RANK_LOST


def test_a_run_that_an_earlier_version_started_has_no_rank_that_waits() -> None:
    run = servers_first(state=RunState.RUNNING)
    assert waiting_roles(run) == frozenset()
    same, outcome = step(run, observed(0), observed(1), observed(2))
    assert (same, outcome.actions) == (run, ())
    run, _ = step(run, observed(0), observed(1))
    assert run.end_cause is EndCause.RANK_LOST


def test_a_run_of_which_an_earlier_version_started_half_runs_now() -> None:
    ready = servers_first()
    ready = replace(ready, ready_ranks=(0, 1))
    run, outcome = step(ready, observed(0), observed(1))
    assert (run.state, outcome.actions) == (RunState.RUNNING, (Launch(RUN, (2,)),))
    # Of a role that it had begun, the rest is started.
    worker = a_role("worker", 2, StartsAfter(role="ps", condition=READY))
    run, outcome = step(run_of(a_role("ps"), worker), observed(0), observed(1))
    assert (run.state, outcome.actions) == (RunState.RUNNING, (Launch(RUN, (2,)),))


# A request to leave while roles wait


def leader_last(condition: StartCondition = READY) -> Run:
    """The chief, rank 0, waits for two servers."""
    chief = a_role("chief", 1, StartsAfter(role="ps", condition=condition))
    run, _ = step(run_of(chief, a_role("ps", 2)), observed(1), observed(2), seconds=1)
    return run


WISHES = ["preempt_requested_at", "yield_requested_at"]


@pytest.mark.parametrize("wish", WISHES)
def test_no_later_role_starts_after_the_request_to_leave(wish: str) -> None:
    run = replace(waits_for_start(), **{wish: at(6)})
    run, outcome = step(run, observed(0), observed(1), seconds=7)
    assert (run.state, outcome.actions) == (RunState.RUNNING, ())
    run, _ = step(servers_first(), observed(0), observed(1), seconds=5)
    run, outcome = step(
        replace(run, **{wish: at(6)}), observed(0), observed(1), probed=[(0, 0), (1, 0)], seconds=7
    )
    assert outcome.actions == ()
    assert [each.may_since for each in run.role_starts] == [None, None]


WISHES = ["preempt_requested_at", "yield_requested_at"]


def is_saving(run: Run, wish: str, seconds: float) -> Run:
    return replace(run, **{wish: at(seconds)})  # type: ignore[arg-type]


def goes_on(run: Run, *ranks: ObservedRank, seconds: float) -> None:
    """Nothing ends it, and no time of a rank that has not begun makes the loop look at it."""
    run, outcome = step(run, *ranks, seconds=seconds)
    assert (run.state, outcome.actions) == (RunState.RUNNING, ())
    allowed = run.leaves_since and run.leaves_since + POLICY.exit_grace
    assert outcome.due_at == allowed


@pytest.mark.parametrize("wish", WISHES)
def test_a_gang_that_saves_is_not_ended_because_an_awaited_role_has_left(wish: str) -> None:
    after = StartsAfter(role="ps", condition=READY)
    run, _ = step(
        run_of(a_role("chief"), a_role("ps"), a_role("it", 1, after)), observed(0), observed(1)
    )
    goes_on(is_saving(run, wish, 10), observed(0), exited(1, 75), seconds=12)


@pytest.mark.parametrize("wish", WISHES)
def test_a_gang_that_saves_is_not_ended_because_a_later_rank_hangs(wish: str) -> None:
    run = run_of(a_role("chief"), a_role("it", 1, StartsAfter(role="chief")))
    run, _ = step(run, observed(0))
    run, outcome = step(run, observed(0), pending(1), seconds=6)
    assert outcome.due_at is not None
    saving = is_saving(run, wish, 315)
    fault = pending(1, note="no such image", fault=Fault.IMAGE_PULL, fault_since=at(6))
    goes_on(saving, observed(0), pending(1), seconds=320)
    goes_on(saving, observed(0), fault, seconds=320)
    # Without a request, either of them ends it.
    for late in (pending(1), fault):
        assert step(run, observed(0), late, seconds=100_000)[0].state is RunState.ENDING
    # Once nothing of it runs, nothing is left that could save.
    over, _ = step(saving, exited(0, 75), pending(1), seconds=320)
    assert over.end_cause is EndCause.KILL


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("second", [exited(1, 1), pending(1, start=1)])
def test_a_gang_that_saves_is_not_ended_because_a_restart_is_late(
    wish: str, second: ObservedRank
) -> None:
    run, _ = step(run_of(a_role("chief"), a_role("it", 1, restart=RULE)), observed(0), observed(1))
    run, _ = step(run, observed(0), exited(1, 1), seconds=6)
    assert run.restarts
    goes_on(is_saving(run, wish, 315), observed(0), second, seconds=320)


def test_rank_0_acknowledges_while_another_role_waits() -> None:
    run, _ = step(servers_first(), observed(0), observed(1), seconds=5)
    run = replace(run, preempt_requested_at=at(6), acked_at=at(8))
    run, outcome = step(run, observed(0), observed(1), seconds=9)
    assert (run.end_cause, outcome.actions) == (EndCause.GRACE_OVER, (End(RUN),))
    run, _ = step(run, exited(0, 75), exited(1, None, 9), done=[End(RUN)], seconds=19)
    assert run.exit is not None
    assert run.exit.kind is ExitKind.PREEMPTED


@pytest.mark.parametrize(
    ("more", "code", "kind"),
    [
        ({"acked_at": at(7)}, 75, ExitKind.PREEMPTED),
        ({}, 75, ExitKind.KILLED),
        ({"mode": PreemptMode.SIGNAL}, None, ExitKind.PREEMPTED),
    ],
)
def test_a_run_whose_first_ranks_have_left_is_over(
    more: dict[str, object], code: int | None, kind: ExitKind
) -> None:
    run, _ = step(servers_first(), observed(0), observed(1), seconds=5)
    if "mode" in more:
        assert run.spec is not None
        preemption = run.spec.preemption.model_copy(update={"mode": more["mode"]})
        run = replace(run, spec=run.spec.model_copy(update={"preemption": preemption}))
        more = {"signalled_at": at(6)}
    run = replace(run, preempt_requested_at=at(6), **more)
    signal = None if code is not None else 10
    left = exited(0, code, signal, seconds=7), exited(1, code, signal, seconds=7)
    run, outcome = step(run, *left, seconds=8)
    assert (run.state, outcome.actions) == (RunState.ENDING, (End(RUN),))
    run, _ = step(run, *left, done=[End(RUN)], seconds=9)
    assert run.exit is not None
    assert run.exit.kind is kind


def test_a_run_leaves_at_once_if_rank_0_has_not_started() -> None:
    run = replace(leader_last(), preempt_requested_at=at(6))
    assert run.state is RunState.RUNNING
    run, outcome = step(run, observed(1), observed(2), seconds=7)
    assert run.end_cause is EndCause.PREEMPTED_BEFORE_START
    assert outcome.actions == (EndRanks(RUN, (1, 2), 10.0),)
    run, _ = step(run, exited(1, None, 9), exited(2, None, 9), done=[End(RUN)], seconds=8)
    assert run.exit is not None
    assert run.exit.kind is ExitKind.PREEMPTED


def test_rank_0_may_start_after_all_others() -> None:
    run, outcome = step(leader_last(), observed(1), observed(2), probed=[(1, 0), (2, 0)])
    assert outcome.actions == (Launch(RUN, (0,)),)
    run, outcome = step(run, observed(0), observed(1), observed(2))
    assert (waiting_roles(run), outcome.actions) == (frozenset(), ())


def test_what_a_role_waits_for_is_said_from_the_row() -> None:
    run = leader_last()
    assert why_not_started(run, "chief") == "role chief waits until role ps is ready"
    assert why_not_started(run, "ps") == ""
    leaving = replace(run, preempt_requested_at=at(9))
    assert "does not start any more" in why_not_started(leaving, "chief")
    # Once it may start, its ranks may exist.
    run, _ = step(run, observed(1), observed(2), probed=[(1, 0), (2, 0)])
    assert why_not_started(run, "chief") == ""
    both = StartsAfter(role="ps", condition=READY), StartsAfter(role="db", condition=RUNNING)
    run, _ = step(run_of(a_role("ps"), a_role("db"), a_role("it", 1, *both)), observed(0))
    assert why_not_started(run, "it") == "role it waits until role ps is ready and role db runs"


def test_the_end_of_a_wait_is_an_event() -> None:
    """It is newer than the last report, which a leader with a faster clock may have published."""
    before = replace(waits_for_start(), delay=ReportedDelay(1, "why", at(7200), running=True))
    run, _ = step(before, observed(0), observed(1), observed(2))
    event = cleared_event(before, run, at(9))
    assert event is not None
    assert (event.detail, event.ranks, event.running) == ("", 0, True)
    assert event.noted_at > at(7200)
    assert cleared_event(run, run, at(9)) is None
    # Nothing to clear was reported.
    for delay in (None, ReportedDelay(1, "why", at(2))):
        assert cleared_event(before, replace(run, delay=delay), at(9)) is None
    assert cleared_event(servers_first(), before, at(9)) is None


def test_the_delay_names_what_is_waited_for() -> None:
    run = replace(servers_first(), ready_ranks=(0,))
    listing = a_listing({RUN: [observed(0), observed(1)]}).runs[RUN]
    assert delay_of(run, listing, "") == (
        1,
        "role worker waits until role ps is ready (1 of 2 ranks so far)",
    )
    run, _ = step(run, observed(0), observed(1))
    assert run.state is RunState.RUNNING
    assert delay_of(run, listing, "") == (
        1,
        "role worker waits until role ps is ready (1 of 2 ranks so far)",
    )
    run = replace(servers_first(), ready_ranks=(0,))
    listing = a_listing({RUN: [observed(0), pending(1, note="no image")]}).runs[RUN]
    assert delay_of(run, listing, "") == (2, "rank 1 on local-1: no image")


# The end


def ending(cause: EndCause = EndCause.KILL, **more: object) -> Run:
    run = servers_first(state=RunState.RUNNING)
    return replace(
        run,
        state=RunState.ENDING,
        ending_at=START,
        end_cause=cause,
        **more,  # type: ignore[arg-type]
    )


def test_roles_end_in_the_reverse_order_and_rank_0_in_the_last_stage() -> None:
    one = StartsAfter(role="chief")
    run = run_of(a_role("chief"), a_role("ps", 2, one), a_role("worker", 2, StartsAfter(role="ps")))
    assert end_stages(run) == ({3, 4}, {1, 2}, {0})
    # Rank 0 acknowledges for the gang, also where its role starts last.
    run = run_of(a_role("worker", 2, StartsAfter(role="ps")), a_role("ps"))
    assert end_stages(run) == ({1}, {2}, {0})
    assert end_stages(run_of(a_role("worker", 2), a_role("ps"))) == ({0, 1, 2},)


def test_the_next_stage_begins_when_the_former_one_is_over() -> None:
    everyone = observed(0), observed(1), observed(2)
    first = EndRanks(RUN, (2,), 10.0)
    run, outcome = step(ending(), *everyone, seconds=1)
    assert (outcome.actions, outcome.due_at) == ((first,), at(10))
    run, outcome = step(run, *everyone, seconds=2, done=[first])
    assert (outcome.actions, outcome.due_at) == ((), at(10))
    run, outcome = step(run, observed(0), observed(1), exited(2, None, 9), done=[first], seconds=3)
    assert outcome.actions == (End(RUN),)
    run, _ = step(
        run, exited(0, None, 9), exited(1, None, 9), exited(2, None, 9), done=[first, End(RUN)]
    )
    assert run.state is RunState.EXITED


def test_a_stage_takes_no_more_than_its_share_of_the_grace_period() -> None:
    everyone = observed(0), observed(1), observed(2)
    _, outcome = step(ending(), *everyone, seconds=10)
    assert outcome.actions == (End(RUN),)
    acked = ending(EndCause.GRACE_OVER, acked_at=START, preempt_requested_at=START)
    _, outcome = step(acked, *everyone, seconds=0.5)
    # What is left of the exit grace.
    assert outcome.actions == (EndRanks(RUN, (2,), 5.0),)
    _, outcome = step(acked, *everyone, seconds=5)
    assert outcome.actions == (End(RUN),)
    # A kill waits for nobody.
    killed = replace(acked, kill_requested_at=at(1))
    _, outcome = step(killed, *everyone, seconds=1)
    assert outcome.actions == (End(RUN, cut_short=True),)
    over = exited(0), exited(1), exited(2)
    _, outcome = step(killed, *everyone, seconds=1, done=[End(RUN, cut_short=True)])
    assert outcome.actions == ()
    done, _ = step(killed, *over, seconds=1, done=[End(RUN, cut_short=True)])
    assert done.state is RunState.EXITED


def test_a_successor_orders_earlier_stages_again() -> None:
    one = StartsAfter(role="chief")
    run = replace(
        run_of(a_role("chief"), a_role("ps", 1, one), a_role("worker", 1, StartsAfter(role="ps"))),
        state=RunState.ENDING,
        started_at=START,
        ending_at=START,
        end_cause=EndCause.KILL,
    )
    _, outcome = step(run, observed(0), observed(1), observed(2), seconds=7)
    assert outcome.actions == (EndRanks(RUN, (1, 2), 20 / 3),)


@pytest.mark.parametrize("cause", [EndCause.RANK_FAILED, EndCause.RANK_LOST, EndCause.SUPERSEDED])
def test_a_broken_gang_ends_at_once(cause: EndCause) -> None:
    _, outcome = step(ending(cause), observed(0), observed(1), observed(2), seconds=1)
    assert outcome.actions == (End(RUN),)


def test_a_run_that_never_started_ends_at_once() -> None:
    _, outcome = step(ending(started_at=None), observed(0), observed(1), seconds=1)
    assert outcome.actions == (End(RUN),)


# Restarts in place


def with_restarts(state: RunState = RunState.RUNNING, **rule: object) -> Run:
    """A server, rank 0, that is restarted in its place, and a worker."""
    return run_of(
        a_role("ps", 1, restart=RULE.model_copy(update=rule)), a_role("worker"), state=state
    )


def test_a_restart_is_noted_before_the_rank_is_started_again() -> None:
    ended = exited(0, 1), observed(1)
    run, outcome = step(with_restarts(), *ended, seconds=5)
    (restart,) = run.restarts
    assert (restart.rank, restart.count, restart.not_before) == (0, 1, at(6))
    assert (run.state, outcome.actions, outcome.due_at) == (RunState.RUNNING, (), at(6))
    # Nothing is noted twice for one end.
    again, outcome = step(run, *ended, seconds=6)
    assert again.restarts == run.restarts
    assert outcome.actions == (Launch(RUN, (0,)),)
    # The launcher may find its new process, or still the old one, as often as it likes.
    after, outcome = step(run, observed(0, start=1), observed(1), seconds=7)
    assert (after.state, outcome.actions) == (RunState.RUNNING, ())


def test_after_the_last_restart_the_end_counts() -> None:
    run = with_restarts()
    for number in (0, 1):
        run, _ = step(run, replace(exited(0, 1), start=number), observed(1), seconds=5)
        assert run.state is RunState.RUNNING
        assert run.restarts[0].count == number + 1
    run, outcome = step(run, replace(exited(0, 1), start=2), observed(1), seconds=5)
    assert run.end_cause is EndCause.RANK_FAILED
    assert outcome.actions == (End(RUN),)


def test_the_pauses_grow_up_to_a_minute() -> None:
    pauses = [rank_restarts.pause_seconds(count) for count in (0, 1, 2, 5, 6, 10_000)]
    assert pauses == [1, 2, 4, 32, 60, 60]


@pytest.mark.parametrize(
    ("run", "end", "restarted"),
    [
        (with_restarts(), exited(0, 0), False),
        (with_restarts(when=RestartWhen.ALWAYS), exited(0, 0), True),
        (with_restarts(when=RestartWhen.NEVER), exited(0, 1), False),
        (with_restarts(when=RestartWhen.EXIT_CODE, exit_codes=("137",)), exited(0, None, 9), True),
        (with_restarts(when=RestartWhen.EXIT_CODE, exit_codes=("137",)), exited(0, 1), False),
        (with_restarts(scope=RestartScope.GANG), exited(0, 1), False),
        (with_restarts(max_restarts=0), exited(0, 1), False),
        (with_restarts(max_restarts=None), exited(0, 1), True),
        (with_restarts(), lost(0), False),
        (replace(with_restarts(), preempt_requested_at=START), exited(0, 1), False),
        (replace(with_restarts(), kill_requested_at=START), exited(0, 1), False),
        (replace(with_restarts(), yield_requested_at=START), exited(0, 1), False),
    ],
)
def test_which_ends_are_restarted(run: Run, end: ObservedRank, restarted: bool) -> None:
    after, _ = step(run, end, observed(1))
    assert bool(after.restarts) is restarted


def test_no_restart_happens_after_the_request_to_leave() -> None:
    run, _ = step(with_restarts(), exited(0, 1), observed(1), seconds=5)
    asked = replace(run, preempt_requested_at=at(5))
    _, outcome = step(asked, exited(0, 1), observed(1), seconds=30)
    assert outcome.actions == ()


def test_a_run_is_not_over_while_a_restart_may_be_on_its_way() -> None:
    """Its order was given before the kill: only an order to end proves that nothing runs."""
    run, _ = step(with_restarts(), exited(0, 1), observed(1), seconds=5)
    run = replace(run, kill_requested_at=at(6))
    run, outcome = step(run, exited(0, 1), exited(1, 0), seconds=7)
    assert (run.state, outcome.actions) == (RunState.ENDING, (End(RUN),))
    run, _ = step(run, exited(0, 1), exited(1, 0), seconds=8, done=[End(RUN)])
    assert run.state is RunState.EXITED


def test_a_restarted_rank_has_to_become_ready_again() -> None:
    worker = a_role("worker", 1, StartsAfter(role="ps", condition=READY))
    run = run_of(a_role("ps", 2, restart=RULE), worker)
    run, outcome = step(run, observed(0, ready=True), exited(1, 1), seconds=5)
    assert (run.ready_ranks, outcome.actions) == ((0,), ())
    run, outcome = step(run, observed(0), exited(1, 1), seconds=6)
    assert outcome.actions == (Launch(RUN, (0, 1)),)
    run, outcome = step(run, observed(0), observed(1, start=1), seconds=7)
    assert outcome.actions == ()
    run, outcome = step(run, observed(0), observed(1, start=1), seconds=7, probed=[(1, 1)])
    assert outcome.actions == (Launch(RUN, (2,)),)


def test_the_event_of_a_restart_is_for_what_is_new_in_the_row() -> None:
    before = with_restarts()
    run, _ = step(before, exited(0, 1), observed(1), seconds=5)
    (event,) = rank_restarts.events(before, run, at(5))
    assert (event.rank, event.role, event.restarts, event.restarts_max) == (0, "ps", 1, 2)
    assert event.detail == "rank 0 ended with code 1"
    assert not list(rank_restarts.events(run, run, at(6)))


def paused(**more: object) -> Run:
    """The server waits for its first restart, from 6 s on."""
    run, _ = step(with_restarts(), exited(0, 1), observed(1), seconds=5)
    return replace(run, **more)


@pytest.mark.parametrize("wish", ["preempt_requested_at", "yield_requested_at"])
def test_a_run_that_leaves_restarts_nothing_and_ends_when_nothing_of_it_runs(wish: str) -> None:
    leaving = paused(**{wish: at(5)})
    run, outcome = step(leaving, exited(0, 1), observed(1), seconds=7)
    assert run.state is RunState.RUNNING
    assert not [each for each in outcome.actions if isinstance(each, Launch)]
    assert outcome.due_at is None or outcome.due_at > at(7)
    run, outcome = step(leaving, exited(0, 1), exited(1, 75), seconds=7)
    assert run.state is RunState.ENDING
    over, _ = step(run, exited(0, 1), exited(1, 75), seconds=8, done=[End(RUN)])
    assert over.exit is not None
    wanted = ExitKind.PREEMPTED if wish == "yield_requested_at" else ExitKind.KILLED
    assert over.exit.kind is wanted


def test_a_restart_that_does_not_begin_in_time_is_a_lost_rank() -> None:
    limit = 6 + START_SECONDS
    run, outcome = step(paused(), observed(1), seconds=limit - 1)
    assert (run.state, outcome.due_at) == (RunState.RUNNING, at(limit))
    run, _ = step(paused(), observed(1), seconds=limit)
    assert run.end_cause is EndCause.RANK_LOST
    assert run.end_note == "rank 0 was not restarted within 300 s"


def test_a_restarted_rank_that_runs_is_not_late() -> None:
    again = replace(observed(0), start=1)
    run, _ = step(paused(), again, observed(1), seconds=9_999)
    assert (run.state, run.end_cause) == (RunState.RUNNING, None)
    # One that vanished long after its restart is not started a second time with the same number.
    run, _ = step(paused(), observed(1), seconds=9_999)
    assert run.end_cause is EndCause.RANK_LOST


def test_a_restart_that_is_refused_ends_the_run() -> None:
    refused = {RUN: Refused(Fault.OVER_QUOTA, "over its quota")}
    scan = Scan(a_listing({RUN: [observed(1)]}), refused=refused)
    outcome = reconcile([paused()], scan, at(7), POLICY)
    assert outcome.runs[0].end_cause is EndCause.REJECTED_BY_SITE


def test_an_awaited_rank_that_is_restarted_is_not_ready_any_more() -> None:
    rule = RestartRule(when=RestartWhen.ON_FAILURE, scope=RestartScope.RANK)
    run, _ = step(servers_first(restart=rule), observed(0), observed(1), probed=[(0, 0)])
    assert run.ready_ranks == (0,)
    run, _ = step(run, exited(0, 1), observed(1), seconds=6)
    assert run.ready_ranks == ()
