"""Encodes values of a row for which PostgreSQL has no type.

Called by ``libs.store.tables``. A message, a tuple, a mapping or a dataclass becomes JSON text for
one JSONB column. An enum becomes the text of its value.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from libs.contracts.base import Message

# How many encoded messages are cached for each column.
TEXTS_MAX = 1024


class JsonOf:
    """Values of one Python type as JSON: a message, a dataclass, a tuple, a dict."""

    def __init__(self, value_type: Any) -> None:  # noqa: ANN401 - any type form: tuple[X, ...]
        self.value_type = value_type
        # The newest encoded messages by object id; keeping the message keeps its id valid.
        self._texts: dict[int, tuple[Message, str]] = {}

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """The adapter, built at its first use: a process builds only the adapters it needs."""
        return TypeAdapter(self.value_type)

    def encode(self, value: object) -> str:
        """Return the value as JSON text. Raises pydantic's error if the type is wrong.

        The texts of messages are cached: a message never changes, and is written again with each
        change of its row.
        """
        known = self._texts.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        text = self._adapter.dump_json(value, warnings="error").decode()
        if isinstance(value, Message):
            if len(self._texts) >= TEXTS_MAX:
                del self._texts[next(iter(self._texts))]
            self._texts[id(value)] = (value, text)
        return text

    def decode(self, text: str) -> object:
        """Return the value of a JSON text. Raises pydantic's ValidationError if it does not fit."""
        return self._adapter.validate_json(text)


class EnumText:
    """Encodes enum members as their values, so a new member needs no migration."""

    def __init__(self, enum_type: type[Enum]) -> None:
        self.enum_type = enum_type
        # Values by member, because the property ``value`` is slow.
        self._values: dict[object, str] = {each: str(each.value) for each in enum_type}

    def encode(self, value: object) -> str:
        """Return the member's value. Raises ValueError if it is no member."""
        text = self._values.get(value)
        return str(self.enum_type(value).value) if text is None else text

    def decode(self, text: str) -> object:
        """Return the member with this value. Raises ValueError if there is none."""
        return self.enum_type(text)
