from __future__ import annotations

from itertools import product

import pytest

from libs.contracts.messages import ExitKind, Goal, ReasonCode, TaskState
from libs.contracts.task_states import HOLDING, TERMINAL
from services.scheduler.domain.model.lifecycle import (
    EXIT_RULE,
    GOALS,
    IGNORED,
    STATES,
    TRANSITIONS,
    RunEnd,
    Trigger,
    exit_rule,
    render,
)

GOAL_VALUES = (Goal.RUN, Goal.PAUSE, Goal.STOP)
EXIT_TRIGGERS = [trigger for trigger in Trigger if trigger.value.startswith("exit")]


def test_every_pair_is_in_exactly_one_table() -> None:
    every = set(product(STATES, Trigger))
    assert set(TRANSITIONS) | IGNORED == every
    assert not set(TRANSITIONS) & IGNORED


def test_every_state_can_be_reached_from_queued() -> None:
    reached, new = {TaskState.QUEUED}, {TaskState.QUEUED}
    while new:
        new = {to for (state, _), to in TRANSITIONS.items() if state in new} - reached
        reached |= new
    assert reached == set(STATES)


def test_terminal_states_are_closed() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in TERMINAL]


def test_from_every_state_that_is_not_terminal_an_end_can_be_reached() -> None:
    ends = set(TERMINAL)
    for _ in STATES:
        ends |= {state for (state, _), to in TRANSITIONS.items() if to in ends}
    assert ends == set(STATES)


def test_only_an_observed_exit_frees_what_a_run_holds() -> None:
    freeing = {
        trigger
        for (state, trigger), to in TRANSITIONS.items()
        if state in HOLDING and to not in HOLDING
    }
    assert freeing == set(EXIT_TRIGGERS)


def test_only_an_assignment_takes_capacity() -> None:
    taking = {
        trigger
        for (state, trigger), to in TRANSITIONS.items()
        if state not in HOLDING and to in HOLDING
    }
    assert taking == {Trigger.ASSIGN}


def test_goals_cover_every_state_and_ask_only_for_legal_transitions() -> None:
    assert set(GOALS) == set(product(GOAL_VALUES, STATES))
    for (_, state), trigger in GOALS.items():
        assert trigger is None or (state, trigger) in TRANSITIONS


def ended(
    kind: ExitKind,
    *,
    state: TaskState = TaskState.RUNNING,
    goal: Goal = Goal.RUN,
    end: ReasonCode | None = None,
    retries: bool = False,
    used_up: bool = False,
    limited: bool = False,
    final: bool = False,
    yielded: bool = False,
) -> RunEnd:
    return RunEnd(
        kind=kind,
        state=state,
        goal=goal,
        end_reason=end,
        retries_left=retries,
        starts_used_up=used_up,
        limits_losses=limited,
        final=final,
        yielded=yielded,
    )


MAX, PAUSE = ReasonCode.MAX_RUN_TIME, ReasonCode.GOAL_PAUSE
RULE, STOP = ReasonCode.RESTART_NOT_ALLOWED, ReasonCode.GOAL_STOP
NO_START = ReasonCode.START_ATTEMPTS_USED_UP
P, K = TaskState.PREEMPTING, TaskState.KILLING


@pytest.mark.parametrize(
    ("end", "trigger", "code"),
    [
        (ended(ExitKind.OK), Trigger.EXIT_SUCCEEDED, ReasonCode.SUCCEEDED),
        # The work is done: neither goal nor deadline takes that away.
        (ended(ExitKind.OK, goal=Goal.STOP, end=MAX), Trigger.EXIT_SUCCEEDED, ReasonCode.SUCCEEDED),
        (
            ended(ExitKind.FAILED, goal=Goal.STOP, end=MAX),
            Trigger.EXIT_STOPPED,
            ReasonCode.GOAL_STOP,
        ),
        (ended(ExitKind.PREEMPTED, goal=Goal.PAUSE, end=MAX), Trigger.EXIT_FAILED, MAX),
        (ended(ExitKind.FAILED, goal=Goal.PAUSE), Trigger.EXIT_PAUSED, ReasonCode.GOAL_PAUSE),
        (ended(ExitKind.PREEMPTED), Trigger.EXIT_REQUEUED, ReasonCode.RUN_PREEMPTED),
        (ended(ExitKind.PREEMPTED, yielded=True), Trigger.EXIT_REQUEUED, ReasonCode.YIELDED),
        (
            ended(ExitKind.PREEMPTED, yielded=True, goal=Goal.STOP),
            Trigger.EXIT_STOPPED,
            ReasonCode.GOAL_STOP,
        ),
        (ended(ExitKind.PREEMPTED, yielded=True, goal=Goal.PAUSE), Trigger.EXIT_PAUSED, PAUSE),
        # It was asked to go meanwhile: that is why it waits.
        (
            ended(ExitKind.PREEMPTED, yielded=True, state=P),
            Trigger.EXIT_REQUEUED,
            ReasonCode.RUN_PREEMPTED,
        ),
        (ended(ExitKind.KILLED), Trigger.EXIT_REQUEUED, ReasonCode.RUN_KILLED),
        (ended(ExitKind.LOST), Trigger.EXIT_REQUEUED, ReasonCode.RUN_LOST),
        (ended(ExitKind.LOST, used_up=True), Trigger.EXIT_FAILED, NO_START),
        (ended(ExitKind.LOST, goal=Goal.PAUSE, used_up=True), Trigger.EXIT_PAUSED, PAUSE),
        # With a limit of its own a loss is a retry, unless the run was to leave anyway.
        (
            ended(ExitKind.LOST, limited=True, retries=True),
            Trigger.EXIT_REQUEUED,
            ReasonCode.RUN_LOST,
        ),
        (ended(ExitKind.LOST, limited=True), Trigger.EXIT_FAILED, ReasonCode.RETRIES_USED_UP),
        (ended(ExitKind.LOST, limited=True, state=P), Trigger.EXIT_REQUEUED, ReasonCode.RUN_LOST),
        (ended(ExitKind.LOST, limited=True, goal=Goal.PAUSE), Trigger.EXIT_PAUSED, PAUSE),
        (
            ended(ExitKind.LOST, limited=True, retries=True, used_up=True),
            Trigger.EXIT_FAILED,
            NO_START,
        ),
        # A final failure came before any request to leave: only success, stop and the end of the
        # task as a whole come first.
        (ended(ExitKind.FAILED, final=True, retries=True), Trigger.EXIT_FAILED, RULE),
        (ended(ExitKind.FAILED, final=True, retries=True, state=P), Trigger.EXIT_FAILED, RULE),
        (ended(ExitKind.FAILED, final=True, state=K, goal=Goal.PAUSE), Trigger.EXIT_FAILED, RULE),
        (ended(ExitKind.FAILED, final=True, goal=Goal.STOP), Trigger.EXIT_STOPPED, STOP),
        (ended(ExitKind.FAILED, final=True, end=MAX), Trigger.EXIT_FAILED, MAX),
        (ended(ExitKind.KILLED, final=True), Trigger.EXIT_REQUEUED, ReasonCode.RUN_KILLED),
        # Only what is lost counts as a start that did not come about.
        (ended(ExitKind.KILLED, used_up=True), Trigger.EXIT_REQUEUED, ReasonCode.RUN_KILLED),
        (ended(ExitKind.FAILED, state=P), Trigger.EXIT_REQUEUED, ReasonCode.FAILED),
        (ended(ExitKind.FAILED, state=K), Trigger.EXIT_REQUEUED, ReasonCode.FAILED),
        (ended(ExitKind.FAILED, retries=True), Trigger.EXIT_REQUEUED, ReasonCode.FAILED),
        (ended(ExitKind.FAILED), Trigger.EXIT_FAILED, ReasonCode.RETRIES_USED_UP),
        (ended(ExitKind.UNSPECIFIED), Trigger.EXIT_FAILED, ReasonCode.RETRIES_USED_UP),
    ],
)
def test_the_exit_rule(end: RunEnd, trigger: Trigger, code: ReasonCode) -> None:
    verdict = exit_rule(end, has_limit=True)
    assert (verdict.trigger, verdict.code) == (trigger, code)


def test_only_a_failure_of_the_program_itself_spends_a_retry() -> None:
    spending = {
        (kind, state)
        for kind, state in product(ExitKind, HOLDING)
        if exit_rule(ended(kind, state=state, retries=True), has_limit=True).spends_retry
    }
    own = product((ExitKind.FAILED, ExitKind.UNSPECIFIED), (TaskState.STARTING, TaskState.RUNNING))
    assert spending == set(own)


def test_a_failure_without_retries_is_not_reported_as_having_used_them_up() -> None:
    assert exit_rule(ended(ExitKind.FAILED), has_limit=False).code is ReasonCode.FAILED


def test_every_verdict_is_in_the_table_for_every_live_state() -> None:
    kinds = [kind for kind in ExitKind if kind is not ExitKind.UNSPECIFIED]
    for kind, state, goal, end, left in product(
        kinds, HOLDING, GOAL_VALUES, (None, MAX), (True, False)
    ):
        verdict = exit_rule(
            ended(kind, state=state, goal=goal, end=end, retries=left), has_limit=True
        )
        assert (state, verdict.trigger) in TRANSITIONS
        assert verdict.code is not ReasonCode.UNSPECIFIED


def test_the_page_has_every_transition_goal_and_line() -> None:
    page = render()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    # Three headers and three rulers beside the rows themselves.
    assert len(rows) == len(TRANSITIONS) + len(STATES) + len(EXIT_RULE) + 6
    assert "QUEUED --> STARTING: assign" in page
    assert page.endswith("|\n")
