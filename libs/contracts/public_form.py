"""The public form of events: what monitoring users get, without the fields that are withheld.

Which fields those are is declared in ``proto/`` (``withheld``, and what is shown as secret). Called
by the copy for monitoring users (``libs/bus/history_copy.py``) and by the pages about events.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from libs.contracts.base import Message
from libs.contracts.kinds import every_kind
from libs.contracts.registry import WITHHELD

# What pydantic leaves out: a field (True), fields of the message in it, or of each of its messages.
Exclusion = dict[str, Any]


def public_body(message: Message) -> bytes:
    """The message as JSON without what is withheld, also without fields that this version does not
    know: whether those may be public, it cannot know either."""
    exclusion = exclusion_of(type(message))
    return message.model_dump_json(exclude_none=True, exclude=exclusion or None).encode()


@cache
def exclusion_of(kind: type[Message]) -> Exclusion:
    """What the public form of a message leaves out, wherever the field is; empty: nothing."""
    found: Exclusion = dict.fromkeys(WITHHELD.get(kind, ()), True)
    for field in every_kind(kind).values():
        inner = exclusion_of(field.message) if field.message else {}
        if inner and field.name not in found:
            found[field.name] = {"__all__": inner} if field.repeated or field.mapped else inner
    return found


def withheld_version() -> str:
    """Another text whenever other fields are withheld: what was copied before may hold them."""
    fields = sorted(f"{kind.__name__}.{name}" for kind, names in WITHHELD.items() for name in names)
    return hashlib.sha256(" ".join(fields).encode()).hexdigest()[:16]
