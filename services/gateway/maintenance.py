"""The loops of the leading process: pruning old rows, and rebuilding a new or wiped read model.

``ReadModelRebuild`` makes the owners publish their facts again, so that the projection is complete
although the bus no longer has the old events.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import structlog

from libs.contracts.messages import Reemit, ReemitReply
from libs.service.prune import PruneCutoff, pruned
from libs.store.port import Store, UnreadableRowError
from services.gateway import store as rows_of
from services.gateway.command_client import Commands
from services.gateway.problems import ProblemError
from services.gateway.rows import RebuildRow
from services.gateway.settings import GatewaySettings

OWNERS = ("submit", "scheduler", "launcher", "quota", "monitor")
# What the metrics of pruning call the event log.
EVENTS = "events"
_log = structlog.stdlib.get_logger(__name__)


class HistoryPruning:
    """Keeps the tables bounded."""

    def __init__(self, store: Store, settings: GatewaySettings) -> None:
        self._store = store
        self._settings = settings
        self._events = PruneCutoff("gateway", EVENTS, settings.prune_days_per_hour)
        # The last accepted task that the last step has read.
        self._accepted_after = ""

    async def step(self, epoch: int) -> float | None:
        """Forget a bounded number of old rows; again at once while there are more."""
        settings, most = self._settings, self._settings.prune_rows_max
        async with self._store.transaction(epoch=epoch) as tx:
            dropped = await rows_of.drop_old_events(
                tx,
                kept_max=settings.events_kept_max,
                bytes_max=settings.events_bytes_max,
                rows_max=most,
                before=self._events.before(
                    await rows_of.oldest_event_at(tx, most),
                    tx.now - timedelta(seconds=settings.events_keep_seconds),
                ),
            )
            self._accepted_after = await rows_of.drop_settled(
                tx,
                tx.now - timedelta(seconds=settings.accepted_keep_seconds),
                most,
                lost_before=tx.now - timedelta(seconds=settings.tasks_keep_seconds),
                after=self._accepted_after,
            )
        pruned("gateway", EVENTS, dropped)
        return 0.0 if dropped >= most or self._accepted_after else None


class ReadModelRebuild:
    """Requests once of each owner that it publishes its facts again."""

    def __init__(self, store: Store, commands: Commands, tick_seconds: float) -> None:
        self._store = store
        self._commands = commands
        self._tick_seconds = tick_seconds
        self._requested: set[str] = set()

    async def step(self, epoch: int) -> float | None:
        """Ask the owners that have not answered yet; return None once all have."""
        async with self._store.transaction() as tx:
            for owner in OWNERS:
                # If its row cannot be read, an owner is asked again: that is harmless.
                with contextlib.suppress(UnreadableRowError):
                    if await tx.get(RebuildRow, owner) is not None:
                        self._requested.add(owner)
        missing = [owner for owner in OWNERS if owner not in self._requested]
        await asyncio.gather(*(self._ask(owner, epoch) for owner in missing))
        return self._tick_seconds if len(self._requested) < len(OWNERS) else None

    async def _ask(self, owner: str, epoch: int) -> None:
        try:
            reply = await self._commands.ask(Reemit(service=owner), ReemitReply)
        except ProblemError:
            return  # not there yet: at the next tick
        async with self._store.transaction(epoch=epoch) as tx:
            tx.put(RebuildRow(owner, tx.now, reply.events))
        self._requested.add(owner)
        _log.info("asked for facts again", owner=owner, events=reply.events)
