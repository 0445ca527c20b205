"""The installed platform: its API through a tunnel, and a diary of what happened.

Used by ``story.py``. The diary joins two sources, the platform's events and the API server's watch
of pods, in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from libs.contracts.task_states import TERMINAL_WORDS
from services.allinone.client import items
from services.allinone.event_sentences import sentence
from tools.kubernetes_demo.kube import Kube, Sighting

T = TypeVar("T")
WAIT_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.1
_WEIGHTS = re.compile(r"weights sha256 ([0-9a-f]{64})")


class DemoError(Exception):
    """The demo did not show what it promises."""


@dataclass(frozen=True)
class Entry:
    """One observation: an event of the platform, or the state of a pod at one time."""

    at: float
    # A type of event such as run.exited, or pod.running, pod.ended, pod.leaving, pod.gone.
    fact: str
    task_id: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


def print_line(text: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass
class Platform:
    """The platform on one cluster."""

    kube: Kube
    client: httpx.AsyncClient
    # Of the platform and of the tasks.
    namespace: str
    tasks_namespace: str
    # The image and the storage grant of the demo's tasks, and where the grant is mounted.
    image: str
    storage: str
    mount: str
    # Makes the task names of this run differ from those of an earlier one on the same platform.
    run: str
    began: float = field(default_factory=time.monotonic)
    diary: list[Entry] = field(default_factory=list[Entry])
    names: dict[str, str] = field(default_factory=dict[str, str])

    async def request(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 - JSON
        """An answer of the API. What a dying tunnel or gateway swallows is asked again."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                answer = await self.client.request(method, path, **more)
            except httpx.TransportError:
                if time.monotonic() > until:
                    raise
            else:
                if answer.status_code not in (502, 503, 504) or time.monotonic() > until:
                    break
            await asyncio.sleep(LOOK_SECONDS)
        if answer.is_error:
            raise DemoError(f"{method} {path}: {answer.text}")
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    async def submit(self, name: str, command: list[str] | None = None, **fields: object) -> str:
        """A new task in pods; its id. Without a command ``fields`` has roles."""
        body = {
            "name": f"{name}-{self.run}",
            **({"command": command} if command else {}),
            "pod": {"image": self.image, "storage": [self.storage]},
            **fields,
        }
        key = {"idempotency-key": body["name"]}
        task_id = str((await self.request("POST", "/v1/tasks", json=body, headers=key))["id"])
        self.names[task_id] = name
        # Events may come before the answer does.
        for entry in [entry for entry in self.diary if entry.task_id == task_id]:
            self._print(entry)
        return task_id

    async def task(self, task_id: str) -> dict[str, Any]:
        """A task as the API shows it; DemoError if it has ended otherwise than well."""
        task = await self.request("GET", f"/v1/tasks/{task_id}")
        if task["state"] in TERMINAL_WORDS and task["state"] != "succeeded":
            query = {"rank": 0, "tail": 15}
            logs = await self.request("GET", f"/v1/tasks/{task_id}/logs", params=query)
            name = self.names.get(task_id, task_id)
            raise DemoError(f"{name} {task['state']}: {task['reason']['text']}\n{logs}")
        return task

    async def wait(
        self,
        look: Callable[[], Awaitable[T]],
        true: Callable[[T], bool],
        what: str,
        seconds: float = WAIT_SECONDS_MAX,
    ) -> T:
        """Poll until the result is as wanted. Raises ``DemoError`` with the last result."""
        until = time.monotonic() + seconds
        while not true(seen := await look()):
            if time.monotonic() > until:
                raise DemoError(f"not within {seconds:g} s: {what}; last seen: {str(seen)[-2000:]}")
            await asyncio.sleep(LOOK_SECONDS)
        return seen

    async def until(
        self,
        task_id: str,
        what: str,
        true: Callable[[dict[str, Any]], bool],
        seconds: float = WAIT_SECONDS_MAX,
    ) -> dict[str, Any]:
        """Wait until something is true of a task."""

        async def look() -> dict[str, Any]:
            return await self.task(task_id)

        try:
            return await self.wait(look, true, f"{self.names[task_id]} is {what}", seconds)
        except DemoError as problem:
            explanation = await self.request("GET", f"/v1/tasks/{task_id}/explain")
            raise DemoError(f"{problem}\n{json.dumps(explanation)[:2000]}") from problem

    async def until_logged(self, task_id: str, text: str, *, attempt: int = 0) -> None:
        """Wait until rank 0 has written something."""
        query = {"rank": 0, **({"attempt": attempt} if attempt else {})}

        async def look() -> str:
            try:
                return str(await self.request("GET", f"/v1/tasks/{task_id}/logs", params=query))
            except DemoError as problem:  # no attempt has begun yet
                return str(problem)

        await self.wait(look, lambda logs: text in logs.splitlines(), f"{text!r} in the output")

    async def until_nothing_left(self, task_id: str) -> None:
        """Wait until the cluster has no object of a task."""

        async def look() -> str:
            kinds = "pods,services,configmaps,secrets"
            selector = f"shiftwork.dev/task={task_id}"
            return await self.kube.run(
                *("get", kinds, "-n", self.tasks_namespace, "-l", selector, "-o", "name")
            )

        await self.wait(look, lambda names: not names.strip(), f"nothing is left of {task_id}")

    async def until_state(self, task_id: str, *states: str) -> dict[str, Any]:
        """Wait until a task is in one of these states."""
        return await self.until(task_id, " or ".join(states), lambda t: t["state"] in states)

    async def until_step(self, task_id: str, step: int) -> None:
        """Wait until a task's training has reached a step."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                latest = await items(self.client, f"/v1/tasks/{task_id}/metrics")
                if any(point["latest"].get("step", 0) >= step for point in latest):
                    return
            await self.task(task_id)
            await asyncio.sleep(LOOK_SECONDS)
        raise DemoError(f"{self.names[task_id]} did not come to step {step}")

    async def until_recorded(self, fact: str, task_id: str, *, after: int = 0) -> Entry:
        """Wait until the diary, from an entry on, has a fact of a task."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < until:
            for entry in self.diary[after:]:
                if (entry.fact, entry.task_id) == (fact, task_id):
                    return entry
            await asyncio.sleep(LOOK_SECONDS / 5)
        raise DemoError(f"not observed: {fact} of {self.names[task_id]}")

    async def weights(self, task_id: str, rank: int = 0) -> str:
        """The digest that a rank printed at its end, from the platform's logs."""

        async def look() -> str:
            query = {"rank": rank, "tail": 20}
            return str(await self.request("GET", f"/v1/tasks/{task_id}/logs", params=query))

        logs = await self.wait(
            look, lambda logs: bool(_WEIGHTS.search(logs)), "a digest is printed"
        )
        found = _WEIGHTS.search(logs)
        assert found is not None, "just seen"
        return found.group(1)

    # The two sources

    async def keep_diary(self) -> None:
        """Write down events and pods, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_events())
            group.create_task(self._follow_pods())

    async def _follow_events(self) -> None:
        position = 0
        while True:
            with contextlib.suppress(httpx.HTTPError):
                async for at, event in self._events(position):
                    position = at
                    self._note(event)
            # The gateway's pod or the tunnel went: from the same position on, through the next.
            await asyncio.sleep(LOOK_SECONDS)

    async def _events(self, position: int) -> AsyncGenerator[tuple[int, dict[str, Any]]]:
        accept = {"accept": "text/event-stream"}
        query = {"from": position}
        async with self.client.stream(
            "GET", "/v1/events", params=query, headers=accept, timeout=None
        ) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    position = int(line.removeprefix("id: "))
                elif line.startswith("data: "):
                    yield position, json.loads(line.removeprefix("data: "))

    def _note(self, event: dict[str, Any]) -> None:
        task_id = event["data"].get("task_id", "")
        self._write(Entry(time.monotonic(), event["type"], task_id, event["data"]))

    async def _follow_pods(self) -> None:
        before: dict[str, str] = {}
        while True:
            async for pod in self.kube.watch_pods(self.tasks_namespace):
                fact = _fact_of(pod)
                if before.get(pod.name) == fact:
                    continue
                before[pod.name] = fact
                data = {"pod": pod.name, "node": pod.node}
                self._write(Entry(pod.at, fact, pod.name.split("-")[0], data))

    def _write(self, entry: Entry) -> None:
        self.diary.append(entry)
        if entry.task_id in self.names:
            self._print(entry)

    def _print(self, entry: Entry) -> None:
        text = _of_pod(entry) if entry.fact.startswith("pod.") else sentence(entry.fact, entry.data)
        if text is not None:
            print_line(f"  {entry.at - self.began:7.2f} s  {self.names[entry.task_id]:9} {text}")


def _fact_of(pod: Sighting) -> str:
    if pod.gone:
        return "pod.gone"
    if pod.phase in ("Succeeded", "Failed"):
        return "pod.ended"
    if pod.leaving:
        return "pod.leaving"
    return "pod.running" if pod.phase == "Running" else "pod.pending"


def _of_pod(entry: Entry) -> str:
    return f"{entry.fact.replace('.', ' ')}: {entry.data['pod']} on {entry.data['node']}"
