"""The programs that simulated pods do not run: a small client plays their part of a preemption.

For each pod of a victim that runs it takes the run's token where the pod would find it (its
Secret), asks the gateway what the platform wants, as the SDK does, and acknowledges a checkpoint as
soon as it is asked to go. Its state is one number, so that what is lost can be counted.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kubernetes_asyncio import client

from benchmarks.kube_stage import NAMESPACE
from benchmarks.pod_watch import PodWatch
from benchmarks.stage import Http, now_s

ASK_SECONDS = 20.0
RETRY_SECONDS = 0.05


@dataclass
class Programs:
    """The programs of these tasks (one pod each), for as long as ``follow`` runs."""

    api: client.CoreV1Api
    url: str
    pods: PodWatch
    tasks: Collection[str]
    # (task, attempt) -> when its program was told to go, and when its save was acknowledged.
    told: dict[tuple[str, int], float] = field(default_factory=dict)
    acked: dict[tuple[str, int], float] = field(default_factory=dict)
    # (task, attempt) -> the step that it saved, and the one that it began from.
    saved: dict[tuple[str, int], int] = field(default_factory=dict)
    began: dict[tuple[str, int], int] = field(default_factory=dict)
    listening: set[tuple[str, int]] = field(default_factory=set)

    async def follow(self) -> None:
        """Start a program for each pod that runs; until cancelled."""
        playing: set[tuple[str, int]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                # Looked at after this: what changes meanwhile is not missed.
                self.pods.changed.clear()
                for life in list(self.pods.lives.values()):
                    task, attempt = life.gang
                    if task in self.tasks and life.running and not life.gone:
                        run = (task, int(attempt))
                        if run not in playing:
                            playing.add(run)
                            group.create_task(self._play(*run))
                await self.pods.changed.wait()

    async def _play(self, task: str, attempt: int) -> None:
        """One program, from its start to its acknowledgement."""
        run = (task, attempt)
        token, context = await self._secret(task, attempt)
        resumed: dict[str, Any] | None = context["resume_from"]
        self.began[run] = step = resumed["step"] if resumed else 0
        http = Http(self.url, token)
        seen = 0
        try:
            while True:
                self.listening.add(run)
                path = f"/v1/run?wait_seconds={ASK_SECONDS}&seen={seen}"
                status, found = await http.call("GET", path)
                if status == 409 or (status == 200 and found["superseded"]):
                    return
                if status != 200:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                seen = found["revision"]
                if found["preempt"]:
                    break
            self.told[run] = now_s()
            step += 1
            body = {"step": step, "uri": f"none:{step}"}
            while (status := (await http.call("POST", "/v1/run/checkpoints", body))[0]) != 201:
                if status == 409:
                    return
                await asyncio.sleep(RETRY_SECONDS)
            self.acked[run], self.saved[run] = now_s(), step
        finally:
            self.listening.discard(run)
            http.close()

    async def _secret(self, task: str, attempt: int) -> tuple[str, dict[str, Any]]:
        answer = await self.api.read_namespaced_secret(f"{task}-{attempt}", NAMESPACE)
        data = {key: base64.b64decode(text) for key, text in answer.data.items()}
        return data["run-token"].decode(), json.loads(data["context-0"])

    def lost_steps(self) -> int:
        """Acknowledged steps that the next attempt did not begin from."""
        return sum(
            max(0, step - self.began[task, attempt + 1])
            for (task, attempt), step in self.saved.items()
            if (task, attempt + 1) in self.began
        )
