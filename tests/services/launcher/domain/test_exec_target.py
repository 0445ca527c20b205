"""Which rank of which run a command runs in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import (
    Placement,
    Refusal,
    RefusalCode,
    Role,
    StartCondition,
    StartsAfter,
)
from services.launcher.domain.exec_target import find_rank
from services.launcher.domain.model import RoleStart, Run, RunState
from tests.kit.clock import START
from tests.kit.launcher_builders import a_spec

TASK = "tt"

PLACES = (
    Placement(rank=0, role="chief", role_index=0, node_id="n0"),
    Placement(rank=1, role="worker", role_index=0, node_id="n1"),
    Placement(rank=2, role="worker", role_index=1, node_id="n2"),
)


def a_run(state: RunState, attempt: int = 1) -> Run:
    return Run("task", attempt, state, placements=PLACES)


@pytest.mark.parametrize(
    ("rank", "role", "node"),
    [(0, "", "n0"), (2, "", "n2"), (0, "worker", "n1"), (1, "worker", "n2"), (0, "chief", "n0")],
)
def test_a_rank_is_counted_in_the_task_or_in_its_role(rank: int, role: str, node: str) -> None:
    found = find_rank(TASK, [a_run(RunState.RUNNING)], rank, role)
    assert not isinstance(found, Refusal)
    assert found[1].node_id == node


@pytest.mark.parametrize(
    ("rank", "role", "detail"),
    [
        (3, "", "the task has no rank 3; give 0 to 2"),
        (2, "worker", "role worker has no rank 2; give 0 to 1"),
        (-1, "", "no rank -1"),
        (0, "ps", "the task has no role ps; give one of chief, worker"),
    ],
)
def test_a_rank_that_does_not_exist_is_named_with_those_that_do(
    rank: int, role: str, detail: str
) -> None:
    found = find_rank(TASK, [a_run(RunState.RUNNING)], rank, role)
    assert isinstance(found, Refusal)
    assert found.code is RefusalCode.NOT_FOUND
    assert detail in found.detail
    assert len(found.errors) == 1


@pytest.mark.parametrize(
    ("states", "detail"),
    [
        ([], "does not run"),
        ([RunState.EARLY_REQUEST], "does not run"),
        ([RunState.ASSIGNED], "is starting"),
        ([RunState.ENDING], "is ending"),
        ([RunState.EXITED, RunState.ASSIGNED], "is starting"),
    ],
)
def test_a_task_that_does_not_run_is_refused(states: list[RunState], detail: str) -> None:
    runs = [a_run(state, attempt) for attempt, state in enumerate(states, 1)]
    found = find_rank(TASK, runs, 0, "")
    assert isinstance(found, Refusal)
    assert (found.code, detail in found.detail) == (RefusalCode.CONFLICT, True)
    assert f"`shiftwork wait {TASK} --for running`" in found.detail


def test_the_newest_running_attempt_counts() -> None:
    runs = [a_run(RunState.EXITED, 1), a_run(RunState.RUNNING, 2)]
    found = find_rank(TASK, runs, 0, "")
    assert not isinstance(found, Refusal)
    assert found[0].attempt == 2


def test_a_rank_whose_role_waits_is_refused_with_what_it_waits_for() -> None:
    after = StartsAfter(role="worker", condition=StartCondition.READY)
    roles = Role(name="chief", starts_after=(after,)), Role(name="worker", replicas=2)
    run = replace(
        a_run(RunState.RUNNING),
        spec=a_spec(3).model_copy(update={"roles": roles}),
        role_starts=(RoleStart("chief"), RoleStart("worker", exists_since=START)),
    )
    found = find_rank(TASK, [run], 0, "")
    assert isinstance(found, Refusal)
    assert found.code is RefusalCode.CONFLICT
    assert found.detail == (
        "role chief waits until role worker is ready; try again when it runs, or give a rank of"
        " another role"
    )
    found = find_rank(TASK, [run], 1, "worker")
    assert not isinstance(found, Refusal)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_running_rank_is_found_while_a_sibling_of_its_role_is_pending(leaves: bool) -> None:
    """The row does not say which of them runs: the runtime does, and refuses the others."""
    after = StartsAfter(role="chief", condition=StartCondition.RUNNING)
    roles = Role(name="chief"), Role(name="worker", replicas=2, starts_after=(after,))
    started = RoleStart("chief", exists_since=START), RoleStart("worker", may_since=START)
    run = replace(
        a_run(RunState.RUNNING),
        spec=a_spec(3).model_copy(update={"roles": roles}),
        role_starts=started,
        preempt_requested_at=START if leaves else None,
    )
    found = find_rank(TASK, [run], 1, "worker")
    assert not isinstance(found, Refusal)
    assert found[1].node_id == "n2"
