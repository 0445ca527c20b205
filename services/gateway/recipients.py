"""Tells the monitor of users as recipients of messages: whether they are there, and whose tasks
they see. The monitor asks for each message, so that every change of a user counts at once."""

from __future__ import annotations

from dataclasses import dataclass

from libs.contracts.messages import (
    NotifiedTasks,
    ReadRecipients,
    ReadRecipientsReply,
    Recipient,
    Refusal,
    RefusalCode,
)
from libs.store.port import Store, UnreadableRowError
from services.gateway.permissions import Action, Reach, Role, Visibility, reach_of
from services.gateway.rows import UserRow

USERS_MAX = 200
_SEES = {
    Reach.NONE: NotifiedTasks.UNSPECIFIED,
    Reach.OWN: NotifiedTasks.OWN,
    Reach.TEAM: NotifiedTasks.TEAM,
    Reach.ALL: NotifiedTasks.ALL,
}


def reach_on_tasks(role: Role, visibility: Visibility) -> Reach:
    """Whose tasks a user of this role sees, whatever the scopes of a token are."""
    return reach_of(Action.READ_TASKS, role, (), visibility)


@dataclass(frozen=True, slots=True)
class Recipients:
    """The users as recipients of messages."""

    store: Store
    visibility: Visibility

    async def read(self, query: ReadRecipients) -> ReadRecipientsReply:
        """Those of the users who are there."""
        if len(query.users) > USERS_MAX:
            detail = f"users: {len(query.users)} are too many; give at most {USERS_MAX}"
            return ReadRecipientsReply(refusal=Refusal(code=RefusalCode.INVALID, detail=detail))
        found: list[Recipient] = []
        unreadable: list[str] = []
        async with self.store.transaction() as tx:
            await tx.load(UserRow, *((user,) for user in query.users))
            for user in query.users:
                try:
                    row = await tx.get(UserRow, user)
                    if row is not None:
                        found.append(self._recipient(row))
                except (UnreadableRowError, ValueError):
                    unreadable.append(user)
        return ReadRecipientsReply(recipients=tuple(found), unreadable=tuple(unreadable))

    def _recipient(self, row: UserRow) -> Recipient:
        """ValueError for a role that is none."""
        return Recipient(
            user=row.name,
            added_at=row.created_at,
            disabled=row.disabled,
            sees=_SEES[reach_on_tasks(Role(row.role), self.visibility)],
            team=row.team,
            mail=row.mail,
        )
