"""The answer to ``GET /v1/tasks/{id}/explain``, as HTTP shows it; called by ``api/tasks.py``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from libs.contracts.messages import (
    ChosenVictim,
    ExplainReply,
    Forecast,
    Holder,
    OrderPlace,
    RunDelayed,
    TaskState,
)
from services.gateway.rows import TaskRow
from services.gateway.views import Json, delay, reason
from services.gateway.words import moment, word

# So many of the other tasks that an answer is about are named in it.
NAMED_MAX = 100
_ID = re.compile(r"\bt[a-z2-7]{20}\b")


def ids_in(reply: ExplainReply) -> list[str]:
    """The ids of the tasks that the answer is about, in its fields or its sentences."""
    found = _ID.findall(reply.model_dump_json())
    return list(dict.fromkeys(found))[:NAMED_MAX]


def explanation(
    task_id: str,
    reply: ExplainReply,
    delayed: RunDelayed | None,
    others: Sequence[TaskRow] = (),
) -> Json:
    """Why a task stands where it stands.

    ``delayed`` is what the launcher said of its run; ``others`` are the tasks of ``ids_in``.
    """
    return {
        "task": task_id,
        "state": word(reply.state),
        "reason": reason(reply.reason),
        "position": reply.position,
        "queue_length": reply.queue_length,
        "victims": list(reply.victims),
        "remedies": list(reply.remedies),
        "explained_at": moment(reply.explained_at),
        "order": _order(reply.order),
        "promised": [
            {"node": each.node_id, "gpus": list(each.gpus), "held_by": list(each.held_by)}
            for each in reply.promised
        ],
        "chosen": [_chosen(each) for each in reply.chosen],
        "forecast": _forecast(reply.forecast),
        "beneficiary": reply.beneficiary or None,
        "holders": [_holder(each) for each in reply.holders],
        "holders_count": reply.holders_count,
        "tasks": {row.task_id: _called(row) for row in others},
        "delayed": delay(delayed) if reply.state is TaskState.STARTING else None,
    }


def _order(told: OrderPlace | None) -> Json | None:
    """A waiting task's place, and what put it there."""
    if told is None:
        return None
    return {
        "level": word(told.level),
        "policy": told.policy,
        "above": told.above,
        "before": told.before,
        "key": told.key,
        "submitted_at": moment(told.submitted_at),
        "tag_seconds": told.tag_seconds,
        "delay_seconds": told.delay_seconds,
        "load_scale": told.load_scale,
        "granted": told.granted,
        "virtual_cluster": told.virtual_cluster or None,
        "guaranteed_nodes": told.guaranteed_nodes,
        "held_nodes": told.held_nodes,
        "covered": told.covered,
    }


def _chosen(told: ChosenVictim) -> Json:
    """A run that was asked to make room, and why this one."""
    return {
        "task": told.task_id,
        "level": word(told.level),
        "reason": reason(told.reason),
        "nodes": told.nodes,
        "cost_node_seconds": told.cost_node_seconds,
        "deadline_at": moment(told.deadline_at),
        "why": told.why,
    }


def _holder(told: Holder) -> Json:
    """A run that holds what the task waits for."""
    return {
        "task": told.task_id,
        "nodes": told.nodes,
        "ends_at": moment(told.ends_at),
        "slice_ends_at": moment(told.slice_ends_at),
        "leaving": told.leaving,
    }


def _called(row: TaskRow) -> Json:
    """What people call a task, and where it stands."""
    return {"name": row.name, "owner": row.owner, "state": row.state}


def _forecast(told: Forecast | None) -> Json | None:
    """When the task will start, or why nobody can say."""
    if told is None:
        return None
    return {
        "starts_at": moment(told.starts_at),
        "earliest_at": moment(told.earliest_at),
        "latest_at": moment(told.latest_at),
        "unknown": told.unknown or None,
        "assumptions": list(told.assumptions),
    }
