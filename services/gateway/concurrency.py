"""Concurrency limits by key: a key with much work waits for its own work and delays no other key.

``event_stream.py`` limits reads of the event log with it, and ``auth.py`` token lookups.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass


@dataclass(slots=True)
class _KeyLimit:
    """One key's limit, and how many callers hold it or wait for it."""

    concurrency: asyncio.Semaphore
    count: int = 0


class ConcurrencyLimit:
    """Admits at most ``each_max`` callers of a key, ``total_max`` in all; the others wait."""

    def __init__(self, total_max: int, each_max: int) -> None:
        self._each_max = each_max
        self._all = asyncio.Semaphore(total_max)
        self._lines: dict[str, _KeyLimit] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def count(self, key: str) -> int:
        """The number of callers of this key that are admitted or wait."""
        line = self._lines.get(key)
        return line.count if line else 0

    @contextlib.asynccontextmanager
    async def of(self, key: str) -> AsyncGenerator[None]:
        """Wait for the key's limit, then for the total limit, and hold both."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _KeyLimit(asyncio.Semaphore(self._each_max))
        line.count += 1
        try:
            # The key's limit comes first, so that one key cannot fill the common queue.
            async with line.concurrency, self._all:
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[key]
