from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from libs.store.tables import LEADER, VERSION_TABLE
from tests.kit.platform import running_platform, until


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(120)
async def test_a_gateway_without_its_rows_asks_for_the_facts_again() -> None:
    async with running_platform() as platform:
        done = await platform.submit("done", "--steps", "3")
        running = await platform.submit("running", "--steps", "2000")
        waiting = await platform.submit("waiting", "--steps", "3", gpus_per_node=2)
        await platform.until_state(done, "succeeded")
        await platform.until_state(running, "running")
        before = {task["id"]: task for task in await platform.tasks()}

        async def usage_of(task_id: str) -> dict[str, Any]:
            reply = await platform.client.get("/v1/usage?group_by=task,outcome,user")
            found = {item["task"]: item for item in reply.json()["items"]}
            return found.get(task_id, {})

        used_before = await usage_of(done)
        assert used_before["held_node_seconds"] > 0
        nodes_before = (await platform.client.get("/v1/nodes")).json()["items"]

        postgres = platform.dev.servers.postgres
        url = postgres.admin_url.replace("/postgres?", "/shiftwork?")
        admin = await asyncpg.connect(url, password=postgres.admin_password)
        try:
            found = await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname='gateway'")
            names = {row["tablename"] for row in found} - {VERSION_TABLE, LEADER}
            assert len(names) > 5
            await admin.execute(
                "TRUNCATE " + ", ".join(f'gateway."{name}"' for name in sorted(names))
            )
        finally:
            await admin.close()
        assert platform.dev.processes.kill("gateway")

        async def rebuilt() -> bool:
            answer = await platform.client.get("/v1/tasks")
            now = {task["id"]: task for task in answer.json()["items"]}
            return all(
                now.get(task_id, {}).get("state") == before[task_id]["state"]
                for task_id in (done, running, waiting)
            )

        await until(rebuilt, 30.0, "the tasks are shown again")
        now = {task["id"]: task for task in await platform.tasks()}
        for task_id, was in before.items():
            for name in ("name", "owner", "priority", "attempt", "submitted_at", "roles"):
                assert now[task_id][name] == was[name]

        async def nodes() -> bool:
            got = (await platform.client.get("/v1/nodes")).json()["items"]
            return [node["id"] for node in got] == [node["id"] for node in nodes_before]

        await until(nodes, 10.0, "the nodes are shown again")

        async def ledger() -> bool:
            return bool(await usage_of(done) and await usage_of(running))

        await until(ledger, 10.0, "the ledger is shown again")
        used = await usage_of(done)
        for name in ("outcome", "user", "attempts"):
            assert used[name] == used_before[name]
        # The scheduler has forgotten when it was assigned: it counts from its start.
        lost = used_before["starting_seconds"]
        held = used_before["held_node_seconds"]
        assert used["held_node_seconds"] == pytest.approx(held - lost, abs=0.01)
        # And it goes on.
        await platform.client.put(f"/v1/tasks/{running}/goal", json={"goal": "stop"})
        await platform.until_state(waiting, "succeeded", 60.0)
