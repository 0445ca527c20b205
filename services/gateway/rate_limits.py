"""A token bucket for each of many keys: addresses, users, runs."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from libs.service.clock import Clock
from libs.service.token_bucket import TokenBucket

KEYS_MAX = 10_000


class RateLimits:
    """``burst`` at once for each key, then ``per_second``. The least recently used keys are
    dropped, which refills their buckets."""

    def __init__(self, clock: Clock, *, burst: int, per_second: float) -> None:
        self._clock = clock
        self._full = partial(TokenBucket, burst, per_second)
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, key: str) -> bool:
        """True, and one token fewer is left, if there is one."""
        bucket = self._buckets.setdefault(key, self._full())
        self._buckets.move_to_end(key)
        if len(self._buckets) > KEYS_MAX:
            self._buckets.popitem(last=False)
        return bucket.take(self._clock.now().timestamp())
