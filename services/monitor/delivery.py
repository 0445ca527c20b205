"""The loop that delivers: each receiver has one request at a time, so that one that is slow or dead
delays no other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts.messages import NotificationChannel
from libs.service import observability
from libs.service.clock import Clock
from libs.service.loop import Wake
from libs.store.port import NotLeaderError, Store, StoreUnavailableError, Tx
from services.monitor import store
from services.monitor.domain.retries import (
    Pauses,
    Result,
    gives_up,
    pause_seconds,
    pauses_receiver,
)
from services.monitor.mailing import Mailing
from services.monitor.outgoing import Outgoing
from services.monitor.settings import MonitorSettings
from services.monitor.store import MessageRow, NotificationRow, ReceiverRow, Stage, given_up
from services.monitor.turns import Turns
from services.monitor.webhook import Outcome, Webhooks

# So many of a receiver's messages are held back at once, beyond those that may wait.
HELD_MORE_MAX = 1000
PROBLEM_MAX = 300
_log = observability.log("monitor")


@dataclass
class Delivery:
    """Delivers on the leader. The loop ``delivery`` wakes it; ``run`` is a task of the process, so
    that a request under way holds up nothing."""

    store: Store
    clock: Clock
    settings: MonitorSettings
    outgoing: Outgoing
    mailing: Mailing
    _busy: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _wake: Wake = field(default_factory=Wake)
    # The leader's; None: this process does not lead.
    _epoch: int | None = None
    _next_due: datetime | None = None

    def __post_init__(self) -> None:
        self._webhooks = Webhooks(
            self.settings.networks(),
            self.settings.webhook_ca_file,
            self.settings.webhook_seconds_max,
        )
        self._pauses: Pauses = self.settings.pauses()
        self._turns = Turns(self.settings.webhooks_at_once)

    async def step(self, epoch: int) -> float | None:
        """Wake the delivery if something may be due; most commits bring no message."""
        first, self._epoch = self._epoch is None, epoch
        added = self.outgoing.take_added()
        if first or added or (self._next_due is not None and self._next_due <= self.clock.now()):
            self._wake.set()
        return None

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wake.wait(self.settings.delivery_tick_seconds)
                if self._epoch is not None:
                    try:
                        await self.begin(self._epoch, group)
                    except (NotLeaderError, StoreUnavailableError) as problem:
                        _log.info("messages cannot be read", problem=str(problem))

    async def begin(self, epoch: int, group: asyncio.TaskGroup) -> None:
        """Begin what is due at receivers that are not busy."""
        await self.mailing.begin(epoch, group, self._wake.set)
        async with self.store.transaction() as tx:
            self._next_due = await store.next_due(tx)
            due = await self._turns.choose(tx, self._busy)
            begun = {key: (await _webhook(tx, *key), rows) for key, rows in due.items()}
        for key, (row, waiting) in begun.items():
            self._busy.add(key)
            group.create_task(self._deliver(epoch, key, row, waiting))

    def stop(self) -> None:
        """Begin nothing more: another process leads now."""
        self._epoch = None

    async def _deliver(
        self,
        epoch: int,
        key: tuple[str, str],
        row: NotificationRow | None,
        waiting: list[MessageRow],
    ) -> None:
        """Send what waits for one receiver until it fails, and record how it went."""
        try:
            for message in waiting:
                outcome: Outcome = (Result.GONE, "the notification was removed")
                if row is not None:
                    outcome = await self._webhooks.send(row, message, self.clock.now())
                async with self.store.transaction(epoch=epoch) as tx:
                    goes_on = await self._record(tx, message, outcome, removed=row is None)
                if not goes_on:
                    return
        except (NotLeaderError, StoreUnavailableError) as problem:
            _log.info("a delivery is not recorded and will be repeated", problem=str(problem))
        finally:
            self._busy.discard(key)
            # There may be more for it, or for another one that found no place.
            self._wake.set()

    async def _record(
        self, tx: Tx, message: MessageRow, outcome: Outcome, *, removed: bool
    ) -> bool:
        """Record a try; False if the receiver is to be left alone now."""
        result, problem = outcome[0], outcome[1][:PROBLEM_MAX]
        if await tx.get(MessageRow, message.id) != message:
            # Replayed, or tried by a leader before this one.
            return True
        now, tries = tx.now, message.tries + 1
        if removed:
            tx.put(given_up(message, now, problem))
            return True
        receiver = await tx.get(ReceiverRow, message.owner, message.name)
        if result is Result.DELIVERED:
            tx.put(replace(message, stage=Stage.DELIVERED, due_at=now, tries=tries, problem=""))
            if receiver is not None:
                tx.delete(ReceiverRow, message.owner, message.name)
            return True
        if gives_up(self._pauses, tries):
            tx.put(given_up(replace(message, tries=tries), now, problem))
        else:
            due_at = now + timedelta(seconds=pause_seconds(self._pauses, tries))
            tx.put(replace(message, due_at=due_at, tries=tries, problem=problem))
        if result is Result.REFUSED:
            # It answers: the message may be at fault, and the others go.
            tx.put(replace(_first(receiver, message), problem=problem))
            return True
        await self._hold(tx, receiver, message, result, problem)
        return False

    async def _hold(
        self,
        tx: Tx,
        receiver: ReceiverRow | None,
        message: MessageRow,
        result: Result,
        problem: str,
    ) -> None:
        """Hold back everything for a receiver that fails, or give it up."""
        before = _first(receiver, message)
        since, failures = before.failing_since or tx.now, before.failures + 1
        held_until = tx.now + timedelta(seconds=pause_seconds(self._pauses, failures))
        paused = pauses_receiver(self._pauses, result, since, tx.now)
        tx.put(
            replace(
                before,
                held_until=held_until,
                failing_since=since,
                failures=failures,
                paused_at=tx.now if paused else None,
                problem=problem,
            )
        )
        most = self.settings.waiting_messages_max
        for other in await store.messages_of(
            tx, message.owner, message.name, Stage.WAITING, most + HELD_MORE_MAX
        ):
            if paused:
                tx.put(given_up(other, tx.now, f"the receiver is paused: {problem}"))
            elif other.due_at < held_until:
                tx.put(replace(other, due_at=held_until))


async def _webhook(tx: Tx, owner: str, name: str) -> NotificationRow | None:
    """The notification; None if it was removed, or sends mail now."""
    row = await tx.get(NotificationRow, owner, name)
    return row if row and row.channel is NotificationChannel.WEBHOOK else None


def _first(receiver: ReceiverRow | None, message: MessageRow) -> ReceiverRow:
    return receiver or ReceiverRow(message.owner, message.name)
