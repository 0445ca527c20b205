"""Events in: a batch of deliveries becomes one transaction of recorded facts.

Called by ``run.py`` on the leader. Inbox entry, handlers' rows and outgoing events commit
together; only then the deliveries are acknowledged. Dying before the commit leaves nothing, dying
after it means redelivery, which the inbox answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from libs.bus.port import BusError, Consumer, Delivery
from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.service import observe
from libs.service.loop import Backoff, Wake, pause
from libs.service.shape import Service
from libs.store.port import ConflictError, StoreUnavailableError, TermOverError, Tx

TRANSIENT = (StoreUnavailableError, BusError)
CONFLICT_TRIES = 3


@dataclass
class Consumption:
    """One leader's consuming of its service's events."""

    service: Service
    epoch: int
    turn: asyncio.Lock
    wakes: Sequence[Wake]
    batch_messages_max: int
    fetch_wait_s: float
    batch_gap_s: float = 0.0
    waiting: bool = False

    def __post_init__(self) -> None:
        self.log = observe.log(self.service.name)

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
                deliveries = await consumer.fetch(self.batch_messages_max, self.fetch_wait_s)
                await self.settle(consumer, deliveries)
                self.waiting = False
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
            if bad.envelope is None:
                await self._set_apart(bad, bad.problem)
        if not good:
            return
        try:
            await self._record(good)
        except (TermOverError, *TRANSIENT):
            # Not acknowledged: it comes again, and if it is committed the inbox knows it.
            raise
        except Exception as problem:  # noqa: BLE001 - one bad message must not stop the others
            await self._one_by_one(good, problem)
            return
        await consumer.ack(good)

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
        name = self.service.name
        async with self.turn, self.service.ports.store.transaction(epoch=self.epoch) as tx:
            envelopes = [d.envelope for d in deliveries if d.envelope is not None]
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

    async def _one_by_one(self, deliveries: Sequence[Delivery], first: Exception) -> None:
        """Find the message that broke the batch; conflicts get a few more tries."""
        for delivery in deliveries:
            problem = first
            for _ in range(CONFLICT_TRIES):
                try:
                    await self._record([delivery])
                    await delivery.ack()
                    break
                except (TermOverError, *TRANSIENT):
                    raise
                except ConflictError as conflict:
                    problem = conflict
                except Exception as error:
                    self.log.exception("event cannot be handled")
                    await self._set_apart(delivery, f"{type(error).__name__}: {error}")
                    break
            else:
                await self._set_apart(delivery, f"conflict: {problem}")

    async def _set_apart(self, delivery: Delivery, reason: str) -> None:
        observe.DEAD_LETTERS.labels(self.service.name).inc()
        envelope = delivery.envelope
        self.log.error("dead letter", reason=reason, id=envelope.id if envelope else None)
        await delivery.dead_letter(reason)


def hears(service: Service) -> tuple[type, ...]:
    """The event types a service's durable must deliver."""
    return tuple(kind for kind in service.handlers if ROUTES[kind].kind is Kind.EVENT)
