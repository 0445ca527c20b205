"""Copies events into the stream of monitoring users, in their public form.

Run by the service whose wiring sets ``copies``. An event is acknowledged once its copy is stored: a
crash in between copies it again under the same id, which the stream drops for two minutes. What
cannot be decoded is not copied, because what it may show is not known.
"""

from __future__ import annotations

import structlog

from libs.bus.connection import ServerClient
from libs.bus.deliveries import JetStreamConsumer, ServerConnection
from libs.bus.port import BusTooLargeError, NoDurableError
from libs.bus.topology import COPIED_AT_ONCE, COPIER, copier
from libs.contracts.envelope import Envelope
from libs.contracts.public_form import public_body

_log = structlog.stdlib.get_logger(__name__)

Stored = tuple[str, bytes, dict[str, str]]


class HistoryCopy:
    """The durable of what is copied, and the copying."""

    def __init__(self, bus: ServerConnection, client: ServerClient) -> None:
        self._bus = bus
        self.consumer = JetStreamConsumer(bus, client, copier())

    async def step(self, wait_s: float) -> int | None:
        """See ``port.Bus.copy_events``."""
        try:
            deliveries = await self.consumer.fetch(COPIED_AT_ONCE, wait_s)
        except NoDurableError:
            return None
        for each in deliveries:
            if each.envelope is None:
                _log.error(
                    "an event is not copied for monitoring users: it cannot be read",
                    id=each.raw.headers.get("ce-id"),
                    problem=each.problem,
                )
        copies = [copy_of(each.envelope) for each in deliveries if each.envelope is not None]
        try:
            await self._bus.store(copies)
        except BusTooLargeError:
            for each in copies:
                await self._store_if_it_fits(each)
        await self.consumer.ack(deliveries)
        return len(deliveries)

    async def _store_if_it_fits(self, copy: Stored) -> None:
        try:
            await self._bus.store([copy])
        except BusTooLargeError as problem:
            _log.error("an event is not copied for monitoring users", problem=str(problem))


def copy_of(envelope: Envelope) -> Stored:
    """Subject, body and headers of an event's public form."""
    headers = envelope.headers() | {"Nats-Msg-Id": envelope.id}
    return f"{COPIER}.{envelope.subject}", public_body(envelope.message), headers
