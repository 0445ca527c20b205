"""When a waiting task will start if nothing unexpected happens.

Called by ``explanation.py``. ``group_simulation.py`` simulates the group forward and calls
``decide`` at every future event. The result is a forecast, not a promise: it comes with its
assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from libs.contracts.messages import Forecast, Reason, ReasonCode
from libs.contracts.wording import counted, duration
from services.scheduler.domain.explain.group_simulation import (
    GroupSimulation,
    IndexCopies,
    Pace,
    Stopped,
)
from services.scheduler.domain.explain.text import named
from services.scheduler.domain.model.lifecycle import QUEUED

HORIZON_SECONDS = 30 * 86_400.0
NO_TIME = "too large to forecast within the time for one question"

# Reasons for waiting that the end of a run does not remove.
_UNKNOWN = {
    ReasonCode.WAITS_FOR_INVENTORY: "its nodes are not known yet",
    ReasonCode.NEVER_FITS: "no known nodes could hold it",
    ReasonCode.QUOTA_NEVER_FITS: "its quota never allows it",
    ReasonCode.CLUSTER_TOO_SMALL_NOW: "nobody knows when nodes come back or are added",
}


def forecast(
    base: GroupSimulation, copies: IndexCopies, *, alone: bool, rounds_max: int
) -> Forecast:
    """The expected start with its earliest and latest time, or why there is none.

    ``alone``: the index has no tasks of other groups, because no limit counts several groups.
    """
    unknown = _UNKNOWN.get(base.why.code) if base.why else None
    if base.why is not None and _never(base.why) and base.task is not None:
        # A task at AUTO may count at another level when runs end.
        unknown = unknown or ("" if base.task.is_auto else _UNKNOWN[ReasonCode.QUOTA_NEVER_FITS])
    if unknown:
        return Forecast(unknown=unknown)
    rounds_max += base.rounds

    def played(pace: Pace) -> tuple[Forecast, bool] | None:
        return copies.with_copy(
            base.index,
            lambda index: _played(base.on_copy(index, pace), alone=alone, rounds_max=rounds_max),
        )

    found, uncertain = played(Pace.EXPECTED) or (Forecast(unknown=NO_TIME), False)
    if found.starts_at is None or not uncertain:
        return found
    # Runs that end earlier may let other tasks start first, so neither simulation has to give the
    # earliest or the latest time.
    others = [played(pace) for pace in (Pace.EARLY, Pace.LATE)]
    starts = [found.starts_at, *(each[0].starts_at for each in others if each)]
    # Without both simulations, or if one did not reach the start, there is no range.
    known = [each for each in starts if each is not None]
    if len(known) < 3 or min(known) == max(known):  # noqa: PLR2004 - those three
        return found
    return found.model_copy(
        update={
            "earliest_at": min(known),
            "latest_at": max(known),
            "assumptions": (*found.assumptions, RANGE),
        }
    )


def _never(why: Reason) -> bool:
    """True for a quota that permits less than the task needs, whatever ends."""
    if why.code is not ReasonCode.WAITS_FOR_QUOTA:
        return False
    limit = why.numbers["limit"]
    return why.numbers["need"] > limit or ("grant" in why.names and limit == 0)


RANGE = (
    "for the earliest moment, runs end as soon as one in ten tasks like them did, and save at once"
    " when asked to go; for the latest, they use all of their time limits, or run for as long as"
    " nine in ten tasks like them"
)


def _played(simulation: GroupSimulation, *, alone: bool, rounds_max: int) -> tuple[Forecast, bool]:
    """The forecast at one pace, and whether another pace may give a different one."""
    now = simulation.now
    until = now + timedelta(seconds=HORIZON_SECONDS)
    stopped = simulation.run(until=until, rounds_max=rounds_max)
    assumptions = tuple(_assumptions(simulation, alone=alone))
    if stopped is None:
        return Forecast(starts_at=simulation.now, assumptions=assumptions), simulation.uncertain
    passed = duration((simulation.now - now).total_seconds())
    unknown = _stopped(simulation, stopped, passed)
    return Forecast(unknown=unknown, assumptions=assumptions), simulation.uncertain


def _stopped(simulation: GroupSimulation, why: Stopped, passed: str) -> str:
    task = simulation.task
    if task is None or task.state is not QUEUED:
        return "its owner, or what it asks for, keeps it from starting"
    endless = ""
    if simulation.endless:
        endless = "nobody knows how long these runs take, which hold nodes"
        endless += f": {named(simulation.endless)}"
    if why is Stopped.NOTHING_LEFT:
        return endless or (
            "not even when everything that runs has ended: others before it or limits are in its"
            " way"
        )
    far = f"not within {passed}"
    if why is Stopped.TOO_LONG:
        if passed == duration(0.0):
            return NO_TIME
        far = (
            "too much happens here to look further ahead:"
            f" not within {passed} ({counted(simulation.rounds, 'round')} of decisions)"
        )
    return f"{far}; {endless}" if endless else far


def _assumptions(simulation: GroupSimulation, *, alone: bool) -> Iterator[str]:
    yield "nothing new is submitted, nothing fails, and nodes and policies stay as they are"
    if simulation.by_history:
        group = "" if simulation.task is None else f" in group {simulation.task.group}"
        ends = simulation.ends_known
        yield (
            "runs end at their owners' time limits; where there is none, after as long as half of"
            f" the tasks like them took ({counted(ends, 'end')} known{group})"
        )
    else:
        yield "runs end at their owners' time limits"
    yield "runs that are asked to go take as long to save as they may"
    victims = sorted(simulation.chosen) if simulation.started else []
    if victims:
        verb = "is" if len(victims) == 1 else "are"
        count = counted(len(victims), "run")
        yield f"{count} {verb} asked to leave for it by then: {named(victims)}"
    if not alone:
        yield "runs of other groups, which limits count together with this one, go on as expected"
