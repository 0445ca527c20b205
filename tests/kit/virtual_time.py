"""Run a world on a loop whose time passes only by waiting: deterministic, and fast."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import looptime

T = TypeVar("T")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
START_SECONDS = 1000.0


def virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a fresh virtual-time loop; end what it left behind."""
    loop = looptime.make_event_loop_class(asyncio.SelectorEventLoop)(start=START_SECONDS)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class LoopClock:
    """The running loop's time as a calendar, ``skew_seconds`` ahead of it (a jump of a clock)."""

    def __init__(self) -> None:
        self.skew_seconds = 0.0

    def now(self) -> datetime:
        """The current time in UTC."""
        elapsed = asyncio.get_running_loop().time() + self.skew_seconds
        return EPOCH + timedelta(seconds=elapsed)
