"""``libs.kube`` for tools and fixtures, which wait for each answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

Body = Mapping[str, Any]
T = TypeVar("T")
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
REQUEST_SECONDS = 30.0
READY_SECONDS = 5.0


class KubeconfigError(RuntimeError):
    """This kubeconfig cannot be used; the message has the reason."""


class ApiError(RuntimeError):
    """The API server refused, or did not answer (``status`` 0)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}" if status else text)
        self.status = status


class Api:
    """One API server as one user, with an event loop of its own; close it after use."""

    def __init__(self, kubeconfig: Path | str) -> None:
        # A hundred megabytes, which most of what these tools do never needs.
        from libs.kube import client, transport  # noqa: PLC0415

        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="kubernetes api", daemon=True)
        self._thread.start()
        self._transport = transport.Transport(Path(kubeconfig), connections_max=0)
        # Two tries: a kept connection may have been closed by the server meanwhile.
        limits = client.CallLimits(seconds=REQUEST_SECONDS, tries_max=2)
        self._client = client.KubeClient(self._transport, limits)
        try:
            self.url = self._wait(self._transport.connect())
        except transport.ConfigurationError as problem:
            self.close()
            raise KubeconfigError(str(problem)) from problem

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def close(self) -> None:
        """Close the connections, and end what still reads from one."""
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def request(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """One request; the decoded answer. Raises ``ApiError``."""
        call = self._client.call(method, path, query=query, body=body, content_type=content_type)
        return self._answered(call)

    def watched(self, path: str, *, seconds: int, **query: str) -> list[dict[str, Any]]:
        """The events of one watch, which the API server ends after ``seconds``."""
        query |= {"watch": "1", "timeoutSeconds": str(seconds)}

        async def events() -> list[dict[str, Any]]:
            async with self._client.watch(path, REQUEST_SECONDS, **query) as stream:
                return [event async for event in stream]

        return self._answered(events())

    def _answered(self, call: Coroutine[Any, Any, T]) -> T:
        from libs.kube import client  # noqa: PLC0415 - as above

        try:
            return self._wait(call)
        except client.ApiError as problem:
            raise ApiError(problem.status, problem.message) from problem
        except client.UnavailableError as problem:
            raise ApiError(0, f"{self.url}: {problem}") from problem

    def get(self, path: str, **query: str) -> Any:  # noqa: ANN401 - JSON
        """What is there."""
        return self.request("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """What is listed there."""
        return self.get(path, **query)["items"]

    def create(self, path: str, body: Body) -> Any:  # noqa: ANN401 - JSON
        """Create in the collection."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Body, content_type: str = MERGE) -> Any:  # noqa: ANN401 - JSON
        """Merge into what is there."""
        return self.request("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> bool:
        """Delete; False: it was not there."""
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self.request("DELETE", path, body)
        except ApiError as problem:
            if problem.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def apply(self, path: str, body: Body) -> Any:  # noqa: ANN401 - JSON
        """Server-side apply: created or brought to this."""
        query = {"fieldManager": "shiftwork-cluster", "force": "true"}
        return self.request("PATCH", path, body, content_type=APPLY, query=query)

    def ready(self) -> bool:
        """Whether the API server reports that it is ready."""
        from libs.kube.transport import ConnectionFailedError  # noqa: PLC0415 - as above

        asked = self._transport.send(
            *("GET", "/readyz"), query={}, headers={}, body=None, seconds=READY_SECONDS
        )
        try:
            return self._wait(asked).status == HTTPStatus.OK
        except ConnectionFailedError:
            return False

    def each(
        self, work: Callable[[Any], Any], things: Iterable[Any], *, in_flight: int = 16
    ) -> None:
        """Do the work on each thing, so many at once; the first failure is raised."""
        with ThreadPoolExecutor(in_flight) as pool:
            for _ in pool.map(work, things):
                pass


def wait_until(
    true: Callable[[], Any], what: str, *, seconds: float = 60, every: float = 0.2
) -> Any:  # noqa: ANN401 - whatever the condition gives
    """Poll until the result is true; returns it.

    Raises:
        TimeoutError: It was not, within ``seconds``.
    """
    until = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(every)
    return value
