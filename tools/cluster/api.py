"""A small client of the Kubernetes API: blocking, for tools and fixtures.

The platform has its own (asynchronous) client; this one shares no code with it, so tests that set
up and judge a cluster through it do not believe what they test.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx

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
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": authorization} if authorization else {},
            verify=tls,
            timeout=REQUEST_SECONDS,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; no request comes after it."""
        self._client.close()

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
        data = None if body is None else json.dumps(body)
        for last in (False, True):
            try:
                answer = self._client.request(
                    method, path, content=data, headers=headers, params=query
                )
                break
            except httpx.HTTPError as problem:
                # A kept connection may have been closed by the server since; a new one tells.
                if last or not isinstance(problem, httpx.RemoteProtocolError | httpx.ReadError):
                    raise ApiError(0, f"{self.url} does not answer: {problem}") from problem
        if not answer.is_success:
            raise ApiError(answer.status_code, _message(answer.text))
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.json() if answer.content and is_json else answer.text

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
            if problem.status == httpx.codes.NOT_FOUND:
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
        with ThreadPoolExecutor(in_flight) as pool:
            for _ in pool.map(work, things):
                pass


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
