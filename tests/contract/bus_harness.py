"""A bus server and the services' connections to it, in memory and on NATS."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from nats.js.errors import NotFoundError

from libs.bus.connection import BusConfig, ServerClient, open_client
from libs.bus.jetstream import connect
from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.bus.port import (
    Bus,
    BusUnavailableError,
    Consumer,
    Delivery,
)
from libs.bus.provision import provision
from libs.bus.topology import Topology, permissions_of, topology_of
from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.registry import ROUTES
from tests.kit.infra import Infra
from tests.kit.nats_server import NatsServer

T = TypeVar("T")
ACK_WAIT_S = 0.4
WAIT_S = 3.0
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CONSUMES: dict[str, tuple[type[Message], ...]] = {
    "scheduler": (m.TaskSubmitted, m.GoalChanged, m.NodeChanged),
    "quota": (m.GoalChanged,),
    # Given everything: the rest is passed over.
    "gateway": (m.TaskStateChanged, m.PriorityChanged, m.RunAssigned),
}


class BusServer:
    """One server and the services' connections to it."""

    async def bus(self, service: str) -> Bus:
        raise NotImplementedError

    async def send_raw(self, subject: str, headers: dict[str, str], body: bytes) -> None:
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


class MemoryServer(BusServer):
    def __init__(self) -> None:
        self.broker = MemoryBroker(random.Random(7), ack_wait_s=ACK_WAIT_S)
        for service, kinds in CONSUMES.items():
            MemoryBus(self.broker, service, kinds)

    async def bus(self, service: str) -> Bus:
        return MemoryBus(self.broker, service, CONSUMES.get(service, ()))

    async def send_raw(self, subject: str, headers: dict[str, str], body: bytes) -> None:
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


class RealServer(BusServer):
    def __init__(self, folder: Path, infra: Infra) -> None:
        requests = [kind for kind, route in ROUTES.items() if route.reply is not None]
        users = {
            service: permissions_of(service, consumes=CONSUMES.get(service, ()))
            for service in ("submit", "scheduler", "launcher", "quota", "log_collector")
        } | {
            "gateway": permissions_of(
                "gateway",
                consumes=CONSUMES["gateway"],
                requests=requests,
                follows=[m.LogChunk],
                watches=True,
            )
        }
        self.nats = NatsServer(folder, users, infra)
        self._open: list[Bus] = []

    async def provision(self) -> None:
        topology = topology_of(CONSUMES)
        consumers = tuple(replace(each, ack_wait_s=ACK_WAIT_S) for each in topology.consumers)
        wanted = Topology(topology.streams, consumers)
        if self.nats.infra is not Infra.EMBEDDED:
            async with self.client() as client:
                for stream in wanted.streams:
                    with contextlib.suppress(NotFoundError):
                        await client.jetstream().delete_stream(stream.name)
        await provision([self.nats.url], self.nats.admin, wanted)

    @contextlib.asynccontextmanager
    async def client(self, user: str = "admin") -> AsyncIterator[ServerClient]:
        client = await open_client(BusConfig((self.nats.url,), user, self.nats.user(user)))
        try:
            yield client
        finally:
            await client.close()

    async def bus(self, service: str) -> Bus:
        bus = await connect(
            BusConfig(
                urls=(self.nats.url,),
                service=service,
                credentials=self.nats.user(service),
                consumes=CONSUMES.get(service, ()),
                reconnect_wait_s=0.05,
            )
        )
        self._open.append(bus)
        return bus

    async def send_raw(self, subject: str, headers: dict[str, str], body: bytes) -> None:
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
        self.nats.kill()

    async def start(self) -> None:
        await self.nats.start()

    async def close(self) -> None:
        for bus in self._open:
            await bus.close()
        await self.nats.stop()


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.server)])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BusServer]:
    if request.param == "memory":
        yield MemoryServer()
        return
    server = RealServer(tmp_path, request.getfixturevalue("infra"))
    try:
        await server.start()
        await server.provision()
        yield server
    finally:
        await server.close()


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


# Commands


async def carry_out(command: Message) -> Message:
    assert isinstance(command, m.SetGoal)
    if command.task_id == "nobody":
        refusal = m.Refusal(code=m.RefusalCode.NOT_FOUND, detail="no task nobody")
        return m.SetGoalReply(refusal=refusal)
    return m.SetGoalReply(revision=len(command.task_id))
