"""The client library: everything that the API does, for programs.

``Client`` and ``AsyncClient`` have one attribute for each resource (``client.tasks``,
``client.nodes``) and on it one method for each operation, generated from /v1/openapi.json::

    with shiftwork.Client() as client:
        task = client.tasks.create({"command": ["python", "train.py"], "nodes": 2})
        print(client.wait(task["id"])["state"])

Without arguments the server and the token are those of the command line: SHIFTWORK_URL and
SHIFTWORK_TOKEN, else the current context. Standard library only.
"""

from __future__ import annotations

import asyncio
import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Iterable

from shiftwork.cli import contexts
from shiftwork.cli.failures import Failure
from shiftwork.cli.task_options import ENDED
from shiftwork.client.async_resources import AsyncResources
from shiftwork.client.errors import (
    ApiError,
    ClientError,
    Conflict,
    FieldProblem,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from shiftwork.client.exchange import Exchange, Tries
from shiftwork.client.operations import AsyncListing, Core, Listing, Text, Workers
from shiftwork.client.resources import Resources
from shiftwork.client.streams import Output
from shiftwork.transport import Unreachable

if TYPE_CHECKING:
    from types import TracebackType

    from shiftwork.client import types

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncListing",
    "Client",
    "ClientError",
    "Conflict",
    "FieldProblem",
    "Forbidden",
    "Gone",
    "Invalid",
    "Listing",
    "NotFound",
    "Output",
    "Text",
    "TooMany",
    "Tries",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "types",
]

TIMEOUT_SECONDS = 30.0
# Answers that are kept with their ETags: a GET whose answer has not changed brings no body.
KEPT_ANSWERS_MAX = 64
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.2, 2.0


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has this name
    """``types`` is loaded when it is used: it has hundreds of classes, for type checkers."""
    if name == "types":
        return import_module("shiftwork.client.types")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _core(  # noqa: PLR0917 - the arguments of both clients
    url: str,
    token: str,
    context: str,
    timeout_seconds: float,
    tries: Tries | None,
    kept_answers_max: int,
) -> Core:
    try:
        target = contexts.target(url=url, token=token, context=context, environ=os.environ)
    except Failure as failure:
        where = f" ({failure.where})" if failure.where else ""
        raise ClientError(f"{failure.what}{where}; {failure.fix}") from failure
    try:
        exchange = Exchange(
            target.url, target.token, tries=tries, kept_answers_max=kept_answers_max
        )
    except ValueError as error:
        raise ClientError(f"{error}; write http://HOST:PORT") from None
    return Core(exchange, timeout_seconds)


class Client(Resources):
    """The API, for programs that wait for each answer. Any number of threads may share it.

    Args:
        url, token: the server and the token; empty: as the command line finds them.
        context: the name of a context, which has both.
        timeout_seconds: how long the server may take for one answer.
        tries: how often a request is sent; by default ``Tries()``.
        kept_answers_max: how many answers are kept with their ETags.

    Raises ClientError if no server is known.
    """

    def __init__(
        self,
        url: str = "",
        token: str = "",
        *,
        context: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
        tries: Tries | None = None,
        kept_answers_max: int = KEPT_ANSWERS_MAX,
    ) -> None:
        core = _core(url, token, context, timeout_seconds, tries, kept_answers_max)
        self._exchange = core.exchange
        super().__init__(core)

    def __repr__(self) -> str:
        """Without the token."""
        return f"Client({self._exchange.url!r})"

    def __enter__(self) -> Client:  # noqa: PYI034 - Python 3.8 has no Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._exchange.close()

    def wait(
        self,
        task_id: str,
        states: Iterable[str] = ENDED,
        *,
        timeout_seconds: float | None = None,
    ) -> types.Task:
        """Wait until the task is in one of these states, or has ended. Raises TimeoutError."""
        pauses = _Pauses(states, timeout_seconds)
        while True:
            task = self.tasks.get(task_id)
            pause = pauses.after(task["state"])
            if pause is None:
                return task
            time.sleep(pause)


class AsyncClient(AsyncResources):
    """The same for asyncio: the same names and arguments; calls are awaited, lists and streams read
    with ``async for``. Cancelling a call ends its request."""

    def __init__(
        self,
        url: str = "",
        token: str = "",
        *,
        context: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
        tries: Tries | None = None,
        kept_answers_max: int = KEPT_ANSWERS_MAX,
    ) -> None:
        core = _core(url, token, context, timeout_seconds, tries, kept_answers_max)
        self._exchange = core.exchange
        self._workers = Workers()
        super().__init__(core, self._workers)

    def __repr__(self) -> str:
        """Without the token."""
        return f"AsyncClient({self._exchange.url!r})"

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - Python 3.8 has no Self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._workers.close()
        self._exchange.close()

    async def wait(
        self,
        task_id: str,
        states: Iterable[str] = ENDED,
        *,
        timeout_seconds: float | None = None,
    ) -> types.Task:
        """Wait until the task is in one of these states, or has ended. Raises TimeoutError."""
        pauses = _Pauses(states, timeout_seconds)
        while True:
            task = await self.tasks.get(task_id)
            pause = pauses.after(task["state"])
            if pause is None:
                return task
            await asyncio.sleep(pause)


class _Pauses:
    """How long to wait before a task is read again."""

    def __init__(self, states: Iterable[str], timeout_seconds: float | None) -> None:
        self._wanted = {*states, *ENDED}
        self._timeout_seconds = timeout_seconds
        self._begun = time.monotonic()
        self._pause = POLL_SECONDS_MIN

    def after(self, state: str) -> float | None:
        """None if the state is one that was waited for. Raises TimeoutError."""
        if state in self._wanted:
            return None
        pause = self._pause
        self._pause = min(POLL_SECONDS_MAX, pause * 1.5)
        if self._timeout_seconds is None:
            return pause
        left = self._timeout_seconds - (time.monotonic() - self._begun)
        if left <= 0:
            raise TimeoutError(f"the task is {state} after {self._timeout_seconds:g} s")
        return min(pause, left)
