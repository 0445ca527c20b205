"""Bodies to messages, and messages to the JSON that people see, field by field. Pure.

A field has one name in ``proto/`` and over HTTP. Three kinds of values differ: enums have short
lower-case words, documents are objects and not their text, and secrets are left out for others.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, TypeVar

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.contracts.kinds import Kind, kinds
from libs.contracts.shown import Read
from services.gateway.body_types import Body
from services.gateway.json_values import enum_name, enum_name_or_empty
from services.gateway.rows import QuotaRow

M = TypeVar("M", bound=Message)
Json = dict[str, Any]


def to_message(kind: type[M], body: Body) -> M:
    """The message of a body. What the body leaves out stays empty; fields that only the body has
    are passed over."""
    fields = vars(body)
    values = {
        name: _to_value(field, fields[name])
        for name, field in kinds(kind).items()
        if fields.get(name) is not None
    }
    return kind(**values)


def _to_value(field: Kind, value: Any) -> Any:  # noqa: ANN401 - a field's own type
    if field.message:
        if field.repeated:
            return tuple(to_message(field.message, item) for item in value)
        return to_message(field.message, value)
    if field.enum:
        return field.enum[value.upper()]
    if field.shown.read is Read.DOCUMENT:
        # In one form, so that the same document with the same key is the same task.
        return json.dumps(value, sort_keys=True)
    return tuple(value) if field.repeated else value


def to_json(message: Message, *, secrets: bool) -> Json:
    """Every field of a message; the secret ones only with ``secrets``."""
    return {
        name: _to_json(field, getattr(message, name), secrets=secrets)
        for name, field in kinds(type(message)).items()
        if secrets or not field.shown.secret
    }


def _to_json(field: Kind, value: Any, *, secrets: bool) -> Any:  # noqa: ANN401 - any JSON
    if value is None:
        return None
    if field.repeated:
        return [_one(field, item, secrets=secrets) for item in value]
    if field.mapped:
        return dict(value)
    return _one(field, value, secrets=secrets)


def _one(field: Kind, value: Any, *, secrets: bool) -> Any:  # noqa: ANN401 - any JSON
    if field.message:
        return to_json(value, secrets=secrets)
    if field.enum:
        return enum_name_or_empty(value)
    if field.shown.read is Read.DOCUMENT:
        return json.loads(value) if value else None
    return value


def quota_row(quota: m.Quota, changed_by: str, changed_at: datetime) -> QuotaRow:
    """A cap or a grant as the read model has it, in no version yet."""
    return QuotaRow(
        group=quota.group,
        user=quota.user,
        team=quota.team,
        priority=enum_name_or_empty(quota.priority),
        unit=enum_name(quota.unit),
        grant=quota.grant,
        limit=quota.limit,
        version=0,
        removed=False,
        changed_by=changed_by,
        changed_at=changed_at,
        unlimited=quota.unlimited,
        level_max=enum_name_or_empty(quota.level_max),
        expires_at=quota.expires_at,
    )
