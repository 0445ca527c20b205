"""What a field of a message holds, read from its type. Pure.

Called by whatever is derived from the messages: the gateway's bodies and views, the options of the
command line, submit's bounds.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from libs.contracts.base import Message
from libs.contracts.fields import SHOWN
from libs.contracts.shown import Shown


@dataclass(frozen=True, slots=True)
class Kind:
    """One field. ``of`` is the type of the value, of a list's item, or of a map's values."""

    name: str
    of: type[Any]
    repeated: bool
    mapped: bool
    optional: bool
    # proto's int64, which is wider than int32.
    wide: bool
    shown: Shown

    @property
    def message(self) -> type[Message] | None:
        """The message that it holds, or None."""
        return self.of if issubclass(self.of, Message) else None

    @property
    def enum(self) -> type[Enum] | None:
        """The enum that it holds, or None."""
        return self.of if issubclass(self.of, Enum) else None


@cache
def kinds(message: type[Message]) -> Mapping[str, Kind]:
    """The fields of a message that people meet, in the order of their declaration."""
    return {name: kind for name, kind in every_kind(message).items() if not kind.shown.hidden}


@cache
def every_kind(message: type[Message]) -> Mapping[str, Kind]:
    """The same with the fields that the platform fills in."""
    shown = SHOWN.get(message.__name__, {})
    hints = typing.get_type_hints(message, include_extras=True)
    found = (_kind(name, hints[name], shown.get(name)) for name in message.model_fields)
    return {kind.name: kind for kind in found}


def _kind(name: str, hint: Any, shown: Shown | None) -> Kind:  # noqa: ANN401 - any annotation
    optional = _origin(hint) in (types.UnionType, typing.Union)
    if optional:
        hint = typing.get_args(hint)[0]
    annotated = _origin(hint) is typing.Annotated
    if annotated:
        hint = typing.get_args(hint)[0]
    mapped, repeated = _origin(hint) is Mapping, _origin(hint) is tuple
    of: Any = typing.get_args(hint)[1 if mapped else 0] if mapped or repeated else hint
    if _origin(of) is typing.Annotated:
        of = typing.get_args(of)[0]
    return Kind(name, of, repeated, mapped, optional, annotated and of is int, shown or Shown())


def _origin(hint: Any) -> Any:  # noqa: ANN401 - any annotation
    return typing.get_origin(hint)
