"""A limit that allows a burst, and then a steady rate."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """Full in the beginning; gains ``per_second`` tokens, up to ``burst``. The caller's clock
    counts in seconds; one that is set back adds nothing."""

    burst: int
    per_second: float
    _left: float = field(init=False)
    _at: float | None = None

    def __post_init__(self) -> None:
        self._left = float(self.burst)

    def allows(self, now: float) -> bool:
        """True if there is a token."""
        return self._now(now) >= 1.0

    def take(self, now: float) -> bool:
        """True, and one token fewer is left, if there is one."""
        self._left, self._at = self._now(now), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def _now(self, now: float) -> float:
        since = self._at if self._at is not None else now
        return min(float(self.burst), self._left + max(0.0, now - since) * self.per_second)
