"""Runs in debug mode: nothing judges their ranks, and the ends of single ranks are published."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import (
    Completion,
    Continuation,
    DebugProgram,
    ExitKind,
    Override,
    RestartRule,
    RestartScope,
    RestartWhen,
    Role,
    RunMode,
    StartsAfter,
    TaskSpec,
)
from services.launcher.domain import debug_runs
from services.launcher.domain.grace_periods import Grace, grace_for
from services.launcher.domain.model import EndCause, ObservedRank, Run, RunState
from services.launcher.domain.reconcile import Policy, Scan
from services.launcher.role_overrides import (
    COMMAND_CHARACTERS_MAX,
    COMMAND_VARIABLE,
    TOO_LONG,
    WAIT,
    in_debug_mode,
    role_of_attempt,
)
from tests.kit.clock import at
from tests.kit.launcher_builders import (
    a_checkpoint,
    a_listing,
    a_run,
    a_spec,
    exited,
    lost,
    observed,
    reconcile,
    run_id,
)

RUN = run_id()
POLICY = Policy(exit_grace=timedelta(seconds=10))


def debug_spec(ranks: int = 2, **changes: object) -> TaskSpec:
    """A task whose rules would judge its ranks."""
    rule = RestartRule(when=RestartWhen.ALWAYS, scope=RestartScope.RANK, max_restarts=5)
    update = {
        "run_mode": RunMode.DEBUG,
        "completion": Completion(success=("worker[any]",), failure=("worker[any]",)),
        **changes,
    }
    spec = a_spec(ranks).model_copy(update=update)
    roles = tuple(role.model_copy(update={"restart": rule}) for role in spec.roles)
    return in_debug_mode(spec.model_copy(update={"roles": roles}), 1)


def a_debug_run(ranks: int = 2) -> Run:
    return a_run(ranks=ranks, spec=debug_spec(ranks))


def step(run: Run, *ranks: ObservedRank, seconds: float = 9) -> Run:
    outcome = reconcile([run], Scan(a_listing({RUN: ranks})), at(seconds), POLICY)
    return outcome.runs[0] if outcome.runs else run


@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_rank_that_ends_is_published_once_and_decides_nothing(code: int) -> None:
    before = a_debug_run()
    run = step(before, exited(0, code), observed(1))
    assert (run.state, run.restarts) == (RunState.RUNNING, ())
    (event,) = debug_runs.events(before, run, at(9))
    assert (event.exit.rank, event.exit.code, event.role) == (0, code, "worker")
    again = step(run, exited(0, code), observed(1))
    assert list(debug_runs.events(run, again, at(10))) == []


def test_a_run_is_over_when_every_rank_has_ended_whatever_the_codes() -> None:
    run = step(a_debug_run(), exited(0, 3), exited(1, None, 9))
    assert run.exit is not None
    assert (run.exit.kind, run.exit.debug, run.exit.final) == (ExitKind.OK, True, False)
    assert run.exit.detail == "every rank has ended: rank 0 with code 3, rank 1 with signal 9"


def test_a_lost_rank_ends_the_run_as_lost() -> None:
    run = step(a_debug_run(), observed(0), lost(1))
    assert (run.state, run.end_cause) == (RunState.ENDING, EndCause.RANK_LOST)
    run = step(run, exited(0, None, 15, seconds=10), lost(1), seconds=12)
    assert run.exit is not None
    assert run.exit.kind is ExitKind.LOST


def test_a_killed_run_is_killed_although_its_programs_end_with_0() -> None:
    killed = step(replace(a_debug_run(), kill_requested_at=at(8)), observed(0), observed(1))
    assert (killed.end_cause, grace_for(killed)) == (EndCause.KILL, Grace.MATES)
    over = step(killed, exited(0, seconds=10), exited(1, seconds=10), seconds=11)
    assert over.exit is not None
    assert (over.exit.kind, over.ended_ranks) == (ExitKind.KILLED, ())


def test_the_spec_in_debug_mode_has_no_rules_and_shows_the_real_command() -> None:
    role = Role(
        name="b",
        replicas=1,
        command=("python", "train.py"),
        args=("--name", "it's"),
        env={"A": "1"},
        starts_after=(StartsAfter(role="a"),),
        resume=Override(command=("python", "again.py"), env={"A": "2"}),
        debug=DebugProgram(command=("/usr/sbin/sshd",), args=("-D",)),
    )
    spec = a_spec().model_copy(update={"roles": (role,)})
    (first,) = in_debug_mode(spec, 1).roles
    assert (first.command, first.args, first.starts_after) == (("/usr/sbin/sshd",), ("-D",), ())
    assert first.env == {"A": "1", COMMAND_VARIABLE: "python train.py --name 'it'\"'\"'s'"}
    plain = role.model_copy(update={"debug": None})
    (later,) = in_debug_mode(spec.model_copy(update={"roles": (plain,)}), 2).roles
    assert (later.command, later.args) == (WAIT, ())
    assert later.env == {"A": "2", COMMAND_VARIABLE: "python again.py"}


def test_a_task_that_begins_from_a_checkpoint_of_another_one_resumes_at_once() -> None:
    role = Role(name="a", replicas=1, command=("x",), resume=Override(command=("again",)))
    spec = a_spec().model_copy(update={"roles": (role,)})
    for checkpoint, expected in ((None, "x"), (a_checkpoint(), "again")):
        before = Continuation(task_id="other", chain="other", checkpoint=checkpoint)
        begins = spec.model_copy(update={"continues": before})
        assert role_of_attempt(role, begins, 1).command == (expected,)
        assert in_debug_mode(begins, 1).roles[0].env[COMMAND_VARIABLE] == expected


def test_a_command_that_is_too_long_for_a_variable_is_not_shown() -> None:
    role = Role(name="a", replicas=1, command=("x", "y" * COMMAND_CHARACTERS_MAX))
    (found,) = in_debug_mode(a_spec().model_copy(update={"roles": (role,)}), 1).roles
    assert found.env[COMMAND_VARIABLE] == TOO_LONG
