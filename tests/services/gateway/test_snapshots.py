"""Answers to reads: their ETags, their place in the event log, and their description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from services.gateway.api.app import application
from tests.services.gateway.gateway_harness import GatewayHarness, a_node

# Documents whose fields are not the API's.
OPEN = {
    ("Event", "data"),
    ("Policy", "document"),
    ("Pod", "template"),
    ("PodBody", "template"),
    ("AuditEntry", "before"),
    ("AuditEntry", "after"),
}


async def test_an_answer_that_the_caller_has_is_not_sent_again(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.project(a_node("n0"))
    first = await admin.get("/v1/nodes")
    etag = first.headers["etag"]
    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        again = await admin.get("/v1/nodes", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == etag
        assert int(again.headers["x-shiftwork-position"]) >= 1
    assert (await admin.get("/v1/nodes", headers={"if-none-match": '"x"'})).status_code == 200
    await harness.project(a_node("n1"))
    changed = await admin.get("/v1/nodes", headers={"if-none-match": etag})
    assert (changed.status_code, changed.headers["etag"] != etag) == (200, True)


async def test_a_refusal_has_no_etag(admin: httpx.AsyncClient) -> None:
    reply = await admin.get("/v1/tasks/nobody", headers={"if-none-match": "*"})
    assert (reply.status_code, "etag" in reply.headers) == (404, False)


async def test_events_continue_from_the_position_of_an_answer(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.submitted(admin)
    nodes = await admin.get("/v1/nodes")
    position = nodes.headers["x-shiftwork-position"]
    assert nodes.json()["items"] == []
    await harness.project(a_node("n0"))
    page = (await admin.get(f"/v1/events?from={position}")).json()["items"]
    assert "node.changed" in [event["type"] for event in page]
    latest = (await admin.get("/v1/nodes")).headers["x-shiftwork-position"]
    assert (await admin.get(f"/v1/events?from={latest}")).json()["items"] == []


def test_every_field_of_every_answer_is_described() -> None:
    document = application().openapi()
    found = set(open_objects(document["components"]["schemas"]))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                json = answer.get("content", {}).get("application/json")
                if json is not None:
                    schema = json.get("schema")
                    assert schema, f"{method} {path} {status}: nothing says what it answers"
                    assert not is_open(schema), f"{method} {path} {status}"
    assert found == OPEN


def open_objects(schemas: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields of answers that hold any object."""
    for name, schema in schemas.items():
        for field, kind in schema.get("properties", {}).items():
            inner = kind.get("anyOf", [kind])
            if any(is_open(each) or is_open(each.get("items", {})) for each in inner):
                yield name, field


def is_open(schema: dict[str, Any]) -> bool:
    """True for an object of which nothing is known."""
    return schema.get("additionalProperties") is True and "properties" not in schema
