"""Filters of lists: a name or a word that nothing has is an error, and no empty list."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from libs.contracts import messages as m
from libs.contracts.wording import SUGGESTED_MAX
from libs.store.port import Tx
from services.gateway.api.app import PREFIX, ROUTERS
from services.gateway.api.deps import action_of
from services.gateway.audit import ACTIONS
from services.gateway.known_names import NEIGHBOURS_MAX, names_near
from services.gateway.permissions import Action
from services.gateway.rows import NodeRow, UserRow
from tests.kit.comparisons import counted_comparisons
from tests.services.gateway.gateway_harness import GatewayHarness, a_node, assigned, run_token

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [
        ("/v1/tasks?owner=ahn", "owner", "did you mean ann?"),
        ("/v1/tasks?team=visoin", "team", "did you mean vision?"),
        ("/v1/tasks?group=defualt", "group", "did you mean default?"),
        ("/v1/tasks?priority=hgih", "priority", "did you mean high?"),
        ("/v1/queue?group=defualt", "group", "did you mean default?"),
        ("/v1/usage?user=ahn", "user", "did you mean ann?"),
        ("/v1/usage?team=visoin", "team", "did you mean vision?"),
        ("/v1/usage?group=defualt", "group", "did you mean default?"),
        ("/v1/usage?priority=hgih", "priority", "did you mean high?"),
        ("/v1/usage?outcome=succeded", "outcome", "did you mean succeeded?"),
        ("/v1/audit?who=ahn", "who", "did you mean ann?"),
        ("/v1/audit?action=qouta", "action", "did you mean quota?"),
        ("/v1/audit?outcome=forbiden", "outcome", "did you mean forbidden?"),
        ("/v1/audit?outcome=denied", "outcome", "did you mean forbidden?"),
        ("/v1/tokens?user=ahn", "user", "did you mean ann?"),
    ],
)
async def test_a_misspelt_filter_is_an_error_with_the_name_that_is_near(
    harness: GatewayHarness, admin: httpx.AsyncClient, path: str, field: str, hint: str
) -> None:
    await harness.member("ann", team="vision")
    await harness.project(a_node("n0"))
    reply = await admin.get(path)
    assert reply.status_code in {404, 422}, reply.text
    (error,) = reply.json()["errors"]
    assert (error["field"], hint in error["fix"]) == (field, True), error


# A misspelt name for each filter by a user, a team or a group, and the name that is near.
MISSPELT = {
    **dict.fromkeys(("owner", "user", "who"), ("ahn", "ann")),
    "team": ("visoin", "vision"),
    "group": ("defualt", "default"),
}


async def test_no_route_takes_a_misspelt_user_team_or_group_for_one_that_has_nothing(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("ann", team="vision")
    await harness.project(a_node("n0"))
    described = (await admin.get("/v1/openapi.json")).json()["paths"]
    checked: list[tuple[str, str]] = []
    for path, methods in described.items():
        for each in methods.get("get", {}).get("parameters", ()):
            name = each["name"]
            if each["in"] != "query" or name not in MISSPELT:
                continue
            wrong, right = MISSPELT[name]
            followed = [f"{path}?{name}={wrong}"]
            if path == "/v1/events":
                followed.append(f"{path}?follow=true&{name}={wrong}")
            for url in followed:
                reply = await admin.get(url)
                assert reply.status_code in {404, 422}, (url, reply.text)
                (error,) = reply.json()["errors"]
                assert (error["field"], f"did you mean {right}?" in error["fix"]) == (name, True)
            good = await admin.get(f"{path}?{name}={right}")
            # The user is there; a notification that is called as the path's template is not.
            expected = 404 if path == "/v1/notifications/{name}/undelivered" else 200
            assert good.status_code == expected, (path, name, good.text)
            checked.append((path, name))
    assert len(checked) > 15


def routes() -> list[APIRoute]:
    found = [each for router in ROUTERS for each in router.routes if isinstance(each, APIRoute)]
    assert len(found) > 60
    return found


async def test_a_query_parameter_that_a_route_does_not_have_is_an_error(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """On every route, with the name that is near; the provider's own names are accepted where it
    sends browsers back to."""
    described = (await admin.get("/v1/openapi.json")).json()["paths"]
    task = await harness.submitted(admin)
    await harness.project(assigned(task["id"]))
    near = 0
    async with harness.client(run_token(task["id"], 1)) as run:
        for route in routes():
            path = re.sub(r"\{\w+\}", "x", f"{PREFIX}{route.path}")
            client = run if action_of(route.endpoint)[0] is Action.BE_A_RUN else admin
            for method in route.methods:
                described_at = described[f"{PREFIX}{route.path}"][method.lower()]
                names = [
                    each["name"]
                    for each in described_at.get("parameters", ())
                    if each["in"] == "query"
                ]
                for name in ["colour", *(f"{each}{each[-1]}" for each in names)]:
                    reply = await client.request(method, f"{path}?{name}=SECRET")
                    if route.path == "/login/oidc/callback":
                        assert "query parameter" not in reply.text
                        continue
                    assert reply.status_code == 422, (method, path, reply.text)
                    assert reply.json()["errors"][0]["field"] == name
                    assert "SECRET" not in reply.text
                    near += f"did you mean {name[:-1]}?" in reply.json()["errors"][0]["fix"]
    assert near > 40


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_comparisons(monkeypatch)


async def test_few_query_names_of_strangers_are_compared_and_long_queries_are_refused_unread(
    harness: GatewayHarness, compared: list[int]
) -> None:
    async with harness.client(token=None) as stranger:
        for path in ("/v1/login", "/v1/login/oidc", "/v1/login/oidc/callback", "/v1/whoami"):
            long = await stranger.get(f"{path}?" + "&".join(f"limi{n}" for n in range(7000)))
            assert (long.status_code, long.json()["type"]) == (414, "uri-too-long"), path
            many = await stranger.get(f"{path}?" + "&".join(f"a{n}" for n in range(501)))
            assert (many.status_code, many.json()["type"]) == (414, "uri-too-long"), path
        long = await stranger.get("/v1/" + "a" * 16_385)
        assert long.status_code == 414
    assert compared == []
    async with harness.client() as admin:
        reply = await admin.get("/v1/tasks?" + "&".join(f"limi{n}" for n in range(500)))
    assert (reply.status_code, len(reply.json()["errors"])) == (422, 50)
    assert "did you mean limit?" in reply.json()["detail"]
    assert "(and 499 more)" in reply.json()["detail"]
    assert len(compared) == SUGGESTED_MAX


@pytest.mark.parametrize("path", ["/v1/tasks?owner=", "/v1/quotas?user=", "/v1/users/"])
async def test_a_misspelt_name_is_compared_with_few_of_many_users(
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    compared: list[int],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    async with harness.gateway.ports.store.transaction() as tx:
        for n in range(1000):
            tx.put(UserRow(f"user-{n:04}", "user", "", False, tx.now))
    read = 0
    select = Tx.select

    async def counted(tx: Tx, *query: Any, **options: Any) -> Any:
        nonlocal read
        rows = await select(tx, *query, **options)
        read += sum(isinstance(row, UserRow) for row in rows)
        return rows

    monkeypatch.setattr(Tx, "select", counted)
    reply = await admin.get(f"{path}user-05000")
    assert "did you mean user-0500?" in reply.json()["errors"][0]["fix"], reply.text
    assert 0 < sum(compared) <= 2 * NEIGHBOURS_MAX
    assert 0 < read <= 2 * NEIGHBOURS_MAX + 3


async def test_a_policy_with_many_unknown_names_costs_few_comparisons(
    harness: GatewayHarness, admin: httpx.AsyncClient, compared: list[int]
) -> None:
    await harness.member("ann")
    names = {f"users[{n}]": f"an{n}" for n in range(200)}
    harness.others.policy_set = m.SetPolicyReply(users=names)
    reply = await admin.put("/v1/policies", content="groups: {}")
    assert (reply.status_code, len(reply.json()["errors"])) == (422, 50), reply.text
    assert "and 199 more" in reply.json()["detail"]
    assert len(compared) == SUGGESTED_MAX


async def test_a_misspelt_group_is_compared_with_each_of_few_groups_of_many_nodes(
    harness: GatewayHarness,
) -> None:
    nodes = [a_node(f"{group}-{n}", group=group) for group in ("a100", "h100") for n in range(20)]
    await harness.project(*nodes)
    async with harness.gateway.ports.store.transaction() as tx:
        assert await names_near(tx, NodeRow, "b100") == ["a100", "h100"]


async def test_several_wrong_query_parameters_are_named_and_one_given_twice(
    admin: httpx.AsyncClient,
) -> None:
    reply = await admin.get("/v1/events?ownr=ann&owner=ann&owner=bob&limit=3")
    assert reply.status_code == 422
    assert {each["field"]: each["message"] for each in reply.json()["errors"]} == {
        "ownr": "there is no such query parameter",
        "owner": "is given more than once",
    }
    lists = "/v1/nodes?label=disk=nvme&label=zone=a"
    assert (await admin.get(lists)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/tasks?owner=ann&team=vision&group=default", "/v1/queue?group=default"),
        *("/v1/usage?user=ann", "/v1/usage?team=vision&group=default"),
        *("/v1/audit?who=ann", "/v1/audit?action=task.go", "/v1/audit?outcome=unavailable"),
    ],
)
async def test_a_name_that_has_nothing_is_an_empty_list(
    harness: GatewayHarness, admin: httpx.AsyncClient, path: str
) -> None:
    await harness.member("ann", team="vision")
    await harness.project(a_node("n0"))
    reply = await admin.get(path)
    assert (reply.status_code, reply.json()["items"]) == (200, []), reply.text


async def test_the_audit_trail_of_a_removed_user_is_found(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    async with harness.client(await harness.member("ann")) as ann:
        await ann.get("/v1/whoami")
        assert (await ann.post("/v1/tokens", json={})).status_code == 201
    await admin.patch("/v1/users/ann", json={"disabled": True})
    harness.clock.advance(10 * harness.settings.auth_cache_seconds)
    assert (await admin.delete("/v1/users/ann")).status_code == 204
    assert len((await admin.get("/v1/audit?who=ann")).json()["items"]) == 1
    assert (await admin.get("/v1/audit?who=ann&action=quota")).json()["items"] == []


async def test_an_audit_target_that_no_entry_has_is_an_error(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    task = await harness.submitted(admin, name="train")
    for name in ("train", task["id"][-6:], "nothing"):
        reply = await admin.get(f"/v1/audit?target={name}")
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "target")
    found = (await admin.get(f"/v1/audit?target={task['id']}")).json()["items"]
    assert [each["action"] for each in found] == ["task.submit"]
    # There are entries, but none that meets the other filter too.
    path = f"/v1/audit?target={task['id']}&action=quota"
    assert (await admin.get(path)).json()["items"] == []


async def test_tokens_of_others_are_refused_and_not_empty(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    await harness.member("bob")
    reply = await ann.get("/v1/tokens?user=bob")
    assert (reply.status_code, reply.json()["detail"]) == (
        403,
        "ann may not see tokens of others; ask an administrator",
    )
    assert len((await ann.get("/v1/tokens?user=ann")).json()["items"]) == 1


def test_every_action_that_a_route_enters_is_known_to_the_filter() -> None:
    entered: set[str] = set()
    for path in sorted((ROOT / "services/gateway").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given = [each.value for each in call.keywords if each.arg == "action"]
            given += call.args[1:2] if name in {"changing", "audit"} else []
            entered.update(filter(None, map(beginning, given)))
    assert len(entered) > 20
    unknown = [each for each in entered if not any(a.startswith(each) for a in ACTIONS)]
    assert unknown == []
    # Given as an argument, and entered by no route.
    others = ["policy.set", "policy.take_away", "request", "user.link"]
    assert [each for each in ACTIONS if not any(map(each.startswith, entered))] == others


def beginning(text: ast.expr) -> str:
    """The text, as far as it is written here."""
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
