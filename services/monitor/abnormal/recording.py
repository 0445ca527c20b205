"""Records the facts that rules read: one handler for each event, without a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from libs.contracts.base import Message
from libs.contracts.messages import (
    CheckpointSaved,
    RankEnded,
    RankRestarted,
    RunAssigned,
    RunDelayed,
    RunResumed,
    RunStarted,
    TaskStateChanged,
)
from libs.service.definition import Reads
from libs.store.port import Tx
from services.monitor.abnormal.store import steady_now
from services.monitor.domain import abnormal_facts as facts
from services.monitor.domain.abnormal_facts import FactsRow

CHANGES: Mapping[type[Message], Callable[[FactsRow, Any, float], FactsRow]] = {
    TaskStateChanged: facts.with_state,
    RunAssigned: facts.with_assignment,
    RunResumed: facts.with_assignment,
    RunStarted: facts.with_start,
    RunDelayed: facts.with_delay,
    RankEnded: facts.with_ended_rank,
    RankRestarted: lambda row, event, _now_s: facts.with_restart(row, event),
    CheckpointSaved: lambda row, event, _now_s: facts.with_checkpoint(row, event),
}


async def record(tx: Tx, event: Any) -> None:  # noqa: ANN401 - one of CHANGES
    """Enter an event in the facts of its task."""
    before = await tx.get(FactsRow, event.task_id)
    row = before or FactsRow(event.task_id, noted_at=tx.now)
    after = CHANGES[type(event)](row, event, await steady_now(tx))
    if after != row or before is None:
        tx.put(after)


READS: Mapping[type[Message], Reads] = dict.fromkeys(
    CHANGES, lambda event: [(FactsRow, event.task_id)]
)
