"""What the generated methods are made of: operations, requests from them, results, lists.

``Core`` holds what the synchronous and the asynchronous client share; ``Resource`` and
``AsyncResource`` are the bases of the generated classes.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Iterator,
    Mapping,
    Optional,
    TypeVar,
    cast,
)

from shiftwork.client.errors import ClientError, error_of
from shiftwork.client.exchange import Exchange, Flight, Request
from shiftwork.client.paths import part, with_query
from shiftwork.client.streams import Reader, follow

if TYPE_CHECKING:
    from shiftwork.transport import Answer

JSON = "application/json"
POSITION = "x-shiftwork-position"
# Of one AsyncClient: so many calls are on their way at once, further ones wait.
THREADS_MAX = 16
Item = TypeVar("Item")
Page = TypeVar("Page")
T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    """One operation of the API. ``keyed``: it takes an Idempotency-Key, which makes it repeatable;
    ``text_body``: the content type of a body that is given as text."""

    method: str
    path: str
    repeatable: bool
    keyed: bool = False
    text_body: str = ""


@dataclass(frozen=True)
class Text:
    """An answer that is no JSON. ``headers`` are in lower case."""

    data: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """The data as text; bytes that are no UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Core:
    """Makes requests of operations and results of answers."""

    exchange: Exchange
    timeout_seconds: float

    def call(  # noqa: PLR0917 - the parts of a request
        self,
        operation: Operation,
        path: Mapping[str, object],
        query: Mapping[str, object],
        headers: Mapping[str, str | None],
        body: object = None,
        accept: str = JSON,
        flight: Flight | None = None,
    ) -> Answer:
        """The answer. Raises ApiError if it is a refusal, and Unreachable."""
        sent = {name: value for name, value in headers.items() if value is not None}
        sent["accept"] = accept
        if operation.keyed:
            sent.setdefault("idempotency-key", uuid.uuid4().hex)
        if isinstance(body, str):
            body = body.encode()
            sent["content-type"] = operation.text_body
        request = Request(
            operation.method,
            with_query(path_of(operation, path), query),
            body,
            sent,
            repeatable=operation.repeatable or operation.keyed,
            timeout_seconds=self.timeout_seconds,
        )
        answer = self.exchange.send(request, flight)
        if answer.status >= 400:  # noqa: PLR2004 - refused
            raise error_of(answer)
        return answer

    def stream(
        self,
        operation: Operation,
        path: Mapping[str, object],
        query: Mapping[str, object],
        reader: Reader[Item],
        flight: Flight | None = None,
    ) -> Iterator[Item]:
        """What a stream of this operation brings."""
        asked = {**query, "follow": True}
        return follow(self.exchange, path_of(operation, path), asked, reader, flight)


def path_of(operation: Operation, path: Mapping[str, object]) -> str:
    """The operation's path with its parameters."""
    return operation.path.format(**{name: part(str(value)) for name, value in path.items()})


def document(answer: Answer) -> Any:  # noqa: ANN401 - the caller casts it to the operation's type
    """The answer's JSON; None if it has no body. Raises ClientError for anything else."""
    if not answer.body:
        return None
    kind = answer.headers.get("content-type", "")
    if not kind.startswith(JSON):
        raise ClientError(
            f"the answer is {kind or 'of no type'} instead of JSON; does the address belong to a"
            " Shiftwork server, and has this method a variant for text?"
        )
    return answer.json()


class Listing(Generic[Item, Page]):
    """A list of the API: iterating over it brings every item, page by page as they are needed.

    ``pages()`` brings the pages themselves, with the rows that cannot be shown (``unreadable``);
    ``page()`` is the first one alone.
    """

    def __init__(self, fetch: Callable[[str | None], Answer], cursor: str | None) -> None:
        self._fetch = fetch
        self._cursor = cursor
        self._position: int | None = None

    @property
    def position(self) -> int:
        """The events behind this position change the list: give it as ``from_`` to follow it
        without a gap. Of the first page; reads it if it was not read."""
        if self._position is None:
            self.page()
        return self._position or 0

    def page(self) -> Page:
        """The first page."""
        return next(self.pages())

    def pages(self) -> Iterator[Page]:
        """Every page."""
        cursor = self._cursor
        while True:
            answer = self._fetch(cursor)
            page = document(answer)
            if self._position is None:
                self._position = position_of(answer)
            yield cast("Page", page)
            cursor = _next(page, cursor)
            if not cursor:
                return

    def __iter__(self) -> Iterator[Item]:
        """Every item."""
        for page in self.pages():
            yield from cast("Any", page)["items"]


class AsyncListing(Generic[Item, Page]):
    """The same as ``Listing``, for ``async for``."""

    def __init__(
        self, fetch: Callable[[str | None], Awaitable[Answer]], cursor: str | None
    ) -> None:
        self._fetch = fetch
        self._cursor = cursor
        self._position: int | None = None

    async def position(self) -> int:
        """As ``Listing.position``."""
        if self._position is None:
            await self.page()
        return self._position or 0

    async def page(self) -> Page:
        """The first page."""
        return await self.pages().__anext__()

    async def pages(self) -> AsyncIterator[Page]:
        """Every page."""
        cursor = self._cursor
        while True:
            answer = await self._fetch(cursor)
            page = document(answer)
            if self._position is None:
                self._position = position_of(answer)
            yield cast("Page", page)
            cursor = _next(page, cursor)
            if not cursor:
                return

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Every item."""
        async for page in self.pages():
            for item in cast("Any", page)["items"]:
                yield item


def position_of(answer: Answer) -> int:
    """The place of an answer in the event log; 0 if it has none."""
    text = answer.headers.get(POSITION, "")
    return int(text) if text.isdecimal() else 0


def _next(page: Mapping[str, Any], cursor: str | None) -> str | None:
    found = page.get("next_cursor")
    return found if found != cursor else None


Path = Dict[str, object]
Query = Dict[str, object]
Headers = Dict[str, Optional[str]]


class Resource:
    """The base of the generated resources."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def _json(
        self, operation: Operation, path: Path, query: Query, headers: Headers, body: object = None
    ) -> Any:  # noqa: ANN401 - the operation's type
        return document(self._core.call(operation, path, query, headers, body))

    def _text(
        self, operation: Operation, path: Path, query: Query, headers: Headers, accept: str
    ) -> Text:
        answer = self._core.call(operation, path, query, headers, None, accept)
        return Text(answer.body, answer.headers)

    def _list(
        self, operation: Operation, path: Path, query: Query, headers: Headers
    ) -> Listing[Any, Any]:
        def fetch(cursor: str | None) -> Answer:
            asked = {**query, "cursor": cursor} if cursor else query
            return self._core.call(operation, path, asked, headers)

        return Listing(fetch, cast("str | None", query.get("cursor")))

    def _follow(
        self, operation: Operation, path: Path, query: Query, reader: Reader[Item]
    ) -> Iterator[Item]:
        return self._core.stream(operation, path, query, reader)


class Workers:
    """The threads of one AsyncClient, which make its calls."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, "shiftwork-client")

    async def run(self, work: Callable[[Flight], T]) -> T:
        """What ``work`` returns. If the caller is cancelled, the request ends."""
        flight = Flight()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, work, flight)
        except asyncio.CancelledError:
            flight.cancel()
            raise

    async def iterate(
        self, begin: Callable[[Flight], Iterator[Item]]
    ) -> AsyncGenerator[Item, None]:
        """What an iterator brings, which waits in a thread of its own; closing this ends it."""
        flight = Flight()
        iterator = begin(flight)
        thread = ThreadPoolExecutor(1, "shiftwork-stream")
        loop = asyncio.get_running_loop()
        end: tuple[()] = ()
        try:
            while True:
                item = await loop.run_in_executor(thread, next, iterator, end)
                if item is end:
                    return
                yield cast("Item", item)
        finally:
            flight.cancel()
            # Behind what the thread does now, which has been ended.
            thread.submit(_close, iterator)
            thread.shutdown(wait=False)

    def close(self) -> None:
        """Take no more work."""
        self._pool.shutdown(wait=False)


def _close(iterator: Any) -> None:  # noqa: ANN401 - a generator
    with contextlib.suppress(Exception):
        iterator.close()


class AsyncResource:
    """The base of the generated asynchronous resources."""

    def __init__(self, core: Core, workers: Workers) -> None:
        self._core = core
        self._workers = workers

    async def _answer(  # noqa: PLR0917 - the parts of a request
        self,
        operation: Operation,
        path: Path,
        query: Query,
        headers: Headers,
        body: object = None,
        accept: str = JSON,
    ) -> Answer:
        def work(flight: Flight) -> Answer:
            return self._core.call(operation, path, query, headers, body, accept, flight)

        return await self._workers.run(work)

    async def _json(
        self, operation: Operation, path: Path, query: Query, headers: Headers, body: object = None
    ) -> Any:  # noqa: ANN401 - the operation's type
        return document(await self._answer(operation, path, query, headers, body))

    async def _text(
        self, operation: Operation, path: Path, query: Query, headers: Headers, accept: str
    ) -> Text:
        answer = await self._answer(operation, path, query, headers, None, accept)
        return Text(answer.body, answer.headers)

    def _list(
        self, operation: Operation, path: Path, query: Query, headers: Headers
    ) -> AsyncListing[Any, Any]:
        async def fetch(cursor: str | None) -> Answer:
            asked = {**query, "cursor": cursor} if cursor else query
            return await self._answer(operation, path, asked, headers)

        return AsyncListing(fetch, cast("str | None", query.get("cursor")))

    def _follow(
        self, operation: Operation, path: Path, query: Query, reader: Reader[Item]
    ) -> AsyncGenerator[Item, None]:
        def begin(flight: Flight) -> Iterator[Item]:
            return self._core.stream(operation, path, query, reader, flight)

        return self._workers.iterate(begin)
