"""Every error of the API as one shape: ``application/problem+json`` (RFC 9457).

Routes raise ``ProblemError``; ``api/app.py`` turns it, and everything else that can go wrong, into
an answer. ``type`` is one word that programs can compare; ``errors`` name field, value and fix.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from libs.contracts.base import Message
from libs.contracts.ids import NAME_RULE
from libs.contracts.kinds import kinds
from libs.contracts.messages import FieldError, Refusal, RefusalCode, TaskSpec
from libs.contracts.shown import Shown
from libs.contracts.wording import Suggestions, as_text, not_found
from services.gateway import misnamed
from services.gateway.bodies import body_around, body_in
from services.gateway.body_types import NAME
from services.gateway.spec_bodies import TaskSpecBody

VALUE_CHARACTERS_MAX = 80
# Fields whose values no error repeats.
SECRET_FIELDS = frozenset({"env", "template", "password", "old", "code", "verifier"})
ERRORS_MAX = 50


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem."""

    type: str
    status: int
    title: str


MALFORMED = Kind("malformed", 400, "The request cannot be read")
UNAUTHENTICATED = Kind("unauthenticated", 401, "Who are you?")
FORBIDDEN = Kind("forbidden", 403, "You may not do this")
NOT_FOUND = Kind("not-found", 404, "There is no such thing")
METHOD_NOT_ALLOWED = Kind("method-not-allowed", 405, "This method does not exist here")
CONFLICT = Kind("conflict", 409, "The present state does not allow it")
SUPERSEDED = Kind("superseded", 409, "This attempt is over")
GONE = Kind("gone", 410, "This part of the event log is not kept")
TIMEOUT = Kind("timeout", 408, "The request did not arrive in time")
TOO_LARGE = Kind("too-large", 413, "The request is too large")
URI_TOO_LONG = Kind("uri-too-long", 414, "The address is too long")
INVALID = Kind("invalid", 422, "A field is not valid")
TOO_MANY = Kind("too-many", 429, "Too many at once")
INTERNAL = Kind("internal", 500, "The gateway has failed")
UNAVAILABLE = Kind("unavailable", 503, "A part of the platform does not answer now")

REFUSALS: Mapping[RefusalCode, Kind] = {
    RefusalCode.UNSPECIFIED: INTERNAL,
    RefusalCode.INVALID: INVALID,
    RefusalCode.NOT_FOUND: NOT_FOUND,
    RefusalCode.CONFLICT: CONFLICT,
    RefusalCode.FORBIDDEN: FORBIDDEN,
    RefusalCode.SUPERSEDED: SUPERSEDED,
    RefusalCode.UNAVAILABLE: UNAVAILABLE,
    RefusalCode.FAILED: INTERNAL,
}
BY_STATUS: Mapping[int, Kind] = {
    kind.status: kind
    for kind in (
        MALFORMED,
        UNAUTHENTICATED,
        FORBIDDEN,
        NOT_FOUND,
        METHOD_NOT_ALLOWED,
        TIMEOUT,
        CONFLICT,
        TOO_LARGE,
        URI_TOO_LONG,
        INVALID,
        TOO_MANY,
        INTERNAL,
        UNAVAILABLE,
    )
}
# What is wrong with a field and what to do about it, by pydantic's kind of error. Its numbers are
# filled in; where the first is empty, its own message stands.
_WHOLE = ("is not a whole number", "give a whole number")
_NUMBER = ("is not a number", "give a number")
_FLAG = ("is neither true nor false", "give true or false")
_OBJECT = ("is not an object", "give an object")
TEXTS: Mapping[str, tuple[str, str]] = {
    "missing": ("is missing", "give this field"),
    "extra_forbidden": (
        "there is no such field",
        "leave this field out: /docs lists the fields",
    ),
    "json_invalid": ("", "send one JSON value, in UTF-8"),
    "literal_error": ("is not known here", "give one of {expected}"),
    "greater_than_equal": ("is less than {ge}", "give {ge} or more"),
    "greater_than": ("is not more than {gt}", "give more than {gt}"),
    "less_than_equal": ("is more than {le}", "give {le} or less"),
    "less_than": ("is not less than {lt}", "give less than {lt}"),
    "string_too_long": ("is too long", "shorten it to {max_length} characters"),
    "string_too_short": ("is too short", "give at least {min_length} characters"),
    "too_long": ("has too many entries", "give at most {max_length}"),
    "too_short": ("has too few entries", "give at least {min_length}"),
    "string_pattern_mismatch": ("has another form", "write it in the form {pattern}"),
    "int_parsing": _WHOLE,
    "int_parsing_size": ("is too large", "give a smaller number"),
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
    "string_type": ("is not a text", "give a text, in quotation marks"),
    "list_type": ("is not a list", "give a list"),
    "dict_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": (
        "is not an object",
        "give an object with content type application/json",
    ),
    "finite_number": ("is not finite", "give a finite number"),
}
_DESCRIBED = ("", "correct this field: /docs describes it")
_NAME = ("is not a name", f"use {NAME_RULE}")
# Kinds of errors of a value that stands where an object is wanted.
_OF_FIELDS = frozenset({"dict_type", "model_type", "model_attributes_type"})
_QUOTED = re.compile("'([^']*)'")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])")
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class ProblemError(Exception):
    """An answer that is a refusal."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        # True once the audit trail has it: the refusal of a change is entered with the change.
        self.audited = False
        # Whose token was shown, which is genuine and not good here. For the audit trail alone.
        self.user = ""

    def of(self, user: str) -> Self:
        """The same, of the user or task whose genuine token was shown."""
        self.user = user
        return self

    def document(self) -> dict[str, object]:
        """The problem as JSON."""
        return {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "errors": [error.model_dump() for error in self.errors],
        }


def invalid(field: str, value: object, message: str, fix: str) -> ProblemError:
    """One field is wrong. Callers give no secret as ``value``."""
    error = FieldError(field=field, value=shown(value), message=message, fix=fix)
    return ProblemError(INVALID, f"{field}: {message}; {fix}", [error])


def refused(refusal: Refusal, retry_after_seconds: int) -> ProblemError:
    """A service's refusal as an answer."""
    kind = REFUSALS[refusal.code]
    headers = {"retry-after": str(retry_after_seconds)} if kind is UNAVAILABLE else None
    return ProblemError(kind, refusal.detail or kind.title, refusal.errors, headers)


def absent(field: str, kind: str, name: str, known: Iterable[str] = ()) -> ProblemError:
    """404: nothing of this kind has the name."""
    return refused(not_found(field, kind, name, known), 0)


def taken(field: str, kind: str, name: str, fix: str) -> ProblemError:
    """409: there is one of this kind and name."""
    message = f"there is a {kind} {name} already"
    error = FieldError(field=field, value=shown(name), message=message, fix=fix)
    return ProblemError(CONFLICT, message, [error])


def of_validation(
    details: Sequence[ErrorDetails], body: type[BaseModel] | None = None
) -> ProblemError:
    """What pydantic found wrong with a request, in our words and without its secrets.

    ``body`` is what the route takes.
    """
    suggestions = Suggestions()
    errors = [_field_error(detail, body, suggestions) for detail in details[:ERRORS_MAX]]
    for detail in details[:1]:
        if detail["type"] == "json_invalid":
            why = (detail.get("ctx") or {}).get("error", "it is not JSON")
            return ProblemError(MALFORMED, f"the body cannot be read: {why}", errors)
    first = errors[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return ProblemError(INVALID, f"{first.field}: {first.message}; {first.fix}{more}", errors)


def shown(value: object) -> str:
    """A value as an error may show it: simple ones, cut."""
    if value is None or isinstance(value, dict | list | tuple):
        return ""
    text = as_text(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[: VALUE_CHARACTERS_MAX - 1] + "…"


def _field_error(
    detail: ErrorDetails, body: type[BaseModel] | None, suggestions: Suggestions
) -> FieldError:
    place = detail["loc"][1:] if len(detail["loc"]) > 1 else detail["loc"]
    secret = bool(SECRET_FIELDS & set(place)) or detail["type"] in {"missing", "json_invalid"}
    last = str(place[-1]) if place else ""
    if detail["type"] == "extra_forbidden" and misnamed.is_secret(last):
        secret = True
    context = _Known(
        {name: _limit(value, place) for name, value in (detail.get("ctx") or {}).items()}
    )
    kind = _declare(detail["type"], context, declared(body, place))
    texts = TEXTS.get(kind, _DESCRIBED)
    message, fix = (text.format_map(context) for text in texts)
    if context["pattern"].endswith(NAME):
        message, fix = _NAME
    if detail["type"] == "extra_forbidden":
        part = body_around(body, place)
        near = misnamed.advice(part, field_path(place[-1:]), detail["input"], suggestions)
        fix = f"{near} Else {fix}" if near else fix
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        choices = _QUOTED.findall(context["expected"])
        fix = f"{suggestions.meant(detail['input'].lower(), choices)} {fix}".strip()
    if detail["type"] in _OF_FIELDS and place != ("body",):
        message, fix = _OBJECT[0], f"write {_as_fields(detail, place, body)}"
    if message == _NUMBER[0] and last.endswith("_seconds"):
        fix = "give a number of seconds" + _as_seconds(detail["input"])
    if kind == "string_type" and place[-2:] == ("ready", "port"):
        message = "is not the name of a port"
        fix = "name one of the role's ports, such as http of ports: [{name: http}]"
    if detail["type"] == "list_type" and not secret:
        fix += _as_list(detail["input"], place, body)
    if detail["type"] == "value_error":
        # Texts of our own validators: what is wrong, and behind a semicolon the fix.
        message, _, own = detail["msg"].removeprefix("Value error, ").partition("; ")
        fix = own or fix
    return FieldError(
        field=field_path(place),
        value="" if secret else shown(detail["input"]),
        message=message or _begun_small(detail["msg"]),
        fix=fix,
    )


def declared(body: type[BaseModel] | None, place: Sequence[str | int]) -> Shown:
    """What ``proto/`` says of a task's field; of other fields nothing."""
    found = Shown()
    message: type[Message] | None = None
    for index, part in enumerate(place):
        around = body_around(body, place[: index + 1]) if message is None else None
        if around is not None and issubclass(around, TaskSpecBody):
            message = TaskSpec
        if message is None or isinstance(part, int):
            continue
        field = kinds(message).get(part)
        if field is None:
            return Shown()
        found, message = field.shown, field.message or message
    return found


def _declare(kind: str, context: dict[str, str], bounds: Shown) -> str:
    """Put the declared bounds of a field in the place of its type's, which are wider. Returns the
    kind of error that names them."""
    if kind == "greater_than_equal" and bounds.min is not None:
        if bounds.above:
            kind = "greater_than"
        context["gt" if bounds.above else "ge"] = f"{bounds.min:.16g}"
    if kind == "less_than_equal" and bounds.max is not None:
        context["le"] = f"{bounds.max:.16g}"
    return kind


def _as_fields(
    detail: ErrorDetails, place: Sequence[str | int], body: type[BaseModel] | None
) -> str:
    """One value that was given in the place of several, as a task file has them."""
    # Without the index of an item.
    path = place[:-1] if isinstance(place[-1], int) else place
    name = str(path[-1]) if path else ""
    around = body_around(body, path)
    known = around.model_fields if around is not None else {}
    below = body_in(known[name].annotation) if name in known else None
    if below is None:
        return f"{name}: {{NAME: VALUE}}"
    # A list of objects; or an object, whose first field is the one that is usually meant.
    if isinstance(place[-1], int):
        return f"{name}: [{{{next(iter(below.model_fields))}: ...}}]"
    if isinstance(detail["input"], bool):
        # A program that reports by itself that it is ready needs no field.
        inside = "" if name == "ready" else f"{next(iter(below.model_fields))}: ..."
        return f"{name}: {{{inside}}}"
    first, field = next(iter(below.model_fields.items()))
    of_list = get_origin(field.annotation) is list
    return misnamed.example(f"{name}.{first}", detail["input"], of_list=of_list)


def _as_seconds(value: object) -> str:
    """``4h`` as a number of seconds."""
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    return f": {float(found[1]) * _SPANS[found[2]]:g}" if found else ""


def _limit(value: object, place: tuple[int | str, ...]) -> str:
    """A number of pydantic's as people write it, with the unit from the field's name."""
    unit = " seconds" if str(place[-1]).endswith("_seconds") else ""
    if isinstance(value, float):
        return f"{value:.0f}{unit}" if value.is_integer() else f"{value:g}{unit}"
    return f"{value}{unit}" if isinstance(value, int) else str(value)


def _as_list(value: object, place: Sequence[str | int], body: type[BaseModel] | None) -> str:
    """What was given alone as the list that it has to be: an object with its first field, or the
    words of a command line."""
    around = body_around(body, place)
    field = around.model_fields.get(str(place[-1])) if around is not None else None
    item = body_in(field.annotation) if field is not None else None
    if item is not None:
        return f": [{{{misnamed.example(next(iter(item.model_fields)), value)}}}]"
    if not isinstance(value, str) or not 0 < len(value) <= VALUE_CHARACTERS_MAX:
        return ""
    try:
        return f": {json.dumps(shlex.split(value))}"
    except ValueError:
        return ""


def _begun_small(text: str) -> str:
    """The text as the middle of a sentence; ``JSON`` and its like stay as they are."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def field_path(place: Sequence[str | int]) -> str:
    """``roles[0].command`` for ``("roles", 0, "command")``."""
    path = ""
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else part)
    return path


class _Known(dict[str, str]):
    """A word that is not known is left out of a fix."""

    def __missing__(self, key: str) -> str:
        return "another value"
