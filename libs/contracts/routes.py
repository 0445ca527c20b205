"""A message's subject and the service that may publish it; the values are in ``registry.py``,
generated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from libs.contracts.base import Message


class Kind(Enum):
    """What sort of conversation a message belongs to."""

    EVENT = "event"
    COMMAND = "command"
    REPLY = "reply"
    TELEMETRY = "telemetry"
    SESSION = "session"
    HINT = "hint"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class Route:
    """One message's declaration, from the options in its .proto."""

    type_name: str
    subject: str
    owner: str
    kind: Kind
    reply: type[Message] | None
