"""When each pod lived, from a watch of the cluster that both sides of a comparison share.

Times are those of the watcher's clock when the event arrived. It uses no code of the launcher's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from kubernetes_asyncio import client, config

from benchmarks.harness import BenchmarkError, now_s

WATCH_SECONDS = 3_000
TASK, ATTEMPT = "shiftwork.dev/task", "shiftwork.dev/attempt"
ENDED = {"Succeeded", "Failed"}
Gang = tuple[str, str]


@dataclass(slots=True)
class Life:
    """One pod, in seconds since 1970; 0: not yet."""

    gang: Gang
    node: str = ""
    made: float = 0.0
    bound: float = 0.0
    running: float = 0.0
    leaving: float = 0.0
    # Its containers have ended; or the pod is gone.
    ended: float = 0.0
    gone: float = 0.0

    @property
    def over(self) -> float:
        """Since when nothing of it runs."""
        return min(self.ended or self.gone, self.gone or self.ended)


@dataclass
class PodWatch:
    """Every pod of one namespace since the watch began, by name (the last one of that name)."""

    lives: dict[str, Life] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    events: int = 0
    # How often the watch ended and went on.
    resumed: int = 0
    # Set while it follows.
    following: asyncio.Future[None] | None = None

    def take(self, kind: str, pod: dict[str, Any]) -> None:
        """One event."""
        at, meta = now_s(), pod["metadata"]
        self.events += 1
        life = self.lives.get(meta["name"])
        if life is None or (life.gone and kind != "DELETED"):
            labels: dict[str, str] = meta.get("labels") or {}
            name: str = meta["name"]
            gang = (labels.get(TASK, name), labels.get(ATTEMPT, ""))
            life = self.lives[meta["name"]] = Life(gang, made=at)
        if kind == "DELETED":
            life.gone = at
        else:
            life.node = pod["spec"].get("nodeName") or ""
            life.bound = life.bound or (at if life.node else 0.0)
            phase = pod["status"].get("phase")
            if phase == "Running":
                life.running = life.running or at
            elif phase in ENDED:
                life.ended = life.ended or at
            if meta.get("deletionTimestamp"):
                life.leaving = life.leaving or at
        self.changed.set()

    def gangs(self) -> dict[Gang, list[Life]]:
        """The pods by the run that they belong to."""
        found: dict[Gang, list[Life]] = defaultdict(list)
        for life in self.lives.values():
            found[life.gang].append(life)
        return found

    def running(self, tasks: Collection[str] | None = None) -> int:
        """How many pods run now, of these tasks."""
        return sum(
            1
            for life in self.lives.values()
            if life.running and not life.over and (tasks is None or life.gang[0] in tasks)
        )

    def present(self, tasks: Collection[str] | None = None) -> int:
        """How many pods (of these tasks) there are."""
        return sum(
            1
            for life in self.lives.values()
            if not life.gone and (tasks is None or life.gang[0] in tasks)
        )

    async def until_running(
        self, count: int, tasks: Collection[str] | None = None, *, seconds: float
    ) -> None:
        """Wait until so many pods (of these tasks) run."""
        await self._until(lambda: self.running(tasks) >= count, f"{count} pods run", seconds)

    async def until_gone(self, tasks: Collection[str] | None = None, *, seconds: float) -> None:
        """Wait until there is no pod (of these tasks)."""
        await self._until(lambda: self.present(tasks) == 0, "every pod is gone", seconds)

    async def _until(self, condition: Any, what: str, seconds: float) -> None:  # noqa: ANN401
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    if self.following is not None and self.following.done():
                        self.following.result()
                    self.changed.clear()
                    await self.changed.wait()
                    # A scan of all pods is expensive: at most so often.
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise BenchmarkError(
                f"not within {seconds:g} s: {what} ({self.running()} of {self.present()} run)"
            ) from None

    def clear(self) -> None:
        """Forget the pods that are gone."""
        self.lives = {name: life for name, life in self.lives.items() if not life.gone}

    async def follow(self, api: client.CoreV1Api, namespace: str, version: str) -> None:
        """Take events until cancelled. The API server lets go of a watcher that is slow: on a busy
        machine it goes on from where it was."""
        while True:
            # Without the models, the method returns the client's raw response.
            answer: Any = await api.list_namespaced_pod(
                namespace,
                watch=True,
                resource_version=version,
                timeout_seconds=WATCH_SECONDS,
                _request_timeout=WATCH_SECONDS,
                _preload_content=False,
            )
            held = b""
            pieces: AsyncIterator[bytes] = answer.content.iter_any()
            async for piece in pieces:
                *lines, held = (held + piece).split(b"\n")
                for line in lines:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise BenchmarkError(f"the watch ended: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    self.take(event["type"], event["object"])
            self.resumed += 1


@contextlib.asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncGenerator[client.CoreV1Api]:
    """A client of the API server, while the context is open."""
    settings = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=settings)
    settings.connection_pool_maxsize = 64
    connection: Any = client.ApiClient(settings)
    async with connection:
        yield client.CoreV1Api(connection)


@contextlib.asynccontextmanager
async def pods_of(kubeconfig: Path, namespace: str) -> AsyncGenerator[PodWatch]:
    """The pods of a namespace, kept known while the context is open."""
    async with client_of(kubeconfig) as api:
        listed = await api.list_namespaced_pod(namespace, limit=1)
        kept = PodWatch()
        kept.following = following = asyncio.ensure_future(
            kept.follow(api, namespace, listed.metadata.resource_version)
        )
        # Wakes the waiting callers when the watch ended.
        following.add_done_callback(lambda _: kept.changed.set())
        try:
            yield kept
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
