"""Reasons, made once: equal reasons are one object, so that comparing thousands is cheap.

A reason that is stored with a waiting task holds only what stays true while it waits (its own
size, the limit that binds); numbers that change with every start of another task belong to
``explain.py``, or each start would rewrite the whole queue.
"""

from __future__ import annotations

from functools import lru_cache

from libs.contracts.messages import Reason, ReasonCode

REASONS_KEPT_MAX = 65_536


@lru_cache(maxsize=REASONS_KEPT_MAX)
def _made(
    code: ReasonCode, numbers: tuple[tuple[str, float], ...], names: tuple[tuple[str, str], ...]
) -> Reason:
    return Reason(code=code, numbers=dict(numbers), names=dict(names))


def reason(
    code: ReasonCode, *, names: dict[str, str] | None = None, **numbers: float | None
) -> Reason:
    """The reason with this code, these numbers (None: left out) and these names."""
    kept = tuple((key, float(value)) for key, value in numbers.items() if value is not None)
    return _made(code, kept, tuple((names or {}).items()))


def same(one: Reason, other: Reason) -> bool:
    """True if both say the same."""
    return one is other or one == other
