"""Programs read the description of events, and people the page: what both say is what is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.public_form import public_body
from libs.contracts.registry import ROUTES, WITHHELD
from libs.contracts.routes import Kind
from libs.contracts.subjects import types_of
from tools.events_page import comments, envelope, summary

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs/generated"
DESCRIBED: Mapping[str, Any] = json.loads((GENERATED / "asyncapi.json").read_text())
# npm's `@asyncapi/specs` holds AsyncAPI's own schemas; `make test-login` installs it.
PUBLISHED = ROOT / "tests/oidc_provider/node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"
KINDS = pytest.mark.parametrize("kind", [*types_of(Kind.EVENT), *types_of(Kind.TELEMETRY)])


def schema_of(name: str) -> dict[str, Any]:
    return {"components": DESCRIBED["components"], "$ref": f"#/components/schemas/{name}"}


def errors_of(instance: object, schema: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    return [error.message for error in validator.iter_errors(instance)]


@KINDS
def test_an_example_is_what_its_schemas_describe_and_what_services_read(
    kind: type[Message],
) -> None:
    channel = DESCRIBED["channels"][kind.__name__]
    (described,) = channel["messages"].values()
    (example,) = described["examples"]
    assert errors_of(example["payload"], schema_of(kind.__name__)) == []
    assert errors_of(example["headers"], schema_of("CloudEventHeaders")) == []
    subject, body = example["headers"]["ce-subject"], json.dumps(example["payload"]).encode()
    read = Envelope.decode(subject, example["headers"], body)
    sent = envelope(kind).message
    assert read.message == kind.model_validate_json(public_body(sent))
    # The schema is no formality: it refuses what has another type.
    field = next(iter(example["payload"]))
    assert errors_of({**example["payload"], field: {"x": 1}}, schema_of(kind.__name__)) != []


@KINDS
def test_a_channel_has_the_subject_with_its_parameters(kind: type[Message]) -> None:
    channel = DESCRIBED["channels"][kind.__name__]
    assert channel["address"] == ROUTES[kind].subject
    for name in channel["parameters"]:
        assert f"{{{name}}}" in channel["address"]


def test_the_page_has_every_event_with_when_it_is_published_and_an_example() -> None:
    page = (GENERATED / "events.md").read_text()
    for kind in types_of(Kind.EVENT):
        _, _, section = page.partition(f"\n## {kind.__name__}\n")
        section = section.partition("\n## ")[0]
        assert summary(kind), f"{kind.__name__} has a comment that says when it is published"
        for text in (summary(kind), f"`{ROUTES[kind].subject}`", "ce-id: ", "```text"):
            assert text in section, kind.__name__
        for name in set(kind.model_fields) - set(WITHHELD.get(kind, ())):
            assert f"| `{name}` |" in section, f"{kind.__name__}.{name}"


def test_fields_that_are_withheld_are_listed_once_and_described_nowhere_else() -> None:
    page = (GENERATED / "events.md").read_text()
    _, _, listed = page.partition("\n## What is left out\n")
    listed = listed.partition("\n## ")[0]
    for kind, fields in WITHHELD.items():
        described = DESCRIBED["components"]["schemas"][kind.__name__]["properties"]
        for name in fields:
            assert f"| `{kind.__name__}.{name}` |" in listed
            assert name not in described
    (environment,) = (line for line in listed.splitlines() if "`TaskSpec.env`" in line)
    for name in ("TaskSubmitted", "RunAssigned", "RunResumed"):
        assert name in environment


def test_fields_are_described_by_the_comments_of_their_declaration() -> None:
    found = comments()[("NodeChanged", "removed")]
    assert found == "The node was taken out of the inventory."
    described = DESCRIBED["components"]["schemas"]["NodeChanged"]["properties"]["removed"]
    assert described["description"] == found


@pytest.mark.login
def test_the_description_fits_the_schema_that_asyncapi_publishes() -> None:
    published = json.loads(PUBLISHED.read_text())
    validator = jsonschema.Draft7Validator(published)
    assert [error.message for error in validator.iter_errors(DESCRIBED)] == []
    # It refuses what is wrong.
    wrong = {**DESCRIBED, "operations": {"x": {"action": "shout"}}}
    assert list(validator.iter_errors(wrong)) != []
