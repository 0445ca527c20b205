"""What a monitoring user of the bus can do at a server, for every way in which one is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import nats
from nats.aio.client import Client

from libs.bus.connection import BusConfig, Credentials
from libs.bus.jetstream import JetStreamBus, connect
from libs.bus.provision import enter
from libs.contracts.envelope import Envelope
from tests.kit.builders import a_task, submitted_event
from tests.kit.clock import at

EVENT = "evt.task.t1.submitted"
COPYING_SECONDS_MAX = 30.0


@asynccontextmanager
async def client(url: str, user: Credentials, refused: list[str]) -> AsyncGenerator[Client]:
    """A stock client; what the server refuses is noted."""

    async def note(error: Exception) -> None:
        refused.append(str(error))

    connected = await nats.connect(url, user=user.user, password=user.password, error_cb=note)
    try:
        yield connected
    finally:
        await connected.close()


async def check_readers(
    url: str, submit: Credentials, monitor: Credentials, readers: Collection[Credentials]
) -> None:
    """Each of these users has its durable, receives an event that ``submit`` publishes and
    ``monitor`` copies, and may publish none."""
    for reader in readers:
        await enter([url], reader, reads=True)
    received: set[str] = set()
    refused: list[str] = []
    config = BusConfig((url,), "monitor", monitor, copies=True)
    copying = await connect(config)
    try:
        async with client(url, submit, []) as service:
            for reader in readers:
                received.add(await _receive(url, service, copying, reader, refused))
    finally:
        await copying.close()
    assert received == {reader.user for reader in readers}
    assert len([text for text in refused if EVENT in text]) == len(readers)


async def _receive(
    url: str,
    service: Client,
    copying: JetStreamBus,
    reader: Credentials,
    refused: list[str],
) -> str:
    """The name of the user, once it has received an event."""
    async with client(url, reader, refused) as connected:
        messages = await connected.subscribe("evt.>")
        await connected.flush()
        event = Envelope(f"of-{reader.user}", "submit", at(0), submitted_event(a_task("t1")))
        async with asyncio.timeout(COPYING_SECONDS_MAX):
            while not messages.pending_msgs:
                await service.publish(EVENT, event.body(), headers=event.headers())
                await copying.copy_events(1)
        message = await messages.next_msg(1)
        assert message.subject == EVENT
        assert message.headers
        assert message.headers["ce-id"] == event.id
        assert "Nats-Sequence" in message.headers
        await connected.publish(EVENT, b"{}")
        await connected.flush()
        await asyncio.sleep(0.1)
        return reader.user
