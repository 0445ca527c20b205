"""Events in: a batch of deliveries becomes one transaction of recorded facts.

Called by ``run.py`` on the leader. Inbox entry, handlers' rows and outgoing events commit
together; only then the deliveries are acknowledged. Dying before the commit leaves nothing, dying
after it means redelivery, which the inbox answers.

An event that cannot be handled is set apart as a dead letter, so that it does not stop the others.
Where many fail, the fault is rarely theirs: dead letters are limited to a burst and then to one at
a time, and an error of the database counts against an event only if others were handled since.
What fails beyond that stays in the stream and is tried again later.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from libs.bus.port import BusError, Consumer, Delivery
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.service import dead_letters, observe
from libs.service.loop import Backoff, Wake, pause
from libs.service.shape import Service
from libs.store.dead_letters import Direction
from libs.store.port import (
    ConflictError,
    DatabaseFaultError,
    StoreUnavailableError,
    TermOverError,
    Tx,
)

TRANSIENT = (StoreUnavailableError, BusError)
CONFLICT_TRIES = 3
# After so many deliveries an error of the database may be the event's own fault.
FAULT_DELIVERIES_MIN = 4
# How long an event that failed stays away: doubling with each delivery.
DELAY_SECONDS_MAX = 60.0
FAULTED_MAX = 4_096


@dataclass
class Breaker:
    """Limits how fast events are set apart: a burst, then one every so many seconds."""

    burst: int
    refill_seconds: float
    _left: float = field(init=False)
    _at: float | None = None

    def __post_init__(self) -> None:
        self._left = float(self.burst)

    def allows(self, now: float) -> bool:
        """True, and one fewer is left, if one may be set apart now."""
        if self._at is not None:
            refilled = self._left + (now - self._at) / self.refill_seconds
            self._left = min(float(self.burst), refilled)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass
class Consumption:
    """One leader's consuming of its service's events."""

    service: Service
    epoch: int
    turn: asyncio.Lock
    wakes: Sequence[Wake]
    batch_messages_max: int
    fetch_wait_s: float
    breaker: Breaker
    batch_gap_s: float = 0.0
    # The database or the bus is down.
    waiting: bool = False
    # Why events fail in a row; empty while they are handled.
    paused: str = ""
    _handled_at: float = -math.inf
    # Events for which the database has raised an error, and since when.
    _faulted: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.log = observe.log(self.service.name)

    @property
    def problem(self) -> str:
        """Why events are not consumed now; empty if they are."""
        if self.waiting:
            return "events cannot be consumed"
        return f"consumption is paused, events fail in a row: {self.paused}" if self.paused else ""

    async def run(self, consumer: Consumer) -> None:
        """Consume until cancelled or no longer leading; wait out what is down."""
        try:
            await self._consume(consumer)
        finally:
            # The next leader may be another process: nothing may wait here for a time-out.
            await consumer.release()

    async def _consume(self, consumer: Consumer) -> None:
        backoff = Backoff()
        while True:
            try:
                # While events fail in a row one at a time is tried: one success ends the pause.
                count = 1 if self.paused else self.batch_messages_max
                deliveries = await consumer.fetch(count, self.fetch_wait_s)
                await self.settle(consumer, deliveries)
                self.waiting = False
                if self.paused and deliveries:
                    await backoff.wait()
                    continue
                backoff.reset()
                if deliveries and self.batch_gap_s:
                    await pause(self.batch_gap_s)
            except TRANSIENT as problem:
                if not self.waiting:
                    self.log.warning("consumer waits", problem=str(problem))
                self.waiting = True
                observe.RETRIES.labels(self.service.name, "consumer").inc()
                await backoff.wait()

    async def settle(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch and acknowledge it; a message that cannot be handled is set apart."""
        good = [delivery for delivery in deliveries if delivery.envelope is not None]
        for bad in deliveries:
            if bad.envelope is None and not await self._give_up(bad, bad.problem):
                self._pause(bad.problem)
        if not good:
            return
        try:
            await self._record(good)
        except (TermOverError, *TRANSIENT):
            # Not acknowledged: it comes again, and if it is committed the inbox knows it.
            raise
        except Exception:  # noqa: BLE001 - one bad message must not stop the others
            await self._individually(good)
            return
        await consumer.ack(good)
        self._resume()

    async def _record(self, deliveries: Sequence[Delivery]) -> None:
        name = self.service.name
        handled: list[str] = []
        with structlog.contextvars.bound_contextvars(event=""):
            await self._handle(deliveries, handled)
        for kind, count in Counter(handled).items():
            observe.HANDLED.labels(name, kind).inc(count)
        if handled:
            for wake in self.wakes:
                wake.set()

    async def _handle(self, deliveries: Sequence[Delivery], handled: list[str]) -> None:
        """One transaction; says which kinds were handled."""
        envelopes = [each.envelope for each in deliveries if each.envelope is not None]
        async with self.turn, self.service.ports.store.transaction(epoch=self.epoch) as tx:
            await self._apply(tx, envelopes, handled)

    async def handle_again(
        self, epoch: int, envelope: Envelope, also: Callable[[Tx], None]
    ) -> None:
        """Handle one event that was set apart, with other changes in the same transaction; raises
        what the handler or the database raises. Called by the loop of dead letters."""
        with structlog.contextvars.bound_contextvars(event=""):
            async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
                await self._apply(tx, [envelope], [])
                also(tx)
        for wake in self.wakes:
            wake.set()

    async def _apply(self, tx: Tx, envelopes: Sequence[Envelope], handled: list[str]) -> None:
        """Record what these events say, those that were not seen before."""
        name = self.service.name
        unseen = await tx.unseen([envelope.id for envelope in envelopes])
        await self._read_ahead(tx, [each.message for each in envelopes if each.id in unseen])
        for envelope in envelopes:
            if envelope.id not in unseen:
                observe.DUPLICATES.labels(name).inc()
                continue
            unseen.discard(envelope.id)
            handler = self.service.handlers.get(type(envelope.message))
            if handler is not None:
                # For what the handler logs; as long as the transaction lasts.
                structlog.contextvars.bind_contextvars(event=envelope.id)
                await handler(tx, envelope.message)
                handled.append(type(envelope.message).__name__)

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

    async def _individually(self, deliveries: Sequence[Delivery]) -> None:
        """Handle what can be handled, and find the messages that broke the batch."""
        handled, delayed = 0, None
        for delivery in deliveries:
            problem = await self._try(delivery)
            if problem is None:
                handled += 1
                self._resume()
                continue
            reason = f"{type(problem).__name__}: {problem}"
            if await self._give_up(delivery, reason, own_fault=self._is_own(delivery, problem)):
                self.log.error("event cannot be handled", exc_info=problem)
            else:
                delayed = delayed or problem
        if delayed and not handled:
            self._pause(f"{type(delayed).__name__}: {delayed}", delayed)

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

    def _is_own(self, delivery: Delivery, problem: Exception) -> bool:
        """False if the problem may be the database's and not the message's."""
        if not isinstance(problem, DatabaseFaultError) or delivery.envelope is None:
            return True
        event_id, now = delivery.envelope.id, asyncio.get_running_loop().time()
        if len(self._faulted) >= FAULTED_MAX:
            # Who comes again is noted again.
            self._faulted.clear()
        since = self._faulted.setdefault(event_id, now)
        own = delivery.deliveries >= FAULT_DELIVERIES_MIN and self._handled_at > since
        if own:
            del self._faulted[event_id]
        return own

    async def _give_up(self, delivery: Delivery, reason: str, *, own_fault: bool = True) -> bool:
        """Set a message apart, or ask for it again later if the fault may not be its own or too
        many were set apart. True if it was set apart."""
        if own_fault and self.breaker.allows(asyncio.get_running_loop().time()):
            await self._set_apart(delivery, reason)
            return True
        await delivery.nak(min(DELAY_SECONDS_MAX, 2.0 ** min(delivery.deliveries, 10)))
        return False

    def _pause(self, reason: str, problem: Exception | None = None) -> None:
        if not self.paused:
            self.log.error(
                "consumption is paused: events fail in a row", problem=reason, exc_info=problem
            )
        self.paused = reason[: dead_letters.REASON_CHARACTERS_MAX]
        observe.CONSUMPTION_PAUSED.labels(self.service.name).set(1)

    def _resume(self) -> None:
        """An event was handled."""
        self._handled_at = asyncio.get_running_loop().time()
        if self.paused:
            self.log.info("consumption goes on")
        self.paused = ""
        observe.CONSUMPTION_PAUSED.labels(self.service.name).set(0)

    async def _set_apart(self, delivery: Delivery, reason: str) -> None:
        """Keep it in the database, from where it can be replayed, and tell the bus, which copies
        it to the dead letters there. Dying in between brings it again."""
        envelope = delivery.envelope
        async with self.turn, self.service.ports.store.transaction(epoch=self.epoch) as tx:
            await dead_letters.keep(tx, Direction.RECEIVED, delivery.raw, reason)
        observe.DEAD_LETTERS.labels(self.service.name).inc()
        self.log.error("dead letter", reason=reason, id=envelope.id if envelope else None)
        await delivery.dead_letter(reason)


def hears(service: Service) -> tuple[type, ...]:
    """The event types a service's durable must deliver."""
    return tuple(kind for kind in service.handlers if ROUTES[kind].kind is Kind.EVENT)
