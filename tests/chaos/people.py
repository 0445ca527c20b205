"""What people do during a chaos run: pause, resume, stop, re-prioritise, cordon and drain.

They go through the front door like everybody else, and repeat what was not answered. ``settle``
takes back what would keep tasks from ending; a task that was asked to stop may end in two ways.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from tests.chaos.workload import Workload

DEEDS = {"pause": 4, "resume": 3, "priority": 4, "stop": 1, "cordon": 1, "drain": 2, "uncordon": 2}
PRIORITIES = ("extreme_high", "high", "normal", "low", "idle")
GOALS = {"pause": "pause", "resume": "run", "stop": "stop"}
# The task or node is not known yet, or the task is over: nothing to repeat.
MOOT = frozenset((404, 409))


class People:
    """Changes of mind, drawn from the seed; whose task each hits depends on what was accepted."""

    def __init__(
        self,
        seed: int,
        client: httpx.AsyncClient,
        workload: Workload,
        log_line: Callable[[str], None],
    ) -> None:
        self._random = random.Random(f"people {seed}")
        self._client = client
        self._workload = workload
        self._log_line = log_line
        self._paused: set[str] = set()
        self._closed: set[str] = set()
        self.stopped: set[str] = set()
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run(self) -> None:
        """One deed after another, until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.3, 2.0))
            deed = self._random.choices(list(DEEDS), list(DEEDS.values()))[0]
            if deed in ("cordon", "drain", "uncordon"):
                await self._node(deed)
            elif self._workload.accepted:
                await self._task(deed)

    async def settle(self) -> None:
        """Resume what is paused and open every node, so that everything can end."""
        for task_id in sorted(self._paused):
            await self._put(f"/v1/tasks/{task_id}/goal", {"goal": "run"})
        for node_id in sorted(self._closed):
            await self._put(f"/v1/nodes/{node_id}/schedulable", {"schedulable": True})

    async def _task(self, deed: str) -> None:
        # Old tasks are over: most deeds are for the newest ones.
        newest = list(self._workload.accepted)[-8:]
        task_id = self._random.choice(newest)
        if deed == "priority":
            level = self._random.choice(PRIORITIES)
            await self._put(f"/v1/tasks/{task_id}/priority", {"priority": level})
        elif task_id not in self.stopped:
            # Noted before it is asked: an answer may get lost.
            {"pause": self._paused, "stop": self.stopped}.get(deed, set()).add(task_id)
            await self._put(f"/v1/tasks/{task_id}/goal", {"goal": GOALS[deed]})
            if deed != "pause":
                self._paused.discard(task_id)
        self.done[deed] += 1

    async def _node(self, deed: str) -> None:
        nodes = await self._nodes()
        if not nodes:
            return
        node_id = self._random.choice(nodes)
        opened = deed == "uncordon"
        if not opened:
            if len(self._closed | {node_id}) == len(nodes):
                return
            self._closed.add(node_id)
        body: dict[str, Any] = {"schedulable": opened, "drain": deed == "drain"}
        await self._put(f"/v1/nodes/{node_id}/schedulable", body)
        if opened:
            self._closed.discard(node_id)
        self.done[deed] += 1

    async def _nodes(self) -> list[str]:
        try:
            answer = (await self._client.get("/v1/nodes")).raise_for_status()
        except httpx.HTTPError:
            return []
        return sorted(node["id"] for node in answer.json()["items"])

    async def _put(self, path: str, body: dict[str, Any]) -> None:
        """Again and again until there is an answer."""
        while True:
            try:
                answer = await self._client.put(path, json=body)
            except httpx.TransportError:
                answer = None
            if answer is not None and (answer.is_success or answer.status_code in MOOT):
                self._log_line(f"people: {path} {body}")
                return
            if answer is not None and answer.is_client_error and answer.status_code != 429:
                self.problems.append(f"{path} {body} refused: {answer.status_code} {answer.text}")
                return
            await asyncio.sleep(0.2)
