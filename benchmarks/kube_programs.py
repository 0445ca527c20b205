"""The programs that simulated pods do not run: a small client plays their part of a preemption.

For each pod of a victim that runs it takes the run's token where the pod would find it (its
Secret), polls the gateway as the SDK does, and acknowledges a checkpoint as soon as it is asked to
leave. Its state is one number, so that lost steps can be counted.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kubernetes_asyncio import client

from benchmarks.harness import BenchmarkError, Http, now_s
from benchmarks.pod_watch import PodWatch

ASK_SECONDS = 20.0
RETRY_SECONDS = 0.05
Attempt = tuple[str, int]


@dataclass
class Programs:
    """The programs of these tasks (one pod each), while the context of ``playing`` is open."""

    api: client.CoreV1Api
    namespace: str
    url: str
    pods: PodWatch
    tasks: Collection[str]
    # The attempts whose program polls the gateway.
    listening: set[Attempt] = field(default_factory=set)

    @asynccontextmanager
    async def playing(self) -> AsyncGenerator[None]:
        """They run while the context is open."""
        following = asyncio.ensure_future(self._follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        playing: set[Attempt] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                # Cleared before the scan, so that no change during it is missed.
                self.pods.changed.clear()
                for life in list(self.pods.lives.values()):
                    task, attempt = life.gang
                    if task in self.tasks and life.running and not life.over:
                        run = (task, int(attempt))
                        if run not in playing:
                            playing.add(run)
                            group.create_task(self._play(*run))
                await self.pods.changed.wait()

    async def all_listen(self, *, seconds: float) -> None:
        """Wait until each task has a program that polls the gateway."""
        ends_at = now_s() + seconds
        while len(self.listening) < len(self.tasks):
            if now_s() > ends_at:
                raise BenchmarkError(f"{len(self.listening)} of {len(self.tasks)} victims run")
            await asyncio.sleep(0.01)

    async def _play(self, task: str, attempt: int) -> None:
        """One program, from its start to its acknowledgement."""
        token, context = await self._secret(task, attempt)
        resumed: dict[str, Any] | None = context["resume_from"]
        step = resumed["step"] if resumed else 0
        http = Http(self.url, token)
        try:
            if not await self._asked_to_go(http, (task, attempt)):
                return
            body = {"step": step + 1, "uri": f"none:{step + 1}"}
            while (status := (await http.call("POST", "/v1/run/checkpoints", body))[0]) != 201:
                if status == 409:
                    return
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            http.close()

    async def _asked_to_go(self, http: Http, run: Attempt) -> bool:
        """Poll until the run is asked to leave; False if it has ended already."""
        seen = 0
        try:
            while True:
                path = f"/v1/run?wait_seconds={ASK_SECONDS}&seen={seen}"
                # From the second time on, it is known that the first was answered.
                if seen:
                    self.listening.add(run)
                status, found = await http.call("GET", path)
                if status == 200:
                    seen = found["revision"]
                    if found["preempt"] or found["superseded"]:
                        return not found["superseded"]
                elif status == 409:
                    return False
                else:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self.listening.discard(run)

    async def _secret(self, task: str, attempt: int) -> tuple[str, dict[str, Any]]:
        answer = await self.api.read_namespaced_secret(f"{task}-{attempt}", self.namespace)
        data = {key: base64.b64decode(text) for key, text in answer.data.items()}
        return data["run-token"].decode(), json.loads(data["context-0"])
