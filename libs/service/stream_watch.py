"""Watches how full the stream of events is: metrics, a log line and a warning on /readyz.

Events that no service still has to receive leave the stream at once, so it fills only while a
service does not consume. A full stream refuses events: they wait in the outboxes, and nothing is
lost, but nothing goes on. Run by one service's leader as a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from libs.bus.port import Bus, BusError
from libs.service import observability

# From this share on an operator should act; the alert of the charts has the same share.
WARN_SHARE = 0.7
# So many failed checks in a row are a warning, too.
FAILURES_MAX = 10


@dataclass
class StreamWatch:
    """``warning`` is empty while all is well."""

    service: str
    bus: Bus
    warning: str = ""
    failures: int = 0
    # The durables that the metrics have.
    _shown: set[str] = field(default_factory=set[str])

    async def step(self, epoch: int) -> float | None:
        """Check once."""
        del epoch
        try:
            backlog = await self.bus.backlog()
        except BusError as problem:
            # The server is briefly down, or has the configuration of an earlier version.
            self.failures += 1
            if self.failures >= FAILURES_MAX:
                self.warning = f"the stream of events cannot be watched: {problem}"
            if self.failures == FAILURES_MAX:
                observability.log(self.service).warning("stream of events", problem=self.warning)
            return None
        self.failures = 0
        observability.STREAM_BYTES.set(backlog.stored_bytes)
        observability.STREAM_BYTES_MAX.set(backlog.bytes_max)
        observability.STREAM_MESSAGES.set(backlog.messages)
        for consumer, waiting in backlog.consumers.items():
            observability.CONSUMER_WAITING.labels(consumer).set(waiting)
        # That of the copies for monitoring users goes with the last of them.
        for consumer in self._shown - set(backlog.consumers):
            observability.CONSUMER_WAITING.remove(consumer)
        self._shown = set(backlog.consumers)
        if backlog.share < WARN_SHARE:
            self.warning = ""
        else:
            self._warn(
                f"the stream of events is {backlog.share:.0%} full: some service does not consume; "
                "when it is full, nothing is published"
            )
        return None

    def _warn(self, text: str) -> None:
        if not self.warning:
            observability.log(self.service).error("stream of events", problem=text)
        self.warning = text
