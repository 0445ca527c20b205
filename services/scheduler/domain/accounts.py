"""The pool's accounts of node-seconds: counted up to now, from the row that was last written."""

from __future__ import annotations

from datetime import datetime

from services.scheduler.domain.round import Round
from services.scheduler.domain.timeshare.rule import Account, Budget, RuleSettings

RULE = RuleSettings()


def counted(budget: Budget, tokens: float, at: datetime | None, round_: Round) -> Account:
    """What an account holds now; one that was never used is full."""
    if at is None:
        return budget.opened(round_.seconds)
    return budget.accrued(Account(tokens, at.timestamp()), round_.seconds)
