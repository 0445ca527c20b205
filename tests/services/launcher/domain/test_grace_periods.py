from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from libs.contracts.messages import RunMode
from services.launcher.domain import grace_periods
from services.launcher.domain.grace_periods import (
    BY_CAUSE,
    Grace,
    GracePeriods,
    grace_for,
    grace_seconds,
    is_asked,
    is_cut_short,
)
from services.launcher.domain.model import EndCause, RunState
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_run, a_spec

P = Grace


def ending(cause: EndCause, **more: Any) -> Grace:
    run = a_run(RunState.ENDING, end_cause=cause, ending_at=at(1), **{"started_at": START, **more})
    return grace_for(run)


def test_every_cause_has_a_grace_period() -> None:
    assert set(BY_CAUSE) == set(EndCause)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (EndCause.KILL, P.FULL),
        (EndCause.GRACE_OVER, P.ACKED),
        (EndCause.RANK_FAILED, P.MATES),
        (EndCause.RANK_LOST, P.MATES),
        (EndCause.PREEMPTED_BEFORE_START, P.FULL),
    ],
)
def test_each_end_cause_has_its_grace_period(cause: EndCause, expected: Grace) -> None:
    assert ending(cause) is expected


def test_a_run_that_has_saved_or_never_ran_gets_no_full_period() -> None:
    assert ending(EndCause.KILL, acked_at=at(1)) is P.ACKED
    assert ending(EndCause.KILL, started_at=None) is P.NONE


def test_a_run_without_a_row_gets_the_full_period() -> None:
    assert grace_for(None) is P.FULL


def test_grace_periods_increase() -> None:
    policy = GracePeriods()
    seconds = [policy.seconds(each) for each in (P.NONE, P.ACKED, P.MATES, P.FULL)]
    assert seconds == sorted(seconds)
    # torchrun takes thirty.
    assert seconds[-1] > 30


def test_the_page_has_every_cause() -> None:
    page = grace_periods.render_markdown()
    assert all(f"| {cause} |" in page for cause in EndCause)


def test_every_runtime_asks_ranks_that_did_nothing_wrong_until_a_kill() -> None:
    asked = {cause for cause in EndCause if is_asked(replace(a_run(), end_cause=cause))}
    expected = {EndCause.SUCCEEDED, EndCause.GRACE_OVER, EndCause.PREEMPTED_BEFORE_START}
    assert asked == expected
    killed = replace(a_run(), kill_requested_at=at(1))
    assert not any(is_asked(replace(killed, end_cause=cause)) for cause in EndCause)
    cut = {cause for cause in EndCause if is_cut_short(replace(killed, end_cause=cause))}
    assert cut == expected
    assert not is_asked(a_run())
    assert not is_asked(None)


def test_a_debug_program_is_asked_unless_its_owner_wants_it_to_end_at_once() -> None:
    spec = a_spec().model_copy(update={"run_mode": RunMode.DEBUG})
    run = a_run(RunState.ENDING, spec=spec, end_cause=EndCause.KILL, kill_requested_at=at(1))
    assert (is_asked(run), is_cut_short(run)) == (True, False)
    at_once = replace(run, kill_now=True)
    assert (is_asked(at_once), is_cut_short(at_once)) == (False, True)


@pytest.mark.parametrize(
    ("cause", "acked_s", "ending_s", "expected"),
    [
        # A gang without an order ends when the exit grace is over.
        (EndCause.GRACE_OVER, 0, 10, 1),
        # An ordered one ends role by role within it.
        (EndCause.GRACE_OVER, 0, 0.5, 9.5),
        # Leaders whose clocks differ by an hour recorded the two times.
        (EndCause.GRACE_OVER, 3600, 0, 10),
        (EndCause.GRACE_OVER, 0, 3600, 1),
        (EndCause.KILL, 0, 0.5, 1),
    ],
)
def test_after_an_acknowledgement_ranks_have_what_is_left_of_the_exit_grace(
    cause: EndCause, acked_s: float, ending_s: float, expected: float
) -> None:
    run = a_run(acked_at=at(acked_s), ending_at=at(ending_s), end_cause=cause)
    assert grace_seconds(run, GracePeriods(), timedelta(seconds=10)) == expected
