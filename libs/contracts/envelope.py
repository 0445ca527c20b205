"""A message on its way: CloudEvents attributes (binary mode) around the JSON body.

Attributes travel as NATS headers ``ce-id ce-source ce-type ce-time ce-subject`` and
``traceparent``, after the CloudEvents 1.0 NATS binding; the body is the message's JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

from pydantic import ValidationError

from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.subjects import subject_of

T = TypeVar("T")
TYPES: dict[str, type[Message]] = {route.type_name: message for message, route in ROUTES.items()}


# The largest message that the bus server takes (``max_payload``): the most that NATS recommends.
# An assignment of 8,000 nodes has 1.1 MB.
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
# The largest body of an event: headers, and what dead letters add to them, take the rest.
EVENT_BYTES_MAX = PAYLOAD_BYTES_MAX - 16 * 1024
# So many bytes of events are taken or given at once (or a single event): read from the outbox, on
# their way to the bus server, fetched from it.
BATCH_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
# As many as may be on their way to several services of one process.
DECODED_MAX = 2048


def within_bytes(items: Iterable[T], body: Callable[[T], bytes]) -> Iterator[T]:
    """The first items, until their bodies have reached ``BATCH_BYTES_MAX``."""
    size = 0
    for item in items:
        if size >= BATCH_BYTES_MAX:
            return
        size += len(body(item))
        yield item


class UndecodableError(Exception):
    """A delivery that is no message of ours; it goes to the dead letters with this reason."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message with its source, time and id (the same at every redelivery)."""

    id: str
    source: str
    time: datetime
    message: Message
    traceparent: str = ""
    # The body and the subject, cached at the first use: they are stored and then published.
    _body: bytes = field(default=b"", init=False, repr=False, compare=False)

    _subject: str = field(default="", init=False, repr=False, compare=False)

    @property
    def subject(self) -> str:
        """The bus subject, derived from the message."""
        if not self._subject:
            object.__setattr__(self, "_subject", subject_of(self.message))
        return self._subject

    def headers(self) -> dict[str, str]:
        """The CloudEvents attributes as bus headers."""
        found = {
            "ce-specversion": "1.0",
            "ce-id": self.id,
            "ce-source": self.source,
            "ce-type": ROUTES[type(self.message)].type_name,
            "ce-time": self.time.isoformat(),
            "ce-subject": self.subject,
            "content-type": "application/json",
        }
        return found | ({"traceparent": self.traceparent} if self.traceparent else {})

    def with_traceparent(self, traceparent: str) -> Envelope:
        """The same message at another place in a trace."""
        moved = replace(self, traceparent=traceparent)
        object.__setattr__(moved, "_body", self._body)
        object.__setattr__(moved, "_subject", self._subject)
        return moved

    def body(self) -> bytes:
        """The message as JSON."""
        if not self._body:
            object.__setattr__(self, "_body", self.message.to_json())
        return self._body

    @staticmethod
    def decode(subject: str, headers: Mapping[str, str], body: bytes) -> Envelope:
        """Read a delivery; UndecodableError describes what is wrong with it.

        Headers and body are whatever the publisher wrote. The server vouches only for the subject:
        it lets one service alone publish there. So the message must be the one that belongs on
        this subject, and its source the service that owns it.
        """
        envelope = Envelope.read_stored(headers, body)
        route = ROUTES[type(envelope.message)]
        if envelope.subject != subject:
            raise UndecodableError(
                f"{route.type_name} belongs on {envelope.subject!r} and was published on"
                f" {subject!r}"
            )
        if envelope.source != route.owner:
            raise UndecodableError(
                f"{route.type_name} is published by {route.owner}, not by {envelope.source!r}"
            )
        return envelope

    @staticmethod
    def read_stored(headers: Mapping[str, str], body: bytes) -> Envelope:
        """Read what the service itself wrote, such as its outbox; what came over the bus goes
        through ``decode``. UndecodableError if it is no message."""
        try:
            kind = TYPES[headers["ce-type"]]
            # What people type and read is not kept, not even in memory; samples come once.
            passing = ROUTES[kind].kind in (Kind.SESSION, Kind.SAMPLE)
            decode = _decoded.__wrapped__ if passing else _decoded
            return decode(
                kind,
                headers["ce-id"],
                headers["ce-source"],
                headers["ce-time"],
                headers.get("traceparent", ""),
                bytes(body),
            )
        except KeyError as error:
            raise UndecodableError(
                f"header or message type {error} is missing or unknown"
            ) from error
        except (ValidationError, ValueError) as error:
            raise UndecodableError(f"the body does not fit its type: {error}") from error


@lru_cache(maxsize=DECODED_MAX)
def _decoded(  # noqa: PLR0917 - what makes an envelope, as its cache's key
    kind: type[Message], event_id: str, source: str, time: str, traceparent: str, body: bytes
) -> Envelope:
    """An envelope and its message. Both are frozen: the services of one process, and a
    redelivery, share one."""
    return Envelope(
        id=event_id,
        source=source,
        time=datetime.fromisoformat(time),
        message=kind.model_validate_json(body),
        traceparent=traceparent,
    )
