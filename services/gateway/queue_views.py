"""The queue as HTTP shows it: the scheduler's waiting tasks as rows. Called by ``api/queue.py``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from libs.contracts.messages import ReasonCode, WaitingTask
from services.gateway.auth import Identity
from services.gateway.json_values import enum_name, rfc3339
from services.gateway.views import Json, reason

# What a task with this reason waits for; with any other reason it is NODES.
NODES = "nodes"
WAITS_FOR: Mapping[ReasonCode, str] = {
    ReasonCode.UNSPECIFIED: "decision",
    ReasonCode.QUEUED: "decision",
    ReasonCode.PLAN_REFUSED: "decision",
    ReasonCode.ROW_SET_APART: "decision",
    ReasonCode.WAITS_FOR_QUOTA: "quota",
    ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER: "virtual_cluster",
    ReasonCode.WAITS_FOR_SHARE: "share",
    ReasonCode.WAITS_BEHIND_OTHERS: "tasks_ahead",
    ReasonCode.WAITS_FOR_VICTIMS: "promised_nodes",
    ReasonCode.WAITS_FOR_RETRY: "retry",
    ReasonCode.YIELDED: "retry",
    ReasonCode.EVENT_TOO_LARGE: "retry",
    ReasonCode.WAITS_FOR_INVENTORY: "inventory",
    ReasonCode.CLUSTER_TOO_SMALL_NOW: "larger_cluster",
}
# Fields that a row has although its task is hidden.
SHOWN_OF_HIDDEN = frozenset({"position", "group", "gpus", "nodes", "priority", "level"})


def row(caller: Identity, task: WaitingTask, now: datetime) -> Json:
    """A place in the queue. That of a hidden task keeps what it takes, without who and which."""
    found = _row(task, now)
    if caller.sight.shows(task):
        return found
    blank = {name: value if name in SHOWN_OF_HIDDEN else None for name, value in found.items()}
    return {**blank, "hidden": True}


def _row(task: WaitingTask, now: datetime) -> Json:
    # One in the past holds the task up no longer.
    retry_at = task.not_before_at if task.not_before_at and task.not_before_at > now else None
    return {
        "id": task.task_id,
        "name": task.name,
        "owner": task.owner,
        "team": task.team or None,
        "group": task.group,
        "position": task.position,
        "priority": enum_name(task.priority),
        "level": enum_name(task.level),
        "gpus": task.gpus,
        "nodes": task.nodes,
        "submitted_at": rfc3339(task.submitted_at),
        "waiting_since": rfc3339(task.waiting_since),
        "reason": reason(task.reason),
        "waits_for": {
            "kind": WAITS_FOR.get(task.reason.code, NODES),
            "tasks_ahead": task.position - 1,
            "promised_nodes": task.promised_nodes,
            "until": rfc3339(task.promised_until or retry_at),
        },
        "starvation_grant": task.granted,
        "hidden": False,
    }
