"""HTTP for the SDK and the command line: one kept-open connection, bounded answers, no surprises.

Standard library only. Called by ``live`` (from its background threads) and by ``client.exchange``;
it lives apart so that ``import shiftwork`` need not load an HTTP stack.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import socket
from dataclasses import dataclass
from typing import Any, Mapping, cast
from urllib.parse import urlsplit

CONNECT_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 16 * 1_048_576


class Unreachable(Exception):  # noqa: N818 - a condition of the network, not a mistake
    """No whole answer came: refused, timed out, cut off, or not HTTP. ``sent`` is False if the
    server cannot have received the request."""

    sent = True


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, whatever its status. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def fields(self) -> dict[str, Any]:
        """The body if it is a JSON object, else an empty one."""
        found = self.json()
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class Connection:
    """One connection to one server, used by one thread at a time.

    Not shared across a fork: a child makes its own, and never touches its parent's.
    """

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// address")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._token = token
        self._connection: http.client.HTTPConnection | None = None

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,  # noqa: ANN401 - any JSON
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float,
        repeatable: bool = True,
    ) -> Answer:
        """Ask once and read the whole answer. Raises Unreachable; never follows a redirect.

        Bytes are sent as they are, with the caller's content type; anything else as JSON.
        A kept connection that the server has closed meanwhile is replaced. If it is closed while a
        request is sent on it, the request is sent again only if it is ``repeatable``.
        """
        if self._is_closed_by_server():
            self.close()
        reused = self._connection is not None
        try:
            return self._exchange(method, path, body, headers or {}, timeout_seconds)
        except Unreachable as error:
            if not (repeatable and reused and isinstance(error.__cause__, ConnectionError)):
                raise
        return self._exchange(method, path, body, headers or {}, timeout_seconds)

    def open(
        self, path: str, *, headers: Mapping[str, str] | None = None, timeout_seconds: float
    ) -> http.client.HTTPResponse:
        """Begin a GET whose answer is read as it comes; ``close`` ends it. Raises Unreachable."""
        self.close()
        try:
            return self._send("GET", path, None, headers or {}, timeout_seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(_cause(error)) from error

    def upgrade(
        self, path: str, headers: Mapping[str, str], timeout_seconds: float
    ) -> Answer | tuple[socket.socket, bytes, Mapping[str, str]]:
        """Ask for another protocol: the connection, what came behind the answer, and the answer's
        headers; any answer but 101 as it is. The connection is the caller's. Raises Unreachable."""
        self.close()
        try:
            response = self._send("GET", path, None, headers, timeout_seconds)
            names = {name.lower(): value for name, value in response.getheaders()}
            if response.status != http.client.SWITCHING_PROTOCOLS:
                data = response.read(ANSWER_BYTES_MAX)
                self.close()
                return Answer(response.status, data, names)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(_cause(error)) from error
        connection, self._connection = self._connection, None
        assert connection is not None, "the answer came by it"
        opened = connection.sock
        opened.setblocking(False)
        try:
            # What the reader of the headers has read ahead.
            received = bytes(response.fp.peek(1))
        except (OSError, ValueError, AttributeError):
            received = b""
        return opened, received, names

    def abort(self) -> None:
        """End the call that another thread makes on this connection; it raises Unreachable."""
        connection = self._connection
        opened = connection.sock if connection is not None else None
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _is_closed_by_server(self) -> bool:
        """True if the kept connection has something to read: its end, for nothing was requested."""
        opened = self._connection.sock if self._connection is not None else None
        if opened is None:
            return False
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(opened, selectors.EVENT_READ)
                return bool(selector.select(0))
        except (OSError, ValueError):
            return True

    def _exchange(
        self,
        method: str,
        path: str,
        body: Any,  # noqa: ANN401 - any JSON
        headers: Mapping[str, str],
        timeout_seconds: float,
    ) -> Answer:
        try:
            response = self._send(method, path, body, headers, timeout_seconds)
            data = response.read(ANSWER_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(_cause(error)) from error
        if len(data) > ANSWER_BYTES_MAX:
            self.close()
            raise Unreachable(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        if response.will_close:
            self.close()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, data, names)

    def _send(
        self,
        method: str,
        path: str,
        body: Any,  # noqa: ANN401 - any JSON
        headers: Mapping[str, str],
        timeout_seconds: float,
    ) -> http.client.HTTPResponse:
        connection = self._connection
        if connection is None:
            connection = self._connect(timeout_seconds)
            self._connection = connection
        if connection.sock is not None:
            connection.sock.settimeout(timeout_seconds)
        sent = {"accept": "application/json", **headers}
        if self._token:
            sent["authorization"] = f"Bearer {self._token}"
        data = None
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data = json.dumps(body, allow_nan=False).encode()
            sent["content-type"] = "application/json"
        connection.request(method, self._prefix + path, body=data, headers=sent)
        return connection.getresponse()

    def _connect(self, timeout_seconds: float) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=min(timeout_seconds, CONNECT_SECONDS_MAX))
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            unreachable = Unreachable(_cause(error))
            unreachable.sent = False
            raise unreachable from error
        return connection


def _cause(error: Exception) -> str:
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "no answer in time"
    return str(error) or type(error).__name__
