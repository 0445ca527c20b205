"""A stolen password of a service against the real server: what reply subjects can reach.

The server itself publishes answers to the reply subject that a request names, and does not
check whether the requester may publish there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerInfo

from libs.bus import deliveries
from libs.bus.accounts import STREAMS_ACCOUNT
from libs.bus.connection import NO_RESPONDERS, BusConfig
from libs.bus.deliveries import JetStreamDelivery
from libs.bus.jetstream import JetStreamBus, connect
from libs.bus.provision import provision
from libs.bus.sessions import SessionTimes, open_session
from libs.bus.topology import WATCHED_STREAM
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.subjects import filter_of, matches, types_of
from libs.service.clock import SystemClock
from libs.service.wiring import topology
from services.allinone.composition import WIRINGS
from services.allinone.embedded import nats
from services.allinone.embedded.nats import configuration
from tests.kit.builders import a_task, submitted_event
from tests.kit.clock import at
from tests.kit.example_messages import example_of
from tests.kit.nats_server import NatsServer, StartNats
from tests.kit.waiting import until

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


async def serve_everything(server: NatsServer, received: list[tuple[str, str]]) -> list[Client]:
    """Each service with a subscriber to all of its commands. ``received`` gets the service and the
    subject of its subscription: a message that the server answers with keeps its own."""
    clients: list[Client] = []
    for name, allowed in USERS.items():
        client = await client_of(server, name)
        clients.append(client)

        for subject in allowed.serves:

            async def take(_: Msg, name: str = name, subject: str = subject) -> None:
                received.append((name, subject))

            await client.subscribe(subject, cb=take)
        await client.flush()
        await client.flush()
    return clients


async def state_of_the_streams(server: NatsServer) -> list[tuple[str, int, int]]:
    admin = await client_of(server, "admin")
    streams = sorted(await admin.jetstream().streams_info(), key=lambda each: each.config.name)
    await admin.close()
    return [(s.config.name, s.state.messages, s.state.consumer_count) for s in streams]


def with_long_acknowledgements(*given: Any) -> str:
    """The configuration of a server whose acknowledgements name the domain and the account: newer
    servers can, and later ones will."""
    config = json.loads(configuration(*given))
    return json.dumps({**config, "feature_flags": {"js_ack_fc_v2": True}})


def requests_of(thief: str, body: bytes) -> list[tuple[str, bytes]]:
    """All requests that the server answers, or lets another service answer."""
    allowed = USERS[thief]
    nothing_waits = json.dumps({"batch": 5, "no_wait": True}).encode()
    waits = json.dumps({"batch": 5, "expires": 50_000_000}).encode()
    return [
        *((subject, text) for subject in allowed.pulls for text in (nothing_waits, waits)),
        *(
            (each.replace(">", "1.1.1.1.1"), b"+ACK")
            for subject in allowed.durable
            for each in {subject, subject.replace("*", "EVT", 1).replace("*", "scheduler", 1)}
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
    received: list[tuple[str, str]] = []
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
    reached = {subject for name, subject in received if name != thief}
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


def overlap(one: str, other: str) -> bool:
    """True if there is a subject that fits both patterns."""
    for mine, theirs in itertools.zip_longest(one.split("."), other.split(".")):
        if ">" in (mine, theirs):
            return None not in (mine, theirs)
        if mine != theirs and ("*" not in (mine, theirs) or None in (mine, theirs)):
            return False
    return True


def test_nothing_that_a_service_may_publish_fits_what_another_one_may() -> None:
    """Commands are excluded: several services may request them."""
    assert overlap("$JS.ACK.*.*.EVT.quota.>", "$JS.ACK.EVT.scheduler.>")
    for (one, mine), (other, theirs) in itertools.permutations(USERS.items(), 2):
        for ours, others in itertools.product(mine.publish, theirs.publish):
            shared = ours in mine.requests and others in theirs.requests
            watched = ours == others == WATCHED_STREAM
            assert shared or watched or not overlap(ours, others), (one, ours, other, others)


async def test_no_acknowledgement_brings_the_events_of_another_service(
    nats_start: StartNats,
) -> None:
    """``+NXT`` acknowledges a message and requests the next one of the durable that reads it."""
    server = await a_server(nats_start)
    submit, admin = await client_of(server, "submit"), await client_of(server, "admin")
    event = Envelope(id="1", source="submit", time=at(1), message=submitted_event(a_task("t1")))
    await submit.request(event.subject, event.body(), headers=event.headers(), timeout=5)
    # The server counts a stored event for the durables shortly after it has confirmed the event.

    async def counted() -> ConsumerInfo | None:
        found = await admin.jetstream().consumer_info("EVT", "scheduler")
        return found if found.num_pending else None

    before = await until(counted)
    received: list[str] = []

    async def take(message: Msg) -> None:
        if (message.headers or {}).get("Status") != NO_RESPONDERS:
            received.append(message.subject)

    thieves = [await client_of(server, name) for name in USERS if name != "scheduler"]
    for stolen in thieves:
        inbox = stolen._inbox_prefix.decode()
        name = inbox.removeprefix("_INBOX.")
        await stolen.subscribe(f"{inbox}.>", cb=take)
        # The scheduler's durable subscribes to $JS.ACK.EVT.scheduler and five more tokens.
        for subject in (
            "$JS.ACK.EVT.scheduler.1.1.1.1.1",
            f"$JS.ACK.EVT.scheduler.EVT.{name}.1.2.3",
            f"$JS.ACK._.any.EVT.{name}.1.1.1.1.1",
        ):
            for body in (b"+NXT", b'+NXT {"batch":1,"expires":1000000000}', b"+ACK", b"+TERM"):
                await stolen.publish(subject, body, f"{inbox}.next")
        await stolen.flush()
    await asyncio.sleep(0.2)
    after = await admin.jetstream().consumer_info("EVT", "scheduler")
    assert received == []
    assert (after.num_pending, after.delivered) == (before.num_pending, before.delivered)
    for client in (submit, admin, *thieves):
        await client.close()


def forged(thief: str) -> list[Envelope]:
    """Each event, piece of telemetry, frame and hint that another service owns, with its owner's
    name."""
    sent = (Kind.EVENT, Kind.TELEMETRY, Kind.SESSION, Kind.HINT)
    kinds = tuple(itertools.chain.from_iterable(map(types_of, sent)))
    return [
        Envelope(f"forged-{kind.__name__}", ROUTES[kind].owner, at(1), example_of(kind))
        for kind in kinds
        if ROUTES[kind].owner != thief
    ]


async def bus_of(server: NatsServer, name: str) -> JetStreamBus:
    wiring = next(each for each in WIRINGS if each.name == name)
    return await connect(
        BusConfig(
            urls=(server.url,),
            service=name,
            credentials=server.user(name),
            consumes=tuple(wiring.consumes),
            copies=wiring.copies,
        )
    )


@pytest.mark.parametrize("thief", sorted(USERS))
async def test_a_stolen_password_publishes_no_message_of_another_service(
    nats_start: StartNats, thief: str
) -> None:
    """Subject, type and source of a message have to agree: the server checks the subject alone."""
    server = await a_server(nats_start)
    buses = {name: await bus_of(server, name) for name in USERS}
    stolen = await client_of(server, thief)
    events = [each.replace("*", "x") for each in USERS[thief].stores if each.startswith("evt.")]
    telemetry = [each.replace("*", "x") for each in USERS[thief].sends]
    genuine = Envelope("genuine", "log_collector", at(2), example_of(m.LogChunk))
    async with buses["gateway"].listen("log.>") as received:
        for envelope in forged(thief):
            headers, body = envelope.headers(), envelope.body()
            # Where it belongs the server refuses it; elsewhere it is stored.
            await stolen.publish(envelope.subject, body, headers=headers)
            for subject in telemetry:
                await stolen.publish(subject, body, headers=headers)
            for subject in events:
                await stolen.request(subject, body, timeout=5, headers=headers)
        await stolen.flush()
        await buses["log_collector"].send_telemetry(genuine)
        async with asyncio.timeout(5):
            assert await anext(received) == genuine
    stored = {name: count for name, count, _ in await state_of_the_streams(server)}
    assert stored["EVT"] == len(forged(thief)) * len(events)
    believed: list[tuple[str, Envelope]] = []
    refused = 0
    for name, bus in buses.items():
        if bus.config.consumes:
            while found := await bus.consumer().fetch(500, 0.05):
                believed += [(name, each.envelope) for each in found if each.envelope]
                refused += len(found)
                await bus.consumer().ack(found)
    assert believed == []
    # What the thief may publish is received by others, or the test would prove nothing.
    assert refused > 0 or not events
    await stolen.close()
    for bus in buses.values():
        await bus.close()


@pytest.mark.parametrize("thief", sorted(USERS))
async def test_a_stolen_password_requests_no_command_and_answers_none_of_another_service(
    nats_start: StartNats, thief: str
) -> None:
    """The account identifies the requester and the responder of a command, not the headers that
    they send."""
    server = await a_server(nats_start)
    received: list[tuple[str, str]] = []
    clients = await serve_everything(server, received)
    stolen, answers = await client_of(server, thief), list[Msg]()

    async def take(message: Msg) -> None:
        if (message.headers or {}).get("Status") != NO_RESPONDERS:
            answers.append(message)

    inbox = f"_INBOX.{thief}"
    await stolen.subscribe(f"{inbox}.>", cb=take)
    others = [client for name, client in zip(USERS, clients, strict=True) if name != thief]
    for client in others:
        # Where that service waits for the answers to its own requests.
        await client.subscribe(f"{client._inbox_prefix.decode()}.>", cb=take)
        await client.flush()
    for kind in types_of(Kind.COMMAND):
        body = example_of(kind).to_json()
        for name in USERS:
            subject = filter_of(kind).replace("*", name)
            headers = {"ce-source": "gateway", "ce-type": ROUTES[kind].type_name}
            await stolen.publish(subject, body, f"{inbox}.1", headers=headers)
    for name in USERS:
        if name != thief:
            await stolen.publish(f"_INBOX.{name}.answer", b"{}")
    await stolen.flush()
    await asyncio.sleep(0.2)
    reached = {subject for name, subject in received if name != thief}
    assert {subject for subject in reached if not may_request(thief, subject)} == set()
    assert answers == []
    for client in (stolen, *clients):
        await client.close()


@pytest.mark.parametrize("long_acknowledgements", [False, True])
async def test_the_subject_of_answers_is_replaced_and_the_server_forgets_the_former_one(
    nats_start: StartNats, monkeypatch: pytest.MonkeyPatch, *, long_acknowledgements: bool
) -> None:
    if long_acknowledgements:
        monkeypatch.setattr(nats, "configuration", with_long_acknowledgements)
    monkeypatch.setattr(deliveries, "PULLS_PER_INBOX", 3)
    server = await a_server(nats_start)
    consumes = next(tuple(wiring.consumes) for wiring in WIRINGS if wiring.name == "scheduler")
    submit = await client_of(server, "submit")
    bus = await connect(
        BusConfig(
            urls=(server.url,),
            service="scheduler",
            credentials=server.user("scheduler"),
            consumes=tuple(consumes),
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
        settles = [each.settles for each in found if isinstance(each, JetStreamDelivery)]
        assert [each.startswith("$JS.ACK._.") for each in settles] == [long_acknowledgements]
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


async def forge_frames(client: Client, thief: str) -> None:
    """Publish frames of others in a session: each would be a gap, or would end the session."""
    frame = m.ExecFrame(number=99, over=True)
    for kind in (m.ExecInput, m.ExecOutput):
        owner = ROUTES[kind].owner
        if owner != thief:
            forgery = Envelope("x", owner, at(1), kind(session="one", frame=frame))
            await client.publish(forgery.subject, forgery.body(), headers=forgery.headers())
    await client.flush()


async def listen_to_sessions(client: Client, name: str, heard: list[tuple[str, str]]) -> None:
    """Subscribe to all sessions, if the server allows it."""

    async def take(message: Msg) -> None:
        heard.append((name, message.subject))

    await client.subscribe("exec.>", cb=take)
    await client.flush()


async def test_a_session_reaches_its_two_services_and_nobody_else(nats_start: StartNats) -> None:
    server = await a_server(nats_start)
    buses = {name: await bus_of(server, name) for name in USERS}
    clock, times = SystemClock(), SessionTimes(heartbeat_seconds=0.2, silence_seconds=2)
    thieves = {name: await client_of(server, name) for name in USERS}
    heard: list[tuple[str, str]] = []
    for name in thieves.keys() - {"gateway", "launcher"}:
        await listen_to_sessions(thieves[name], name, heard)
    async with (
        open_session(buses["gateway"], "one", m.ExecInput, clock.now, times) as near,
        open_session(buses["launcher"], "one", m.ExecOutput, clock.now, times) as far,
    ):
        running = [asyncio.ensure_future(each.run()) for each in (near, far)]
        data = bytes(range(256)) * 4096
        writing = asyncio.ensure_future(far.send(m.ExecStream.STDOUT, data))
        received = b""
        async with asyncio.timeout(10):
            while len(received) < len(data):
                received += (await near.receive()).data
        assert received == data
        await writing
        await near.send(m.ExecStream.STDIN, b"typed")
        for name, client in thieves.items():
            await forge_frames(client, name)
        async with asyncio.timeout(5):
            assert (await far.receive()).data == b"typed"
        await asyncio.sleep(0.5)
        assert not any(each.done() for each in running)
        assert not far.over.is_set()
        for each in running:
            each.cancel()
    assert heard == []
    assert all(count == 0 for _, count, _ in await state_of_the_streams(server))
    for client in thieves.values():
        await client.close()
    for bus in buses.values():
        await bus.close()


async def test_a_hint_reaches_the_processes_of_its_service_and_nobody_else(
    nats_start: StartNats,
) -> None:
    server = await a_server(nats_start)
    one, two = await bus_of(server, "gateway"), await bus_of(server, "gateway")
    subject = ROUTES[m.GatewayHint].subject
    thieves = {name: await client_of(server, name) for name in USERS.keys() - {"gateway"}}
    heard: list[str] = []
    for name, client in thieves.items():

        async def take(_: Msg, name: str = name) -> None:
            heard.append(name)

        await client.subscribe(subject, cb=take)
        await client.flush()
        forged = Envelope("forged", "gateway", at(1), m.GatewayHint(position=99))
        await client.publish(subject, forged.body(), headers=forged.headers())
        await client.flush()
    async with two.listen(subject) as hints:
        await one.send_telemetry(Envelope("1", "gateway", at(1), m.GatewayHint(position=7)))
        async with asyncio.timeout(5):
            assert (await anext(hints)).message == m.GatewayHint(position=7)
    assert heard == []
    assert all(count == 0 for _, count, _ in await state_of_the_streams(server))
    for client in thieves.values():
        await client.close()
    await one.close()
    await two.close()
