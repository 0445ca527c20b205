"""Nodes that an operator drains: what runs there is asked to save and leave.

Third step of ``decide``. The runs wait in the queue like any other; the nodes take nothing new.
"""

from __future__ import annotations

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.lifecycle import LEAVING
from services.scheduler.domain.model import Task
from services.scheduler.domain.round import Round
from services.scheduler.domain.why import reason


def drained_node(task: Task, draining: frozenset[str]) -> str | None:
    """The first draining node that the task's run is on, or None."""
    on = sorted({placement.node_id for placement in task.placements} & draining)
    return on[0] if on else None


def drain(round_: Round) -> None:
    """Tell the runs on draining nodes to go, whole gangs at once."""
    draining = round_.totals.draining
    there = {task_id for node_id in draining for task_id in round_.index.holders.get(node_id, ())}
    for task in (round_.index.tasks[task_id] for task_id in sorted(there)):
        node_id = drained_node(task, draining)
        if node_id is not None and task.state not in LEAVING and task.id not in round_.moved:
            tell_to_go(round_, task, reason(ReasonCode.NODE_DRAINED, names={"node": node_id}))
