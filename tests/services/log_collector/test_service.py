from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from libs.contracts.messages import ListLogs, LogChunk, ReadLog, ReadLogReply
from libs.service.clock import SystemClock
from libs.service.runner import Runner
from services.log_collector.domain import Address
from services.log_collector.main import WIRING
from services.log_collector.sources.files import output_path
from tests.kit.memory import MemoryPlatform
from tests.services.log_collector.collector_harness import (
    exited,
    key_of,
    settings_with,
    started,
)


async def test_a_running_service_stores_publishes_and_answers(tmp_path: Path) -> None:
    """The whole service under its runner: real files, real time, the bus and store in memory."""
    platform = MemoryPlatform(SystemClock())
    gateway = platform.connection("gateway")
    settings = settings_with(runs_dir=tmp_path / "runs", logs_dir=tmp_path / "logs")
    service = platform.build(WIRING, settings)
    assert service.name == WIRING.name == WIRING.tables.schema
    path = output_path(tmp_path / "runs", Address(key_of(), "n0"))
    path.parent.mkdir(parents=True)

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
            await platform.publish(started())
            path.write_bytes(b"hello\n")
            first = await anext(aiter(chunks))
            assert isinstance(first.message, LogChunk)
            assert (first.message.offset, first.message.data) == (0, b"hello\n")
            await until_read(b"hello\n", complete=False)
            with path.open("ab") as file:
                file.write(b"bye\n")
            await platform.publish(exited())
            await until_read(b"hello\nbye\n", complete=True)
        logs: Any = await gateway.request(ListLogs(task_id="t1"), timeout_s=5)
        assert [(log.size, log.complete) for log in logs.logs] == [(10, True)]
        running.cancel()
