"""The bus on NATS: events through JetStream, commands and telemetry through core NATS.

Built by ``connect`` in the entry of each service. Command endpoints are plain queue subscriptions:
those of ``nats.micro`` take one request at a time and drop the waiting ones when they stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg

from libs.bus.command_replies import (
    RequestQueue,
    answer,
    answering,
    check_served,
    headers_of,
    read_reply,
    refuse,
    until_of,
)
from libs.bus.connection import (
    REFUSED,
    BusConfig,
    PendingRequest,
    PendingRequests,
    open_client,
    raise_refused,
)
from libs.bus.deliveries import JetStreamConsumer
from libs.bus.history_copy import HistoryCopy
from libs.bus.port import (
    Backlog,
    BusDeniedError,
    BusUnavailableError,
    CommandHandler,
    Consumer,
)
from libs.bus.topology import (
    WATCHED_CONSUMERS,
    WATCHED_STREAM,
    consumer_of,
    served_subject,
)
from libs.contracts.base import Message
from libs.contracts.envelope import BATCH_BYTES_MAX, PAYLOAD_BYTES_MAX, Envelope, UndecodableError
from libs.contracts.messages import Refusal, RefusalCode
from libs.contracts.subjects import subject_of

_log = structlog.stdlib.get_logger(__name__)


class JetStreamBus:
    """``libs.bus.port.Bus`` under one service's own user; see ``connect``."""

    def __init__(self, config: BusConfig) -> None:
        self.config = config
        self.service = config.service
        self._denied_subscriptions: set[str] = set()

    async def open(self) -> None:
        """Connect; called once, by ``connect``."""
        self._client = await open_client(self.config, on_error=self._failed, on_lost=self._lost)
        if self._client.max_payload < PAYLOAD_BYTES_MAX:
            _log.warning(
                "the bus server takes smaller messages than the platform may have: set max_payload",
                max_payload=self._client.max_payload,
                wanted=PAYLOAD_BYTES_MAX,
            )
        self._requests = PendingRequests(self._client)
        await self._requests.start()
        self._consumer: JetStreamConsumer | None = None
        if self.config.consumes:
            spec = consumer_of(self.service, self.config.consumes)
            self._consumer = JetStreamConsumer(self, self._client, spec)
        # None: this service does not copy events for monitoring users.
        self.copying = HistoryCopy(self, self._client) if self.config.copies else None

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Pipelined, a window at a time, in order; each is stored once under its envelope's id."""
        for window in _windows(envelopes, self.config.publish_window):
            await self.store([
                (each.subject, each.body(), each.headers() | {"Nats-Msg-Id": each.id})
                for each in window
            ])  # fmt: skip

    async def store(self, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
        """Put subject, body and headers into a stream, in order; returns when they are there."""
        requests: list[PendingRequest] = []
        try:
            for message in messages:
                requests.append(await self._requests.send(*message))  # noqa: PERF401 - kept if one fails
        finally:
            answers = await self._requests.replies(requests, self.config.reply_timeout_s)
        for request, message in zip(requests, answers, strict=True):
            if b'"error"' in message.data:
                raise_refused(request.subject, message.data)

    async def request_raw(self, subject: str, body: bytes, headers: dict[str, str] | None) -> Msg:
        """One request and its answer, within the time for the server's own answers."""
        request = await self._requests.send(subject, body, headers)
        return (await self._requests.replies([request], self.config.reply_timeout_s))[0]

    async def send_telemetry(self, envelope: Envelope) -> None:
        """Send and forget, while there is a server."""
        if not self._client.is_connected:
            return
        body = envelope.body()
        with contextlib.suppress(OSError, nats.errors.Error):
            await self._client.publish(envelope.subject, body, headers=envelope.headers())

    async def request(self, command: Message, *, timeout_s: float) -> Message:
        """Send the request to one of the command's owners; fails at once if there is none."""
        request_id = self._client.new_inbox().rpartition(".")[2]
        headers = headers_of(command, self.service, request_id, timeout_s)
        request = await self._requests.send(subject_of(command), command.to_json(), headers)
        (reply,) = await self._requests.replies([request], timeout_s)
        return read_reply(type(command), reply.headers or {}, reply.data)

    @contextlib.asynccontextmanager
    async def serve(self, handlers: Mapping[type[Message], CommandHandler]) -> AsyncGenerator[None]:
        """Answer up to ``commands_max`` at once, one queue group per service."""
        check_served(self.service, handlers)
        queue = RequestQueue(self.config.commands_max, self.config.commands_waiting_max)
        async with answering() as group, contextlib.AsyncExitStack() as subscriptions:

            async def on_request(
                kind: type[Message], handler: CommandHandler, message: Msg
            ) -> None:
                until = until_of(message.headers or {})

                async def answer_one(busy: Message | None) -> None:
                    await self._reply(
                        kind,
                        message,
                        busy
                        or await answer(kind, handler, message.headers or {}, message.data, until),
                    )

                queue.take(group, answer_one, kind)

            for kind, handler in handlers.items():
                subject, take = (
                    served_subject(kind, self.service),
                    partial(on_request, kind, handler),
                )
                await subscriptions.enter_async_context(self._subscribed(subject, take, queue=True))
            yield

    async def _reply(self, kind: type[Message], message: Msg, reply: Message) -> None:
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

    async def backlog(self) -> Backlog:
        """See ``port.Bus``; only a service whose wiring sets ``watches`` may call this."""
        found = await self._watched(WATCHED_STREAM)
        state = found["state"]
        consumers: list[dict[str, Any]] = []
        # Refused by a server with the configuration of an earlier version.
        with contextlib.suppress(BusDeniedError):
            consumers = (await self._watched(WATCHED_CONSUMERS))["consumers"]
        return Backlog(
            state["bytes"],
            found["config"]["max_bytes"],
            state["messages"],
            {each["name"]: each["num_pending"] + each["num_ack_pending"] for each in consumers},
        )

    async def _watched(self, subject: str) -> dict[str, Any]:
        found = json.loads((await self.request_raw(subject, b"", None)).data)
        if "error" in found:
            raise BusUnavailableError(f"the stream of events: {found['error'].get('description')}")
        return found

    def consumer(self) -> Consumer:
        """The durable named after the service; ValueError if it was connected without event
        types."""
        if self._consumer is None:
            raise ValueError(f"{self.service} was connected without any event types to consume")
        return self._consumer

    async def copy_events(self, wait_s: float) -> int | None:
        """See ``port.Bus``; only a service whose wiring sets ``copies`` may call this."""
        if self.copying is None:
            raise BusDeniedError(f"{self.service} may not copy events for monitoring users")
        return await self.copying.step(wait_s)

    @property
    def _consumers(self) -> list[JetStreamConsumer]:
        copying = self.copying.consumer if self.copying else None
        return [each for each in (self._consumer, copying) if each is not None]

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
                    try:
                        envelope = Envelope.decode(
                            message.subject, message.headers or {}, message.data
                        )
                    except UndecodableError as error:
                        _log.error("telemetry refused", subject=message.subject, problem=str(error))
                        continue
                    yield envelope
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
            raise BusUnavailableError(f"{subject} cannot be followed now: {error}") from error
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
                    for consumer in self._consumers:
                        await consumer.release()
                    await self._client.flush()
        self._lost()
        await self._client.close()

    def _lost(self) -> None:
        self._requests.fail("the connection to the bus server was lost")
        for consumer in self._consumers:
            consumer.lost()

    def _failed(self, error: Exception) -> None:
        """The server reports refused publications only here, not to the call that published."""
        refused = REFUSED.search(str(error))
        if refused is None:
            return
        what, subject = refused.group(1).lower(), refused.group(2).lower()
        if what == "publish":
            self._requests.deny(subject)
            for consumer in self._consumers:
                consumer.deny(subject)
        else:
            self._denied_subscriptions.add(subject)


def _windows(envelopes: Sequence[Envelope], count_max: int) -> Iterator[Sequence[Envelope]]:
    """Consecutive pieces of at most so many events and ``BATCH_BYTES_MAX`` (or a single event):
    until they are stored, the server's memory holds them."""
    first, size = 0, 0
    for index, each in enumerate(envelopes):
        if index > first and (
            index - first == count_max or size + len(each.body()) > BATCH_BYTES_MAX
        ):
            yield envelopes[first:index]
            first, size = index, 0
        size += len(each.body())
    if envelopes:
        yield envelopes[first:]


async def connect(config: BusConfig) -> JetStreamBus:
    """The bus for one service. BusUnavailableError if there is no server within
    ``connect_timeout_s``, BusDeniedError if it does not accept the user."""
    bus = JetStreamBus(config)
    await bus.open()
    return bus
