"""What holds for every route: errors in one shape, bounded bodies, a description that is true."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter
from starlette.types import Receive, Scope, Send

from libs.contracts import messages as m
from libs.service import observability
from services.gateway.api import (
    audit_shapes,
    node_shapes,
    people_shapes,
    quota_shapes,
    shapes,
    signal_shapes,
)
from services.gateway.api.deps import PARTS, answer_page
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    a_node,
    assigned,
    exited,
    preemption,
    state,
)


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nothing", 404, "not-found"),
        ("GET", "/", 404, "not-found"),
        ("DELETE", "/v1/tasks", 405, "method-not-allowed"),
        ("POST", "/v1/tasks/t/goal", 405, "method-not-allowed"),
    ],
)
async def test_what_the_framework_refuses_is_a_problem_too(
    admin: httpx.AsyncClient, method: str, path: str, status: int, kind: str
) -> None:
    reply = await admin.request(method, path)
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/problem+json"
    assert (reply.json()["type"], reply.json()["status"]) == (kind, status)
    assert "see /docs" in reply.json()["detail"]


@pytest.mark.parametrize(
    "harness", [{"body_bytes_max": 2000, "batch_bytes_max": 4000}], indirect=True
)
async def test_bodies_are_bounded(admin: httpx.AsyncClient) -> None:
    body = {"command": ["x" * 3000]}
    for path, sent, status in (
        ("/v1/tasks", {"command": ["x"]}, 201),
        ("/v1/tasks", body, 413),
        ("/v1/tasks:batch", {"tasks": [body]}, 200),
        ("/v1/tasks:batch", {"tasks": [body, body]}, 413),
    ):
        reply = await admin.post(path, json=sent)
        assert reply.status_code == status
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["type"] == "too-large"


@pytest.mark.parametrize("harness", [{"body_bytes_max": 2000}], indirect=True)
async def test_a_body_without_a_length_is_bounded_too(admin: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    reply = await admin.post(
        "/v1/tasks", content=endless(), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 413


async def test_a_body_of_another_type_is_refused(admin: httpx.AsyncClient) -> None:
    reply = await admin.post("/v1/tasks", content=b"name=x", headers={"content-type": "text/plain"})
    assert reply.status_code == 422
    assert "application/json" in reply.json()["errors"][0]["fix"]


async def test_answers_may_not_be_framed_or_sniffed(admin: httpx.AsyncClient) -> None:
    for path in ("/v1/tasks", "/docs", "/v1/nothing"):
        headers = (await admin.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


async def test_a_defect_is_a_problem_without_its_details(harness: GatewayHarness) -> None:
    assert harness.gateway.app is not None
    transport = httpx.ASGITransport(app=harness.gateway.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
        inner = harness.gateway.app._app  # pyright: ignore[reportAttributeAccessIssue]

        async def broken(scope: Scope, receive: Receive, send: Send) -> None:
            await inner({**scope, PARTS: None}, receive, send)

        harness.gateway.app._app = broken  # pyright: ignore[reportAttributeAccessIssue]
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        reply = await client.get("/v1/tasks", headers=headers)
    assert reply.status_code == 500
    assert reply.json()["type"] == "internal"
    assert "NoneType" not in reply.text


# What somebody needs who has no token yet.
WITHOUT_TOKEN = {
    "/v1/login",
    "/v1/login/cli",
    "/v1/login/oidc",
    "/v1/login/oidc/callback",
    "/v1/login/password",
    "/v1/login/token",
}


async def test_the_description_names_every_error_and_every_route(admin: httpx.AsyncClient) -> None:
    reply = (await admin.get("/v1/openapi.json")).json()
    assert reply["info"]["title"] == "Shiftwork"
    for path, methods in reply["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], f"{method} {path} has no description"
            statuses = {status[0] for status in operation["responses"]}
            assert "4" in statuses, f"{method} {path} names no error"
            assert bool(operation["security"]) != (path in WITHOUT_TOKEN), f"{method} {path}"
    page = await admin.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    for path in reply["paths"]:
        assert path in page.text
    assert "Idempotency-Key" in page.text


async def test_answers_match_the_description(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """Every field of every documented shape, and no other, with its type."""
    task = await harness.submitted(admin, env={"A": "1"})
    tid = task["id"]
    saved = m.Checkpoint(no=1, attempt=1, step=1, uri="/c", saved_at=at(5))
    await harness.project(
        a_node("n0"),
        assigned(tid),
        m.RunDelayed(task_id=tid, attempt=1, ranks=1, detail="why", noted_at=at(1)),
        m.RunStarted(task_id=tid, attempt=1, started_at=at(2)),
        preemption(tid),
        m.CheckpointSaved(task_id=tid, attempt=1, checkpoint=saved),
        exited(tid),
        state(tid, m.TaskState.SUCCEEDED, 4, attempt=1, checkpoint=saved),
    )
    await harness.member("ann", team="vision")
    documented: list[tuple[str, Any]] = [
        (f"/v1/tasks/{tid}", shapes.Task),
        ("/v1/tasks", shapes.TaskPage),
        (f"/v1/tasks/{tid}/runs", shapes.RunPage),
        (f"/v1/tasks/{tid}/explain", shapes.Explanation),
        ("/v1/nodes", node_shapes.NodePage),
        ("/v1/nodes/n0", node_shapes.Node),
        ("/v1/events", shapes.EventPage),
        ("/v1/groups", node_shapes.GroupPage),
        ("/v1/quotas", quota_shapes.QuotaPage),
        (f"/v1/tasks/{tid}/decisions", shapes.DecisionPage),
        (f"/v1/tasks/{tid}/metrics", signal_shapes.MetricsPage),
        (f"/v1/tasks/{tid}/logs?list=1", shapes.KeptOutputs),
        ("/v1/whoami", people_shapes.WhoAmI),
        ("/v1/users", people_shapes.UserPage),
        ("/v1/users/admin", people_shapes.UserDetail),
        ("/v1/teams", people_shapes.TeamPage),
        ("/v1/tokens", people_shapes.TokenPage),
        ("/v1/audit", audit_shapes.AuditPage),
    ]
    for path, shape in documented:
        reply = (await admin.get(path)).json()
        check(shape, reply, path)
    check(shapes.Task, task, "POST /v1/tasks")
    refused = (await admin.get("/v1/tasks/nobody")).json()
    check(shapes.Problem, refused, "a problem")


def check(shape: Any, reply: Any, path: str) -> None:
    """Exactly the shape: TypedDicts forbid what they do not name."""
    adapter = TypeAdapter(shape)
    parsed = adapter.validate_python(reply, strict=True)
    assert parsed == reply, path  # what a shape does not name would be dropped


def test_shapes_drop_what_they_do_not_name() -> None:
    """The check above can fail."""
    with pytest.raises(AssertionError):
        check(shapes.Revision, {"task": "t", "revision": 1, "more": 2}, "")


def test_a_row_that_cannot_be_shown_is_counted_where_the_alert_sees_it() -> None:
    def view(row: int) -> dict[str, float]:
        return {"share": 1 / row}

    counter = observability.UNREADABLE_ROWS.labels("gateway", "answer")
    before = counter._value.get()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    page = json.loads(bytes(answer_page([1, 0], view, str, None).body))
    assert page["items"] == [{"share": 1.0}]
    assert [each["id"] for each in page["unreadable"]] == ["0"]
    assert counter._value.get() == before + 1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
