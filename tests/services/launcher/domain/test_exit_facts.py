"""The facts that a run's exit carries: the fault, its class, and whether a role's restart rule
allows no further attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import (
    Completion,
    ExitKind,
    Fault,
    FaultClass,
    Placement,
    RankExit,
    RestartRule,
    RestartScope,
    RestartWhen,
    Role,
    RunExit,
)
from services.launcher.domain.model import EndCause, ObservedRank, RankState, Refused, Run, RunState
from services.launcher.domain.reconcile import End, Policy, Scan
from tests.kit.clock import START, at
from tests.kit.launcher_builders import (
    a_listing,
    a_run,
    exited,
    observed,
    reconcile,
    run_id,
)

RUN = run_id()
C, F, W = FaultClass, Fault, RestartWhen
NEVER = RestartRule(when=W.NEVER)
SIGNALS = RestartRule(when=W.EXIT_CODE, exit_codes=("128-255",))


def step(run: Run, ranks: Sequence[ObservedRank], **more: object) -> Run:
    refused: Refused | None = more.pop("refused", None)  # type: ignore[assignment]
    done = frozenset(more.pop("done", ()))  # type: ignore[call-overload]
    scan = Scan(a_listing({RUN: ranks}), done, {RUN: refused} if refused else {})
    outcome = reconcile([run], scan, at(5), Policy(exit_grace=timedelta(seconds=10)))
    return outcome.runs[0] if outcome.runs else run


def a_gang(
    state: RunState = RunState.RUNNING,
    *,
    chief: RestartRule | None = None,
    worker: RestartRule | None = None,
    failure: tuple[str, ...] = (),
    **changes: object,
) -> Run:
    """A chief and two workers."""
    roles = (
        Role(name="chief", replicas=1, command=("a",), restart=chief),
        Role(name="worker", replicas=2, command=("b",), restart=worker),
    )
    run = a_run(state, ranks=3)
    assert run.spec is not None
    own = Completion(success=("chief[0]",), failure=failure) if failure else None
    spec = run.spec.model_copy(update={"roles": roles, "nodes": 3, "completion": own})
    placements = tuple(
        Placement(rank=rank, role=role, role_index=index, node_id=f"local-{rank}", gpus=(0,))
        for rank, (role, index) in enumerate([("chief", 0), ("worker", 0), ("worker", 1)])
    )
    return replace(run, spec=spec, placements=placements, **changes)  # type: ignore[arg-type]


def over(run: Run, ranks: Sequence[ObservedRank]) -> RunExit:
    """The exit once all ranks are over: those that run are killed."""
    run = step(run, ranks)
    killed = (replace(exited(rank.rank, 143), exited_at=at(6)) for rank in ranks)
    left = [rank if rank.over else end for rank, end in zip(ranks, killed, strict=True)]
    if run.state is not RunState.EXITED:
        run = step(run, left, done=[End(RUN)])
    assert run.exit is not None
    return run.exit


def out_of_memory(rank: int) -> ObservedRank:
    return replace(exited(rank, None, 9), fault=F.OUT_OF_MEMORY, note="out of memory")


def lost(rank: int, fault: Fault | None) -> ObservedRank:
    return observed(rank, RankState.LOST, fault=fault)


@pytest.mark.parametrize(
    ("rank", "kind", "fault_class", "fault"),
    [
        (exited(1, 1), ExitKind.FAILED, C.UNKNOWN, F.UNSPECIFIED),
        (exited(1, None, 15), ExitKind.FAILED, C.TRANSIENT, F.UNSPECIFIED),
        (exited(1, 127), ExitKind.FAILED, C.USER, F.UNSPECIFIED),
        (out_of_memory(1), ExitKind.FAILED, C.USER, F.OUT_OF_MEMORY),
        (lost(1, F.EVICTED), ExitKind.LOST, C.PLATFORM, F.EVICTED),
        (lost(1, None), ExitKind.LOST, C.PLATFORM, F.UNSPECIFIED),
    ],
)
def test_the_exit_says_what_was_wrong_with_the_rank_that_decided(
    rank: ObservedRank, kind: ExitKind, fault_class: FaultClass, fault: Fault
) -> None:
    found = over(a_gang(), [observed(0), rank, observed(2)])
    assert (found.kind, found.fault_class, found.fault) == (kind, fault_class, fault)
    assert found.ranks[1].fault is fault
    assert not found.final


@pytest.mark.parametrize(
    ("fault", "kind", "fault_class"),
    [
        (F.INVALID_POD, ExitKind.FAILED, C.USER),
        (F.OVER_QUOTA, ExitKind.LOST, C.PLATFORM),
    ],
)
def test_the_exit_says_why_a_launch_was_refused(
    fault: Fault, kind: ExitKind, fault_class: FaultClass
) -> None:
    run = step(a_gang(RunState.ASSIGNED), [], refused=Refused(fault, "no"))
    # The refusal is forgotten with the leader that received it.
    run = step(run, [], done=[End(RUN)])
    assert run.exit is not None
    assert (run.exit.kind, run.exit.fault_class, run.exit.fault) == (kind, fault_class, fault)


def test_a_rank_that_cannot_start_decides_and_not_those_that_are_ended_because_of_it() -> None:
    waits = ObservedRank(
        1, "local-1", RankState.PENDING, fault=F.INVALID_IMAGE, fault_since=START, note="no image"
    )
    run = step(a_gang(RunState.ASSIGNED, chief=NEVER), [observed(0), waits, observed(2)])
    assert run.end_cause is EndCause.CANNOT_START
    killed = [replace(exited(rank, 143), exited_at=at(6)) for rank in (0, 2)]
    run = step(run, killed, done=[End(RUN)])
    assert run.exit is not None
    assert (run.exit.fault_class, run.exit.fault) == (C.USER, F.INVALID_IMAGE)
    assert (run.exit.failed_rank, run.exit.final) == (None, False)


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_was_killed_or_has_succeeded_has_no_class(code: int) -> None:
    run = a_gang(RunState.ENDING, ending_at=START, end_cause=EndCause.KILL)
    run = step(run, [exited(rank, code) for rank in range(3)], done=[End(RUN)])
    assert run.exit is not None
    assert (run.exit.fault_class, run.exit.final) == (C.UNSPECIFIED, False)


@pytest.mark.parametrize(
    ("chief", "worker", "rank", "final"),
    [
        (None, None, exited(1, 1), False),
        (NEVER, None, exited(1, 1), False),
        (None, NEVER, exited(1, 1), True),
        (None, NEVER, exited(0, 1), False),
        (None, NEVER, out_of_memory(1), True),
        (None, SIGNALS, exited(1, 1), True),
        (None, SIGNALS, exited(1, 137), False),
        (None, SIGNALS, exited(1, None, 9), False),
        (None, RestartRule(when=W.ON_FAILURE), exited(1, 1), False),
        # What happened to a rank is not its program's failure.
        (None, NEVER, lost(1, F.NODE_LOST), False),
        # A rule of the scope rank says the same of what it does not restart in its place.
        (None, RestartRule(when=W.NEVER, scope=RestartScope.RANK), exited(1, 1), True),
    ],
)
def test_the_rule_of_the_failed_ranks_role_decides(
    chief: RestartRule | None, worker: RestartRule | None, rank: ObservedRank, final: bool
) -> None:
    ranks = [observed(0), observed(1), observed(2)]
    ranks[rank.rank] = rank
    assert over(a_gang(chief=chief, worker=worker), ranks).final is final


def test_with_completion_rules_the_rank_that_met_the_rule_decides() -> None:
    run = a_gang(worker=NEVER, failure=("chief[0]",))
    first = replace(exited(1, 3), exited_at=at(1))
    found = over(run, [replace(exited(0, 1), exited_at=at(2)), first, observed(2)])
    assert (found.failed_rank, found.final) == (0, False)
    found = over(a_gang(chief=NEVER, failure=("chief[0]",)), [exited(0, 1), first, observed(2)])
    assert (found.failed_rank, found.final) == (0, True)


def test_the_failure_is_remembered_when_the_runtime_forgets_it() -> None:
    run = step(a_gang(worker=SIGNALS), [observed(0), exited(1, 3), observed(2)])
    assert run.end_rank == RankExit(rank=1, code=3)
    for left in ([], [replace(exited(rank, 143), exited_at=at(6)) for rank in (0, 2)]):
        ended = step(run, left, done=[End(RUN)])
        assert ended.exit is not None
        facts = (ended.exit.failed_rank, ended.exit.fault_class, ended.exit.final)
        assert facts == (1, C.UNKNOWN, True)
        assert ended.exit.detail == "rank 1 ended with code 3"


def test_a_program_that_fails_when_it_is_requested_to_leave_ends_nothing_for_good() -> None:
    run = a_gang(chief=NEVER, worker=NEVER, preempt_requested_at=START)
    found = over(run, [exited(0), exited(1, 1), exited(2)])
    assert (found.kind, found.final) == (ExitKind.FAILED, False)


def test_a_request_that_comes_after_the_failure_does_not_undo_it() -> None:
    run = step(a_gang(worker=NEVER), [observed(0), exited(1, 1), observed(2)])
    late = replace(run, preempt_requested_at=at(6))
    ended = step(late, [exited(0, None, 9), exited(1, 1), exited(2, None, 9)], done=[End(RUN)])
    assert ended.exit is not None
    assert (ended.exit.kind, ended.exit.final) == (ExitKind.FAILED, True)
