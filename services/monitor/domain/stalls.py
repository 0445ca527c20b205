"""How long a program has reported no new step. Pure. All times are steady seconds.

A step is new if it is another one than before: a program may count again from 0 in each epoch. What
counts begins with the first step that the present attempt reports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.monitor.domain.abnormal_facts import FactsRow


@dataclass(frozen=True, slots=True)
class LastStep:
    """The step that a program reported last, as one leader knows it."""

    attempt: int
    step: float
    # Since when it has been this one; when this leader saw it change, if it did.
    since_s: float
    changed_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """How a program's steps stand at a moment."""

    step: float
    # For how long there has been no new one; since when there was one, if that is known.
    lasted_s: float
    advanced_s: float | None


def after_answer(before: LastStep | None, row: FactsRow, step: float, now_s: float) -> LastStep:
    """What is known after the gateway's answer. Without earlier knowledge it goes on with the stall
    that the row has."""
    if before is not None and before.attempt == row.attempt:
        if before.step == step:
            return before
        return LastStep(row.attempt, step, now_s, now_s)
    since_s = now_s
    if before is None and row.stalled_since_s is not None and row.stalled_step == step:
        since_s = row.stalled_since_s
    return LastStep(row.attempt, step, since_s)


def stall_of(known: LastStep | None, row: FactsRow, now_s: float) -> Stall | None:
    """How the steps of the present attempt stand; None: it has reported none."""
    if known is None or known.attempt != row.attempt:
        return None
    advanced_s = None if known.changed_s is None else max(0.0, now_s - known.changed_s)
    return Stall(known.step, max(0.0, now_s - known.since_s), advanced_s)


def with_stall(row: FactsRow, stall: Stall | None, now_s: float, counts_after: float) -> FactsRow:
    """The facts with the time since when the program stalls, once that has lasted. What is not
    known now stays as it was."""
    if stall is None:
        return row
    if stall.lasted_s < counts_after:
        return replace(row, stalled_since_s=None, stalled_step=None)
    if row.stalled_since_s is not None and row.stalled_step == stall.step:
        return row
    return replace(row, stalled_since_s=now_s - stall.lasted_s, stalled_step=stall.step)
