"""Paths and queries of requests. Pure; the command line uses it, too."""

from __future__ import annotations

from typing import Any, Mapping
from urllib.parse import quote, urlencode


def part(text: str) -> str:
    """Text as one segment of a path."""
    return quote(text, safe="")


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """The path with those parameters that are given; a list is repeated."""
    given = {
        name: _text(value) for name, value in query.items() if value is not None and value != []
    }
    return path + "?" + urlencode(given, doseq=True) if given else path


def _text(value: Any) -> Any:  # noqa: ANN401 - any value of a query
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
