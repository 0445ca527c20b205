"""A stop that loses nothing: running tasks save and leave first, as for any preemption.

The nodes are drained through the API; the next start opens again exactly those that the stop
closed. Dying on any line leaves the list of drained nodes on the disk, and the next start reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import httpx

from libs.service.loop import pause
from services.allinone.client import admin_client, items
from services.allinone.embedded.credentials import write_private
from services.allinone.place import Place

LIVE = "starting,running,preempting,killing"
LOOK_SECONDS = 0.1
# On top of the longest deadline of what runs: ending, observing, recording.
GRACE_SECONDS = 30.0
DEADLINE_SECONDS = 60.0


async def drain(place: Place, url: str, tell: Callable[[str], None]) -> None:
    """Ask everything that runs to save and leave; returns when nothing runs.

    httpx.HTTPError if the platform does not answer, TimeoutError if tasks do not leave in time.
    """
    async with admin_client(place, url) as client:
        await drain_nodes(
            client, lambda nodes: write_private(place.drained, json.dumps(nodes) + "\n"), tell
        )


async def drain_nodes(
    client: httpx.AsyncClient,
    remember: Callable[[Sequence[str]], None],
    tell: Callable[[str], None],
) -> None:
    """The same through any client; ``remember`` keeps the nodes that the stop closes."""
    running = await items(client, "/v1/tasks", state=LIVE)
    if not running:
        return
    nodes = [node["id"] for node in await items(client, "/v1/nodes") if node["schedulable"]]
    remember(nodes)
    tell(f"asking {len(running)} running tasks to save and leave")
    for node in nodes:
        body = {"schedulable": False, "drain": True}
        (await client.put(f"/v1/nodes/{node}/schedulable", json=body)).raise_for_status()
    longest = max((_deadline_seconds(task) for task in running), default=60.0)
    await _until_empty(client, longest + GRACE_SECONDS, tell)


def _deadline_seconds(task: dict[str, Any]) -> float:
    policy: Any = task.get("preemption")
    return float(policy["ack_deadline_seconds"]) if policy else DEADLINE_SECONDS


async def _until_empty(
    client: httpx.AsyncClient, seconds_max: float, tell: Callable[[str], None]
) -> None:
    waited, left = 0.0, -1
    while True:
        running = await items(client, "/v1/tasks", state=LIVE)
        if not running:
            return
        if waited >= seconds_max:
            names = ", ".join(task["name"] for task in running[:5])
            raise TimeoutError(f"still running after {seconds_max:g} s: {names}")
        if len(running) != left:
            left = len(running)
            tell(f"waiting for {left}: " + ", ".join(task["name"] for task in running[:5]))
        await pause(LOOK_SECONDS)
        waited += LOOK_SECONDS


async def reopen(place: Place, url: str) -> None:
    """Open the nodes that the last stop drained."""
    if not place.drained.exists():
        return
    async with admin_client(place, url) as client:
        await open_nodes(client, json.loads(place.drained.read_text()))
    place.drained.unlink()


async def open_nodes(client: httpx.AsyncClient, nodes: Sequence[str]) -> None:
    """Let these nodes take runs again; those that are gone meanwhile are passed over."""
    for node in nodes:
        answer = await client.put(f"/v1/nodes/{node}/schedulable", json={"schedulable": True})
        if answer.status_code != HTTPStatus.NOT_FOUND:
            answer.raise_for_status()
