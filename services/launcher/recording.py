"""What a leader's transaction writes down and says about runs. Called by ``loop.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import Counter

from libs.contracts.ids import RunId
from libs.service import observability
from libs.store.port import Tx
from services.launcher import store as tables
from services.launcher.domain import delays, inventory
from services.launcher.domain.delays import DelayPolicy, Told
from services.launcher.domain.inventory import QuarantinePolicy
from services.launcher.domain.model import Listing, NodeRow, Run, RunState
from services.launcher.handlers import exited, started

QUARANTINED = Counter(
    "shiftwork_launcher_quarantines_total", "Nodes that take no new runs after failed starts"
)


async def record(
    tx: Tx, before: Mapping[RunId, Run], runs: Sequence[Run], policy: QuarantinePolicy
) -> None:
    """Write runs' new rows, and say what is new about them and their nodes."""
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
    await _judge_nodes(tx, before, runs, policy)


async def _judge_nodes(
    tx: Tx, before: Mapping[RunId, Run], runs: Sequence[Run], policy: QuarantinePolicy
) -> None:
    """Count starts that failed by node, and forget them where one worked."""
    worked, failed = set[str](), dict[str, dict[str, Run]]()
    for run in runs:
        if before[run.id].started_at is None and run.started_at is not None:
            worked |= {place.node_id for place in run.placements}
        if before[run.id].exit is None and run.exit is not None:
            for node_id in run.failed_nodes:
                failed.setdefault(node_id, {})[run.task_id] = run
    for node_id in sorted(worked | failed.keys()):
        row = await tables.readable_node(tx, node_id)
        if row is None:
            continue
        after = inventory.start_worked(row) if node_id in worked else row
        for task_id, run in sorted(failed.get(node_id, {}).items()):
            after = inventory.start_failed(
                after,
                task_id,
                tx.now,
                policy,
                owner=run.owner,
                # An image or an init container that never comes to an end looks like a node on
                # which starts hang.
                counts_once=run.start_expired and await _is_suspect(tx, run.owner, node_id),
            )
        if after != row:
            tx.put(after)
        if after.version != row.version:
            _say_quarantined(tx, after)


async def _is_suspect(tx: Tx, owner: str, node_id: str) -> bool:
    """Whether starts of an owner have another node in quarantine already: a person whose starts
    hang everywhere takes one node from the others, and no more."""
    return any(
        row.quarantined_until is not None and row.failed_owner == owner and row.node_id != node_id
        for row in await tables.nodes(tx)
    )


def _say_quarantined(tx: Tx, row: NodeRow) -> None:
    QUARANTINED.inc()
    tx.emit(inventory.message(row))
    observability.log("launcher").warning(
        "node quarantined",
        node=row.node_id,
        failed_starts=row.failed_starts,
        until=str(row.quarantined_until),
        fix=f"find out why starts fail there, then: shiftwork node uncordon {row.node_id}",
    )


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
