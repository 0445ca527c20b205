"""The bus inside one process: a service's connection to a ``MemoryBroker``.

The deterministic simulation builds every service with it, and tests that need no server. It obeys
the same contract as ``jetstream.py``, including permissions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from asyncio import TaskGroup
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

from libs.bus.command_replies import (
    COMMANDS_MAX,
    COMMANDS_WAITING_MAX,
    RequestQueue,
    answer,
    answering,
    check_served,
    headers_of,
    read_reply,
    until_of,
)
from libs.bus.memory_broker import (
    RESOLUTION_S,
    Answers,
    DeadLetter,
    Durable,
    Endpoint,
    MemoryBroker,
    Pending,
)
from libs.bus.port import (
    Backlog,
    BusDeniedError,
    BusTooLargeError,
    BusUnavailableError,
    CommandHandler,
    Consumer,
    Delivery,
    RawMessage,
)
from libs.bus.topology import consumer_of, served_subject
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope, UndecodableError
from libs.contracts.registry import ROUTES
from libs.contracts.subjects import dead_letter_subject, matches, subject_of

LISTEN_MAX = 1_000


class _MemoryDelivery:
    """One event handed over, decoded on arrival."""

    def __init__(self, bus: MemoryBus, durable: Durable, pending: Pending) -> None:
        self._bus, self._durable, self._message = bus, durable, pending.message
        self.deliveries = pending.deliveries
        self.envelope: Envelope | None = None
        self.problem = ""
        try:
            self.envelope = Envelope.decode(
                self._message.subject, self._message.headers, self._message.body
            )
        except UndecodableError as error:
            self.problem = str(error)

    @property
    def raw(self) -> RawMessage:
        message = self._message
        return RawMessage(message.subject, message.headers, message.body)

    async def ack(self) -> None:
        broker = self._bus.broker
        await self._bus.travel()
        if broker.chance(broker.faults.lose_ack):
            if broker.chance(0.5):
                broker.settle(self._durable, self._message)
            raise BusUnavailableError("the acknowledgement was lost")
        broker.settle(self._durable, self._message)
        await self._bus.travel()

    async def nak(self, delay_s: float) -> None:
        broker = self._bus.broker
        await self._bus.travel()
        if broker.chance(broker.faults.lose_ack):
            raise BusUnavailableError("the refusal was lost")
        broker.postpone(self._durable, self._message, delay_s)

    async def dead_letter(self, reason: str) -> None:
        message = self._message
        await self._bus.travel()
        subject = dead_letter_subject(self._bus.service, message.subject)
        self._bus.broker.dead_letters.append(DeadLetter(subject, reason, message.body))
        self._bus.broker.settle(self._durable, message)


class _MemoryConsumer:
    """Fetches from the service's durable."""

    def __init__(self, bus: MemoryBus, durable: Durable) -> None:
        self._bus, self._durable = bus, durable

    async def fetch(self, messages_max: int, wait_s: float) -> Sequence[Delivery]:
        broker = self._bus.broker
        deadline = broker.now() + wait_s
        await self._bus.travel()
        while True:
            taken = broker.take(self._durable, messages_max)
            if taken or broker.now() >= deadline - RESOLUTION_S:
                return [_MemoryDelivery(self._bus, self._durable, each) for each in taken]
            due_at = self._durable.next_due_at()
            await broker.wait(
                self._bus.service, deadline if due_at is None else min(deadline, due_at)
            )
            self._bus.check_open()

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge individually: some may be settled when one is lost."""
        for each in deliveries:
            await each.ack()

    async def release(self) -> None:
        """Nothing is kept here between fetches."""


class MemoryBus:
    """``libs.bus.port.Bus`` of one process of one service."""

    def __init__(
        self, broker: MemoryBroker, service: str, consumes: Sequence[type[Message]] = ()
    ) -> None:
        self.broker = broker
        self.service = service
        # The durable receives from the first message of the stream on.
        self._durable = broker.durable(consumer_of(service, consumes)) if consumes else None
        self._closed = False
        self._server_id = ""
        self._ids = itertools.count(1)

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Store events, the ones this service owns; see ``Faults.fail_publish``."""
        for envelope in envelopes:
            denied = any(matches(each, envelope.subject) for each in self.broker.denied)
            if denied or ROUTES[type(envelope.message)].owner != self.service:
                raise BusDeniedError(f"this service may not publish {envelope.subject}")
            size, limit = len(envelope.body()), self.broker.payload_bytes_max
            if size > limit:
                problem = f"{size} bytes are over the bus's limit of {limit}"
                raise BusTooLargeError(f"{envelope.subject}: {problem}")
        await self.travel()
        fails = self.broker.chance(self.broker.faults.fail_publish)
        for envelope in envelopes:
            if not (fails and self.broker.chance(0.5)):
                self.broker.store(envelope)
        if fails:
            raise BusUnavailableError("no answer from the bus server; perhaps it is stored")
        await self.travel()

    async def send_telemetry(self, envelope: Envelope) -> None:
        """Deliver telemetry to the current subscribers."""
        broker = self.broker
        if not self.connected or broker.chance(broker.faults.lose_telemetry):
            return
        subject, headers, body = envelope.subject, envelope.headers(), envelope.body()
        for pattern, inbox in tuple(broker.listeners):
            if matches(pattern, subject):
                inbox(subject, headers, body)

    async def request(self, command: Message, *, timeout_s: float) -> Message:
        """Send the command to one of the reachable endpoints."""
        subject, broker = subject_of(command), self.broker
        await self.travel()
        free = [take for name, take in broker.endpoints.get(subject, ()) if broker.reaches(name)]
        if not free:
            raise BusUnavailableError(f"nobody takes {subject} now")
        answers: Answers = asyncio.get_running_loop().create_future()
        if not broker.chance(broker.faults.lose_request):
            request_id = f"{self.service}.{next(self._ids)}"
            headers = headers_of(command, self.service, request_id, timeout_s)
            broker.random.choice(free)(headers, command.to_json(), answers)
        try:
            async with asyncio.timeout(timeout_s):
                reply_headers, body = await answers
        except TimeoutError:
            raise BusUnavailableError(f"no answer to {subject} within {timeout_s:g} s") from None
        return read_reply(type(command), reply_headers, body)

    @contextlib.asynccontextmanager
    async def serve(self, handlers: Mapping[type[Message], CommandHandler]) -> AsyncGenerator[None]:
        """Answer commands while the context is open."""
        check_served(self.service, handlers)
        await self.travel()
        queue = RequestQueue(COMMANDS_MAX, COMMANDS_WAITING_MAX)
        async with answering() as group:
            served = [
                (
                    served_subject(kind, self.service),
                    (self.service, self._endpoint(group, queue, kind, handler)),
                )
                for kind, handler in handlers.items()
            ]
            for subject, endpoint in served:
                self.broker.endpoints.setdefault(subject, []).append(endpoint)
            try:
                yield
            finally:
                for subject, endpoint in served:
                    self.broker.endpoints[subject].remove(endpoint)

    def _endpoint(
        self, group: TaskGroup, queue: RequestQueue, kind: type[Message], do: CommandHandler
    ) -> Endpoint:
        def take(headers: Mapping[str, str], body: bytes, answers: Answers) -> None:
            until = until_of(headers)

            async def answer_one(busy: Message | None) -> None:
                with contextlib.suppress(BusUnavailableError):
                    await self.travel()
                    reply = busy or await answer(kind, do, headers, body, until)
                    await self.travel()
                    lost = self.broker.chance(self.broker.faults.lose_reply)
                    if not lost and not answers.done():
                        about = headers_of(reply, self.service, f"{self.service}.{next(self._ids)}")
                        answers.set_result((about, reply.to_json()))

            queue.take(group, answer_one, kind)

        return take

    async def backlog(self) -> Backlog:
        """What some durable has not acknowledged."""
        await self.travel()
        return self.broker.backlog()

    def consumer(self) -> Consumer:
        """The service's durable; ValueError if it was connected without event types."""
        if self._durable is None:
            raise ValueError(f"{self.service} was connected without any event types to consume")
        return _MemoryConsumer(self, self._durable)

    async def copy_events(self, wait_s: float) -> int | None:
        """This bus has no monitoring users."""
        del wait_s
        self.check_open()
        return None

    @contextlib.asynccontextmanager
    async def listen(self, subject_filter: str) -> AsyncGenerator[AsyncIterator[Envelope]]:
        """Telemetry from a bounded queue."""
        waiting: deque[Envelope] = deque(maxlen=LISTEN_MAX)
        changed = asyncio.Event()

        def inbox(subject: str, headers: Mapping[str, str], body: bytes) -> None:
            with contextlib.suppress(UndecodableError):
                waiting.append(Envelope.decode(subject, headers, body))
                changed.set()

        async def envelopes() -> AsyncIterator[Envelope]:
            while True:
                changed.clear()
                while waiting:
                    yield waiting.popleft()
                await changed.wait()

        await self.travel()
        listener = (subject_filter, inbox)
        self.broker.listeners.append(listener)
        try:
            yield envelopes()
        finally:
            self.broker.listeners.remove(listener)

    @property
    def server_id(self) -> str:
        """Changes with each start of the broker that this connection has seen."""
        if self.connected:
            self._server_id = f"memory-{self.broker.starts}"
        return self._server_id

    @property
    def connected(self) -> bool:
        """True while the broker can be reached."""
        return not self._closed and self.broker.reaches(self.service)

    async def close(self) -> None:
        """Disconnect; a fetch under way fails."""
        self._closed = True
        self.broker.changed()

    async def travel(self) -> None:
        """Simulate one network hop. Raises ``BusUnavailableError`` if the broker is unreachable."""
        self.check_open()
        await self.broker.travel(self.service)

    def check_open(self) -> None:
        """BusUnavailableError after ``close``."""
        if self._closed:
            raise BusUnavailableError("this connection is closed")
