from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.contracts.envelope import Envelope
from libs.contracts.messages import ListLogs, LogChunk, ReadLog, ReadLogReply
from libs.service.clock import SystemClock
from libs.service.definition import Ports
from libs.service.runner import Runner
from libs.store.memory import MemoryDatabase, MemoryStore
from services.log_collector.domain import Address
from services.log_collector.main import WIRING, build
from services.log_collector.sources.files import output_path
from services.log_collector.tables import TABLES
from tests.services.log_collector.collector_harness import (
    exited,
    key_of,
    numbers,
    settings_with,
    started,
)


async def test_a_running_service_stores_publishes_and_answers(tmp_path: Path) -> None:
    """The whole service under its runner: real files, real time, the bus and store in memory."""
    clock = SystemClock()
    broker = MemoryBroker(Random(1))
    launcher, gateway = MemoryBus(broker, "launcher"), MemoryBus(broker, "gateway")
    bus = MemoryBus(broker, "log_collector", WIRING.consumes)
    database = MemoryDatabase()
    store = MemoryStore(database, TABLES, clock=clock, source="log_collector", new_id=numbers())
    settings = settings_with(runs_dir=tmp_path / "runs", logs_dir=tmp_path / "logs")
    service = build(settings, Ports(store=store, bus=bus, clock=clock))
    assert service.name == WIRING.name == TABLES.schema
    path = output_path(tmp_path / "runs", Address(key_of(), "n0"))
    path.parent.mkdir(parents=True)

    async def say(event: Any, number: int) -> None:
        await launcher.publish([Envelope(f"e{number}", "launcher", clock.now(), event)])

    async def until_read(wanted: bytes, *, complete: bool) -> None:
        while True:
            query = ReadLog(task_id="t1", attempt=1)
            reply = await gateway.request(query, timeout_s=5)
            assert isinstance(reply, ReadLogReply)
            if reply.data == wanted and reply.complete is complete:
                return
            await asyncio.sleep(0.01)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(Runner(service, settings).run())
        async with gateway.listen("log.t1.1.0") as chunks:
            await say(started(), 1)
            path.write_bytes(b"hello\n")
            first = await anext(aiter(chunks))
            assert isinstance(first.message, LogChunk)
            assert (first.message.offset, first.message.data) == (0, b"hello\n")
            await until_read(b"hello\n", complete=False)
            with path.open("ab") as file:
                file.write(b"bye\n")
            await say(exited(), 2)
            await until_read(b"hello\nbye\n", complete=True)
        logs: Any = await gateway.request(ListLogs(task_id="t1"), timeout_s=5)
        assert [(log.size, log.complete) for log in logs.logs] == [(10, True)]
        running.cancel()
