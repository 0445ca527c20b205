from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from libs.contracts.messages import RunDelayed
from services.launcher.domain.model import Fault, ObservedRank, ObservedRun, ReportedDelay, RunState
from services.launcher.domain.start_delays import (
    DETAIL_CHARACTERS_MAX,
    NODES_MAX,
    DelayPolicy,
    delay_of,
    next_delay_event,
    nodes_of,
    reported,
)
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_run, observed, pending, run_id

RUN = a_run(RunState.ASSIGNED, ranks=3, assigned_at=START)
POLICY = DelayPolicy(first=timedelta(seconds=5), again=timedelta(seconds=5))


def listed(*ranks: ObservedRank) -> ObservedRun:
    return ObservedRun(run_id(), {rank.rank: rank for rank in ranks})


def test_a_run_that_has_started_is_not_delayed() -> None:
    assert delay_of(a_run(ranks=3), listed(observed(0)), "") is None


def test_before_the_first_try_no_delay_is_reported() -> None:
    assert delay_of(RUN, None, "") is None


def test_the_rank_with_a_fault_is_named() -> None:
    made = pending(0, note="the pod is being made", fault=Fault.BEING_MADE)
    fault = pending(1, note="no such image", fault=Fault.IMAGE_PULL, fault_since=START)
    assert delay_of(RUN, listed(made, fault, observed(2)), "") == (
        2,
        "rank 1 on local-1: no such image",
    )


def test_the_nodes_on_which_ranks_have_a_fault_are_published() -> None:
    made = pending(0, note="the pod is being made", fault=Fault.BEING_MADE)
    fault = replace(
        pending(1, note="no such image", fault=Fault.IMAGE_PULL, fault_since=START), node_id="n2"
    )
    other = replace(fault, rank=2, node_id="n1")
    assert nodes_of(listed(made, observed(2))) == nodes_of(None) == ()
    nodes = nodes_of(listed(made, fault, other))
    assert nodes == ("n1", "n2")
    event = next_delay_event(RUN, (2, "why"), at(5), POLICY, nodes)
    assert isinstance(event, RunDelayed)
    assert event.node_ids == ("n1", "n2")
    many = [replace(fault, rank=rank, node_id=f"n{rank}") for rank in range(99)]
    assert len(nodes_of(listed(*many))) == NODES_MAX


def test_a_failed_launch_is_the_reason_of_the_delay() -> None:
    assert delay_of(RUN, None, "the API server does not answer") == (
        3,
        "the API server does not answer",
    )
    assert delay_of(RUN, listed(observed(0), pending(1)), "quiet") == (2, "quiet")


def test_the_text_is_bounded() -> None:
    delay = delay_of(RUN, None, "x" * 10_000)
    assert delay is not None
    assert len(delay[1]) == DETAIL_CHARACTERS_MAX


def test_a_delay_is_reported_after_a_while_and_again_only_when_it_changes() -> None:
    delay = (2, "why")
    assert next_delay_event(RUN, delay, at(4), POLICY) == at(5)
    event = next_delay_event(RUN, delay, at(5), POLICY)
    assert isinstance(event, RunDelayed)
    assert (event.ranks, event.detail, event.noted_at) == (2, "why", at(5))
    run = reported(RUN, event)
    assert run.delay == ReportedDelay(2, "why", at(5))
    assert next_delay_event(run, delay, at(100), POLICY) is None
    assert next_delay_event(run, (1, "why"), at(7), POLICY) == at(10)
    again = next_delay_event(run, (1, "why"), at(10), POLICY)
    assert isinstance(again, RunDelayed)
    assert again.ranks == 1


def test_a_leader_with_a_slower_clock_publishes_newer_reports() -> None:
    run = replace(RUN, delay=ReportedDelay(2, "why", at(7200)))
    event = next_delay_event(run, (1, "why"), at(10), POLICY)
    assert isinstance(event, RunDelayed)
    assert event.noted_at > at(7200)
    assert next_delay_event(reported(run, event), (1, "why"), at(11), POLICY) is None


def test_without_a_delay_no_report_is_due() -> None:
    run = replace(RUN, delay=ReportedDelay(2, "why", at(5)))
    assert next_delay_event(run, None, at(100), POLICY) is None
