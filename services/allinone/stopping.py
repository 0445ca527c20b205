"""A stop that loses nothing: running tasks save and leave first, as for any preemption.

The nodes are drained through the API; the next start opens again exactly those that the stop
closed. Dying on any line leaves the list of drained nodes on the disk, and the next start reads it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx

from libs.contracts.task_states import HOLDING_WORDS
from libs.contracts.wording import counted
from libs.service.loop import pause
from services.allinone.client import admin_client
from services.allinone.data_folder import DataFolder
from services.allinone.embedded.credentials import write_private

HOLDING = ",".join(HOLDING_WORDS)
POLL_SECONDS = 0.1
# On top of the longest deadline of what runs: ending, observing, recording.
GRACE_SECONDS = 30.0
DEADLINE_SECONDS = 60.0
# How long what fails is tried again, and how soon.
RETRY_SECONDS = 30.0
AGAIN_SECONDS = 0.5
# What reading the list of drained nodes raises.
UNREADABLE = (OSError, ValueError, TypeError, RecursionError)
T = TypeVar("T")


async def drain(data_folder: DataFolder, url: str, report: Callable[[str], None]) -> None:
    """Ask everything that runs to save and leave; returns when nothing runs.

    httpx.HTTPError if the platform does not answer, TimeoutError if tasks do not leave in time.
    """

    def remember(nodes: Sequence[str]) -> None:
        # Those that the start before could not open again are still closed.
        try:
            before = _drained(data_folder)
        except UNREADABLE:
            before = ()
        write_private(data_folder.drained, json.dumps(sorted({*before, *nodes})) + "\n")

    async with admin_client(data_folder, url) as client:
        await drain_nodes(client, remember, report)


async def drain_nodes(
    client: httpx.AsyncClient,
    remember: Callable[[Sequence[str]], None],
    report: Callable[[str], None],
) -> None:
    """The same through any client; ``remember`` keeps the nodes that the stop closes.

    It reads nothing that tasks report about themselves, goes on when one node cannot be closed,
    and tries again what fails, because giving up means that running tasks lose their work.
    """
    seen = await _insist(lambda: _occupancy(client), RETRY_SECONDS)
    running = seen["tasks"]
    if not running:
        return
    nodes = [node["id"] for node in seen["nodes"] if node["schedulable"]]
    remember(nodes)
    report(f"asking {counted(len(running), 'running task')} to save and leave")
    for node in nodes:
        try:
            await _insist(partial(_close, client, node), RETRY_SECONDS)
        except httpx.HTTPError as problem:
            report(f"node {node} cannot be drained, the others are: {problem}")
    asked = [task["ack_deadline_seconds"] or DEADLINE_SECONDS for task in running]
    await _until_empty(client, max(asked) + GRACE_SECONDS, report)


async def _occupancy(client: httpx.AsyncClient) -> dict[str, Any]:
    return (await client.get("/v1/occupancy")).raise_for_status().json()


async def _close(client: httpx.AsyncClient, node: str) -> None:
    body = {"schedulable": False, "drain": True}
    (await client.put(_schedulable(node), json=body)).raise_for_status()


async def _insist(ask: Callable[[], Awaitable[T]], seconds_max: float) -> T:
    """Ask until there is an answer; the last httpx.HTTPError after so long, or if it is final."""
    until = monotonic() + seconds_max
    while True:
        try:
            return await ask()
        except httpx.HTTPError as problem:
            final = isinstance(problem, httpx.HTTPStatusError) and (
                problem.response.is_client_error
                and problem.response.status_code != HTTPStatus.TOO_MANY_REQUESTS
            )
            if final or monotonic() >= until:
                raise
            await pause(AGAIN_SECONDS)


async def _until_empty(
    client: httpx.AsyncClient, seconds_max: float, report: Callable[[str], None]
) -> None:
    until, left = monotonic() + seconds_max, -1
    while True:
        retry_deadline = max(RETRY_SECONDS, until - monotonic())
        running = (await _insist(lambda: _occupancy(client), retry_deadline))["tasks"]
        if not running:
            return
        names = ", ".join(task["id"] for task in running[:5])
        if monotonic() >= until:
            raise TimeoutError(f"still running after {seconds_max:g} s: {names}")
        if len(running) != left:
            left = len(running)
            report(f"waiting for {left}: {names}")
        await pause(POLL_SECONDS)


async def reopen(data_folder: DataFolder, url: str, warn: Callable[[str], None]) -> None:
    """Open the nodes that the last stop drained. A list that is not understood stays as it is, and
    so does one with nodes that cannot be opened: the next start tries again."""
    try:
        nodes = _drained(data_folder)
    except FileNotFoundError:
        return
    except UNREADABLE as problem:
        warn(
            f"{data_folder.drained} is not understood ({problem}): nodes that the last stop drained"
            " stay closed (fix: `shiftwork node uncordon NODE` for each, then remove the file)"
        )
        return
    async with admin_client(data_folder, url) as client:
        closed = await open_nodes(client, nodes)
    for node, problem in closed.items():
        warn(
            f"node {node}, which the last stop drained, cannot be opened now: {problem}"
            f" (fix: `shiftwork node uncordon {node}`, or start again)"
        )
    if not closed:
        data_folder.drained.unlink()


def _drained(data_folder: DataFolder) -> Sequence[str]:
    found: Any = json.loads(data_folder.drained.read_text())
    if not isinstance(found, list):
        raise TypeError(f"it is no list, but {found!r:.40}")
    return [str(node) for node in cast("list[Any]", found)]


async def open_nodes(client: httpx.AsyncClient, nodes: Sequence[str]) -> dict[str, str]:
    """Let these nodes take runs again; those that are gone meanwhile are passed over. Returns which
    stay closed, and why."""
    closed, until = dict[str, str](), monotonic() + RETRY_SECONDS
    for node in nodes:
        try:
            await _insist(partial(_open, client, node), until - monotonic())
        except httpx.HTTPError as problem:
            closed[node] = str(problem)
    return closed


async def _open(client: httpx.AsyncClient, node: str) -> None:
    answer = await client.put(_schedulable(node), json={"schedulable": True})
    if answer.status_code != HTTPStatus.NOT_FOUND:
        answer.raise_for_status()


def _schedulable(node: str) -> str:
    return f"/v1/nodes/{quote(node, safe='')}/schedulable"
