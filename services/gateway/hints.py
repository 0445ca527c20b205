"""Hints between the processes of the gateway: what one has committed, the others read at once.

Wired in ``main.py``. The process that projects sends the event log's new end after each commit; the
process that changes an identity says so. Hints go over core NATS, which stores
nothing, so each reader polls as well, seldom: a lost hint costs that time and nothing else. Many
commits are one hint, and a hint is never waited for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import structlog

from libs.bus.port import BusError
from libs.contracts.envelope import Envelope
from libs.contracts.messages import GatewayHint
from libs.contracts.registry import ROUTES
from libs.service.definition import Ports
from libs.service.loop import Wake, pause
from libs.service.metrics import Metrics
from libs.store.port import Delta
from services.gateway.auth import changes_identities
from services.gateway.event_stream import LiveEvents
from services.gateway.rows import EventRow

declare = Metrics("gateway")
SENT = declare.counter("shiftwork_gateway_hints_sent_total", "Hints to the other gateway processes")
RECEIVED = declare.counter(
    "shiftwork_gateway_hints_received_total", "Hints of gateway processes, own too"
)
ROUTE = ROUTES[GatewayHint]
RETRY_SECONDS = 1.0
IDLE_SECONDS = 3600.0
_log = structlog.stdlib.get_logger(__name__)


class Hints:
    """Sends what this process has committed, and hands on what others have."""

    def __init__(
        self,
        ports: Ports,
        gap_seconds: float,
        live: LiveEvents,
        on_people: Callable[[], None],
    ) -> None:
        self._bus, self._clock = ports.bus, ports.clock
        self._gap_seconds = gap_seconds
        self._live, self._on_people = live, on_people
        self._ids = itertools.count(1)
        # What was committed since the last hint.
        self._position = 0
        self._people = False
        self._rewritten = False
        # The last event of all commits so far, those of earlier leaders included.
        self._end = 0
        self._changed = Wake()
        ports.store.observe(self._on_commit)

    def lead(self, position: int) -> None:
        """A term begins, when the event log ends at this position: what the term writes up to there
        was written before."""
        self._end = max(self._end, position)

    def _on_commit(self, delta: Delta) -> None:
        positions = [row.position for row in delta.put if isinstance(row, EventRow)]
        if positions:
            self._rewritten |= min(positions) <= self._end
            self._position = max(self._position, *positions)
            self._end = max(self._end, *positions)
        if changes_identities(delta):
            self._people = True
        if self._position or self._people:
            self._changed.set()

    async def run(self) -> None:
        """Send and receive hints, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send())
            group.create_task(self._receive())

    async def _send(self) -> None:
        """At most one in each gap."""
        while True:
            await self._changed.wait(IDLE_SECONDS)
            position, people, rewritten = self._position, self._people, self._rewritten
            if not position and not people:
                continue
            self._position, self._people, self._rewritten = 0, False, False
            hint = GatewayHint(position=position, people=people, rewritten=rewritten)
            number = str(next(self._ids))
            await self._bus.send_telemetry(Envelope(number, ROUTE.owner, self._clock.now(), hint))
            SENT.inc()
            await pause(self._gap_seconds)

    async def _receive(self) -> None:
        """Hand hints on. Without a bus, polls alone notice changes."""
        while True:
            try:
                async with self._bus.listen(ROUTE.subject) as hints:
                    async for envelope in hints:
                        self._take(envelope)
            except BusError as problem:
                _log.warning("no hints of other processes for now", problem=str(problem))
            await pause(RETRY_SECONDS)

    def _take(self, envelope: Envelope) -> None:
        hint = envelope.message
        if not isinstance(hint, GatewayHint):
            return
        RECEIVED.inc()
        if hint.rewritten:
            self._live.forget_pages()
        if hint.position:
            self._live.hinted(hint.position)
        if hint.people:
            self._on_people()
