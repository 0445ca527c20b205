"""The first sentence of ``explain``, for each state and kind of wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from shiftwork.cli import explanation, render

BIG, ME = "taaaaaaaaaabbig22bbb2", "taaaaaaaaaacme33ccc34"
FOUND = {"id": ME, "name": "train", "owner": "ann"}


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "now", lambda: NOW)


def soon(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def explained(state: str, text: str, **more: Any) -> dict[str, Any]:
    return {
        "state": state,
        "reason": {"text": text},
        "tasks": {BIG: {"name": "big", "owner": "bob"}},
        **more,
    }


def holder(**more: Any) -> dict[str, Any]:
    return {"task": BIG, "nodes": 2.0, "ends_at": None, "slice_ends_at": None, **more}


CAPACITY = "waits for 1 whole node to come free in group default"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            explained("queued", CAPACITY, holders=[holder(ends_at=soon(7200))], holders_count=1),
            f"train {CAPACITY}; held by bob's big (22bbb2, its --max-run-time ends in 2h).",
        ),
        (
            explained(
                "queued", CAPACITY, holders=[holder(slice_ends_at=soon(600))], holders_count=3
            ),
            (
                f"train {CAPACITY}; held by bob's big (22bbb2, its time slice ends in 10m) and 2"
                " other runs."
            ),
        ),
        (
            explained("queued", CAPACITY, holders=[holder()], holders_count=1),
            (
                f"train {CAPACITY}; held by bob's big (22bbb2, nobody knows for how long: it has no"
                " --max-run-time)."
            ),
        ),
        (
            explained(
                "queued",
                "waits until the runs that make room for it have saved and left",
                holders=[holder(leaving=True, ends_at=soon(30))],
                holders_count=1,
            ),
            (
                "train waits until the runs that make room for it have saved and left; held by"
                " bob's big (22bbb2, asked to leave, ended by force in 30s)."
            ),
        ),
        (
            explained("queued", "no nodes of group default could ever hold 9 whole nodes"),
            "train waits: no nodes of group default could ever hold 9 whole nodes.",
        ),
        (explained("running", "attempt 1 runs"), "train runs."),
        (
            explained("preempting", f"makes room for task {BIG} at level high"),
            "train was asked to save and leave: makes room for task big (22bbb2) at level high.",
        ),
        (explained("paused", "its owner paused it"), "train is paused: its owner paused it."),
        (explained("succeeded", "finished successfully"), "train finished successfully."),
        (
            explained("failed", "attempt 1 failed: rank 0 ended with code 7"),
            "train failed in attempt 1: rank 0 ended with code 7.",
        ),
    ],
)
def test_the_headline_explains_the_state(answer: dict[str, Any], sentence: str) -> None:
    assert explanation.headline(FOUND, answer) == sentence


def test_a_forecast_is_a_range_where_it_is_not_certain() -> None:
    forecast = {"starts_at": soon(7200), "earliest_at": soon(3600), "latest_at": soon(10_800)}
    rows = explanation.facts(FOUND, explained("queued", CAPACITY, forecast=forecast))
    (text,) = [text for name, text in rows if name == "forecast"]
    assert text.startswith("starts between 20")
    assert [part in text for part in ("(in 1h) and", "(in 3h), most likely", "(in 2h)")] == [
        True
    ] * 3
