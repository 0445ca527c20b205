"""Who may do what: one table of roles and routes; tokens, users, teams, the audit trail."""

from __future__ import annotations

import base64
import hashlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

import httpx
import pytest
from fastapi.routing import APIRoute

from libs.contracts import messages as m
from services.gateway.api.app import PREFIX, ROUTERS, application
from services.gateway.api.deps import action_of
from services.gateway.auth import token_hash
from services.gateway.browser_sessions import begin
from services.gateway.permissions import (
    Action,
    Reach,
    Role,
    RoleWord,
    Scope,
    ScopeWord,
    Visibility,
    VisibilityWord,
    reach_of,
)
from services.gateway.rows import LoginCodeRow, TokenRow, UserRow
from services.gateway.tables import TABLES
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    SEES_ALL,
    GatewayHarness,
    a_node,
    assigned,
    run_token,
)

# Bodies that routes accept.
NEW = {"command": ["x"]}
METRICS = {"samples": [{"values": {"loss": 1}}]}
SAVED = {"step": 1, "uri": "/c"}
POLICY = {"policy": "fifo"}
HOOK = {"url": "https://example.org/hook", "occasions": ["failed"], "user": "ann"}
POLICIES = {"groups": {"training": POLICY}}
VERIFIER = "v" * 43


@dataclass(frozen=True)
class Case:
    """One route. ``{task}`` is a running task of the user ann, ``{token}`` a token of ann's.

    ``ok``: the status for callers that the table of permissions admits. ``foreign``: for
    those who reach their own things alone, when it is ann's.
    """

    method: str
    path: str
    body: Any = None
    ok: int = 200
    foreign: int = 403
    # What the request does, where its query asks for more than the route's own action.
    action: Action | None = None

    @property
    def route(self) -> tuple[str, str]:
        """The method and the template of the path."""
        path = self.path.partition("?")[0]
        for shown, name in TEMPLATES.items():
            path = path.replace(shown, name)
        return self.method, path


TEMPLATES = {
    "{task}": "{task_id}",
    "{token}": "{token_id}",
    "{session}": "{session_id}",
    "/notifications/new": "/notifications/{name}",
    "/notifications/mine": "/notifications/{name}",
    "/nodes/n0": "/nodes/{node_id}",
    "/policies/training": "/policies/{group}",
    "/users/ann": "/users/{name}",
    "/users/gone": "/users/{name}",
    "/teams/empty": "/teams/{name}",
}
CASES = [
    Case("GET", "/v1/whoami", foreign=200),
    Case("POST", "/v1/tasks", NEW, 201),
    Case("POST", "/v1/tasks:batch", {"tasks": [NEW]}),
    Case("POST", "/v1/tasks:dry-run", NEW),
    Case("POST", "/v1/tasks/{task}/retry", None, 409),
    Case("POST", "/v1/tasks/{task}/continue", None, 409),
    Case("GET", "/v1/tasks/{task}/state"),
    Case("GET", "/v1/tasks"),
    Case("GET", "/v1/queue"),
    Case("GET", "/v1/tasks/{task}"),
    Case("PUT", "/v1/tasks/{task}/goal", {"goal": "pause"}, 202),
    Case("POST", "/v1/tasks/{task}/mode", {"mode": "debug"}, 202),
    Case("PUT", "/v1/tasks/{task}/priority", {"priority": "low"}, 202),
    Case("GET", "/v1/tasks/{task}/explain"),
    Case("GET", "/v1/tasks/{task}/runs"),
    Case("GET", "/v1/tasks/{task}/decisions"),
    Case("GET", "/v1/tasks/{task}/metrics"),
    Case("GET", "/v1/tasks/{task}/metrics?series=true"),
    Case("GET", "/v1/tasks/{task}/logs?list=1"),
    Case("GET", "/v1/tasks/{task}/logs/lines"),
    Case("GET", "/v1/events"),
    Case("GET", "/v1/nodes"),
    Case("GET", "/v1/nodes/n0"),
    Case("GET", "/v1/nodes/n0/metrics"),
    Case("GET", "/v1/utilization?node=n0"),
    Case("GET", "/v1/occupancy"),
    Case("GET", "/v1/groups"),
    Case("PUT", "/v1/nodes/n0/schedulable", {"schedulable": False}),
    Case("PUT", "/v1/nodes/n0/labels", {"set": {"a": "b"}}),
    Case("PUT", "/v1/nodes/n0/taints", {"set": ["a=b"]}),
    Case("GET", "/v1/quotas"),
    Case("GET", "/v1/quotas/explain"),
    Case("PUT", "/v1/quotas", {"group": "default", "unit": "gpus", "limit": 1}),
    Case("GET", "/v1/usage?user=ann"),
    Case("GET", "/v1/usage?team=vision", action=Action.READ_TEAM_USAGE),
    Case("GET", "/v1/notifications?user=ann"),
    Case("PUT", "/v1/notifications/new", HOOK),
    Case("GET", "/v1/notifications/mine/undelivered?user=ann"),
    Case("POST", "/v1/notifications/mine/replay?user=ann", None, 202),
    Case("DELETE", "/v1/notifications/mine?user=ann", None, 204),
    Case("GET", "/v1/abnormal"),
    Case("GET", "/v1/abnormal/rules"),
    Case("GET", "/v1/policies"),
    Case("PUT", "/v1/policies", POLICIES),
    Case("GET", "/v1/policies/training"),
    Case("PUT", "/v1/policies/training", POLICY),
    Case("DELETE", "/v1/policies/training"),
    Case("POST", "/v1/policies:dry-run", POLICIES),
    Case("GET", "/v1/users", foreign=200),
    Case("POST", "/v1/users", {"name": "eve"}, 201),
    Case("GET", "/v1/users/ann"),
    Case("PATCH", "/v1/users/ann", {"team": ""}),
    Case("DELETE", "/v1/users/gone", None, 204),
    Case("GET", "/v1/teams"),
    Case("POST", "/v1/teams", {"name": "t"}, 201),
    Case("PATCH", "/v1/teams/empty", {"default_priority": "low"}),
    Case("DELETE", "/v1/teams/empty", None, 204),
    Case("GET", "/v1/tokens", foreign=200),
    Case("POST", "/v1/tokens", {"user": "ann"}, 201),
    Case("DELETE", "/v1/tokens/{token}", None, 204, foreign=404),
    Case("GET", "/v1/session"),
    Case("POST", "/v1/session"),
    # These callers have tokens, not sessions.
    Case("DELETE", "/v1/session", None, 409, foreign=409),
    Case("GET", "/v1/sessions", foreign=200),
    Case("DELETE", "/v1/sessions/{session}", None, 204, foreign=404),
    Case("PUT", "/v1/users/ann/password", {"password": "a long password"}, 204),
    Case("GET", "/v1/login"),
    # Of a site without a login provider.
    Case("GET", "/v1/login/oidc", None, 404),
    Case("GET", "/v1/login/oidc/callback", None, 404),
    Case("GET", f"/v1/login/cli?challenge={'c' * 43}", None, 404),
    Case("POST", "/v1/login/token", {"code": "B", "verifier": VERIFIER}, 401),
    Case("POST", "/v1/login/password", {"user": "ann", "password": "wrong"}, 401),
    Case("GET", "/v1/audit"),
    Case("GET", "/v1/run"),
    Case("POST", "/v1/run/checkpoints", SAVED, 201),
    Case("POST", "/v1/run/ready", {"rank": 0}),
    Case("POST", "/v1/run/metrics", METRICS, 202),
    Case("POST", "/v1/run/yield", {}, 202),
    Case("GET", "/v1/run/state"),
    Case("PUT", "/v1/run/state", {"data": "eA=="}),
    Case("PUT", "/v1/run/priority", {"priority": "low"}, 202),
    Case("GET", "/v1/dead-letters?service=quota"),
    Case("POST", "/v1/dead-letters:replay", {"service": "quota"}, 202),
    Case("POST", "/v1/dead-letters:discard", {"service": "quota"}),
]
# In this order: what an administrator removes is not there any more.
PEOPLE = {"vic": Role.VIEWER, "bob": Role.USER, "ann": Role.USER, "olga": Role.OPERATOR}
TEAMS = {"vic": "vision", "ann": "vision"}


def actions() -> dict[tuple[str, str], Action]:
    """What each HTTP route does."""
    return {
        (method, f"{PREFIX}{route.path}"): action_of(route.endpoint)[0]
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }


def expected(case: Case, action: Action, who: str, role: Role) -> int:
    """What the table of permissions gives a user."""
    reach = reach_of(action, role, (), Visibility.ALL)
    if action is Action.KNOW_ONESELF:
        return case.ok
    if reach is Reach.NONE:
        return 403
    is_reached = reach is Reach.ALL or (who in TEAMS if reach is Reach.TEAM else who == "ann")
    return case.ok if is_reached else case.foreign


# What only reads is asked of one gateway; what changes something, of a gateway of its own.
READS = [case for case in CASES if case.method == "GET"]
CHANGES = [case for case in CASES if case.method != "GET"]


# The routes of passwords need them; wrong ones are not slowed here.
HARNESS = {
    "wrong_tokens_burst": 1000,
    "visibility": "all",
    "passwords": True,
    "password_tries_free": 100,
}


@pytest.mark.parametrize("harness", [HARNESS], indirect=True)
@pytest.mark.parametrize(
    "cases",
    [READS, *([case] for case in CHANGES)],
    ids=["reads", *(f"{case.method} {case.path}" for case in CHANGES)],
)
async def test_every_role_on_every_route(harness: GatewayHarness, cases: list[Case]) -> None:
    tokens = {
        name: await harness.member(name, TEAMS.get(name), role) for name, role in PEOPLE.items()
    }
    async with harness.client(tokens["ann"]) as ann:
        task = await harness.submitted(ann)
        (token,) = (await ann.get("/v1/tokens")).json()["items"]
        await ann.put("/v1/notifications/mine", json=HOOK)
    async with harness.client() as admin:
        await admin.post("/v1/teams", json={"name": "empty"})
        await admin.post("/v1/users", json={"name": "gone"})
        await admin.patch("/v1/users/gone", json={"disabled": True})
    # No process remembers a token of that user any more.
    harness.clock.advance(60)
    await harness.project(a_node("n0"), assigned(task["id"]))
    harness.others.nodes = {"n0"}
    harness.others.policies = [m.PolicyRecord(group="training", policy="fifo", document="{}")]
    harness.others.live_attempts = {task["id"]: 1}

    async with harness.gateway.ports.store.transaction() as tx:
        session = "session"
        await begin(tx, harness.settings, "secret", session, user="ann", address="", by="password")

    async def status(case: Case, shown: str | None) -> int:
        async with harness.client(shown) as client:
            path = case.path.format(task=task["id"], token=token["id"], session=session)
            reply = await client.request(case.method, path, json=case.body)
        if reply.status_code >= 400:
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.json()["detail"]
            assert reply.json()["status"] == reply.status_code
        if reply.status_code == 401:
            assert reply.headers["www-authenticate"].startswith("Bearer")
        return reply.status_code

    for case in cases:
        action = case.action or actions()[case.route]
        run = action is Action.BE_A_RUN
        found: dict[str, int] = {
            "nobody": await status(case, None),
            "false": await status(case, "swt_false"),
            "run": await status(case, run_token(task["id"])),
        }
        found |= {name: await status(case, shown) for name, shown in tokens.items()}
        found["admin"] = await status(case, ADMIN_TOKEN)
        wanted = {"nobody": 401, "false": 401, "run": case.ok if run else 403}
        if action is Action.LOG_IN:
            wanted = dict.fromkeys(wanted, case.ok)
        wanted |= {name: expected(case, action, name, role) for name, role in PEOPLE.items()}
        wanted["admin"] = 403 if run else case.ok
        if case.route == ("DELETE", "/v1/sessions/{session_id}"):
            # It ended with ann's request.
            wanted |= {"olga": 404, "admin": 404}
        if case.route == ("DELETE", "/v1/notifications/{name}"):
            # Ann's request removed it.
            wanted |= {"admin": 404}
        assert found == wanted, case


async def test_every_scope_on_every_route(harness: GatewayHarness) -> None:
    """Tokens of an administrator: one that may not is refused, one that may gets some answer."""
    harness.others.nodes = {"n0"}
    found: dict[tuple[str, str], set[str]] = {}
    async with AsyncExitStack() as clients:
        admin = await clients.enter_async_context(harness.client())
        task = await harness.submitted(admin)
        for scope in Scope:
            made = (await admin.post("/v1/tokens", json={"scopes": [scope.value]})).json()
            client = await clients.enter_async_context(harness.client(made["token"]))
            for case in CASES:
                path = case.path.format(task=task["id"], token="none", session="none")
                reply = await client.request(case.method, path, json=case.body)
                if reply.status_code != 403:
                    found.setdefault(case.route, set()).add(scope.value)
    every = {scope.value for scope in Scope}
    wanted = {
        route: every if action.value.scope is Scope.READ else {action.value.scope.value}
        for route, action in actions().items()
        if action is not Action.BE_A_RUN
    }
    assert found == wanted


def test_the_cases_have_every_route() -> None:
    assert {case.route for case in CASES} == set(actions())
    documented = {
        (method.upper(), path)
        for path, methods in application().openapi()["paths"].items()
        for method in methods
    }
    assert documented == set(actions())
    for router in ROUTERS:
        for route in router.routes:
            # WebSockets, too, name what they do.
            action_of(route.endpoint)  # pyright: ignore[reportAttributeAccessIssue]


def test_each_role_may_do_at_least_what_the_role_before_it_may() -> None:
    for action in Action:
        reaches = [action.value.reach(role) for role in Role]
        assert reaches == sorted(reaches), action


def test_schemas_list_every_role_scope_and_visibility() -> None:
    assert get_args(RoleWord) == tuple(Role)
    assert get_args(ScopeWord) == tuple(Scope)
    assert get_args(VisibilityWord) == tuple(Visibility)


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
    assert (me["user"], me["role"], me["team"]) == ("ann", "user", None)
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
async def test_a_user_has_a_bounded_number_of_tokens(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """Those that have expired do not count: robots make one for each job."""
    await admin.post("/v1/users", json={"name": "ann"})
    for _ in range(3):
        short = await admin.post("/v1/tokens", json={"user": "ann", "expires_in_seconds": 60})
        assert short.status_code == 201
        harness.clock.advance(61)
    statuses = [
        (await admin.post("/v1/tokens", json={"user": "ann"})).status_code for _ in range(3)
    ]
    assert statuses == [201, 201, 409]


@pytest.mark.parametrize("harness", [{"tokens_per_user_max": 2}], indirect=True)
async def test_a_login_counts_a_users_tokens_as_the_other_route_does(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """Every `shiftwork login` makes a token that expires: those of the past keep nobody out."""
    await admin.post("/v1/users", json={"name": "ann"})
    challenge = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest())
    statuses: list[int] = []
    for number in range(6):
        code = "BCDF" * 2 + "GHJ" + "KLMNPQ"[number]
        async with harness.gateway.ports.store.transaction() as tx:
            until = tx.now + timedelta(seconds=60)
            shown = challenge.rstrip(b"=").decode()
            tx.put(LoginCodeRow(token_hash(code), "ann", shown, "", until))
        body = {"code": code, "verifier": VERIFIER}
        statuses.append((await admin.post("/v1/login/token", json=body)).status_code)
        if number < 3:
            harness.clock.advance(harness.settings.login_token_seconds + 1)
    assert statuses == [201, 201, 201, 201, 201, 409]


@pytest.mark.parametrize("harness", [{"users_max": 3}], indirect=True)
async def test_there_is_a_bounded_number_of_users(admin: httpx.AsyncClient) -> None:
    """The first administrator is one of them."""
    statuses = [
        (await admin.post("/v1/users", json={"name": name})).status_code
        for name in ("ann", "bob", "eve")
    ]
    assert statuses == [201, 201, 409]
    assert (await admin.patch("/v1/users/ann", json={"disabled": True})).status_code == 200


@SEES_ALL
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
