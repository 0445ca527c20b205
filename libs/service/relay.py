"""Publishes the rows of the outbox in order and marks them as sent. One relay per service.

A crash between publishing and marking publishes again: the bus remembers the id for a while, the
receivers' inboxes for longer. The relay finds rows that are not marked as sent, and never uses a
moving position, because a slower transaction may commit a lower id later.

An event that the bus refuses does not hold up the others: its row is marked as refused, stays in
the outbox and is tried again individually until the bus accepts it. One that is too large for the
server becomes a dead letter after ``relay_refused_seconds``, but not many at once: if many are
refused, the server is the cause. One that cannot be decoded becomes a dead letter at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from libs.bus.port import BusDeniedError, BusError, BusTooLargeError, RawMessage
from libs.contracts.envelope import Envelope, UndecodableError
from libs.service import dead_letters, observability, prune
from libs.service.definition import Service
from libs.service.loop import Backoff, Wake, pause
from libs.service.settings import BaseServiceSettings
from libs.service.token_bucket import TokenBucket
from libs.store.dead_letters import Direction
from libs.store.port import (
    DatabaseFaultError,
    RefusedEvent,
    StoreUnavailableError,
    is_full,
)

# Unpublished events are counted up to so many, and where a page does not hold all of them, that
# often.
COUNTED_MAX = 100_000
COUNT_SECONDS = 10.0
# How often some refused events are tried again: at least ``REFUSED_ROWS_MIN`` of them, and all of
# them within ``REFUSED_ROUNDS`` unless they are more than so many whole pages.
REFUSED_TRY_SECONDS = 10.0
REFUSED_ROWS_MIN = 16
REFUSED_ROUNDS = 60


@dataclass
class Relay:
    """Publishes one service's outbox on its leader."""

    service: Service
    settings: BaseServiceSettings
    waiting: bool = False
    # True once the bus server is known to be the same; before that, no event is dropped.
    met: bool = False
    # True if there may be more to publish than the last page.
    more: bool = False
    # True if an event was published in the outbox's current period.
    published: bool = False
    # The time of the last query for unpublished events, in the event loop's seconds.
    queried_at: float | None = None
    # How many events are refused, and the last error of the bus.
    refused: int = 0
    refusal: str = ""
    # When refused events are tried next, in the event loop's seconds, and behind which row.
    _refused_due: float = 0.0
    _refused_after: int = 0
    # When unpublished events are counted next, in the event loop's seconds.
    _count_due: float = 0.0

    def __post_init__(self) -> None:
        settings = self.settings
        self._breaker = TokenBucket(settings.dead_letter_burst, 1 / settings.dead_letter_seconds)

    @property
    def warning(self) -> str:
        """What an operator should know; empty while all is well."""
        if not self.refused:
            return ""
        return f"the bus refuses {self.refused} events, which wait in the outbox: {self.refusal}"

    async def run(self) -> None:
        """Publish until cancelled; wait while the bus or database is down, without loss.

        What this process commits is published from memory. The relay queries the database at the
        start, after every problem and once a tick, for what other processes committed.
        """
        store, backoff = self.service.ports.store, Backoff()
        wake = Wake.of(store.outbox_changed)
        # Another leader may have met what is refused.
        self._refused_due, self._refused_after = 0.0, 0
        try:
            await self._run(wake, backoff)
        finally:
            # Another process knows from now on how much waits.
            for gauge in (observability.OUTBOX_WAITING, observability.OUTBOX_AGE):
                gauge.remove(self.service.name)

    async def _run(self, wake: Wake, backoff: Backoff) -> None:
        while True:
            try:
                await self.once(query=self._is_query_due())
                self.waiting = False
                backoff.reset()
                if not self.more:
                    await wake.wait(self.settings.relay_tick_seconds)
            except (StoreUnavailableError, DatabaseFaultError, BusError) as problem:
                if not self.waiting:
                    observability.log(self.service.name).warning(
                        "relay waits", problem=str(problem)
                    )
                self.waiting, self.queried_at = True, None
                observability.RETRIES.labels(self.service.name, "relay").inc()
                await backoff.wait()

    def _is_query_due(self) -> bool:
        tick, now = self.settings.relay_tick_seconds, asyncio.get_running_loop().time()
        return self.queried_at is None or now - self.queried_at >= tick

    async def once(self, *, query: bool = True) -> int:
        """Publish one page of the outbox; returns how many events."""
        ports, name = self.service.ports, self.service.name
        again = await ports.store.meet_bus_server(
            ports.bus.server_id, self._periods(self.settings.republish_window_seconds)
        )
        self.met = True
        if again:
            query = True
            observability.REPUBLISHED.labels(name).inc(again)
        limit = self.settings.relay_rows_max
        rows = await ports.store.outgoing(limit, query=query)
        self.more = is_full(rows, limit)
        if query:
            # A full page is not all: the next step queries again.
            self.queried_at = None if self.more else asyncio.get_running_loop().time()
        await self._show_waiting(rows)
        sent = 0
        if rows:
            try:
                await self._publish([envelope for _, envelope in rows])
                await self._published([row_id for row_id, _ in rows])
                sent = len(rows)
            except BusDeniedError:
                # One of them cannot go; the others can.
                sent = await self._publish_individually(rows)
        return sent + await self._try_refused()

    async def _publish(self, envelopes: Sequence[Envelope]) -> None:
        ports = self.service.ports
        with ports.tracing.publishing(envelopes) as sent:
            await ports.bus.publish(sent)

    async def _show_waiting(self, rows: Sequence[tuple[int, Envelope]]) -> None:
        """Set the gauges of what waits, of which ``rows`` is the oldest part."""
        name, now = self.service.name, self.service.ports.clock.now()
        age = max(0.0, (now - rows[0][1].time).total_seconds()) if rows else 0.0
        observability.OUTBOX_AGE.labels(name).set(age)
        if not self.more:
            observability.OUTBOX_WAITING.labels(name).set(len(rows))
        elif (now_s := asyncio.get_running_loop().time()) >= self._count_due:
            self._count_due = now_s + COUNT_SECONDS
            count = await self.service.ports.store.count_outgoing(COUNTED_MAX)
            observability.OUTBOX_WAITING.labels(name).set(count)

    async def _published(self, row_ids: Sequence[int]) -> None:
        # Set before the rows are marked: marked rows belong to this period even without an answer.
        self.published = True
        await self.service.ports.store.published(row_ids)
        observability.PUBLISHED.labels(self.service.name).inc(len(row_ids))

    async def _publish_individually(self, rows: Sequence[tuple[int, Envelope]]) -> int:
        """Publish what the bus accepts, and mark what it refuses. After a crash it tries again."""
        sent: list[int] = []
        refused: list[tuple[int, Envelope]] = []
        try:
            for row_id, envelope in rows:
                try:
                    await self._publish([envelope])
                except BusDeniedError as problem:
                    self.refusal = str(problem)
                    refused.append((row_id, envelope))
                else:
                    sent.append(row_id)
        finally:
            if sent:
                await self._published(sent)
            if refused:
                await self.service.ports.store.refuse([row_id for row_id, _ in refused])
                self._count_refused(self.refused + len(refused))
                observability.log(self.service.name).error(
                    "the bus refuses events",
                    ids=[envelope.id for _, envelope in refused[:REFUSED_ROWS_MIN]],
                    count=len(refused),
                    problem=self.refusal,
                )
        return len(sent)

    async def _try_refused(self) -> int:
        """Publish some of the refused events again; returns how many went."""
        now = asyncio.get_running_loop().time()
        if now < self._refused_due:
            return 0
        store = self.service.ports.store
        self._count_refused(await store.count_refused())
        self._refused_due = now + REFUSED_TRY_SECONDS
        if not self.refused:
            return 0
        limit = max(REFUSED_ROWS_MIN, self.refused // REFUSED_ROUNDS)
        page = await store.refused(self._refused_after, min(limit, self.settings.relay_rows_max))
        # After the last one from the beginning.
        self._refused_after = page[-1].row_id if page else 0
        before = self.refused
        sent = [event.row_id for event in page if await self._try(event)]
        if sent:
            await self._published(sent)
            self._count_refused(max(0, self.refused - len(sent)))
        if self.refused < before or not page:
            # Some went or were set apart: the next ones at once.
            self._refused_due, self.more = now, True
        return len(sent)

    async def _try(self, event: RefusedEvent) -> bool:
        """Publish one refused event; True if the bus took it. What can never go is set apart."""
        try:
            envelope = event.envelope()
        except UndecodableError as problem:
            raw = RawMessage(event.subject, event.headers, event.body)
            await self._set_apart(event.row_id, raw, str(problem))
            return False
        try:
            await self._publish([envelope])
        except BusTooLargeError as problem:
            self.refusal = str(problem)
            since = self.service.ports.clock.now() - event.refused_at
            is_early = since < timedelta(seconds=self.settings.relay_refused_seconds)
            if not is_early and self._breaker.take(asyncio.get_running_loop().time()):
                await self._set_apart(event.row_id, dead_letters.raw_of(envelope), str(problem))
            return False
        except BusDeniedError as problem:
            self.refusal = str(problem)
            return False
        return True

    async def _set_apart(self, row_id: int, raw: RawMessage, problem: str) -> None:
        """Store an event as a dead letter, then remove it from the outbox. A crash in between sets
        it apart again, as the same letter; in the other order it would be lost."""
        store = self.service.ports.store
        async with store.transaction() as tx:
            await dead_letters.keep(tx, Direction.SENT, raw, problem)
        await store.published([row_id])
        self._count_refused(max(0, self.refused - 1))
        observability.EVENTS_SET_APART.labels(self.service.name).inc()
        observability.log(self.service.name).error(
            "an event was set apart: it cannot be published",
            id=raw.headers.get("ce-id"),
            problem=problem,
        )

    def _count_refused(self, count: int) -> None:
        self.refused = count
        observability.EVENTS_REFUSED.labels(self.service.name).set(count)

    def _periods(self, seconds: float) -> int:
        """How many whole periods of the outbox last at least so long."""
        return math.ceil(seconds / self.settings.outbox_period_seconds)

    async def prune(self) -> None:
        """Delete what no redelivery and no lost bus server can require any more.

        The outbox is deleted by periods. Each lasts at least ``outbox_period_seconds`` in one
        process: a restart prolongs it. A period without a publication continues, so what was
        published last stays while the bus is away.
        """
        name = self.service.name
        inbox = prune.PruneCutoff(name, "inbox", self.settings.prune_days_per_hour)
        prune.will_prune(name, "inbox and outbox")
        while True:
            await pause(self.settings.outbox_period_seconds)
            if not self.met:
                continue
            try:
                prune.pruned(name, "outbox", await self._prune_outbox())
                prune.pruned(name, "inbox", await self._prune_inbox(inbox))
            except (StoreUnavailableError, DatabaseFaultError) as problem:
                prune.failed(name, "inbox and outbox", problem)

    async def _prune_outbox(self) -> int:
        store = self.service.ports.store
        if self.published:
            self.published = False
            await store.next_period()
        return await store.prune_outbox(self._periods(self.settings.outbox_keep_seconds))

    async def _prune_inbox(self, cutoff: prune.PruneCutoff) -> int:
        store = self.service.ports.store
        keep = timedelta(seconds=self.settings.inbox_keep_seconds)
        wanted = self.service.ports.clock.now() - keep
        before = cutoff.before(await store.oldest_seen(), wanted)
        return 0 if before is None else await store.prune_inbox(before)
