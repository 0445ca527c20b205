"""Events out: rows of the outbox are published in order, then marked. One relayer per service.

Dying between publishing and marking publishes again: the bus knows the id for a while, the
receivers' inboxes for longer. Rows are found by not being marked, never by a moving position,
because a slower transaction may commit a lower id later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from libs.bus.port import BusError
from libs.service import observe, prune
from libs.service.loop import Backoff, Wake, pause
from libs.service.settings import BaseServiceSettings
from libs.service.shape import Service
from libs.store.port import StoreUnavailableError


@dataclass
class Relay:
    """One leader's relaying of its service's outbox."""

    service: Service
    settings: BaseServiceSettings
    waiting: bool = False
    # Nothing is dropped before the bus server was asked whether it still has it.
    met: bool = False
    # When the database was last asked what is unpublished, in the event loop's seconds.
    looked_at: float | None = None

    async def run(self) -> None:
        """Publish until cancelled; wait out what is down, losing nothing.

        What this process commits is published from memory. The database is looked into first of
        all, after every problem, and once a tick: there is what others committed.
        """
        store, backoff = self.service.ports.store, Backoff()
        wake = Wake.of(store.outbox_changed)
        while True:
            try:
                sent = await self.once(look=self._is_look_due())
                self.waiting = False
                backoff.reset()
                if sent < self.settings.relay_rows_max:
                    await wake.wait(self.settings.relay_tick_seconds)
            except (StoreUnavailableError, BusError) as problem:
                if not self.waiting:
                    observe.log(self.service.name).warning("relay waits", problem=str(problem))
                self.waiting, self.looked_at = True, None
                observe.RETRIES.labels(self.service.name, "relay").inc()
                await backoff.wait()

    def _is_look_due(self) -> bool:
        tick, now = self.settings.relay_tick_seconds, asyncio.get_running_loop().time()
        return self.looked_at is None or now - self.looked_at >= tick

    async def once(self, *, look: bool = True) -> int:
        """Publish one page of the outbox; returns how many events."""
        ports, name = self.service.ports, self.service.name
        again = await ports.store.meet_bus_server(
            ports.bus.server_id, timedelta(seconds=self.settings.republish_window_seconds)
        )
        self.met = True
        if again:
            look = True
            observe.REPUBLISHED.labels(name).inc(again)
        rows = await ports.store.outgoing(self.settings.relay_rows_max, look=look)
        if look:
            # A full page is not all: the next one looks as well.
            full = len(rows) == self.settings.relay_rows_max
            self.looked_at = None if full else asyncio.get_running_loop().time()
        observe.OUTBOX_WAITING.labels(name).set(len(rows))
        if rows:
            await ports.bus.publish([envelope for _, envelope in rows])
            await ports.store.published([row_id for row_id, _ in rows])
            observe.PUBLISHED.labels(name).inc(len(rows))
        return len(rows)

    async def prune(self) -> None:
        """Drop what no redelivery and no lost bus server can ask for any more."""
        store, clock = self.service.ports.store, self.service.ports.clock
        while True:
            await pause(self.settings.prune_tick_seconds)
            now = clock.now()
            if not self.met:
                continue
            try:
                count = await store.prune(
                    published_before=now - timedelta(seconds=self.settings.outbox_keep_seconds),
                    seen_before=now - timedelta(seconds=self.settings.inbox_keep_seconds),
                )
                observe.PRUNED.labels(self.service.name, "inbox and outbox").inc(count)
            except StoreUnavailableError as problem:
                prune.failed(self.service.name, "inbox and outbox", problem)
