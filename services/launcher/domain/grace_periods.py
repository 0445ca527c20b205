"""The grace periods of runs that the launcher ends, as one table. Called by ``loop.py``; pure.
The process runtime kills whole groups at once, except where ``is_asked`` holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from services.launcher.domain.model import EndCause, Run


class Grace(StrEnum):
    """A class of grace periods; the numbers are settings."""

    NONE = "none"
    # After an acknowledgement there is nothing left to save.
    ACKED = "acked"
    # For the rest of a gang that has lost a rank, and in debug mode: they can only clean up.
    MATES = "mates"
    # A run without an acknowledgement may still be writing.
    FULL = "full"


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """The numbers in seconds. ``full`` exceeds the 30 seconds that torchrun takes to leave."""

    acked: float = 1.0
    mates: float = 5.0
    full: float = 35.0

    def seconds(self, grace: Grace) -> float:
        """The seconds of a class."""
        match grace:
            case Grace.NONE:
                return 0.0
            case Grace.ACKED:
                return self.acked
            case Grace.MATES:
                return self.mates
            case Grace.FULL:
                return self.full


P = Grace

# By the cause, for runs that had started and have acknowledged nothing.
BY_CAUSE: Mapping[EndCause, Grace] = {
    EndCause.KILL: P.FULL,
    # The task is done, but those that are left may still be writing.
    EndCause.SUCCEEDED: P.FULL,
    EndCause.GRACE_OVER: P.ACKED,
    EndCause.RANK_FAILED: P.MATES,
    EndCause.RANK_LOST: P.MATES,
    # Its first roles ran, but not rank 0.
    EndCause.PREEMPTED_BEFORE_START: P.FULL,
    EndCause.SUPERSEDED: P.MATES,
    # Its first roles ran, but a later one cannot start.
    EndCause.CANNOT_START: P.MATES,
    EndCause.REJECTED_BY_SITE: P.MATES,
}


# The causes for which roles end in the reverse order of their start, each within its share of the
# grace period. For the others something of the gang is missing already, or never ran.
STAGED = frozenset(
    {
        EndCause.KILL,
        EndCause.GRACE_OVER,
        EndCause.SUCCEEDED,
        EndCause.PREEMPTED_BEFORE_START,
    }
)


# The causes for which every runtime sends SIGTERM before it kills: these ranks did nothing wrong,
# and nobody wanted to end them at once.
ASKED = frozenset({EndCause.SUCCEEDED, EndCause.GRACE_OVER, EndCause.PREEMPTED_BEFORE_START})


def is_asked(run: Run | None) -> bool:
    """Whether every runtime gives this run's ranks their grace period. Of a debug program, which is
    always ended by force, unless its owner wants that at once; of another run until a kill."""
    if run is None or run.end_cause is None:
        return False
    if run.debugs:
        return not run.kill_now
    return run.end_cause in ASKED and run.kill_requested_at is None


def is_cut_short(run: Run) -> bool:
    """Whether its ranks would have been asked, but a kill leaves them no time: an order that is
    carried out already has to be repeated."""
    return (run.debugs or run.end_cause in ASKED) and not is_asked(run)


def grace_for(run: Run | None) -> Grace:
    """The class of this run. A run without a row gets the full period."""
    if run is None or run.end_cause is None:
        return P.FULL
    if run.leaves_since is not None:
        return P.ACKED
    if run.started_at is None:
        return P.NONE
    grace = BY_CAUSE[run.end_cause]
    return P.MATES if run.debugs and grace is P.FULL else grace


def grace_seconds(run: Run | None, periods: GracePeriods, exit_grace: timedelta) -> float:
    """How long the processes of this run have to leave. Those of a run that is ended role by role
    after its acknowledgement have what is left of ``exit_grace``."""
    seconds = periods.seconds(grace_for(run))
    if run is None or run.end_cause is not EndCause.GRACE_OVER:
        return seconds
    if run.leaves_since is None or run.ending_at is None:
        return seconds
    # Leaders whose clocks differ may have recorded the two times.
    left = min(exit_grace, run.leaves_since + exit_grace - run.ending_at)
    return max(seconds, left.total_seconds())


def render_markdown() -> str:
    """The table for the documentation."""
    lines = ["| ended because of | grace period |", "| --- | --- |"]
    lines += ["| anything, after an acknowledgement | acked |", "| anything before it ran | none |"]
    lines += ["| anything, in debug mode | mates at most |"]
    lines += [f"| {cause} | {grace} |" for cause, grace in BY_CAUSE.items()]
    return "\n".join(lines) + "\n"
