from __future__ import annotations

import itertools

import pytest

from services.launcher.domain.model import RunState
from services.launcher.domain.run_lifecycle import (
    IGNORED,
    IMPOSSIBLE,
    TRANSITIONS,
    Trigger,
    move,
    render_markdown,
)


def test_every_pair_is_in_exactly_one_table() -> None:
    for pair in itertools.product(RunState, Trigger):
        tables = (pair in TRANSITIONS, pair in IGNORED, pair in IMPOSSIBLE)
        assert tables.count(True) == 1, pair


def test_every_state_is_reached_and_the_last_one_stays() -> None:
    reached = {RunState.EARLY_REQUEST}
    for _ in RunState:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}
    assert reached == set(RunState)
    assert not [pair for pair in TRANSITIONS if pair[0] is RunState.FORGOTTEN]


def test_an_exit_is_published_once() -> None:
    """There is one way into EXITED from each live state, and none out of it but forgetting."""
    ways = {state: to for (state, _), to in TRANSITIONS.items() if state is RunState.EXITED}
    assert ways == {RunState.EXITED: RunState.FORGOTTEN}


def test_impossible_moves_are_refused() -> None:
    with pytest.raises(AssertionError, match="cannot be"):
        move(RunState.ASSIGNED, Trigger.EXITED)
    assert move(RunState.ENDING, Trigger.END_ORDERED) is RunState.ENDING


def test_the_lifecycle_table_renders() -> None:
    text = render_markdown()
    assert all(f"| {state} |" in text for state in RunState)
