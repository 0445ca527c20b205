"""Column types of the services' tables, and constructors that let a ``tables.py`` read well.

Called by ``services/*/tables.py``. A message, a tuple or a mapping is one JSONB column, an enum is
text by its value, a time is ``timestamptz``. Plain ``str``, ``int``, ``float``, ``bool`` and
``bytes`` need no constructor: ``libs.store.tables`` makes them TEXT, BIGINT and so on. The types
hold the one encoding that both the SQL adapter and plain SQLAlchemy use.
"""

from __future__ import annotations

import json
from enum import Enum
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import DateTime, Dialect, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field

from libs.contracts.base import Message

# Of each column so many messages' texts are remembered.
TEXTS_MAX = 1024
# Compare and sort by code points, as Python does, whatever the database's locale is.
TEXT = Text(collation="C")


class JsonOf(TypeDecorator[Any]):
    """A JSONB column with values of one Python type: a message, a dataclass, a tuple, a dict."""

    impl = JSONB
    cache_ok = True

    def __init__(self, value_type: Any) -> None:  # noqa: ANN401 - any type form: tuple[X, ...]
        super().__init__()
        self.value_type = value_type

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
        text = self._encoded(value)
        if isinstance(value, Message):
            self._remember(value, text)
        return text

    def _encoded(self, value: object) -> str:
        return self._adapter.dump_json(value, warnings="error").decode()

    def decode(self, text: str) -> object:
        """The value from JSON text; pydantic's ValidationError if it does not fit the type."""
        return self._adapter.validate_json(text)

    @cached_property
    def _texts(self) -> dict[int, tuple[Message, str]]:
        """The newest messages' texts, by the messages' identities, which they keep alive."""
        return {}

    def _remember(self, value: Message, text: str) -> None:
        if len(self._texts) >= TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        self._texts[id(value)] = (value, text)

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        """For SQLAlchemy: what JSONB takes."""
        del dialect
        return (
            None
            if value is None
            else self._adapter.dump_python(value, mode="json", warnings="error")
        )

    def process_result_value(self, value: object, dialect: Dialect) -> object:
        """For SQLAlchemy: from what JSONB gives."""
        del dialect
        return None if value is None else self.decode(json.dumps(value))


class EnumText(TypeDecorator[Any]):
    """A text column with the value of a string enum; a new member needs no migration."""

    impl = TEXT
    cache_ok = True

    def __init__(self, enum_type: type[Enum]) -> None:
        super().__init__()
        self.enum_type = enum_type

    def encode(self, value: object) -> str:
        """The member's value; ValueError if it is no member."""
        text = self._values.get(value)
        return str(self.enum_type(value).value) if text is None else text

    @cached_property
    def _values(self) -> dict[object, str]:
        """By member: ``value`` is a property, and a slow one."""
        return {each: str(each.value) for each in self.enum_type}

    def decode(self, text: str) -> object:
        """The member; ValueError names a value that is none."""
        return self.enum_type(text)

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        """For SQLAlchemy."""
        del dialect
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> object:  # noqa: ANN401 - base
        """For SQLAlchemy."""
        del dialect
        return None if value is None else self.decode(value)


def _column(sa_type: object, *, key: bool, index: bool) -> Any:  # noqa: ANN401 - SQLModel's Field is Any
    """A column whose nullability follows the annotation (``X | None``)."""
    typed: Any = sa_type
    if key:
        return Field(sa_type=typed, primary_key=True)
    return Field(sa_type=typed, index=index)


def key_column() -> Any:  # noqa: ANN401 - as SQLModel's Field
    """A plain column (str, int) of the primary key."""
    return Field(primary_key=True)


def json_column(value_type: Any) -> Any:  # noqa: ANN401 - any type form; as SQLModel's Field
    """A JSONB column: ``json_column(TaskSpec)``, ``json_column(tuple[int, ...])``."""
    return _column(JsonOf(value_type), key=False, index=False)


def enum_column(enum_type: type[Enum], *, key: bool = False, index: bool = False) -> Any:  # noqa: ANN401 - as SQLModel's Field
    """A text column with an enum's value."""
    return _column(EnumText(enum_type), key=key, index=index)


def time_column(*, key: bool = False, index: bool = False) -> Any:  # noqa: ANN401 - as SQLModel's Field
    """A ``timestamptz`` column; values are aware and come back in UTC."""
    return _column(DateTime(timezone=True), key=key, index=index)
