"""Decides which messages may be sent, by what the gateway says of their owner now. Both channels
ask here, for every try."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from libs.bus.port import Bus, BusError
from libs.contracts.ids import ids_in, without_hidden_ids
from libs.contracts.messages import ReadRecipients, ReadRecipientsReply, Recipient
from libs.store.port import Store
from services.monitor.domain.recipients import is_of, may_know
from services.monitor.store import MessageRow, NotificationRow, TaskRow

SECONDS_MAX = 5.0
# The gateway answers for no more users at once.
USERS_MAX = 200


class RecipientUnknownError(Exception):
    """The gateway does not say now what the owner may be sent: nothing may be sent."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """What may be sent, as it may be sent, and why not the rest."""

    # Where mail goes; empty: nowhere.
    mail: str
    messages: Sequence[MessageRow]
    # By the id of the message.
    refused: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recipients:
    """Asks the gateway, which has the users. No copy is kept that could be stale."""

    bus: Bus
    store: Store

    async def read(self, users: Sequence[str]) -> Mapping[str, Recipient | None]:
        """Each user; None for one who is not there. A user whose row the gateway cannot read is
        left out. Raises RecipientUnknownError if the gateway does not answer."""
        try:
            reply = await self.bus.request(
                ReadRecipients(users=tuple(users)), timeout_s=SECONDS_MAX
            )
        except BusError as problem:
            raise RecipientUnknownError(f"the gateway does not answer: {problem}") from problem
        assert isinstance(reply, ReadRecipientsReply), "the declared reply"
        if reply.refusal is not None:
            raise RecipientUnknownError(f"the gateway refuses: {reply.refusal.detail}")
        found = {each.user: each for each in reply.recipients}
        return {user: found.get(user) for user in users if user not in reply.unreadable}

    async def sift(
        self, owner: str, messages: Sequence[tuple[MessageRow, NotificationRow]]
    ) -> Sifted:
        """Choose what may be sent of one owner's messages, each with its notification. Raises
        RecipientUnknownError if that is not known."""
        found = await self.read([owner])
        if owner not in found:
            raise RecipientUnknownError(f"the gateway cannot read the user {owner}")
        recipient = found[owner]
        refused: dict[str, str] = {}
        allowed: list[MessageRow] = []
        for row, notification in messages:
            why = _refusal(recipient, row, notification)
            if why or recipient is None:
                refused[row.id] = why
            else:
                allowed.append(await self._without_hidden(recipient, row, notification))
        return Sifted(recipient.mail if recipient else "", allowed, refused)

    async def _without_hidden(
        self, recipient: Recipient, row: MessageRow, notification: NotificationRow
    ) -> MessageRow:
        """The message with ``hidden-1`` and so on instead of other tasks that the owner could see
        when it was written, and cannot see any more."""
        others = [each for each in ids_in(row.body) if each != row.task_id]
        if not others:
            return row
        shown = {row.task_id}
        async with self.store.transaction() as tx:
            await tx.load(TaskRow, *((each,) for each in others))
            for each in others:
                task = await tx.get(TaskRow, each)
                if task is not None and may_know(
                    notification.tasks, recipient, task_owner=task.owner, task_team=task.team
                ):
                    shown.add(each)
        return replace(row, body=without_hidden_ids(row.body, shown))


def _refusal(recipient: Recipient | None, row: MessageRow, notification: NotificationRow) -> str:
    """Why the owner may not be sent a message; empty: it may be sent."""
    if recipient is None:
        return f"{row.owner} is no user any more"
    changed_at, owner_added_at = notification.changed_at, notification.owner_added_at
    if not is_of(recipient.added_at, changed_at, owner_added_at):
        return f"the notification is of an earlier user named {row.owner}"
    if recipient.disabled:
        return f"{row.owner} is disabled"
    task_owner, task_team = _whose(row)
    if not may_know(notification.tasks, recipient, task_owner=task_owner, task_team=task_team):
        return f"{row.owner} may not get messages about this task any more"
    return ""


def _whose(row: MessageRow) -> tuple[str, str]:
    """Owner and team of a message's task; empty if the message cannot be read: only those who see
    all tasks may get it."""
    try:
        data = json.loads(row.body)["data"]
        return str(data["owner"]), str(data["team"] or "")
    except (ValueError, KeyError, TypeError):
        return "", ""
