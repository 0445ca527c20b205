"""Receives events from JetStream: pulls a service's durable and settles the messages.

``jetstream.JetStreamBus`` makes the consumer on its connection if the service handles any events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from libs.bus.connection import (
    NO_RESPONDERS,
    BusConfig,
    ServerClient,
    nanoseconds,
    send_all,
    status,
)
from libs.bus.port import (
    REASON_CHARACTERS_MAX,
    BusDeniedError,
    BusUnavailableError,
    Delivery,
    NoDurableError,
    RawMessage,
)
from libs.bus.topology import ConsumerSpec
from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope, UndecodableError
from libs.contracts.subjects import dead_letter_subject

ACK = b"+ACK"
CONFLICT = "409"
DENIED = "403"
NO_MESSAGES = "404"
PULL_EXPIRED = "408"
MISSING = "it does not exist (yet)"
# The server's status when a pull has brought as many bytes as it may.
BYTES_REACHED = "MaxBytes"
# The server keeps an entry of about 700 bytes for each pull from another account until the subject
# of its answers has no subscriber. So the inbox is replaced after this many pulls.
PULLS_PER_INBOX = 1_000
# Headers of our own that a dead letter keeps; the others are the server's.
KEPT_HEADERS = re.compile(r"ce-.*|traceparent|content-type")


class ServerConnection(Protocol):
    """What settling needs of the connection."""

    service: str
    config: BusConfig

    async def store(self, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
        """Put subject, body and headers into a stream; returns when they are there."""
        ...

    async def request_raw(self, subject: str, body: bytes, headers: dict[str, str] | None) -> Msg:
        """Send a request and return its reply."""
        ...


class JetStreamDelivery:
    """One event from the server, with the subject that settles it."""

    def __init__(self, bus: ServerConnection, message: Msg) -> None:
        self._bus, self._message = bus, message
        self.envelope: Envelope | None = None
        self.problem = ""
        try:
            self.envelope = Envelope.decode(message.subject, message.headers or {}, message.data)
        except UndecodableError as error:
            self.problem = str(error)

    @property
    def raw(self) -> RawMessage:
        """See ``port.Delivery``."""
        message = self._message
        headers = {k: v for k, v in (message.headers or {}).items() if KEPT_HEADERS.fullmatch(k)}
        return RawMessage(message.subject, headers, message.data)

    @property
    def deliveries(self) -> int:
        """See ``port.Delivery``."""
        return self._message.metadata.num_delivered

    async def ack(self) -> None:
        """See ``port.Delivery``."""
        await self._settle(ACK)

    @property
    def settles(self) -> str:
        """The subject that settles it."""
        return self._message.reply

    async def nak(self, delay_s: float) -> None:
        """See ``port.Delivery``."""
        await self._settle(b"-NAK " + json.dumps({"delay": nanoseconds(delay_s)}).encode())

    async def dead_letter(self, reason: str) -> None:
        """See ``port.Delivery``."""
        raw, sequence = self.raw, self._message.metadata.sequence.stream
        headers = {**raw.headers, "shiftwork-reason": reason[:REASON_CHARACTERS_MAX]}
        # After a crash before the TERM the copy is stored again; this id makes it a duplicate.
        headers["Nats-Msg-Id"] = f"{self._bus.service}.{sequence}"
        subject = dead_letter_subject(self._bus.service, raw.subject)
        await self._bus.store([(subject, raw.body, headers)])
        await self._settle(b"+TERM")

    async def _settle(self, verb: bytes) -> None:
        await self._bus.request_raw(self._message.reply, verb, None)


def _pattern(subject_filter: str) -> str:
    """A filter of subjects as a regular expression."""
    return re.escape(subject_filter).replace(r"\*", "[^.]+").replace(">", ".+")


class JetStreamConsumer:
    """Pulls from the service's durable. One fetch at a time.

    A pull that waits stays open across fetches: while events come one at a time, each is pushed to
    us at once and none costs a request.
    """

    def __init__(self, bus: ServerConnection, client: ServerClient, spec: ConsumerSpec) -> None:
        self._bus, self._client, self._spec = bus, client, spec
        self._handled = re.compile("|".join(_pattern(each) for each in spec.handled))
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._arrived: deque[Msg] = deque()
        # How many pulls have used this inbox.
        self._pulls = 0
        self._pull = ""
        # What the present pull may still bring; 0: there is none.
        self._left = 0
        # When the server has to have ended the present pull, in the event loop's seconds.
        self._ends_at = 0.0
        # How the server ended the last pull: a status and its description.
        self._end: tuple[str, str] | None = None
        # True if the last pull ended because the server had no more messages for this durable.
        self._drained = False
        self._changed = asyncio.Event()

    async def fetch(self, messages_max: int, wait_s: float) -> Sequence[Delivery]:
        """See ``port.Consumer``."""
        if not self._client.is_connected:
            raise BusUnavailableError("the bus server is not connected")
        await self._have_inbox()
        until = asyncio.get_running_loop().time() + wait_s
        if not (self._arrived or self._left or self._drained):
            # Fetch stored messages first. Only if there are none, leave a pull open for new ones.
            await self._pull_messages({"no_wait": True}, messages_max, 0.0)
            while self._left:
                await self._wait_for_messages(self._ends_at)
        while not self._arrived and (left_s := until - asyncio.get_running_loop().time()) > 0:
            if not self._left:
                await self._pull_messages({"expires": nanoseconds(left_s)}, messages_max, left_s)
            await self._wait_for_messages(until)
        count = min(messages_max, len(self._arrived))
        arrived = [self._arrived.popleft() for _ in range(count)]
        passed = [each.reply for each in arrived if not self._is_handled(each)]
        if passed:
            # If this ack is lost, the server redelivers the message and it is skipped again.
            await send_all(self._client, passed, ACK)
        return [JetStreamDelivery(self._bus, each) for each in arrived if self._is_handled(each)]

    async def _have_inbox(self) -> None:
        """Subscribe to an inbox, and to a new one after ``PULLS_PER_INBOX``, while no pull is open.

        A message that still comes to the former inbox is not acknowledged, so it comes again.
        """
        former = self._subscription
        if former is not None and (self._left or self._pulls < PULLS_PER_INBOX):
            return
        self._inbox, self._pulls = self._client.new_inbox(), 0
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", cb=self._receive)
        if former is not None:
            await former.unsubscribe()

    def _is_handled(self, message: Msg) -> bool:
        """False for an event type that arrives only because the durable has no filters."""
        return self._handled.fullmatch(message.subject) is not None

    async def _pull_messages(
        self, request: dict[str, object], messages_max: int, open_s: float
    ) -> None:
        """Begin a pull."""
        self._pulls += 1
        self._pull, self._end = f"{self._inbox}.{self._pulls}", None
        self._left, self._drained = messages_max, False
        grace_s = self._bus.config.reply_timeout_s
        self._ends_at = asyncio.get_running_loop().time() + open_s + grace_s
        bounds = {"batch": messages_max, "max_bytes": BATCH_BYTES_MAX}
        body = json.dumps({**bounds, **request}).encode()
        try:
            await self._client.publish(self._next, body, self._pull)
        except (nats.errors.Error, OSError) as error:
            self._end_pull(NO_RESPONDERS, str(error))

    async def _wait_for_messages(self, until: float) -> None:
        """Wait for a message, the pull's end or the deadline. Raises if the pull failed."""
        self._changed.clear()
        if self._left:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
        if self._left and asyncio.get_running_loop().time() >= self._ends_at:
            self._end_pull(NO_RESPONDERS, "the server does not answer")
        if self._arrived or self._left or self._end is None:
            return
        code, description = self._end
        if code == DENIED:
            raise BusDeniedError(f"this service may not request {self._next}")
        if code in (NO_RESPONDERS, CONFLICT):
            durable = f"durable {self._spec.durable} of stream {self._spec.stream}"
            kind = NoDurableError if description == MISSING else BusUnavailableError
            raise kind(f"{durable}: {description}")

    async def _receive(self, message: Msg) -> None:
        found = status(message)
        if found is None:
            self._arrived.append(message)
            self._left = max(0, self._left - 1)
            self._changed.set()
        elif message.subject == self._pull:
            description = (message.headers or {}).get("Description", "")
            if found == CONFLICT and BYTES_REACHED in description:
                # There is more: the next pull brings it.
                self._end_pull("", "")
                return
            self._end_pull(found, MISSING if found == NO_RESPONDERS else description)

    def _end_pull(self, code: str, description: str) -> None:
        """End the current pull."""
        self._left, self._end = 0, (code, description)
        self._drained = code in (NO_MESSAGES, PULL_EXPIRED)
        self._changed.set()

    def lost(self) -> None:
        """The connection is gone; a pull under way will not be answered."""
        self._end_pull(NO_RESPONDERS, "the connection was lost")

    def deny(self, subject: str) -> None:
        """The server (which names it in lower case) does not let us publish on this subject."""
        if subject == self._next.lower():
            self._end_pull(DENIED, "")

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge all, and wait for the last: the server handles one connection's messages in
        order, so once the last is acknowledged, those before it are, too."""
        if deliveries:
            *others, last = deliveries
            own = [each for each in others if isinstance(each, JetStreamDelivery)]
            await send_all(self._client, [each.settles for each in own], ACK)
            await last.ack()

    async def release(self) -> None:
        """End the open pull; messages that arrived and were never fetched come again at once."""
        subscription, self._subscription = self._subscription, None
        self._end_pull("", "")
        with contextlib.suppress(nats.errors.Error, OSError):
            if subscription is not None:
                # The server drops a pull whose inbox has no subscriber.
                await subscription.unsubscribe()
            while self._arrived:
                await self._client.publish(self._arrived.popleft().reply, b"-NAK")
