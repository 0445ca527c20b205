"""Answers the monitor which steps programs have reported last."""

from __future__ import annotations

import math
from dataclasses import dataclass

from libs.contracts.messages import ReadSteps, ReadStepsReply, ReportedStep
from libs.store.port import Store
from services.gateway import store as rows_of

TASKS_MAX = 1000


@dataclass(frozen=True, slots=True)
class ReportedSteps:
    """The last step of each task's rank 0."""

    store: Store

    async def read(self, query: ReadSteps) -> ReadStepsReply:
        """Those of the tasks that have reported a finite one."""
        async with self.store.transaction() as tx:
            found = await rows_of.progress_of(tx, query.task_ids[:TASKS_MAX])
        steps = ((row, row.latest.get("step")) for _, row in sorted(found.items()))
        return ReadStepsReply(
            steps=tuple(
                ReportedStep(task_id=row.task_id, step=step, attempt=row.attempt)
                for row, step in steps
                if step is not None and math.isfinite(step)
            )
        )
