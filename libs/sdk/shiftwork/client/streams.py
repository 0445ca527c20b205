"""Server-sent events: their form, and streams that continue where they were cut off.

``frames`` is used by the command line, too. ``EventReader`` and ``OutputReader`` decide what a
stream that is opened again has to bring and what of it is new; they do no input or output.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Generic,
    Iterator,
    Mapping,
    TypeVar,
    cast,
)

from shiftwork.client.errors import ApiError, error_of
from shiftwork.client.exchange import BUSY, UNAVAILABLE, Exchange, Flight
from shiftwork.client.paths import with_query
from shiftwork.transport import Answer, Unreachable

if TYPE_CHECKING:
    from shiftwork.client import types

STREAM_SECONDS = 60.0
AGAIN_SECONDS = 0.5
LOST_SECONDS_MAX = 300.0
FRAME_BYTES_MAX = 4 * 1_048_576
Item = TypeVar("Item")


@dataclass(frozen=True)
class Frame:
    """One server-sent event; without data if the server only says where the stream stands."""

    kind: str
    id: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Output:
    """A piece of one rank's output, which continues the piece before it of that rank.

    ``timestamps``, if requested: ``[offset, time]`` of the first byte and of each later byte at
    which the time changes.
    """

    attempt: int
    rank: int
    role: str
    offset: int
    data: bytes
    timestamps: tuple[tuple[int, str], ...] = ()

    @property
    def text(self) -> str:
        """The data as text; bytes that are no UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")


class Stopped(Exception):  # noqa: N818 - a stream that ended; the reader opens it again
    """An event stream was cut off."""


def frames(response: http.client.HTTPResponse) -> Iterator[Frame]:
    """The events of an answer until it ends. Raises Stopped when it is cut off."""
    fields: dict[str, str] = {}
    for text in _lines(response):
        if text:
            name, _, value = text.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data" and "data" in fields:
                value = fields["data"] + "\n" + value
            fields[name] = value
            continue
        if "data" in fields or "id" in fields:
            kind = fields.get("event", "message")
            data = _object(fields["data"]) if "data" in fields else {}
            yield Frame(kind, fields.get("id", ""), data)
        fields = {}


def _lines(response: http.client.HTTPResponse) -> Iterator[str]:
    while True:
        try:
            line = response.readline(FRAME_BYTES_MAX)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # AttributeError: another thread has closed the connection meanwhile.
            raise Stopped(str(error)) from error
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _object(data: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {"text": data}
    return cast("Dict[str, Any]", found) if isinstance(found, dict) else {"value": found}


def bytes_of(data: Mapping[str, Any]) -> bytes:
    """The bytes of one piece of output."""
    if data.get("data_base64"):
        return base64.b64decode(data["data_base64"])
    return str(data.get("text", "")).encode()


class Reader(Generic[Item]):
    """What a stream brings, without gaps and repetitions, however often it is opened."""

    def query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """The query with which to open the stream now."""
        raise NotImplementedError

    def read(self, frame: Frame) -> Item | None:
        """What is new in a frame; None if nothing."""
        raise NotImplementedError

    def is_end(self, frame: Frame) -> bool:
        """True if nothing follows this frame."""
        del frame
        return False


class EventReader(Reader["types.Event"]):
    """Events: a stream that is opened again begins behind the last position."""

    def __init__(self) -> None:
        self._position: int | None = None

    def query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """The query with which to open the stream now."""
        found = dict(query)
        if self._position is not None:
            found["from"] = self._position
        return found

    def read(self, frame: Frame) -> types.Event | None:
        """The event, unless it came before."""
        if not frame.data and frame.id.isdecimal():
            # The stream has come so far, whatever was asked for and of whatever it brings no event.
            self._position = max(int(frame.id), self._position or 0)
        position = frame.data.get("position")
        if not isinstance(position, int):
            return None
        if self._position is not None and position <= self._position:
            return None
        self._position = position
        return cast("types.Event", frame.data)


class OutputReader(Reader[Output]):
    """Output of ranks: a stream that is opened again begins at the beginning, and what was read of
    each rank is dropped."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, int], int] = {}

    def query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """The query with which to open the stream now: the newest lines, if only those were wanted,
        would leave out what was printed meanwhile."""
        found = dict(query)
        if self._read:
            found.update(tail=None, since=None)
        return found

    def read(self, frame: Frame) -> Output | None:
        """The bytes that are new."""
        piece = frame.data
        if "attempt" not in piece or "rank" not in piece:
            return None
        key = (int(piece["attempt"]), int(piece["rank"]))
        offset, data = int(piece.get("offset", 0)), bytes_of(piece)
        begin = max(self._read.get(key, offset), offset)
        self._read[key] = max(begin, offset + len(data))
        fresh = data[begin - offset :]
        if not fresh:
            return None
        times = tuple((int(at), str(when)) for at, when in piece.get("timestamps") or ())
        return Output(*key, str(piece.get("role", "")), begin, fresh, times)

    def is_end(self, frame: Frame) -> bool:
        """True once the task has ended and all of its output was sent."""
        return frame.kind == "end"


def follow(
    exchange: Exchange,
    path: str,
    query: Mapping[str, Any],
    reader: Reader[Item],
    flight: Flight | None = None,
) -> Iterator[Item]:
    """What a stream brings, opened again whenever it is cut off.

    Raises ApiError if the server refuses it, and Unreachable once the server was not reached for
    ``LOST_SECONDS_MAX``.
    """
    flight = flight or Flight()
    lost_since: float | None = None
    while True:
        pause = AGAIN_SECONDS
        try:
            for frame in _opened(exchange, with_query(path, reader.query(query)), flight):
                lost_since = None
                if reader.is_end(frame):
                    return
                item = reader.read(frame)
                if item is not None:
                    yield item
        except Stopped:
            pass
        except (Unreachable, ApiError) as error:
            now = time.monotonic()
            lost_since = now if lost_since is None else lost_since
            if isinstance(error, ApiError):
                if error.status not in (BUSY, UNAVAILABLE):
                    raise
                pause = max(pause, error.retry_after_seconds)
            flight.check()
            if now - lost_since > LOST_SECONDS_MAX:
                raise
        flight.pause(pause)


def _opened(exchange: Exchange, path: str, flight: Flight) -> Iterator[Frame]:
    with exchange.connection() as connection:
        flight.take(connection)
        try:
            response = connection.open(
                path, headers={"accept": "text/event-stream"}, timeout_seconds=STREAM_SECONDS
            )
            if response.status >= 400:  # noqa: PLR2004 - refused
                names = {name.lower(): value for name, value in response.getheaders()}
                raise error_of(Answer(response.status, response.read(FRAME_BYTES_MAX), names))
            yield from frames(response)
        finally:
            connection.close()
