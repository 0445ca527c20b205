"""What the chaos tests submit: a seeded mixture of tasks, through the front door, with retries."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TASK = Path(__file__).with_name("task.py")
FOR_EVER = 10_000


@dataclass(frozen=True)
class Kind:
    """One kind of task, and how it must end whatever dies meanwhile."""

    arguments: tuple[str, ...]
    fields: Mapping[str, Any]
    steps: tuple[int, int]
    ends: str = "succeeded"


DEAF = {"mode": "sdk", "ack_deadline_seconds": 1.0}
KINDS: Mapping[str, Kind] = {
    "long": Kind(("--save-every", "25"), {"priority": "low"}, (100, 240)),
    "short": Kind((), {"priority": "high"}, (10, 40)),
    "urgent": Kind((), {"priority": "extreme_high"}, (5, 20)),
    "gang": Kind(("--save-every", "20"), {"priority": "high", "nodes": 2}, (30, 80)),
    "lowgang": Kind(("--save-every", "20"), {"priority": "low", "nodes": 2}, (60, 120)),
    "wide": Kind((), {"priority": "normal", "gpus_per_node": 2}, (20, 60)),
    "deaf": Kind(
        ("--listen", "never", "--save-every", "5"),
        {"priority": "idle", "preemption": DEAF},
        (60, 120),
    ),
    "signalled": Kind(
        ("--listen", "signal"),
        {"priority": "low", "preemption": {"mode": "signal", "signal": "USR1"}},
        (60, 120),
    ),
    "flaky": Kind(("--failures", "2"), {"retry": {"max_retries": 3}}, (5, 15)),
    "hopeless": Kind(
        ("--failures", str(FOR_EVER)), {"retry": {"max_retries": 1}}, (5, 10), ends="failed"
    ),
}
WEIGHTS = {"long": 4, "short": 4, "deaf": 2, "gang": 2, "lowgang": 2, "signalled": 2}


@dataclass
class Submitted:
    """One task that the platform accepted."""

    key: str
    kind: str
    task_id: str


class Workload:
    """Submits tasks until it is cancelled; what was accepted is in ``accepted``."""

    def __init__(self, seed: int, client: httpx.AsyncClient, folder: Path) -> None:
        self._random = random.Random(f"workload {seed}")
        self._client = client
        self._folder = folder
        self.accepted: dict[str, Submitted] = {}
        self.problems: list[str] = []
        self.retries = 0

    @property
    def records(self) -> Path:
        return self._folder / "records"

    async def run(self, alive: Callable[[], Awaitable[int]], most_alive: int) -> None:
        """Keep about ``most_alive`` tasks waiting or running, until cancelled."""
        self.records.mkdir(parents=True, exist_ok=True)
        # One of each kind at first, in an order that the seed gives.
        kinds = list(KINDS)
        self._random.shuffle(kinds)
        for number in itertools.count():
            if number >= len(kinds):
                names = list(KINDS)
                weights = [WEIGHTS.get(name, 1) for name in names]
                kinds.append(self._random.choices(names, weights)[0])
            while await alive() >= most_alive:  # noqa: ASYNC110 - over HTTP, no event to wait for
                await asyncio.sleep(0.25)
            await self._submit(number, kinds[number])
            await asyncio.sleep(self._random.uniform(0.05, 0.8))

    async def _submit(self, number: int, name: str) -> None:
        kind = KINDS[name]
        key = f"{name}-{number}"
        body = {
            "name": key,
            "gpus_per_node": 1,
            **kind.fields,
            "command": [
                *(sys.executable, str(TASK)),
                *("--record", str(self.records), "--work", str(self._folder / "work")),
                *("--steps", str(self._random.randint(*kind.steps))),
                *kind.arguments,
            ],
            "working_directory": str(self._folder),
        }
        task_id = await self._post(key, body)
        if self._random.random() < 0.2:
            again = await self._post(key, body)
            if again != task_id:
                self.problems.append(f"key {key} gave two tasks: {task_id} and {again}")
        self.accepted[task_id] = Submitted(key, name, task_id)

    async def _post(self, key: str, body: Mapping[str, Any]) -> str:
        """As a careful client: the same key, again and again, until there is an answer."""
        while True:
            try:
                headers = {"idempotency-key": key}
                answer = await self._client.post("/v1/tasks", json=body, headers=headers)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.is_success:
                return str(answer.json()["id"])
            if answer is not None and answer.is_client_error:
                self.problems.append(f"{key} was refused: {answer.status_code} {answer.text}")
            self.retries += 1
            await asyncio.sleep(0.2)
