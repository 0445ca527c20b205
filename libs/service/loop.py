"""Loops: run a step when woken or at a tick. The only sleeping place of the platform."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


class Wake:
    """A hint that there is something to do; losing one costs at most a tick."""

    def __init__(self, event: asyncio.Event | None = None) -> None:
        self._event = event or asyncio.Event()

    @staticmethod
    def of(event: asyncio.Event) -> Wake:
        """A wake around an event that is set elsewhere."""
        return Wake(event)

    def set(self) -> None:
        """Wake the loop; many calls are one."""
        self._event.set()

    async def wait(self, seconds_max: float) -> None:
        """Return when woken, at the latest after ``seconds_max``."""
        try:
            async with asyncio.timeout(max(0.0, seconds_max)):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


@dataclass(frozen=True)
class Loop:
    """A named step, run again and again by the leader.

    ``step(epoch)`` returns in how many seconds it wants to run again at the latest (None: a tick).
    """

    name: str
    step: Callable[[int], Awaitable[float | None]]
    tick_seconds: float = 1.0
    wake: Wake = field(default_factory=Wake)
    # Exclude the consumer and the other exclusive loops: no commit of this service comes between
    # this step's reads and its commit.
    exclusive: bool = False
    # Runs before each step, outside the turn: for what takes long and only reads.
    prepare: Callable[[], Awaitable[None]] | None = None
    # Wake after each committed batch of events and each command that was carried out.
    wake_on_commit: bool = True


async def pause(seconds: float) -> None:
    """Wait on purpose: for back-off, and nowhere as a way to keep time."""
    await asyncio.sleep(seconds)  # noqa: TID251 - the one place


@dataclass
class Backoff:
    """Bounded exponential back-off, doubling from the first to the most."""

    first_seconds: float = 0.05
    most_seconds: float = 5.0
    _next: float = 0.0

    async def wait(self) -> None:
        """Pause, longer each time."""
        self._next = min(self.most_seconds, max(self.first_seconds, self._next * 2))
        await pause(self._next)

    def reset(self) -> None:
        """Start from the shortest pause again."""
        self._next = 0.0
