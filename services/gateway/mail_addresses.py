"""Answers the monitor where a user's mail goes. Each mail asks again, so that an address which is
changed or removed, and a user who is disabled, count at once."""

from __future__ import annotations

from dataclasses import dataclass

from libs.contracts.messages import ReadMailAddress, ReadMailAddressReply
from libs.store.port import Store
from services.gateway.rows import UserRow


@dataclass(frozen=True, slots=True)
class MailAddresses:
    """The addresses of users."""

    store: Store

    async def read(self, query: ReadMailAddress) -> ReadMailAddressReply:
        """The address; empty for a user who gets no mail."""
        async with self.store.transaction() as tx:
            row = await tx.get(UserRow, query.user)
        there = row is not None and not row.disabled
        return ReadMailAddressReply(address=row.mail if row is not None and there else "")
