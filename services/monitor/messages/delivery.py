"""The loop that delivers: each receiver has one request at a time, so that one that is slow or dead
delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts.messages import NotificationChannel
from libs.service import observability
from libs.service.clock import Clock
from libs.service.loop import Wake
from libs.store.port import Store, StoreUnavailableError, TermOverError, Tx, UnreadableRowError
from services.monitor import store
from services.monitor.domain.retries import (
    Pauses,
    Result,
    pause_seconds,
    pauses_receiver,
)
from services.monitor.messages.cooldown import Cooldown
from services.monitor.messages.fair_order import FairOrder
from services.monitor.messages.mailing import Mailing
from services.monitor.messages.message_metrics import GivenUp, note, note_given_up
from services.monitor.messages.message_outbox import MessageOutbox
from services.monitor.messages.names import Names
from services.monitor.messages.recipients import Recipients, RecipientUnknownError
from services.monitor.messages.webhook import Outcome, Webhooks
from services.monitor.settings import MonitorSettings
from services.monitor.store import (
    MessageRow,
    NotificationRow,
    ReceiverRow,
    Stage,
    after_failed_try,
    given_up,
)

# So many of a receiver's messages are held back at once, beyond those that may wait.
HELD_MORE_MAX = 1000
# So many at once whose time lies beyond any pause.
BROUGHT_FORWARD_MAX = 1000
PROBLEM_MAX = 300
# After it was not known whether a message may be sent.
UNKNOWN_PAUSE_SECONDS = 60.0
_log = observability.log("monitor")


@dataclass
class Delivery:
    """Delivers on the leader. The loop ``delivery`` wakes it; ``run`` is a task of the process, so
    that a request under way holds up nothing."""

    store: Store
    clock: Clock
    settings: MonitorSettings
    message_outbox: MessageOutbox
    mailing: Mailing
    recipients: Recipients
    names: Names = field(default_factory=Names)
    _busy: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _cooldown: Cooldown[tuple[str, str]] = field(default_factory=Cooldown[tuple[str, str]])
    _wake: Wake = field(default_factory=Wake)
    # The leader's; None: this process does not lead.
    _epoch: int | None = None
    _next_due: datetime | None = None

    def __post_init__(self) -> None:
        self._webhooks = Webhooks(
            self.settings.networks(),
            self.settings.webhook_ca_file,
            self.settings.webhook_seconds_max,
            self.names,
        )
        self._pauses: Pauses = self.settings.pauses()
        self._fair_order = FairOrder(self.settings.webhooks_at_once)

    async def step(self, epoch: int) -> float | None:
        """Wake the delivery if something may be due; most commits bring no message."""
        first, self._epoch = self._epoch is None, epoch
        added = self.message_outbox.take_added()
        if first or added or (self._next_due is not None and self._next_due <= self.clock.now()):
            self._wake.set()
        return None

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._wake.wait(self.settings.delivery_tick_seconds)
                    if self._epoch is not None:
                        await self.begin(self._epoch, group)
        finally:
            await self.names.close()

    async def begin(self, epoch: int, group: asyncio.TaskGroup) -> None:
        """Begin what is due at receivers that are not busy. What cannot be read is read again
        later: the delivery is a task of the process, which would end with it."""
        parts = {
            "due times": lambda: self._bring_forward(epoch),
            "mail": lambda: self.mailing.begin(epoch, group, self._wake.set),
            "delivery": lambda: self._begin_webhooks(epoch, group),
        }
        for name, part in parts.items():
            try:
                await part()
            except (TermOverError, StoreUnavailableError) as problem:
                _log.info("messages cannot be read", part=name, problem=str(problem))
            except Exception:  # noqa: BLE001 - a defect of one part stops neither the other one nor the process
                observability.RETRIES.labels("monitor", name).inc()
                _log.exception("messages cannot be read", part=name)

    async def _bring_forward(self, epoch: int) -> None:
        """Let messages be tried now that wait for longer than any pause: the clock was set back
        since."""
        async with self.store.transaction() as tx:
            if not await store.due_after(tx, tx.now + self.mailing.longest_wait, 1):
                return
        async with self.store.transaction(epoch=epoch) as tx:
            time = tx.now + self.mailing.longest_wait
            for row in await store.due_after(tx, time, BROUGHT_FORWARD_MAX):
                tx.put(replace(row, due_at=tx.now))

    async def _begin_webhooks(self, epoch: int, group: asyncio.TaskGroup) -> None:
        async with self.store.transaction() as tx:
            self._next_due = await store.next_due(tx)
            cooling = self._cooldown.all(self.clock.now())
            due = await self._fair_order.choose(tx, self._busy | cooling)
        for key, waiting in due.items():
            self._busy.add(key)
            group.create_task(self._deliver(epoch, key, waiting))

    def stop(self) -> None:
        """Begin nothing more: another process leads now."""
        self._epoch = None

    async def _deliver(self, epoch: int, key: tuple[str, str], waiting: list[MessageRow]) -> None:
        """Send what waits for one receiver until it fails, and record how it went."""
        try:
            for message in waiting:
                outcome = await self._try(message)
                async with self.store.transaction(epoch=epoch) as tx:
                    goes_on = await self._record(tx, message, outcome)
                if not goes_on:
                    return
        except (TermOverError, StoreUnavailableError) as problem:
            _log.info("a delivery is not recorded and will be repeated", problem=str(problem))
        except Exception:  # noqa: BLE001 - the other deliveries go on
            self._cooldown.add(key, self.clock.now())
            observability.RETRIES.labels("monitor", "delivery").inc()
            owner, name = key
            _log.exception(
                "a delivery is not recorded and will be repeated", owner=owner, notification=name
            )
        finally:
            self._busy.discard(key)
            # There may be more for it, or for another one that found no place.
            self._wake.set()

    async def _try(self, message: MessageRow) -> Outcome:
        """Send a message, if its notification is there and its owner may be sent it now."""
        async with self.store.transaction() as tx:
            row = await _webhook(tx, message.owner, message.name)
        if isinstance(row, UnreadableRowError):
            return Result.UNREACHABLE, "the notification cannot be read"
        if row is None or row.key != message.notification:
            return Result.FORBIDDEN, "the notification was removed"
        try:
            sifted = await self.recipients.sift(row.owner, [(message, row)])
        except RecipientUnknownError as problem:
            return Result.UNKNOWN, str(problem)
        if message.id in sifted.refused:
            return Result.FORBIDDEN, sifted.refused[message.id]
        (allowed,) = sifted.messages
        return await self._webhooks.send(row, allowed, self.clock.now())

    async def _record(self, tx: Tx, message: MessageRow, outcome: Outcome) -> bool:
        """Record a try; False if the receiver is to be left alone now."""
        result, problem = outcome[0], outcome[1][:PROBLEM_MAX]
        if await store.message(tx, message.id) != message:
            # Replayed, or tried by a leader before this one.
            return True
        now = tx.now
        note(NotificationChannel.WEBHOOK, result, 1)
        if result is Result.FORBIDDEN:
            tx.put(given_up(message, now, problem))
            note_given_up(NotificationChannel.WEBHOOK, GivenUp.NOT_WANTED)
            return True
        receiver = await store.receiver(tx, message.owner, message.name)
        if result is Result.DELIVERED:
            delivered = replace(message, tries=message.tries + 1, problem="")
            tx.put(replace(delivered, stage=Stage.DELIVERED, due_at=now))
            if receiver is not None:
                tx.delete(ReceiverRow, message.owner, message.name)
            return True
        if result is Result.UNKNOWN:
            # Nothing was tried, and nothing is wrong with the receiver.
            held_until = now + timedelta(seconds=UNKNOWN_PAUSE_SECONDS)
            tx.put(replace(message, problem=problem))
            await self._put_off(tx, message, held_until)
            return False
        tried = after_failed_try(message, self._pauses, now, problem)
        if tried.stage is Stage.DEAD:
            note_given_up(NotificationChannel.WEBHOOK, GivenUp.FAILED)
        tx.put(tried)
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
        if not paused:
            await self._put_off(tx, message, held_until)
            return
        others = await self._waiting(tx, message)
        for other in others:
            tx.put(given_up(other, tx.now, f"the receiver is paused: {problem}"))
        note_given_up(NotificationChannel.WEBHOOK, GivenUp.FAILED, len(others))

    async def _put_off(self, tx: Tx, message: MessageRow, until: datetime) -> None:
        """Let all that waits for a receiver be due later, so that it is in nobody's way."""
        for other in await self._waiting(tx, message):
            if other.due_at < until:
                tx.put(replace(other, due_at=until))

    async def _waiting(self, tx: Tx, message: MessageRow) -> Sequence[MessageRow]:
        """All that waits for the receiver of a message."""
        most = self.settings.waiting_messages_max + HELD_MORE_MAX
        return await store.messages_of(tx, message.notification, Stage.WAITING, most)


async def _webhook(tx: Tx, owner: str, name: str) -> NotificationRow | UnreadableRowError | None:
    """The notification; None if it was removed, or sends mail now."""
    try:
        row = await tx.get(NotificationRow, owner, name)
    except UnreadableRowError as unreadable:
        return unreadable
    return row if row and row.channel is NotificationChannel.WEBHOOK else None


def _first(receiver: ReceiverRow | None, message: MessageRow) -> ReceiverRow:
    return receiver or ReceiverRow(message.owner, message.name)
