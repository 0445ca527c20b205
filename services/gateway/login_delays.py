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
LOOPBACK = "127.0.0.0/8"
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
        # Apart, so that a flood of keys that failed once forgets none that is slowed.
        self._few: OrderedDict[str, _Failures] = OrderedDict()
        self._slowed: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._few) + len(self._slowed)

    def left(self, key: str) -> float:
        """Seconds until the key may try again; 0: now."""
        found = self._slowed.get(key)
        if found is None or found.until is None:
            return 0.0
        return max(0.0, (found.until - self._clock.now()).total_seconds())

    def failed(self, key: str) -> datetime | None:
        """Count a try; returns until when the key has to wait now. Tries count before their outcome
        is known, so that many at the same time count too."""
        now = self._clock.now()
        found = self._slowed.pop(key, None) or self._few.pop(key, None) or _Failures()
        if found.last_at is not None and found.last_at + FORGET < now:
            found.count, found.until = 0, None
        found.count += 1
        found.last_at = now
        over = found.count - self._free
        if over >= 0:
            seconds = self._longest if over >= 30 else min(self._longest, 2.0**over)  # noqa: PLR2004 - 2**30 s
            found.until = now + timedelta(seconds=seconds)
        self._keep(key, found)
        return found.until

    def _keep(self, key: str, found: _Failures) -> None:
        keys = self._slowed if found.until is not None else self._few
        keys[key] = found
        if len(keys) > KEYS_MAX:
            keys.popitem(last=False)

    def undo(self, key: str, until: datetime | None) -> None:
        """Take one try back, which was not wrong. ``until`` is what ``failed`` returned: a delay
        that a later try has caused stays."""
        found = self._slowed.pop(key, None) or self._few.pop(key, None)
        if found is None:
            return
        found.count -= 1
        if found.until == until:
            found.until = None
        if found.count > 0:
            self._keep(key, found)

    def forget(self, key: str) -> None:
        """Begin again."""
        self._few.pop(key, None)
        self._slowed.pop(key, None)


@dataclass(frozen=True, slots=True)
class PasswordTry:
    """One try of a password, which counts as wrong until it is known to be right."""

    account: str
    network: str
    # The account has logged in from there before.
    is_known: bool
    counted: tuple[tuple[Delays, str, datetime | None], ...]

    @property
    def line(self) -> str:
        """Whose tries wait for each other: those of an address, or of an account that has logged in
        from there before."""
        return f"{self.account}@{self.network}" if self.is_known else self.network


class LoginDelays:
    """Who has to wait before another password is tried.

    Three counts: of an account at one address, of an address, and of an account at addresses from
    which it has never logged in. The last one has a short longest delay. Where the account has
    logged in before, the first one alone holds: an attacker elsewhere slows a person's first login
    at a new address by seconds. Everybody at one address shares the first count, because nothing
    distinguishes them: a neighbour who keeps guessing delays a person who is known there, by the
    longest delay each time. Sessions and tokens that exist go on.
    """

    def __init__(
        self, clock: Clock, *, free: int, longest_seconds: float, account_longest_seconds: float
    ) -> None:
        self._pairs = Delays(clock, free=free, longest_seconds=longest_seconds)
        # An address may be a whole site's.
        self._addresses = Delays(clock, free=free * 4, longest_seconds=longest_seconds)
        self._accounts = Delays(clock, free=free * 2, longest_seconds=account_longest_seconds)
        self._known: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pairs) + len(self._addresses) + len(self._accounts)

    @contextlib.contextmanager
    def attempt(self, account: str, address: str) -> Generator[PasswordTry]:
        """One try of a password. It counts as wrong if the block ends with 401 or 403, and as right
        if it ends without a problem; any other end says nothing about the password. Raises 429 if
        the try comes too early."""
        tried = self.begin(account, address)
        try:
            yield tried
        except BaseException as problem:
            refused = isinstance(problem, ProblemError)
            if not refused or problem.kind not in (UNAUTHENTICATED, FORBIDDEN):
                self.withdrawn(tried)
            raise
        self.succeeded(tried)

    def begin(self, account: str, address: str) -> PasswordTry:
        """Count a try as wrong until ``succeeded``. Raises 429 if it comes too early."""
        network = network_of(address)
        pair = f"{account}@{network}"
        counts = [(self._pairs, pair)]
        is_known = pair in self._known
        if not is_known:
            counts += [(self._addresses, network), (self._accounts, account)]
        seconds = max(delays.left(key) for delays, key in counts)
        if seconds > 0:
            wait = math.ceil(seconds)
            detail = (
                f"too many wrong passwords for this account or of this address; try again in"
                f" {wait} s. Sessions and tokens that exist go on"
            )
            raise ProblemError(TOO_MANY, detail, headers={"retry-after": str(wait)})
        counted = tuple((delays, key, delays.failed(key)) for delays, key in counts)
        return PasswordTry(account, network, is_known, counted)

    def succeeded(self, tried: PasswordTry) -> None:
        """The password was right."""
        self.withdrawn(tried)
        pair = f"{tried.account}@{tried.network}"
        self._pairs.forget(pair)
        self._known[pair] = None
        self._known.move_to_end(pair)
        if len(self._known) > KEYS_MAX:
            self._known.popitem(last=False)

    def withdrawn(self, tried: PasswordTry) -> None:
        """The try was not made: it counts for nobody."""
        for delays, key, until in tried.counted:
            delays.undo(key, until)


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the network that one customer has, of this machine all
    addresses that each of its processes can use."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is None:
            return str(ip_network(f"{found}/64", strict=False))
        found = found.ipv4_mapped
    return LOOPBACK if found.is_loopback else str(found)
