"""Passwords that are kept here: hashed with argon2id, in threads, a few at a time.

Only for sites without a login provider. ``api/login.py`` uses it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from libs.service.clock import Clock
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.login_delays import KEYS_MAX, LoginDelays
from services.gateway.problems import NOT_FOUND, TOO_MANY, ProblemError, invalid
from services.gateway.settings import GatewaySettings

R = TypeVar("R")
# Memory that one hash takes. A guesser needs as much for each guess.
MEMORY_KIB = 65_536
# Hash of a text that nobody knows, with the parameters of all others: a login of an unknown user
# takes as long as that of a known one.
_NOBODY = "nobody has this password"


@dataclass(frozen=True, slots=True)
class Line:
    """Whose passwords wait for each other. ``is_known``: those of somebody who has a session or a
    token, or has logged in from that address before."""

    name: str
    is_known: bool


class Passwords:
    """Hashes and verifies."""

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self._settings = settings
        self._hasher = PasswordHasher(time_cost=3, memory_cost=MEMORY_KIB, parallelism=1)
        each = max(1, settings.password_hashes_max // 2)
        self._hashing = ConcurrencyLimit(settings.password_hashes_max, each)
        # How many wait, in each line; and of those in lines that nobody is known in.
        self._waiting: Counter[str] = Counter()
        self._strangers = 0
        self._of_nobody = ""
        # Whether the names that were tried last are those of users.
        self._tried: OrderedDict[str, bool] = OrderedDict()
        self.delays = LoginDelays(
            clock,
            free=settings.password_tries_free,
            longest_seconds=settings.password_delay_seconds_max,
            account_longest_seconds=settings.password_account_delay_seconds_max,
        )

    def require_enabled(self) -> None:
        """404 where the site has no passwords."""
        if not self._settings.passwords:
            fix = "an administrator enables them with SHIFTWORK_GATEWAY_PASSWORDS=true"
            raise ProblemError(NOT_FOUND, f"this site has no passwords; {fix}")

    def tried(self, name: str, *, exists: bool) -> None:
        """Remember whether a name that was tried is a user's, for tries that are refused early."""
        self._tried[name] = exists
        self._tried.move_to_end(name)
        if len(self._tried) > KEYS_MAX:
            self._tried.popitem(last=False)

    def is_user(self, name: str) -> bool:
        """True if a name that was tried before is a user's."""
        return self._tried.get(name, False)

    def check(self, password: str, field: str = "password") -> None:
        """422 for a new password that is too short."""
        least = self._settings.password_characters_min
        if len(password) < least:
            raise invalid(field, "", f"has fewer than {least} characters", "choose a longer one")

    async def hash(self, password: str, line: Line) -> str:
        """What is stored of a password."""
        return await self._run(line, self._hasher.hash, password)

    async def matches(self, stored: str | None, password: str, line: Line) -> bool:
        """True if the password is the stored one. Takes as long if nothing is stored."""
        if not self._of_nobody:
            self._of_nobody = await self._run(line, self._hasher.hash, _NOBODY)
        found = await self._run(line, self._verify, stored or self._of_nobody, password)
        return found and stored is not None

    def is_outdated(self, stored: str) -> bool:
        """True if a hash was made with other parameters than today's."""
        return self._hasher.check_needs_rehash(stored)

    def _verify(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, line: Line, work: Callable[..., R], *arguments: str) -> R:
        """Off the event loop, a few at a time, and of one line fewer. Raises 429 while too many of
        the line wait, or too many strangers in all: those take no place of people who are known."""
        settings = self._settings
        crowded = not line.is_known and self._strangers >= settings.password_waiting_max
        if crowded or self._waiting[line.name] >= settings.password_waiting_per_address_max:
            detail = "too many passwords are being checked; try again"
            raise ProblemError(TOO_MANY, detail, headers={"retry-after": "2"})
        self._waiting[line.name] += 1
        self._strangers += not line.is_known
        try:
            async with self._hashing.of(line.name):
                return await asyncio.to_thread(work, *arguments)
        finally:
            self._strangers -= not line.is_known
            self._waiting[line.name] -= 1
            if not self._waiting[line.name]:
                del self._waiting[line.name]
