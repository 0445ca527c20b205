"""Handlers of events and commands. Each records its message in rows. Wired in ``main.py``.

``loop.py`` reads the rows and acts. Events may repeat, arrive late or out of order: a request that
arrives before its assignment is kept as an early request, one for an older attempt is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from libs.contracts.base import Message
from libs.contracts.limits import YIELD_REASON_MAX
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    Checkpoint,
    CheckpointSaved,
    Endpoint,
    GetLifeState,
    InventoryListed,
    KillRequested,
    Placement,
    PreemptionRequested,
    PreemptMode,
    PrepareContinuation,
    ReasonCode,
    Reemit,
    ReemitReply,
    Refusal,
    RefusalCode,
    ReportReady,
    ReportReadyReply,
    RunAssigned,
    RunExited,
    RunMode,
    RunResumed,
    RunStarted,
    RunYielded,
    SetLifeState,
    SetNodeMarks,
    SetNodeMarksReply,
    SetSchedulable,
    SetSchedulableReply,
    YieldRun,
    YieldRunReply,
)
from libs.contracts.wording import not_found
from libs.service.definition import CommandHandler, Handler, Reads
from libs.store.port import Tx
from services.launcher import life_states, store
from services.launcher.domain import (
    checkpoint_acceptance,
    exits,
    inventory,
    node_labels,
    role_order,
)
from services.launcher.domain.model import (
    NodeRow,
    PastRun,
    ReadyReport,
    Run,
    RunState,
    ordered_after,
)
from services.launcher.domain.run_lifecycle import LIVE, Trigger, move
from services.launcher.hosts import LOCAL, Network
from services.launcher.role_overrides import in_debug_mode
from services.launcher.run_masks import RunMasks


async def on_run_assigned(tx: Tx, event: RunAssigned | RunResumed) -> None:
    """Record a run that is to be launched; an early request for it stays in force."""
    mode = event.spec.preemption.mode
    if mode is PreemptMode.SIGNAL:
        # Raises for a name that is no signal; here the message can become a dead letter.
        exits.signal_number(event.spec.preemption.signal)
    run = await tx.get(Run, event.task_id, event.attempt)
    if run is None:
        if await store.newest_attempt(tx, event.task_id) >= event.attempt:
            return
        run = Run(event.task_id, event.attempt, RunState.EARLY_REQUEST)
    if run.state is not RunState.EARLY_REQUEST:
        return
    debugs = event.spec.run_mode is RunMode.DEBUG
    tx.put(
        replace(
            run,
            state=move(run.state, Trigger.ASSIGNED),
            owner=event.owner,
            team=event.team,
            spec=in_debug_mode(event.spec, event.attempt) if debugs else event.spec,
            placements=event.placements,
            resume_from=event.resume_from,
            start_deadline_at=event.start_deadline_at,
            assigned_at=event.assigned_at,
        )
    )
    await life_states.inherit(tx, event.task_id, event.spec.continues)


async def on_preemption_requested(tx: Tx, event: PreemptionRequested) -> None:
    """Record a request for preemption; a later request may only shorten the deadline."""
    run = await _requested(tx, event.task_id, event.attempt)
    if run is None:
        return
    if run.preempt_deadline_at is None or event.deadline_at < run.preempt_deadline_at:
        first_at = run.preempt_requested_at or ordered_after(tx.now, run.ending_at)
        tx.put(replace(run, preempt_requested_at=first_at, preempt_deadline_at=event.deadline_at))


async def on_kill_requested(tx: Tx, event: KillRequested) -> None:
    """Record that the run is to be ended by force; a later request may only leave it less time."""
    run = await _requested(tx, event.task_id, event.attempt)
    if run is None:
        return
    if run.kill_requested_at is None:
        expired = event.reason.code is ReasonCode.START_EXPIRED
        at = ordered_after(tx.now, run.yield_requested_at)
        tx.put(replace(run, kill_requested_at=at, start_expired=expired, kill_now=event.now))
    elif event.now and not run.kill_now:
        tx.put(replace(run, kill_now=True))


async def _requested(tx: Tx, task_id: str, attempt: int) -> Run | None:
    """The run that a request concerns: a live one, or an early request if it is not known yet.
    None if the run is over."""
    run = await tx.get(Run, task_id, attempt)
    if run is not None:
        return run if run.state in (*LIVE, RunState.EARLY_REQUEST) else None
    if await store.newest_attempt(tx, task_id) >= attempt:
        return None
    return Run(task_id, attempt, RunState.EARLY_REQUEST)


def _past_of(
    event: RunAssigned | RunResumed | PreemptionRequested | KillRequested,
) -> list[tuple[Any, ...]]:
    return [(PastRun, event.task_id)]


READS: Mapping[type[Message], Reads] = dict.fromkeys(
    (RunAssigned, RunResumed, PreemptionRequested, KillRequested), _past_of
)
HANDLERS: Mapping[type[Message], Handler] = {
    RunAssigned: on_run_assigned,
    RunResumed: on_run_assigned,
    PreemptionRequested: on_preemption_requested,
    KillRequested: on_kill_requested,
}


async def ack_checkpoint(tx: Tx, command: AckCheckpoint) -> AckCheckpointReply:
    """Store a checkpoint of the live attempt; the reply is sent after the commit."""
    known = _with_request(await _known(tx, command), command, tx.now)
    decision = checkpoint_acceptance.decide(command, known, tx.now)
    if decision.stored is None:
        return AckCheckpointReply(refusal=decision.refusal, checkpoint=decision.repeated)
    run = known.run
    assert run is not None, "only a known run's checkpoint is stored"
    store.keep_checkpoint(tx, command.task_id, decision.stored)
    if run.preempt_requested_at is not None and run.acked_at is None:
        tx.put(replace(run, acked_at=tx.now))
    tx.emit(_saved(command.task_id, decision.stored))
    return AckCheckpointReply(checkpoint=decision.stored)


def _with_request(
    known: checkpoint_acceptance.Known, command: AckCheckpoint, now: datetime
) -> checkpoint_acceptance.Known:
    """Apply a preemption request that reached the run, through the gateway, before it reached the
    launcher. Otherwise the run's clean exit would count as the end of its work."""
    run = known.run
    if not command.preempt_requested or run is None or run.preempt_requested_at is not None:
        return known
    return replace(known, run=replace(run, preempt_requested_at=ordered_after(now, run.ending_at)))


async def yield_run(tx: Tx, command: YieldRun, masks: RunMasks) -> YieldRunReply:
    """Record that the program of the live attempt hands its nodes over on its own.

    Where a preemption is under way already, this is its acknowledgement. Of a run that is being
    ended it is only noted: its program is not done, whatever its exit code. If the process dies
    after the commit, the relay publishes the event, and the next step of the run counts its grace
    from the row.
    """
    run = await tx.get(Run, command.task_id, command.attempt)
    newest = await store.newest_attempt(tx, command.task_id)
    refused = checkpoint_acceptance.refused_attempt(command.task_id, command.attempt, run, newest)
    if refused is not None or run is None:
        return YieldRunReply(refusal=refused)
    if run.leaves_since is not None:
        return YieldRunReply()
    if run.state is RunState.ENDING or run.kill_requested_at is not None:
        at = ordered_after(tx.now, run.ending_at, run.kill_requested_at)
        tx.put(replace(run, yield_requested_at=at))
        return YieldRunReply()
    if run.preempt_requested_at is not None:
        tx.put(replace(run, acked_at=tx.now))
        return YieldRunReply()
    reason = masks.text(run, " ".join(command.reason.split()))[:YIELD_REASON_MAX]
    run = replace(run, yield_requested_at=tx.now, yield_reason=reason)
    tx.put(run)
    for event in _yielded(run):
        tx.emit(event)
    return YieldRunReply()


def _yielded(run: Run) -> list[Message]:
    if run.yield_requested_at is None:
        return []
    return [
        RunYielded(
            task_id=run.task_id,
            attempt=run.attempt,
            reason=run.yield_reason,
            requested_at=run.yield_requested_at,
        )
    ]


async def _known(tx: Tx, command: AckCheckpoint) -> checkpoint_acceptance.Known:
    saved = await store.newest_checkpoints(tx, command.task_id)
    wanted = (command.attempt, command.step, command.uri, command.digest)
    return checkpoint_acceptance.Known(
        run=await tx.get(Run, command.task_id, command.attempt),
        newest_attempt=await store.newest_attempt(tx, command.task_id),
        last=saved[0] if saved else None,
        same=next((c for c in saved if (c.attempt, c.step, c.uri, c.digest) == wanted), None),
    )


async def report_ready(tx: Tx, command: ReportReady) -> ReportReadyReply:
    """Record that a rank's process is ready, where a role waits for that. The report has a small
    row of its own: the row of a large gang is written once for many reports."""
    run = await tx.get(Run, command.task_id, command.attempt)
    newest = await store.newest_attempt(tx, command.task_id)
    if run is None or run.attempt != newest or run.state not in LIVE:
        detail = f"attempt {command.attempt} of task {command.task_id} is over"
        return ReportReadyReply(refusal=Refusal(code=RefusalCode.SUPERSEDED, detail=detail))
    place = _place(run, command.rank)
    if place is None:
        detail = f"attempt {command.attempt} of task {command.task_id} has no rank {command.rank}"
        return ReportReadyReply(refusal=Refusal(code=RefusalCode.NOT_FOUND, detail=detail))
    starts = (each.count for each in run.restarts if each.rank == command.rank)
    if command.restarts != next(starts, 0):
        detail = f"rank {command.rank} was restarted; this process of it is over"
        return ReportReadyReply(refusal=Refusal(code=RefusalCode.SUPERSEDED, detail=detail))
    if place.role in role_order.awaited(run):
        tx.put(
            ReadyReport(
                run.task_id, run.attempt, command.rank, command.restarts, reported_at=tx.now
            )
        )
    return ReportReadyReply()


def _place(run: Run, rank: int) -> Placement | None:
    """The place of a rank, which is mostly found at its number."""
    if 0 <= rank < len(run.placements) and run.placements[rank].rank == rank:
        return run.placements[rank]
    return next((place for place in run.placements if place.rank == rank), None)


async def set_schedulable(tx: Tx, command: SetSchedulable) -> SetSchedulableReply:
    """Cordon or uncordon a node: a cordoned one takes no new run, a drained one is also vacated."""
    row = await tx.get(NodeRow, command.node_id)
    if row is None or row.removed:
        return SetSchedulableReply(refusal=await _no_node(tx, command.node_id))
    after = inventory.cordon(row, command.schedulable, tx.now, drain=command.drain)
    if after != row:
        tx.put(after)
        tx.emit(inventory.message(after))
    return SetSchedulableReply()


async def set_node_marks(tx: Tx, command: SetNodeMarks) -> SetNodeMarksReply:
    """Change the labels and taints that operators gave a node; its runs continue."""
    row = await tx.get(NodeRow, command.node_id)
    if row is None or row.removed:
        return SetNodeMarksReply(refusal=await _no_node(tx, command.node_id))
    after = node_labels.apply_command(row, command, tx.now)
    if isinstance(after, Refusal):
        return SetNodeMarksReply(refusal=after)
    if after != row:
        tx.put(after)
        tx.emit(inventory.message(after))
    return SetNodeMarksReply(labels=after.node.labels, taints=after.node.taints)


async def _no_node(tx: Tx, node_id: str) -> Refusal:
    known = [row.node_id for row in await tx.select(NodeRow) if not row.removed]
    return not_found("node_id", "node", node_id, known)


@dataclass(frozen=True, slots=True)
class Commands:
    """The launcher's commands and their configuration."""

    runtime: str
    reemit_runs_max: int
    masks: RunMasks
    network: Network = LOCAL

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Which command is answered by which function."""
        return {
            AckCheckpoint: ack_checkpoint,
            ReportReady: report_ready,
            YieldRun: self.yield_run,
            SetLifeState: life_states.set_life_state,
            GetLifeState: life_states.get_life_state,
            PrepareContinuation: life_states.prepare_continuation,
            SetSchedulable: set_schedulable,
            SetNodeMarks: set_node_marks,
            Reemit: self.reemit,
        }

    async def yield_run(self, tx: Tx, command: YieldRun) -> YieldRunReply:
        """A program hands its nodes over on its own."""
        return await yield_run(tx, command, self.masks)

    async def reemit(self, tx: Tx, _command: Reemit) -> ReemitReply:
        """Publish the inventory again, and the start and end of every remembered run, and which
        life states there are."""
        rows = await store.nodes(tx)
        # Nothing is known of them, not even that they are gone.
        unreadable = store.unreadable_nodes(tx)
        events: list[Message] = [inventory.message(row) for row in rows]
        if rows or unreadable:
            # Before the first scan nothing is known, which differs from an empty inventory: with a
            # full list without nodes, tasks would be rejected for good.
            events.append(
                InventoryListed(
                    runtime=self.runtime,
                    node_ids=tuple(
                        sorted(unreadable.union(row.node_id for row in rows if not row.removed))
                    ),
                    listed_at=tx.now,
                    version=tx.version,
                )
            )
        past_runs = await store.newest_past_runs(tx, self.reemit_runs_max)
        for past in past_runs:
            events += _events_of(
                Run(
                    past.task_id,
                    past.attempt,
                    RunState.FORGOTTEN,
                    placements=past.placements,
                    started_at=past.started_at,
                    exit=past.exit,
                ),
                past.checkpoint,
            )
        runs = await store.all_runs(tx)
        last = await store.last_checkpoints(tx, runs)
        for run in runs:
            found = await store.endpoints(tx, run, self.network)
            events += _events_of(run, last[run.id], found)
        task_ids = [each.task_id for each in (*past_runs, *runs)]
        events += map(life_states.saved, await store.life_states(tx, task_ids))
        for event in events:
            tx.emit(event)
        return ReemitReply(events=len(events))


def started(run: Run, endpoints: Sequence[Endpoint]) -> RunStarted:
    """The event for a run whose first processes all exist."""
    assert run.started_at is not None, "a started run has its time"
    return RunStarted(
        task_id=run.task_id,
        attempt=run.attempt,
        started_at=run.started_at,
        placements=run.placements,
        endpoints=tuple(endpoints),
        owner=run.owner,
    )


def exited(run: Run, checkpoint: Checkpoint | None) -> RunExited:
    """The event for a run of which no process is left."""
    assert run.exit is not None, "an ended run has its exit"
    return RunExited(
        task_id=run.task_id,
        attempt=run.attempt,
        exit=run.exit,
        checkpoint=checkpoint,
        placements=run.placements,
        owner=run.owner,
    )


def _saved(task_id: str, checkpoint: Checkpoint) -> CheckpointSaved:
    return CheckpointSaved(task_id=task_id, attempt=checkpoint.attempt, checkpoint=checkpoint)


def _events_of(
    run: Run, checkpoint: Checkpoint | None, endpoints: Sequence[Endpoint] = ()
) -> list[Message]:
    events: list[Message] = []
    if run.started_at is not None:
        events.append(started(run, endpoints))
    # The task that saved an inherited checkpoint publishes it.
    if checkpoint is not None and not checkpoint.task_id:
        events.append(_saved(run.task_id, checkpoint))
    events += _yielded(run)
    if run.exit is not None:
        events.append(exited(run, checkpoint))
    return events
