"""Which ends of ranks count for the rules of a task, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import (
    Completion,
    ExitKind,
    Placement,
    PreemptionPolicy,
    PreemptMode,
    Role,
)
from services.launcher.domain.model import EndCause, ObservedRank, Run, RunState
from services.launcher.domain.reconcile import End, Policy, Scan
from tests.kit.clock import at
from tests.kit.launcher_builders import a_listing, a_run, exited, lost, observed, reconcile, run_id

RUN = run_id()
POLICY = Policy(exit_grace=timedelta(seconds=10))
NAMES = ("chief", "worker", "worker")


def a_gang(
    success: str = "", failure: str = "", *, names: Sequence[str] = NAMES, signal: bool = False
) -> Run:
    """A running gang with these rules."""
    roles = tuple(
        Role(name=name, replicas=names.count(name), command=("a",)) for name in dict.fromkeys(names)
    )
    places = tuple(
        Placement(
            rank=rank, role=name, role_index=names[:rank].count(name), node_id=f"local-{rank}"
        )
        for rank, name in enumerate(names)
    )
    run = a_run(ranks=len(names))
    assert run.spec is not None
    mode = PreemptMode.SIGNAL if signal else PreemptMode.SDK
    own = Completion(success=tuple(filter(None, [success])), failure=tuple(filter(None, [failure])))
    preemption = PreemptionPolicy(mode=mode, signal="USR1", ack_deadline_seconds=60)
    update = {"roles": roles, "completion": own, "preemption": preemption}
    return replace(run, spec=run.spec.model_copy(update=update), placements=places)


def step(run: Run, *ranks: ObservedRank, seconds: float = 9, done: Sequence[End] = ()) -> Run:
    """The run after a scan."""
    scan = Scan(a_listing({RUN: ranks}), frozenset(done))
    outcome = reconcile([run], scan, at(seconds), POLICY)
    return outcome.runs[0] if outcome.runs else run


def kind_of(run: Run) -> ExitKind | None:
    return run.exit.kind if run.exit else None


SDK = False
BY_SIGNAL = True


@pytest.mark.parametrize("signal", [SDK, BY_SIGNAL])
@pytest.mark.parametrize("code", [0, 75])
def test_ranks_that_leave_on_request_finish_nothing_while_the_chief_saves(
    signal: bool, code: int
) -> None:
    run = a_gang("worker[ended]", "chief[0]", signal=signal)
    asked = replace(run, preempt_requested_at=at(1))
    workers = (exited(1, code, seconds=2), exited(2, code, seconds=3))
    saving = step(asked, observed(0), *workers)
    assert saving.state is RunState.RUNNING
    # It saves in time, or is ended at its deadline: in no case has the task succeeded.
    left = exited(0, 75, seconds=6)
    if signal:
        assert kind_of(step(saving, left, *workers)) is ExitKind.PREEMPTED
    else:
        saved = replace(saving, acked_at=at(5))
        assert kind_of(step(saved, left, *workers)) is ExitKind.PREEMPTED
        killed = step(replace(saving, kill_requested_at=at(8)), observed(0), *workers)
        assert (killed.state, killed.end_cause) == (RunState.ENDING, EndCause.KILL)


def test_workers_that_end_with_0_on_request_count_once_rank_0_has_finished() -> None:
    asked = replace(a_gang("worker[all]"), preempt_requested_at=at(1))
    workers = (exited(1, seconds=2), exited(2, seconds=3))
    assert step(asked, observed(0), *workers).state is RunState.RUNNING
    assert kind_of(step(asked, exited(0, seconds=4), *workers)) is ExitKind.OK


def test_a_tolerated_failure_does_not_turn_leaving_on_a_signal_into_a_failure() -> None:
    run = replace(a_gang("chief[0]", "chief[0]", signal=True), preempt_requested_at=at(3))
    over = step(run, exited(0, 75, seconds=4), exited(1, 1, seconds=1), exited(2, 75, seconds=4))
    assert kind_of(over) is ExitKind.PREEMPTED
    over = step(run, exited(0, 1, seconds=4), exited(1, 75, seconds=4), exited(2, 75, seconds=4))
    assert kind_of(over) is ExitKind.FAILED


def test_an_acknowledged_run_is_preempted_whatever_the_clocks_of_its_nodes_say() -> None:
    """The node's clock is behind: the end of the chief seems to precede the request."""
    run = replace(a_gang("chief[0]"), preempt_requested_at=at(6), acked_at=at(7))
    over = step(run, exited(0, seconds=2), exited(1, 75, seconds=2), exited(2, 75, seconds=2))
    assert kind_of(over) is ExitKind.PREEMPTED


def test_a_success_that_was_decided_stands_whatever_is_acknowledged_later() -> None:
    ending = step(a_gang("chief[0]"), exited(0), observed(1), observed(2), seconds=5)
    assert ending.end_cause is EndCause.SUCCEEDED
    asked = replace(ending, preempt_requested_at=at(6), acked_at=at(7))
    over = step(asked, exited(0), exited(1, 75, seconds=8), exited(2, 75, seconds=8))
    assert kind_of(over) is ExitKind.OK


def test_ends_on_a_kill_prove_nothing_whatever_the_clocks_of_the_nodes_say() -> None:
    killed = step(
        replace(a_gang("chief[0]"), kill_requested_at=at(6)), *map(observed, range(3)), seconds=7
    )
    assert killed.end_cause is EndCause.KILL
    late = (exited(0, seconds=2), exited(1, None, 15, seconds=2), exited(2, None, 15, seconds=2))
    assert kind_of(step(killed, *late, seconds=12)) is ExitKind.KILLED


def test_a_failure_that_was_decided_stands_whatever_is_acknowledged_later() -> None:
    ending = step(a_gang(), observed(0), exited(1, 1), observed(2), seconds=5)
    assert ending.end_cause is EndCause.RANK_FAILED
    asked = replace(ending, preempt_requested_at=at(6), acked_at=at(7))
    over = step(asked, exited(0, 75, seconds=8), exited(1, 1), exited(2, 75, seconds=8))
    assert kind_of(over) is ExitKind.FAILED


@pytest.mark.parametrize("names", [("chief", "worker"), ("worker", "chief")])
def test_at_one_time_the_success_comes_first_whatever_the_order_of_roles(
    names: tuple[str, ...],
) -> None:
    chief = names.index("chief")
    ranks = (exited(chief, 0), exited(1 - chief, 1))
    assert kind_of(step(a_gang("chief[0]", names=names), *ranks)) is ExitKind.OK


@pytest.mark.parametrize(("worker", "kind"), [(4, ExitKind.FAILED), (6, ExitKind.OK)])
def test_ends_count_in_the_order_of_their_times(worker: float, kind: ExitKind) -> None:
    run = a_gang("chief[0]", "worker[any]")
    over = step(run, exited(0, seconds=5), exited(1, 1, seconds=worker), exited(2, seconds=8))
    assert kind_of(over) is kind


def test_a_lost_rank_does_not_undo_a_success() -> None:
    run = step(a_gang("chief[0]"), exited(0), lost(1), observed(2))
    assert run.end_cause is EndCause.SUCCEEDED
    assert kind_of(step(run, exited(0), lost(1), exited(2, None, 9))) is ExitKind.OK


def test_a_success_before_a_kill_is_kept_whatever_the_runtime_forgets() -> None:
    killed = replace(a_gang("chief[0]"), kill_requested_at=at(6))
    run = step(killed, exited(0, seconds=5), observed(1), observed(2))
    assert run.end_cause is EndCause.SUCCEEDED
    assert kind_of(step(run, done=[End(RUN)])) is ExitKind.OK


def test_a_kill_comes_before_a_failure() -> None:
    killed = replace(a_gang(), kill_requested_at=at(6))
    assert step(killed, observed(0), exited(1, 1), observed(2)).end_cause is EndCause.KILL


def test_a_gang_that_cannot_succeed_any_more_has_failed() -> None:
    run = step(a_gang("chief[0]", "worker[all]"), exited(0, 3), observed(1), observed(2))
    assert run.end_cause is EndCause.RANK_FAILED
    assert run.end_note == "no rule for success can be met any more: rank 0 ended with code 3"


def test_a_program_that_yielded_is_not_done_whatever_its_codes() -> None:
    """Its wish came when it was being ended already."""
    killed = replace(a_gang(), kill_requested_at=at(3), yield_requested_at=at(4))
    done = [exited(rank, seconds=5) for rank in range(3)]
    for run, kind in (
        (killed, ExitKind.PREEMPTED),
        (step(killed, *map(observed, range(3)), seconds=4), ExitKind.KILLED),
    ):
        over = step(run, *done)
        assert kind_of(over) is kind
        assert over.exit is not None
        assert not over.exit.yielded


def test_the_failure_that_was_decided_is_kept_whatever_the_clocks_of_the_nodes_say() -> None:
    """The node of rank 1 is behind: its end by our order seems to come first."""
    ending = step(a_gang(), exited(0, 7, seconds=5), observed(1), observed(2), seconds=6)
    assert ending.end_cause is EndCause.RANK_FAILED
    over = step(ending, exited(0, 7), exited(1, 1, seconds=1), exited(2, None, 15, seconds=1))
    assert over.exit is not None
    assert (over.exit.failed_rank, over.exit.detail) == (0, "rank 0 ended with code 7")
