"""Chooses which receivers of webhooks get messages next, so that none waits for another: owners
take turns, and none of them has more than a share of the places. Called by the delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from libs.contracts.messages import NotificationChannel
from libs.store.port import Op, Tx, Where
from services.monitor import store
from services.monitor.store import MessageRow

# What a receiver gets in one turn; then others have theirs.
TURN_MESSAGES_MAX = 20
# Read at once.
ROWS_MAX = 200
# A round in which so many owners had a turn ends: the next query leaves no more out.
ROUND_OWNERS_MAX = 200
# Of the places, an owner has at most one in so many.
SHARES = 4
ReceiverKey = tuple[str, str]
Chosen = dict[ReceiverKey, list[MessageRow]]


@dataclass
class FairOrder:
    """Which owners had a turn in this round."""

    places: int
    _round: set[str] = field(default_factory=set[str])

    async def choose(self, tx: Tx, busy: Collection[ReceiverKey]) -> Chosen:
        """Return messages that are due for receivers which are not busy: as many receivers as there
        are places left. Owners without a busy receiver come first."""
        chosen: Chosen = {}
        taken = Counter(owner for owner, _ in busy)
        while taken.total() < self.places:
            left_out = sorted(self._round | set(taken))
            rows = await _due(tx, *(Where("owner", Op.NE, owner) for owner in left_out))
            if not rows:
                if not self._round:
                    break
                self._round.clear()
                continue
            for row in rows:
                if row.owner not in taken and taken.total() < self.places:
                    self._take(chosen, taken, rows, (row.owner, row.name))
        for owner in sorted(taken, key=lambda each: taken[each]):
            await self._fill_share(tx, chosen, taken, busy, owner)
        return chosen

    async def _fill_share(
        self, tx: Tx, chosen: Chosen, taken: Counter[str], busy: Collection[ReceiverKey], owner: str
    ) -> None:
        """Choose more receivers of one owner, up to the share."""
        most = max(1, self.places // SHARES)
        while taken[owner] < most and taken.total() < self.places:
            names = [name for each, name in (*busy, *chosen) if each == owner]
            others = (Where("name", Op.NE, name) for name in names)
            rows = await _due(tx, Where("owner", Op.EQ, owner), *others)
            if not rows:
                break
            self._take(chosen, taken, rows, (owner, rows[0].name))

    def _take(
        self, chosen: Chosen, taken: Counter[str], rows: Collection[MessageRow], key: ReceiverKey
    ) -> None:
        due = [row for row in rows if (row.owner, row.name) == key]
        chosen[key] = due[:TURN_MESSAGES_MAX]
        taken[key[0]] += 1
        if len(self._round) >= ROUND_OWNERS_MAX:
            self._round.clear()
        self._round.add(key[0])


async def _due(tx: Tx, *where: Where) -> list[MessageRow]:
    return await store.due(tx, NotificationChannel.WEBHOOK, ROWS_MAX, *where)
