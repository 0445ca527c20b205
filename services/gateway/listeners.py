"""Reports the first time that a run polls for preemption requests.

The fact is the gateway's: ``RunListened`` is stored in the outbox before the run gets its answer,
so that a process that dies in between is asked again by the run. Called by ``GET /v1/run``. A run
that another process has reported may be reported twice: the receivers keep the first report.
"""

from __future__ import annotations

from collections import OrderedDict

from libs.contracts.ids import RunId
from libs.contracts.messages import RunListened
from libs.store.port import Store

# Of the runs that were reported and may not be projected yet, so many are remembered.
REPORTED_MAX = 10_000


class Listeners:
    """Reports each run once from this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reported: OrderedDict[RunId, None] = OrderedDict()

    async def report(self, run: RunId) -> None:
        """Store that the run polls, unless this process has stored it before."""
        if run in self._reported:
            return
        # Its other ranks ask at the same time.
        self._reported[run] = None
        try:
            async with self._store.transaction() as tx:
                tx.emit(RunListened(task_id=run.task_id, attempt=run.attempt, asked_at=tx.now))
        except BaseException:
            self._reported.pop(run, None)
            raise
        while len(self._reported) > REPORTED_MAX:
            self._reported.popitem(last=False)
