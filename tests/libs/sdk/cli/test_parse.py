from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shiftwork.cli import parse, render
from shiftwork.cli.failures import Failure
from shiftwork.cli.follow import Line, Lines

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("4h", 14_400), ("2d", 172_800), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse.duration(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "-1", "1w", "s", "1h30m", "1 h x", "nan", "inf"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(Failure, match="not a duration"):
        parse.duration(text, "--x")


def test_a_negative_duration_is_named_as_such() -> None:
    with pytest.raises(Failure, match="'-5d' is not a duration: it is negative"):
        parse.duration("-5d", "--expires-in")


def test_times() -> None:
    assert parse.timestamp("15m", "--x", NOW) == "2026-11-21T09:45:00Z"
    assert parse.timestamp("2026-11-21T11:00:00+01:00", "--x", NOW) == "2026-11-21T10:00:00Z"


@pytest.mark.parametrize(
    "text", ["2026-11-21T10:00:00Z", "2026-11-21T10:00:00.1Z", "2026-11-21T10:00:00.123456789Z"]
)
def test_times_of_the_api_with_any_fraction(text: str) -> None:
    at = parse.at(text)
    assert at is not None
    assert at.replace(microsecond=0) == NOW


def test_wrong_times() -> None:
    assert parse.at(None) is None
    assert parse.at("soon") is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h"), (200_000, "2d7h")]
)
def test_spans(seconds: float, text: str) -> None:
    assert render.span(seconds) == text


def test_of_a_line_that_is_rewritten_the_last_state_counts() -> None:
    lines = Lines()
    piece = {"attempt": 1, "rank": 0, "role": "w"}
    assert lines.add({**piece, "offset": 0}, b"load") == []
    assert lines.unfinished() == [Line(1, 0, "w", b"load")]
    assert lines.add({**piece, "offset": 4, "line": "\r 10%"}, b"") == []
    assert lines.unfinished() == [Line(1, 0, "w", b" 10%", bar=True)]
    assert lines.add({**piece, "offset": 2, "line": "\r  5%"}, b"") == []  # of before
    assert lines.unfinished() == [Line(1, 0, "w", b" 10%", bar=True)]
    assert lines.add({**piece, "offset": 4}, b"\r 20%") == []
    assert lines.unfinished() == [Line(1, 0, "w", b" 20%", bar=True)]
    ended = lines.add({**piece, "offset": 9}, b"\r100%\r\nnext\r\n")
    assert [line.text for line in ended] == [b"100%", b"next"]
    assert lines.unfinished() == []
    lines.add({**piece, "offset": 22, "line": "\rlost"}, b"")
    assert lines.rest() == []
    # A later attempt begins: nothing more comes of the earlier one.
    lines.add({**piece, "offset": 22, "line": "\rlost"}, b"")
    lines.add({**piece, "attempt": 2, "offset": 0}, b"fresh")
    assert lines.unfinished() == [Line(2, 0, "w", b"fresh")]


def test_lines_are_put_together_per_rank_and_repeats_dropped() -> None:
    lines = Lines()
    piece = {"attempt": 1, "rank": 0, "role": "w"}
    assert [line.text for line in lines.add({**piece, "offset": 0}, b"on")] == []
    assert [line.text for line in lines.add({**piece, "rank": 1, "offset": 0}, b"x\n")] == [b"x"]
    assert [line.text for line in lines.add({**piece, "offset": 2}, b"e\ntw")] == [b"one"]
    # The stream was opened again: everything comes a second time.
    assert [line.text for line in lines.add({**piece, "offset": 0}, b"one\nt")] == []
    assert [line.text for line in lines.add({**piece, "offset": 5}, b"wo\nthree")] == [b"two"]
    assert [line.text for line in lines.rest()] == [b"three"]
