from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.launcher.domain import grace_periods
from services.launcher.domain.grace_periods import (
    BY_CAUSE,
    Grace,
    GracePeriods,
    grace_for,
    is_asked,
)
from services.launcher.domain.model import EndCause, RunState
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_run

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


def test_only_ranks_left_over_after_a_success_are_asked_by_every_runtime() -> None:
    asked = {cause for cause in EndCause if is_asked(replace(a_run(), end_cause=cause))}
    assert asked == {EndCause.SUCCEEDED}
    assert not is_asked(a_run())
    assert not is_asked(None)
