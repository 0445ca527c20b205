"""Copies events for the monitoring users of the bus, while there are any."""

from __future__ import annotations

from dataclasses import dataclass

from libs.bus.port import Bus
from libs.service.loop import Loop

# How long one step waits for events.
WAIT_SECONDS = 1.0
# How soon the first monitoring user is noticed.
TICK_SECONDS = 1.0


@dataclass
class EventCopies:
    """The loop ``event-copies`` of the leader."""

    bus: Bus

    def loop(self) -> Loop:
        """The loop; it holds up neither the consumer nor other loops."""
        return Loop("event-copies", self.step, tick_seconds=TICK_SECONDS, wake_on_commit=False)

    async def step(self, epoch: int) -> float | None:
        """Copy what there is; the next step follows at once unless nobody reads."""
        del epoch
        return None if await self.bus.copy_events(WAIT_SECONDS) is None else 0.0
