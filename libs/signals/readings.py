"""Reads one value. What cannot be read is absent, and no error leaves this module."""

from __future__ import annotations

import math
from collections.abc import Callable


def reading(read: Callable[[], float], *errors: type[Exception]) -> float | None:
    """Return the value; None where reading it fails in one of these ways or gives no number."""
    try:
        value = float(read())
    except (OSError, ValueError, TypeError, AttributeError, LookupError, *errors):
        return None
    return value if math.isfinite(value) else None
