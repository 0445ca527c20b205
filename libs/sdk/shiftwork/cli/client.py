"""The API over HTTP, for the commands: JSON calls, pages, byte ranges and event streams.

Standard library only. Requests are sent, and sent again, by the rules of the client library
(``shiftwork.client.exchange``); here every failure becomes a ``Failure`` with the right exit code.
Reads, changes that set a target state, and submissions, which carry a key, are repeatable.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Iterator, Mapping, Sequence

from shiftwork.cli import installed, parse, render, websocket
from shiftwork.cli.failures import UNREACHABLE, Failure, refused, usage
from shiftwork.client.exchange import Request, Tries, send
from shiftwork.client.paths import with_query
from shiftwork.client.streams import FRAME_BYTES_MAX, STREAM_SECONDS, Frame, bytes_of, frames
from shiftwork.transport import Answer, Connection, Unreachable

CALL_SECONDS = 30.0
TRIES = Tries()
# Why something is missing in all items of a page.
PAGE_NOTES = ("series_problem",)
PAGE = 1000
RANGE_BYTES = 1_048_576

Json = Any
Query = Mapping[str, "str | int | float | list[str] | None"]


@dataclass(frozen=True)
class Range:
    """A piece of one rank's output."""

    data: bytes
    offset: int
    size: int
    complete: bool
    # With ``timestamps``: ``[offset, time]`` of the first byte, and of each later one from which on
    # another time holds.
    timestamps: Sequence[Sequence[Any]] = ()
    approximate: bool = False


class Api:
    """One server, one token.

    Args:
        url, token: the server and the caller's token; the token may be empty.
        where: the source of the address, for the error of a wrong one.
        data: the data folder of a platform that `up` runs on this machine.
    """

    def __init__(self, url: str, token: str, where: str = "--url", data: str = "") -> None:
        self.url = url.rstrip("/")
        # How long the server may take for one request.
        self.call_seconds = CALL_SECONDS
        # How often a server is tried that does not answer.
        self.unreached_tries_max = TRIES.unreached_tries_max
        self._data = data
        self._token = token
        # Set when the result is no longer wanted: a reader does not begin again.
        self.unwanted = threading.Event()
        try:
            self._client = Connection(self.url, token)
        except ValueError as error:
            raise usage(str(error), where=where, fix="write http://HOST:PORT") from None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def another(self) -> Api:
        """The same server and token on a connection of its own, for another thread."""
        return Api(self.url, self._token, data=self._data)

    def get(self, path: str, query: Query | None = None) -> Json:
        """The answer's JSON."""
        return self._json("GET", path + _query(query))

    def put(self, path: str, body: Json) -> Json:
        """Set a target state; safe to repeat."""
        return self._json("PUT", path, body)

    def post(self, path: str, body: Json, key: str) -> Json:
        """Create something, once for each key however often it is sent."""
        return self._json("POST", path, body, {"idempotency-key": key})

    def create(self, path: str, body: Json) -> Json:
        """Create something without a key: sent again only where it has certainly done nothing."""
        return self._json("POST", path, body, repeatable=False)

    def send_file(self, method: str, path: str, data: bytes, kind: str) -> Json:
        """Send a file as it is, of this content type; safe to repeat."""
        return self._json(method, path, data, {"content-type": kind})

    def patch(self, path: str, body: Json) -> Json:
        """Change some fields; safe to repeat."""
        return self._json("PATCH", path, body)

    def delete(self, path: str) -> Json:
        """Delete something."""
        return self._json("DELETE", path)

    def token_by_password(self, user: str, password: str, name: str) -> Json:
        """A token for a user with a password: by a browser's session that ends at once."""
        body = {"user": user, "password": password}
        answer = self._answer("POST", "/v1/login/password", body, None, repeatable=False)
        headers = {
            "cookie": answer.headers.get("set-cookie", "").partition(";")[0],
            "x-shiftwork-csrf": answer.fields().get("csrf") or "",
        }
        try:
            made = self._json("POST", "/v1/tokens", {"name": name}, headers, repeatable=False)
        finally:
            self._answer("DELETE", "/v1/session", None, headers)
        return {**made, "user": user}

    def items(self, path: str, query: Query | None = None, limit: int | None = None) -> Json:
        """A list: ``{"items": […], "next_cursor": …}``, pages joined until ``limit`` or the end.

        Rows that the server cannot show stand beside it in ``unreadable``, and are warned of. What
        a page says about all of its items (``PAGE_NOTES``) is kept.
        """
        items: list[Any] = []
        notes: dict[str, Any] = {}
        apart: list[Any] = []
        params = dict(query or {})
        while True:
            left = PAGE if limit is None else min(PAGE, limit - len(items))
            page = self.get(path, {**params, "limit": left})
            items += page["items"]
            apart += page.get("unreadable") or []
            notes.update({name: page[name] for name in PAGE_NOTES if name in page})
            cursor = page.get("next_cursor")
            empty = not page["items"] and not page.get("unreadable")
            if not cursor or empty or (limit is not None and len(items) >= limit):
                for each in apart:
                    render.warning(f"{each['id']} is left out: {each['problem']}")
                more = {"unreadable": apart} if apart else {}
                return {"items": items, "next_cursor": cursor, **more, **notes}
            params["cursor"] = cursor

    def read_range(self, path: str, query: Query) -> Range:
        """Some bytes of one rank's output; with ``timestamps`` in the query, when they were
        written."""
        if query.get("timestamps"):
            piece = self.get(path, query)
            return Range(
                bytes_of(piece),
                piece["offset"],
                piece["size"],
                piece["complete"],
                piece["timestamps"],
                approximate=bool(piece.get("approximate")),
            )
        answer = self._answer("GET", path + _query(query), None, {"accept": "text/plain"})
        headers = answer.headers
        return Range(
            answer.body,
            int(headers.get("x-shiftwork-offset", "0")),
            int(headers.get("x-shiftwork-size", "0")),
            headers.get("x-shiftwork-complete", "").lower() in ("true", "1"),
        )

    def upgrade(self, path: str, query: Query | None = None) -> websocket.WebSocket:
        """Open a WebSocket. Raises Failure if the server refuses it."""
        where, key = path + _query(query), websocket.key()
        headers = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": key,
        }
        try:
            found = self._client.upgrade(where, headers, CALL_SECONDS)
        except Unreachable as error:
            raise self._unreachable(error) from error
        if isinstance(found, Answer):
            request, after = f"GET {path}", found.headers.get("retry-after")
            raise self._refused(found.fields(), found.status, request=request, retry_after=after)
        connection, received, names = found
        if names.get("sec-websocket-accept") != websocket.answer_of(key):
            connection.close()
            raise Failure(
                "the server's answer is no WebSocket",
                where=self.url,
                fix="does a proxy in between pass WebSockets on?",
            )
        return websocket.WebSocket(connection, received)

    def stream(self, path: str, query: Query | None = None) -> Iterator[Frame]:
        """Server-sent events until the server ends the stream. Raises Stopped when cut off."""
        where = path + _query(query)
        try:
            response = self._client.open(
                where, headers={"accept": "text/event-stream"}, timeout_seconds=STREAM_SECONDS
            )
        except Unreachable as error:
            raise self._unreachable(error) from error
        if response.status != 200:  # noqa: PLR2004 - OK
            body = response.read(FRAME_BYTES_MAX)
            self._client.close()
            document = Answer(response.status, body, {}).fields()
            after = response.headers.get("retry-after")
            request = f"GET {where}"
            raise self._refused(document, response.status, request=request, retry_after=after)
        try:
            yield from frames(response)
        finally:
            self._client.close()

    def _json(
        self,
        method: str,
        path: str,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
        *,
        repeatable: bool = True,
    ) -> Json:
        answer = self._answer(method, path, body, headers, repeatable=repeatable)
        if not answer.body:
            return {}
        document = answer.json()
        if document is None:
            raise Failure(
                "the server's answer is not JSON",
                where=f"{method} {self.url}{path}",
                fix="does the address belong to a Shiftwork server?",
            )
        return document

    def _answer(
        self,
        method: str,
        path: str,
        body: Json,
        headers: Mapping[str, str] | None,
        *,
        repeatable: bool = True,
    ) -> Answer:
        request = Request(
            method, path, body, headers, repeatable=repeatable, timeout_seconds=self.call_seconds
        )

        def call() -> Answer:
            return self._client.call(
                method,
                path,
                body,
                headers=headers,
                timeout_seconds=self.call_seconds,
                repeatable=repeatable,
            )

        tries = replace(TRIES, unreached_tries_max=self.unreached_tries_max)
        try:
            answer = send(call, request, tries, time.sleep)
        except Unreachable as error:
            raise self._unreachable(error) from error
        if answer.status >= 400:  # noqa: PLR2004 - a refusal
            raise self._refused(
                answer.fields(),
                answer.status,
                request=f"{method} {path}",
                retry_after=answer.headers.get("retry-after"),
            )
        return answer

    def _refused(
        self, document: Mapping[str, Any], status: int, *, request: str, retry_after: str | None
    ) -> Failure:
        found = refused(
            document,
            status,
            server=self.url,
            request=request,
            retry_after=retry_after,
            data=self._data,
        )
        logs_in = " /v1/login/" in request
        if status == 401 and logs_in:  # noqa: PLR2004 - Unauthorized
            found.fix = "try again; an administrator sets passwords: shiftwork user passwd NAME"
            if request.endswith("/token"):
                found.fix = "run `shiftwork login` again"
        if status == 401 and not self._token and not logs_in:  # noqa: PLR2004 - Unauthorized
            found.what = "no token is given"
            found.fix = (
                "give yours with --token or SHIFTWORK_TOKEN, or choose a context that has one"
                " (`shiftwork context ls`); `shiftwork login` or an administrator makes it"
            )
        return found

    def _unreachable(self, error: Exception) -> Failure:
        return Failure(
            f"cannot reach the server: {error}",
            where=self.url,
            fix=_reach(self.url, self._data),
            code=UNREACHABLE,
        )


def _reach(url: str, data: str) -> str:
    """What to do about a server that does not answer."""
    if data or parse.is_loopback(url):
        up, doctor = (installed.platform(name, data=data) for name in ("up", "doctor"))
        return f"is it running? {up} starts one here, {doctor} looks closer"
    return "is the address right, and does this machine reach it? Ask who runs the server"


def _query(query: Query | None) -> str:
    """What stands behind the path. An option that is not given is an empty text."""
    return with_query("", {name: value for name, value in (query or {}).items() if value != ""})
