"""Classifies how a run ended, by one ordered table. Called by ``reconcile`` once per run.

The order of the table matters: an acknowledged preemption counts as a preemption whatever the exit
codes are, because launchers between the node and the program turn the reserved code 75 into others.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from libs.contracts.completion import Decided, Verdict, text_of
from libs.contracts.messages import ExitKind, Fault, PreemptMode, RankExit, RunExit
from libs.contracts.wording import counted
from services.launcher.domain.model import EndCause, ObservedRank, RankState

PREEMPTED_CODE = 75
DEFAULT_SIGNAL = "USR1"
SHELL_SIGNAL_BASE = 128
# In the clause about the end of an attempt in debug mode.
RANKS_NAMED_MAX = 4


@dataclass(frozen=True, slots=True)
class Ending:
    """The input of the classification."""

    mode: PreemptMode
    # The number of the preemption signal (signal mode).
    signal: int
    preempt_requested: bool
    acked: bool
    end_cause: EndCause | None
    # How many ranks the gang has; those that never began are not in ``ranks``.
    world_size: int
    ranks: tuple[ObservedRank, ...]
    # How many ranks never began because their roles waited for others.
    waited: int = 0
    # What was known when the launcher decided to end the run.
    note: str = ""
    # What the task's rules decided by the ranks that ended before the platform ended the others.
    decided: Decided | None = None
    # The rules are not the default.
    own_rules: bool = False
    # How the rank failed that decided a failure; empty: the first that failed.
    failure: str = ""
    # Its program has reported that it is not done.
    unfinished: bool = False
    # It handed the nodes over on its own before the platform ended it, and why.
    yielded: bool = False
    yield_reason: str = ""
    # In debug mode.
    debug: bool = False


def _ended_as_succeeded(ending: Ending) -> bool:
    return ending.end_cause is EndCause.SUCCEEDED


def _acknowledged(ending: Ending) -> bool:
    return ending.preempt_requested and ending.acked


def _yielded(ending: Ending) -> bool:
    """It handed the nodes over, or reported that while it was to be killed and exited before."""
    return ending.yielded or (ending.unfinished and ending.end_cause is None)


def _debug_over(ending: Ending) -> bool:
    return (
        ending.debug
        and ending.end_cause is None
        and len(ending.ranks) == ending.world_size
        and all(rank.state is RankState.EXITED for rank in ending.ranks)
    )


def _succeeded(ending: Ending) -> bool:
    if ending.debug or ending.end_cause is EndCause.RANK_FAILED or ending.unfinished:
        return False
    # What was decided when it was ended is its cause. Later ends prove nothing unless all are 0.
    if ending.end_cause is None and ending.decided is not None:
        return ending.decided.verdict is Verdict.SUCCEEDED
    return len(ending.ranks) == ending.world_size and all(r.code == 0 for r in ending.ranks)


def left_by(rank: ObservedRank, signal: int) -> bool:
    """Whether a rank ended in one of the ways in which programs leave on a signal."""
    return rank.code in (0, PREEMPTED_CODE, SHELL_SIGNAL_BASE + signal) or rank.signal == signal


def _left_on_signal(ending: Ending) -> bool:
    """Signal mode: every rank left in one of the signal's ways, or some did and the task's own
    rules tolerate how the others ended."""
    left = [left_by(rank, ending.signal) for rank in ending.ranks]
    return (
        ending.mode is PreemptMode.SIGNAL
        and ending.preempt_requested
        and bool(left)
        and len(ending.ranks) + ending.waited == ending.world_size
        and (all(left) or (ending.own_rules and any(left)))
        and not (ending.decided is not None and ending.decided.verdict is Verdict.FAILED)
    )


def _never_began(ending: Ending) -> bool:
    return ending.end_cause is EndCause.PREEMPTED_BEFORE_START


def _killed(ending: Ending) -> bool:
    return ending.end_cause in (EndCause.KILL, EndCause.SUPERSEDED)


def _cannot_start(ending: Ending) -> bool:
    return ending.end_cause is EndCause.CANNOT_START


def _rejected_by_site(ending: Ending) -> bool:
    return ending.end_cause is EndCause.REJECTED_BY_SITE


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
    text: str


RULES: tuple[Rule, ...] = (
    Rule(_ended_as_succeeded, ExitKind.OK, "a rule for success was met, and the rest was ended"),
    Rule(_acknowledged, ExitKind.PREEMPTED, "acknowledged after the request, whatever the codes"),
    Rule(_yielded, ExitKind.PREEMPTED, "handed its nodes over on its own, whatever the codes"),
    Rule(_debug_over, ExitKind.OK, "in debug mode, every rank ended by itself, whatever the codes"),
    Rule(_succeeded, ExitKind.OK, "every rank exited with 0, or a rule for success was met"),
    Rule(_left_on_signal, ExitKind.PREEMPTED, "signal mode: 75, 128+n or death by the signal"),
    Rule(_never_began, ExitKind.PREEMPTED, "preempted before rank 0 was started"),
    Rule(_killed, ExitKind.KILLED, "the platform ordered its end"),
    Rule(_cannot_start, ExitKind.FAILED, "it can never start as it is: its own fault"),
    Rule(_rejected_by_site, ExitKind.LOST, "it could not start: the site's fault"),
    Rule(_vanished, ExitKind.LOST, "a rank vanished with its node, pod or supervisor"),
    Rule(_otherwise, ExitKind.FAILED, "anything else"),
)


# Whether the remains of a run in the runtime (its pods) are kept for a while for people to inspect:
# only if it ended by itself. A preempted run has released its nodes when nothing of it is left.
KEPT: Mapping[ExitKind, bool] = {
    ExitKind.OK: True,
    ExitKind.FAILED: True,
    ExitKind.PREEMPTED: False,
    ExitKind.KILLED: False,
    ExitKind.LOST: False,
}


def is_kept(exit_: RunExit | None) -> bool:
    """Whether to keep the remains of a run that ended so. False for a run without a row."""
    return exit_ is not None and KEPT[exit_.kind]


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
    """The deciding reason as one clause for people."""
    match kind:
        case ExitKind.OK:
            return _success(ending)
        case ExitKind.PREEMPTED if ending.yielded and not ending.preempt_requested:
            reason = f": {ending.yield_reason}" if ending.yield_reason else ""
            return f"handed its nodes over on its own{reason}"
        case ExitKind.PREEMPTED:
            return "released its nodes after a checkpoint" if ending.acked else "left on request"
        case ExitKind.KILLED:
            return "ended by the platform"
        case ExitKind.LOST if ending.end_cause is not EndCause.REJECTED_BY_SITE:
            return first_loss(ending.ranks) or ending.note or "a rank vanished"
        case _:
            return _failure(ending)


def _success(ending: Ending) -> str:
    if ending.debug:
        ends = [f"rank {rank.rank} with {_how(rank)}" for rank in ending.ranks[:RANKS_NAMED_MAX]]
        more = ", ..." if len(ending.ranks) > RANKS_NAMED_MAX else ""
        return f"every rank has ended: {', '.join(ends)}{more}"
    if ending.end_cause is EndCause.SUCCEEDED:
        return ending.note or "a rule for success was met"
    if ending.own_rules and ending.decided is not None:
        return success_of(ending.decided, sum(rank.code != 0 for rank in ending.ranks))
    return "every rank exited with 0"


def success_of(decided: Decided, failures: int) -> str:
    """Which rule for success was met, and how many ranks had failed by then."""
    tolerated = f"; {counted(failures, 'failed rank')} tolerated" if failures else ""
    return f"{text_of(decided.rule)} succeeded{tolerated}"


def _failure(ending: Ending) -> str:
    if ending.end_cause in (EndCause.CANNOT_START, EndCause.REJECTED_BY_SITE):
        return ending.note or "it could not start"
    if ending.own_rules and ending.end_cause in (None, EndCause.RANK_FAILED):
        return ending.note
    return ending.failure or first_failure(ending.ranks) or ending.note or "not every rank started"


def failure_of(decided: Decided | None, failure: str) -> str:
    """Which rule for failure was met, and by which failure; None: not even one for success was."""
    if decided is None:
        return f"every rank has ended, and no rule for success is met; {failure}"
    if not decided.rule:
        return f"no rule for success can be met any more: {failure}"
    return f"{text_of(decided.rule)} failed: {failure}"


def first_loss(ranks: Iterable[ObservedRank]) -> str:
    """Which ranks vanished, and how the first of them did; empty if none did."""
    lost = [rank for rank in ranks if rank.state is RankState.LOST]
    if not lost:
        return ""
    where = ", ".join(f"rank {rank.rank} on {rank.node_id}" for rank in lost[:3])
    return f"{where} vanished" + (f": {lost[0].note}" if lost[0].note else "")


def fault_of_loss(ranks: Iterable[ObservedRank]) -> Fault | None:
    """What was wrong with the first of the ranks that vanished, as far as that is known."""
    return next((rank.fault for rank in ranks if rank.state is RankState.LOST), None)


def rank_exit(rank: ObservedRank) -> RankExit:
    """The facts of how a rank ended."""
    fault = rank.fault or Fault.UNSPECIFIED
    return RankExit(rank=rank.rank, code=rank.code, signal=rank.signal, fault=fault)


def first_failed(ranks: Iterable[ObservedRank]) -> ObservedRank | None:
    """The rank that failed first: those that we ended because of it come later. None if no rank is
    known to have failed."""
    over = [rank for rank in ranks if rank.state is RankState.EXITED]
    own = [rank for rank in over if rank.code not in (None, 0)]
    by_signal = [rank for rank in over if rank.signal is not None]
    by_fault = [rank for rank in over if rank.fault is not None]
    failed = own or by_signal or by_fault
    return min(
        failed,
        key=lambda r: (r.exited_at.timestamp() if r.exited_at else inf, r.rank),
        default=None,
    )


def first_failure(ranks: Iterable[ObservedRank]) -> str:
    """Which rank failed first, and how; empty if none is known to have failed."""
    rank = first_failed(ranks)
    return "" if rank is None else failure_text(rank)


def failure_text(rank: ObservedRank) -> str:
    """How a rank failed."""
    how = _how(rank)
    if rank.code is None and rank.signal is None:
        return f"rank {rank.rank} on {rank.node_id}: {rank.note}"
    return f"rank {rank.rank} ended with {how}" + (f" ({rank.note})" if rank.note else "")


def _how(rank: ObservedRank) -> str:
    return f"code {rank.code}" if rank.code is not None else f"signal {rank.signal}"


def render_markdown() -> str:
    """The table for the documentation."""
    head = "| first that holds | exit | its pods |\n| --- | --- | --- |\n"
    pods = {True: "kept for a while", False: "deleted at once"}
    return head + "".join(
        f"| {rule.text} | {rule.kind.name.lower()} | {pods[KEPT[rule.kind]]} |\n" for rule in RULES
    )
