"""A stolen password of a service against the real server: what reply subjects can reach.

The server itself publishes answers to the reply subject that a request names, and asks nobody
whether the requester might have published there.
"""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from libs.bus import deliveries
from libs.bus.accounts import STREAMS_ACCOUNT
from libs.bus.connection import BusConfig
from libs.bus.jetstream import connect
from libs.bus.provision import provision
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.contracts.subjects import matches
from libs.service.wiring import topology
from services.allinone.composition import WIRINGS
from tests.builders import a_task, at, submitted_event
from tests.harness.nats_server import NatsServer, StartNats

pytestmark = pytest.mark.server

USERS = {wiring.name: wiring.permissions for wiring in WIRINGS}
SERVED = sorted({subject for allowed in USERS.values() for subject in allowed.serves})
STREAM_API = (
    "$JS.API.STREAM.DELETE.EVT",
    "$JS.API.STREAM.PURGE.EVT",
    "$JS.API.CONSUMER.DELETE.EVT.scheduler",
)


async def a_server(nats_start: StartNats) -> NatsServer:
    server = await nats_start(USERS)
    await provision([server.url], server.admin, topology(WIRINGS))
    return server


async def client_of(server: NatsServer, name: str) -> Client:
    client, user = Client(), server.user(name)

    async def ignore(_: Exception) -> None:
        """What the server refuses is seen by what does not arrive."""

    await client.connect(
        server.url,
        user=user.user,
        password=user.password,
        inbox_prefix=f"_INBOX.{name}",
        error_cb=ignore,
    )
    return client


async def serve_everything(server: NatsServer, received: list[tuple[str, Msg]]) -> list[Client]:
    """Each service with a subscriber to all of its commands."""
    clients: list[Client] = []
    for name, allowed in USERS.items():
        client = await client_of(server, name)
        clients.append(client)

        async def take(message: Msg, name: str = name) -> None:
            received.append((name, message))

        for subject in allowed.serves:
            await client.subscribe(subject, cb=take)
        await client.flush()
        await client.flush()
    return clients


async def state_of_the_streams(server: NatsServer) -> list[tuple[str, int, int]]:
    admin = await client_of(server, "admin")
    streams = sorted(await admin.jetstream().streams_info(), key=lambda each: each.config.name)
    await admin.close()
    return [(s.config.name, s.state.messages, s.state.consumer_count) for s in streams]


def requests_of(thief: str, body: bytes) -> list[tuple[str, bytes]]:
    """Everything that the server answers, or lets another service answer."""
    allowed = USERS[thief]
    nothing_waits = json.dumps({"batch": 5, "no_wait": True}).encode()
    waits = json.dumps({"batch": 5, "expires": 50_000_000}).encode()
    return [
        *((subject, text) for subject in allowed.pulls for text in (nothing_waits, waits)),
        *(
            (subject.replace(">", "1.1.1.1.1"), b"+ACK")
            for subject in allowed.durable
            if "*" not in subject
        ),
        *((subject.replace("*", "submit"), body) for subject in allowed.requests),
    ]


def may_request(thief: str, subject: str) -> bool:
    """True for a command that the service may send with any body."""
    return any(matches(pattern, subject) for pattern in USERS[thief].requests)


@pytest.mark.parametrize("thief", sorted(USERS))
async def test_no_answer_of_the_server_reaches_another_service_or_the_streams(
    nats_start: StartNats, thief: str
) -> None:
    server = await a_server(nats_start)
    received: list[tuple[str, Msg]] = []
    clients = await serve_everything(server, received)
    stolen = await client_of(server, thief)
    # A body that other services would take for a command, stored as an event of the thief's own.
    body = m.SetGoal(task_id="victim", goal=m.Goal.STOP, asked_by="admin").to_json()
    events = [each.replace("*", "x") for each in USERS[thief].stores if each.startswith("evt.")]
    for subject in events:
        await stolen.request(subject, body, timeout=5)
    before = await state_of_the_streams(server)
    for target in (*SERVED, *STREAM_API):
        for subject, text in requests_of(thief, body):
            await stolen.publish(subject, text, target)
    await stolen.flush()
    await stolen.flush()
    await asyncio.sleep(0.2)
    reached = {message.subject for name, message in received if name != thief}
    assert {subject for subject in reached if not may_request(thief, subject)} == set()
    assert await state_of_the_streams(server) == before
    # The confirmation of what is stored would be read as a request to delete all before it.
    telemetry = [each.replace("*", "x") for each in USERS[thief].sends]
    for subject, target in itertools.product((*events, *telemetry), STREAM_API):
        await stolen.publish(subject, body, target)
    await stolen.flush()
    await stolen.flush()
    await asyncio.sleep(0.2)
    stored = {"EVT": len(events) * len(STREAM_API), "LOG": len(telemetry) * len(STREAM_API)}
    assert await state_of_the_streams(server) == [
        (name, count + stored.get(name, 0), durables) for name, count, durables in before
    ]
    for client in (stolen, *clients):
        await client.close()


async def test_the_subject_of_answers_is_replaced_and_the_server_forgets_the_former_one(
    nats_start: StartNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "PULLS_PER_INBOX", 3)
    server = await a_server(nats_start)
    hears = next(tuple(wiring.hears) for wiring in WIRINGS if wiring.name == "scheduler")
    submit = await client_of(server, "submit")
    bus = await connect(
        BusConfig(
            urls=(server.url,),
            service="scheduler",
            credentials=server.user("scheduler"),
            hears=tuple(hears),
        )
    )
    consumer, seen, inboxes = bus.consumer(), list[str](), set[str]()
    for number in range(12):
        event = Envelope(
            id=str(number),
            source="submit",
            time=at(number),
            message=submitted_event(a_task(f"t{number}")),
        )
        await submit.request(event.subject, event.body(), headers=event.headers(), timeout=5)
        found = await consumer.fetch(10, 2.0)
        await consumer.ack(found)
        seen += [each.envelope.id for each in found if each.envelope]
        inboxes.add(consumer._inbox)
        # The next fetch begins with a pull of its own.
        assert await consumer.fetch(10, 0.02) == []
    assert seen == [str(number) for number in range(12)]
    assert len(inboxes) > 1
    await bus.close()
    await submit.close()


async def test_the_streams_of_a_server_without_accounts_are_kept(nats_start: StartNats) -> None:
    server = await a_server(nats_start)
    await server.stop()
    store = server.data / "nats" / "store" / "jetstream"
    (store / STREAMS_ACCOUNT).rename(store / "$G")
    await server.start()
    assert [name for name, *_ in await state_of_the_streams(server)] == ["DLQ", "EVT", "LOG"]
