"""One small valid message of any type, for tests that go over the whole registry."""

from __future__ import annotations

import types
import typing
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from libs.contracts.base import Message

TIMESTAMP = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# Fits whatever a text may name: a task, a node, a group, a person.
NAME = "x"


def example_of(kind: type[Message]) -> Message:
    """A message with every field that is required, and every text."""
    fields = {
        name: _example(field.annotation)
        for name, field in kind.model_fields.items()
        if field.is_required() or field.annotation is str
    }
    return kind.model_validate(fields)


def _example(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return None
    if kind is str:
        return NAME
    if isinstance(kind, type) and issubclass(kind, Message):
        return example_of(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    return TIMESTAMP
