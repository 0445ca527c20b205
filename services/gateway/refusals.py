"""Refused requests in the audit trail, summed up: whoever is refused a million times a minute costs
a few rows, and hides nobody else's. Called by ``api/guard.py`` and ``api/deps.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from libs.service.loop import Wake, pause
from libs.store.port import ConflictError, DatabaseFaultError, Store, StoreUnavailableError
from services.gateway.buckets import Buckets
from services.gateway.rows import AuditRow

# Of each user so many kinds of refusals are told apart in a round, and of so many users.
KINDS_MAX = 16
USERS_MAX = 1_000
ACTION = "request"
NOBODY = ""
_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """One kind of refusal: who or where from, what was asked, and how it ended."""

    who: str
    address: str
    target: str
    outcome: str


@dataclass
class Refusals:
    """Refusals that the audit trail does not have yet, counted by user and kind."""

    store: Store
    new_id: Callable[[], str]
    # Of each user, and of nobody: so many entries at once, then so many in a time.
    entries: Buckets
    # Rounds of entries are so far apart; the first refusal after a quiet time is entered at once.
    seconds: float

    def __post_init__(self) -> None:
        self._counts: dict[str, dict[Refused, int]] = {}
        # What has no entry of its own, by user.
        self._others: dict[str, int] = {}
        self._wake = Wake()

    def note(self, refused: Refused) -> None:
        """A request was refused. Costs no wait and a bounded amount of memory."""
        if refused.who not in self._counts and len(self._counts) >= USERS_MAX:
            self._others[NOBODY] = self._others.get(NOBODY, 0) + 1
            return
        kinds = self._counts.setdefault(refused.who, {})
        if refused in kinds or len(kinds) < KINDS_MAX:
            kinds[refused] = kinds.get(refused, 0) + 1
        else:
            self._others[refused.who] = self._others.get(refused.who, 0) + 1
        self._wake.set()

    async def run(self) -> None:
        """Enter them until cancelled. What a process that dies here has not entered is lost: the
        entries are about requests that changed nothing."""
        while True:
            if not self._counts and not self._others:
                await self._wake.wait(self.seconds)
                continue
            await self._enter()
            await pause(self.seconds)

    async def _enter(self) -> None:
        counts, self._counts = self._counts, {}
        found: list[tuple[Refused, int]] = []
        for who, kinds in counts.items():
            for refused, count in kinds.items():
                if self.entries.take(who):
                    found.append((refused, count))
                else:
                    self._others[who] = self._others.get(who, 0) + count
        # What has no room among the entries now is entered, as one, when there is.
        ready = [who for who in self._others if self.entries.take(who)]
        others = {who: self._others.pop(who) for who in ready}
        found += [(Refused(who, "", "", "refused"), count) for who, count in others.items()]
        if not found:
            return
        try:
            async with self.store.transaction() as tx:
                for refused, count in found:
                    tx.put(self._row(tx.now, refused, count))
        except (StoreUnavailableError, ConflictError, DatabaseFaultError) as problem:
            if isinstance(problem, DatabaseFaultError):
                _log.warning("refusals cannot be entered in the audit trail", problem=str(problem))
            for refused, count in found:
                self._others[refused.who] = self._others.get(refused.who, 0) + count

    def _row(self, now: datetime, refused: Refused, count: int) -> AuditRow:
        times = "once" if count == 1 else f"{count} times"
        place = f" from {refused.address}" if refused.address else ", summed up"
        return AuditRow(
            id=self.new_id(),
            at=now,
            who=refused.who,
            action=ACTION,
            target=refused.target,
            outcome=refused.outcome,
            detail=times + place,
        )
