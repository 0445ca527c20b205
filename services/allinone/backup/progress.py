"""Long work in a thread that reports how far it is, and that ends when its command is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TypeVar

from shiftwork.cli.charts import size_text

T = TypeVar("T")
Report = Callable[[str], None]

# Between two reports about the same step.
REPORT_SECONDS = 5.0


class CancelledWorkError(Exception):
    """The command was interrupted."""


class Progress:
    """Counts the bytes that pass, and stops them after a cancellation."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._reported_at, self._bytes = monotonic(), 0
        self.cancelled = threading.Event()

    def of(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the same chunks. Raises CancelledWorkError."""
        for chunk in chunks:
            self.add(len(chunk))
            yield chunk

    def add(self, count: int) -> None:
        """Count more bytes. Raises CancelledWorkError."""
        if self.cancelled.is_set():
            raise CancelledWorkError
        self._bytes += count
        if monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = monotonic()
            self._report(f"  {size_text(self._bytes)}")


async def in_thread(report: Report, work: Callable[[Progress], T]) -> T:
    """Run work in a thread. A cancellation ends it at its next chunk, and waits for that."""
    progress = Progress(report)
    running = asyncio.ensure_future(asyncio.to_thread(work, progress))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        progress.cancelled.set()
        with contextlib.suppress(Exception):
            await running
        raise
