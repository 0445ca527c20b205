"""The commands of notifications: set, remove, list, and replay what was given up."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

from libs.contracts.base import Message
from libs.contracts.ids import NAME_RULE, is_name
from libs.contracts.messages import (
    FieldError,
    ListNotifications,
    ListNotificationsReply,
    ListUndeliveredMessages,
    ListUndeliveredMessagesReply,
    Notification,
    NotificationChannel,
    NotifiedTasks,
    Occasion,
    Refusal,
    RefusalCode,
    RemoveNotification,
    RemoveNotificationReply,
    ReplayUndeliveredMessages,
    ReplayUndeliveredMessagesReply,
    SetNotification,
    SetNotificationReply,
    Undelivered,
)
from libs.service.definition import CommandHandler
from libs.store.port import Tx
from services.monitor import store
from services.monitor.domain.receivers import problem_of
from services.monitor.domain.recipients import is_of
from services.monitor.domain.signature import SECRET_BYTES_MIN, key_of, secret_of
from services.monitor.messages.message_outbox import MessageOutbox, word_of
from services.monitor.settings import MonitorSettings
from services.monitor.store import MessageRow, NotificationRow, ReceiverRow, Stage

# Of one answer; what is beyond is replayed and listed by the next command.
ROWS_MAX = 200


@dataclass(frozen=True, slots=True)
class Commands:
    """The command handlers and their settings."""

    settings: MonitorSettings
    message_outbox: MessageOutbox

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Return the handler of each command."""
        return {
            SetNotification: self.set,
            RemoveNotification: self.remove,
            ListNotifications: self.list,
            ListUndeliveredMessages: self.list_undelivered,
            ReplayUndeliveredMessages: self.replay,
        }

    async def set(self, tx: Tx, command: SetNotification) -> SetNotificationReply:
        """Make or replace a notification; a receiver that was paused gets messages again."""
        before = await tx.get(NotificationRow, command.owner, command.name)
        if before and not is_of(command.owner_added_at, before.changed_at, before.owner_added_at):
            # Of an earlier user of that name: its secret and its messages are not this one's.
            before = None
        refused = self._refusal(command) or await self._too_many(tx, command, before)
        if refused is not None:
            return SetNotificationReply(refusal=refused)
        made = ""
        by_mail = command.channel is NotificationChannel.MAIL
        if by_mail:
            secret = ""
        elif command.secret or (before and before.secret):
            secret = command.secret or (before.secret if before else "")
        else:
            secret = made = secret_of(secrets.token_bytes(SECRET_BYTES_MIN))
        row = NotificationRow(
            owner=command.owner,
            name=command.name,
            url=command.url,
            occasions=" ".join(word_of(each) for each in dict.fromkeys(command.occasions)),
            tasks=command.tasks,
            team=command.team,
            secret=secret,
            changed_at=tx.now,
            channel=NotificationChannel.MAIL if by_mail else NotificationChannel.WEBHOOK,
            made_at=before.made_at if before else tx.now,
            owner_added_at=command.owner_added_at or (before and before.owner_added_at),
        )
        tx.put(row)
        tx.delete(ReceiverRow, row.owner, row.name)
        for message in await store.messages_of(tx, row.key, Stage.WAITING, ROWS_MAX):
            tx.put(replace(message, due_at=tx.now))
        self.message_outbox.note_added()
        return SetNotificationReply(notification=await _shown(tx, row, None), secret=made)

    def _refusal(self, command: SetNotification) -> Refusal | None:
        """Return what is wrong with a command by itself."""
        errors: list[FieldError] = []
        if not is_name(command.name):
            errors.append(_error("name", command.name, "is no name", f"write {NAME_RULE}"))
        errors += self._target_errors(command)
        if not command.occasions or Occasion.UNSPECIFIED in command.occasions:
            known = ", ".join(word_of(each) for each in Occasion if each.value)
            errors.append(_error("occasions", "", "are missing", f"give some of {known}"))
        if command.tasks is NotifiedTasks.TEAM and not command.team:
            errors.append(_error("tasks", "team", "needs a team, and you are in none", "give own"))
        if command.secret:
            try:
                key_of(command.secret)
            except ValueError as wrong:
                fix = "write whsec_ and 24 to 64 bytes as base64, or leave it out"
                errors.append(_error("secret", "", str(wrong), fix))
        if not errors:
            return None
        detail = f"{errors[0].field}: {errors[0].message}; {errors[0].fix}"
        return Refusal(code=RefusalCode.INVALID, detail=detail, errors=tuple(errors))

    def _target_errors(self, command: SetNotification) -> list[FieldError]:
        """What is wrong with where the messages are to go."""
        if command.channel is NotificationChannel.MAIL:
            if self.settings.mail_host:
                return []
            fix = "ask whoever runs the site for SHIFTWORK_MONITOR_MAIL_HOST, or give a webhook"
            return [_error("channel", "mail", "is not set up on this site", fix)]
        problem = problem_of(command.url, self.settings.networks())
        return [_error("url", command.url, problem.message, problem.fix)] if problem else []

    async def _too_many(
        self, tx: Tx, command: SetNotification, before: NotificationRow | None
    ) -> Refusal | None:
        if before is not None:
            return None
        everybodys = await store.notifications(tx)
        own = sum(row.owner == command.owner for row in everybodys)
        if own >= self.settings.notifications_per_owner_max:
            detail = f"{command.owner} has {own} notifications, the most; remove one first"
        elif len(everybodys) >= self.settings.notifications_max:
            detail = f"the site has {len(everybodys)} notifications, the most"
        else:
            return None
        return Refusal(code=RefusalCode.CONFLICT, detail=detail)

    async def remove(self, tx: Tx, command: RemoveNotification) -> RemoveNotificationReply:
        """Remove a notification with what still waits for its receiver."""
        if await tx.get(NotificationRow, command.owner, command.name) is None:
            return RemoveNotificationReply(refusal=_absent(command.owner, command.name))
        tx.delete(NotificationRow, command.owner, command.name)
        tx.delete(ReceiverRow, command.owner, command.name)
        return RemoveNotificationReply()

    async def list(self, tx: Tx, command: ListNotifications) -> ListNotificationsReply:
        """Notifications without their secrets."""
        known = await store.receivers(tx)
        rows = await store.notifications(tx, command.owner)
        shown = [await _shown(tx, row, known.get((row.owner, row.name))) for row in rows]
        return ListNotificationsReply(notifications=tuple(shown))

    async def list_undelivered(
        self, tx: Tx, command: ListUndeliveredMessages
    ) -> ListUndeliveredMessagesReply:
        """What was given up, the newest first."""
        found = await tx.get(NotificationRow, command.owner, command.name)
        if found is None:
            return ListUndeliveredMessagesReply(refusal=_absent(command.owner, command.name))
        rows = await store.messages_of(tx, found.key, Stage.DEAD, ROWS_MAX)
        return ListUndeliveredMessagesReply(undelivered=tuple(_undelivered(row) for row in rows))

    async def replay(
        self, tx: Tx, command: ReplayUndeliveredMessages
    ) -> ReplayUndeliveredMessagesReply:
        """Let what was given up be tried again, and the receiver with it."""
        found = await tx.get(NotificationRow, command.owner, command.name)
        if found is None:
            return ReplayUndeliveredMessagesReply(refusal=_absent(command.owner, command.name))
        rows = await store.messages_of(tx, found.key, Stage.DEAD, ROWS_MAX)
        for row in rows:
            tx.put(replace(row, stage=Stage.WAITING, due_at=tx.now, tries=0, mail_id=""))
        tx.delete(ReceiverRow, command.owner, command.name)
        self.message_outbox.note_added()
        return ReplayUndeliveredMessagesReply(messages=len(rows))


def _error(field: str, value: str, message: str, fix: str) -> FieldError:
    return FieldError(field=field, value=value, message=message, fix=fix)


def _absent(owner: str, name: str) -> Refusal:
    return Refusal(code=RefusalCode.NOT_FOUND, detail=f"{owner} has no notification named {name}")


async def _shown(tx: Tx, row: NotificationRow, receiver: ReceiverRow | None) -> Notification:
    counts = [
        len(await store.messages_of(tx, row.key, stage, ROWS_MAX))
        for stage in (Stage.WAITING, Stage.DEAD)
    ]
    return Notification(
        name=row.name,
        owner=row.owner,
        url=row.url,
        occasions=tuple(Occasion[word.upper()] for word in row.occasions.split()),
        tasks=row.tasks,
        team=row.team,
        changed_at=row.changed_at,
        paused_at=receiver.paused_at if receiver else None,
        problem=receiver.problem if receiver else "",
        waiting=counts[0],
        undelivered=counts[1],
        channel=row.channel,
    )


def _undelivered(row: MessageRow) -> Undelivered:
    return Undelivered(
        id=row.id,
        task_id=row.task_id,
        occasion=row.occasion,
        happened_at=row.happened_at,
        tries=row.tries,
        problem=row.problem,
    )
