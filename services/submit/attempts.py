"""Asks the scheduler to publish its facts again if the attempt of a live task is unknown, as after
an upgrade from a version that did not record it: fenced commands wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from libs.bus.port import Bus, BusError
from libs.contracts.messages import Reemit
from libs.service.loop import Loop
from libs.store.port import Op, Store, Where
from services.submit.store import TaskRow

TICK_SECONDS = 30.0
ANSWER_SECONDS_MAX = 10.0


@dataclass
class UnknownAttempts:
    """Asks once in each process: what the scheduler does not know it does not publish."""

    database: Store
    bus: Bus
    asked: bool = False

    def loop(self) -> Loop:
        """See the module."""
        return Loop("attempts", self.step, TICK_SECONDS, wake_on_commit=False)

    async def step(self, epoch: int) -> float | None:
        """Ask, if there is reason to."""
        if self.asked:
            return None
        async with self.database.transaction(epoch=epoch) as tx:
            unknown = await tx.select(TaskRow, Where("attempt", Op.LT, 0), limit=1)
        if unknown:
            try:
                await self.bus.request(Reemit(service="scheduler"), timeout_s=ANSWER_SECONDS_MAX)
            except BusError:
                return None
        self.asked = True
        return None
