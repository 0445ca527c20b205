"""Limits HTTP connections: their number, per address and in total, and how long each may wait for
the rest of a request or for the client to read.

Used by ``http.py``. A connection costs a descriptor and memory as soon as it is accepted: without
limits, a thousand silent ones leave no descriptor for the database.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from libs.service.loop import pause

CHECK_SECONDS = 1.0
# Descriptors for everything else: the database, the bus, logs, files.
RESERVED = 512
CONNECTIONS_MAX = 32_768
_log = structlog.stdlib.get_logger(__name__)


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows it; the limit that holds now.

    Programs that it starts inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            _log.warning("the limit of open files cannot be raised", soft=soft, hard=hard)
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _total_max() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(16, min(CONNECTIONS_MAX, soft - min(RESERVED, soft // 2)))


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The most of everything about connections. Deadlines are seconds."""

    total_max: int = field(default_factory=_total_max)
    # Of one address; 0: three quarters of all. Behind a proxy everybody has the proxy's address.
    address_max: int = 0
    # For a request's head, counted from the connection's begin or the last answer's end.
    head_seconds: float = 10.0
    # For its body: a backstop behind what the service itself allows.
    body_seconds: float = 60.0
    # Without a byte being taken of an answer that is waiting to be sent.
    send_seconds: float = 30.0

    @property
    def of_one(self) -> int:
        """The most that one address may have."""
        return self.address_max or max(1, self.total_max * 3 // 4)


@dataclass
class _Phase:
    """What a connection is waiting for, and since when."""

    key: tuple[object, ...] = ()
    since: float = 0.0


class Connections:
    """The open connections of one server, the oldest first."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._all: OrderedDict[_Bounded, _Phase] = OrderedDict()
        self._of: dict[str, OrderedDict[_Bounded, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, one: _Bounded) -> None:
        """Add a new connection. If there are too many, close the one that has been silent longest,
        or the new one if none is silent.
        """
        those = self._of.setdefault(one.address, OrderedDict())
        self._all[one] = _Phase()
        those[one] = None
        if len(those) > self._limits.of_one:
            self._evict_quiet(those, one)
        elif len(self._all) > self._limits.total_max:
            self._evict_quiet(self._all, one)

    def gone(self, one: _Bounded) -> None:
        """Remove a connection."""
        self._all.pop(one, None)
        those = self._of.get(one.address)
        if those is not None:
            those.pop(one, None)
            if not those:
                del self._of[one.address]

    def _evict_quiet(self, among: Iterable[_Bounded], newest: _Bounded) -> None:
        quiet = next((each for each in among if each is not newest and each.is_quiet), newest)
        self._drop(quiet)

    def _drop(self, one: _Bounded) -> None:
        self.gone(one)
        one.transport.abort()

    async def watch(self) -> None:
        """Close connections that are too slow, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await pause(CHECK_SECONDS)
            self._close_slow(now())

    def _close_slow(self, now: float) -> None:
        late: list[_Bounded] = []
        for one, phase in self._all.items():
            key, seconds_max = one.waiting(self._limits)
            if key != phase.key:
                phase.key, phase.since = key, now
            elif seconds_max is not None and now - phase.since >= seconds_max:
                late.append(one)
        for one in late:
            self._drop(one)
        if late:
            _log.info("connections closed: too slow", count=len(late))


class _Bounded(H11Protocol):
    """uvicorn's own protocol, counted."""

    bounds: Connections
    address = ""
    is_websocket = False

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as uvicorn has it
        """A connection was accepted."""
        super().connection_made(transport)
        self.address = str(self.client[0]) if self.client else ""
        self.bounds.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection is gone."""
        self.bounds.gone(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:  # noqa: ANN401 - as uvicorn has it
        """A WebSocket has another protocol object; the connection stays counted until that one
        loses it."""
        self.is_websocket = True
        super().handle_websocket_upgrade(event)
        successor: Any = self.transport.get_protocol()
        lost = successor.connection_lost

        def counted(exc: Exception | None) -> None:
            self.bounds.gone(self)
            lost(exc)

        successor.connection_lost = counted

    @property
    def is_quiet(self) -> bool:
        """True if no whole request is being answered."""
        cycle: Any = self.cycle
        if self.is_websocket:
            return False
        return cycle is None or cycle.response_complete or cycle.more_body

    def waiting(self, limits: HttpLimits) -> tuple[tuple[object, ...], float | None]:
        """What it waits for (another value whenever there is progress), and for how long it may."""
        cycle: Any = self.cycle
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return ("send", cycle, unsent), limits.send_seconds
        if self.is_websocket:
            # uvicorn pings it, and ends it if nobody answers.
            return ("websocket",), None
        if cycle is None or cycle.response_complete:
            return ("head", cycle), limits.head_seconds
        if cycle.more_body:
            return ("body", cycle), limits.body_seconds
        return ("answer", cycle), None


def bounded_protocol(bounds: Connections) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn whose connections are counted in ``bounds``."""
    return type("BoundedProtocol", (_Bounded,), {"bounds": bounds})


class WebSockets(WebSocketsSansIOProtocol):
    """uvicorn's own protocol, which does not know that a refusal with a body ends the handshake,
    and logs an error for each."""

    async def send(self, message: Any) -> None:  # noqa: ANN401 - as uvicorn has it
        """Send one message of the application."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True
