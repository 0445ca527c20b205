"""The queries on the launcher's tables, and the writes that belong together.

Called by ``handlers.py`` and ``loop.py`` inside a leader's transaction. Runs, nodes and ports are
resident: asking for all of them costs no query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import cast

from libs.contracts.ids import RunId, TaskId
from libs.contracts.messages import Checkpoint, Endpoint
from libs.service.prune import PruneRule, nth_newest, oldest_of
from libs.store.port import Op, Order, Store, Tx, UnreadableRowError, Where
from services.launcher.domain.model import (
    CheckpointRow,
    LifeStateContent,
    LifeStateRow,
    NodeRow,
    PastRun,
    PortLease,
    ReadyReport,
    Run,
    RunState,
)
from services.launcher.domain.worklist import Worklist
from services.launcher.hosts import Network, declares_ports, leased_ports

RESIDENT = (Run, NodeRow, PortLease, ReadyReport)
# Of each task so many checkpoints are remembered; only the last one is ever resumed from.
CHECKPOINTS_KEPT = 20


async def load(store: Store) -> Worklist:
    """Read the working set, once, as a new leader: every run that is not forgotten."""
    await store.make_resident(*RESIDENT)
    keys = (cast("tuple[str, int]", row.key) for row in store.unreadable(Run))
    unreadable = [RunId(TaskId(task_id), attempt) for task_id, attempt in keys]
    reports = store.resident(ReadyReport).values()
    return Worklist(store.resident(Run).values(), unreadable, reports)


async def all_runs(tx: Tx) -> list[Run]:
    """Every run that is not forgotten, early requests included."""
    return await tx.select(Run)


async def newest_attempt(tx: Tx, task_id: str) -> int:
    """The highest attempt of a task that was ever assigned here; 0 if none."""
    runs = await tx.select(Run, Where("task_id", Op.EQ, task_id))
    past = await tx.get(PastRun, task_id)
    attempts = [run.attempt for run in runs if run.state is not RunState.EARLY_REQUEST]
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
    checkpoints of their tasks.

    If the task's past row is unreadable, the ended run stays until a later scan or the next leader:
    without that record, a repeated assignment would launch the run again.
    """
    if not runs:
        return
    await tx.load(PastRun, *((run.task_id,) for run in runs))
    past: dict[str, PastRun | None] = {}
    for run in runs:
        with contextlib.suppress(UnreadableRowError):
            past[run.task_id] = await tx.get(PastRun, run.task_id)
    runs = [run for run in runs if run.task_id in past]
    forgotten = {(run.task_id, run.attempt) for run in runs}
    for lease in await leases(tx):
        if (lease.task_id, lease.attempt) in forgotten:
            tx.delete(PortLease, lease.port)
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
                spec=run.spec,
            )
        )


async def life_states(tx: Tx, task_ids: Sequence[str]) -> list[LifeStateRow]:
    """What is known of these tasks' life states, without their content."""
    if not task_ids:
        return []
    return await tx.select(LifeStateRow, Where("task_id", Op.IN, sorted(set(task_ids))))


async def leases(tx: Tx) -> list[PortLease]:
    """Every port that is leased."""
    return await tx.select(PortLease)


async def endpoints(tx: Tx, run: Run, network: Network) -> tuple[Endpoint, ...]:
    """Where the declared ports of a run are reached, as long as it holds them."""
    if run.spec is None or not declares_ports(run.spec):
        return ()
    return network.endpoints(run, leased_ports(await leases(tx)).get(run.id, {}))


async def nodes(tx: Tx) -> list[NodeRow]:
    """The inventory, removed nodes included."""
    return await tx.select(NodeRow)


def unreadable_nodes(tx: Tx) -> frozenset[str]:
    """The nodes whose rows cannot be decoded, including removed ones; call it after ``nodes``."""
    return frozenset(row.id for row in tx.unreadable if row.kind is NodeRow)


async def readable_node(tx: Tx, node_id: str) -> NodeRow | None:
    """A node's row; None as well if it cannot be decoded, for those that may step over it."""
    try:
        return await tx.get(NodeRow, node_id)
    except UnreadableRowError:
        return None


def unreadable_ports(tx: Tx) -> frozenset[int]:
    """The leased ports whose rows cannot be decoded; call it after ``leases``."""
    return frozenset(cast("int", row.key[0]) for row in tx.unreadable if row.kind is PortLease)


async def newest_past_runs(tx: Tx, limit: int) -> Sequence[PastRun]:
    """Forgotten runs, those that ended last, in the order of their ends."""
    rows = await tx.select(PastRun, order_by=[Order("forgotten_at", descending=True)], limit=limit)
    return rows[::-1]


def prune_rules(
    keep: timedelta, inbox_keep: timedelta, removed_keep: timedelta
) -> tuple[PruneRule, ...]:
    """What the launcher forgets: ended runs with their tasks' checkpoints and life states, requests
    for runs that were never assigned, and removed nodes.

    A request waits for its assignment as long as the inbox knows events, because the assignment may
    come as late as that. Dropped before, its run would start and nobody would end it.
    """
    return (
        PruneRule(
            "past runs",
            keep,
            lambda tx: oldest_of(tx, PastRun, "forgotten_at"),
            drop_past_runs,
            lambda tx, newer: nth_newest(tx, PastRun, "forgotten_at", newer),
        ),
        PruneRule("requests", inbox_keep, _oldest_early_request, drop_early_requests),
        PruneRule("removed nodes", removed_keep, _oldest_removed, drop_removed_nodes),
    )


async def drop_past_runs(tx: Tx, before: datetime, limit: int) -> int:
    """Drop ended runs, and the checkpoints and life states of their tasks; returns how many it
    handled.

    The past row of a task that has a run now gets a new time stamp, because it is needed after
    that run. With its old one it would keep the next batch from being dropped.
    """
    old = await tx.select(
        PastRun,
        Where("forgotten_at", Op.LT, before),
        order_by=[Order("forgotten_at")],
        limit=limit,
    )
    live = {run.task_id for run in await all_runs(tx)}
    gone = [past.task_id for past in old if past.task_id not in live]
    if gone:
        for row in await tx.select(CheckpointRow, Where("task_id", Op.IN, gone)):
            tx.delete(CheckpointRow, row.task_id, row.no)
        for kept in await tx.select(LifeStateRow, Where("task_id", Op.IN, gone)):
            tx.delete(LifeStateRow, kept.task_id)
            tx.delete(LifeStateContent, kept.task_id)
    for past in old:
        if past.task_id in live:
            renew(tx, past)
        else:
            tx.delete(PastRun, past.task_id)
    return len(old)


def renew(tx: Tx, past: PastRun) -> None:
    """Keep what is known of an ended task for the full time again."""
    tx.put(replace(past, forgotten_at=tx.now))


async def _early_requests(tx: Tx) -> list[tuple[datetime, Run]]:
    """Requests for runs without an assignment, the oldest first; they are in memory."""
    found = [
        (requested_at, run)
        for run in await all_runs(tx)
        if run.state is RunState.EARLY_REQUEST
        and (requested_at := run.kill_requested_at or run.preempt_requested_at) is not None
    ]
    return sorted(found, key=itemgetter(0))


async def _oldest_early_request(tx: Tx) -> datetime | None:
    found = await _early_requests(tx)
    return found[0][0] if found else None


async def drop_early_requests(tx: Tx, before: datetime, limit: int) -> int:
    """Drop requests for runs that were never assigned; returns how many."""
    old = [run for requested_at, run in await _early_requests(tx) if requested_at < before][:limit]
    for run in old:
        tx.delete(Run, run.task_id, run.attempt)
    return len(old)


async def _removed(tx: Tx) -> list[NodeRow]:
    return sorted(
        (row for row in await nodes(tx) if row.removed),
        key=lambda row: (row.changed_at, row.node_id),
    )


async def _oldest_removed(tx: Tx) -> datetime | None:
    found = await _removed(tx)
    return found[0].changed_at if found else None


async def drop_removed_nodes(tx: Tx, before: datetime, limit: int) -> int:
    """Drop nodes that were removed; returns how many. If one comes back, its versions go on
    above those that it had: see ``inventory.update_inventory``."""
    old = [row for row in await _removed(tx) if row.changed_at < before][:limit]
    for row in old:
        tx.delete(NodeRow, row.node_id)
    return len(old)
