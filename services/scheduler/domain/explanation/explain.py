"""``explain(snapshot, task, now)``: why a task stands where it stands, with the numbers of now.

The stored reason says which rule bound when it was last looked at; this says what binds now, the
task's place in the order and what put it there (``standing.py``), who makes room for it and why
these, what would let it start (``remedies.py``), and when it will (``forecast.py``). Called by the
Explain command; costs what it shows, however many tasks wait.
"""

from __future__ import annotations

from datetime import UTC, datetime

from libs.contracts.messages import (
    ChosenVictim,
    ExplainReply,
    OrderPlace,
    PromisedNode,
    ReasonCode,
    TaskState,
)
from libs.contracts.reasons import level_name
from services.scheduler.domain.clusters import UNCOVERED
from services.scheduler.domain.explanation.forecast import forecast
from services.scheduler.domain.explanation.remedies import of_any, remedies
from services.scheduler.domain.explanation.standing import Standing, stand
from services.scheduler.domain.explanation.words import span
from services.scheduler.domain.lifecycle import LEAVING, QUEUED
from services.scheduler.domain.model import Task
from services.scheduler.domain.placement.masks import mask_of
from services.scheduler.domain.room import move_cost
from services.scheduler.domain.snapshot import Snapshot

VICTIMS_SHOWN_MAX = 1000
NODES_SHOWN_MAX = 1000


def explain(snapshot: Snapshot, task: Task, now: datetime) -> ExplainReply:
    """The answer about a task that has not ended."""
    general = tuple(of_any(snapshot, task))
    if task.state is not QUEUED:
        return ExplainReply(
            state=task.state,
            reason=task.reason,
            remedies=general,
            beneficiary=task.preempted_for if task.state in LEAVING else "",
            explained_at=now,
        )
    standing = stand(snapshot, task, now)
    chosen = _chosen(standing)
    return ExplainReply(
        state=task.state,
        reason=standing.why,
        position=standing.above + standing.before + 1,
        queue_length=standing.pool.waiting_count(),
        victims=tuple(each.task_id for each in chosen),
        remedies=(*general, *remedies(standing, now)),
        explained_at=now,
        order=_order(standing),
        promised=_promised(snapshot, task),
        chosen=chosen,
        forecast=forecast(standing, now),
    )


def _order(standing: Standing) -> OrderPlace:
    pool, entry = standing.pool, standing.entry
    marks, scale = standing.round.marks_of(entry.task), pool.book.scale
    # Where the discipline begins its keys with a submission, they are made of parts.
    parts = bool(marks.base) and not marks.granted
    clusters = standing.round.clusters(pool)
    return OrderPlace(
        level=entry.level,
        policy=pool.discipline.name,
        above=standing.above,
        before=standing.before,
        key=entry.key,
        submitted_at=datetime.fromtimestamp(marks.base, UTC) if parts else None,
        tag_seconds=marks.tag if parts else 0.0,
        delay_seconds=marks.scaled * scale if parts else 0.0,
        load_scale=scale if parts else 0.0,
        granted=marks.granted,
        virtual_cluster=entry.cluster,
        guaranteed_nodes=clusters.guaranteed(entry.cluster),
        held_nodes=clusters.held(entry.cluster),
        covered=entry.depth < UNCOVERED,
    )


def _promised(snapshot: Snapshot, task: Task) -> tuple[PromisedNode, ...]:
    """The nodes that are kept for the task, with those who still have some of them."""
    found: list[PromisedNode] = []
    for placement in task.promised[:NODES_SHOWN_MAX]:
        # A whole node without GPUs shows none, and takes its unit.
        mask = mask_of(placement.gpus) or 1
        held = snapshot.index.holders.get(placement.node_id, {})
        found.append(
            PromisedNode(
                node_id=placement.node_id,
                gpus=placement.gpus,
                held_by=tuple(sorted(owner for owner, bits in held.items() if bits & mask)),
            )
        )
    return tuple(found)


def _chosen(standing: Standing) -> tuple[ChosenVictim, ...]:
    """Who was asked to make room for the task, the dearest first."""
    pool = standing.pool
    found: list[ChosenVictim] = []
    for task in pool.leaving.values():
        if task.preempted_for != standing.entry.id:
            continue
        asked_at = task.preempt_requested_at or standing.round.now
        found.append(
            ChosenVictim(
                task_id=task.id,
                level=task.level,
                reason=task.reason,
                nodes=pool.size(task),
                cost_node_seconds=round(move_cost(pool, task, asked_at.timestamp()), 3),
                deadline_at=task.ack_deadline_at if task.state is TaskState.PREEMPTING else None,
                why=_why_chosen(standing, task),
            )
        )
    found.sort(key=lambda each: (-each.cost_node_seconds, each.task_id))
    return tuple(found[:VICTIMS_SHOWN_MAX])


def _why_chosen(standing: Standing, task: Task) -> str:
    """Why this run and no other; the sentence of its reason says what took its place."""
    pool, entry = standing.pool, standing.entry
    if task.reason.code is ReasonCode.TURN_OF:
        later = pool.key(task.marks) - entry.key
        return (
            f"comes {span(later)} after it in the order of level {level_name(task.level)}, is"
            " neither held nor protected, and without it the gang would not fit"
        )
    if task.reason.code is ReasonCode.RECLAIMED_BY:
        of = pool.clusters.of(task)
        whose = f"virtual cluster {of}" if of else "any virtual cluster"
        return f"held nodes beyond the guarantee of {whose}, and losing it costs least"
    if task.reason.code is ReasonCode.MOVED_FOR:
        return "it lies where the guarantee needs room, and there is a place for it elsewhere"
    if task.level is entry.level:
        return "its end was asked for, and it holds what the task is promised"
    return (
        f"level {level_name(task.level)} is below {level_name(entry.level)}; of the lowest level"
        " losing it costs least, and without it the gang would not fit"
    )
