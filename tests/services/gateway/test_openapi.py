"""/v1/openapi.json: operation ids, descriptions, errors and examples of every route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from services.gateway.api.app import application
from services.gateway.api.description import names_of

DOCUMENT = application().openapi()
SCHEMAS = DOCUMENT["components"]["schemas"]


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
