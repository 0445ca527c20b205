"""Hypothesis strategies for any message: every field of its type, drawn."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from libs.contracts.base import Message

ASCII = st.characters(codec="ascii")
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
# Protobuf's JSON has nanoseconds; ours has what datetime has. Its years are 1 to 9999.
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(-(2**31), 2**31 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bytes: st.binary(max_size=16),
    datetime: TIMES,
}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of one field's type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.none() | of_type(next(each for each in inner if each is not type(None)))
    if origin is typing.Annotated:
        return of_form(inner[1:], of_type(inner[0]))
    if origin is tuple:
        return st.lists(of_type(inner[0]), max_size=2).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(of_type(inner[0]), of_type(inner[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    is_message = isinstance(kind, type) and issubclass(kind, Message)
    return of_message(kind) if is_message else SCALARS.get(kind, TIMES)


def of_form(metadata: Sequence[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Texts of the form that is declared for a field; ``other`` if none is."""
    forms = [each.pattern for each in metadata if getattr(each, "pattern", None)]
    return st.from_regex(forms[0].strip("^$"), fullmatch=True, alphabet=ASCII) if forms else other


def of_message(kind: type[Message]) -> st.SearchStrategy[Any]:
    """Whole messages, every field drawn."""
    fields = {
        name: of_form(field.metadata, of_type(field.annotation))
        for name, field in kind.model_fields.items()
    }
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))
