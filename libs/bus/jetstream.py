"""The bus on NATS: events through JetStream, commands and telemetry through core NATS.

Built by ``connect`` in the entry of each service. Command endpoints are plain queue subscriptions:
those of ``nats.micro`` take one request at a time and drop the waiting ones when they stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from libs.bus.commands import answer, answering, check_served, headers_of, read_reply, refuse
from libs.bus.connection import (
    NO_RESPONDERS,
    REFUSED,
    BusConfig,
    Question,
    Questions,
    ServerClient,
    nanoseconds,
    open_client,
    raise_refused,
    say,
    status,
)
from libs.bus.port import BusDeniedError, BusUnavailableError, CommandHandler, Consumer, Delivery
from libs.bus.topology import ConsumerSpec, consumer_of, served_subject
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope, UndecodableError
from libs.contracts.messages import Refusal, RefusalCode
from libs.contracts.subjects import dead_letter_subject, subject_of

ACK = b"+ACK"
CONFLICT = "409"
DENIED = "403"
NO_MESSAGES = "404"
PULL_EXPIRED = "408"
REASON_CHARACTERS_MAX = 2_000
# Headers of our own that a dead letter keeps; the others are the server's.
KEPT_HEADERS = re.compile(r"ce-.*|traceparent|content-type")

_log = structlog.stdlib.get_logger(__name__)


class _JetStreamDelivery:
    """One event from the server, with the subject that settles it."""

    def __init__(self, bus: JetStreamBus, message: Msg) -> None:
        self._bus, self._message = bus, message
        self.envelope: Envelope | None = None
        self.problem = ""
        try:
            self.envelope = Envelope.decode(message.headers or {}, message.data)
        except UndecodableError as error:
            self.problem = str(error)

    @property
    def deliveries(self) -> int:
        return self._message.metadata.num_delivered

    async def ack(self) -> None:
        await self._settle(ACK)

    @property
    def settles(self) -> str:
        """The subject that settles it."""
        return self._message.reply

    async def nak(self, delay_s: float) -> None:
        await self._settle(b"-NAK " + json.dumps({"delay": nanoseconds(delay_s)}).encode())

    async def dead_letter(self, reason: str) -> None:
        message, sequence = self._message, self._message.metadata.sequence.stream
        headers = {k: v for k, v in (message.headers or {}).items() if KEPT_HEADERS.fullmatch(k)}
        headers["shiftwork-reason"] = reason[:REASON_CHARACTERS_MAX]
        # Dying between the copy and the settling copies again, under the same id.
        headers["Nats-Msg-Id"] = f"{self._bus.service}.{sequence}"
        subject = dead_letter_subject(self._bus.service, message.subject)
        await self._bus.store([(subject, message.data, headers)])
        await self._settle(b"+TERM")

    async def _settle(self, word: bytes) -> None:
        await self._bus.ask(self._message.reply, word, None)


class _JetStreamConsumer:
    """Pulls from the service's durable. One fetch at a time.

    A pull that waits stays open across fetches: while events come one by one, each is pushed to us
    at once and none costs a request.
    """

    def __init__(self, bus: JetStreamBus, client: ServerClient, spec: ConsumerSpec) -> None:
        self._bus, self._client, self._spec = bus, client, spec
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
        self._inbox = client.new_inbox()
        self._subscription: Subscription | None = None
        self._arrived: deque[Msg] = deque()
        self._pulls = itertools.count(1)
        self._pull = ""
        # What the present pull may still bring; 0: there is none.
        self._left = 0
        # When the server has to have ended the present pull, in the event loop's seconds.
        self._ends_at = 0.0
        # How the server ended the last pull: a status and its description.
        self._end: tuple[str, str] | None = None
        # The server said that nothing is there, and nothing came since but through a pull.
        self._drained = False
        self._changed = asyncio.Event()

    async def fetch(self, messages_max: int, wait_s: float) -> Sequence[Delivery]:
        if not self._client.is_connected:
            raise BusUnavailableError("the bus server is not connected")
        if self._subscription is None:
            self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._receive)
        until = asyncio.get_running_loop().time() + wait_s
        if not (self._arrived or self._left or self._drained):
            # What is there; only if that is nothing, a pull is left open for what will come.
            await self._ask({"no_wait": True}, messages_max, 0.0)
            while self._left:
                await self._hear(self._ends_at)
        while not self._arrived and (left_s := until - asyncio.get_running_loop().time()) > 0:
            if not self._left:
                await self._ask({"expires": nanoseconds(left_s)}, messages_max, left_s)
            await self._hear(until)
        count = min(messages_max, len(self._arrived))
        return [_JetStreamDelivery(self._bus, self._arrived.popleft()) for _ in range(count)]

    async def _ask(self, request: dict[str, object], messages_max: int, open_s: float) -> None:
        """Begin a pull."""
        self._pull, self._end = f"{self._inbox}.{next(self._pulls)}", None
        self._left, self._drained = messages_max, False
        patience_s = self._bus.config.reply_timeout_s
        self._ends_at = asyncio.get_running_loop().time() + open_s + patience_s
        body = json.dumps({"batch": messages_max, **request}).encode()
        try:
            await self._client.publish(self._next, body, self._pull)
        except (nats.errors.Error, OSError) as error:
            self._over(NO_RESPONDERS, str(error))

    async def _hear(self, until: float) -> None:
        """Until something comes, the pull ends, or this moment. Raises how the pull ended badly."""
        self._changed.clear()
        if self._left:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
        if self._left and asyncio.get_running_loop().time() >= self._ends_at:
            self._over(NO_RESPONDERS, "the server does not answer")
        if self._arrived or self._left or self._end is None:
            return
        code, description = self._end
        if code == DENIED:
            raise BusDeniedError(f"this service may not say {self._next}")
        if code in (NO_RESPONDERS, CONFLICT):
            durable = f"durable {self._spec.durable} of stream {self._spec.stream}"
            raise BusUnavailableError(f"{durable}: {description}")

    async def _receive(self, message: Msg) -> None:
        found = status(message)
        if found is None:
            self._arrived.append(message)
            self._left = max(0, self._left - 1)
            self._changed.set()
        elif message.subject == self._pull:
            said = (message.headers or {}).get("Description", "")
            self._over(found, "it does not exist (yet)" if found == NO_RESPONDERS else said)

    def _over(self, code: str, description: str) -> None:
        """The present pull brings nothing more."""
        self._left, self._end = 0, (code, description)
        self._drained = code in (NO_MESSAGES, PULL_EXPIRED)
        self._changed.set()

    def lost(self) -> None:
        """The connection is gone; a pull under way will not be answered."""
        self._over(NO_RESPONDERS, "the connection was lost")

    def deny(self, subject: str) -> None:
        """The server (which names it in lower case) does not let us say this subject."""
        if subject == self._next.lower():
            self._over(DENIED, "")

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """The server takes what one connection says in its order: when the last one is noted, so
        are those before it, and none of them needs an answer of its own."""
        if deliveries:
            *others, last = deliveries
            own = [each for each in others if isinstance(each, _JetStreamDelivery)]
            await say(self._client, [each.settles for each in own], ACK)
            await last.ack()

    async def release(self) -> None:
        """End the open pull; messages that arrived and were never fetched come again at once."""
        subscription, self._subscription = self._subscription, None
        self._over("", "")
        with contextlib.suppress(nats.errors.Error, OSError):
            if subscription is not None:
                # The server drops a pull that nobody listens to.
                await subscription.unsubscribe()
            while self._arrived:
                await self._client.publish(self._arrived.popleft().reply, b"-NAK")


class JetStreamBus:
    """``libs.bus.port.Bus`` under one service's own user; see ``connect``."""

    def __init__(self, config: BusConfig) -> None:
        self.config = config
        self.service = config.service
        self._denied_subscriptions: set[str] = set()

    async def open(self) -> None:
        """Connect; called once, by ``connect``."""
        self._client = await open_client(self.config, on_error=self._failed, on_lost=self._lost)
        self._questions = Questions(self._client)
        await self._questions.start()
        self._consumer: _JetStreamConsumer | None = None
        if self.config.hears:
            spec = consumer_of(self.service, self.config.hears)
            self._consumer = _JetStreamConsumer(self, self._client, spec)

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Pipelined, a window at a time, in order; each is stored once under its envelope's id."""
        window = self.config.publish_window
        for first in range(0, len(envelopes), window):
            await self.store([
                (each.subject, each.body(), each.headers() | {"Nats-Msg-Id": each.id})
                for each in envelopes[first : first + window]
            ])  # fmt: skip

    async def store(self, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
        """Put subject, body and headers into a stream, in order; returns when they are there."""
        questions: list[Question] = []
        try:
            for message in messages:
                questions.append(await self._questions.ask(*message))  # noqa: PERF401 - kept if one fails
        finally:
            answers = await self._questions.answers(questions, self.config.reply_timeout_s)
        for question, message in zip(questions, answers, strict=True):
            if b'"error"' in message.data:
                raise_refused(question.subject, message.data)

    async def ask(self, subject: str, body: bytes, headers: dict[str, str] | None) -> Msg:
        """One question and its answer, within the time for the server's own answers."""
        question = await self._questions.ask(subject, body, headers)
        return (await self._questions.answers([question], self.config.reply_timeout_s))[0]

    async def tell(self, envelope: Envelope) -> None:
        """Send and forget, while there is a server."""
        if not self._client.is_connected:
            return
        body = envelope.body()
        with contextlib.suppress(OSError, nats.errors.Error):
            await self._client.publish(envelope.subject, body, headers=envelope.headers())

    async def request(self, command: Message, *, timeout_s: float) -> Message:
        """Ask whoever of the command's owners is free; nobody there is known at once."""
        headers = headers_of(command, self.service, self._client.new_inbox().rpartition(".")[2])
        question = await self._questions.ask(subject_of(command), command.to_json(), headers)
        (reply,) = await self._questions.answers([question], timeout_s)
        return read_reply(type(command), reply.headers or {}, reply.data)

    @contextlib.asynccontextmanager
    async def serve(self, handlers: Mapping[type[Message], CommandHandler]) -> AsyncGenerator[None]:
        """Answer up to ``commands_max`` at once, one queue group per service."""
        check_served(self.service, handlers)
        room = asyncio.Semaphore(self.config.commands_max)
        async with answering() as group, contextlib.AsyncExitStack() as subscriptions:

            async def asked(kind: type[Message], handler: CommandHandler, message: Msg) -> None:
                await room.acquire()
                reply = group.create_task(self._answer(kind, handler, message))
                reply.add_done_callback(lambda _: room.release())

            for kind, handler in handlers.items():
                subject, take = served_subject(kind, self.service), partial(asked, kind, handler)
                await subscriptions.enter_async_context(self._subscribed(subject, take, queue=True))
            yield

    async def _answer(self, kind: type[Message], handler: CommandHandler, message: Msg) -> None:
        reply = await answer(kind, handler, message.headers or {}, message.data)
        body = reply.to_json()
        if len(body) > self._client.max_payload:
            detail = f"the answer is {len(body)} bytes, over the bus's limit; ask for less"
            reply = refuse(kind, Refusal(code=RefusalCode.INVALID, detail=detail))
            body = reply.to_json()
        headers = headers_of(reply, self.service, self._client.new_inbox().rpartition(".")[2])
        try:
            await self._client.publish(message.reply, body, headers=headers)
        except (nats.errors.Error, OSError) as error:
            _log.warning("reply not sent", command=kind.__name__, problem=str(error))

    def consumer(self) -> Consumer:
        """The durable named after the service; ValueError if it was connected to hear nothing."""
        if self._consumer is None:
            raise ValueError(f"{self.service} was connected without anything that it hears")
        return self._consumer

    @contextlib.asynccontextmanager
    async def listen(self, subject_filter: str) -> AsyncGenerator[AsyncIterator[Envelope]]:
        """Telemetry from a bounded queue of ``listen_max``; what cannot be read is left out."""
        waiting: deque[Msg] = deque(maxlen=self.config.listen_max)
        changed = asyncio.Event()

        async def take(message: Msg) -> None:
            waiting.append(message)
            changed.set()

        async def envelopes() -> AsyncIterator[Envelope]:
            while True:
                changed.clear()
                while waiting:
                    message = waiting.popleft()
                    with contextlib.suppress(UndecodableError):
                        yield Envelope.decode(message.headers or {}, message.data)
                await changed.wait()

        async with self._subscribed(subject_filter, take, queue=False):
            yield envelopes()

    @contextlib.asynccontextmanager
    async def _subscribed(
        self, subject: str, take: Callable[[Msg], Awaitable[None]], *, queue: bool
    ) -> AsyncGenerator[None]:
        """Hear a subject while the context is open; what arrived before the end is still taken."""
        if not self._client.is_connected:
            raise BusUnavailableError("the bus server is not connected")
        group = self.service if queue else ""
        subscription = await self._client.subscribe(subject, queue=group, cb=take)
        try:
            await self._client.flush()
            if subject.lower() in self._denied_subscriptions:
                raise BusDeniedError(f"this service may not hear {subject}")
            yield
        except nats.errors.Error as error:
            raise BusUnavailableError(f"{subject} cannot be heard now: {error}") from error
        finally:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                async with asyncio.timeout(self.config.close_timeout_s):
                    connected = self._client.is_connected
                    await (subscription.drain() if connected else subscription.unsubscribe())

    @property
    def server_id(self) -> str:
        """The id that the server gave itself when it started."""
        return self._client.server_id

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        return self._client.is_connected

    async def close(self) -> None:
        """Give back what was not fetched, flush, disconnect."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(self.config.close_timeout_s):
                if self._client.is_connected:
                    if self._consumer is not None:
                        await self._consumer.release()
                    await self._client.flush()
        self._lost()
        await self._client.close()

    def _lost(self) -> None:
        self._questions.fail("the connection to the bus server was lost")
        if self._consumer is not None:
            self._consumer.lost()

    def _failed(self, error: Exception) -> None:
        """The server says that it refused something only here, not where it was said."""
        refused = REFUSED.search(str(error))
        if refused is None:
            return
        what, subject = refused.group(1).lower(), refused.group(2).lower()
        if what == "publish":
            self._questions.deny(subject)
            if self._consumer is not None:
                self._consumer.deny(subject)
        else:
            self._denied_subscriptions.add(subject)


async def connect(config: BusConfig) -> JetStreamBus:
    """The bus for one service. BusUnavailableError if there is no server within
    ``connect_timeout_s``, BusDeniedError if it does not accept the user."""
    bus = JetStreamBus(config)
    await bus.open()
    return bus
