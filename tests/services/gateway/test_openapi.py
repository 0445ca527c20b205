"""/v1/openapi.json: operation ids, descriptions, errors and examples of every route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from services.gateway.api.audit_shapes import STATES
from services.gateway.api.description import names_of
from services.gateway.audit import ACTIONS
from tests.services.gateway.served_schemas import DOCUMENT, SCHEMAS

# Types that permit any JSON object, and why no narrower type is right.
OPEN_OBJECTS = {
    "PodTemplate": "Kubernetes defines it, and its fields differ between versions of Kubernetes",
}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_operation_ids_are_unique_and_name_their_resource() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids)
    for method, path, operation in operations():
        resource, _ = names_of(method.upper(), path)
        assert operation["operationId"].startswith(f"{resource}_"), path


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("GET", "/v1/tasks", ("tasks", "list")),
        ("GET", "/v1/tasks/{task_id}", ("tasks", "get")),
        ("GET", "/v1/tasks/{task_id}/runs", ("tasks", "runs")),
        ("PUT", "/v1/tasks/{task_id}/goal", ("tasks", "set_goal")),
        ("POST", "/v1/tasks/{task_id}/retry", ("tasks", "retry")),
        ("POST", "/v1/tasks:dry-run", ("tasks", "dry_run")),
        ("POST", "/v1/dead-letters:replay", ("dead_letters", "replay")),
        ("DELETE", "/v1/users/{name}/tokens/{token_id}", ("users", "delete_tokens")),
        ("GET", "/v1/whoami", ("whoami", "get")),
    ],
)
def test_a_path_gives_the_names_of_resource_and_method(
    method: str, path: str, names: tuple[str, str]
) -> None:
    assert names_of(method, path) == names


def test_every_operation_and_parameter_is_described() -> None:
    silent = [
        operation["operationId"]
        for *_, operation in operations()
        if not operation.get("description")
    ]
    silent += [
        f"{operation['operationId']}: {parameter['name']}"
        for *_, operation in operations()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert silent == [], "add a docstring, a description of the parameter, or one to PARAMETERS"


def test_every_error_is_a_problem_with_a_status_of_its_own() -> None:
    for *_, operation in operations():
        answers = operation["responses"]
        assert not {"4XX", "5XX", "default"} & set(answers), operation["operationId"]
        assert {"400", "401", "403", "429", "500", "503"} <= set(answers)
        for status, answer in answers.items():
            if int(status) >= 400:
                assert list(answer["content"]) == ["application/problem+json"]


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_type_has_an_example_that_is_valid(name: str) -> None:
    examples = SCHEMAS[name]["examples"]
    assert examples
    schema = {**DOCUMENT, "$ref": f"#/components/schemas/{name}"}
    for example in examples:
        jsonschema.Draft202012Validator(schema).validate(example)


def open_places(place: str, schema: Any) -> Iterator[str]:
    """Where a schema permits any value, or an object with any fields."""
    if not isinstance(schema, dict):
        return
    if not {"$ref", "anyOf", "oneOf", "enum", "const", "type"} & set(schema):
        yield place
    more = schema.get("additionalProperties", "properties" not in schema)
    # Where an object has fields, more of them may come with a later version.
    if schema.get("type") == "object" and (more is True or more == {}):
        yield place
    if schema.get("type") == "array" and not {"items", "prefixItems"} & set(schema):
        yield place
    for word in ("items", "additionalProperties"):
        yield from open_places(f"{place}.{word}", schema.get(word))
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for part in schema.get(word, ()):
            yield from open_places(place, part)
    for name, field in schema.get("properties", {}).items():
        yield from open_places(f"{place}.{name}", field)


def test_no_type_permits_any_object_but_those_that_others_define() -> None:
    found = {place for name, schema in SCHEMAS.items() for place in open_places(name, schema)}
    for _, path, operation in operations():
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        for body in bodies:
            for kind, media in body.get("content", {}).items():
                if kind.endswith("json"):
                    found |= set(open_places(f"{path} {kind}", media.get("schema", {})))
        for parameter in operation.get("parameters", ()):
            found |= set(open_places(f"{path} {parameter['name']}", parameter["schema"]))
    assert found == set(OPEN_OBJECTS)
    for name in OPEN_OBJECTS:
        assert SCHEMAS[name]["description"]
        assert SCHEMAS[name]["externalDocs"]["url"]


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"type": "object"}, ["x"]),
        ({"type": "object", "additionalProperties": True}, ["x"]),
        ({"type": "object", "properties": {}, "additionalProperties": True}, ["x"]),
        ({"type": "object", "additionalProperties": {"type": "string"}}, []),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, []),
        ({"type": "object", "properties": {"a": {}}}, ["x.a"]),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, ["x"]),
        ({"type": "array", "items": {"type": "object"}}, ["x.items"]),
        ({"type": "array"}, ["x"]),
    ],
)
def test_an_open_object_is_found(schema: dict[str, Any], places: list[str]) -> None:
    assert list(open_places("x", schema)) == places


def test_each_audited_action_has_at_most_one_type_of_state() -> None:
    def found(action: str) -> list[str]:
        return [word for word in STATES if action == word or action.startswith(f"{word}.")]

    assert [action for action in ACTIONS if len(found(action)) > 1] == []
    assert {word for action in ACTIONS for word in found(action)} == set(STATES)
    kinds = SCHEMAS["AuditEntry"]["properties"]["before"]["anyOf"]
    names = {each.get("$ref", "").rpartition("/")[2] for each in kinds}
    assert names == {kind.__name__ for kind in STATES.values()} | {"LeftOut", ""}
