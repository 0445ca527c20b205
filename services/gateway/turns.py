"""Bounded work that many ask for: whoever asks for much waits for its own, not the others for it.

Called by ``live.py`` (reading the event log for streams) and ``auth.py`` (looking tokens up).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass


@dataclass(slots=True)
class _Line:
    """Those of one key: how many are inside or wait."""

    turns: asyncio.Semaphore
    count: int = 0


class Turns:
    """Lets so many of each key in at a time, and so many in all; the others wait in their order."""

    def __init__(self, total_max: int, each_max: int) -> None:
        self._each_max = each_max
        self._all = asyncio.Semaphore(total_max)
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def count(self, key: str) -> int:
        """How many of this key are inside or wait."""
        line = self._lines.get(key)
        return line.count if line else 0

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncGenerator[None]:
        """Wait for a turn of this key, then for one of all, and hold both."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(asyncio.Semaphore(self._each_max))
        line.count += 1
        try:
            # In this order: of each key only so many stand in the common line.
            async with line.turns, self._all:
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[key]
