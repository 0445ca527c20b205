"""What a service may do with the bus. Adapters: ``jetstream`` (NATS) and ``memory``.

Events are durable and delivered at least once, in any order. Commands have one receiver and an
answer. Telemetry is best effort. ``tests/contract/test_bus.py`` holds both adapters to this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope

# A dead letter keeps so much of its reason.
REASON_CHARACTERS_MAX = 2_000

CommandHandler = Callable[[Message], Awaitable[Message]]


class BusError(Exception):
    """The bus cannot do it now; the caller may try again later."""


class NotNowError(Exception):
    """A command's handler cannot carry it out now; the same command may succeed later."""


class InvalidCommandError(Exception):
    """A command has a value that its owner cannot store, whenever it is tried."""


class BusUnavailableError(BusError):
    """No server, no answer in time, or nobody serves the command."""


class NoDurableError(BusUnavailableError):
    """The server has no durable of this name (yet)."""


class BusDeniedError(BusError):
    """The server refused: this service may not publish or receive that subject."""


class BusTooLargeError(BusDeniedError):
    """The server refused: the message is larger than it accepts."""


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message as it is on the bus, with the headers that its publisher set."""

    subject: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Backlog:
    """How full the stream of events is: what some service still has to receive."""

    stored_bytes: int
    bytes_max: int
    messages: int
    # What each service has not acknowledged, by its durable; empty where it is unknown.
    consumers: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def share(self) -> float:
        """From 0 to 1, where the stream refuses events; 0 if it has no limit."""
        return self.stored_bytes / self.bytes_max if self.bytes_max > 0 else 0.0


class Delivery(Protocol):
    """One event handed to one consumer; unsettled, it comes again."""

    @property
    def envelope(self) -> Envelope | None:
        """The message, or None if it could not be decoded (see ``problem``)."""
        ...

    @property
    def problem(self) -> str:
        """Why the message could not be decoded; empty if it could."""
        ...

    @property
    def raw(self) -> RawMessage:
        """The message as it came, readable or not."""
        ...

    @property
    def deliveries(self) -> int:
        """How often it was delivered, this time included."""
        ...

    async def ack(self) -> None:
        """Settle it; returns when the server has noted it. BusUnavailableError if it could not."""
        ...

    async def nak(self, delay_s: float) -> None:
        """Ask for it again after a delay."""
        ...

    async def dead_letter(self, reason: str) -> None:
        """Copy it to ``dlq.<service>.<subject>`` with the reason, then settle it for good."""
        ...


class Consumer(Protocol):
    """One service's durable place in the stream of events."""

    async def fetch(self, messages_max: int, wait_s: float) -> Sequence[Delivery]:
        """Up to ``messages_max`` deliveries and about ``BATCH_BYTES_MAX``, in stream order; as soon
        as there is at least one, empty after ``wait_s``. BusUnavailableError while there is no
        server."""
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle several of this consumer's; returns when the server has noted all of them.
        BusUnavailableError if it could not; some may then be settled."""
        ...

    async def release(self) -> None:
        """Ask for no more; what was not fetched goes to whoever fetches next. Raises nothing."""
        ...


class Bus(Protocol):
    """A service's connection, under that service's own credentials."""

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Store events; returns when the server has stored all of them (idempotent by id).
        Raises BusUnavailableError or BusDeniedError; some may then be stored."""
        ...

    async def send_telemetry(self, envelope: Envelope) -> None:
        """Send telemetry, a frame of a session or a hint, without a delivery guarantee."""
        ...

    async def request(self, command: Message, *, timeout_s: float) -> Message:
        """Send a command and wait for its reply (a message of the declared reply type).
        BusUnavailableError if nobody answers in time."""
        ...

    def serve(
        self, handlers: Mapping[type[Message], CommandHandler]
    ) -> AbstractAsyncContextManager[None]:
        """Answer commands while the context is open; on leaving, finish those under way.
        Several processes of one service share the work (queue group)."""
        ...

    async def backlog(self) -> Backlog:
        """How full the stream of events is. BusDeniedError for a service that may not ask."""
        ...

    def consumer(self) -> Consumer:
        """This service's durable consumer."""
        ...

    async def copy_events(self, wait_s: float) -> int | None:
        """Copy the next events, in their public form, for monitoring users; returns how many.
        None, at once, while there is no monitoring user. BusDeniedError for a service that may
        not copy. A crash before all are acknowledged copies them again, under the same ids."""
        ...

    def listen(self, subject_filter: str) -> AbstractAsyncContextManager[AsyncIterator[Envelope]]:
        """Receive telemetry, the frames of a session or hints, published from now on; a slow reader
        loses the oldest."""
        ...

    @property
    def server_id(self) -> str:
        """Identifies the server's current start; another id means that the server was restarted
        and may have lost its last unsynced seconds. Empty before the first connection."""
        ...

    @property
    def connected(self) -> bool:
        """True while there is a server."""
        ...

    async def close(self) -> None:
        """Flush and disconnect."""
        ...
