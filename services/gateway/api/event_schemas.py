"""JSON schemas of events, from the messages that they hold: one schema for each type of event, and
``type`` as the discriminator. Called by ``description.py``.

``data`` is what ``views.plain`` makes of the message, so a schema has a branch for each branch
there. Events go out as they are stored: nothing here runs when they do.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from libs.contracts.base import Message, Time
from libs.contracts.messages import Reason
from services.gateway.eventlog import TYPES
from services.gateway.json_values import enum_name
from services.gateway.views import shown_fields

Schema = dict[str, Any]
_SCALARS: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
# The field of an event that tells its type, and the one that depends on it.
TYPE, DATA = "type", "data"


def components(event: Schema) -> dict[str, Schema]:
    """The schemas of all events by name. ``event`` is the schema of any event: in the place of it
    comes the union of the types."""
    found: dict[str, Schema] = {}
    references: dict[str, str] = {}
    for name, kind in TYPES.items():
        title = f"{kind.__name__}Event"
        found[title] = _event(event, name, kind, _reference(f"{kind.__name__}Data"))
        found[f"{kind.__name__}Data"] = _object(kind, found)
        references[name] = _reference(title)["$ref"]
    return {
        **found,
        "Event": {
            "title": "Event",
            "description": f"{event['description']} ``{DATA}`` is what ``{TYPE}`` says. A later"
            " version may have more types and fields; an event that an earlier version stored lacks"
            " the fields that came since.",
            "oneOf": [{"$ref": each} for each in references.values()],
            "discriminator": {"propertyName": TYPE, "mapping": references},
        },
    }


def _event(event: Schema, name: str, kind: type[Message], data: Schema) -> Schema:
    """An event of one type."""
    fields = {**event["properties"], TYPE: {"type": "string", "const": name}, DATA: data}
    task = kind.model_fields.get("task_id")
    if task is not None and task.is_required():
        fields["task"] = {"type": "string"}
    about = _about(kind).removeprefix(f"{kind.__name__}: ")
    return {**event, "title": f"{kind.__name__}Event", "description": f"{name}: {about}"} | {
        "properties": fields
    }


def _object(kind: type[Message], found: dict[str, Schema]) -> Schema:
    """A message. Its optional fields are left out where they are empty."""
    fields = {name: kind.model_fields[name].annotation for name in shown_fields(kind)}
    return {
        "type": "object",
        "description": _about(kind),
        "properties": {name: _value(_present(given), found) for name, given in fields.items()},
        "required": [name for name, given in fields.items() if _present(given) is given],
    }


def _about(kind: type[Message]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _present(annotation: Any) -> Any:  # noqa: ANN401 - any annotation
    """The type of a field that is not None."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        (annotation,) = (each for each in typing.get_args(annotation) if each is not type(None))
    return annotation


def _value(annotation: Any, found: dict[str, Schema]) -> Schema:  # noqa: ANN401, PLR0911 - any annotation, one answer for each
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _value(inner[0], found)
    if origin is tuple:
        return {"type": "array", "items": _value(inner[0], found)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _value(inner[1], found)}
    if annotation is Reason:
        return _reference(Reason.__name__)
    if annotation is Time:
        return {"type": "string", "format": "date-time"}
    if issubclass(annotation, Message):
        name = f"Event{annotation.__name__}"
        if name not in found:
            found[name] = _object(annotation, found)
        return _reference(name)
    if issubclass(annotation, Enum):
        return {"type": "string", "enum": [enum_name(member) for member in annotation]}
    return {"type": _SCALARS[annotation]}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
