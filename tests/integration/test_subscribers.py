"""The example subscribers, stock clients, read real events with a monitoring user's credentials."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from libs.bus.topology import HISTORY, HISTORY_DOMAIN
from tests.kit.nats_server import StartNats
from tests.services.allinone.embedded.test_monitoring_user import READER, Monitored, monitored

# A server may take half a minute until its copy of the events follows them.
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]

FOLDER = Path(__file__).parents[2] / "examples/subscribers"
PYTHON = [sys.executable, str(FOLDER / "subscribe.py")]
NODE = [shutil.which("node") or "node", str(FOLDER / "subscribe.mjs")]
PROGRAMS = pytest.mark.parametrize(
    "program",
    [
        pytest.param(PYTHON, id="python"),
        # make test-login installs what it needs.
        pytest.param(NODE, id="node", marks=pytest.mark.login),
    ],
)


def credentials(site: Monitored, folder: Path) -> Path:
    """The document that ``shiftwork monitor-credentials`` writes."""
    user = site.server.user(READER)
    file = folder / "reader.json"
    document = {
        "url": site.server.url,
        "user": user.user,
        "password": user.password,
        "live": "evt.>",
        "domain": HISTORY_DOMAIN,
        "stream": HISTORY,
        "durable": READER,
    }
    file.write_text(json.dumps(document))
    return file


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncGenerator[asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(45):
            yield process.stdout
    finally:
        process.kill()
        await process.wait()


async def events(lines: asyncio.StreamReader, count: int) -> list[list[str]]:
    """Number, type and subject of the next events."""
    found = [(await lines.readline()).decode().split(" ", 3) for _ in range(count)]
    assert all(json.loads(each[3])["owner"] for each in found)
    return [each[:3] for each in found]


def submitted(number: int, task_id: str) -> list[str]:
    return [str(number), "shiftwork.task.v1.TaskSubmitted", f"evt.task.{task_id}.submitted"]


@PROGRAMS
async def test_an_example_prints_events_as_they_come(
    nats_start: StartNats, tmp_path: Path, program: list[str]
) -> None:
    async with (
        monitored(nats_start) as site,
        running(*program, str(credentials(site, tmp_path))) as lines,
    ):
        assert await lines.readline() == b"subscribed\n"
        await site.publish("t1", "t2")
        assert await events(lines, 2) == [submitted(1, "t1"), submitted(2, "t2")]


@PROGRAMS
async def test_an_example_goes_on_behind_what_it_acknowledged(
    nats_start: StartNats, tmp_path: Path, program: list[str]
) -> None:
    async with monitored(nats_start) as site:
        command = [*program, str(credentials(site, tmp_path)), "--history"]
        await site.publish("t1", "t2")
        async with running(*command) as lines:
            assert await events(lines, 2) == [submitted(1, "t1"), submitted(2, "t2")]
            # The acknowledgement of the second is written before the third is printed.
            await site.publish("t3")
            assert await events(lines, 1) == [submitted(3, "t3")]
        await site.publish("t4")
        async with running(*command) as lines:
            numbers = [int(each[0]) for each in await events(lines, 1)]
            assert numbers[0] in {3, 4}
