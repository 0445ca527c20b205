"""How a run ended, as one ordered table. Called by ``reconcile`` once per run.

The order is the meaning: an acknowledged preemption stays one whatever the exit codes say,
because launchers between us and the program turn the reserved code 75 into others.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from libs.contracts.messages import ExitKind, PreemptMode
from services.launcher.domain.model import EndCause, ObservedRank, RankState

PREEMPTED_CODE = 75
DEFAULT_SIGNAL = "USR1"
SHELL_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class Ending:
    """Everything the classification may look at."""

    mode: PreemptMode
    # The number of the preemption signal (signal mode).
    signal: int
    preempt_requested: bool
    acked: bool
    end_cause: EndCause | None
    # How many ranks the gang has; those that never began are not in ``ranks``.
    world_size: int
    ranks: tuple[ObservedRank, ...]


def _acknowledged(ending: Ending) -> bool:
    return ending.preempt_requested and ending.acked


def _finished(ending: Ending) -> bool:
    return len(ending.ranks) == ending.world_size and all(r.code == 0 for r in ending.ranks)


def _handed_over(ending: Ending) -> bool:
    """Signal mode: every rank left by the signal's ways out (or had finished)."""
    codes = (0, PREEMPTED_CODE, SHELL_SIGNAL_BASE + ending.signal)
    return (
        ending.mode is PreemptMode.SIGNAL
        and ending.preempt_requested
        and len(ending.ranks) == ending.world_size
        and all(r.code in codes or r.signal == ending.signal for r in ending.ranks)
    )


def _never_began(ending: Ending) -> bool:
    return ending.end_cause is EndCause.PREEMPTED_BEFORE_START


def _killed(ending: Ending) -> bool:
    return ending.end_cause in (EndCause.KILL, EndCause.SUPERSEDED)


def _vanished(ending: Ending) -> bool:
    return ending.end_cause is EndCause.RANK_LOST or any(
        r.state is RankState.LOST for r in ending.ranks
    )


def _otherwise(_: Ending) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table; the first that holds decides."""

    holds: Callable[[Ending], bool]
    kind: ExitKind
    says: str


RULES: tuple[Rule, ...] = (
    Rule(_acknowledged, ExitKind.PREEMPTED, "acknowledged after the request, whatever the codes"),
    Rule(_finished, ExitKind.OK, "every rank exited with 0"),
    Rule(_handed_over, ExitKind.PREEMPTED, "signal mode: 75, 128+n or death by the signal"),
    Rule(_never_began, ExitKind.PREEMPTED, "preempted before anything was started"),
    Rule(_killed, ExitKind.KILLED, "we were told to end it"),
    Rule(_vanished, ExitKind.LOST, "a rank vanished with its node or supervisor"),
    Rule(_otherwise, ExitKind.FAILED, "anything else"),
)


def classify(ending: Ending) -> ExitKind:
    """The kind of end; total: the last rule always holds."""
    return next(rule.kind for rule in RULES if rule.holds(ending))


def signal_number(name: str) -> int:
    """The number of a signal by its name without SIG (USR1 if empty); ValueError if unknown."""
    full = "SIG" + (name or DEFAULT_SIGNAL).upper().removeprefix("SIG")
    try:
        return int(signals.Signals[full])
    except KeyError:
        raise ValueError(f"{name!r} is not a signal; write a name such as USR1 or TERM") from None


def detail(ending: Ending, kind: ExitKind) -> str:
    """One clause for people: what decided."""
    if kind is ExitKind.OK:
        return "every rank exited with 0"
    if kind is ExitKind.PREEMPTED:
        return "handed over after a checkpoint" if ending.acked else "left when asked to"
    if kind is ExitKind.KILLED:
        return "ended by the platform"
    if kind is ExitKind.LOST:
        lost = [r for r in ending.ranks if r.state is RankState.LOST]
        where = ", ".join(f"rank {r.rank} on {r.node_id}" for r in lost[:3]) or "a rank"
        return f"{where} vanished" + (f": {lost[0].note}" if lost and lost[0].note else "")
    return _first_failure(ending)


def _first_failure(ending: Ending) -> str:
    """Which rank failed first, and how: those that we ended because of it come later."""
    own = [r for r in ending.ranks if r.code not in (None, 0)]
    by_signal = [r for r in ending.ranks if r.signal is not None]
    failed = own or by_signal
    if not failed:
        return "not every rank started"
    rank = min(failed, key=lambda r: (r.exited_at.timestamp() if r.exited_at else inf, r.rank))
    how = f"code {rank.code}" if rank.code is not None else f"signal {rank.signal}"
    return f"rank {rank.rank} ended with {how}" + (f" ({rank.note})" if rank.note else "")


def render_markdown() -> str:
    """The table for the documentation."""
    head = "| first that holds | exit |\n| --- | --- |\n"
    return head + "".join(f"| {rule.says} | {rule.kind.name.lower()} |\n" for rule in RULES)
