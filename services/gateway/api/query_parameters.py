"""Parameters of queries that several routes take."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query

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
