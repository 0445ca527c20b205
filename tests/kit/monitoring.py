"""What a monitoring user of the bus can do at a server, for every way in which one is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import nats
from nats.aio.client import Client

from libs.bus.connection import Credentials
from libs.bus.provision import enter

EVENT = "evt.task.t1.submitted"
# A server may take half a minute until its copy of the events follows them.
COPYING_SECONDS_MAX = 60.0


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


async def check_readers(url: str, submit: Credentials, readers: Collection[Credentials]) -> None:
    """Each of these users has its durable, receives an event that ``submit`` publishes, and may
    publish none."""
    for reader in readers:
        await enter([url], reader, reads=True)
    received: set[str] = set()
    refused: list[str] = []
    async with client(url, submit, []) as service:
        for reader in readers:
            await _receive(url, service, reader, received, refused)
    assert received == {reader.user for reader in readers}
    assert len([text for text in refused if "evt.task.t1.submitted" in text]) == len(readers)


async def _receive(
    url: str, service: Client, reader: Credentials, received: set[str], refused: list[str]
) -> None:
    async with client(url, reader, refused) as connected:
        messages = await connected.subscribe("evt.>")
        await connected.flush()
        async with asyncio.timeout(COPYING_SECONDS_MAX):
            while not messages.pending_msgs:
                await service.publish(EVENT, b"{}", headers={"ce-id": "e1"})
                await asyncio.sleep(0.2)
        message = await messages.next_msg(1)
        assert message.subject == EVENT
        assert message.headers
        assert message.headers["ce-id"] == "e1"
        assert "Nats-Sequence" in message.headers
        received.add(reader.user)
        await connected.publish(EVENT, b"{}")
        await connected.flush()
        await asyncio.sleep(0.1)
