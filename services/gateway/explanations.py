"""The answer to ``GET /v1/tasks/{id}/explain``, as HTTP shows it; called by ``api/tasks.py``."""

from __future__ import annotations

from collections.abc import Sequence

from libs.contracts import ids
from libs.contracts.messages import (
    ChosenVictim,
    ExplainReply,
    Forecast,
    Holder,
    OrderPlace,
    RunDelayed,
    TaskState,
)
from services.gateway.json_values import enum_name, rfc3339
from services.gateway.rows import TaskRow
from services.gateway.views import Json, delay, reason

# So many of the other tasks that an answer is about are named in it.
NAMED_MAX = 100


def ids_in(reply: ExplainReply) -> list[str]:
    """The ids of the tasks that the answer is about, in its fields or its sentences."""
    return ids.ids_in(reply.model_dump_json())[:NAMED_MAX]


# The states in which ranks may still have to start.
STARTS = (TaskState.STARTING, TaskState.RUNNING)


def explanation(
    task_id: str,
    reply: ExplainReply,
    delayed: RunDelayed | None,
    others: Sequence[TaskRow] = (),
) -> Json:
    """Why a task stands where it stands.

    ``delayed`` is the launcher's report about its run; ``others`` are the tasks of ``ids_in``.
    """
    return {
        "task": task_id,
        "state": enum_name(reply.state),
        "reason": reason(reply.reason),
        "position": reply.position,
        "queue_length": reply.queue_length,
        "victims": list(reply.victims),
        "remedies": list(reply.remedies),
        "explained_at": rfc3339(reply.explained_at),
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
        "delayed": delay(delayed) if reply.state in STARTS else None,
    }


def _order(message: OrderPlace | None) -> Json | None:
    """A waiting task's place, and what put it there."""
    if message is None:
        return None
    return {
        "level": enum_name(message.level),
        "policy": message.policy,
        "above": message.above,
        "before": message.before,
        "key": message.key,
        "submitted_at": rfc3339(message.submitted_at),
        "tag_seconds": message.tag_seconds,
        "delay_seconds": message.delay_seconds,
        "load_scale": message.load_scale,
        "granted": message.granted,
        "virtual_cluster": message.virtual_cluster or None,
        "guaranteed_nodes": message.guaranteed_nodes,
        "held_nodes": message.held_nodes,
        "covered": message.covered,
    }


def _chosen(message: ChosenVictim) -> Json:
    """A run that was requested to leave, and why this one was chosen."""
    return {
        "task": message.task_id,
        "level": enum_name(message.level),
        "reason": reason(message.reason),
        "nodes": message.nodes,
        "cost_node_seconds": message.cost_node_seconds,
        "deadline_at": rfc3339(message.deadline_at),
        "why": message.why,
    }


def _holder(message: Holder) -> Json:
    """A run that holds what the task waits for."""
    return {
        "task": message.task_id,
        "nodes": message.nodes,
        "ends_at": rfc3339(message.ends_at),
        "slice_ends_at": rfc3339(message.slice_ends_at),
        "leaving": message.leaving,
    }


def _called(row: TaskRow) -> Json:
    """What people call a task, and where it stands."""
    return {"name": row.name, "owner": row.owner, "state": row.state}


def _forecast(message: Forecast | None) -> Json | None:
    """When the task is forecast to start, or why there is no forecast."""
    if message is None:
        return None
    return {
        "starts_at": rfc3339(message.starts_at),
        "earliest_at": rfc3339(message.earliest_at),
        "latest_at": rfc3339(message.latest_at),
        "unknown": message.unknown or None,
        "assumptions": list(message.assumptions),
    }
