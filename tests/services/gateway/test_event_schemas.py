"""Each type of event has a type of its own in the OpenAPI document, which has every field of its
messages as the gateway shows them."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from shiftwork.client import types

from libs.contracts import messages as m
from libs.contracts.base import Message
from services.gateway import views
from services.gateway.eventlog import TYPES
from services.gateway.rows import EventRow
from tests.kit.clock import at
from tests.kit.example_messages import example_of
from tests.kit.message_strategies import of_message
from tests.services.gateway.gateway_harness import (
    GatewayHarness,
    a_node,
    assigned,
    exited,
    preemption,
    state,
)
from tests.services.gateway.served_schemas import SCHEMAS, exact


def shown(name: str, message: Message) -> Any:
    """An event as clients receive it."""
    task = getattr(message, "task_id", "")
    row = EventRow(
        position=1,
        type=name,
        fact="",
        task_id=task,
        attempt=getattr(message, "attempt", 0),
        at=at(1),
        data=views.plain(message),
        bytes_before=0,
    )
    return orjson.loads(orjson.dumps(views.event(row)))


@pytest.mark.parametrize("name", TYPES)
def test_an_event_is_valid_against_the_schema_of_its_type_alone(name: str) -> None:
    kind = TYPES[name]

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(of_message(kind))
    def any_message(message: Message) -> None:
        exact(f"{kind.__name__}Event").validate(shown(name, message))

    event = shown(name, example_of(kind))
    exact("Event").validate(event)
    assert SCHEMAS["Event"]["discriminator"]["mapping"][name].endswith(f"/{kind.__name__}Event")
    any_message()


@pytest.mark.parametrize("name", TYPES)
def test_a_field_that_the_schema_lacks_is_found(name: str) -> None:
    event = shown(name, example_of(TYPES[name]))
    assert not exact("Event").is_valid({**event, "data": {**event["data"], "colour": "red"}})
    some = next(iter(event["data"]))
    rest = {field: value for field, value in event["data"].items() if field != some}
    assert not exact("Event").is_valid({**event, "data": rest})
    other = "run.started" if name != "run.started" else "run.exited"
    assert not exact("Event").is_valid({**event, "type": other})


@pytest.mark.parametrize("name", TYPES)
def test_a_client_has_a_type_for_each_type_of_event(name: str) -> None:
    """The client library's types follow the document: ``type`` decides what ``data`` is."""
    kind = TYPES[name]
    event = getattr(types, f"{kind.__name__}Event")
    assert event in get_args(types.Event)
    assert event.__annotations__["type"].__forward_arg__ == f"Literal[{name!r}]"
    assert event.__annotations__["data"].__forward_arg__ == f"{kind.__name__}Data"
    data = getattr(types, f"{kind.__name__}Data")
    assert set(data.__annotations__) == set(views.shown_fields(kind))


def test_a_client_can_read_a_type_of_event_that_it_does_not_know() -> None:
    hints = get_type_hints(types.OtherEvent)
    assert (hints["type"], get_origin(hints["data"])) == (str, dict)
    assert set(hints) == set(SCHEMAS["RunExitedEvent"]["properties"])


async def test_served_events_are_valid_against_the_served_document(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(admin))["id"]
    queued = state(task, m.TaskState.QUEUED, 1)
    await harness.project(a_node("n0"), assigned(task), preemption(task), exited(task), queued)
    page = (await admin.get("/v1/events")).raise_for_status().json()
    document = (await admin.get("/v1/openapi.json")).raise_for_status().json()
    assert document["components"]["schemas"]["Event"] == SCHEMAS["Event"]
    exact("EventPage").validate(page)
    found = {event["type"] for event in page["items"]}
    assert {"task.submitted", "node.changed", "run.assigned", "run.exited"} <= found
