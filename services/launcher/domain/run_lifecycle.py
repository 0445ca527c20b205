"""The states of a run in the launcher, as one table. Called by ``reconcile`` and the handlers;
rendered into the documentation by ``render_markdown``.
"""

from __future__ import annotations

from enum import StrEnum

from services.launcher.domain.model import RunState


class Trigger(StrEnum):
    """What changes the state of a run."""

    ASSIGNED = "assigned"
    STARTED = "started"
    END_ORDERED = "end_ordered"
    EXITED = "exited"
    FORGOTTEN = "forgotten"


S, T = RunState, Trigger

TRANSITIONS: dict[tuple[RunState, Trigger], RunState] = {
    (S.EARLY_REQUEST, T.ASSIGNED): S.ASSIGNED,
    (S.ASSIGNED, T.STARTED): S.RUNNING,
    (S.ASSIGNED, T.END_ORDERED): S.ENDING,
    (S.RUNNING, T.END_ORDERED): S.ENDING,
    (S.RUNNING, T.EXITED): S.EXITED,
    (S.ENDING, T.EXITED): S.EXITED,
    (S.EXITED, T.FORGOTTEN): S.FORGOTTEN,
}

# These happen when messages repeat or arrive late, and change nothing.
IGNORED: frozenset[tuple[RunState, Trigger]] = frozenset(
    {
        (S.ASSIGNED, T.ASSIGNED),
        (S.RUNNING, T.ASSIGNED),
        (S.ENDING, T.ASSIGNED),
        (S.EXITED, T.ASSIGNED),
        (S.FORGOTTEN, T.ASSIGNED),
        (S.RUNNING, T.STARTED),
        # No start is published for a gang that is being ended.
        (S.ENDING, T.STARTED),
        # The first cause stays.
        (S.ENDING, T.END_ORDERED),
        (S.EXITED, T.END_ORDERED),
        (S.FORGOTTEN, T.END_ORDERED),
        (S.EXITED, T.EXITED),
        (S.FORGOTTEN, T.EXITED),
        (S.FORGOTTEN, T.FORGOTTEN),
    }
)

# These would be defects: the run was never launched, or has not ended yet.
IMPOSSIBLE: frozenset[tuple[RunState, Trigger]] = frozenset(
    {
        (S.EARLY_REQUEST, T.STARTED),
        (S.EARLY_REQUEST, T.END_ORDERED),
        (S.EARLY_REQUEST, T.EXITED),
        (S.EARLY_REQUEST, T.FORGOTTEN),
        (S.ASSIGNED, T.EXITED),
        (S.ASSIGNED, T.FORGOTTEN),
        (S.RUNNING, T.FORGOTTEN),
        (S.ENDING, T.FORGOTTEN),
        (S.EXITED, T.STARTED),
        (S.FORGOTTEN, T.STARTED),
    }
)

# States in which the attempt may still save checkpoints.
LIVE: tuple[RunState, ...] = (S.ASSIGNED, S.RUNNING, S.ENDING)


def move(state: RunState, trigger: Trigger) -> RunState:
    """The state after ``trigger``; AssertionError if that cannot happen."""
    pair = (state, trigger)
    assert pair not in IMPOSSIBLE, f"a run that is {state} cannot be {trigger}"
    return state if pair in IGNORED else TRANSITIONS[pair]


def render_markdown() -> str:
    """The table for the documentation."""
    lines = ["| from | " + " | ".join(T) + " |", "| --- |" + " --- |" * len(T)]
    for state in S:
        cells = (
            TRANSITIONS.get((state, trigger))
            or ("(ignored)" if (state, trigger) in IGNORED else "—")
            for trigger in T
        )
        lines.append(f"| {state} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
