"""Slows the guessing of passwords: delays that grow with wrong ones, by account and by address.

In memory, bounded, for each gateway process: with three gateways three times as many guesses are
possible. Called by ``passwords.py``.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network

from libs.service.clock import Clock, ForwardClock
from services.gateway.problems import FORBIDDEN, TOO_MANY, UNAUTHENTICATED, ProblemError

KEYS_MAX = 10_000
# After so long without a wrong password the count begins again.
FORGET = timedelta(hours=1)


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_at: datetime | None = None
    until: datetime | None = None


class Delays:
    """After ``free`` failures of a key each further one doubles its delay, up to ``longest``."""

    def __init__(self, clock: Clock, *, free: int, longest_seconds: float) -> None:
        self._clock = ForwardClock(clock)
        self._free = free
        self._longest = longest_seconds
        self._keys: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def left(self, key: str) -> float:
        """Seconds until the key may try again; 0: now."""
        found = self._keys.get(key)
        if found is None or found.until is None:
            return 0.0
        return max(0.0, (found.until - self._clock.now()).total_seconds())

    def failed(self, key: str) -> None:
        """Count a try. Tries count before their outcome is known, so that many at the same time
        count too."""
        now = self._clock.now()
        found = self._keys.setdefault(key, _Failures())
        self._keys.move_to_end(key)
        if len(self._keys) > KEYS_MAX:
            self._keys.popitem(last=False)
        if found.last_at is not None and found.last_at + FORGET < now:
            found.count = 0
        found.count += 1
        found.last_at = now
        over = found.count - self._free
        if over >= 0:
            seconds = self._longest if over >= 30 else min(self._longest, 2.0**over)  # noqa: PLR2004 - 2**30 s
            found.until = now + timedelta(seconds=seconds)

    def undo(self, key: str) -> None:
        """Take one try back, which waited for the delays before it and was not wrong."""
        found = self._keys.get(key)
        if found is not None:
            found.count = max(0, found.count - 1)
            found.until = None

    def forget(self, key: str) -> None:
        """Begin again."""
        self._keys.pop(key, None)


class LoginDelays:
    """Who has to wait before another password is tried.

    Three counts: of an account at one address, of an address, and of an account at addresses from
    which it has never logged in. The last one has a short longest delay, and does not hold where
    the account has logged in before: an attacker elsewhere slows a person's first login at a new
    address by seconds, and locks nobody out.
    """

    def __init__(
        self, clock: Clock, *, free: int, longest_seconds: float, account_longest_seconds: float
    ) -> None:
        self._pairs = Delays(clock, free=free, longest_seconds=longest_seconds)
        # An address may be a whole site's.
        self._addresses = Delays(clock, free=free * 4, longest_seconds=longest_seconds)
        self._accounts = Delays(clock, free=free * 2, longest_seconds=account_longest_seconds)
        self._known: OrderedDict[str, None] = OrderedDict()

    @contextlib.contextmanager
    def attempt(self, account: str, address: str) -> Generator[None]:
        """One try of a password. It counts as wrong if the block ends with 401 or 403, and as right
        if it ends without a problem; any other end says nothing about the password. Raises 429 if
        the try comes too early."""
        self.begin(account, address)
        try:
            yield
        except BaseException as problem:
            refused = isinstance(problem, ProblemError)
            if not refused or problem.kind not in (UNAUTHENTICATED, FORBIDDEN):
                self.withdrawn(account, address)
            raise
        self.succeeded(account, address)

    def begin(self, account: str, address: str) -> None:
        """Count a try as wrong until ``succeeded``. Raises 429 if it comes too early."""
        counts = self._counts(account, address)
        seconds = max(delays.left(key) for delays, key in counts)
        if seconds > 0:
            wait = math.ceil(seconds)
            detail = (
                f"too many wrong passwords for this account or of this address; try again in"
                f" {wait} s. Sessions and tokens that exist go on"
            )
            raise ProblemError(TOO_MANY, detail, headers={"retry-after": str(wait)})
        for delays, key in counts:
            delays.failed(key)

    def succeeded(self, account: str, address: str) -> None:
        """The password was right."""
        place = network_of(address)
        pair = f"{account}@{place}"
        self._pairs.forget(pair)
        self._addresses.undo(place)
        self._accounts.undo(account)
        self._known[pair] = None
        self._known.move_to_end(pair)
        if len(self._known) > KEYS_MAX:
            self._known.popitem(last=False)

    def withdrawn(self, account: str, address: str) -> None:
        """The try was not made: it counts for nobody."""
        for delays, key in self._counts(account, address):
            delays.undo(key)

    def _counts(self, account: str, address: str) -> list[tuple[Delays, str]]:
        place = network_of(address)
        pair = f"{account}@{place}"
        found = [(self._pairs, pair), (self._addresses, place)]
        return found if pair in self._known else [*found, (self._accounts, account)]


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the network that one customer has."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network(f"{found}/64", strict=False))
    return str(found)
