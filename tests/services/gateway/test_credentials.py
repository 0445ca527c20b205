"""The gateway on real servers, under its own credentials: all it needs, and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from libs.bus.connection import BusConfig
from libs.bus.jetstream import JetStreamBus
from libs.bus.jetstream import connect as connect_bus
from libs.bus.port import BusDeniedError
from libs.bus.provision import provision
from libs.bus.topology import permissions_of
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.contracts.ids import RunId, TaskId
from libs.contracts.run_token import make_run_token
from libs.service.http import serve_http
from libs.service.runner import Runner
from libs.service.wiring import Wiring, connect, topology
from services.gateway.main import WIRING as GATEWAY
from services.submit.main import WIRING as SUBMIT
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    RUN_KEY,
    Others,
    a_node,
    assigned,
    preemption,
    sse,
)

if TYPE_CHECKING:
    from tests.kit.nats_server import NatsServer, StartNats
    from tests.kit.postgres import Database

pytestmark = pytest.mark.server
VOICES: dict[str, list[Any]] = {
    "scheduler": [m.Explain, m.Decisions],
    "launcher": [m.AckCheckpoint, m.SetSchedulable, m.SetNodeMarks],
    "log_collector": [m.ListLogs, m.ReadLog],
}


class Platform:
    """The gateway and submit with their real connections, and voices for the others."""

    def __init__(self, folder: Path, nats: NatsServer, database: Database) -> None:
        self.folder = folder
        self.nats = nats
        self.database = database
        self.others = Others()
        self.voices: dict[str, JetStreamBus] = {}
        self.url = ""
        self.messages_sent = 0
        (folder / "admin-token").write_text(ADMIN_TOKEN)
        (folder / "run-key").write_text(RUN_KEY)

    async def settings(self, wiring: Wiring) -> Any:
        role = await self.database.role(wiring.name)
        more: dict[str, Any] = {}
        if wiring is GATEWAY:
            more = {
                "admin_token_file": self.folder / "admin-token",
                "run_token_key_file": self.folder / "run-key",
            }
        return wiring.settings(
            database_url=role.url,
            database_password_file=role.password_file,
            nats_url=self.nats.url,
            nats_user=wiring.name,
            nats_password_file=self.nats.password_file(wiring.name),
            migrate=True,
            **more,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Platform]:
        await provision([self.nats.url], self.nats.admin, topology([GATEWAY, SUBMIT]))
        others = self.others
        serving: dict[str, dict[Any, Any]] = {
            "scheduler": {m.Explain: others.explain, m.Decisions: others.decide},
            "launcher": {
                m.AckCheckpoint: others.ack,
                m.SetSchedulable: others.set_schedulable,
                m.SetNodeMarks: others.set_node_marks,
            },
            "log_collector": {m.ListLogs: others.list_logs, m.ReadLog: others.read_log},
        }
        async with AsyncExitStack() as stack:
            for name, handlers in serving.items():
                config = BusConfig((self.nats.url,), name, self.nats.user(name))
                self.voices[name] = bus = await connect_bus(config)
                stack.push_async_callback(bus.close)
                await stack.enter_async_context(bus.serve(handlers))
            runners: list[Runner] = []
            for wiring in (GATEWAY, SUBMIT):
                settings = await self.settings(wiring)
                ports = await stack.enter_async_context(connect(wiring, settings))
                runners.append(Runner(wiring.build(settings, ports), settings))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            bound: list[int] = []
            app = runners[0].service.app
            tasks = [group.create_task(runner.run()) for runner in runners]
            tasks.append(
                group.create_task(
                    serve_http(
                        app,
                        host="127.0.0.1",
                        port=0,
                        ready=lambda: runners[0].ready,
                        on_bound=bound.append,
                    )
                )
            )
            await until(lambda: bool(bound) and all(runner.epoch for runner in runners), 20)
            self.url = f"http://127.0.0.1:{bound[0]}"
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    async def publish(self, owner: str, message: Any) -> None:
        self.messages_sent += 1
        envelope = Envelope(f"{owner}-{self.messages_sent}", owner, at(0), message)
        await self.voices[owner].publish([envelope])


async def test_everything_works_under_its_own_credentials(
    tmp_path: Path, nats_start: StartNats, database: Database
) -> None:
    users = {wiring.name: wiring.permissions for wiring in (GATEWAY, SUBMIT)}
    users |= {name: permissions_of(name) for name in VOICES}
    nats = await nats_start(users)
    async with (
        Platform(tmp_path, nats, database).running() as platform,
        httpx.AsyncClient(
            base_url=platform.url,
            headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=10,
        ) as admin,
    ):
        made = await admin.post("/v1/tasks", json={"command": ["x"], "name": "first"})
        assert made.status_code == 201, made.text
        task = made.json()["id"]
        assert (await admin.get(f"/v1/tasks/{task}")).status_code == 200
        run_token = make_run_token(RUN_KEY.encode(), RunId(TaskId(task), 1))
        run_headers = {"authorization": f"Bearer {run_token}"}
        waiting = asyncio.ensure_future(
            admin.get("/v1/run?wait_seconds=10&seen=1", headers=run_headers)
        )
        await platform.publish("launcher", a_node("n0"))
        await platform.publish("scheduler", assigned(task))
        await platform.publish("scheduler", preemption(task))
        assert (await waiting).json()["preempt"] is True
        platform.others.live_attempts = {task: 1}
        platform.others.nodes = {"n0"}
        saved = await admin.post(
            "/v1/run/checkpoints", json={"step": 1, "uri": "/c"}, headers=run_headers
        )
        assert saved.status_code == 201, saved.text
        # Every command that the gateway sends, and the telemetry that it subscribes to.
        assert (await admin.put(f"/v1/tasks/{task}/goal", json={"goal": "pause"})).is_success
        assert (await admin.put(f"/v1/tasks/{task}/priority", json={"priority": "low"})).is_success
        assert (await admin.get(f"/v1/tasks/{task}/explain")).is_success
        assert (await admin.get(f"/v1/tasks/{task}/decisions")).is_success
        assert (await admin.put("/v1/nodes/n0/schedulable", json={"schedulable": False})).is_success
        platform.others.outputs = {(1, 0): b"one\n"}
        url = f"/v1/tasks/{task}/logs?follow=1"
        async with admin.stream("GET", url) as stream, asyncio.timeout(10):
            lines = sse(stream)
            assert (await anext(lines)).data["text"] == "one\n"
            platform.others.outputs[(1, 0)] += b"two\n"
            chunk = m.LogChunk(
                task_id=task,
                attempt=1,
                role="worker",
                offset=4,
                data=b"two\n",
                collected_at=at(1),
            )
            await platform.voices["log_collector"].send_telemetry(
                Envelope("c1", "log_collector", at(1), chunk)
            )
            assert (await anext(lines)).data["text"] == "two\n"

        async def events_arrived() -> bool:
            reply = await admin.get("/v1/events")
            return len(reply.json()["items"]) >= 6

        await until(events_arrived)


async def test_the_gateway_may_not_publish_events_of_another_service(
    nats_start: StartNats,
) -> None:
    nats = await nats_start({"gateway": GATEWAY.permissions})
    await provision([nats.url], nats.admin, topology([GATEWAY]))
    bus = await connect_bus(BusConfig((nats.url,), "gateway", nats.user("gateway")))
    try:
        envelope = Envelope("x", "gateway", at(0), a_node("n0"))
        with pytest.raises(BusDeniedError):
            await bus.publish([envelope])
    finally:
        await bus.close()
