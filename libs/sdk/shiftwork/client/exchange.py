"""Requests with retries: the one set of rules for the client library and for the command line.

A request is sent again after 429, which the server answers before it does anything; after 503 and
lost connections only if it is repeatable; and always if the connection could not be opened.
"""

from __future__ import annotations

import os
import random
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Generator, Mapping

from shiftwork.client.errors import retry_after
from shiftwork.transport import Answer, Connection, Unreachable

NOT_MODIFIED = 304
NOT_FOUND = 404
BUSY = 429
UNAVAILABLE = 503
REFUSED = 400
# Larger answers are not kept for If-None-Match.
KEPT_BYTES_MAX = 1_048_576
IDLE_CONNECTIONS_MAX = 16


@dataclass(frozen=True)
class Tries:
    """How often a request is sent, and how long the pauses are.

    ``wait_seconds`` is the first pause; each later one is twice as long. A Retry-After of the
    server counts instead, up to ``retry_after_seconds_max``; a longer one is not waited for. A
    server that refuses connections is reported soon; one that answers "try later" gets more time.
    """

    tries_max: int = 6
    unreached_tries_max: int = 3
    wait_seconds: float = 0.2
    retry_after_seconds_max: float = 30.0


@dataclass(frozen=True)
class Request:
    """One request. ``repeatable``: sending it twice does no more than sending it once."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = True
    timeout_seconds: float = 30.0


class Cancelled(Exception):  # noqa: N818 - nobody waits for the result any more
    """The caller has given the request up."""


class Flight:
    """A request on its way, which another thread can cancel."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._connection: Connection | None = None

    def take(self, connection: Connection) -> None:
        """It is sent by this connection now."""
        self._connection = connection
        self.check()

    def check(self) -> None:
        """Raises Cancelled if it is cancelled."""
        if self._cancelled.is_set():
            raise Cancelled

    def pause(self, seconds: float) -> None:
        """Wait. Raises Cancelled at once when cancelled."""
        self._cancelled.wait(seconds)
        self.check()

    def cancel(self) -> None:
        """End the request: its pause, or its connection."""
        self._cancelled.set()
        if self._connection is not None:
            self._connection.abort()


def send(
    call: Callable[[], Answer], request: Request, tries: Tries, pause: Callable[[float], None]
) -> Answer:
    """Send until there is an answer that stands, and return it, whatever its status.

    Raises Unreachable once the server was not reached so often as ``tries`` allows.
    """
    unreached = 0
    was_sent = False
    wait = tries.wait_seconds
    for left in reversed(range(tries.tries_max)):
        # Requests that were refused together should not come back together.
        seconds = wait * random.uniform(0.75, 1.25)  # noqa: S311 - no secret
        wait *= 2
        try:
            answer = call()
        except Unreachable as error:
            unreached += 1
            was_sent = was_sent or error.sent
            if not left or unreached >= tries.unreached_tries_max:
                raise
            if error.sent and not request.repeatable:
                raise
        else:
            after = _pause_after(answer, request, tries, seconds)
            if after is None or not left:
                return _of_repeated(answer, request) if was_sent else answer
            seconds = after
        pause(seconds)
    raise AssertionError("the loop returns or raises")


def _pause_after(answer: Answer, request: Request, tries: Tries, seconds: float) -> float | None:
    """How long to wait before the request is sent again; None if the answer stands."""
    if answer.status != BUSY and not (answer.status == UNAVAILABLE and request.repeatable):
        return None
    requested = retry_after(answer)
    if requested is None:
        return seconds
    return max(requested, seconds) if requested <= tries.retry_after_seconds_max else None


def _of_repeated(answer: Answer, request: Request) -> Answer:
    """What is gone after a DELETE whose answer was lost, that DELETE has removed."""
    if request.method == "DELETE" and answer.status == NOT_FOUND:
        return Answer(204, b"", answer.headers)
    return answer


class Exchange:
    """One server and one token, for any number of threads, each call on a connection of its own."""

    def __init__(
        self, url: str, token: str, *, tries: Tries | None = None, kept_answers_max: int = 0
    ) -> None:
        self.url = url.rstrip("/")
        self.tries = tries or Tries()
        self._token = token
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._kept: OrderedDict[str, tuple[str, Answer]] = OrderedDict()
        self._kept_max = kept_answers_max
        # Raises ValueError here rather than at the first call.
        self._idle.append(Connection(self.url, token))

    def __repr__(self) -> str:
        """Without the token."""
        return f"Exchange({self.url!r})"

    def send(self, request: Request, flight: Flight | None = None) -> Answer:
        """The answer, whatever its status. Raises Unreachable, or Cancelled."""
        flight = flight or Flight()
        kept = self._kept_answer(request)
        headers = dict(request.headers or {})
        if kept is not None:
            headers["if-none-match"] = kept[0]

        def call() -> Answer:
            with self.connection() as connection:
                flight.take(connection)
                try:
                    return connection.call(
                        request.method,
                        request.path,
                        request.body,
                        headers=headers,
                        timeout_seconds=request.timeout_seconds,
                        repeatable=request.repeatable,
                    )
                except Unreachable:
                    flight.check()
                    raise

        answer = send(call, request, self.tries, flight.pause)
        if answer.status == NOT_MODIFIED and kept is not None:
            return Answer(200, kept[1].body, {**kept[1].headers, **answer.headers})
        self._keep(request, answer)
        return answer

    @contextmanager
    def connection(self) -> Generator[Connection, None, None]:
        """A connection for one caller; kept open afterwards for the next."""
        with self._lock:
            if self._pid != os.getpid():
                # A child does not touch its parent's connections.
                self._idle, self._pid = [], os.getpid()
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = Connection(self.url, self._token)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the connections that no call uses now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _kept_answer(self, request: Request) -> tuple[str, Answer] | None:
        if request.method != "GET":
            return None
        with self._lock:
            return self._kept.get(_key(request))

    def _keep(self, request: Request, answer: Answer) -> None:
        etag = answer.headers.get("etag", "")
        if request.method != "GET" or not self._kept_max or answer.status != 200 or not etag:  # noqa: PLR2004 - OK
            return
        with self._lock:
            self._kept.pop(_key(request), None)
            if len(answer.body) <= KEPT_BYTES_MAX:
                self._kept[_key(request)] = (etag, answer)
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)


def _key(request: Request) -> str:
    return f"{(request.headers or {}).get('accept', '')} {request.path}"
