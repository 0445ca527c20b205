"""The loop that keeps notifications with their owners: one for the team follows its owner to
another team, and one of an earlier user of a name is removed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from libs.contracts.messages import NotifiedTasks, Recipient
from libs.service import observability
from libs.service.loop import Loop
from libs.store.port import Store
from services.monitor import store
from services.monitor.domain.recipients import is_of
from services.monitor.messages.recipients import USERS_MAX, Recipients, RecipientUnknownError
from services.monitor.store import NotificationRow, ReceiverRow

_log = observability.log("monitor")


@dataclass(frozen=True, slots=True)
class Owners:
    """Compares notifications with the users of now."""

    store: Store
    recipients: Recipients
    tick_seconds: float

    def loop(self) -> Loop:
        """The loop of the leader."""
        return Loop("owners", self.step, tick_seconds=self.tick_seconds, wake_on_commit=False)

    async def step(self, epoch: int) -> float | None:
        """Compare all of them. Nothing changes while the gateway does not answer."""
        async with self.store.transaction() as tx:
            rows = await store.notifications(tx)
        by_owner = {
            owner: list(group)
            for owner, group in itertools.groupby(rows, key=lambda row: row.owner)
        }
        owners = list(by_owner)
        for first in range(0, len(owners), USERS_MAX):
            try:
                found = await self.recipients.read(owners[first : first + USERS_MAX])
            except RecipientUnknownError as problem:
                _log.info("notifications are not compared with users", problem=str(problem))
                return None
            changes = [
                (row, recipient)
                for owner, recipient in found.items()
                if recipient is not None
                for row in by_owner[owner]
                if _differs(row, recipient)
            ]
            if changes:
                await self._change(changes, epoch)
        return None

    async def _change(
        self, changes: Sequence[tuple[NotificationRow, Recipient]], epoch: int
    ) -> None:
        async with self.store.transaction(epoch=epoch) as tx:
            for row, recipient in changes:
                if await tx.get(NotificationRow, row.owner, row.name) != row:
                    # Set again in the meantime.
                    continue
                if _is_of(row, recipient):
                    tx.put(replace(row, team=recipient.team))
                    continue
                tx.delete(NotificationRow, row.owner, row.name)
                tx.delete(ReceiverRow, row.owner, row.name)
                _log.info(
                    "a notification of an earlier user is removed",
                    owner=row.owner,
                    notification=row.name,
                )


def _is_of(row: NotificationRow, recipient: Recipient) -> bool:
    return is_of(recipient.added_at, row.changed_at, row.owner_added_at)


def _differs(row: NotificationRow, recipient: Recipient) -> bool:
    moved = row.tasks is NotifiedTasks.TEAM and row.team != recipient.team
    return moved or not _is_of(row, recipient)
