"""The queue over real servers: in the scheduler's order, and without a scheduler."""

from __future__ import annotations

import pytest

from tests.kit.platform import running_platform, until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]


async def test_the_queue_is_listed_and_refused_while_no_scheduler_leads() -> None:
    async with running_platform() as platform:
        running = await platform.submit("running", "--steps", "4000", gpus_per_node=2)
        await platform.until_state(running, "running")
        low = await platform.submit("low", "--steps", "3", gpus_per_node=2, priority="low")
        first = await platform.submit("first", "--steps", "3", gpus_per_node=2)
        second = await platform.submit("second", "--steps", "3", gpus_per_node=2)

        async def rows() -> list[dict[str, object]]:
            reply = await platform.client.get("/v1/queue")
            return reply.json()["items"] if reply.status_code == 200 else []

        async def all_wait() -> bool:
            return len(await rows()) == 3

        await until(all_wait, 20.0, "three tasks wait")
        found = await rows()
        assert [each["id"] for each in found] == [first, second, low]
        assert [each["position"] for each in found] == [1, 2, 3]
        assert found[0]["waits_for"] == {
            "kind": "nodes",
            "tasks_ahead": 0,
            "promised_nodes": 0,
            "until": None,
        }

        assert platform.dev.processes.kill("scheduler")
        reply = await platform.client.get("/v1/queue")
        if reply.status_code != 200:
            assert (reply.status_code, reply.json()["type"]) == (503, "unavailable")
            assert "the scheduler does not answer" in reply.json()["detail"]
        await until(all_wait, 20.0, "the scheduler that was started again answers")
        assert [each["id"] for each in await rows()] == [first, second, low]
