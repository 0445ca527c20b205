"""Requests with a wrong token, or without the right: bounded in number, and audited.

``WrongTokens`` bounds how many wrong tokens an address may show; ``Refusals`` collects refusals and
enters them in the audit trail, summed up, so that whoever is refused a million times a minute
costs a few rows. Called by the guard and by ``api/app.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from libs.service.clock import Clock
from libs.service.loop import Wake, pause
from libs.store.port import ConflictError, Store, StoreUnavailableError
from services.gateway.rows import AuditRow

ADDRESSES_MAX = 10_000
KINDS_MAX = 32
ACTION = "request"
NAME_CHARACTERS_MAX = 200


class WrongTokens:
    """A bucket for each address: ``burst`` wrong tokens at once, then ``each_second``."""

    def __init__(self, clock: Clock, *, burst: int, each_second: float) -> None:
        self._clock = clock
        self._burst = burst
        self._each_second = each_second
        # What is left in an address's bucket, and when that was; the longest unseen first.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def exhausted(self, address: str) -> bool:
        """True if this address has to wait before it shows a token that is not known."""
        return self._now(address) < 1

    def note(self, address: str) -> None:
        """A token was wrong."""
        left = max(0.0, self._now(address) - 1)
        self._left[address] = (left, self._clock.now().timestamp())
        self._left.move_to_end(address)
        if len(self._left) > ADDRESSES_MAX:
            self._left.popitem(last=False)

    def _now(self, address: str) -> float:
        if address not in self._left:
            return self._burst
        left, at = self._left[address]
        gained = max(0.0, self._clock.now().timestamp() - at) * self._each_second
        return min(float(self._burst), left + gained)


@dataclass(frozen=True, slots=True)
class Refused:
    """One kind of refusal: who or where from, what was asked, and how it ended."""

    who: str
    address: str
    target: str
    outcome: str


@dataclass
class Refusals:
    """Refusals that the audit trail does not have yet, counted by kind."""

    store: Store
    clock: Clock
    new_id: Callable[[], str]
    # Rounds of entries are so far apart; the first refusal after a quiet time is entered at once.
    seconds: float

    def __post_init__(self) -> None:
        self._counts: dict[Refused, int] = {}
        self._others = 0
        self._wake = Wake()

    def note(self, refused: Refused) -> None:
        """A request was refused. Costs no wait and a bounded amount of memory."""
        if refused in self._counts or len(self._counts) < KINDS_MAX:
            self._counts[refused] = self._counts.get(refused, 0) + 1
        else:
            self._others += 1
        self._wake.set()

    async def run(self) -> None:
        """Enter them until cancelled. What a process that dies here has not entered is lost: the
        entries are about requests that changed nothing."""
        while True:
            if not self._counts:
                await self._wake.wait(self.seconds)
                continue
            await self._enter()
            await pause(self.seconds)

    async def _enter(self) -> None:
        counts, others = self._counts, self._others
        self._counts, self._others = {}, 0
        try:
            async with self.store.transaction() as tx:
                for refused, count in counts.items():
                    tx.put(self._row(tx.now, refused, count))
                if others:
                    tx.put(self._row(tx.now, Refused("", "", "", "refused"), others))
        except (StoreUnavailableError, ConflictError):
            for refused, count in counts.items():
                self._counts[refused] = self._counts.get(refused, 0) + count
            self._others += others

    def _row(self, now: datetime, refused: Refused, count: int) -> AuditRow:
        times = "once" if count == 1 else f"{count} times"
        place = f" from {refused.address}" if refused.address else " by others"
        return AuditRow(
            id=self.new_id(),
            at=now,
            who=refused.who,
            action=ACTION,
            target=refused.target[:NAME_CHARACTERS_MAX],
            outcome=refused.outcome,
            detail=times + place,
        )
