"""The users of a site, as the gateway answers the monitor."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

from libs.contracts.messages import (
    NotifiedTasks,
    ReadRecipients,
    ReadRecipientsReply,
    Recipient,
)
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform

ADDED_AT = at(0)


def a_user(
    name: str,
    *,
    mail: str = "",
    added_at: datetime = ADDED_AT,
    disabled: bool = False,
    sees: NotifiedTasks = NotifiedTasks.ALL,
    team: str = "vision",
) -> Recipient:
    return Recipient(
        user=name, added_at=added_at, disabled=disabled, sees=sees, team=team, mail=mail
    )


class People(dict[str, Recipient]):
    """Who is there. With ``everybody`` set, every other user is, too, and sees all tasks."""

    def __init__(self, *users: Recipient, everybody: bool = False) -> None:
        super().__init__({user.user: user for user in users})
        self.everybody = everybody
        self.unreadable: set[str] = set()
        self.asked = 0

    async def answer(self, query: ReadRecipients) -> ReadRecipientsReply:
        self.asked += 1
        found = [
            self.get(name) or a_user(name)
            for name in query.users
            if (name in self or self.everybody) and name not in self.unreadable
        ]
        unreadable = tuple(name for name in query.users if name in self.unreadable)
        return ReadRecipientsReply(recipients=tuple(found), unreadable=unreadable)


@contextlib.asynccontextmanager
async def serving(platform: MemoryPlatform, people: People) -> AsyncGenerator[People]:
    """The gateway answers of these."""
    table: Any = {ReadRecipients: people.answer}
    async with platform.connection("gateway").serve(table):
        yield people
