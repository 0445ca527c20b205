"""A whole platform for one test: real servers, every service a process, tasks through HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from libs.bus.connection import Credentials as BusCredentials
from services.allinone.client import admin_client, items
from services.allinone.data_folder import DataFolder, Options
from services.allinone.dev import Dev
from services.allinone.embedded.credentials import NATS_ADMIN
from tests.chaos import invariants
from tests.chaos.chaos import SETTINGS, running

TASK = Path(invariants.__file__).with_name("task.py")
ENDED = frozenset(("succeeded", "failed", "stopped", "rejected"))


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder with a short name; nothing of it is left, neither files nor processes."""
    folder = Path(tempfile.mkdtemp(prefix="swi-"))
    try:
        yield folder
        left = [" ".join(process.cmdline()) for process in invariants.living_processes(str(folder))]
        assert not left
    finally:
        for process in invariants.living_processes(str(folder)):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def until(
    condition: Callable[[], Awaitable[bool]], seconds_max: float, what: str = "it"
) -> float:
    """How long it took to become true; AssertionError if it takes too long."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(httpx.TransportError):
            if await condition():
                return time.monotonic() - began
        assert time.monotonic() - began < seconds_max, f"{what} not within {seconds_max:g} s"
        await asyncio.sleep(0.05)


@dataclass
class Platform:
    """The platform and a client of it."""

    folder: Path
    dev: Dev
    client: httpx.AsyncClient
    output: list[str] = field(default_factory=list)

    @property
    def records(self) -> Path:
        return self.folder / "records"

    @property
    def admin(self) -> BusCredentials:
        return BusCredentials(
            NATS_ADMIN, self.dev.data_folder.credentials.nats_password(NATS_ADMIN)
        )

    async def submit(self, name: str, *arguments: str, **fields: Any) -> str:
        """A task of the chaos tests, submitted as a careful client does."""
        self.records.mkdir(exist_ok=True)
        command = [sys.executable, str(TASK), "--record", str(self.records)]
        command += ["--work", str(self.folder / "work"), *arguments]
        body = {"name": name, "gpus_per_node": 1, "command": command, **fields}
        while True:
            try:
                answer = await self.client.post(
                    "/v1/tasks", json=body, headers={"idempotency-key": name}
                )
            except httpx.TransportError:
                answer = None
            if answer is not None and not answer.is_server_error:
                assert answer.is_success, answer.text
                return str(answer.json()["id"])
            await asyncio.sleep(0.1)

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/v1/tasks/{task_id}")
        return answer.json() if answer.is_success else {"state": f"HTTP {answer.status_code}"}

    async def until_state(self, task_id: str, state: str, seconds_max: float = 20.0) -> float:
        async def reached() -> bool:
            found = (await self.task(task_id))["state"]
            assert found == state or found not in ENDED, f"{task_id} {found}"
            return found == state

        return await until(reached, seconds_max, f"{task_id} {state}")

    def lives(self, task_id: str) -> list[invariants.Life]:
        found = invariants.lives(self.records) if self.records.exists() else []
        return [life for life in found if life.span.task_id == task_id]

    async def tasks(self) -> list[dict[str, Any]]:
        return await items(self.client, "/v1/tasks")


@contextlib.asynccontextmanager
async def running_platform(
    nodes: int = 1, slots: int = 2, settings: Mapping[str, str] = SETTINGS
) -> AsyncIterator[Platform]:
    """A fresh platform; the output of the services is printed if the test fails."""
    with scratch() as folder:
        output: list[str] = []
        dev = Dev(
            DataFolder(folder / "platform"),
            Options(port=0, nodes=nodes, slots=slots, tasks_as_root=True),
            os.getpid(),
            report=lambda name, line: output.append(f"{name} | {line}"),
            # With a server that is not, a kill -9 loses what was committed just before.
            durable=True,
            settings=settings,
        )
        try:
            async with running(dev), admin_client(dev.data_folder, dev.url) as client:
                try:
                    yield Platform(folder, dev, client, output)
                except BaseException:
                    with contextlib.suppress(httpx.HTTPError):
                        for task in await items(client, "/v1/tasks"):
                            print(task["id"], task["name"], task["state"], task["reason"])
                        for event in await items(client, "/v1/events"):
                            print(event["at"], event["type"], event["task"], event["attempt"])
                    raise
        except BaseException:
            print("\n".join(line for line in output if "database not reached" not in line)[-8000:])
            raise


class Startable(Protocol):
    async def start(self) -> None: ...


@contextlib.asynccontextmanager
async def held_down(server: Startable) -> AsyncIterator[None]:
    """Whoever starts this server inside the context waits until its end."""
    start, gate = server.start, asyncio.Event()

    async def later() -> None:
        await gate.wait()
        await start()

    server.start = later  # type: ignore[method-assign]
    try:
        yield
    finally:
        server.start = start  # type: ignore[method-assign]
        gate.set()


def metric(text: str, name: str) -> float:
    """One sample of an exposition; 0 if it has never been set."""
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0
