"""Who may do what: one table of roles and routes; tokens, users, teams, the audit trail."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway.auth import token_hash
from services.gateway.rows import TokenRow, UserRow
from services.gateway.tables import TABLES
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    a_node,
    assigned,
    run_token,
)

# Route, body, then the status for: nobody, a false token, a run token, another member, the
# owner (a member), the administrator. {task} is the owner's task, {token} the owner's token.
NEW = {"command": ["x"]}
METRICS = {"samples": [{"values": {"loss": 1}}]}
SAVED = {"step": 1, "uri": "/c"}
POLICY = {"policy": "fifo"}
POLICIES = {"groups": {"training": POLICY}}
MATRIX: list[tuple[str, str, Any, tuple[int, int, int, int, int, int]]] = [
    ("GET", "/v1/whoami", None, (401, 401, 403, 200, 200, 200)),
    ("POST", "/v1/tasks", NEW, (401, 401, 403, 201, 201, 201)),
    ("POST", "/v1/tasks:batch", {"tasks": [NEW]}, (401, 401, 403, 200, 200, 200)),
    ("POST", "/v1/tasks:dry-run", NEW, (401, 401, 403, 200, 200, 200)),
    # The task is not over: to others it is not theirs, to its owner its name is taken.
    ("POST", "/v1/tasks/{task}/retry", None, (401, 401, 403, 403, 409, 409)),
    ("POST", "/v1/tasks/{task}/continue", None, (401, 401, 403, 403, 409, 409)),
    ("GET", "/v1/tasks/{task}/state", None, (401, 401, 403, 403, 200, 200)),
    ("GET", "/v1/tasks", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/queue", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/tasks/{task}", None, (401, 401, 403, 200, 200, 200)),
    ("PUT", "/v1/tasks/{task}/goal", {"goal": "pause"}, (401, 401, 403, 403, 202, 202)),
    ("POST", "/v1/tasks/{task}/mode", {"mode": "debug"}, (401, 401, 403, 403, 202, 202)),
    ("PUT", "/v1/tasks/{task}/priority", {"priority": "low"}, (401, 401, 403, 403, 202, 202)),
    ("GET", "/v1/tasks/{task}/explain", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/tasks/{task}/runs", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/tasks/{task}/decisions", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/tasks/{task}/metrics", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/tasks/{task}/logs?list=1", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/events", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/nodes", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/nodes/n0", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/occupancy", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/groups", None, (401, 401, 403, 200, 200, 200)),
    (
        "PUT",
        "/v1/nodes/n0/schedulable",
        {"schedulable": False},
        (401, 401, 403, 403, 403, 200),
    ),
    ("PUT", "/v1/nodes/n0/labels", {"set": {"a": "b"}}, (401, 401, 403, 403, 403, 200)),
    ("PUT", "/v1/nodes/n0/taints", {"set": ["a=b"]}, (401, 401, 403, 403, 403, 200)),
    ("GET", "/v1/quotas", None, (401, 401, 403, 200, 200, 200)),
    ("GET", "/v1/quotas/explain", None, (401, 401, 403, 200, 200, 200)),
    (
        "PUT",
        "/v1/quotas",
        {"group": "default", "unit": "gpus", "limit": 1},
        (401, 401, 403, 403, 403, 200),
    ),
    ("GET", "/v1/usage?user=ann", None, (401, 401, 403, 403, 200, 200)),
    ("GET", "/v1/policies", None, (401, 401, 403, 200, 200, 200)),
    ("PUT", "/v1/policies", POLICIES, (401, 401, 403, 403, 403, 200)),
    ("GET", "/v1/policies/training", None, (401, 401, 403, 200, 200, 200)),
    ("PUT", "/v1/policies/training", POLICY, (401, 401, 403, 403, 403, 200)),
    ("DELETE", "/v1/policies/training", None, (401, 401, 403, 403, 403, 200)),
    ("POST", "/v1/policies:dry-run", POLICIES, (401, 401, 403, 403, 403, 200)),
    ("GET", "/v1/users", None, (401, 401, 403, 200, 200, 200)),
    ("POST", "/v1/users", {"name": "eve"}, (401, 401, 403, 403, 403, 201)),
    ("GET", "/v1/users/ann", None, (401, 401, 403, 403, 200, 200)),
    ("PATCH", "/v1/users/ann", {"role": "member"}, (401, 401, 403, 403, 403, 200)),
    ("GET", "/v1/teams", None, (401, 401, 403, 200, 200, 200)),
    ("POST", "/v1/teams", {"name": "t"}, (401, 401, 403, 403, 403, 201)),
    ("DELETE", "/v1/teams/empty", None, (401, 401, 403, 403, 403, 204)),
    ("GET", "/v1/tokens", None, (401, 401, 403, 200, 200, 200)),
    ("POST", "/v1/tokens", {"user": "ann"}, (401, 401, 403, 403, 403, 201)),
    ("DELETE", "/v1/tokens/{token}", None, (401, 401, 403, 404, 204, 204)),
    ("GET", "/v1/audit", None, (401, 401, 403, 403, 403, 200)),
    ("GET", "/v1/run", None, (401, 401, 200, 403, 403, 403)),
    ("POST", "/v1/run/checkpoints", SAVED, (401, 401, 201, 403, 403, 403)),
    ("POST", "/v1/run/ready", {"rank": 0}, (401, 401, 200, 403, 403, 403)),
    ("POST", "/v1/run/metrics", METRICS, (401, 401, 202, 403, 403, 403)),
    ("POST", "/v1/run/yield", {}, (401, 401, 202, 403, 403, 403)),
    ("GET", "/v1/run/state", None, (401, 401, 200, 403, 403, 403)),
    ("PUT", "/v1/run/state", {"data": "eA=="}, (401, 401, 200, 403, 403, 403)),
    ("PUT", "/v1/run/priority", {"priority": "low"}, (401, 401, 202, 403, 403, 403)),
    ("GET", "/v1/dead-letters?service=quota", None, (401, 401, 403, 403, 403, 200)),
    ("POST", "/v1/dead-letters:replay", {"service": "quota"}, (401, 401, 403, 403, 403, 202)),
    ("POST", "/v1/dead-letters:discard", {"service": "quota"}, (401, 401, 403, 403, 403, 200)),
    ("GET", "/v1/openapi.json", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/docs", None, (200, 200, 200, 200, 200, 200)),
]


@pytest.mark.parametrize(("method", "path", "body", "statuses"), MATRIX)
async def test_every_role_on_every_route(
    harness: GatewayHarness, method: str, path: str, body: Any, statuses: tuple[int, ...]
) -> None:
    owners = await harness.member("ann")
    async with harness.client(owners) as ann:
        task = await harness.submitted(ann)
        (token,) = (await ann.get("/v1/tokens")).json()["items"]
    async with harness.client() as admin:
        await admin.post("/v1/teams", json={"name": "empty"})
    await harness.project(a_node("n0"), assigned(task["id"]))
    harness.others.nodes = {"n0"}
    harness.others.policies = [m.PolicyRecord(group="training", policy="fifo", document="{}")]
    harness.others.live_attempts = {task["id"]: 1}
    tokens = (
        None,
        "swt_false",
        run_token(task["id"]),
        await harness.member("bob"),
        owners,
        ADMIN_TOKEN,
    )
    found: list[int] = []
    for shown in tokens:
        async with harness.client(shown) as client:
            reply = await client.request(
                method, path.format(task=task["id"], token=token["id"]), json=body
            )
        found.append(reply.status_code)
        if reply.status_code >= 400:
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json()["detail"]
            assert reply.json()["status"] == reply.status_code
        if reply.status_code == 401:
            assert reply.headers["www-authenticate"].startswith("Bearer")
    # A revoked token of one's own is no token any more: the administrator comes last.
    assert tuple(found) == statuses


def test_the_table_has_every_route(tmp_path: Any) -> None:
    harness = GatewayHarness(tmp_path)

    app = harness.new_gateway().app
    assert app is not None
    documented = {
        (method.upper(), path)
        for path, methods in app._app.openapi()["paths"].items()  # pyright: ignore[reportAttributeAccessIssue]
        for method in methods
    }
    covered = {
        (
            method,
            path.partition("?")[0]
            .replace("{task}", "{task_id}")
            .replace("{token}", "{token_id}")
            .replace("/nodes/n0", "/nodes/{node_id}")
            .replace("/policies/training", "/policies/{group}")
            .replace("/users/ann", "/users/{name}")
            .replace("/teams/empty", "/teams/{name}"),
        )
        for method, path, _, _ in MATRIX
    }
    assert documented == covered - {("GET", "/v1/openapi.json"), ("GET", "/docs")}


async def test_a_forged_run_token_is_refused(harness: GatewayHarness) -> None:
    genuine = run_token("tt", 1)
    for forged in (
        genuine[:-1] + ("0" if genuine[-1] != "0" else "1"),
        genuine.replace("tt.1", "tt.2"),
        "srt_tt.1.",
        "srt_",
        genuine.replace("tt.1", "tt.01"),
    ):
        async with harness.client(forged) as client:
            assert (await client.get("/v1/run")).status_code == 401


async def test_a_token_is_shown_once_and_only_its_hash_is_kept(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await admin.post("/v1/users", json={"name": "ann"})
    made = (await admin.post("/v1/tokens", json={"user": "ann", "name": "laptop"})).json()
    secret = made["token"]
    rows = harness.database.rows(TABLES, TokenRow)
    assert token_hash(secret) in rows
    assert secret not in str(rows)
    assert secret not in (await admin.get("/v1/tokens")).text
    assert secret not in (await admin.get("/v1/audit")).text
    async with harness.client(secret) as ann:
        me = (await ann.get("/v1/whoami")).json()
    assert (me["user"], me["role"], me["team"]) == ("ann", "member", None)
    assert me["tasks_run_as"] is None
    assert me["token"]["id"] == made["id"]


async def test_a_lifetime_beyond_the_limit_is_refused_in_seconds(admin: httpx.AsyncClient) -> None:
    body = {"user": "admin", "expires_in_seconds": 9e12}
    (error,) = (await admin.post("/v1/tokens", json=body)).json()["errors"]
    assert error["message"] == "is more than 3200000000 seconds"
    assert error["fix"] == "give 3200000000 seconds or less"


async def test_a_token_expires(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    await admin.post("/v1/users", json={"name": "ann"})
    made = await admin.post("/v1/tokens", json={"user": "ann", "expires_in_seconds": 60})
    async with harness.client(made.json()["token"]) as ann:
        assert (await ann.get("/v1/whoami")).status_code == 200
        harness.clock.advance(61)
        reply = await ann.get("/v1/whoami")
    assert reply.status_code == 401
    assert "expired" in reply.json()["detail"]


async def test_revoked_tokens_and_disabled_users_are_refused_at_once(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    assert (await ann.get("/v1/whoami")).status_code == 200
    await admin.patch("/v1/users/ann", json={"disabled": True})
    reply = await ann.get("/v1/whoami")
    assert (reply.status_code, "disabled" in reply.json()["detail"]) == (401, True)
    await admin.patch("/v1/users/ann", json={"disabled": False})
    assert (await ann.get("/v1/whoami")).status_code == 200
    (token,) = (await ann.get("/v1/tokens")).json()["items"]
    await admin.delete(f"/v1/tokens/{token['id']}")
    reply = await ann.get("/v1/whoami")
    assert (reply.status_code, "revoked" in reply.json()["detail"]) == (401, True)


async def test_another_process_forgets_a_revoked_token_in_seconds(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    """This process has not made the change itself: its memory of the token ends by time."""
    assert (await ann.get("/v1/whoami")).status_code == 200
    rows = harness.database.schema("gateway").table(TABLES.shape(UserRow)).rows
    rows["ann"] = UserRow("ann", "member", "", disabled=True, created_at=rows["ann"].created_at)
    harness.clock.advance(harness.settings.auth_cache_seconds + 1)
    assert (await ann.get("/v1/whoami")).status_code == 401


async def test_the_first_admin_cannot_be_shut_out(admin: httpx.AsyncClient) -> None:
    assert (await admin.get("/v1/users/admin")).json()["role"] == "admin"
    for change in ({"disabled": True}, {"role": "member"}):
        assert (await admin.patch("/v1/users/admin", json=change)).status_code == 409


async def test_users_and_teams(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    assert (await admin.post("/v1/teams", json={"name": "vision"})).status_code == 201
    assert (await admin.post("/v1/teams", json={"name": "vision"})).status_code == 409
    made = await admin.post("/v1/users", json={"name": "ann", "team": "vision"})
    assert (made.status_code, made.json()["team"]) == (201, "vision")
    assert (await admin.post("/v1/users", json={"name": "ann"})).status_code == 409
    unknown = await admin.post("/v1/users", json={"name": "eve", "team": "nobody"})
    assert unknown.status_code == 422
    assert unknown.json()["errors"][0]["field"] == "team"
    bad = await admin.post("/v1/users", json={"name": "Not A Name"})
    assert (bad.status_code, bad.json()["errors"][0]["field"]) == (422, "name")
    assert (await admin.delete("/v1/teams/vision")).status_code == 409
    assert (await admin.patch("/v1/users/ann", json={"team": ""})).json()["team"] is None
    assert (await admin.delete("/v1/teams/vision")).status_code == 204
    assert (await admin.delete("/v1/teams/vision")).status_code == 404
    assert (await admin.post("/v1/tokens", json={"user": "nobody"})).status_code == 404


async def test_the_team_of_the_user_travels_with_the_task(harness: GatewayHarness) -> None:
    async with harness.client(await harness.member("ann", team="vision")) as ann:
        assert (await harness.submitted(ann))["team"] == "vision"


@pytest.mark.parametrize("harness", [{"tokens_per_user_max": 2}], indirect=True)
async def test_a_user_has_a_bounded_number_of_tokens(admin: httpx.AsyncClient) -> None:
    await admin.post("/v1/users", json={"name": "ann"})
    statuses = [
        (await admin.post("/v1/tokens", json={"user": "ann"})).status_code for _ in range(3)
    ]
    assert statuses == [201, 201, 409]


@pytest.mark.parametrize("harness", [{"users_max": 3}], indirect=True)
async def test_there_is_a_bounded_number_of_users(admin: httpx.AsyncClient) -> None:
    """The first administrator is one of them."""
    statuses = [
        (await admin.post("/v1/users", json={"name": name})).status_code
        for name in ("ann", "bob", "eve")
    ]
    assert statuses == [201, 201, 409]
    assert (await admin.patch("/v1/users/ann", json={"disabled": True})).status_code == 200


async def test_every_change_and_every_refusal_is_in_the_audit_trail(
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
) -> None:
    task = await harness.submitted(ann, name="mine")
    await ann.post("/v1/tasks", json={"command": ["x"], "name": "bad name"})
    await bob.put(f"/v1/tasks/{task['id']}/goal", json={"goal": "stop"})
    await ann.put(f"/v1/tasks/{task['id']}/goal", json={"goal": "stop"})
    await ann.put("/v1/quotas", json={"limit": 1})
    trail = (await admin.get("/v1/audit?limit=5")).json()["items"]
    reply = [(each["who"], each["action"], each["outcome"]) for each in reversed(trail)]
    assert reply == [
        ("ann", "task.submit", "done"),
        ("ann", "task.submit", "invalid"),
        ("bob", "task.goal.stop", "forbidden"),
        ("ann", "task.goal.stop", "done"),
        ("ann", "quota.set", "forbidden"),
    ]
    assert trail[-1]["target"] == task["id"]
