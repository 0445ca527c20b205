"""``explain(index, task, now)``: why a task waits, what would help, and when it starts.

There is no second scheduler here: every answer comes from ``decide``, called on copies of the
working set. One copy is settled at the present time; it shows why the task waits, which runs were
requested to leave for it, and its queue position. Each change that might help is tried on a copy of
its own (``remedies.py``), and one copy is simulated forward (``forecast.py``). Called for the
Explain query, in a process apart from the leader (``forks.py``). Pure, except that it changes the
index it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from libs.contracts.messages import (
    ChosenVictim,
    ExplainReply,
    Forecast,
    OrderPlace,
    PromisedNode,
    ReasonCode,
    TaskState,
)
from libs.contracts.reasons import level_name
from services.scheduler.domain.allocate import Allocation
from services.scheduler.domain.explain.forecast import NO_TIME, forecast
from services.scheduler.domain.explain.group_simulation import Bounds, GroupSimulation, IndexCopies
from services.scheduler.domain.explain.holders import holders
from services.scheduler.domain.explain.remedies import Remedies, Remedy
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.lifecycle import LEAVING, QUEUED
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS
from services.scheduler.domain.placement.bitsets import mask_of
from services.scheduler.domain.queue.entry import Entry, rank_of
from services.scheduler.domain.round import Round
from services.scheduler.domain.slices.levels import outlook

VICTIMS_SHOWN_MAX = 1000
NODES_SHOWN_MAX = 1000
BOUNDS = Bounds()
# The part of a query's time after which the forecast ends, however far it got.
FORECAST_PART = 0.85


def of_row(index: Index, task: Task, now: datetime) -> ExplainReply:
    """The answer from the row alone, which is complete for a task that does not wait.

    For a run it includes what keeps the run from the level of its priority.
    """
    return ExplainReply(
        state=task.state,
        reason=task.reason,
        remedies=(*_of_any(task, index.settings), *outlook(index, task, now)),
        beneficiary=task.preempted_for if task.state in LEAVING else "",
        explained_at=now,
    )


def _of_any(task: Task, settings: PolicySettings) -> list[str]:
    """Remedies that apply in any state of the task."""
    found: list[str] = []
    attempts = task.attempts_without_progress
    if attempts >= settings.no_progress_attempts:
        ended = "attempts in a row ended without a newer one"
        found.append(f"save checkpoints more often: {attempts} {ended}")
    if task.state is TaskState.PAUSED:
        found.append(f"resume it (`shiftwork resume {task.id}`)")
    return found


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer about a waiting task; ``remedies`` are those named in the reply, as changes."""

    reply: ExplainReply
    remedies: tuple[Remedy, ...] = ()


def explain(
    index: Index,
    task: Task,
    now: datetime,
    copies: IndexCopies,
    bounds: Bounds = BOUNDS,
) -> Explanation:
    """The answer about a task that has not ended. The index is used up.

    When the time for the query is over, the rest of the answer is left out or marked as missing.
    """
    *_, last = step_by_step(index, task, now, copies, bounds)
    return last


def step_by_step(
    index: Index, task: Task, now: datetime, copies: IndexCopies, bounds: Bounds = BOUNDS
) -> Iterator[Explanation]:
    """Yields the answer with everything known so far; the last one is complete."""
    reply = of_row(index, task, now)
    if task.state is not QUEUED:
        yield Explanation(reply)
        return
    index.refresh()
    index.unsettle(task.id)
    alone = index.narrow(task.group) or len(index.pools) == 1
    base = GroupSimulation(index, task.id, now, expired=bounds.over(FORECAST_PART))
    base.settle()
    update: dict[str, Any] = {"forecast": Forecast(unknown=NO_TIME)}
    after = base.task
    remedies: tuple[Remedy, ...] = ()
    if after is not None and after.state is QUEUED:
        update["reason"] = base.why or after.reason
        place = _place(index, after, now)
        update |= _position_fields(base, after, place)
        yield Explanation(reply.model_copy(update=update))
        found_remedies = Remedies(base, copies, entry=place.own, ahead=place.before, bounds=bounds)
        for remedy in found_remedies.find():
            remedies = (*remedies, remedy)
            update["remedies"] = (*reply.remedies, *(each.text for each in remedies))
            yield Explanation(reply.model_copy(update=update), remedies)
    elif base.started:
        update |= {"remedies": (*reply.remedies, "nothing: it starts with the next decision")}
    if bounds.used() < FORECAST_PART:
        update["forecast"] = forecast(base, copies, alone=alone, rounds_max=bounds.rounds_max)
    yield Explanation(reply.model_copy(update=update), remedies)


@dataclass(frozen=True, slots=True)
class _Place:
    """A waiting task among the others of its group."""

    own: Entry
    round: Round
    pool: Pool
    # The waiting tasks before it; so many of them for a higher level or a guarantee.
    before: tuple[str, ...]
    above: int


def _place(index: Index, task: Task, now: datetime) -> _Place:
    """Find the position of the task in the order in which ``decide`` evaluates tasks."""
    round_ = Round(Snapshot.view(index), now)
    pool = index.pools[task.group]
    sharing = Allocation(round_, pool, [], [])
    own = sharing.entry(task)
    if task.promised:
        own = own._replace(level=task.level, rank=rank_of(WEIGHTS[task.level], own.depth))
    before: list[str] = []
    above = 0
    for _, task_id in pool.unserved:
        other = index.tasks[task_id]
        if task_id == task.id:
            continue
        entry = sharing.entry(other)
        if other.promised:
            # Its nodes are promised, so it comes before all others of its level.
            entry = entry._replace(rank=rank_of(WEIGHTS[other.level], UNCOVERED), key=own.key - 1.0)
        if entry[:3] < own[:3]:
            before.append(task_id)
            above += entry.rank < own.rank
    return _Place(own, round_, pool, tuple(before), above)


def _position_fields(base: GroupSimulation, task: Task, place: _Place) -> dict[str, Any]:
    """The reply's fields about the queue position and the runs that leave for the task."""
    chosen = _chosen(place)
    held, held_by = holders(base, task, place.own.level)
    return {
        "holders": held,
        "holders_count": held_by,
        "position": len(place.before) + 1,
        "queue_length": place.pool.waiting_count(),
        "victims": tuple(each.task_id for each in chosen),
        "order": _order(place),
        "promised": _promised(base.index, task),
        "chosen": chosen,
    }


def _order(place: _Place) -> OrderPlace:
    pool, entry = place.pool, place.own
    order_key, scale = place.round.order_key_of(entry.task), pool.ledger.scale
    # Where the discipline begins its keys with a submission, they are made of parts.
    parts = bool(order_key.base) and not order_key.granted
    clusters = place.round.clusters(pool)
    return OrderPlace(
        level=entry.level,
        policy=pool.discipline.name,
        above=place.above,
        before=len(place.before) - place.above,
        key=entry.key,
        submitted_at=datetime.fromtimestamp(order_key.base, UTC) if parts else None,
        tag_seconds=order_key.tag if parts else 0.0,
        delay_seconds=order_key.scaled * scale if parts else 0.0,
        load_scale=scale if parts else 0.0,
        granted=order_key.granted,
        virtual_cluster=entry.cluster,
        guaranteed_nodes=clusters.guaranteed(entry.cluster),
        held_nodes=clusters.held(entry.cluster),
        covered=entry.depth < UNCOVERED,
    )


def _promised(index: Index, task: Task) -> tuple[PromisedNode, ...]:
    """The nodes that are promised to the task, with the runs that still hold some of them."""
    found: list[PromisedNode] = []
    for placement in task.promised[:NODES_SHOWN_MAX]:
        # A whole node without GPUs shows none, and takes its unit.
        mask = mask_of(placement.gpus) or 1
        held = index.holders.get(placement.node_id, {})
        found.append(
            PromisedNode(
                node_id=placement.node_id,
                gpus=placement.gpus,
                held_by=tuple(sorted(owner for owner, bits in held.items() if bits & mask)),
            )
        )
    return tuple(found)


def _chosen(place: _Place) -> tuple[ChosenVictim, ...]:
    """The runs that were requested to leave for the task, the most expensive first."""
    pool = place.pool
    silent_seconds = pool.settings.silent_ack_seconds_max
    found: list[ChosenVictim] = []
    for task in pool.leaving.values():
        if task.preempted_for != place.own.id:
            continue
        found.append(
            ChosenVictim(
                task_id=task.id,
                level=task.level,
                reason=task.reason,
                nodes=pool.size(task),
                # The cost that the plan which chose the run has computed.
                cost_node_seconds=task.reason.numbers.get("cost_node_seconds", 0.0),
                deadline_at=task.forced_at(silent_seconds)
                if task.state is TaskState.PREEMPTING
                else None,
                why=_why_chosen(place, task),
            )
        )
    found.sort(key=lambda each: (-each.cost_node_seconds, each.task_id))
    return tuple(found[:VICTIMS_SHOWN_MAX])


def _why_chosen(place: _Place, task: Task) -> str:
    """Why this run was chosen; the sentence of its reason names the task that it leaves for."""
    pool, entry = place.pool, place.own
    if task.reason.code is ReasonCode.TURN_OF:
        return (
            f"it comes later in the order of level {level_name(task.level)}, its protected time is"
            " over, and without its nodes this task would not fit"
        )
    if task.reason.code is ReasonCode.RECLAIMED_BY:
        of = pool.clusters.of(task)
        taken_by = f"virtual cluster {of}" if of else "any virtual cluster"
        return f"it held nodes beyond the guarantee of {taken_by}, and stopping it loses least"
    if task.reason.code is ReasonCode.MOVED_FOR:
        return "it runs where guaranteed nodes are needed, and there is a place for it elsewhere"
    if task.level is entry.level:
        return "it is being ended anyway, and holds nodes that this task is promised"
    return (
        f"level {level_name(task.level)} is below {level_name(entry.level)}; of the runs of the"
        " lowest level stopping it loses least, and without its nodes this task would not fit"
    )
