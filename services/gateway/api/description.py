"""/v1/openapi.json beyond what the routes say themselves: operation ids, the errors that each route
can answer, descriptions of common parameters, and an example of every type.

Called by ``app`` once for the process. Everything here is derived from paths, names and schemas, so
that a new route needs none of it; what a route says itself stands.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from fastapi.routing import APIRoute

from services.gateway.api import event_schemas, examples, policy_schemas
from services.gateway.problems import (
    BY_STATUS,
    CONFLICT,
    FORBIDDEN,
    GONE,
    INTERNAL,
    INVALID,
    MALFORMED,
    NOT_FOUND,
    TIMEOUT,
    TOO_LARGE,
    TOO_MANY,
    UNAUTHENTICATED,
    UNAVAILABLE,
    URI_TOO_LONG,
    Kind,
)

PROBLEM_JSON = "application/problem+json"
# What a method does to a collection, to one thing of it, and to a part of that thing. The verb of
# a part is put before its name; a POST to a part is named by the part itself (tasks_retry).
_ON_COLLECTION = {
    "GET": "list",
    "POST": "create",
    "PUT": "set",
    "PATCH": "update",
    "DELETE": "clear",
}
_ON_ONE = {"GET": "get", "POST": "create", "PUT": "set", "PATCH": "update", "DELETE": "delete"}
_ON_PART = {"GET": "", "POST": "", "PUT": "set_", "PATCH": "update_", "DELETE": "delete_"}
# GET of these is one document, no list.
_SINGLE = frozenset({"login", "occupancy", "run", "session", "usage", "whoami"})

PARAMETERS: Mapping[str, str] = {
    "attempt": "the attempt; left out: the newest for a range, all otherwise",
    "cursor": "next_cursor of the page before",
    "format": "json or csv; left out: as the header Accept says",
    "group": "name of a group of nodes",
    "id_prefix": "the first characters of the id",
    "Last-Event-ID": "position of the last event that came, as browsers send it on reconnecting",
    "limit_bytes": "the length of the range at most",
    "mine": "only the caller's own",
    "name": "the name",
    "node_id": "the node's id",
    "outcome": "how attempts ended",
    "owner": "name of the user who submitted it",
    "priority": "a level, such as normal",
    "rank": "the rank, counted over all roles",
    "ready": "only nodes that are, or are not, ready",
    "disabled": "only users who are, or are not, disabled",
    "schedulable": "only nodes that take, or do not take, new runs",
    "role": "the role",
    "challenge": "SHA-256 of the verifier, in base64url without padding",
    "session_id": "the session's id",
    "seen": "the revision that the caller has; an answer waits for a later one",
    "target": "what was changed, such as a task's id",
    "task": "a task's id",
    "task_id": "the task's id",
    "team": "name of a team",
    "token_id": "the token's id, which is not the token",
    "user": "name of a user",
    "wait_seconds": "how long to wait for a change at most",
    "who": "name of the user who did it",
}


def operation_id(route: APIRoute) -> str:
    """``tasks_list`` for GET /v1/tasks: the resource and what is done with it, from the path, which
    is stable. A route whose path gives no good name has ``operation_id`` of its own."""
    resource, verb = names_of(min(route.methods or {"GET"}), route.path_format)
    return f"{resource}_{verb}"


def resource_of(path: str) -> str:
    """``dead_letters`` for /v1/dead-letters:replay."""
    return re.split("[/:]", path.removeprefix("/v1/"))[0].replace("-", "_")


def names_of(method: str, path: str) -> tuple[str, str]:
    """The resource and the verb of a route."""
    resource = resource_of(path)
    place, _, action = path.removeprefix("/v1/").partition(":")
    if action:
        return resource, action.replace("-", "_")
    steps = place.split("/")[1:]
    parts = [step.replace("-", "_") for step in steps if not step.startswith("{")]
    if parts:
        # The id of a part of a thing: DELETE /v1/users/{name}/tokens/{id}.
        return resource, _ON_PART[method] + "_".join(parts)
    if resource in _SINGLE and method == "GET":
        return resource, "get"
    return resource, (_ON_ONE if steps else _ON_COLLECTION)[method]


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """The description with everything that the routes do not say themselves."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _describe_parameters(operation)
            _describe_errors(path, method, operation)
    schemas = document["components"]["schemas"]
    # The framework's own error, which no route answers.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(event_schemas.components(schemas["Event"]))
    schemas.update(copy.deepcopy(policy_schemas.SCHEMAS))
    document["components"]["schemas"] = schemas = dict(sorted(schemas.items()))
    made = Examples(schemas)
    for name, schema in schemas.items():
        schema.setdefault("examples", [made.of(name)])
    return document


def _describe_parameters(operation: Mapping[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        about = parameter["schema"].pop("description", None) or parameter.get("description")
        parameter["description"] = about or PARAMETERS.get(parameter["name"], "")


def _describe_errors(path: str, method: str, operation: dict[str, Any]) -> None:
    """Put the statuses that the route can answer in the place of 4XX and 5XX."""
    answers = operation["responses"]
    problem = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for kind in kinds_of(path, method, operation):
        answer: dict[str, Any] = {"content": problem}
        if kind in (TOO_MANY, UNAVAILABLE):
            seconds = {"description": "seconds to wait", "schema": {"type": "integer"}}
            answer["headers"] = {"Retry-After": seconds}
        given = answers.get(str(kind.status), {})
        # FastAPI's own 422 is not what is answered.
        about = given.get("description")
        if about == "Validation Error":
            about = ""
        answers[str(kind.status)] = {**answer, "description": about or kind.title}
    for wildcard in ("4XX", "5XX"):
        answers.pop(wildcard, None)
    operation["responses"] = dict(sorted(answers.items()))
    # What leads a browser elsewhere has no answer to keep.
    if method == "get" and "200" in answers:
        answers = operation["responses"]
        answers.setdefault("304", {"description": "The caller has this answer (If-None-Match)"})
        whole = answers["200"]
        whole.setdefault("headers", {}).update(
            {
                "ETag": {
                    "description": "of this answer, for If-None-Match; no stream has it",
                    "schema": {"type": "string"},
                },
                "X-Shiftwork-Position": {
                    "description": "events behind this position change the answer",
                    "schema": {"type": "string"},
                },
            }
        )


def kinds_of(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[Kind]:
    """The problems that a route can answer with, from what it takes."""
    yield from (
        MALFORMED,
        UNAUTHENTICATED,
        FORBIDDEN,
        URI_TOO_LONG,
        TOO_MANY,
        INTERNAL,
        UNAVAILABLE,
    )
    # Of any request the lengths of address and body are checked, also where none is read.
    yield from (TOO_LARGE, URI_TOO_LONG)
    if operation.get("parameters") or operation.get("requestBody"):
        yield INVALID
    if operation.get("requestBody"):
        yield TIMEOUT
    # A way to log in that the site does not have is not there.
    may_lack = "{" in path or path.startswith("/v1/login/")
    if may_lack or method != "get" or operation.get("parameters"):
        yield NOT_FOUND
    if method != "get" or path.startswith("/v1/run"):
        # All routes of a run answer so once it is over.
        yield CONFLICT
    if "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
        yield GONE
    # What the route itself says of further ones stands.
    for status in operation["responses"]:
        if status.isdecimal() and int(status) in BY_STATUS and int(status) >= MALFORMED.status:
            yield BY_STATUS[int(status)]


class Examples:
    """An example of each type of the description, valid against its schema."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def of(self, name: str) -> Any:  # noqa: ANN401 - any JSON
        """The example of one type."""
        if name in examples.WHOLE:
            return examples.WHOLE[name]
        return self._value(name, self._schemas[name], is_body=name.endswith("Body"))

    def _value(self, field: str, schema: Mapping[str, Any], *, is_body: bool = False) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912 - one answer for each form of a schema
        if "$ref" in schema:
            return self.of(schema["$ref"].rpartition("/")[2])
        if "anyOf" in schema:
            return self._value(field, schema["anyOf"][0])
        if "discriminator" in schema:
            about = schema["discriminator"]
            kind = examples.TEXTS[about["propertyName"]]
            return self._value(field, {"$ref": about["mapping"][kind]})
        if "enum" in schema:
            return (
                examples.TEXTS[field]
                if examples.TEXTS.get(field) in schema["enum"]
                else schema["enum"][-1]
            )
        if "const" in schema:
            return schema["const"]
        match schema.get("type"):
            case "object":
                return self._object(field, schema, is_body=is_body)
            case "array" if "prefixItems" in schema:
                return [self._value(field, each) for each in schema["prefixItems"]]
            case "array":
                if schema["items"].get("type") == "string" and field in examples.LISTS:
                    return examples.LISTS[field]
                singular = f"{field[:-3]}y" if field.endswith("ies") else field.removesuffix("s")
                return [self._value(singular, schema["items"])]
            case "string":
                return _text(field, schema)
            case "integer" | "number":
                return _number(field, schema)
            case "boolean":
                return schema.get("default", False)
            case "null":
                return None
            case _:
                return {}

    def _object(self, field: str, schema: Mapping[str, Any], *, is_body: bool) -> dict[str, Any]:
        fields = schema.get("properties")
        if fields is None:
            key, value = examples.PAIRS.get(
                field, (examples.TASK if field == "versions" else "key", "value")
            )
            more = schema.get("additionalProperties")
            # It may be true instead of a schema.
            inner: Mapping[str, Any] = (
                cast("Mapping[str, Any]", more) if isinstance(more, dict) else {}
            )
            if inner and (value is None or "$ref" in inner):
                value = self._value(field, inner)
            elif inner.get("type") in ("integer", "number") and isinstance(value, str):
                value = 1
            return {key: value}
        required = schema.get("required", ())
        # A body's optional fields have defaults; if all are optional, the first is shown.
        chosen = [name for name in fields if name in required or not is_body]
        return {name: self._value(name, fields[name]) for name in chosen or list(fields)[:1]}


def _text(field: str, schema: Mapping[str, Any]) -> str:
    if (
        schema.get("format") == "date-time"
        or field.endswith("_at")
        or field in ("at", "to", "from")
    ):
        return examples.TIME
    if field in examples.TASKS or field == "id":
        return examples.TASK
    return examples.TEXTS.get(field, field.replace("_", "-"))


def _number(field: str, schema: Mapping[str, Any]) -> float:
    number = examples.NUMBERS.get(field, 60.0 if field.endswith("_seconds") else 1)
    if schema["type"] == "integer":
        number = int(number)
    least = schema.get("minimum", number)
    return max(number, least)
