"""Consumes events: handles a batch of deliveries in one transaction.

Called by ``runner.py`` on the leader. Inbox entries, the handlers' rows and outgoing events commit
together; only then the deliveries are acknowledged. A crash before the commit leaves nothing; a
crash after it causes a redelivery, which the inbox recognizes.

An event that cannot be handled is set apart as a dead letter, so that it does not stop the others.
While other events are handled, a failure is blamed on the event or its type, and each such event is
set apart. While no event is handled, the cause may be common to all: a burst is set apart, then one
at a time, and the others stay in the stream and are tried again later. They may take at most half
of the durable's pending messages, because nothing new is delivered behind a full durable. A
database error counts against an event only if others were handled since, and without limit only if
none of its type was.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from libs.bus.port import REASON_CHARACTERS_MAX, BusError, Consumer, Delivery
from libs.bus.topology import MAX_ACK_PENDING
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.service import dead_letters, observability
from libs.service.definition import Handler, Service
from libs.service.loop import Backoff, Wake, pause
from libs.service.token_bucket import TokenBucket
from libs.service.traces import handling, keep_place
from libs.store.dead_letters import Direction
from libs.store.port import (
    ConflictError,
    DatabaseFaultError,
    StoreUnavailableError,
    TermOverError,
    Tx,
)
from libs.tracing.context import read, trace_ids

TRANSIENT = (StoreUnavailableError, BusError)
CONFLICT_TRIES = 3
# After so many deliveries the event itself may be the cause of a database error.
DATABASE_ERROR_DELIVERIES_MIN = 4
# How long an event that failed stays away: doubling with each delivery.
DELAY_SECONDS_MAX = 60.0
# How many events that failed may wait in the stream before others are set apart instead.
FAILED_MAX = MAX_ACK_PENDING // 2
# After so many database errors in a row, a batch's other events of the type are not tried.
DATABASE_ERRORS_MAX = 3
# While the database fails in a row, batches come no faster.
DATABASE_ERROR_GAP_SECONDS = 1.0


@dataclass
class Consumption:
    """Consumes one service's events on its leader."""

    service: Service
    epoch: int
    turn: asyncio.Lock
    wakes: Sequence[Wake]
    batch_messages_max: int
    fetch_wait_s: float
    # Limits how fast events are set apart.
    breaker: TokenBucket
    batch_gap_s: float = 0.0
    # The database or the bus is down.
    waiting: bool = False
    # Why events fail in a row; empty while they are handled.
    paused: str = ""
    _pause_gap_s: float = 0.0
    # When an event was handled last, of any type and of each.
    _handled_at: float = -math.inf
    _type_handled_at: dict[str, float] = field(default_factory=dict[str, float])
    # Events that failed and wait in the stream: when each failed first.
    _failed: dict[str, float] = field(default_factory=dict[str, float])
    # The types of which the last event that was tried failed.
    _failing: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.log = observability.log(self.service.name)

    @property
    def problem(self) -> str:
        """Why events are not being consumed; empty if they are."""
        if self.waiting:
            return "events cannot be consumed"
        return f"consumption is paused, events fail in a row: {self.paused}" if self.paused else ""

    async def run(self, consumer: Consumer) -> None:
        """Consume until cancelled or no longer leading; wait while the bus or database is down."""
        try:
            await self._consume(consumer)
        finally:
            # The next leader may be another process: nothing may wait here for a time-out.
            await consumer.release()

    async def _consume(self, consumer: Consumer) -> None:
        backoff = Backoff()
        while True:
            try:
                deliveries = await consumer.fetch(self.batch_messages_max, self.fetch_wait_s)
                await self.settle(consumer, deliveries)
                self.waiting = False
                backoff.reset()
                gap = max(self.batch_gap_s, self._pause_gap_s)
                if deliveries and gap:
                    await pause(gap)
            except TRANSIENT as problem:
                if not self.waiting:
                    self.log.warning("consumer waits", problem=str(problem))
                self.waiting = True
                observability.RETRIES.labels(self.service.name, "consumer").inc()
                await backoff.wait()

    async def settle(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch and acknowledge it; a message that cannot be handled is set apart."""
        good = [each for each in deliveries if each.envelope is not None]
        # What is likely to fail comes last and individually, so that it does not delay the others.
        suspect = [each for each in good if self._is_suspect(each)]
        others = [each for each in good if not self._is_suspect(each)] if suspect else good
        handled = 0
        if others:
            try:
                await self._record(others)
            except (TermOverError, *TRANSIENT):
                # Not acknowledged: it comes again, and if it is committed the inbox knows it.
                raise
            except Exception:  # noqa: BLE001 - one bad message must not stop the others
                suspect = [*others, *suspect]
            else:
                await consumer.ack(others)
                self._resume(others)
                handled = len(others)
        handled, problem = await self._individually(suspect, handled)
        reason = f"{type(problem).__name__}: {problem}" if problem else ""
        for bad in deliveries:
            if bad.envelope is None and not await self._give_up(bad, bad.problem):
                reason = reason or bad.problem
        if reason and not handled:
            self._pause(reason, problem)

    def _is_suspect(self, delivery: Delivery) -> bool:
        if not (self._failed or self._failing):
            return False
        return _id_of(delivery) in self._failed or _type_of(delivery) in self._failing

    async def _record(self, deliveries: Sequence[Delivery]) -> None:
        name = self.service.name
        handled: list[str] = []
        await self._handle(deliveries, handled)
        for kind, count in Counter(handled).items():
            observability.HANDLED.labels(name, kind).inc(count)
        if handled:
            for wake in self.wakes:
                wake.set()

    async def _handle(self, deliveries: Sequence[Delivery], handled: list[str]) -> None:
        """Handle these in one transaction; append the handled kinds to ``handled``."""
        envelopes = [each.envelope for each in deliveries if each.envelope is not None]
        async with self.turn, self.service.ports.store.transaction(epoch=self.epoch) as tx:
            await self._apply(tx, envelopes, handled)

    async def handle_again(
        self, epoch: int, envelope: Envelope, also: Callable[[Tx], None]
    ) -> None:
        """Handle one event that was set apart, with other changes in the same transaction; raises
        what the handler or the database raises. Called by the loop of dead letters."""
        async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
            await self._apply(tx, [envelope], [])
            also(tx)
        for wake in self.wakes:
            wake.set()

    async def _apply(self, tx: Tx, envelopes: Sequence[Envelope], handled: list[str]) -> None:
        """Handle the events that are not in the inbox yet."""
        name = self.service.name
        unseen = await tx.unseen([envelope.id for envelope in envelopes])
        await self._read_ahead(tx, [each.message for each in envelopes if each.id in unseen])
        for envelope in envelopes:
            if envelope.id not in unseen:
                observability.DUPLICATES.labels(name).inc()
                continue
            unseen.discard(envelope.id)
            handler = self.service.handlers.get(type(envelope.message))
            if handler is None:
                continue
            with observability.log_about(envelope):
                if envelope.traceparent:
                    await self._trace(handler, tx, envelope)
                else:
                    await handler(tx, envelope.message)
            handled.append(type(envelope.message).__name__)

    async def _trace(self, handler: Handler, tx: Tx, envelope: Envelope) -> None:
        """Run a handler in the event's trace."""
        ports = self.service.ports
        with handling(ports.tracing, envelope):
            await handler(tx, envelope.message)
            await keep_place(tx, envelope.message, ports.kept_traces)

    async def _read_ahead(self, tx: Tx, messages: Sequence[Message]) -> None:
        """Read what the handlers will ask for, one query for each kind of rows."""
        wanted: dict[type[object], list[tuple[object, ...]]] = {}
        for message in messages:
            reads = self.service.reads.get(type(message))
            for kind, *key in reads(message) if reads else ():
                wanted.setdefault(kind, []).append(tuple(key))
        for kind, keys in wanted.items():
            await tx.load(kind, *keys)
        if self.service.prepare is not None:
            await self.service.prepare(tx, messages)

    async def _individually(
        self, deliveries: Sequence[Delivery], handled: int
    ) -> tuple[int, Exception | None]:
        """Handle what can be handled, and find the messages that broke the batch. Returns how many
        were handled, with those before, and what is wrong with the first that has to wait."""
        delayed: Exception | None = None
        database_errors = Counter[str]()
        for delivery in deliveries:
            kind = _type_of(delivery)
            if database_errors[kind] >= DATABASE_ERRORS_MAX:
                await self._delay(delivery)
                continue
            problem = await self._try(delivery)
            if problem is None:
                handled += 1
                database_errors[kind] = 0
                self._resume([delivery])
                continue
            self._failing.add(kind)
            reason = f"{type(problem).__name__}: {problem}"
            if await self._give_up(delivery, reason, problem):
                self.log.error("event cannot be handled", **_ids(delivery), exc_info=problem)
            else:
                delayed = delayed or problem
                database_errors[kind] += isinstance(problem, DatabaseFaultError)
        return handled, delayed

    async def _try(self, delivery: Delivery) -> Exception | None:
        """Handle one message; conflicts get a few more tries. Returns what went wrong."""
        problem: Exception | None = None
        for _ in range(CONFLICT_TRIES):
            try:
                await self._record([delivery])
                await delivery.ack()
            except (TermOverError, *TRANSIENT):
                raise
            except ConflictError as conflict:
                problem = conflict
            except Exception as error:  # noqa: BLE001 - its caller decides what becomes of the event
                return error
            else:
                return None
        return problem

    def _may_set_apart(self, delivery: Delivery, problem: Exception | None) -> bool:
        """True if the message or its type causes the failure, because other events succeed."""
        now = asyncio.get_running_loop().time()
        since = self._failed.setdefault(_id_of(delivery), now)
        others_work = self._handled_at > since
        if isinstance(problem, DatabaseFaultError):
            if delivery.deliveries < DATABASE_ERROR_DELIVERIES_MIN or not others_work:
                return False
            type_works = self._type_handled_at.get(_type_of(delivery), -math.inf) > since
            return not type_works or self.breaker.take(now)
        return others_work or len(self._failed) > FAILED_MAX or self.breaker.take(now)

    async def _give_up(
        self, delivery: Delivery, reason: str, problem: Exception | None = None
    ) -> bool:
        """Set a message apart, or request redelivery if it may not be the cause. True if it was set
        apart."""
        if self._may_set_apart(delivery, problem):
            await self._set_apart(delivery, reason)
            return True
        await self._delay(delivery)
        return False

    async def _delay(self, delivery: Delivery) -> None:
        """Request redelivery of a message later."""
        if len(self._failed) >= 2 * MAX_ACK_PENDING:
            # Most of them were settled elsewhere; what comes again is noted again.
            self._failed.clear()
        self._failed.setdefault(_id_of(delivery), asyncio.get_running_loop().time())
        await delivery.nak(min(DELAY_SECONDS_MAX, 2.0 ** min(delivery.deliveries, 10)))

    def _pause(self, reason: str, problem: Exception | None = None) -> None:
        if not self.paused:
            self.log.error(
                "consumption is paused: events fail in a row", problem=reason, exc_info=problem
            )
        self._pause_gap_s = (
            DATABASE_ERROR_GAP_SECONDS if isinstance(problem, DatabaseFaultError) else 0.0
        )
        self.paused = reason[:REASON_CHARACTERS_MAX]
        observability.CONSUMPTION_PAUSED.labels(self.service.name).set(1)

    def _resume(self, deliveries: Sequence[Delivery]) -> None:
        """Note that events were handled, and end a pause."""
        self._handled_at = asyncio.get_running_loop().time()
        for delivery in deliveries:
            self._failed.pop(_id_of(delivery), None)
        kinds = {_type_of(delivery) for delivery in deliveries}
        self._type_handled_at |= dict.fromkeys(kinds, self._handled_at)
        self._failing -= kinds
        if self.paused:
            self.log.info("consumption goes on")
        self.paused, self._pause_gap_s = "", 0.0
        observability.CONSUMPTION_PAUSED.labels(self.service.name).set(0)

    async def _set_apart(self, delivery: Delivery, reason: str) -> None:
        """Store a message in the database, from where it can be replayed, and copy it to the dead
        letters of the bus. After a crash in between it is delivered again."""
        async with self.turn, self.service.ports.store.transaction(epoch=self.epoch) as tx:
            await dead_letters.keep(tx, Direction.RECEIVED, delivery.raw, reason)
        self._failed.pop(_id_of(delivery), None)
        observability.DEAD_LETTERS.labels(self.service.name).inc()
        self.log.error("dead letter", reason=reason, **_ids(delivery))
        await delivery.dead_letter(reason)


def _id_of(delivery: Delivery) -> str:
    """Identify a message, whether or not it can be decoded."""
    envelope = delivery.envelope
    return envelope.id if envelope is not None else dead_letters.key_of(delivery.raw)


def _ids(delivery: Delivery) -> dict[str, Any]:
    """What the log says of a message that could not be handled."""
    envelope = delivery.envelope
    if envelope is None:
        return {"event_id": delivery.raw.headers.get("ce-id")}
    return {**observability.ids_of(envelope), **trace_ids(read(envelope.traceparent))}


def _type_of(delivery: Delivery) -> str:
    envelope = delivery.envelope
    if envelope is None:
        return delivery.raw.headers.get("ce-type", "")
    return type(envelope.message).__name__
