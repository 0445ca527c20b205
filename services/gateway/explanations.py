"""The answer to ``GET /v1/tasks/{id}/explain``, as HTTP shows it; called by ``api/tasks.py``."""

from __future__ import annotations

from libs.contracts.messages import (
    ChosenVictim,
    ExplainReply,
    Forecast,
    OrderPlace,
    RunDelayed,
    TaskState,
)
from services.gateway.views import Json, delay, reason
from services.gateway.words import moment, word


def explanation(task_id: str, reply: ExplainReply, delayed: RunDelayed | None) -> Json:
    """Why a task stands where it stands; ``delayed`` is what the launcher said of its run."""
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


def _forecast(told: Forecast | None) -> Json | None:
    """When the task will start, or why nobody can say."""
    if told is None:
        return None
    return {
        "starts_at": moment(told.starts_at),
        "unknown": told.unknown or None,
        "assumptions": list(told.assumptions),
    }
