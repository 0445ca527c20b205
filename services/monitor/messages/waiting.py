"""The loop that finds tasks which have been in the queue for long: no event tells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from libs.contracts.messages import Occasion, Reason
from libs.contracts.reasons import duration, render
from libs.store.port import Store
from services.monitor import store
from services.monitor.messages.message_outbox import MessageOutbox, TaskOccasion
from services.monitor.store import TaskRow

TASKS_MAX = 500


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """Notifies each stay in the queue once."""

    store: Store
    message_outbox: MessageOutbox
    seconds: float

    async def step(self, epoch: int) -> float | None:
        """Notify tasks that have waited for longer than the setting."""
        async with self.store.transaction(epoch=epoch) as tx:
            rows = await store.waiting_long(tx, tx.now - timedelta(seconds=self.seconds), TASKS_MAX)
            for row in rows:
                assert row.queued_since is not None, "only such rows were selected"
                tx.put(replace(row, waiting_notified=True))
                waited = (tx.now - row.queued_since).total_seconds()
                await self.message_outbox.put(
                    tx,
                    TaskOccasion(
                        task=row,
                        occasion=Occasion.WAITING,
                        at=tx.now,
                        number=str(int(row.queued_since.timestamp())),
                        details={
                            "state": row.state.name.lower(),
                            "reason": _why(row, waited),
                            "waited_seconds": round(waited),
                            "suggestion": f"shiftwork explain {row.task_id}",
                        },
                    ),
                )
        return 0.0 if len(rows) == TASKS_MAX else None


def _why(row: TaskRow, waited_s: float) -> str:
    """A sentence. Without the reason's numbers and names: `explain` has those of the moment."""
    return f"in the queue for {duration(waited_s)}: {render(Reason(code=row.reason))}"
