"""When a delivery is tried again, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Result(StrEnum):
    """How a try ended."""

    DELIVERED = "delivered"
    # The receiver answers, and refuses this message.
    REFUSED = "refused"
    # The receiver does not answer, or cannot take anything now.
    UNREACHABLE = "unreachable"
    # The receiver wants no messages any more.
    GONE = "gone"
    # What stands between fails, such as the site's mail server: it is nothing about the receiver.
    NO_WAY = "no_way"
    # Whether it may be sent is not known now, so nothing was tried.
    UNKNOWN = "unknown"
    # Its owner may not be sent it any more.
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Pauses:
    """The site's settings of tries."""

    first_seconds: float
    most_seconds: float
    tries_max: int
    # A receiver that has taken nothing for so long is paused.
    failing_seconds_max: float


def pause_seconds(pauses: Pauses, tries: int) -> float:
    """The pause after so many tries: each is three times as long as the one before."""
    return min(pauses.most_seconds, pauses.first_seconds * 3.0 ** min(max(tries, 1) - 1, 32))


def gives_up(pauses: Pauses, tries: int) -> bool:
    """True if a message was tried often enough."""
    return tries >= pauses.tries_max


def pauses_receiver(
    pauses: Pauses, result: Result, failing_since: datetime | None, now: datetime
) -> bool:
    """True if nothing more is to be sent to a receiver until its owner sets it again."""
    if result is Result.GONE:
        return True
    longest = timedelta(seconds=pauses.failing_seconds_max)
    return failing_since is not None and now - failing_since >= longest
