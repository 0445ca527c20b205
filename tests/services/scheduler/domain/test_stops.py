"""What a stop or a pause does to a run that is asked to go already."""

from __future__ import annotations

from datetime import timedelta

import pytest

from libs.contracts.messages import Goal, PreemptionRequested, Priority, TaskState
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_task
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness
from tests.services.scheduler.domain.model.test_observations import goal

SETTINGS = PolicySettings(stop_ack_seconds_max=30.0)


def a_harness() -> DomainHarness:
    """One node; its run is asked to leave for a higher task."""
    harness = DomainHarness([a_node()], settings=SETTINGS)
    harness.submit(a_task("low", priority=Priority.LOW))
    harness.rounds()
    harness.start("low")
    harness.rounds()
    harness.submit(a_task("high", priority=Priority.HIGH))
    harness.rounds()
    assert victim(harness).state is TaskState.PREEMPTING
    assert victim(harness).ack_deadline_at == at(60)
    return harness


def victim(harness: DomainHarness) -> Task:
    return harness.tasks["low"]


def test_a_stop_of_a_preempted_run_ends_it_as_soon_as_a_stop_by_itself_would() -> None:
    harness = a_harness()
    harness.until(20.0)
    harness.want("low", Goal.STOP)
    harness.rounds()
    assert victim(harness).ack_deadline_at == at(50)
    harness.until(49.0)
    assert victim(harness).state is TaskState.PREEMPTING
    harness.until(50.0)
    assert victim(harness).state is TaskState.KILLING


def test_a_stop_shortly_before_the_deadline_does_not_move_it() -> None:
    harness = a_harness()
    harness.until(50.0)
    harness.want("low", Goal.STOP)
    assert victim(harness).ack_deadline_at == at(60)


def test_a_pause_leaves_the_run_the_time_that_it_has() -> None:
    """A pause by itself gives the task its own time to save, which ends later."""
    harness = a_harness()
    harness.until(20.0)
    harness.want("low", Goal.PAUSE)
    assert victim(harness).ack_deadline_at == at(60)


@pytest.mark.parametrize(
    ("wanted", "seconds"), [(Goal.STOP, 30.0), (Goal.PAUSE, None), (Goal.RUN, None)]
)
def test_the_shorter_deadline_is_published(wanted: Goal, seconds: float | None) -> None:
    task = victim(a_harness())
    now = at(20)
    change = observations.on_goal_changed(task, goal(wanted, 9), now, SETTINGS)
    assert isinstance(change, Change)
    requests = [each for each in change.messages if isinstance(each, PreemptionRequested)]
    deadlines = [each.deadline_at for each in requests]
    assert deadlines == ([] if seconds is None else [now + timedelta(seconds=seconds)])
