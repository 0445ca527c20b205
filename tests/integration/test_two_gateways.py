"""Two real gateway processes on one database and one bus: what one commits, the other shows."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping

import httpx
import pytest

from tests.kit.platform import Platform, running_platform, until

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]
# Only a hint is so fast where polls are this far apart; and only a poll comes without one.
SELDOM = {"SHIFTWORK_GATEWAY_POLL_SECONDS": "10", "SHIFTWORK_GATEWAY_AUTH_CACHE_SECONDS": "300"}
EVENTS = 20
# On a busy machine, too; without hints half of the events would take five seconds or more.
MEDIAN_SECONDS_MAX = 1.0


async def second_gateway(platform: Platform) -> httpx.AsyncClient:
    """A client of a process that serves and does not project."""
    processes = platform.dev.processes
    assert processes.add("gateway") == 1
    await processes.until_ready()
    url = f"http://127.0.0.1:{processes.port('gateway', 1)}"
    token = platform.client.headers["authorization"]
    return httpx.AsyncClient(
        base_url=url, headers={"authorization": token}, trust_env=False, timeout=60
    )


async def arrivals(client: httpx.AsyncClient, found: dict[int, float]) -> None:
    """Note when each event comes, by its position, until cancelled."""
    headers = {"accept": "text/event-stream"}
    async with client.stream("GET", "/v1/events?from=0", headers=headers) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line.startswith("data:"):
                found[json.loads(line[5:])["position"]] = time.monotonic()


async def both_streams(
    settings: Mapping[str, str], act: Callable[[Platform], Awaitable[None]]
) -> list[float]:
    """How much later than the process that projects the other one sends each event; seconds."""
    async with running_platform(settings=settings) as platform:
        here: dict[int, float] = {}
        there: dict[int, float] = {}
        async with await second_gateway(platform) as other:
            reading = [
                asyncio.ensure_future(arrivals(platform.client, here)),
                asyncio.ensure_future(arrivals(other, there)),
            ]
            await asyncio.sleep(1.0)
            before = len(here)
            await act(platform)

            async def all_came() -> bool:
                return len(here) >= before + EVENTS and here.keys() == there.keys()

            await until(all_came, 30.0, "both streams have every event")
            for each in reading:
                each.cancel()
        return [there[each] - here[each] for each in sorted(here)[before:]]


async def submit_some(platform: Platform) -> None:
    """Tasks that cannot start: each is some events."""
    for number in range(EVENTS):
        await platform.submit(f"waits-{number}", gpus_per_node=2, nodes=1)
        await asyncio.sleep(0.05)


async def test_a_hint_brings_events_to_the_other_process_long_before_its_poll() -> None:
    later = await both_streams(SELDOM, submit_some)
    print(f"median {statistics.median(later) * 1e3:.1f} ms, most {max(later) * 1e3:.1f} ms")
    assert statistics.median(later) < MEDIAN_SECONDS_MAX


async def test_a_token_revoked_at_one_process_is_refused_at_the_other() -> None:
    async with running_platform(settings=SELDOM) as platform:
        made = (await platform.client.post("/v1/tokens", json={"name": "short"})).json()
        async with await second_gateway(platform) as other:
            headers = {"authorization": f"Bearer {made['token']}"}
            assert (await other.get("/v1/whoami", headers=headers)).status_code == 200
            reply = await platform.client.delete(f"/v1/tokens/{made['id']}")
            assert reply.is_success, reply.text

            async def refused() -> bool:
                return (await other.get("/v1/whoami", headers=headers)).status_code == 401

            await until(refused, 5.0, "the other process refuses it")
