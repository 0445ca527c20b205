"""What every bus promises, on the memory adapter and on a real NATS server alike."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from nats.js.errors import NotFoundError

from libs.bus.commands import COMMANDS_MAX, COMMANDS_WAITING_MAX
from libs.bus.connection import BusConfig, ServerClient, open_client
from libs.bus.jetstream import connect
from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.bus.port import (
    Bus,
    BusDeniedError,
    BusUnavailableError,
    Consumer,
    Delivery,
    InvalidCommandError,
    NotNowError,
)
from libs.bus.provision import provision
from libs.bus.topology import Topology, permissions_of, topology_of
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import BATCH_BYTES_MAX, EVENT_BYTES_MAX, Envelope
from libs.contracts.registry import ROUTES
from tests.kit.builders import a_spec, a_task, submitted_event
from tests.kit.infra import Infra
from tests.kit.nats_server import NatsServer

T = TypeVar("T")
ACK_WAIT_S = 0.4
WAIT_S = 3.0
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEARS: dict[str, tuple[type[Message], ...]] = {
    "scheduler": (m.TaskSubmitted, m.GoalChanged, m.NodeChanged),
    "quota": (m.GoalChanged,),
    # Given everything: the rest is passed over.
    "gateway": (m.TaskStateChanged, m.PriorityChanged, m.RunAssigned),
}


class World:
    """One server and the services' connections to it."""

    async def bus(self, service: str) -> Bus:
        raise NotImplementedError

    async def say(self, subject: str, headers: dict[str, str], body: bytes) -> None:
        raise NotImplementedError

    async def dead_letters(self) -> list[tuple[str, str, bytes]]:
        raise NotImplementedError

    async def ask(
        self, subject: str, headers: dict[str, str], body: bytes
    ) -> tuple[Mapping[str, str], bytes]:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class MemoryWorld(World):
    def __init__(self) -> None:
        self.broker = MemoryBroker(random.Random(7), ack_wait_s=ACK_WAIT_S)
        for service, kinds in HEARS.items():
            MemoryBus(self.broker, service, kinds)

    async def bus(self, service: str) -> Bus:
        return MemoryBus(self.broker, service, HEARS.get(service, ()))

    async def say(self, subject: str, headers: dict[str, str], body: bytes) -> None:
        self.broker.append(subject, headers, body)

    async def ask(
        self, subject: str, headers: dict[str, str], body: bytes
    ) -> tuple[Mapping[str, str], bytes]:
        answers: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        _, take = self.broker.endpoints[subject][0]
        take(headers, body, answers)
        return await answers

    async def dead_letters(self) -> list[tuple[str, str, bytes]]:
        return [(each.subject, each.reason, each.body) for each in self.broker.dead_letters]

    def kill(self) -> None:
        self.broker.stop()

    async def start(self) -> None:
        self.broker.start()

    async def close(self) -> None:
        pass


class ServerWorld(World):
    def __init__(self, folder: Path, infra: Infra) -> None:
        asks = [kind for kind, route in ROUTES.items() if route.reply is not None]
        users = {
            service: permissions_of(service, hears=HEARS.get(service, ()))
            for service in ("submit", "scheduler", "launcher", "quota", "log_collector")
        } | {
            "gateway": permissions_of(
                "gateway",
                hears=HEARS["gateway"],
                asks=asks,
                listens=[m.LogChunk],
                watches=True,
            )
        }
        self.server = NatsServer(folder, users, infra)
        self._open: list[Bus] = []

    async def provision(self) -> None:
        topology = topology_of(HEARS)
        consumers = tuple(replace(each, ack_wait_s=ACK_WAIT_S) for each in topology.consumers)
        wanted = Topology(topology.streams, consumers)
        if self.server.infra is not Infra.EMBEDDED:
            async with self.client() as client:
                for stream in wanted.streams:
                    with contextlib.suppress(NotFoundError):
                        await client.jetstream().delete_stream(stream.name)
        await provision([self.server.url], self.server.admin, wanted)

    @contextlib.asynccontextmanager
    async def client(self, user: str = "admin") -> AsyncIterator[ServerClient]:
        client = await open_client(BusConfig((self.server.url,), user, self.server.user(user)))
        try:
            yield client
        finally:
            await client.close()

    async def bus(self, service: str) -> Bus:
        bus = await connect(
            BusConfig(
                urls=(self.server.url,),
                service=service,
                credentials=self.server.user(service),
                hears=HEARS.get(service, ()),
                reconnect_wait_s=0.05,
            )
        )
        self._open.append(bus)
        return bus

    async def say(self, subject: str, headers: dict[str, str], body: bytes) -> None:
        async with self.client() as client:
            await client.jetstream().publish(subject, body, headers=headers)

    async def ask(
        self, subject: str, headers: dict[str, str], body: bytes
    ) -> tuple[Mapping[str, str], bytes]:
        async with self.client("gateway") as client:
            reply = await client.request(subject, body, timeout=WAIT_S, headers=headers)
            return reply.headers or {}, reply.data

    async def dead_letters(self) -> list[tuple[str, str, bytes]]:
        async with self.client() as client:
            state = (await client.jetstream().stream_info("DLQ")).state
            numbers = range(state.first_seq, state.last_seq + 1)
            found = [await client.jetstream().get_msg("DLQ", number) for number in numbers]
        return [
            (str(each.subject), (each.headers or {})["shiftwork-reason"], each.data or b"")
            for each in found
        ]

    def kill(self) -> None:
        self.server.kill()

    async def start(self) -> None:
        await self.server.start()

    async def close(self) -> None:
        for bus in self._open:
            await bus.close()
        await self.server.stop()


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.server)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    world = ServerWorld(tmp_path, request.getfixturevalue("infra"))
    try:
        await world.start()
        await world.provision()
        yield world
    finally:
        await world.close()


def goal(number: int, task: str = "t") -> Envelope:
    message = m.GoalChanged(task_id=task, goal=m.Goal.PAUSE, revision=number, changed_at=NOW)
    return Envelope(id=f"{task}-{number}", source="submit", time=NOW, message=message)


def priority(number: int) -> Envelope:
    message = m.PriorityChanged(task_id="t", revision=number, changed_at=NOW)
    return Envelope(id=f"p-{number}", source="submit", time=NOW, message=message)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [each.envelope.id if each.envelope else "?" for each in deliveries]


async def fetch_all(consumer: Consumer, count: int, seconds: float = 5.0) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            found += await consumer.fetch(count - len(found), 1.0)
    return found


async def ack_all(deliveries: Sequence[Delivery]) -> None:
    await asyncio.gather(*(each.ack() for each in deliveries))


# Events


async def test_events_arrive_whole_and_in_order(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    sent = [replace(goal(number), traceparent=f"00-{number}") for number in range(20)]
    await submit.publish(sent)
    got = await fetch_all(scheduler.consumer(), 20)
    assert [each.envelope for each in got] == sent
    assert {each.deliveries for each in got} == {1}
    assert not any(each.problem for each in got)


async def test_a_fetch_takes_no_more_than_asked_and_is_empty_after_the_wait(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    consumer = scheduler.consumer()
    await submit.publish([goal(number) for number in range(5)])
    first = await consumer.fetch(3, WAIT_S)
    assert ids(first) == ["t-0", "t-1", "t-2"]
    rest = await consumer.fetch(3, WAIT_S)
    assert ids(rest) == ["t-3", "t-4"]
    await ack_all([*first, *rest])
    start = time.monotonic()
    assert await consumer.fetch(3, 0.3) == []
    assert time.monotonic() - start > 0.25


async def test_a_waiting_fetch_returns_as_soon_as_there_is_something(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    waiting = asyncio.ensure_future(scheduler.consumer().fetch(10, 300.0))
    await asyncio.sleep(0.1)
    await submit.publish([goal(1)])
    # Long before the wait of the fetch is over, however busy the machine is.
    async with asyncio.timeout(30):
        assert ids(await waiting) == ["t-1"]


async def test_what_is_not_acknowledged_comes_again(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(1), goal(2)])
    one, two = await fetch_all(scheduler.consumer(), 2)
    await two.ack()
    again = await scheduler.consumer().fetch(10, WAIT_S)
    assert ids(again) == ids([one])
    assert again[0].deliveries == 2
    await again[0].ack()
    assert await scheduler.consumer().fetch(10, 2 * ACK_WAIT_S) == []


async def test_several_are_acknowledged_at_once(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(number) for number in range(1, 21)])
    consumer = scheduler.consumer()
    got = await fetch_all(consumer, 20)
    await consumer.ack([])
    await consumer.ack([each for each in got if each is not got[7]])
    again = await consumer.fetch(30, WAIT_S)
    assert ids(again) == ids([got[7]])
    await consumer.ack(again)
    assert await consumer.fetch(30, 2 * ACK_WAIT_S) == []


async def test_a_second_process_gets_what_the_first_left_and_nothing_else(world: World) -> None:
    submit, first = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(1), goal(2), goal(3)])
    await ack_all((await fetch_all(first.consumer(), 3))[:2])
    await first.close()
    second = await world.bus("scheduler")
    assert ids(await second.consumer().fetch(10, WAIT_S)) == ["t-3"]


async def test_who_releases_its_consumer_keeps_nothing_from_the_next(world: World) -> None:
    submit, first = await world.bus("submit"), await world.bus("scheduler")
    assert await first.consumer().fetch(10, 0.2) == []
    await first.consumer().release()
    await submit.publish([goal(1), goal(2)])
    second = await world.bus("scheduler")
    got = await fetch_all(second.consumer(), 2)
    assert ids(got) == ["t-1", "t-2"]
    assert {each.deliveries for each in got} == {1}
    await ack_all(got)
    await submit.publish([goal(3)])
    assert ids(await first.consumer().fetch(10, WAIT_S)) == ["t-3"]


async def test_nak_asks_for_it_again_after_the_delay(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(1)])
    (one,) = await scheduler.consumer().fetch(1, WAIT_S)
    start = time.monotonic()
    await one.nak(0.15)
    (again,) = await scheduler.consumer().fetch(1, WAIT_S)
    assert again.deliveries == 2
    assert 0.1 < time.monotonic() - start < ACK_WAIT_S


async def test_the_same_id_is_stored_once(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(1), goal(1)])
    await submit.publish([goal(1), goal(2)])
    assert ids(await fetch_all(scheduler.consumer(), 2)) == ["t-1", "t-2"]
    assert await scheduler.consumer().fetch(10, 0.2) == []


async def test_each_service_hears_its_own_subjects_from_the_beginning(world: World) -> None:
    submit, launcher = await world.bus("submit"), await world.bus("launcher")
    node = m.NodeChanged(
        node_id="gpu-1.rack.2", version=1, node=m.Node(id="gpu-1.rack.2"), changed_at=NOW
    )
    await submit.publish([goal(1), priority(1)])
    await launcher.publish([Envelope(id="n-1", source="launcher", time=NOW, message=node)])
    scheduler, quota = await world.bus("scheduler"), await world.bus("quota")
    assert ids(await fetch_all(scheduler.consumer(), 2)) == ["t-1", "n-1"]
    assert ids(await fetch_all(quota.consumer(), 1)) == ["t-1"]
    assert await quota.consumer().fetch(1, 0.1) == []
    assert await scheduler.consumer().fetch(1, 0.1) == []


async def test_what_is_given_beyond_what_is_heard_is_passed_over(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    await submit.publish([goal(1), priority(2), goal(3), priority(4), goal(5)])
    consumer, got = gateway.consumer(), []
    while len(got) < 2:
        batch = await consumer.fetch(10, WAIT_S)
        got += ids(batch)
        await ack_all(batch)
    assert got == ["p-2", "p-4"]
    # Nothing of it comes again.
    await asyncio.sleep(1.5 * ACK_WAIT_S)
    assert await consumer.fetch(10, 0.1) == []


async def test_a_large_batch_is_published_and_fetched_whole(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(number) for number in range(3000)])
    consumer, got = scheduler.consumer(), []
    while len(got) < 3000:
        batch = await consumer.fetch(256, WAIT_S)
        assert batch
        await ack_all(batch)
        got += ids(batch)
    assert got[:1] == ["t-0"]
    assert set(got) == {f"t-{number}" for number in range(3000)}


async def test_a_fetch_is_bounded_by_bytes(world: World) -> None:
    """Whatever was asked for; what is left comes with the next ones, each once."""
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    consumer, spec = scheduler.consumer(), a_spec()
    env = {"LONG": "x" * (BATCH_BYTES_MAX * 2 // 5)}
    large = a_task(spec=spec.model_copy(update={"roles": (replaced_env(spec.roles[0], env),)}))
    sent = [
        Envelope(id=f"t-{number}", source="submit", time=NOW, message=submitted_event(large))
        for number in range(5)
    ]
    await submit.publish(sent)
    got: list[str] = []
    while len(got) < len(sent):
        batch = await consumer.fetch(10, WAIT_S)
        sizes = [len(each.raw.body) for each in batch]
        assert sum(sizes[:-1]) < BATCH_BYTES_MAX
        await ack_all(batch)
        got += ids(batch)
    assert got == [each.id for each in sent]
    # A pull that stays open has brought its bytes at some time: the next one goes on.
    for number in range(5, 9):
        await submit.publish([replace(sent[0], id=f"t-{number}")])
        batch = await consumer.fetch(10, WAIT_S)
        assert ids(batch) == [f"t-{number}"]
        await ack_all(batch)
    assert await consumer.fetch(10, 0.1) == []


def replaced_env(role: m.Role, env: dict[str, str]) -> m.Role:
    return role.model_copy(update={"env": env})


async def test_publishing_nothing_is_nothing(world: World) -> None:
    await (await world.bus("submit")).publish([])


# What cannot be handled


async def test_dead_letters_keep_the_message_and_the_reason_and_never_come_again(
    world: World,
) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    await submit.publish([goal(1)])
    (one,) = await scheduler.consumer().fetch(1, WAIT_S)
    await one.dead_letter("no such thing:\nsecond line")
    assert await scheduler.consumer().fetch(1, 2 * ACK_WAIT_S) == []
    ((subject, reason, body),) = await world.dead_letters()
    assert subject == f"dlq.scheduler.{goal(1).subject}"
    assert reason.startswith("no such thing:")
    assert body == goal(1).body()


@pytest.mark.parametrize(
    ("headers", "body", "says"),
    [
        ({}, b"{}", "ce-type"),
        ({**goal(1).headers(), "ce-type": "shiftwork.task.v9.Unheard"}, b"{}", "Unheard"),
        (goal(1).headers(), b"\xff\x00 no json", "does not fit"),
        (goal(1).headers(), b'{"task_id": "t"}', "changed_at"),
    ],
)
async def test_what_cannot_be_decoded_says_why_and_can_be_set_apart(
    world: World, headers: dict[str, str], body: bytes, says: str
) -> None:
    scheduler = await world.bus("scheduler")
    await world.say(goal(1).subject, headers, body)
    (bad,) = await scheduler.consumer().fetch(10, WAIT_S)
    assert bad.envelope is None
    assert says in bad.problem
    await bad.dead_letter(bad.problem)
    ((_, reason, kept),) = await world.dead_letters()
    assert says in reason
    assert kept == body


async def test_a_message_on_the_subject_of_another_service_is_not_read(world: World) -> None:
    """What headers and body say is the publisher's claim; the server checks the subject alone."""
    gateway = await world.bus("gateway")
    usage = m.UsageRecorded(group="g", task_id="t", started_at=NOW, ended_at=NOW)
    state, assigned = "evt.task.t.state_changed", "evt.run.t.assigned"
    await world.say(state, goal(1).headers(), goal(1).body())
    honest = Envelope(id="u", source="quota", time=NOW, message=usage)
    await world.say(assigned, honest.headers(), honest.body())
    found = await fetch_all(gateway.consumer(), 2)
    assert [each.envelope for each in found] == [None, None]
    assert "belongs on" in found[0].problem
    assert "was published on" in found[1].problem


async def test_a_message_of_a_service_that_does_not_own_it_is_not_read(world: World) -> None:
    scheduler = await world.bus("scheduler")
    await world.say(goal(1).subject, goal(1).headers() | {"ce-source": "quota"}, goal(1).body())
    (bad,) = await scheduler.consumer().fetch(10, WAIT_S)
    assert bad.envelope is None
    assert "is published by submit, not by 'quota'" in bad.problem


async def test_a_service_says_only_what_it_owns(world: World) -> None:
    scheduler, quota = await world.bus("scheduler"), await world.bus("quota")
    with pytest.raises(BusDeniedError, match=r"evt\.task\.t\.goal_changed"):
        await scheduler.publish([goal(1)])
    assert await quota.consumer().fetch(1, 0.1) == []


# Commands


async def carry_out(command: Message) -> Message:
    assert isinstance(command, m.SetGoal)
    if command.task_id == "nobody":
        refusal = m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="no task nobody")
        return m.SetGoalReply(refusal=refusal)
    return m.SetGoalReply(revision=len(command.task_id))


async def test_a_command_is_answered_or_refused(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    async with submit.serve({m.SetGoal: carry_out}):
        done = await gateway.request(m.SetGoal(task_id="abc", goal=m.Goal.RUN), timeout_s=WAIT_S)
        refused = await gateway.request(m.SetGoal(task_id="nobody"), timeout_s=WAIT_S)
    assert done == m.SetGoalReply(revision=3)
    assert isinstance(refused, m.SetGoalReply)
    assert refused.refusal
    assert refused.refusal.code is m.RefusalCode.NOT_FOUND


async def test_nobody_there_is_known_at_once(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    async with submit.serve({m.SetGoal: carry_out}):
        pass
    # Long before the time for an answer is over, however busy the machine is.
    async with asyncio.timeout(30):
        with pytest.raises(BusUnavailableError, match=r"nobody takes cmd\.submit\.set_goal"):
            await gateway.request(m.SetGoal(task_id="t"), timeout_s=300.0)


async def test_no_answer_in_time_is_unavailable(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")

    async def slow(_: Message) -> Message:
        await asyncio.sleep(1.0)
        return m.SetGoalReply()

    async with submit.serve({m.SetGoal: slow}):
        with pytest.raises(BusUnavailableError, match="within"):
            await gateway.request(m.SetGoal(task_id="t"), timeout_s=0.2)


async def test_what_fails_inside_is_refused_and_the_next_is_served(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")

    async def breaks(command: Message) -> Message:
        if command == m.SetGoal(task_id="bad"):
            raise RuntimeError("broken inside")
        return await carry_out(command)

    async with submit.serve({m.SetGoal: breaks}):
        bad = await gateway.request(m.SetGoal(task_id="bad"), timeout_s=WAIT_S)
        good = await gateway.request(m.SetGoal(task_id="good"), timeout_s=WAIT_S)
    assert isinstance(bad, m.SetGoalReply)
    assert bad.refusal
    assert bad.refusal.code is m.RefusalCode.FAILED
    assert "broken inside" not in bad.refusal.detail
    assert good == m.SetGoalReply(revision=4)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (NotNowError("the database is away"), m.RefusalCode.UNAVAILABLE),
        (InvalidCommandError("a NUL character"), m.RefusalCode.INVALID),
        (ValueError("a defect"), m.RefusalCode.FAILED),
    ],
)
async def test_a_refusal_says_whether_trying_again_helps(
    world: World, problem: Exception, code: m.RefusalCode
) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")

    async def breaks(_: Message) -> Message:
        raise problem

    async with submit.serve({m.SetGoal: breaks}):
        reply = await gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S)
    assert isinstance(reply, m.SetGoalReply)
    assert reply.refusal
    assert reply.refusal.code is code
    assert ("try again" in reply.refusal.detail) == (code is m.RefusalCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("shiftwork.command.v1.SetGoal", b"no json", "does not fit"),
        ("shiftwork.command.v1.SetGoal", b'{"goal": "GOAL_DANCE"}', "does not fit"),
        ("shiftwork.command.v1.SetQuota", b"{}", "ce-type"),
        (None, b"{}", "ce-type"),
    ],
)
async def test_a_command_that_cannot_be_read_is_refused_never_met_with_silence(
    world: World, kind: str | None, body: bytes, says: str
) -> None:
    submit = await world.bus("submit")
    async with submit.serve({m.SetGoal: carry_out}):
        headers, answer = await world.ask(
            "cmd.submit.set_goal", {"ce-type": kind} if kind else {}, body
        )
    assert headers["ce-type"] == "shiftwork.command.v1.SetGoalReply"
    refusal = m.SetGoalReply.model_validate_json(answer).refusal
    assert refusal
    assert refusal.code is m.RefusalCode.INVALID
    assert says in refusal.detail
    if b"DANCE" in body:
        assert [(each.field, each.value) for each in refusal.errors] == [("goal", "GOAL_DANCE")]


async def test_commands_are_carried_out_side_by_side(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    together = asyncio.Barrier(5)

    async def meet(command: Message) -> Message:
        async with asyncio.timeout(WAIT_S):
            await together.wait()
        return await carry_out(command)

    async with submit.serve({m.SetGoal: meet}):
        replies = await asyncio.gather(
            *(gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S) for _ in range(5))
        )
    assert replies == [m.SetGoalReply(revision=1)] * 5


async def test_leaving_finishes_what_is_under_way(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    begun = asyncio.Event()

    async def slow(command: Message) -> Message:
        begun.set()
        await asyncio.sleep(0.3)
        return await carry_out(command)

    async with submit.serve({m.SetGoal: slow}):
        asked = asyncio.ensure_future(gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S))
        await begun.wait()
    assert await asked == m.SetGoalReply(revision=1)


async def test_two_processes_share_the_commands(world: World) -> None:
    gateway = await world.bus("gateway")
    served: dict[str, int] = {"one": 0, "two": 0}

    def counting(name: str) -> Callable[[Message], object]:
        async def count(command: Message) -> Message:
            served[name] += 1
            return await carry_out(command)

        return count

    async with contextlib.AsyncExitStack() as stack:
        for name in served:
            bus = await world.bus("submit")
            await stack.enter_async_context(bus.serve({m.SetGoal: counting(name)}))
        for _ in range(40):
            await gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S)
    assert sum(served.values()) == 40
    assert min(served.values()) > 0


async def test_an_assignment_of_8000_nodes_is_an_event_like_any_other(world: World) -> None:
    placements = tuple(
        m.Placement(
            rank=rank,
            role="worker",
            role_index=rank,
            node_id=f"node-{rank:05}.rack-{rank // 32:03}.hall-3.cluster-a.example.org",
            gpus=tuple(range(8)),
        )
        for rank in range(8_000)
    )
    message = m.RunAssigned(
        task_id="t",
        owner="ann",
        attempt=1,
        spec=m.TaskSpec(retry=m.RetryPolicy(), preemption=m.PreemptionPolicy()),
        placements=placements,
        assigned_at=NOW,
        start_deadline_at=NOW,
    )
    sent = Envelope(id="large", source="scheduler", time=NOW, message=message)
    # More than servers take by default.
    assert 1 << 20 < len(sent.body()) < EVENT_BYTES_MAX
    scheduler, gateway = await world.bus("scheduler"), await world.bus("gateway")
    # In one batch with others, as the relay publishes.
    await scheduler.publish([replace(sent, id=f"large-{number}") for number in range(20)])
    got = await fetch_all(gateway.consumer(), 20, seconds=30.0)
    assert [each.envelope and each.envelope.message for each in got] == [message] * 20
    await gateway.consumer().ack(got)


async def test_only_what_somebody_still_has_to_receive_takes_room(world: World) -> None:
    submit, quota = await world.bus("submit"), await world.bus("quota")
    gateway, scheduler = await world.bus("gateway"), await world.bus("scheduler")
    assert (await gateway.backlog()).messages == 0
    await submit.publish([goal(number) for number in range(10)])
    full = await gateway.backlog()
    assert full.messages == 10
    assert full.stored_bytes > 10 * 50
    assert 0 < full.share < 0.01

    async def consume(bus: Bus) -> None:
        consumer = bus.consumer()
        await consumer.ack(await fetch_all(consumer, 10))

    await consume(scheduler)
    await consume(quota)
    assert (await gateway.backlog()).messages == 10
    # The gateway is given everything and passes over these.
    await gateway.consumer().fetch(100, 1.0)
    async with asyncio.timeout(10):
        while (await gateway.backlog()).messages:  # noqa: ASYNC110 - a server has no event for it
            await asyncio.sleep(0.05)


async def test_a_request_whose_requester_has_gone_is_not_carried_out(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    carried_out: list[str] = []
    all_begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(command: Message) -> Message:
        assert isinstance(command, m.SetGoal)
        carried_out.append(command.task_id)
        if len(carried_out) == COMMANDS_MAX:
            all_begun.set()
        await go_on.wait()
        return m.SetGoalReply()

    async def ask(name: str, timeout_s: float) -> Message:
        return await gateway.request(m.SetGoal(task_id=name), timeout_s=timeout_s)

    async with submit.serve({m.SetGoal: slow}):
        # As many as are answered at once, so that the others wait.
        first = [asyncio.ensure_future(ask("first", WAIT_S * 2)) for _ in range(COMMANDS_MAX)]
        await all_begun.wait()
        gone = await asyncio.gather(*(ask("gone", 0.2) for _ in range(200)), return_exceptions=True)
        assert all(isinstance(each, BusUnavailableError) for each in gone)
        # A requester counts from its sending, the service from the arrival.
        await asyncio.sleep(0.5)
        go_on.set()
        await asyncio.gather(*first)
        assert await ask("last", WAIT_S) == m.SetGoalReply()
    assert carried_out == ["first"] * COMMANDS_MAX + ["last"]


async def test_a_request_that_finds_too_many_waiting_is_refused_as_busy(world: World) -> None:
    submit, gateway = await world.bus("submit"), await world.bus("gateway")
    carried_out = 0
    go_on = asyncio.Event()

    async def slow(_: Message) -> Message:
        nonlocal carried_out
        carried_out += 1
        await go_on.wait()
        return m.SetGoalReply()

    too_many = 10
    async with submit.serve({m.SetGoal: slow}):
        asked = [
            asyncio.ensure_future(gateway.request(m.SetGoal(task_id="t"), timeout_s=30.0))
            for _ in range(COMMANDS_MAX + COMMANDS_WAITING_MAX + too_many)
        ]
        first = asyncio.as_completed(asked)
        for _ in range(too_many):
            await next(first)
        busy = [each.result() for each in asked if each.done()]
        go_on.set()
        answers = await asyncio.gather(*asked)
    assert len(busy) == too_many
    for reply in busy:
        assert isinstance(reply, m.SetGoalReply)
        assert reply.refusal
        assert reply.refusal.code is m.RefusalCode.UNAVAILABLE
        assert "busy" in reply.refusal.detail
    assert carried_out == COMMANDS_MAX + COMMANDS_WAITING_MAX
    assert answers.count(m.SetGoalReply()) == carried_out


async def test_every_service_answers_its_own_reemit(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    gateway = await world.bus("gateway")

    async def reemit(command: Message) -> Message:
        assert isinstance(command, m.Reemit)
        return m.ReemitReply(events=len(command.service))

    async with submit.serve({m.Reemit: reemit}), scheduler.serve({m.Reemit: reemit}):
        for service in ("submit", "scheduler"):
            reply = await gateway.request(m.Reemit(service=service), timeout_s=WAIT_S)
            assert reply == m.ReemitReply(events=len(service))


async def test_a_service_serves_only_its_own_commands(world: World) -> None:
    scheduler = await world.bus("scheduler")
    with pytest.raises(ValueError, match="SetGoal"):
        async with scheduler.serve({m.SetGoal: carry_out}):
            pass


async def test_an_exception_of_the_serving_body_comes_out_as_it_is(world: World) -> None:
    submit = await world.bus("submit")
    with pytest.raises(LookupError, match="mine"):
        async with submit.serve({m.SetGoal: carry_out}):
            raise LookupError("mine")


# Telemetry


def chunk(rank: int, task_id: str = "t") -> Envelope:
    message = m.LogChunk(
        task_id=task_id, attempt=1, rank=rank, data=b"\x00line\n", collected_at=NOW
    )
    return Envelope(id=f"l-{rank}", source="log_collector", time=NOW, message=message)


async def test_telemetry_passes_by_those_who_listen(world: World) -> None:
    collector, gateway = await world.bus("log_collector"), await world.bus("gateway")
    await collector.send_telemetry(chunk(0))
    await asyncio.sleep(0.1)
    async with gateway.listen("log.*.*.*") as stream:
        await collector.send_telemetry(chunk(1))
        await collector.send_telemetry(chunk(2))
        async with asyncio.timeout(WAIT_S):
            assert [await anext(stream), await anext(stream)] == [chunk(1), chunk(2)]


async def test_a_slow_listener_loses_the_oldest(world: World) -> None:
    collector, gateway = await world.bus("log_collector"), await world.bus("gateway")
    async with gateway.listen("log.t.>") as stream, gateway.listen("log.last.>") as last:
        for rank in range(1500):
            await collector.send_telemetry(chunk(rank))
        await collector.send_telemetry(chunk(0, "last"))
        async with asyncio.timeout(WAIT_S):
            # It came to this connection after all others.
            await anext(last)
            await asyncio.sleep(0.3)
            got = [await anext(stream) for _ in range(1000)]
    assert got[0] == chunk(500)
    assert got[-1] == chunk(1499)


# The server goes and comes back


async def test_everything_goes_on_after_the_server_was_killed(world: World) -> None:
    submit, scheduler = await world.bus("submit"), await world.bus("scheduler")
    gateway = await world.bus("gateway")
    await submit.publish([goal(1), goal(2)])
    one, two = await fetch_all(scheduler.consumer(), 2)
    await one.ack()
    before = submit.server_id
    assert before
    async with submit.serve({m.SetGoal: carry_out}):
        waiting = asyncio.ensure_future(scheduler.consumer().fetch(10, 30.0))
        # The server writes a durable's place to the disk soon, not at once; dying before that
        # would bring the acknowledged message again.
        await asyncio.sleep(0.6)
        world.kill()
        await until(lambda: not (submit.connected or scheduler.connected or gateway.connected))
        with contextlib.suppress(BusUnavailableError):
            await waiting
        for attempt in (
            submit.publish([goal(3)]),
            scheduler.consumer().fetch(1, 0.5),
            two.ack(),
            gateway.request(m.SetGoal(task_id="t"), timeout_s=0.5),
        ):
            with pytest.raises(BusUnavailableError):
                await attempt
        await submit.send_telemetry(chunk(1))
        await world.start()
        await until(lambda: submit.connected and scheduler.connected and gateway.connected, 10)
        assert submit.server_id not in ("", before)
        await eventually(lambda: submit.publish([goal(3)]))
        got = await eventually_all(scheduler.consumer(), {"t-2", "t-3"})
        assert "t-1" not in got
        reply = await eventually(lambda: gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S))
        assert reply == m.SetGoalReply(revision=1)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a server process has no event
            await asyncio.sleep(0.01)


async def eventually(action: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(10):
        while True:
            try:
                return await action()
            except BusUnavailableError:
                await asyncio.sleep(0.05)


async def eventually_all(consumer: Consumer, wanted: set[str]) -> set[str]:
    got: set[str] = set()
    async with asyncio.timeout(10):
        while not wanted <= got:
            with contextlib.suppress(BusUnavailableError):
                got |= set(ids(await consumer.fetch(10, 1.0)))
    return got


async def test_a_closed_bus_says_so(world: World) -> None:
    submit = await world.bus("submit")
    await submit.close()
    assert not submit.connected
    with pytest.raises(BusUnavailableError):
        await submit.publish([goal(1)])
