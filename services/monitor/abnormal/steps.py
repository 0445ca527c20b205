"""The loop that asks the gateway which steps programs report, and how long it has been the same.

It waits for the gateway, and excludes nothing meanwhile. What it knows is in memory: a task's row
has only since when its program stalls, once that has lasted (``domain/stalls.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.bus.port import Bus, BusError
from libs.contracts.messages import ReadSteps, ReadStepsReply
from libs.service.loop import Loop
from libs.store.port import Store
from services.monitor.abnormal import store
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.domain.abnormal_rules import works
from services.monitor.domain.stalls import LastStep, Stall, after_answer, stall_of

TASKS_AT_ONCE = 200
ANSWER_SECONDS_MAX = 5.0


@dataclass
class Steps:
    """What one leader knows of the steps of the tasks that run."""

    database: Store
    bus: Bus
    tick_seconds: float
    known: dict[str, LastStep] = field(default_factory=dict[str, LastStep])
    # The steady time at which the last round began in which the gateway answered.
    answered_s: float | None = None

    def loop(self) -> Loop:
        """See the module."""
        return Loop("abnormal-steps", self.step, self.tick_seconds, wake_on_commit=False)

    def lead(self) -> None:
        """A new leader knows nothing yet."""
        self.known, self.answered_s = {}, None

    async def step(self, epoch: int) -> float | None:
        """Ask about all tasks that run, a page at a time."""
        after, known = "", dict[str, LastStep]()
        async with self.database.transaction(epoch=epoch) as tx:
            began_s = await store.steady_now(tx)
        while True:
            async with self.database.transaction(epoch=epoch) as tx:
                page = await store.watched(tx, after, TASKS_AT_ONCE)
                now_s = await store.steady_now(tx)
            if not page:
                break
            after = page[-1].task_id
            running = [row for row in page if works(row)]
            try:
                steps = await self._ask(running)
            except BusError:
                return None
            for row in running:
                if row.task_id in steps:
                    before = self.known.get(row.task_id)
                    known[row.task_id] = after_answer(before, row, steps[row.task_id], now_s)
        self.known, self.answered_s = known, began_s
        return None

    async def _ask(self, rows: Sequence[FactsRow]) -> dict[str, float]:
        if not rows:
            return {}
        query = ReadSteps(task_ids=tuple(row.task_id for row in rows))
        reply = await self.bus.request(query, timeout_s=ANSWER_SECONDS_MAX)
        assert isinstance(reply, ReadStepsReply), "the declared reply"
        attempts = {row.task_id: row.attempt for row in rows}
        # A gateway of the version before does not say which attempt reported a step.
        return {
            each.task_id: each.step
            for each in reply.steps
            if each.attempt in (None, attempts.get(each.task_id))
        }

    def of(self, row: FactsRow, now_s: float) -> Stall | None:
        """What is known of a task's steps now. None: nothing, or the gateway has not answered."""
        fresh_s = 2 * self.tick_seconds + 2 * ANSWER_SECONDS_MAX
        if self.answered_s is None or now_s - self.answered_s > fresh_s:
            return None
        return stall_of(self.known.get(row.task_id), row, now_s)
