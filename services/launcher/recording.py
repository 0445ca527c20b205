"""What a leader's transaction writes down and says about runs. Called by ``loop.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.ids import RunId
from libs.store.port import Tx
from services.launcher import store as tables
from services.launcher.domain import delays
from services.launcher.domain.delays import DelayPolicy, Told
from services.launcher.domain.model import Listing, Run, RunState
from services.launcher.handlers import exited, started


async def record(tx: Tx, before: Mapping[RunId, Run], runs: Sequence[Run]) -> None:
    """Write runs' new rows, and say what is new about them."""
    forgotten = [run for run in runs if run.state is RunState.FORGOTTEN]
    ended = [run for run in runs if before[run.id].exit is None and run.exit is not None]
    last = await tables.last_checkpoints(tx, [*ended, *forgotten])
    for run in runs:
        if before[run.id].started_at is None and run.started_at is not None:
            tx.emit(started(run))
        if before[run.id].exit is None and run.exit is not None:
            tx.emit(exited(run, last[run.id]))
        if run.state is not RunState.FORGOTTEN:
            tx.put(run)
    await tables.forget(tx, forgotten, last)


@dataclass(frozen=True, slots=True)
class HeldUp:
    """What was said of runs that are held up, and when there may be more to say."""

    told: dict[RunId, Told]
    due_at: datetime | None


def say_held_up(
    tx: Tx,
    runs: Iterable[Run],
    listing: Listing,
    *,
    problems: Mapping[RunId, str],
    told_before: Mapping[RunId, Told],
    policy: DelayPolicy,
) -> HeldUp:
    """Say why runs that were launched have not started, where that is news."""
    found, due = dict[RunId, Told](), list[datetime]()
    for run in runs:
        if run.state is not RunState.ASSIGNED:
            continue
        told = told_before.get(run.id)
        delay = delays.delay_of(run, listing.runs.get(run.id), problems.get(run.id, ""))
        event = delays.to_tell(run, delay, told, tx.now, policy)
        if isinstance(event, datetime):
            due.append(event)
        elif event is not None:
            tx.emit(event)
            told = Told(event.ranks, event.detail, tx.now)
        if told is not None:
            found[run.id] = told
    return HeldUp(found, min(due, default=None))
