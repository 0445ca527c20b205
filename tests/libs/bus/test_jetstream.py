"""What only a real server can show: users, permissions, limits, lost data, broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog.testing
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig

from libs.bus.connection import BusConfig, Credentials, ServerClient, open_client
from libs.bus.jetstream import JetStreamBus, connect
from libs.bus.port import BusDeniedError, BusUnavailableError
from libs.bus.provision import _make_stream, provision
from libs.bus.topology import MIB, STORE_BYTES, Limits, permissions_of, topology_of
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import PAYLOAD_BYTES_MAX, Envelope
from tests.kit.freezing import freeze
from tests.kit.infra import Infra
from tests.kit.nats_server import NatsServer

pytestmark = pytest.mark.server

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SMALL = Limits(store_bytes=24 * MIB, log_bytes=MIB, dead_letter_bytes=MIB, history_bytes=MIB)
HEARS: dict[str, tuple[type[Message], ...]] = {"quota": (m.GoalChanged,)}
USERS = {
    "submit": permissions_of("submit"),
    "quota": permissions_of("quota", consumes=HEARS["quota"]),
    "gateway": permissions_of("gateway", requests=[m.SetGoal], follows=[m.LogChunk]),
}


class BusHarness:
    """A server of this test's own; leaves nothing running."""

    def __init__(self, folder: Path, *, store_bytes: int = STORE_BYTES) -> None:
        # These tests kill and wipe their server, so it is always one of our own.
        self.server = NatsServer(folder, USERS, Infra.EMBEDDED, store_bytes=store_bytes)
        self._open: list[JetStreamBus] = []

    async def provision(self) -> None:
        await provision([self.server.url], self.server.admin, topology_of(HEARS))

    def config(self, service: str, **settings: float) -> BusConfig:
        given = {
            "consumes": HEARS.get(service, ()),
            "credentials": self.server.user(service),
            "reconnect_wait_s": 0.05,
        } | settings
        return BusConfig(urls=(self.server.url,), service=service, **given)

    async def bus(self, service: str, **settings: float) -> JetStreamBus:
        self._open.append(await connect(self.config(service, **settings)))
        return self._open[-1]

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[ServerClient]:
        client = await open_client(BusConfig((self.server.url,), "admin", self.server.admin))
        try:
            yield client
        finally:
            await client.close()

    async def close(self) -> None:
        for bus in self._open:
            await bus.close()
        await self.server.stop()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BusHarness]:
    harness = BusHarness(tmp_path)
    try:
        await harness.server.start()
        await harness.provision()
        yield harness
    finally:
        await harness.close()


def goal(number: int, asked_by: str = "") -> Envelope:
    message = m.GoalChanged(
        task_id="t", goal=m.Goal.PAUSE, revision=number, changed_by=asked_by, changed_at=NOW
    )
    return Envelope(id=f"g-{number}", source="submit", time=NOW, message=message)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a server process has no event
            await asyncio.sleep(0.01)


# Connecting


async def test_wrong_credentials_are_reported_at_once_without_the_password(
    harness: BusHarness,
) -> None:
    wrong = BusConfig((harness.server.url,), "quota", Credentials("quota", "guessed-secret"))
    start = time.monotonic()
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(BusDeniedError, match="'quota'") as caught,
    ):
        await connect(wrong)
    assert time.monotonic() - start < 5
    assert "guessed-secret" not in f"{caught.value} {logs} {wrong}"


async def test_no_server_is_unavailable_after_the_connect_timeout() -> None:
    config = BusConfig(
        urls=("nats://127.0.0.1:9",),
        service="quota",
        credentials=Credentials("quota", ""),
        connect_timeout_s=0.5,
        reconnect_wait_s=0.05,
    )
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(BusUnavailableError, match=r"127\.0\.0\.1:9 within 0\.5 s"),
    ):
        await connect(config)
    # The client tried several times and logged the error once.
    assert len(logs) == 1


async def test_an_error_that_ends_other_connections_only_interrupts_this_one(
    harness: BusHarness,
) -> None:
    submit, quota = await harness.bus("submit"), await harness.bus("quota")
    # Longer than the server takes: it answers with an error and hangs up.
    submit._client._max_payload = 1 << 30
    with pytest.raises(BusUnavailableError):
        await submit.publish([goal(1, "x" * (2 * PAYLOAD_BYTES_MAX))])
    await until(lambda: submit.connected)
    await submit.publish([goal(2)])
    assert [each.envelope for each in await quota.consumer().fetch(5, 3.0)] == [goal(2)]


async def test_a_sender_that_waits_for_a_slow_server_can_be_cancelled(harness: BusHarness) -> None:
    async with harness.admin() as admin:
        assert harness.server.embedded.child is not None
        process = harness.server.embedded.child.pid
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await admin.publish("log.t.1.0", b"x" * 500_000)
                sent += 1

        freeze(process)
        try:
            flooding = asyncio.ensure_future(flood())
            await asyncio.sleep(0.3)
            before = sent
            await asyncio.sleep(0.1)
            assert sent == before
            flooding.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(2):
                    await flooding
        finally:
            os.kill(process, signal.SIGCONT)


# Provisioning


async def test_provisioning_again_changes_nothing_and_follows_a_new_topology(
    harness: BusHarness,
) -> None:
    async def state() -> list[object]:
        async with harness.admin() as admin:
            jetstream = admin.jetstream()
            streams = [await jetstream.stream_info(name) for name in ("EVT", "LOG", "DLQ")]
            durable = await jetstream.consumer_info("EVT", "quota")
            return [(each.config, each.created) for each in streams] + [durable.config]

    before = await state()
    await harness.provision()
    assert await state() == before

    wider = topology_of({"quota": (m.GoalChanged, m.TaskSubmitted)}, Limits(event_age_s=3600.0))
    await provision([harness.server.url], harness.server.admin, wider)
    (events, _), *_, durable = await state()
    assert events.max_age == 3600.0
    assert sorted(durable.filter_subjects) == ["evt.task.*.goal_changed", "evt.task.*.submitted"]


async def test_provisioning_keeps_a_durables_place(harness: BusHarness) -> None:
    submit, quota = await harness.bus("submit"), await harness.bus("quota")
    await submit.publish([goal(1), goal(2)])
    one, _two = await quota.consumer().fetch(2, 3.0)
    await one.ack()
    wider = topology_of({"quota": (m.GoalChanged, m.TaskSubmitted)})
    await provision([harness.server.url], harness.server.admin, wider)
    async with harness.admin() as admin:
        info = await admin.jetstream().consumer_info("EVT", "quota")
    assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (1, 1, 0)


@contextlib.asynccontextmanager
async def small_harness(folder: Path) -> AsyncIterator[BusHarness]:
    """A server whose store is soon full."""
    harness = BusHarness(folder, store_bytes=SMALL.store_bytes)
    try:
        await harness.server.start()
        yield harness
    finally:
        await harness.close()


async def fill(submit: JetStreamBus) -> int:
    """Publish until the server refuses; returns how many events it took."""
    for number in range(1_000):
        try:
            await submit.publish([goal(number, asked_by="x" * 512 * 1024)])
        except BusUnavailableError:
            return number
    raise AssertionError("the stream never fills")


async def consume(quota: JetStreamBus, count: int) -> list[int]:
    """Receive and acknowledge; returns the revisions."""
    consumer, found = quota.consumer(), list[int]()
    while len(found) < count:
        deliveries = await consumer.fetch(min(8, count - len(found)), 3.0)
        assert deliveries, f"{len(found)} of {count} arrived"
        for each in deliveries:
            assert each.envelope
            assert isinstance(each.envelope.message, m.GoalChanged)
            found.append(each.envelope.message.revision)
        await consumer.ack(deliveries)
    return found


async def test_a_full_stream_refuses_loses_nothing_and_takes_events_again_once_they_are_consumed(
    tmp_path: Path,
) -> None:
    async with small_harness(tmp_path) as harness:
        await provision([harness.server.url], harness.server.admin, topology_of(HEARS, SMALL))
        submit, quota = await harness.bus("submit"), await harness.bus("quota")
        taken = await fill(submit)
        assert taken > 1
        assert await consume(quota, taken) == list(range(taken))
        # Everything is acknowledged, and so the stream has space.
        await submit.publish([goal(5_000, asked_by="x" * 512 * 1024)])
        assert await consume(quota, 1) == [5_000]


async def test_provisioning_heals_a_store_that_consumed_events_have_filled(tmp_path: Path) -> None:
    """An earlier version leaves a stream without a limit in a store with one."""
    async with small_harness(tmp_path) as harness:
        old = StreamConfig(name="EVT", subjects=["evt.>"], max_age=1_000_000)
        (spec,) = topology_of(HEARS).consumers
        async with harness.admin() as admin:
            jetstream = admin.jetstream()
            await jetstream.add_stream(old)
            await jetstream.add_consumer(
                "EVT", ConsumerConfig(durable_name="quota", filter_subjects=list(spec.filters))
            )
        submit, quota = await harness.bus("submit"), await harness.bus("quota")
        taken = await fill(submit)
        await consume(quota, taken - 1)
        with pytest.raises(BusUnavailableError):
            await submit.publish([goal(5_000, asked_by="x" * 512 * 1024)])
        await provision([harness.server.url], harness.server.admin, topology_of(HEARS, SMALL))
        await submit.publish([goal(5_001, asked_by="x" * 512 * 1024)])
        # What was not consumed is still there.
        assert await consume(quota, 2) == [taken - 1, 5_001]


async def test_events_that_come_before_the_durables_are_made_are_kept(harness: BusHarness) -> None:
    async with harness.admin() as admin:
        jetstream = admin.jetstream()
        await jetstream.delete_stream("EVT")
        events, *_ = topology_of(HEARS).streams
        assert await _make_stream(jetstream, events)
        submit = await harness.bus("submit")
        await submit.publish([goal(1)])
        await harness.provision()
        await submit.publish([goal(2)])
        quota = await harness.bus("quota")
        assert await consume(quota, 2) == [1, 2]
        assert (await jetstream.stream_info("EVT")).config.retention == "interest"


async def test_a_service_may_not_provision(harness: BusHarness) -> None:
    quota = harness.server.user("quota")
    with pytest.raises(BusDeniedError, match=r"'quota' has no permission for \$js\.api\.stream"):
        await provision([harness.server.url], quota, topology_of(HEARS), reply_timeout_s=0.3)


# Permissions


async def test_a_refused_publication_is_reported_at_once_and_the_others_are_stored(
    harness: BusHarness,
) -> None:
    submit, quota = await harness.bus("submit"), await harness.bus("quota")
    usage = m.NodeChanged(node_id="N.1", version=1, node=m.Node(id="N.1"), changed_at=NOW)
    foreign = Envelope(id="n", source="submit", time=NOW, message=usage)
    start = time.monotonic()
    with pytest.raises(BusDeniedError, match=r"evt\.node\.N_1\.changed"):
        await submit.publish([goal(1), foreign, goal(2)])
    assert time.monotonic() - start < 2
    got = await quota.consumer().fetch(10, 3.0)
    assert [each.envelope for each in got] == [goal(1), goal(2)]


async def test_only_permitted_services_send_commands(harness: BusHarness) -> None:
    quota = await harness.bus("quota")
    with pytest.raises(BusDeniedError, match=r"cmd\.submit\.set_goal"):
        await quota.request(m.SetGoal(task_id="t"), timeout_s=30.0)


async def test_subscribing_without_permission_is_denied(harness: BusHarness) -> None:
    quota = await harness.bus("quota")
    with pytest.raises(BusDeniedError, match="evt"):
        async with quota.listen("evt.>"):
            pass


async def test_a_durable_of_another_service_cannot_be_read(harness: BusHarness) -> None:
    config = harness.config("submit")
    stranger = await connect(
        BusConfig(config.urls, "quota", config.credentials, consumes=HEARS["quota"])
    )
    try:
        # Even its inbox is another service's.
        with pytest.raises((BusDeniedError, BusUnavailableError)):
            await stranger.consumer().fetch(1, 0.5)
    finally:
        await stranger.close()


# Limits


async def test_what_is_too_large_is_refused_before_it_is_sent(harness: BusHarness) -> None:
    submit, gateway = await harness.bus("submit"), await harness.bus("gateway")
    with pytest.raises(BusDeniedError, match=f"limit of {PAYLOAD_BYTES_MAX}"):
        await submit.publish([goal(1, "x" * PAYLOAD_BYTES_MAX)])
    with pytest.raises(BusDeniedError, match=f"limit of {PAYLOAD_BYTES_MAX}"):
        await gateway.request(m.SetGoal(task_id="x" * PAYLOAD_BYTES_MAX), timeout_s=3.0)
    assert submit.connected


async def test_an_answer_that_is_too_large_is_a_refusal(harness: BusHarness) -> None:
    submit, gateway = await harness.bus("submit"), await harness.bus("gateway")

    async def talks(_: Message) -> Message:
        return m.SetGoalReply(refusal=m.Refusal(detail="x" * PAYLOAD_BYTES_MAX))

    async with submit.serve({m.SetGoal: talks}):
        reply = await gateway.request(m.SetGoal(task_id="t"), timeout_s=3.0)
    assert isinstance(reply, m.SetGoalReply)
    assert reply.refusal
    assert "over the bus's limit" in reply.refusal.detail


async def test_leaving_answers_commands_that_had_arrived_and_not_begun(harness: BusHarness) -> None:
    submit, gateway = await harness.bus("submit", commands_max=1), await harness.bus("gateway")
    begun = asyncio.Event()

    async def slow(_: Message) -> Message:
        begun.set()
        await asyncio.sleep(0.1)
        return m.SetGoalReply(revision=1)

    async with submit.serve({m.SetGoal: slow}):
        asked = [
            asyncio.ensure_future(gateway.request(m.SetGoal(task_id="t"), timeout_s=3.0))
            for _ in range(4)
        ]
        await begun.wait()
    assert await asyncio.gather(*asked) == [m.SetGoalReply(revision=1)] * 4


# Fetching


async def test_a_message_for_a_fetch_that_was_given_up_waits_for_the_next(
    harness: BusHarness,
) -> None:
    submit, quota = await harness.bus("submit"), await harness.bus("quota")
    given_up = asyncio.ensure_future(quota.consumer().fetch(10, 30.0))
    await asyncio.sleep(0.1)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await submit.publish([goal(1)])
    await asyncio.sleep(0.1)
    start = time.monotonic()
    (one,) = await quota.consumer().fetch(10, 20.0)
    assert (one.envelope, one.deliveries) == (goal(1), 1)
    # Long before the ack wait of 30 s.
    assert time.monotonic() - start < 20


async def test_a_cancellation_that_the_library_swallows_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def swallowing(_client: Client, _timeout: int = 10) -> None:
        # What wait_for of Python 3.11 does when the answer comes together with the cancellation.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)

    monkeypatch.setattr(Client, "flush", swallowing)
    flushing = asyncio.ensure_future(ServerClient().flush())
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing], timeout=2)
    assert flushing.cancelled()


async def test_a_cancellation_that_comes_together_with_the_connection_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service would run on, and a platform that is stopped while it starts would never end."""
    closed: list[bool] = []

    async def swallowing(_client: Client, *_args: object, **_options: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)

    async def close(_client: Client) -> None:
        closed.append(True)

    monkeypatch.setattr(Client, "connect", swallowing)
    monkeypatch.setattr(Client, "close", close)
    config = BusConfig(("nats://127.0.0.1:1",), "quota", Credentials("quota", "password"))
    connecting = asyncio.ensure_future(open_client(config))
    await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.wait([connecting], timeout=2)
    assert connecting.cancelled()
    assert closed


async def test_closing_gives_back_what_was_never_fetched(harness: BusHarness) -> None:
    submit, first = await harness.bus("submit"), await harness.bus("quota")
    given_up = asyncio.ensure_future(first.consumer().fetch(10, 30.0))
    await asyncio.sleep(0.1)
    given_up.cancel()
    await submit.publish([goal(1)])
    await asyncio.sleep(0.1)
    await first.close()
    second = await harness.bus("quota")
    start = time.monotonic()
    (one,) = await second.consumer().fetch(10, 20.0)
    # Long before the ack wait of 30 s.
    assert time.monotonic() - start < 20
    assert one.envelope == goal(1)


# The server loses its data


async def test_a_wiped_server_reports_what_is_missing_and_provisioning_heals_it(
    harness: BusHarness,
) -> None:
    submit, quota = await harness.bus("submit"), await harness.bus("quota")
    await submit.publish([goal(1)])
    harness.server.kill()
    await until(lambda: not submit.connected and not quota.connected)
    shutil.rmtree(harness.server.data / "nats" / "store")
    await harness.server.start()
    await until(lambda: submit.connected and quota.connected)
    with pytest.raises(BusUnavailableError, match=r"nobody takes evt\.task\.t\.goal_changed"):
        await submit.publish([goal(2)])
    with pytest.raises(BusUnavailableError, match="durable quota of stream EVT: it does not exist"):
        await quota.consumer().fetch(1, 5.0)
    await harness.provision()
    await submit.publish([goal(2)])
    assert [each.envelope for each in await quota.consumer().fetch(5, 3.0)] == [goal(2)]


async def test_a_durable_that_is_deleted_ends_the_fetch(harness: BusHarness) -> None:
    quota = await harness.bus("quota")
    waiting = asyncio.ensure_future(quota.consumer().fetch(1, 30.0))
    await asyncio.sleep(0.1)
    async with harness.admin() as admin:
        await admin.jetstream().delete_consumer("EVT", "quota")
    with pytest.raises(BusUnavailableError, match="Consumer Deleted"):
        await waiting


async def test_a_publication_under_way_when_the_server_dies_is_unknown_at_once(
    harness: BusHarness,
) -> None:
    submit = await harness.bus("submit")
    assert harness.server.embedded.child is not None
    freeze(harness.server.embedded.child.pid)
    publishing = asyncio.ensure_future(submit.publish([goal(1)]))
    await asyncio.sleep(0.1)
    assert not publishing.done()
    start = time.monotonic()
    harness.server.kill()
    with pytest.raises(BusUnavailableError, match="lost"):
        await publishing
    assert time.monotonic() - start < 2


async def test_publishing_again_after_a_crash_stores_everything_once(harness: BusHarness) -> None:
    submit, quota = await harness.bus("submit"), await harness.bus("quota")
    everything = [goal(number) for number in range(5000)]
    publishing = asyncio.ensure_future(submit.publish(everything))
    await asyncio.sleep(0.05)
    harness.server.kill()
    with pytest.raises(BusUnavailableError):
        await publishing
    await harness.server.start()
    await until(lambda: submit.connected and quota.connected)
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(BusUnavailableError):
                await submit.publish(everything)
                break
    got: set[str] = set()
    async with asyncio.timeout(20):
        while len(got) < 5000:
            with contextlib.suppress(BusUnavailableError):
                batch = await quota.consumer().fetch(256, 1.0)
                await asyncio.gather(*(each.ack() for each in batch))
                got |= {each.envelope.id for each in batch if each.envelope}
    async with harness.admin() as admin:
        stored = (await admin.jetstream().stream_info("EVT")).state.last_seq
    # The ids kept the second round from storing anything twice.
    assert stored == 5000
