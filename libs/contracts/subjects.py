"""Subjects on the bus: rendered from a message, matched by filters. The only place with dots."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from libs.contracts.base import Message
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind

_FIELD = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=4096, typed=True)
def token(text: object) -> str:
    """One subject token: a dot inside an id would split it, so it is written ``_``."""
    return re.sub(r"[.\s*>]", "_", str(text)) or "_"


@cache
def _fields(template: str) -> tuple[str, ...]:
    return tuple(_FIELD.findall(template))


def subject_of(message: Message) -> str:
    """The subject that ``message`` travels on; KeyError if it has no route."""
    template = ROUTES[type(message)].subject
    return template.format_map({name: token(getattr(message, name)) for name in _fields(template)})


def parameters_of(kind: type[Message]) -> tuple[str, ...]:
    """The fields that the subjects of this type are made of."""
    return _fields(ROUTES[kind].subject)


def filter_of(kind: type[Message]) -> str:
    """The subject filter that matches every message of this type."""
    return _FIELD.sub("*", ROUTES[kind].subject)


def dead_letter_subject(service: str, subject: str) -> str:
    """The subject on which a service publishes a message that it cannot handle."""
    return f"dlq.{service}.{subject}"


def types_of(kind: Kind) -> tuple[type[Message], ...]:
    """All message types of one kind, in the order of their declaration."""
    return tuple(message for message, route in ROUTES.items() if route.kind is kind)


def matches(pattern: str, subject: str) -> bool:
    """True if a subject fits a filter with ``*`` for one token and ``>`` for the rest."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        want in ("*", token) for want, token in zip(wanted, tokens, strict=True)
    )
