"""A monitoring user at the real server, through a stock client: what it can read, and that nothing
else works, by permission or by tricks with reply subjects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StreamSource

from libs.bus.jetstream import JetStreamBus
from libs.bus.port import BusUnavailableError, Consumer
from libs.bus.provision import provision
from libs.bus.topology import COPIER, HISTORY, HISTORY_DOMAIN, monitoring_permissions
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.contracts.subjects import dead_letter_subject, types_of
from libs.service.wiring import topology
from services.allinone.composition import WIRINGS
from services.monitor.event_copies import EventCopies
from tests.kit.builders import a_task, submitted_event
from tests.kit.clock import at
from tests.kit.nats_server import NatsServer, StartNats
from tests.kit.waiting import until
from tests.libs.contracts.test_public_form import filled
from tests.services.allinone.embedded.test_nats_accounts import (
    USERS,
    bus_of,
    client_of,
    state_of_the_streams,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

READER, OTHER = "monitoring_site", "monitoring_other"
EVENT = "evt.task.t1.submitted"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Monitored:
    """A server with two monitoring users, and a service that publishes."""

    server: NatsServer
    submit: JetStreamBus
    reader: Client
    refused: list[str] = field(default_factory=list[str])

    async def publish(self, *task_ids: str) -> None:
        for task_id in task_ids:
            event = submitted_event(a_task(task_id))
            await self.submit.publish(
                [Envelope(f"id-{task_id}", "submit", at(0), event, traceparent=TRACE)]
            )

    async def was_refused(self, subject: str) -> bool:
        """True if the server answered that publishing or subscribing there is not permitted."""
        await self.reader.flush()
        await until(lambda: any(f'"{subject.lower()}"' in text for text in self.refused))
        return True


@contextlib.asynccontextmanager
async def monitored(nats_start: StartNats, *, copying: bool = True) -> AsyncGenerator[Monitored]:
    readers = {name: monitoring_permissions(name) for name in (READER, OTHER)}
    server = await nats_start(USERS | readers)
    await provision([server.url], server.admin, topology(WIRINGS, monitoring=readers))
    refused: list[str] = []

    async def refuse(error: Exception) -> None:
        refused.append(str(error))

    user = server.user(READER)
    # As a stock client connects: nothing of the platform in it.
    reader = await nats.connect(server.url, user=user.user, password=user.password, error_cb=refuse)
    submit, monitor = await bus_of(server, "submit"), await bus_of(server, "monitor")
    copies = asyncio.create_task(copy_for_ever(monitor)) if copying else None
    try:
        yield Monitored(server, submit, reader, refused)
    finally:
        if copies is not None:
            copies.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await copies
        await reader.close()
        await submit.close()
        await monitor.close()


async def copy_for_ever(monitor: JetStreamBus) -> None:
    """What the monitor's loop does."""
    copies = EventCopies(monitor)
    while True:
        # The durable may just have been removed.
        with contextlib.suppress(BusUnavailableError):
            await copies.step(1)
        await asyncio.sleep(0.01)


def stream_of(reader: Client) -> JetStreamContext:
    return reader.jetstream(domain=HISTORY_DOMAIN)


async def history(reader: Client, count: int) -> list[Msg]:
    durable = await stream_of(reader).pull_subscribe_bind(consumer=READER, stream=HISTORY)
    messages = await durable.fetch(count, timeout=60)
    for each in messages:
        await each.ack_sync()
    return messages


async def test_it_receives_events_live_as_cloudevents_with_their_numbers(
    nats_start: StartNats,
) -> None:
    async with monitored(nats_start) as site:
        received: list[Msg] = []

        async def take(message: Msg) -> None:
            received.append(message)

        await site.reader.subscribe("evt.task.*.submitted", cb=take)
        await site.reader.flush()
        await site.publish("t1", "t2")
        await until(lambda: len(received) == 2)
        first = received[0]
        assert (first.subject, first.reply) == (EVENT, "")
        headers = first.headers or {}
        assert {name: headers[name] for name in headers if name.startswith(("ce-", "trace"))} == {
            "ce-specversion": "1.0",
            "ce-id": "id-t1",
            "ce-source": "submit",
            "ce-type": "shiftwork.task.v1.TaskSubmitted",
            "ce-time": at(0).isoformat(),
            "ce-subject": EVENT,
            "traceparent": TRACE,
        }
        assert [(each.headers or {})["Nats-Sequence"] for each in received] == ["1", "2"]


async def test_it_reads_what_the_services_have_consumed_already(nats_start: StartNats) -> None:
    async with monitored(nats_start) as site:
        await site.publish("t1", "t2", "t3")
        await copied(site, 3)
        found = await history(site.reader, 3)
        assert [each.subject for each in found] == [
            f"evt.task.{task}.submitted" for task in ("t1", "t2", "t3")
        ]
        info = await stream_of(site.reader).consumer_info(HISTORY, READER)
        assert (info.num_pending, info.ack_floor.stream_seq if info.ack_floor else 0) == (0, 3)
        # Also by its number, without a consumer.
        one = await stream_of(site.reader).get_msg(HISTORY, seq=2, direct=True)
        assert one.subject == "evt.task.t2.submitted"


async def copied(site: Monitored, count: int) -> list[tuple[str, int]]:
    """How many messages each stream has, once the copy has that many."""

    async def state() -> list[tuple[str, int]]:
        found = [(name, count) for name, count, _ in await state_of_the_streams(site.server)]
        return found if (HISTORY, count) in found else []

    return await until(state)


# A service that consumes the second of these receives every event.
RECEIVED = {m.TaskSubmitted, m.TaskStateChanged}
# Every kind of message of the platform, and every kind of request to the server.
PUBLICATIONS = (
    EVENT,
    "live." + EVENT,
    "cmd.submit.set_goal",
    "log.t1.1.0",
    "dlq.submit.x",
    "exec.t1.input",
    "hint.gateway",
    "_INBOX.submit.x",
    "_INBOX.anything",
)
REQUESTS = (
    "$JS.API.INFO",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.ACCOUNT.PURGE.platform",
    *(
        f"$JS.API.STREAM.{verb}.{stream}"
        for stream in ("EVT", "LOG", "DLQ", HISTORY)
        for verb in ("UPDATE", "PURGE", "DELETE", "MSG.DELETE", "MSG.GET", "SNAPSHOT", "RESTORE")
    ),
    *(f"$JS.API.STREAM.INFO.{stream}" for stream in ("EVT", "LOG", "DLQ")),
    *(f"$JS.API.DIRECT.GET.{stream}" for stream in ("EVT", "LOG", "DLQ")),
    *(
        f"$JS.API.CONSUMER.{rest}"
        for stream in ("EVT", "LOG", HISTORY)
        for rest in (
            f"CREATE.{stream}",
            f"CREATE.{stream}.mine",
            f"CREATE.{stream}.{READER}",
            f"CREATE.{stream}.mine.evt.>",
            f"DURABLE.CREATE.{stream}.mine",
            f"DELETE.{stream}.{READER}",
            f"PAUSE.{stream}.{READER}",
            f"LIST.{stream}",
            f"NAMES.{stream}",
            f"MSG.NEXT.{stream}.scheduler",
            f"MSG.NEXT.{stream}.{OTHER}",
            f"INFO.{stream}.{OTHER}",
        )
    ),
    f"$JS.ACK.{HISTORY}.{OTHER}.1.1.1.1.1",
    "$JS.ACK.EVT.scheduler.1.1.1.1.1",
    f"$JS.ACK._.x.{HISTORY}.{OTHER}.1.1.1.1.1",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.USER.INFO",
)
SUBSCRIPTIONS = (
    ">",
    "cmd.>",
    "log.>",
    "live.>",
    "dlq.>",
    "exec.>",
    "hint.>",
    "$JS.>",
    "$SYS.>",
    "_R_.>",
    "*.task.>",
)


async def test_it_publishes_nothing_and_asks_the_server_for_nothing_else(
    nats_start: StartNats,
) -> None:
    async with monitored(nats_start) as site:
        await site.publish("t1")
        before = await copied(site, 1)
        in_domain = [
            each.replace("$JS.API.", f"$JS.{HISTORY_DOMAIN}.API.")
            for each in REQUESTS
            if each.startswith("$JS.API.")
        ]
        for subject in (*PUBLICATIONS, *REQUESTS, *in_domain):
            await site.reader.publish(subject, b"{}", reply="_INBOX.here")
            assert await site.was_refused(subject)
        for subject in SUBSCRIPTIONS:
            await site.reader.subscribe(subject)
            assert await site.was_refused(subject)
        assert await copied(site, dict(before)[HISTORY]) == before


async def test_no_answer_of_the_server_is_published_where_the_reader_may_not_publish(
    nats_start: StartNats,
) -> None:
    """The server publishes answers on the subject that a request names, which it does not check."""
    async with monitored(nats_start) as site:
        await site.publish("t1", "t2")
        before = await copied(site, 2)
        api = f"$JS.{HISTORY_DOMAIN}.API"
        next_one = f"{api}.CONSUMER.MSG.NEXT.{HISTORY}.{READER}"
        for target in (
            EVENT,
            "live." + EVENT,
            "cmd.submit.set_goal",
            "dlq.submit.x",
            f"$JS.API.STREAM.PURGE.{HISTORY}",
            "$JS.API.STREAM.DELETE.EVT",
            f"$JS.API.CONSUMER.DELETE.{HISTORY}.{OTHER}",
        ):
            for subject, body in (
                (next_one, {"batch": 2, "no_wait": True}),
                (f"{api}.DIRECT.GET.{HISTORY}", {"seq": 1, "batch": 5, "next_by_subj": ">"}),
                (f"{api}.STREAM.INFO.{HISTORY}", {}),
            ):
                await site.reader.publish(subject, json.dumps(body).encode(), reply=target)
        await site.reader.flush()
        await asyncio.sleep(0.3)
        assert await copied(site, dict(before)[HISTORY]) == before


async def test_a_reader_that_acknowledges_nothing_delays_no_service(nats_start: StartNats) -> None:
    async with monitored(nats_start) as site:
        await site.publish("t1", "t2")
        admin = await client_of(site.server, "admin")
        for name in (wiring.name for wiring in WIRINGS if RECEIVED & set(wiring.consumes)):
            bus = await bus_of(site.server, name)
            consumer = bus.consumer()

            async def all_acknowledged(name: str = name, consumer: Consumer = consumer) -> bool:
                for delivery in await consumer.fetch(10, 0.1):
                    await delivery.ack()
                info = await admin.jetstream().consumer_info("EVT", name)
                return not info.num_pending and not info.num_ack_pending

            await until(all_acknowledged)
            await bus.close()
        await admin.close()

        async def emptied() -> bool:
            states = {name: count for name, count, _ in await state_of_the_streams(site.server)}
            return states["EVT"] == 0 and states[HISTORY] == 2

        await until(emptied, 10)


async def test_users_that_are_removed_leave_no_durable_and_no_copy(nats_start: StartNats) -> None:
    async with monitored(nats_start) as site:
        again = [site.server.url], site.server.admin
        assert await provision(*again, topology(WIRINGS, monitoring=[READER])) == [
            f"durable {HISTORY}/{OTHER} removed"
        ]
        assert await provision(*again, topology(WIRINGS, monitoring=[READER])) == []
        assert await provision(*again, topology(WIRINGS)) == [
            f"stream {HISTORY} removed: there is no monitoring user"
        ]
        assert await provision(*again, topology(WIRINGS)) == []
        # Nothing keeps events for the copy any more.
        admin = await client_of(site.server, "admin")
        assert COPIER not in {each.name for each in await admin.jetstream().consumers_info("EVT")}
        await admin.close()


async def everything_readable(site: Monitored, count: int) -> bytes:
    """Every byte that the reader gets of this many events: by its durable, by number, by subject,
    and what the server tells of stream and durable."""
    found: list[bytes] = []

    def take(message: Msg) -> None:
        found.extend((message.subject.encode(), json.dumps(message.headers).encode(), message.data))

    for message in await history(site.reader, count):
        take(message)
    api = f"$JS.{HISTORY_DOMAIN}.API"
    for number in range(1, count + 1):
        body = json.dumps({"seq": number}).encode()
        take(await site.reader.request(f"{api}.DIRECT.GET.{HISTORY}", body, timeout=5))
    last = json.dumps({"last_by_subj": "evt.task.*.submitted"}).encode()
    take(await site.reader.request(f"{api}.DIRECT.GET.{HISTORY}", last, timeout=5))
    for subject in (f"{api}.STREAM.INFO.{HISTORY}", f"{api}.CONSUMER.INFO.{HISTORY}.{READER}"):
        asked = json.dumps({"subjects_filter": ">", "deleted_details": True}).encode()
        take(await site.reader.request(subject, asked, timeout=5))
    return b"\n".join(found)


async def test_nothing_that_is_withheld_is_in_any_byte_that_it_reads(
    nats_start: StartNats,
) -> None:
    events = types_of(Kind.EVENT)
    async with monitored(nats_start) as site:
        live: list[bytes] = []

        async def take(message: Msg) -> None:
            live.extend((json.dumps(message.headers).encode(), message.data))

        await site.reader.subscribe("evt.>", cb=take)
        await site.reader.flush()
        public, hidden = set[str](), set[str]()
        for number, kind in enumerate(events):
            made, message = filled(kind, f"{number}x")
            public |= set(made.texts) - made.hidden
            hidden |= made.hidden
            owner = await bus_of(site.server, ROUTES[kind].owner)
            await owner.publish([Envelope(f"id-{number}", ROUTES[kind].owner, at(0), message)])
            letter = dead_letter_subject(ROUTES[kind].owner, "evt.x")
            await owner.store([(letter, message.to_json(), {})])
            await owner.close()
        await until(lambda: len(live) == 2 * len(events), 20)
        read = await everything_readable(site, len(events))
        for text in (read.decode(), b"\n".join(live).decode()):
            assert [each for each in hidden if each in text] == []
            assert [each for each in public if each not in text] == []


@pytest.mark.slow
async def test_an_event_whose_copy_was_not_stored_is_copied_later(nats_start: StartNats) -> None:
    """The monitor dies before it has stored the copies."""
    async with monitored(nats_start, copying=False) as site:
        await site.publish("t1", "t2")
        monitor = await bus_of(site.server, "monitor")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(monitor, "store", _dies)
            with pytest.raises(RuntimeError):
                await monitor.copy_events(1)
        await monitor.close()
        await all_are_copied(site)
        found = await history(site.reader, 2)
        assert [(each.headers or {})["ce-id"] for each in found] == ["id-t1", "id-t2"]


async def all_are_copied(site: Monitored) -> None:
    """Copy until no event waits for it."""
    admin, monitor = await client_of(site.server, "admin"), await bus_of(site.server, "monitor")

    async def copied_all() -> bool:
        await monitor.copy_events(1)
        info = await admin.jetstream().consumer_info("EVT", COPIER)
        return not info.num_pending and not info.num_ack_pending

    await until(copied_all, 30)
    await admin.close()
    await monitor.close()


@pytest.mark.slow
async def test_an_event_that_was_copied_already_is_not_copied_again(
    nats_start: StartNats,
) -> None:
    """The monitor dies after it has stored the copies, and before they are acknowledged."""
    async with monitored(nats_start, copying=False) as site:
        await site.publish("t1", "t2")
        monitor = await bus_of(site.server, "monitor")
        assert monitor.copying is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(monitor.copying.consumer, "ack", _dies)
            with pytest.raises(RuntimeError):
                await monitor.copy_events(1)
        await monitor.close()
        assert await copied(site, 2)
        await site.publish("t3")
        await all_are_copied(site)
        found = await history(site.reader, 3)
        assert [(each.headers or {})["ce-id"] for each in found] == ["id-t1", "id-t2", "id-t3"]
        assert await copied(site, 3)


async def _dies(_: object) -> None:
    raise RuntimeError("killed")


@pytest.mark.slow
async def test_the_copy_of_an_earlier_version_is_removed_with_what_it_holds(
    nats_start: StartNats,
) -> None:
    """Before, HISTORY was a mirror of the events; some are still to be consumed at the upgrade."""
    readers = {READER: monitoring_permissions(READER)}
    server = await nats_start(USERS | readers)
    await provision([server.url], server.admin, topology(WIRINGS))
    admin = await client_of(server, "admin")
    jetstream = admin.jetstream()
    await jetstream.add_stream(name=HISTORY, mirror=StreamSource(name="EVT"), allow_direct=True)
    await jetstream.add_consumer(HISTORY, durable_name=READER, ack_policy="explicit")
    submit = await bus_of(server, "submit")
    secret = "hf_Zq3vT8xLw2Rk9"
    event = submitted_event(a_task("t1"))
    spec = event.spec.model_copy(update={"env": {"HF_TOKEN": secret}})
    event = event.model_copy(update={"spec": spec})
    # Until the mirror follows the events.
    numbers = iter(range(10_000))

    async def is_stored() -> bool:
        await submit.publish([Envelope(f"id-{next(numbers)}", "submit", at(0), event)])
        return bool((await jetstream.stream_info(HISTORY)).state.messages)

    await until(is_stored, 90)
    assert secret.encode() in ((await jetstream.get_last_msg(HISTORY, EVENT)).data or b"")
    wanted = [server.url], server.admin, topology(WIRINGS, monitoring=readers)
    done = await provision(*wanted)
    assert f"stream {HISTORY} removed: its messages have the form of another version" in done
    assert await provision(*wanted) == []
    monitor = await bus_of(server, "monitor")

    async def is_copied() -> bool:
        await monitor.copy_events(1)
        return bool((await jetstream.stream_info(HISTORY)).state.messages)

    await until(is_copied)
    last = (await jetstream.stream_info(HISTORY)).state.last_seq
    for number in range(1, last + 1):
        copy = await jetstream.get_msg(HISTORY, seq=number, direct=True)
        assert copy.subject == EVENT
        assert secret.encode() not in (copy.data or b"")
    for each in (submit, monitor, admin):
        await each.close()


async def test_without_monitoring_users_nothing_is_copied_and_nothing_is_kept_for_it(
    nats_start: StartNats,
) -> None:
    server = await nats_start(USERS)
    await provision([server.url], server.admin, topology(WIRINGS))
    monitor = await bus_of(server, "monitor")
    assert await monitor.copy_events(1) is None
    names = {name for name, _, _ in await state_of_the_streams(server)}
    assert HISTORY not in names
    admin = await client_of(server, "admin")
    assert COPIER not in {each.name for each in await admin.jetstream().consumers_info("EVT")}
    await admin.close()
    await monitor.close()
