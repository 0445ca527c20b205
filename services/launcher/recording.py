"""Writes what a round found out about runs, and publishes it: starts, ends, restarts, and nodes on
which starts failed. Called by ``loop.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from libs.contracts.ids import RunId
from libs.service import observability
from libs.service.metrics import Metrics
from libs.store.port import Tx
from services.launcher import store as tables
from services.launcher.domain import (
    debug_runs,
    inventory,
    rank_restarts,
    role_order,
    start_delays,
)
from services.launcher.domain.inventory import QuarantinePolicy
from services.launcher.domain.model import NodeRow, Run, RunState
from services.launcher.handlers import exited, started
from services.launcher.hosts import LOCAL, Network

declare = Metrics("launcher")
QUARANTINED = declare.counter(
    "shiftwork_launcher_quarantines_total", "Nodes that take no new runs after failed starts"
)


async def record(
    tx: Tx,
    before: Mapping[RunId, Run],
    runs: Sequence[Run],
    policy: QuarantinePolicy,
    *,
    network: Network = LOCAL,
) -> None:
    """Write the new rows of runs and publish the changes of the runs and their nodes."""
    forgotten = [run for run in runs if run.state is RunState.FORGOTTEN]
    ended = [run for run in runs if before[run.id].exit is None and run.exit is not None]
    last = await tables.last_checkpoints(tx, [*ended, *forgotten])
    for run in runs:
        if before[run.id].started_at is None and run.started_at is not None:
            tx.emit(started(run, await tables.endpoints(tx, run, network)))
        for ended_rank in debug_runs.events(before[run.id], run, tx.now):
            tx.emit(ended_rank)
        if before[run.id].exit is None and run.exit is not None:
            tx.emit(exited(run, last[run.id]))
        for event in rank_restarts.events(before[run.id], run, tx.now):
            tx.emit(event)
        cleared = start_delays.cleared_event(before[run.id], run, tx.now)
        if cleared is not None:
            tx.emit(cleared)
        if run.state is not RunState.FORGOTTEN:
            tx.put(run if cleared is None else start_delays.reported(run, cleared))
    await tables.forget(tx, forgotten, last)
    await _count_failed_starts(tx, before, runs, policy)


async def _count_failed_starts(
    tx: Tx, before: Mapping[RunId, Run], runs: Sequence[Run], policy: QuarantinePolicy
) -> None:
    """Count failed starts by node; a start that worked resets the count."""
    worked, failed = set[str](), dict[str, dict[str, Run]]()
    for run in runs:
        begun = role_order.begun_ranks(run)
        if len(begun) > len(role_order.begun_ranks(before[run.id])):
            worked |= {place.node_id for place in run.placements if place.rank in begun}
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
                # An image or an init container that never ends is indistinguishable from a node on
                # which starts hang: those nodes were recorded when the end was decided.
                counts_once=node_id in before[run.id].failed_nodes
                and await _is_suspect(tx, run.owner, node_id),
            )
        if after != row:
            tx.put(after)
        if after.version != row.version:
            _publish_quarantine(tx, after)


async def _is_suspect(tx: Tx, owner: str, node_id: str) -> bool:
    """Whether an owner's starts have put another node into quarantine already: a person whose
    starts hang everywhere takes at most one node from the others."""
    return any(
        row.quarantined_until is not None and row.failed_owner == owner and row.node_id != node_id
        for row in await tables.nodes(tx)
    )


def _publish_quarantine(tx: Tx, row: NodeRow) -> None:
    QUARANTINED.inc()
    tx.emit(inventory.message(row))
    observability.log("launcher").warning(
        "node quarantined",
        node=row.node_id,
        failed_starts=row.failed_starts,
        until=str(row.quarantined_until),
        fix=f"find out why starts fail there, then: shiftwork node uncordon {row.node_id}",
    )
