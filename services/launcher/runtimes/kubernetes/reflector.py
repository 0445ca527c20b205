"""Follows one kind of objects: lists page by page, watches with bookmarks for a bounded life, lists
again. ``runtime.py`` runs one for each kind; the objects go into a ``Sink``.

A broken watch continues from the last version; if that version is forgotten (410), it lists again.
A reflector keeps no objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from libs.kube.client import GONE, ApiError, KubeClient, LineTooLongError
from libs.service import observability
from libs.service.loop import Backoff
from libs.service.metrics import Metrics
from services.launcher.runtimes.port import RuntimeUnavailableError

Json = dict[str, Any]
EARLY_SECONDS = 2.0

declare = Metrics("launcher in Kubernetes")
LISTS = declare.counter("shiftwork_launcher_kube_lists_total", "Full lists", ["kind", "why"])
EVENTS = declare.counter(
    "shiftwork_launcher_kube_watch_events_total", "Events of watches", ["kind"]
)


class Sink(Protocol):
    """Where the objects go, each as it now is. A list is begun, filled and ended."""

    def begin(self) -> None:
        """A full list follows."""
        ...

    def put(self, thing: Json) -> None:
        """An object of the list, or one that is new or changed."""
        ...

    def gone(self, thing: Json) -> None:
        """An object in its last state."""
        ...

    def end(self, version: int) -> None:
        """The list is complete as of this version: what it did not name is gone."""
        ...


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The numbers of this module."""

    life_seconds: float = 300.0
    # The server sends a bookmark about every minute; more silence is a broken connection.
    idle_seconds: float = 90.0
    pause_first_seconds: float = 0.2
    pause_most_seconds: float = 15.0


class _ForgottenError(Exception):
    """The server no longer knows the version that we would go on from."""


class Reflector:
    """One kind of objects."""

    def __init__(
        self,
        kind: str,
        path: str,
        query: dict[str, str],
        *,
        client: KubeClient,
        sink: Sink,
        policy: WatchPolicy,
        rng: Random,
    ) -> None:
        self.kind = kind
        self._path, self._query = path, query
        self._client, self._sink, self._policy, self._rng = client, sink, policy, rng
        self._log = observability.log("launcher")
        # Why the state is not known; empty while it is.
        self.problem = "not listed yet"
        # How many lists were requested, and how many of these the last list covers.
        self._wanted, self._listed = 1, 0
        self._fresh = asyncio.Event()
        self._watching: asyncio.Timeout | None = None

    def renew(self) -> None:
        """Require a list that begins after this call."""
        self._wanted += 1
        self._fresh.clear()
        if self._watching is not None:
            self._watching.reschedule(asyncio.get_running_loop().time())

    async def fresh(self) -> None:
        """Wait until a list that began after the last ``renew`` is complete."""
        await self._fresh.wait()

    async def run(self) -> None:
        """Keep going until cancelled."""
        backoff = Backoff(self._policy.pause_first_seconds, self._policy.pause_most_seconds)
        why = "start"
        while True:
            try:
                version = await self._list(why)
                backoff.reset()
                why = await self._watch(version)
            except _ForgottenError:
                why = "forgotten"
            except (ApiError, RuntimeUnavailableError, LineTooLongError) as problem:
                why = "failed"
                await self._trouble(problem, backoff)

    async def _list(self, why: str) -> int:
        LISTS.labels(self.kind, why).inc()
        wanted, version = self._wanted, 0
        self._sink.begin()
        async with aclosing(self._client.pages(self._path, **self._query)) as pages:
            async for items, listed in pages:
                version = int(listed)
                for thing in items:
                    self._sink.put(thing)
        self._sink.end(version)
        self._listed, self.problem = wanted, ""
        if self._listed == self._wanted:
            self._fresh.set()
        return version

    async def _watch(self, version: int) -> str:
        """Follow until the watch's lifetime ends or a new list is needed; return the reason."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._policy.life_seconds * self._rng.uniform(0.8, 1.2)
        backoff = Backoff(self._policy.pause_first_seconds, self._policy.pause_most_seconds)
        while self._listed == self._wanted:
            left_s = ends_s - loop.time()
            if left_s <= 0:
                return "life"
            try:
                async with (
                    asyncio.timeout(None) as self._watching,
                    aclosing(self._events(version, left_s)) as events,
                ):
                    async for event in events:
                        version = self._take(event)
                        backoff.reset()
                    if ends_s - loop.time() > EARLY_SECONDS:
                        # The server closed the watch early, as when it restarts.
                        await backoff.wait()
            except TimeoutError:
                break
            except RuntimeUnavailableError as problem:
                # A broken connection: the state stays, and the watch continues from there.
                await self._trouble(problem, backoff)
            finally:
                self._watching = None
        return "wanted"

    async def _events(self, version: int, seconds: float) -> AsyncGenerator[Json]:
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        try:
            async with self._client.watch(self._path, self._policy.idle_seconds, **query) as events:
                self.problem = ""
                async for event in events:
                    yield event
        except ApiError as problem:
            if problem.status == GONE:
                raise _ForgottenError from problem
            raise

    def _take(self, event: Json) -> int:
        """Hand one event on; the version to go on from."""
        EVENTS.labels(self.kind).inc()
        kind, thing = event["type"], event["object"]
        if kind == "ERROR":
            if thing.get("code") == GONE:
                raise _ForgottenError
            raise RuntimeUnavailableError(str(thing.get("message"))[:200])
        if kind == "DELETED":
            self._sink.gone(thing)
        elif kind != "BOOKMARK":
            self._sink.put(thing)
        return int(thing["metadata"]["resourceVersion"])

    async def _trouble(self, problem: Exception, backoff: Backoff) -> None:
        self.problem = f"{self.kind}: {problem}"
        self._log.warning("cannot list or watch", kind=self.kind, problem=str(problem))
        await backoff.wait()
