"""The rules by themselves: facts in any order, a clock that jumps, thresholds, the site's file."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.messages import (
    AbnormalAction,
    Checkpoint,
    CheckpointSaved,
    Priority,
    RankEnded,
    RankExit,
    RankRestarted,
    Reason,
    ReasonCode,
    RunAssigned,
    RunDelayed,
    RunMode,
    RunStarted,
    TaskState,
    TaskStateChanged,
)
from services.monitor.abnormal.recording import CHANGES
from services.monitor.abnormal.rules_file import RulesFileError, parse_rules, read_rules
from services.monitor.domain.abnormal_actions import ActionLimits, Pending, Step, decide
from services.monitor.domain.abnormal_facts import FactsRow, with_checkpoint, with_restart
from services.monitor.domain.abnormal_rules import (
    DAY,
    RULES,
    Seen,
    Usage,
    default_book,
    evaluate,
    with_usage,
)
from services.monitor.domain.steady_clock import GAP_SECONDS_MAX, SteadyClockRow, advanced
from tests.kit.builders import a_spec
from tests.kit.clock import START, at

TASK = "t1"


def state(version: int, state: TaskState, attempt: int = 1, **more: Any) -> TaskStateChanged:
    return TaskStateChanged(
        task_id=TASK,
        version=version,
        state=state,
        reason=Reason(code=ReasonCode.STARTED),
        attempt=attempt,
        changed_at=at(version),
        owner="ann",
        **more,
    )


def delayed(noted: int, ranks: int, *, attempt: int = 1, running: bool = False) -> RunDelayed:
    return RunDelayed(
        task_id=TASK,
        attempt=attempt,
        ranks=ranks,
        detail=f"rank 1 on n{noted}: no" if ranks else "",
        noted_at=at(noted),
        running=running,
    )


def ended(rank: int, attempt: int = 1) -> RankEnded:
    exit_ = RankExit(rank=rank, code=1)
    return RankEnded(task_id=TASK, attempt=attempt, exit=exit_, role="w", noted_at=at(1))


def restarted(rank: int, restarts: int, attempt: int = 1) -> RankRestarted:
    return RankRestarted(
        task_id=TASK,
        attempt=attempt,
        rank=rank,
        role="w",
        restarts=restarts,
        restarts_max=9,
        noted_at=at(1),
        node_id=f"n{rank}",
    )


def saved(no: int, attempt: int = 1) -> CheckpointSaved:
    checkpoint = Checkpoint(no=no, attempt=attempt, step=no, uri="/c", saved_at=at(1))
    return CheckpointSaved(task_id=TASK, attempt=attempt, checkpoint=checkpoint)


def after(*events: Any, row: FactsRow | None = None, now_s: float = 0.0) -> FactsRow:
    row = row or FactsRow(TASK)
    for event in events:
        row = CHANGES[type(event)](row, event, now_s)
    return row


EVENTS = st.one_of(
    st.builds(
        state,
        st.integers(1, 9),
        st.sampled_from([TaskState.QUEUED, TaskState.STARTING, TaskState.RUNNING]),
    ),
    st.builds(delayed, st.integers(1, 9), st.integers(0, 2), attempt=st.integers(1, 2)),
    st.builds(ended, st.integers(0, 3), st.integers(1, 2)),
    st.builds(restarted, st.integers(0, 3), st.integers(1, 5), st.integers(1, 2)),
    st.builds(
        lambda attempt: RunStarted(task_id=TASK, attempt=attempt, started_at=at(1), owner="ann"),
        st.integers(1, 2),
    ),
)


def _unique(events: list[Any]) -> list[Any]:
    """One event for each version and each time: their owners publish no two."""
    known: dict[Any, Any] = {}
    for event in events:
        if isinstance(event, TaskStateChanged):
            # An attempt begins with a later state.
            attempt = 1 if event.version < 5 else 2
            known.setdefault(event.version, event.model_copy(update={"attempt": attempt}))
        elif isinstance(event, RunDelayed):
            known.setdefault((event.attempt, event.noted_at), event)
        else:
            known.setdefault(repr(event), event)
    return list(known.values())


@given(events=st.lists(EVENTS, max_size=8).map(_unique), data=st.data())
def test_facts_are_the_same_in_any_order_and_with_repetitions(
    events: list[Any], data: st.DataObject
) -> None:
    again = data.draw(st.permutations([*events, *events]))
    assert after(*again) == after(*events)


def test_restarts_before_a_checkpoint_have_not_been_without_progress() -> None:
    row = after(restarted(0, 2), restarted(1, 1))
    assert row.restarts_since_checkpoint == 3
    row = with_checkpoint(row, saved(1))
    assert row.restarts_since_checkpoint == 0
    row = with_restart(row, restarted(1, 3))
    assert row.restarts_since_checkpoint == 2
    # The same checkpoint again does not hide the later restarts.
    assert with_checkpoint(row, saved(1)) == row
    assert with_restart(row, restarted(1, 2)) == row


@given(
    steps=st.lists(st.integers(-(10**7), 10**7), max_size=20),
)
def test_the_steady_clock_never_goes_back_and_never_jumps(steps: list[int]) -> None:
    now, row = START, SteadyClockRow("c", 0.0, START)
    for step in steps:
        now += timedelta(seconds=step)
        later = advanced(row, now)
        assert 0 <= later.elapsed_s - row.elapsed_s <= GAP_SECONDS_MAX
        if 0 <= step <= GAP_SECONDS_MAX:
            assert later.elapsed_s - row.elapsed_s == step
        row = later


STAYS = st.lists(
    st.tuples(st.sampled_from(["run", "wait"]), st.floats(0, 3 * DAY)), min_size=1, max_size=8
)


@given(stays=STAYS)
def test_the_time_in_the_queue_never_counts_as_running(stays: list[tuple[str, float]]) -> None:
    now_s, row, ran = 0.0, FactsRow(TASK), 0.0
    for version, (kind, seconds) in enumerate(stays, 1):
        shown = TaskState.RUNNING if kind == "run" else TaskState.QUEUED
        row = after(state(version, shown), row=row, now_s=now_s)
        now_s += seconds
        ran += seconds if kind == "run" else 0.0
    # A clock of days in floating point is exact to a microsecond and better.
    assert row.ran_for(now_s) == pytest.approx(ran, abs=1e-6)
    found = evaluate(Seen(row, Usage(), now_s, 10.0), default_book().settings)
    assert ("long_run" in found) is (row.ran_for(now_s) >= 5 * DAY)


def running(**changes: Any) -> FactsRow:
    row = FactsRow(TASK, state=TaskState.RUNNING, attempt=1, started=True, gpus=4, runs_since_s=0.0)
    return replace(row, **changes)


def found_by(rule: str, row: FactsRow, now_s: float, usage: Usage | None = None) -> str:
    seen = Seen(row, usage or Usage(), now_s, 10.0)
    found = evaluate(seen, default_book().settings).get(rule)
    return found.detail if found else ""


def test_an_idle_gpu_is_found_once_samples_and_the_steady_clock_agree() -> None:
    idle = Usage(idle_s=(3700.0, 120.0))
    assert found_by("idle_gpus", running(idle_since_s=0.0), 3600, idle) == (
        "1 of 4 GPUs have been below 10 % for 1 h; the limit is 1 h"
    )
    # The samples' clock jumped by an hour.
    assert not found_by("idle_gpus", running(idle_since_s=3000.0), 3600, idle)
    # Two GPUs take turns: none has been idle for an hour.
    assert not found_by("idle_gpus", running(idle_since_s=0.0), 9000, Usage(idle_s=(900.0,)))
    leaving = running(idle_since_s=0.0, state=TaskState.QUEUED)
    assert not found_by("idle_gpus", leaving, 9000, idle)


def test_a_quiet_run_makes_no_progress() -> None:
    row = running(quiet_since_s=0.0)
    assert found_by("no_progress", row, 3600, Usage(quiet_s=3600.0))
    assert not found_by("no_progress", row, 3599, Usage(quiet_s=3600.0))
    assert not found_by("no_progress", row, 3600, Usage(quiet_s=3599.0))
    assert not found_by("no_progress", row, 9999, Usage())


def test_missing_ranks_count_from_when_they_are_missing() -> None:
    row = after(state(1, TaskState.STARTING), delayed(1, 2), now_s=100.0)
    assert not found_by("ranks_missing", row, 999.0)
    text = found_by("ranks_missing", row, 1000.0)
    assert text.startswith("2 ranks of its run have been missing for 15 min;")
    assert "rank 1 on n1: no" in text
    # Another report with as many does not begin the time again; one with none ends it.
    assert after(delayed(2, 2), row=row, now_s=500.0).missing_since_s == 100.0
    assert not found_by("ranks_missing", after(delayed(3, 0), row=row, now_s=500.0), 5000.0)
    # Once the run has started, only roles that start later count; a queued task has no ranks.
    start = RunStarted(task_id=TASK, attempt=1, started_at=at(1), owner="ann")
    assert after(start, row=row, now_s=500.0).missing_since_s is None
    assert after(state(2, TaskState.QUEUED), row=row, now_s=500.0).missing_since_s is None
    later = after(state(2, TaskState.RUNNING), start, delayed(4, 1, running=True), now_s=5.0)
    assert later.missing_since_s == 5.0


def assigned(attempt: int, mode: RunMode = RunMode.NORMAL) -> RunAssigned:
    spec = a_spec().model_copy(update={"run_mode": mode})
    return RunAssigned(
        task_id=TASK,
        attempt=attempt,
        owner="ann",
        spec=spec,
        assigned_at=at(1),
        start_deadline_at=at(9),
    )


DEBUGGED = [
    [assigned(1, RunMode.DEBUG), state(1, TaskState.RUNNING)],
    [state(1, TaskState.RUNNING), assigned(1, RunMode.DEBUG), assigned(1, RunMode.DEBUG)],
    # It was assigned before the monitor was upgraded.
    [state(1, TaskState.RUNNING), ended(1)],
]


@pytest.mark.parametrize("events", DEBUGGED)
def test_people_who_debug_may_idle_and_end_and_restart_ranks(events: list[Any]) -> None:
    more = [delayed(1, 2), restarted(0, 9), ended(0)]
    row = replace(after(*events, *more), idle_since_s=0.0, quiet_since_s=0.0, gpus=1)
    usage = Usage(idle_s=(9999.0,), quiet_s=9999.0)
    assert evaluate(Seen(row, usage, 9999, 10.0), default_book().settings) == {}
    # It may run for too long, as any other.
    assert found_by("long_run", replace(row, runs_since_s=0.0), 6 * DAY)
    # What the next attempt shows counts, also if its events come first.
    for order in ([assigned(2), state(5, TaskState.RUNNING, 2)], [state(5, TaskState.RUNNING, 2)]):
        next_row = after(*order, delayed(9, 1, attempt=2), restarted(0, 3, 2), row=row, now_s=0.0)
        assert found_by("ranks_missing", next_row, 900.0)
        assert found_by("restarts_without_progress", next_row, 0)
        assert found_by("idle_gpus", replace(next_row, idle_since_s=0.0, gpus=1), 9999, usage)
        assert found_by("no_progress", replace(next_row, quiet_since_s=0.0), 9999, usage)
        assert after(assigned(1, RunMode.DEBUG), row=next_row) == next_row


def test_restarts_are_counted_in_place_and_by_attempts() -> None:
    row = running(restarts=((0, 1, "n1"), (1, 2, "n2")))
    (found,) = evaluate(Seen(row, Usage(), 0, 10), default_book().settings).values()
    assert found.detail.startswith("its ranks were restarted 3 times since the last checkpoint")
    assert found.nodes == ("n2",)
    # All ranks of a node count.
    row = running(restarts=((0, 5, "n1"), (1, 1, "n1"), (2, 2, "n2"), (3, 9, "")))
    (found,) = evaluate(Seen(row, Usage(), 0, 10), default_book().settings).values()
    assert found.nodes == ("n1",)
    assert found_by("restarts_without_progress", running(attempts_without_progress=3), 0)
    assert not found_by("restarts_without_progress", running(attempts_without_progress=2), 0)


def test_idle_times_begin_once_and_end_with_the_samples() -> None:
    row = with_usage(running(), Usage(idle_s=(700.0,)), 1000.0, (600.0, 600.0))
    assert row.idle_since_s == 400.0
    assert with_usage(row, Usage(idle_s=(760.0,)), 1060.0, (600.0, 600.0)) == row
    assert with_usage(row, Usage(idle_s=(10.0,)), 1100.0, (600.0, 600.0)).idle_since_s is None


LIMITS = ActionLimits(per_rule=2, in_all=3)


def pending(**changes: Any) -> Pending:
    known = Pending(
        AbnormalAction.STOP,
        "idle_gpus",
        configured=True,
        holds=True,
        unconfirmed="",
        dry_run=False,
        begun=False,
        paused=False,
        attempt=1,
    )
    return replace(known, **changes)


@given(acted=st.lists(st.sampled_from(["idle_gpus", "long_run"]), max_size=6))
def test_no_action_is_sent_beyond_the_limits(acted: list[str]) -> None:
    step = decide(pending(), running(), acted, LIMITS).step
    free = acted.count("idle_gpus") < LIMITS.per_rule and len(acted) < LIMITS.in_all
    assert step is (Step.SEND if free else Step.WAIT)


@pytest.mark.parametrize(
    ("change", "facts", "step"),
    [
        ({"holds": False}, running(), Step.WITHDRAW),
        ({}, running(state=TaskState.FAILED), Step.WITHDRAW),
        ({}, None, Step.WITHDRAW),
        ({"configured": False}, running(), Step.WITHDRAW),
        ({"unconfirmed": "not now"}, running(), Step.WAIT),
        ({"unconfirmed": "not now", "dry_run": True}, running(), Step.WAIT),
        ({"unconfirmed": "not now", "holds": False}, running(), Step.WITHDRAW),
        ({"dry_run": True}, running(), Step.TRY),
        ({"action": AbnormalAction.PREEMPT}, running(state=TaskState.QUEUED), Step.WITHDRAW),
        ({"action": AbnormalAction.PREEMPT}, running(), Step.SEND),
        ({"action": AbnormalAction.LOWER_PRIORITY}, running(priority=Priority.LOW), Step.WITHDRAW),
        ({"action": AbnormalAction.LOWER_PRIORITY}, running(priority=Priority.HIGH), Step.SEND),
        # The second half of a preemption waits for the run to leave, whatever else is.
        ({"paused": True, "holds": False}, running(state=TaskState.PREEMPTING), Step.WAIT),
        ({"paused": True, "holds": False}, running(state=TaskState.PAUSED), Step.RESUME),
        ({"paused": True, "configured": False}, running(state=TaskState.PAUSED), Step.RESUME),
        ({"paused": True}, running(state=TaskState.STOPPED), Step.WITHDRAW),
        # Its owner resumed it before it was paused, or another leader has resumed it.
        ({"paused": True}, running(state=TaskState.QUEUED), Step.RESUME),
        ({"paused": True}, running(attempt=2), Step.RESUME),
        ({"paused": True}, running(), Step.WAIT),
        # What may have been done is not settled as if it were not.
        ({"begun": True, "holds": False}, running(), Step.RECALL),
        ({"begun": True, "configured": False}, running(), Step.RECALL),
        ({"begun": True, "dry_run": True}, running(), Step.RECALL),
        ({"begun": True}, running(state=TaskState.STOPPED), Step.RECALL),
        ({"begun": True}, running(), Step.SEND),
        ({"begun": True, "unconfirmed": "not now"}, running(), Step.WAIT),
        (
            {"begun": True, "holds": False, "action": AbnormalAction.CORDON},
            running(),
            Step.WITHDRAW,
        ),
    ],
)
def test_what_is_done_about_an_action(
    change: dict[str, Any], facts: FactsRow | None, step: Step
) -> None:
    assert decide(pending(**change), facts, [], LIMITS).step is step


def parsed(document: object) -> Any:
    return parse_rules(document, idle_seconds=600, quiet_seconds=600)


def test_a_group_has_rules_of_its_own() -> None:
    book = parsed(
        {
            "idle_gpus": {"threshold": 7200, "actions": ["notify", "stop"]},
            "groups": {"debug": {"idle_gpus": {"enabled": False}, "long_run": {"threshold": 3600}}},
        }
    )
    setting = book.of("train", "vision")["idle_gpus"]
    stop = (AbnormalAction.NOTIFY, AbnormalAction.STOP)
    assert (setting.threshold, setting.actions, setting.enabled) == (7200, stop, True)
    assert not book.of("debug", "")["idle_gpus"].enabled
    assert book.of("debug", "vision")["long_run"].threshold == 3600
    assert book.of("train", "")["long_run"].threshold == 5 * DAY
    assert set(book.of("", "")) == set(RULES)


def test_a_team_has_rules_of_its_own_and_decides_what_its_group_sets_as_well() -> None:
    book = parsed(
        {
            "long_run": {"threshold": 100, "dry_run": True},
            "groups": {"debug": {"long_run": {"threshold": 200, "actions": ["tag"]}}},
            "teams": {
                "vision": {"long_run": {"threshold": 300, "dry_run": False}},
                "debug": {"long_run": {"enabled": False}},
            },
        }
    )

    def read(group: str, team: str) -> tuple[float, int, bool, bool]:
        found = book.of(group, team)["long_run"]
        return found.threshold, len(found.actions), found.dry_run, found.enabled

    assert read("train", "speech") == (100, 2, True, True)
    assert read("debug", "speech") == (200, 1, True, True)
    assert read("train", "vision") == (300, 2, False, True)
    assert read("debug", "vision") == (300, 1, False, True)
    # The names of groups and teams are apart.
    assert read("train", "debug") == (100, 2, True, False)
    assert read("vision", "") == (100, 2, True, True)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"idle": {}}, "idle: is no rule; did you mean idle_gpus? give one of long_run,"),
        ({"idle_gpus": {"actions": ["kill"]}}, "idle_gpus.actions.0: 'kill':"),
        ({"idle_gpus": {"threshold": 5}}, "idle_gpus.threshold: 5 is less than 600 s, after"),
        ({"long_run": {"limit": 5}}, "long_run.limit: is not known; give some of threshold,"),
        ({"long_run": {"threshold": 0}}, "long_run.threshold: 0:"),
        ({"long_run": {"threshold": float("nan")}}, "long_run.threshold: nan:"),
        ({"long_run": 3}, "long_run: 3 is no mapping; give some of threshold"),
        (
            {"long_run": {"actions": ["cordon"]}},
            "long_run.actions: cordon: no node is at fault when a task has run for longer than",
        ),
        ({"teams": {"a": {"no_progress": {"actions": ["cordon"]}}}}, "teams.a.no_progress.actions"),
        ({"teams": 3}, "teams: 3 is no mapping"),
        ({"teams": {"a b": {}}}, "teams: 'a b' is no name of a team"),
        ({"teams": {5: {}}}, "teams: 5 is no name of a team"),
        ({"groups": ["a"]}, "groups: ['a'] is no mapping"),
        ({"groups": {"a b": {}}}, "groups: 'a b' is no name of a group"),
        ({"groups": {"a": {"no": {}}}}, "groups.a.no: is no rule"),
        ([], "the file: [] is no mapping"),
    ],
)
def test_an_error_of_the_file_names_field_value_and_fix(document: object, problem: str) -> None:
    with pytest.raises(RulesFileError) as raised:
        parsed(document)
    assert str(raised.value).startswith(problem)


@pytest.mark.parametrize("name", ["123", "0123", "1_0", "on", "2026-01-01"])
@pytest.mark.parametrize("part", ["groups", "teams"])
def test_a_name_needs_no_quotes_in_the_file(tmp_path: Path, part: str, name: str) -> None:
    path = tmp_path / "rules.yaml"
    for written in (name, f"'{name}'"):
        path.write_text(
            f"{part}:\n  a: &a {{long_run: {{threshold: 60}}}}\n  {written}: {{<<: *a}}\n"
        )
        book = read_rules(path, idle_seconds=600, quiet_seconds=600)
        found = book.of(name, "") if part == "groups" else book.of("", name)
        assert found["long_run"].threshold == 60
    assert book.of("83", "83")["long_run"].threshold == 5 * DAY


def test_the_file_is_yaml_and_its_errors_name_it(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("long_run: {threshold: 60}\n")
    book = read_rules(path, idle_seconds=600, quiet_seconds=600)
    assert book.settings["long_run"].threshold == 60
    for text in ("long_run: [", "x: 1"):
        path.write_text(text)
        with pytest.raises(RulesFileError, match=str(path)):
            read_rules(path, idle_seconds=600, quiet_seconds=600)
    with pytest.raises(RulesFileError, match="cannot be read"):
        read_rules(tmp_path / "none", idle_seconds=600, quiet_seconds=600)
