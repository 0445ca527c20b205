"""Nodes that an operator drains: what runs there is asked to save and leave.

Third step of ``decide``. The runs wait in the queue like any other; the nodes take nothing new.
"""

from __future__ import annotations

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.round import Round


def drain(round_: Round) -> None:
    """Tell the runs on draining nodes to go, whole gangs at once."""
    for task in round_.individually(round_.index.drained):
        node_id = round_.totals.drained_node(task)
        if node_id is not None and task.id not in round_.moved:
            tell_to_go(round_, task, reason(ReasonCode.NODE_DRAINED, names={"node": node_id}))
