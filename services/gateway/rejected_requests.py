"""Rejected requests in the audit trail, aggregated: a caller with a million rejections a
minute costs a few rows and hides no other caller's. Called by ``api/guard.py`` and ``api/deps.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from libs.service.loop import Wake, pause
from libs.store.port import ConflictError, DatabaseFaultError, Store, StoreUnavailableError
from services.gateway.rate_limits import RateLimits
from services.gateway.rows import AuditRow

# Kinds of rejections that a round counts separately for each user, and users in a round.
KINDS_MAX = 16
USERS_MAX = 1_000
ACTION = "request"
NOBODY = ""
# The address of an entry that sums up requests from anywhere.
SEVERAL = "several"
_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RejectedRequest:
    """One kind of rejection: the user or address, the target, and the outcome. ``action``: what was
    refused, where that is known."""

    requester: str
    address: str
    target: str
    outcome: str
    # The user whose password was guessed, or whose token is not good any more: somebody else may
    # have sent it, so it takes no entry of the user's own.
    account: str = ""
    # What was refused, where that is known.
    action: str = ACTION

    @property
    def budget(self) -> str:
        """Whose entries it takes."""
        return f"others at {self.account}" if self.account else self.requester


@dataclass
class RejectionAudit:
    """Counts rejections by user and kind until the audit trail has them."""

    store: Store
    new_id: Callable[[], str]
    # Limits the entries of each user, and of unauthenticated callers together.
    entries: RateLimits
    # Seconds between rounds; the first rejection after a quiet time is entered at once.
    seconds: float

    def __post_init__(self) -> None:
        self._counts: dict[str, dict[RejectedRequest, int]] = {}
        # Rejections without an entry of their own, as one for each budget.
        self._others: dict[RejectedRequest, int] = {}
        self._wake = Wake()

    def note(self, refused: RejectedRequest) -> None:
        """Count a rejected request. Never waits, and takes bounded memory."""
        if refused.budget not in self._counts and len(self._counts) >= USERS_MAX:
            self._add(_rest_of(RejectedRequest(NOBODY, "", "", "")), 1)
            return
        kinds = self._counts.setdefault(refused.budget, {})
        if refused in kinds or len(kinds) < KINDS_MAX:
            kinds[refused] = kinds.get(refused, 0) + 1
        else:
            self._add(_rest_of(refused), 1)
        self._wake.set()

    async def run(self) -> None:
        """Write the counts until cancelled. A process that dies loses the counts that it has not
        written; those requests changed nothing."""
        while True:
            if not self._counts and not self._others:
                await self._wake.wait(self.seconds)
                continue
            await self._enter()
            await pause(self.seconds)

    async def _enter(self) -> None:
        counts, self._counts = self._counts, {}
        found: list[tuple[RejectedRequest, int]] = []
        for kinds in counts.values():
            for refused, count in kinds.items():
                if self.entries.take(refused.budget):
                    found.append((refused, count))
                else:
                    self._add(_rest_of(refused), count)
        # Rejections over the limit become one entry as soon as the limit allows one.
        ready = [rest for rest in self._others if self.entries.take(rest.budget)]
        found += [(rest, self._others.pop(rest)) for rest in ready]
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
                self._add(_rest_of(refused), count)

    def _add(self, rest: RejectedRequest, count: int) -> None:
        self._others[rest] = self._others.get(rest, 0) + count

    def _row(self, now: datetime, refused: RejectedRequest, count: int) -> AuditRow:
        times = "once" if count == 1 else f"{count} times"
        place = f" from {refused.address}" if refused.address else ", summed up"
        return AuditRow(
            id=self.new_id(),
            at=now,
            who=refused.requester,
            action=refused.action,
            target=refused.target,
            outcome=refused.outcome,
            detail=times + place,
            address=refused.address or SEVERAL,
        )


def _rest_of(refused: RejectedRequest) -> RejectedRequest:
    """What the rejections of one budget are summed up as that have no entry of their own."""
    # Of guesses the target alone names the account.
    target = "" if refused.requester else refused.account
    return replace(refused, address="", target=target, outcome="refused")
