"""Every question asked of the launcher's tables, and the writes that belong together.

Called by ``handlers.py`` and ``loop.py`` inside a leader's transaction. Runs, nodes and ports are
resident: asking for all of them costs no query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from libs.contracts.ids import RunId
from libs.contracts.messages import Checkpoint
from libs.store.port import Op, Order, Store, Tx, Where
from services.launcher.domain.model import (
    CheckpointRow,
    NodeRow,
    PastRun,
    PortLease,
    Run,
    RunState,
)

RESIDENT = (Run, NodeRow, PortLease)
# Of each task so many checkpoints are remembered; only the last one is ever resumed from.
CHECKPOINTS_KEPT = 20


async def load(store: Store) -> list[Run]:
    """Read the working set, once, as a new leader; returns every run that is not forgotten."""
    await store.make_resident(*RESIDENT)
    return list(store.resident(Run).values())


async def all_runs(tx: Tx) -> list[Run]:
    """Every run that is not forgotten, tombstones included."""
    return await tx.select(Run)


async def newest_attempt(tx: Tx, task_id: str) -> int:
    """The highest attempt of a task that was ever assigned here; 0 if none."""
    runs = await tx.select(Run, Where("task_id", Op.EQ, task_id))
    past = await tx.get(PastRun, task_id)
    attempts = [run.attempt for run in runs if run.state is not RunState.TOMBSTONE]
    return max([past.attempt if past else 0, *attempts])


async def newest_checkpoints(tx: Tx, task_id: str) -> list[Checkpoint]:
    """A task's remembered checkpoints, the last one first."""
    rows = await tx.select(
        CheckpointRow,
        Where("task_id", Op.EQ, task_id),
        order_by=[Order("no", descending=True)],
        limit=CHECKPOINTS_KEPT,
    )
    return [row.checkpoint for row in rows]


async def last_checkpoints(tx: Tx, runs: Sequence[Run]) -> dict[RunId, Checkpoint | None]:
    """The checkpoint to resume each run's task from, as of now: one query for all of them."""
    rows: list[CheckpointRow] = []
    if runs:
        task_ids = sorted({run.task_id for run in runs})
        rows = await tx.select(
            CheckpointRow, Where("task_id", Op.IN, task_ids), order_by=[Order("no")]
        )
    newest = {row.task_id: row.checkpoint for row in rows}
    return {run.id: newest.get(run.task_id, run.resume_from) for run in runs}


def keep_checkpoint(tx: Tx, task_id: str, checkpoint: Checkpoint) -> None:
    """Store an accepted checkpoint, and drop the one that is too old to matter."""
    tx.put(CheckpointRow(task_id, checkpoint.no, checkpoint.attempt, checkpoint))
    if checkpoint.no > CHECKPOINTS_KEPT:
        tx.delete(CheckpointRow, task_id, checkpoint.no - CHECKPOINTS_KEPT)


async def forget(tx: Tx, runs: Sequence[Run], last: Mapping[RunId, Checkpoint | None]) -> None:
    """Take ended runs out of the working set; their ports are free again. ``last``: the last
    checkpoints of their tasks."""
    if not runs:
        return
    forgotten = {(run.task_id, run.attempt) for run in runs}
    for lease in await leases(tx):
        if (lease.task_id, lease.attempt) in forgotten:
            tx.delete(PortLease, lease.port)
    await tx.load(PastRun, *((run.task_id,) for run in runs))
    for run in runs:
        await _forget(tx, run, last[run.id])


async def _forget(tx: Tx, run: Run, last: Checkpoint | None) -> None:
    assert run.exit is not None, "only an ended run is forgotten"
    tx.delete(Run, run.task_id, run.attempt)
    past = await tx.get(PastRun, run.task_id)
    if past is None or past.attempt < run.attempt:
        tx.put(
            PastRun(
                task_id=run.task_id,
                attempt=run.attempt,
                placements=run.placements,
                started_at=run.started_at,
                exit=run.exit,
                checkpoint=last,
                forgotten_at=tx.now,
            )
        )


async def leases(tx: Tx) -> list[PortLease]:
    """Every port that is leased."""
    return await tx.select(PortLease)


async def nodes(tx: Tx) -> list[NodeRow]:
    """The inventory, removed nodes included."""
    return await tx.select(NodeRow)


async def newest_past_runs(tx: Tx, limit: int) -> Sequence[PastRun]:
    """Forgotten runs, those that ended last, in the order of their ends."""
    rows = await tx.select(PastRun, order_by=[Order("forgotten_at", descending=True)], limit=limit)
    return rows[::-1]


async def prune(tx: Tx, before: datetime, limit: int) -> int:
    """Drop what nobody can ask for any more; returns how many rows, at most about ``limit``."""
    old = await tx.select(PastRun, Where("forgotten_at", Op.LT, before), limit=limit)
    live = {run.task_id for run in await all_runs(tx)}
    count = 0
    for past in old:
        if past.task_id in live:
            continue
        for row in await tx.select(CheckpointRow, Where("task_id", Op.EQ, past.task_id)):
            tx.delete(CheckpointRow, row.task_id, row.no)
        tx.delete(PastRun, past.task_id)
        count += 1
    for run in await all_runs(tx):
        asked_at = run.kill_requested_at or run.preempt_requested_at
        if run.state is RunState.TOMBSTONE and asked_at is not None and asked_at < before:
            tx.delete(Run, run.task_id, run.attempt)
            count += 1
    return count
