"""How values of a row are encoded where PostgreSQL has no type of its own for them.

Called by ``libs.store.tables``: a message, a tuple, a mapping or a dataclass is JSON text for one
JSONB column, an enum is text by its value.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter

from libs.contracts.base import Message

# Of each column so many messages' texts are remembered.
TEXTS_MAX = 1024


class JsonOf:
    """Values of one Python type as JSON: a message, a dataclass, a tuple, a dict."""

    def __init__(self, value_type: Any) -> None:  # noqa: ANN401 - any type form: tuple[X, ...]
        self.value_type = value_type
        # The newest messages' texts, by the messages' identities, which they keep alive.
        self._texts: dict[int, tuple[Message, str]] = {}

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """Built at the first use: a process builds only what it touches."""
        return TypeAdapter(self.value_type)

    def encode(self, value: object) -> str:
        """The value as JSON text; pydantic's error if it is not of the type.

        A message is written with its row again and again, and never changes.
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
        """The value from JSON text; pydantic's ValidationError if it does not fit the type."""
        return self._adapter.validate_json(text)


class EnumText:
    """An enum's members as their values; a new member needs no migration."""

    def __init__(self, enum_type: type[Enum]) -> None:
        self.enum_type = enum_type
        # By member: ``value`` is a property, and a slow one.
        self._values: dict[object, str] = {each: str(each.value) for each in enum_type}

    def encode(self, value: object) -> str:
        """The member's value; ValueError if it is no member."""
        text = self._values.get(value)
        return str(self.enum_type(value).value) if text is None else text

    def decode(self, text: str) -> object:
        """The member; ValueError names a value that is none."""
        return self.enum_type(text)
