"""Strict parsing of requests: every accepted value can be stored and shown.

JSON allows half a surrogate pair and NUL in texts; PostgreSQL, UTF-8 and most readers do not. A
text with either would be accepted once and then fail in every list that shows it. Called by the
guard for paths and queries, by the routes for bodies, and by ``store.After`` for cursors. Pure.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, cast
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import AfterValidator, AwareDatetime

# The range of times. Beyond it, arithmetic with times overflows somewhere.
EARLIEST = datetime(1970, 1, 1)  # noqa: DTZ001 - compared without its zone, which cannot overflow
LATEST = datetime(2261, 12, 31)  # noqa: DTZ001 - the last whole year of 64-bit nanoseconds
_NUL = "\0"


class InvalidInputError(ValueError):
    """A text, a number or a document that cannot be stored; the message has the reason."""


def text_of(encoded: bytes) -> str:
    """A path or query with its escapes resolved. Raises NotStrictError."""
    try:
        text = unquote_to_bytes(encoded.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidInputError("is not UTF-8") from None
    if _NUL in text:
        raise InvalidInputError("has a NUL character")
    return text


def json_of(body: bytes, values_max: int) -> Any:  # noqa: ANN401 - any JSON
    """The value of a JSON text. orjson refuses halves of surrogate pairs, NaN, numbers that no
    float holds, and deep nesting; names that stand twice are refused here. Raises
    orjson.JSONDecodeError or NotStrictError.

    ``values_max`` bounds keys and values together: validating costs time for each of them.
    """
    found = orjson.loads(body)
    _check_names(body)
    # Each further value stands behind a comma, a colon or a bracket, so few of these are few
    # values; many may be commas inside texts, and are counted exactly.
    separators = sum(body.count(sign) for sign in (b",", b":", b"[", b"{"))
    suspect = b"\\u0000" in body
    if suspect or separators > values_max:
        _walk(found, values_max)
    return found


def _check_names(body: bytes) -> None:
    """Raises NotStrictError for an object that names a field twice: of two values, readers of JSON
    take different ones, and a check may have read the other."""
    try:
        # Nothing is built, and no number is converted.
        json.loads(body, object_pairs_hook=_once, parse_int=str, parse_float=str)
    except RecursionError:
        raise InvalidInputError("is nested too deeply") from None


def _once(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counted.items() if count > 1)
        raise InvalidInputError(f"{twice[:80]!r} stands twice in one object")


def _walk(document: object, values_max: int) -> None:
    """Raises NotStrictError for too many values, or NUL in a text."""
    waiting, seen = [document], 1
    while waiting:
        value = waiting.pop()
        parts: list[object] = []
        if isinstance(value, dict):
            named = cast("dict[str, object]", value)
            parts = [*named, *named.values()]
        elif isinstance(value, list):
            parts = cast("list[object]", value)
        elif isinstance(value, str) and _NUL in value:
            raise InvalidInputError("a text has a NUL character")
        seen += len(parts)
        if seen > values_max:
            raise InvalidInputError(f"there are more than {values_max} keys and values")
        waiting += parts


def bounded(at: datetime) -> datetime:
    """The time in UTC; ValueError if it is not between 1970 and 2261."""
    if not EARLIEST <= at.replace(tzinfo=None) <= LATEST:
        raise ValueError("is not between the years 1970 and 2261")
    return max(at.astimezone(UTC), EARLIEST.replace(tzinfo=UTC))


Timestamp = Annotated[AwareDatetime, AfterValidator(bounded)]


def parse_time(text: str) -> datetime:
    """An RFC 3339 time with a zone; ValueError otherwise."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return bounded(at)
