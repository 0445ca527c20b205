"""Times and lists as text, for the clauses of ``explain``."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

NAMED_MAX = 3


def time_text(at: datetime) -> str:
    """A time to the second, as the command line writes it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def named(names: Iterable[str]) -> str:
    """The first few of some names."""
    found = sorted(names)
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return ", ".join(found[:NAMED_MAX]) + more
