"""Parameters of queries that several routes take."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query

from services.gateway.json_values import rfc3339
from services.gateway.problems import invalid
from services.gateway.strict_input import parse_time

NAME_CHARACTERS_MAX = 63
# The name of a user, team, group or task, as a filter.
NameQuery = Annotated[str | None, Query(max_length=NAME_CHARACTERS_MAX)]


def time_parameter(field: str, text: str | None) -> datetime | None:
    """The time that a parameter gives; None if it is left out. Raises a problem that names it."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        fix = "write it like 2026-01-31T12:00:00Z"
        raise invalid(field, text, "is not a time with a zone", fix) from None


def require_before(field: str, begin: datetime | None, end: datetime | None) -> None:
    """Raise a problem that names ``field`` for a range that ends before it begins, or is empty."""
    if begin is not None and end is not None and begin >= end:
        message = f"is not before the end of the range, {rfc3339(end)}"
        raise invalid(field, rfc3339(begin), message, "give an earlier time")
