"""A small client of the Kubernetes API: standard library only, blocking, for tools and fixtures.

The platform has its own (asynchronous) client; this one shares no code with it, so tests that set
up and judge a cluster through it do not believe what they test.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from tools.cluster.kubeconfig import identity_of

Body = Mapping[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
REQUEST_SECONDS = 30.0


class ApiError(RuntimeError):
    """The API server refused; ``status`` is HTTP's, the text its own words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """One API server as one user."""

    def __init__(self, url: str, *, authorization: str | None, tls: ssl.SSLContext) -> None:
        self.url = url
        self._authorization = authorization
        self._tls = tls
        self._address = urlsplit(url)
        self._local = local()
        self._open: list[http.client.HTTPSConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def of_kubeconfig(path: Path | str) -> Api:
        """As the current context of this kubeconfig says; ``KubeconfigError`` if it cannot be."""
        who = identity_of(path)
        return Api(who.url, authorization=who.authorization, tls=who.tls)

    def request(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """One request; the decoded answer (text where it is not JSON).

        Raises:
            ApiError: An answer other than 2xx, or none (status 0).
        """
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if self._authorization:
            headers["Authorization"] = self._authorization
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body).encode()
        for attempt in (1, 2):
            connection, fresh = self._connection()
            try:
                if fresh:
                    connection.connect()
                    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.request(method, target, data, headers)
                answer = connection.getresponse()
                text = answer.read().decode("utf-8", errors="replace")
                break
            except (OSError, http.client.HTTPException) as problem:
                self._local.connection = None
                connection.close()
                # A kept connection may have been closed by the server since; a new one tells.
                if fresh or attempt == 2:  # noqa: PLR2004 - the last
                    raise ApiError(0, f"{self.url} does not answer: {problem}") from problem
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's success
            raise ApiError(answer.status, _message(text))
        kind = answer.headers.get_content_type()
        return json.loads(text) if text and kind == "application/json" else text

    def _connection(self) -> tuple[http.client.HTTPSConnection, bool]:
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            return kept, False
        made = http.client.HTTPSConnection(
            self._address.hostname or "",
            self._address.port or 443,
            context=self._tls,
            timeout=REQUEST_SECONDS,
        )
        self._local.connection = made
        self._open.append(made)
        return made, True

    def close(self) -> None:
        """Close every thread's connection; the next request opens a new one."""
        while self._open:
            self._open.pop().close()
        self._local = local()

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
            if problem.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def apply(self, path: str, body: Body) -> Any:  # noqa: ANN401 - JSON
        """Server-side apply: created or brought to this."""
        query = {"fieldManager": "shiftwork-cluster", "force": "true"}
        return self.request("PATCH", path, body, content_type=APPLY, query=query)

    def ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            self.get("/readyz")
        except ApiError:
            return False
        return True

    def each(
        self, work: Callable[[Any], Any], things: Iterable[Any], *, in_flight: int = 16
    ) -> None:
        """Do the work on each thing, so many at once; the first failure is raised."""
        try:
            with ThreadPoolExecutor(in_flight) as pool:
                for _ in pool.map(work, things):
                    pass
        finally:
            self.close()


def wait_until(
    true: Callable[[], Any], what: str, *, seconds: float = 60, every: float = 0.2
) -> Any:  # noqa: ANN401 - whatever the condition gives
    """Ask until it is true; what it gave.

    Raises:
        TimeoutError: It was not, within ``seconds``.
    """
    until = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(every)
    return value


def _message(text: str) -> str:
    try:
        return json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return text[:500]
