from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import shiftwork
from shiftwork import training

from libs.contracts import limits
from tests.libs.sdk.run_server import RunServer

pytestmark = pytest.mark.server

OVER = (409, {"type": "superseded"})


def test_off_the_platform_it_works_and_does_nothing() -> None:
    assert shiftwork.yield_now("no data") is None
    assert shiftwork.set_life_state({"seen": 3}) is None
    assert shiftwork.life_state() is None
    assert shiftwork.set_priority("low") is None
    assert shiftwork.should_preempt() is False
    assert training._process.live is None


def test_the_limits_are_the_platforms() -> None:
    assert training.LIFE_STATE_BYTES_MAX == limits.LIFE_STATE_BYTES_MAX
    assert training.YIELD_REASON_CHARACTERS_MAX == limits.YIELD_REASON_MAX


def test_a_yield_follows_the_checkpoints_and_asks_all_to_leave(on_platform: RunServer) -> None:
    # The platform is busy for a moment: both are sent again, in order.
    on_platform.checkpoint_answers = [(503, {}), (503, {})]
    on_platform.other_answers = [(503, {}), (429, {})]
    shiftwork.checkpoint_saved(7, "/c/7", wait=False)
    shiftwork.yield_now("no data " * 100)
    assert [each["step"] for each in on_platform.checkpoints] == [7]
    ((route, body),) = on_platform.others
    assert route == "POST /v1/run/yield"
    assert len(body["reason"]) == limits.YIELD_REASON_MAX
    assert shiftwork.should_preempt() is True
    with pytest.raises(SystemExit) as left:
        shiftwork.exit_preempted()
    assert left.value.code == training.PREEMPTED_EXIT_CODE


@pytest.mark.parametrize("reason", ["no\0data", "no\ud800data"])
def test_a_reason_with_characters_that_nobody_can_store_is_cleaned(
    on_platform: RunServer, reason: str
) -> None:
    shiftwork.yield_now(reason)
    ((_, body),) = on_platform.others
    assert body["reason"] in ("no data", "no?data")


@pytest.mark.parametrize(
    "call",
    [
        shiftwork.yield_now,
        lambda: shiftwork.set_life_state(1),
        lambda: shiftwork.set_priority("low"),
    ],
)
def test_an_attempt_that_is_over_learns_it(on_platform: RunServer, call: Any) -> None:
    on_platform.other_answers = [OVER]
    with pytest.raises(shiftwork.Superseded):
        call()
    with pytest.raises(shiftwork.Superseded):
        call()


@pytest.mark.parametrize("value", [b"\x00\xff", "text", 3, {"seen": [1, None]}, [], b"", None])
def test_a_life_state_comes_back_as_it_was_given(on_platform: RunServer, value: Any) -> None:
    assert shiftwork.life_state() is None
    shiftwork.set_life_state(value)
    found = shiftwork.life_state()
    assert (found, type(found)) == (value, type(value))
    assert [route for route, _ in on_platform.others] == ["PUT /v1/run/state"]


def test_a_life_state_that_cannot_be_kept_is_refused_at_once(on_platform: RunServer) -> None:
    for value, error in (
        (b"x" * (limits.LIFE_STATE_BYTES_MAX + 1), ValueError),
        (math.nan, ValueError),
        (Path("/x"), TypeError),
    ):
        with pytest.raises(error):
            shiftwork.set_life_state(value)
    assert on_platform.others == []


def test_a_priority_that_is_refused_is_an_error_with_the_reason(on_platform: RunServer) -> None:
    errors = [{"field": "priority", "message": "is more than your quota allows"}]
    on_platform.other_answers = [(422, {"type": "invalid", "detail": "no", "errors": errors})]
    with pytest.raises(ValueError, match="priority: is more than your quota allows"):
        shiftwork.set_priority("extreme_high")
    shiftwork.set_priority("low")
    assert on_platform.others == [("PUT /v1/run/priority", {"priority": "low"})]


@pytest.mark.parametrize("priority", ["lowww", "", "LOW", "unspecified"])
def test_a_priority_that_does_not_exist_is_named_with_those_that_do(
    on_platform: RunServer, priority: str
) -> None:
    with pytest.raises(ValueError, match=f"one of extreme_high, .*, auto, not {priority!r}"):
        shiftwork.set_priority(priority)
    assert on_platform.others == []


@pytest.mark.parametrize(
    ("call", "argument"), [(shiftwork.yield_now, "reason"), (shiftwork.set_priority, "priority")]
)
@pytest.mark.parametrize("value", [5, None, b"low"])
def test_an_argument_that_is_no_text_is_named(
    on_platform: RunServer, call: Any, argument: str, value: Any
) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be text, not {value!r}"):
        call(value)
    assert on_platform.others == []
