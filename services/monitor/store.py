"""The monitor's rows and all queries on them. Called by handlers and loops in a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from libs.contracts.messages import (
    NotificationChannel,
    NotifiedTasks,
    Occasion,
    ReasonCode,
    TaskState,
)
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Order, Tx, UnreadableRowError, Where
from services.monitor.domain.retries import Pauses, gives_up, pause_seconds

# Owner, name, and when it was made.
NotificationKey = tuple[str, str, datetime | None]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Where a task stands, by the scheduler's last event about it."""

    task_id: str
    # Counts the changes of the task's state: an event with a lower one is older. 0: none came yet.
    version: int
    owner: str
    team: str
    group: str
    name: str
    state: TaskState
    reason: ReasonCode
    attempt: int
    changed_at: datetime
    # Since when it is in the queue; None: it is not.
    queued_since: datetime | None = None
    # It has been notified that it waits for long; that it waits for a quota.
    waiting_notified: bool = False
    quota_notified: bool = False
    # None: the task has not ended.
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """Where messages about tasks go, and which. Written by commands alone."""

    owner: str
    name: str
    # Empty for mail, which goes to the address that the owner has when it is sent.
    url: str
    # Names of occasions, separated by spaces.
    occasions: str
    tasks: NotifiedTasks
    team: str
    # Signs what a webhook gets; never shown again. Empty for mail.
    secret: str = field(repr=False)
    changed_at: datetime
    channel: NotificationChannel = NotificationChannel.WEBHOOK
    # When it was made: one that was removed and made again is another one. None: by an earlier
    # version.
    made_at: datetime | None = None
    # When its owner was added as a user; None: set through a gateway of an earlier version.
    owner_added_at: datetime | None = None

    @property
    def key(self) -> NotificationKey:
        """What its messages have of it."""
        return self.owner, self.name, self.made_at


@dataclass(frozen=True, slots=True)
class ReceiverRow:
    """How the deliveries of a notification go. Written by the delivery."""

    owner: str
    name: str
    # Nothing is sent before; None: nothing holds it back.
    held_until: datetime | None = None
    # Since when every try has failed; how many in a row.
    failing_since: datetime | None = None
    failures: int = 0
    # No more is sent until the notification is set again.
    paused_at: datetime | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class MailboxRow:
    """How mail to a person goes. The one without an owner is about the site's mail server."""

    owner: str
    # The time up to which the rate is used; it lies ahead by as much as the burst allows.
    rate_until: datetime
    # Nothing is sent before; None: nothing holds it back.
    held_until: datetime | None = None
    # Since when every try has failed; how many in a row.
    failing_since: datetime | None = None
    failures: int = 0


class Stage(StrEnum):
    """Where a message stands."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    # It was given up, and can be replayed.
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message for one notification: the outbox of deliveries."""

    # The same for the same event and notification, so that an event that comes again adds nothing.
    id: str
    owner: str
    name: str
    task_id: str
    occasion: Occasion
    # JSON, as it is sent.
    body: str
    happened_at: datetime
    stage: Stage
    # When it is tried; of one that was delivered or given up: when that was.
    due_at: datetime
    tries: int = 0
    problem: str = ""
    channel: NotificationChannel = NotificationChannel.WEBHOOK
    # The mail that it is in, chosen before the first try, so that every try sends the same mail.
    mail_id: str = ""
    # The ``made_at`` of the notification that it was put for.
    notification_made_at: datetime | None = None

    @property
    def notification(self) -> NotificationKey:
        """The ``key`` of the notification that it was put for."""
        return self.owner, self.name, self.notification_made_at


def given_up(message: MessageRow, now: datetime, problem: str) -> MessageRow:
    """The message as one that is not tried any more, for this reason."""
    return replace(message, stage=Stage.DEAD, due_at=now, problem=problem)


def after_failed_try(
    message: MessageRow, pauses: Pauses, now: datetime, problem: str
) -> MessageRow:
    """The message after a try that failed: to be tried again later, or given up."""
    message = replace(message, tries=message.tries + 1)
    if gives_up(pauses, message.tries):
        return given_up(message, now, problem)
    due_at = now + timedelta(seconds=pause_seconds(pauses, message.tries))
    return replace(message, due_at=due_at, problem=problem)


async def message(tx: Tx, message_id: str) -> MessageRow | None:
    """A message; None: it is not there, or cannot be read and is not selected again."""
    try:
        return await tx.get(MessageRow, message_id)
    except UnreadableRowError:
        return None


async def receiver(tx: Tx, owner: str, name: str) -> ReceiverRow | None:
    """How the deliveries of a notification go. A row that cannot be read counts as absent, so that
    the delivery writes it again: it has nothing that the next tries would not show."""
    try:
        return await tx.get(ReceiverRow, owner, name)
    except UnreadableRowError:
        return None


async def mailbox(tx: Tx, owner: str) -> MailboxRow:
    """How mail to a person goes. A row that cannot be read is written again in the same way."""
    try:
        return await tx.get(MailboxRow, owner) or MailboxRow(owner, tx.now)
    except UnreadableRowError:
        return MailboxRow(owner, tx.now)


async def notifications(tx: Tx, owner: str = "") -> Sequence[NotificationRow]:
    """All notifications, or those of one owner."""
    return await tx.select(NotificationRow, *([Where("owner", Op.EQ, owner)] if owner else []))


async def receivers(tx: Tx) -> Mapping[tuple[str, str], ReceiverRow]:
    """The state of every receiver that has failed once."""
    return {(row.owner, row.name): row for row in await tx.select(ReceiverRow)}


async def messages_of(
    tx: Tx, notification: NotificationKey, stage: Stage, limit: int
) -> Sequence[MessageRow]:
    """The messages of a notification in one stage, the newest first. Those of one of the same name
    that was removed before are not among them."""
    owner, name, made_at = notification
    return await tx.select(
        MessageRow,
        Where("owner", Op.EQ, owner),
        Where("name", Op.EQ, name),
        Where("stage", Op.EQ, stage),
        Where("notification_made_at", Op.EQ, made_at)
        if made_at
        else Where("notification_made_at", Op.IS_NULL),
        order_by=[Order("due_at", descending=True)],
        limit=limit,
    )


async def due(tx: Tx, channel: NotificationChannel, limit: int, *where: Where) -> list[MessageRow]:
    """The messages to send now that meet the conditions, the first due first."""
    return await tx.select(
        MessageRow,
        *_waiting(channel),
        Where("due_at", Op.LE, tx.now),
        *where,
        order_by=[Order("due_at")],
        limit=limit,
    )


async def due_after(tx: Tx, time: datetime, limit: int) -> Sequence[MessageRow]:
    """The messages that wait for a time after this one."""
    return await tx.select(
        MessageRow, Where("stage", Op.EQ, Stage.WAITING), Where("due_at", Op.GT, time), limit=limit
    )


async def next_due(tx: Tx) -> datetime | None:
    """When the next message is due."""
    rows = await tx.select(
        MessageRow, Where("stage", Op.EQ, Stage.WAITING), order_by=[Order("due_at")], limit=1
    )
    return rows[0].due_at if rows else None


async def oldest_waiting(tx: Tx, channel: NotificationChannel) -> MessageRow | None:
    """The message of a channel that has waited for the longest time."""
    rows = await tx.select(MessageRow, *_waiting(channel), order_by=[Order("happened_at")], limit=1)
    return rows[0] if rows else None


async def count_waiting(tx: Tx, channel: NotificationChannel, most: int) -> int:
    """How many messages of a channel wait, up to ``most``."""
    return len(await tx.select(MessageRow, *_waiting(channel), limit=most))


def _waiting(channel: NotificationChannel) -> tuple[Where, ...]:
    return Where("stage", Op.EQ, Stage.WAITING), Where("channel", Op.EQ, channel)


async def waiting_mail(tx: Tx, owner: str, limit: int) -> Sequence[MessageRow]:
    """All that waits to be mailed to a person, the oldest first."""
    return await tx.select(
        MessageRow,
        Where("owner", Op.EQ, owner),
        Where("stage", Op.EQ, Stage.WAITING),
        Where("channel", Op.EQ, NotificationChannel.MAIL),
        order_by=[Order("happened_at"), Order("id")],
        limit=limit,
    )


async def waiting_long(tx: Tx, before: datetime, limit: int) -> Sequence[TaskRow]:
    """Tasks in the queue since before a time, which has not been notified; the longest first."""
    return await tx.select(
        TaskRow,
        Where("queued_since", Op.LT, before),
        Where("waiting_notified", Op.EQ, value=False),
        order_by=[Order("queued_since")],
        limit=limit,
    )


def prune_rules(ended_keep: timedelta, message_keep: timedelta) -> tuple[PruneRule, ...]:
    """Return what the monitor prunes: tasks that ended, and messages that wait no longer."""
    return (
        aged(
            "ended tasks",
            ended_keep,
            TaskRow,
            ["task_id"],
            "ended_at",
            Where("ended_at", Op.NOT_NULL),
        ),
        aged(
            "messages",
            message_keep,
            MessageRow,
            ["id"],
            "due_at",
            Where("stage", Op.NE, Stage.WAITING),
        ),
        aged("mailboxes", message_keep, MailboxRow, ["owner"], "rate_until"),
    )
