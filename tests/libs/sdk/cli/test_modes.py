"""Texts about modes, and `shiftwork debug` as it is typed."""

from __future__ import annotations

from typing import Any

import pytest
from shiftwork.cli import debug, modes, timeline


def task(state: str = "running", **changes: Any) -> dict[str, Any]:
    return {"id": "ta", "state": state, "goal": "run", "attempt": 1, **changes}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (task(run_mode="normal", debug=False), ""),
        # A server of an earlier version.
        (task(), ""),
        (task("paused", run_mode="pause", debug=False), "pause"),
        (task("paused", run_mode="pause", debug=True), "pause; debug once it is resumed"),
        (
            task(run_mode="debug", debug=True),
            "debug; its program runs after: shiftwork debug ta --off",
        ),
        (task("stopped", run_mode="debug", debug=True), "debug"),
        (task("stopped", run_mode="pause", debug=False), ""),
    ],
)
def test_the_mode_is_shown_unless_it_is_normal(found: dict[str, Any], text: str) -> None:
    assert modes.shown(found) == text


@pytest.mark.parametrize(
    ("found", "on", "off"),
    [
        (task(debug=False), "is asked to save and leave", "is off already"),
        (task("queued", debug=False), "begins when the task gets its nodes", "is off already"),
        (task("paused", debug=False), "shiftwork resume ta", "is off already"),
        (task(debug=True, attempt=2), "is on already", "the debug programs are ended"),
        # Debug mode was turned on just before: the program is still saving.
        (task("preempting", debug=True), "is on already", "its program, which was asked to save"),
        (task("queued", debug=True), "is on already", "its program starts when"),
        (task("paused", debug=True), "is on already", "shiftwork resume ta"),
        (task("paused", debug=True, goal="pause"), "shiftwork resume ta", "shiftwork resume ta"),
    ],
)
def test_messages_say_what_happens_next(found: dict[str, Any], on: str, off: str) -> None:
    assert on in debug._on(found)
    runs = [
        {"attempt": 1, "live": found["attempt"] == 1, "debug": False},
        {"attempt": 2, "live": True, "debug": True},
    ]
    assert off in debug._off(found, runs)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (task(debug=False, reason={"text": "runs"}), "runs"),
        (task(debug=True, reason={"text": "runs"}), "debug mode: runs"),
        (task(debug=True), "debug mode"),
        (task("paused", debug=True, reason={"text": "debug mode ended"}), "debug mode ended"),
        (task("stopped", debug=True, reason={"text": "by ann"}), "by ann"),
    ],
)
def test_the_reason_in_a_list_names_debug_mode(found: dict[str, Any], text: str) -> None:
    assert modes.reason(found) == text


def test_the_ranks_that_have_ended_are_listed_while_the_run_lives() -> None:
    ends = [{"rank": 0, "code": 3}, {"rank": 2, "code": None, "signal": 9}, {"rank": 3}]
    runs = [{"attempt": 1, "live": True, "ended_ranks": ends}]
    text = "rank 0 ended with code 3, rank 2 ended with signal 9, rank 3 ended"
    assert modes.ended_ranks(runs, task()) == text
    assert modes.ended_ranks([{**runs[0], "live": False}], task()) == ""
    assert modes.ended_ranks([{**runs[0], "ended_ranks": ends * 9}], task()).endswith(", ...")


def test_programs_are_lines_for_a_shell() -> None:
    one = {"name": "w", "command": ["python", "-c", "a b"], "args": ["--x"]}
    found = modes.programs({"roles": [one]}, again=False)
    assert found == [("its program", "python -c 'a b' --x")]
    two = modes.programs({"roles": [one, one]}, again=False)
    assert [name for name, _ in two] == ["program of w"] * 2


def test_the_program_is_the_one_of_the_next_attempt() -> None:
    one = {"name": "w", "command": ["a"], "args": ["--x"], "resume": {"command": ["again"]}}
    assert modes.programs({"roles": [one]}, again=False) == [("its program", "a --x")]
    assert modes.programs({"roles": [one]}, again=True) == [("its program", "again")]
    only_env = {**one, "resume": {"command": [], "env": {"A": "1"}}}
    assert modes.programs({"roles": [only_env]}, again=True) == [("its program", "a --x")]


@pytest.mark.parametrize(
    ("fields", "runs", "expected"),
    [
        ({}, [], False),
        ({}, [{"debug": True}], False),
        ({}, [{"debug": True}, {"debug": False}], True),
        ({"continues": "tb", "checkpoint": {"no": 1}}, [], True),
        ({"continues": "tb", "checkpoint": None}, [{"debug": True}], False),
    ],
)
def test_the_first_start_of_a_program_is_the_first_without_debug_mode(
    fields: dict[str, Any], runs: list[dict[str, Any]], expected: bool
) -> None:
    assert modes.resumes(fields, runs) is expected


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (
            "task.mode_changed",
            {"mode": "debug", "changed_by": "ann"},
            "debug mode turned on by ann",
        ),
        ("task.mode_changed", {"mode": "normal", "changed_by": "b"}, "debug mode turned off by b"),
        (
            "run.rank_ended",
            {"exit": {"rank": 1, "code": 3}, "role": "w"},
            "rank 1 ended with code 3 in debug mode (role w); it is not started again",
        ),
        (
            "run.exited",
            {"exit": {"kind": "ok", "debug": True, "detail": "every rank has ended: ..."}},
            "debug mode ended by itself (every rank has ended: ...)",
        ),
        (
            "run.assigned",
            {"placements": [{"node_id": "n0"}], "spec": {"run_mode": "debug"}},
            "assigned to n0 in debug mode",
        ),
    ],
)
def test_events_are_sentences(kind: str, data: dict[str, Any], text: str) -> None:
    assert timeline.sentence(kind, data) == text
