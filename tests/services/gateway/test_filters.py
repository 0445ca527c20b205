"""Filters of lists: a name or a word that nothing has is an error, and no empty list."""

from __future__ import annotations

import ast
from pathlib import Path

import httpx
import pytest

from services.gateway.audit import ACTIONS
from tests.services.gateway.gateway_harness import GatewayHarness, a_node

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
    others = ["policy.set", "policy.take_away", "request"]
    assert [each for each in ACTIONS if not any(map(each.startswith, entered))] == others


def beginning(text: ast.expr) -> str:
    """The text, as far as it is written here."""
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
