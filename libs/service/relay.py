"""Events out: rows of the outbox are published in order, then marked. One relayer per service.

Dying between publishing and marking publishes again: the bus knows the id for a while, the
receivers' inboxes for longer. Rows are found by not being marked, never by a moving position,
because a slower transaction may commit a lower id later.

An event that the bus refuses for good does not hold up the others: it is tried individually, and
after ``relay_refused_seconds`` it becomes a dead letter, which an operator can replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from libs.bus.port import BusDeniedError, BusError
from libs.contracts.envelope import Envelope
from libs.service import dead_letters, observe, prune
from libs.service.loop import Backoff, Wake, pause
from libs.service.settings import BaseServiceSettings
from libs.service.shape import Service
from libs.store.dead_letters import Direction
from libs.store.port import DatabaseFaultError, StoreUnavailableError

# How often a refused event is tried again, and how many refused ones may stand before others.
REFUSED_TRY_SECONDS = 10.0
REFUSED_MAX = 1_000


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
    # Rows of refused events: when each was refused first, and is tried next, in the loop's seconds.
    refused: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])

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
            except (StoreUnavailableError, DatabaseFaultError, BusError) as problem:
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
        limit = self.settings.relay_rows_max + len(self.refused)
        rows = await ports.store.outgoing(limit, look=look)
        if look:
            # A full page is not all: the next one looks as well.
            self.looked_at = None if len(rows) == limit else asyncio.get_running_loop().time()
            self._forget_refused({row_id for row_id, _ in rows}, whole=len(rows) < limit)
        observe.OUTBOX_WAITING.labels(name).set(len(rows))
        sent = 0
        if fresh := [row for row in rows if row[0] not in self.refused]:
            try:
                await ports.bus.publish([envelope for _, envelope in fresh])
                await self._published(fresh)
                sent = len(fresh)
            except BusDeniedError:
                # One of them cannot go; the others can.
                sent = await self._publish_individually(fresh)
        now = asyncio.get_running_loop().time()
        due = [row for row in rows if self.refused.get(row[0], (0.0, now + 1))[1] <= now]
        if due:
            sent += await self._publish_individually(due)
        return sent

    async def _published(self, rows: Sequence[tuple[int, Envelope]]) -> None:
        await self.service.ports.store.published([row_id for row_id, _ in rows])
        observe.PUBLISHED.labels(self.service.name).inc(len(rows))

    async def _publish_individually(self, rows: Sequence[tuple[int, Envelope]]) -> int:
        """Publish what the bus takes; what it refuses waits, or has waited long enough."""
        sent: list[tuple[int, Envelope]] = []
        try:
            for row in rows:
                try:
                    await self.service.ports.bus.publish([row[1]])
                except BusDeniedError as problem:
                    await self._refuse(row, str(problem))
                else:
                    sent.append(row)
                    self.refused.pop(row[0], None)
        finally:
            if sent:
                await self._published(sent)
            observe.EVENTS_REFUSED.labels(self.service.name).set(len(self.refused))
        return len(sent)

    async def _refuse(self, row: tuple[int, Envelope], problem: str) -> None:
        """Keep a refused event for the next try, or make it a dead letter."""
        row_id, envelope = row
        now = asyncio.get_running_loop().time()
        since, _ = self.refused.get(row_id, (now, now))
        log = observe.log(self.service.name)
        patience = self.settings.relay_refused_seconds
        if now - since < patience and len(self.refused) < REFUSED_MAX:
            if row_id not in self.refused:
                log.error("the bus refuses an event", id=envelope.id, problem=problem)
            self.refused[row_id] = (since, now + min(REFUSED_TRY_SECONDS, patience))
            return
        store = self.service.ports.store
        async with store.transaction() as tx:
            await dead_letters.keep(tx, Direction.SENT, dead_letters.raw_of(envelope), problem)
        # Dying here sets it apart again, as the same letter.
        await store.published([row_id])
        self.refused.pop(row_id, None)
        observe.EVENTS_SET_APART.labels(self.service.name).inc()
        log.error("an event was set apart: the bus never took it", id=envelope.id, problem=problem)

    def _forget_refused(self, unpublished: set[int], *, whole: bool) -> None:
        """Rows that another leader published or set apart are not waited for."""
        if whole:
            self.refused = {key: at for key, at in self.refused.items() if key in unpublished}
            observe.EVENTS_REFUSED.labels(self.service.name).set(len(self.refused))

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
            except (StoreUnavailableError, DatabaseFaultError) as problem:
                prune.failed(self.service.name, "inbox and outbox", problem)
