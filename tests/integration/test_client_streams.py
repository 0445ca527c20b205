"""The client library's streams while the gateway's process is killed."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from shiftwork import AsyncClient, Client

from tests.kit.platform import ENDED, Platform, running_platform, until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]
LINES = 150
COUNTS = f"import time\nfor n in range({LINES}):\n    print(n, flush=True)\n    time.sleep(0.04)\n"


class Read:
    """What one client has read of all events and of one task's output."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.positions: list[int] = []
        self.output = b""

    def takes(self, event: Any) -> bool:
        """False behind the last event of the task."""
        self.positions.append(event["position"])
        is_state = event["type"] == "task.state_changed" and event["task"] == self.task
        return not (is_state and event["data"].get("state") in ENDED)


def wait(url: str, token: str, read: Read) -> None:
    with Client(url, token) as client:
        for output in client.tasks.follow_logs(read.task):
            read.output += output.data


def wait_for_events(url: str, token: str, read: Read) -> None:
    with Client(url, token) as client:
        for event in client.events.follow(from_="0"):
            if not read.takes(event):
                return


async def read_output(client: AsyncClient, read: Read) -> None:
    async for output in client.tasks.follow_logs(read.task):
        read.output += output.data


async def read_events(client: AsyncClient, read: Read) -> None:
    async for event in client.events.follow(from_="0"):
        if not read.takes(event):
            return


async def kills(platform: Platform, read: Read) -> None:
    """Kill the gateway several times while the task prints."""
    for lines in (20, 60, 100):

        async def printed(lines: int = lines) -> bool:
            return read.output.count(b"\n") >= lines

        await until(printed, 60, f"{lines} lines")
        assert platform.dev.processes.kill("gateway")


async def test_a_killed_gateway_leaves_no_gap_and_no_repetition() -> None:
    async with running_platform() as platform:
        url = platform.dev.url
        token = platform.client.headers["authorization"].removeprefix("Bearer ")
        body = {"command": [sys.executable, "-c", COUNTS], "gpus_per_node": 0}
        task = (await platform.client.post("/v1/tasks", json=body)).json()["id"]
        sync, native = Read(task), Read(task)
        async with AsyncClient(url, token) as client, asyncio.timeout(100):
            await asyncio.gather(
                asyncio.to_thread(wait, url, token, sync),
                asyncio.to_thread(wait_for_events, url, token, sync),
                read_output(client, native),
                read_events(client, native),
                kills(platform, native),
            )
        wanted = "".join(f"{n}\n" for n in range(LINES)).encode()
        known = (await platform.client.get("/v1/events", params={"limit": 1000})).json()["items"]
        positions = [each["position"] for each in known]
        for read in (sync, native):
            assert read.output == wanted
            assert read.positions == positions[: len(read.positions)]
