"""Users who come, change and go, their tokens, and what the audit trail keeps of it."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from libs.contracts.base import Message
from libs.store.memory_database import Point, no_fault
from libs.store.port import ConflictError, StoreUnavailableError
from services.gateway import disabled_users
from services.gateway.command_client import Commands
from services.gateway.disabled_users import DisabledUsers
from services.gateway.permissions import Role, Scope
from services.gateway.problems import UNAVAILABLE, ProblemError
from services.gateway.rows import QuotaRow, TaskRow, TeamRow, UserRow
from services.gateway.tables import TABLES
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness, a_node, state

SOON = {"disabled_tick_seconds": 0.05}


async def token(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await client.post("/v1/tokens", json=body)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def listed(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    return (await client.get("/v1/tokens")).json()["items"]


async def goal(client: httpx.AsyncClient, task_id: str) -> str:
    return (await client.get(f"/v1/tasks/{task_id}")).json()["goal"]


async def test_everybody_makes_and_revokes_tokens_of_their_own(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    made = await token(ann, name="robot", scopes=["tasks"], expires_in_seconds=60)
    assert (made["user"], made["created_by"], made["scopes"]) == ("ann", "ann", ["tasks"])
    async with harness.client(made["token"]) as robot:
        assert (await robot.get("/v1/whoami")).json()["token"]["scopes"] == ["tasks"]
        assert (await robot.post("/v1/tasks", json={"command": ["x"]})).status_code == 201
        refused = await robot.post("/v1/tokens", json={})
        assert refused.status_code == 403
        assert "this token may not" in refused.json()["detail"]
        assert "tokens" in refused.json()["detail"]
    assert (await ann.delete(f"/v1/tokens/{made['id']}")).status_code == 204
    other = await ann.post("/v1/tokens", json={"user": "admin"})
    assert other.status_code == 403
    assert (
        other.json()["detail"]
        == "ann may not make or revoke tokens of others; ask an administrator"
    )


async def test_a_token_makes_none_that_can_do_more_or_lives_longer(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    first = await token(ann, scopes=["tokens", "tasks"], expires_in_seconds=60)
    async with harness.client(first["token"]) as robot:
        more = await robot.post("/v1/tokens", json={"scopes": ["operate"]})
        assert (more.status_code, more.json()["errors"][0]["field"]) == (403, "scopes")
        longer = await robot.post("/v1/tokens", json={"expires_in_seconds": 61})
        (error,) = longer.json()["errors"]
        assert (longer.status_code, error["field"]) == (422, "expires_in_seconds")
        assert error["fix"] in {f"give at most {left} s, or leave it out" for left in (59, 60)}
        same = await token(robot)
        assert (same["scopes"], same["expires_at"]) == (["tasks", "tokens"], first["expires_at"])
        less = await token(robot, scopes=["read"], expires_in_seconds=5)
        assert less["scopes"] == ["read"]


async def test_unknown_scopes_are_refused_with_the_known_ones(ann: httpx.AsyncClient) -> None:
    reply = await ann.post("/v1/tokens", json={"scopes": ["everything"]})
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert error["field"].startswith("scopes")
    assert all(scope.value in error["fix"] + error["message"] for scope in Scope)


async def test_a_scope_that_does_nothing_for_the_user_is_refused_with_the_roles_that_have_it(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    for maker, body in ((ann, {"scopes": ["read", "operate"]}), (admin, {"user": "ann"})):
        reply = await maker.post("/v1/tokens", json={"scopes": ["operate"], **body})
        assert reply.status_code == 422
        (error,) = reply.json()["errors"]
        assert error == {
            "field": "scopes",
            "value": "operate",
            "message": "is of use to the roles operator and admin, and ann has the role user",
            "fix": "choose of read, secrets, tasks, tokens, or ask an administrator for the role"
            " operator",
        }
    made = {
        role: await harness.member(f"{role}s", role=role)
        for role in ("viewer", "operator", "admin")
    }
    good = {"viewer": "read secrets tokens", "operator": "read secrets tasks tokens operate"}
    for role, mine in made.items():
        async with harness.client(mine) as client:
            for scope in Scope:
                reply = await client.post("/v1/tokens", json={"scopes": [scope.value]})
                is_good = role == "admin" or scope.value in good[role].split()
                assert reply.status_code == (201 if is_good else 422), (role, scope)
    # What was made stays valid when the role changes, and does less.
    token_id = (await token(ann, scopes=["tasks"]))["id"]
    await admin.patch("/v1/users/ann", json={"role": "viewer"})
    assert token_id in [each["id"] for each in await listed(ann)]


async def test_the_token_of_a_disabled_user_is_refused_with_what_helps(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    await admin.patch("/v1/users/ann", json={"disabled": True})
    harness.clock.advance(60)
    refused = await ann.get("/v1/whoami")
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["message"]) == (401, "user ann is disabled")
    assert error["fix"] == (
        "ask an administrator to enable the user: PATCH /v1/users/ann with disabled: false"
    )
    assert refused.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("harness", [{"refusals_seconds": 0.02}], indirect=True)
async def test_refusals_of_a_genuine_token_are_entered_under_its_user(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    """Of a disabled user, revoked, expired, and a good one at a route of runs; of a token that
    nobody has, nobody is named."""
    revoked = await token(admin, user="ann")
    await admin.delete(f"/v1/tokens/{revoked['id']}")
    expired = await token(admin, user="ann", expires_in_seconds=60)
    harness.clock.advance(61)
    assert (await ann.get("/v1/run")).status_code == 403
    shown = {"/v1/tokens": revoked["token"], "/v1/users": expired["token"], "/v1/queue": "swt_x"}
    for path, secret in shown.items():
        async with harness.client(secret) as client:
            assert (await client.get(path)).status_code == 401
    await admin.patch("/v1/users/ann", json={"disabled": True})
    assert (await ann.get("/v1/whoami")).status_code == 401

    async def entered() -> dict[str, str]:
        found = (await admin.get("/v1/audit?action=request")).json()["items"]
        return {each["target"].rpartition(" ")[2]: each["who"] for each in found}

    async def complete() -> bool:
        return len(await entered()) == 5

    await until(complete)
    assert await entered() == {
        "/v1/run": "ann",
        "/v1/tokens": "ann",
        "/v1/users": "ann",
        "/v1/queue": "",
        "/v1/whoami": "ann",
    }


@pytest.mark.parametrize("harness", [{"token_uses_seconds": 0.02}], indirect=True)
async def test_the_last_use_of_a_token_is_shown(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    (mine,) = [each for each in await listed(admin) if each["user"] == "ann"]
    assert (mine["last_used_at"], mine["last_used_from"]) == (None, None)

    async def shown() -> bool:
        (mine,) = await listed(ann)
        return mine["last_used_at"] is not None and mine["last_used_from"] == "127.0.0.1"

    await until(shown)


@pytest.mark.parametrize("harness", [{"token_uses_seconds": 0.02}], indirect=True)
async def test_uses_of_tokens_that_meet_a_conflict_are_written_later(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    conflicts = list[str]()

    async def conflict(point: Point, schema: str) -> None:
        callers = {frame.f_code.co_name for frame, _ in traceback.walk_stack(None)}
        of_uses = schema == "gateway" and "record_uses" in callers
        if of_uses and point is Point.BEFORE_COMMIT and not conflicts:
            conflicts.append(schema)
            raise ConflictError("another process wrote it")

    harness.database.fault = conflict
    # One use alone, which no later request repeats.
    assert (await ann.get("/v1/whoami")).status_code == 200
    await until(lambda: bool(conflicts))
    harness.database.fault = no_fault

    async def shown() -> bool:
        found = [each for each in await listed(admin) if each["user"] == "ann"]
        return found[0]["last_used_at"] is not None

    await until(shown)


@pytest.mark.parametrize("harness", [SOON], indirect=True)
@pytest.mark.parametrize("change", [{"disabled": True}, {"archived": True}])
async def test_the_tasks_of_a_disabled_user_are_stopped(
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
    change: dict[str, bool],
) -> None:
    tasks = [(await harness.submitted(ann))["id"] for _ in range(3)]
    other = (await harness.submitted(bob))["id"]
    assert (await admin.patch("/v1/users/ann", json=change)).json()["disabled"]

    async def stopped() -> bool:
        return {await goal(admin, task) for task in tasks} == {"stop"}

    await until(stopped)
    assert await goal(admin, other) == "run"
    # Whom the change was requested by is in the task's events.
    page = (await admin.get(f"/v1/events?task={tasks[0]}&type=goal_changed")).json()["items"]
    assert [event["data"]["changed_by"] for event in page] == ["admin"]


@pytest.mark.parametrize("harness", [SOON], indirect=True)
async def test_a_task_that_arrives_after_its_owner_was_disabled_is_stopped(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    async with harness.client(await harness.member("ann")) as ann:
        await admin.patch("/v1/users/ann", json={"disabled": True})
        await admin.patch("/v1/users/ann", json={"disabled": False})
        task = (await harness.submitted(ann))["id"]
        assert await goal(admin, task) == "run"
        await admin.patch("/v1/users/ann", json={"disabled": True})

    async def stopped() -> bool:
        return await goal(admin, task) == "stop"

    await until(stopped)


@pytest.mark.parametrize("harness", [SOON], indirect=True)
async def test_a_task_of_a_user_who_is_enabled_meanwhile_is_not_stopped(
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    ann: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = sorted([(await harness.submitted(ann))["id"] for _ in range(3)])
    ask = Commands.ask

    async def enabled_first(commands: Commands, command: Message, kind: type[Any]) -> Any:
        reply = await ask(commands, command, kind)
        if isinstance(command, m.SetGoal):
            # After the page of tasks was read.
            await admin.patch("/v1/users/ann", json={"disabled": False})
            stopped.append(command.task_id)
        return reply

    stopped = list[str]()
    monkeypatch.setattr(Commands, "ask", enabled_first)
    await admin.patch("/v1/users/ann", json={"disabled": True})
    await until(lambda: bool(stopped))
    await asyncio.sleep(0.2)
    assert stopped == tasks[:1]
    assert [await goal(admin, task) for task in tasks[1:]] == ["run", "run"]


@pytest.mark.parametrize("harness", [SOON], indirect=True)
async def test_paused_tasks_of_a_disabled_user_are_stopped(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    assert (await ann.put(f"/v1/tasks/{task}/goal", json={"goal": "pause"})).status_code == 202
    await until(lambda: has_goal(admin, task, "pause"))
    await admin.patch("/v1/users/ann", json={"disabled": True})
    await until(lambda: has_goal(admin, task, "stop"))


@pytest.mark.parametrize("harness", [SOON], indirect=True)
async def test_all_tasks_of_a_disabled_user_are_stopped_page_by_page(
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    ann: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disabled_users, "TASKS_MAX", 2)
    tasks = [(await harness.submitted(ann))["id"] for _ in range(5)]
    await admin.patch("/v1/users/ann", json={"disabled": True})
    for task in tasks:
        await until(lambda task=task: has_goal(admin, task, "stop"))
    # Each round begins with the first task again: a request may have been lost.
    await admin.patch("/v1/users/ann", json={"disabled": False})
    rows = harness.database.schema("gateway").table(TABLES.shape(TaskRow)).rows
    first = min(tasks)
    rows[first] = replace(rows[first], goal="run")
    asked = list[str]()
    ask = Commands.ask

    async def noted(commands: Commands, command: Message, kind: type[Any]) -> Any:
        asked.extend([command.task_id] if isinstance(command, m.SetGoal) else [])
        return await ask(commands, command, kind)

    monkeypatch.setattr(Commands, "ask", noted)
    await admin.patch("/v1/users/ann", json={"disabled": True})
    await until(lambda: first in asked)


@pytest.mark.parametrize("harness", [SOON], indirect=True)
async def test_the_stop_of_a_disabled_users_task_is_one_entry_in_the_audit_trail(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    tasks = {(await harness.submitted(ann))["id"] for _ in range(2)}
    await admin.patch("/v1/users/ann", json={"disabled": True})
    for task in tasks:
        await until(lambda task=task: has_goal(admin, task, "stop"))
    rows = harness.database.schema("gateway").table(TABLES.shape(TaskRow)).rows
    # Requests are repeated until the read model shows the goal.
    for task in tasks:
        rows[task] = replace(rows[task], goal="run")
    await asyncio.sleep(0.2)
    trail = (await admin.get("/v1/audit", params={"action": "task.goal.stop"})).json()["items"]
    assert {(each["who"], each["outcome"]) for each in trail} == {("admin", "done")}
    assert {each["target"] for each in trail} == tasks
    assert len(trail) == 2
    assert "its owner ann is disabled" in trail[0]["detail"]


class _Requests:
    def __init__(self) -> None:
        self.stopped: list[str] = []

    async def ask(self, command: Any, kind: type[Any]) -> Any:
        self.stopped.append(command.task_id)
        return kind()


async def test_users_who_were_disabled_long_ago_cost_a_page_in_each_round(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tasks are found all the same, such as one that submit refused to stop for an hour."""
    monkeypatch.setattr(disabled_users, "USERS_SLOW_MAX", 10)
    store = harness.gateway.ports.store
    commands: Any = _Requests()
    now = harness.clock.now()
    old = UserRow("old", "user", "", True, now, "admin", now - timedelta(days=30))
    async with store.transaction() as tx:
        tx.put(*(replace(old, name=f"old{number:03}") for number in range(100)))
        tx.put(replace(old, name="zoe", disabled_at=now))
        for owner in ("old095", "zoe"):
            tx.put(TaskRow(f"task-of-{owner}", owner=owner, state="running", goal="run"))
    disabled = DisabledUsers(store, commands)
    read = list[str]()
    kind: Any = DisabledUsers
    find = kind._tasks

    async def noted(self: DisabledUsers, tx: Any, owners: list[str], after: str) -> Any:
        read.extend(owners)
        return await find(self, tx, owners, after)

    monkeypatch.setattr(DisabledUsers, "_tasks", noted)
    for number in range(10):
        assert await disabled.step(1) is None
        assert len(read) <= 11, "more than the late user and a page of the others"
        assert commands.stopped.count("task-of-zoe") == number + 1
        read.clear()
    assert "task-of-old095" in commands.stopped


async def has_goal(client: httpx.AsyncClient, task_id: str, wanted: str) -> bool:
    return await goal(client, task_id) == wanted


async def test_an_archived_user_leaves_the_lists_and_keeps_the_name(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    assert (await admin.patch("/v1/users/ann", json={"archived": True})).status_code == 200
    assert (await ann.get("/v1/whoami")).status_code == 401
    names = [each["name"] for each in (await admin.get("/v1/users")).json()["items"]]
    assert "ann" not in names
    every = [each["name"] for each in (await admin.get("/v1/users?all=true")).json()["items"]]
    assert "ann" in every
    again = await admin.post("/v1/users", json={"name": "ann"})
    assert (again.status_code, "archived: false" in again.text) == (409, True)
    assert (await admin.post("/v1/tokens", json={"user": "ann"})).status_code == 409
    enabled = await admin.patch("/v1/users/ann", json={"disabled": False})
    assert (enabled.status_code, enabled.json()["errors"][0]["field"]) == (409, "disabled")
    back = await admin.patch("/v1/users/ann", json={"archived": False, "disabled": False})
    assert (back.json()["archived"], back.json()["disabled"]) == (False, False)
    harness.clock.advance(harness.settings.auth_cache_seconds + 1)
    assert (await ann.get("/v1/whoami")).status_code == 200


async def test_only_a_user_whom_nothing_names_is_removed(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    assert (await admin.delete("/v1/users/admin")).status_code == 409
    assert (await admin.delete("/v1/users/nobody")).status_code == 404
    task = (await harness.submitted(ann))["id"]
    held = await admin.delete("/v1/users/ann")
    assert (held.status_code, task in held.json()["detail"]) == (409, True)
    async with harness.client(await harness.member("eve")) as eve:
        limit = {"user": "eve", "limit": 1, "unit": "gpus"}
        await admin.put("/v1/quotas", json=limit)

        async def quotas() -> int:
            return len((await admin.get("/v1/quotas?user=eve")).json()["items"])

        await until(quotas)
        assert (await admin.delete("/v1/users/eve")).status_code == 409
        await admin.put("/v1/quotas", json={"user": "eve", "unit": "gpus", "remove": True})

        async def none() -> bool:
            return not await quotas()

        await until(none)
        # A process that remembers a token may still accept a task of hers.
        enabled = await admin.delete("/v1/users/eve")
        assert (enabled.status_code, "is not disabled" in enabled.text) == (409, True)
        await admin.patch("/v1/users/eve", json={"disabled": True})
        assert (await admin.delete("/v1/users/eve")).headers["retry-after"]
        hook = {"url": "https://example.org/", "occasions": ["failed"], "user": "eve"}
        assert (await admin.put("/v1/notifications/mine", json=hook)).status_code == 200
        harness.clock.advance(3 * harness.settings.auth_cache_seconds)
        assert (await admin.delete("/v1/users/eve")).status_code == 204
        assert (await eve.get("/v1/whoami")).status_code == 401
        assert (await admin.post("/v1/users", json={"name": "eve"})).status_code == 201
        assert (await eve.get("/v1/whoami")).status_code == 401
        # Messages about the next eve's tasks would go there.
        listed = await admin.get("/v1/notifications?user=eve")
        assert (listed.status_code, listed.json()["items"]) == (200, [])


async def test_a_clock_that_is_set_back_does_not_keep_a_disabled_user_from_being_removed(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.member("eve")
    harness.clock.advance(86_400 * 365)
    assert (await admin.patch("/v1/users/eve", json={"disabled": True})).status_code == 200
    harness.clock.advance(-86_400 * 365)
    assert (await admin.delete("/v1/users/eve")).status_code == 204


async def test_a_token_that_was_made_while_its_user_was_removed_is_not_the_next_users(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    secret = await harness.member("eve")
    del harness.database.schema("gateway").table(TABLES.shape(UserRow)).rows["eve"]
    harness.clock.advance(harness.settings.auth_cache_seconds + 1)
    assert (await admin.post("/v1/users", json={"name": "eve"})).status_code == 201
    async with harness.client(secret) as eve:
        assert (await eve.get("/v1/whoami")).status_code == 401


@pytest.mark.parametrize("harness", [SOON], indirect=True)
async def test_users_of_the_version_before(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    """It stores them as members, and has disabled some without stopping their tasks."""
    task = (await harness.submitted(ann))["id"]
    rows = harness.database.schema("gateway").table(TABLES.shape(UserRow)).rows
    rows["ann"] = replace(rows["ann"], role="member")
    harness.clock.advance(harness.settings.auth_cache_seconds + 1)
    assert (await ann.get("/v1/whoami")).json()["role"] == "user"
    assert (await admin.get("/v1/users/ann")).json()["role"] == "user"
    rows["ann"] = replace(rows["ann"], disabled=True)
    await asyncio.sleep(0.2)
    assert await goal(admin, task) == "run"
    await admin.patch("/v1/users/ann", json={"archived": True})

    async def stopped() -> bool:
        return await goal(admin, task) == "stop"

    await until(stopped)
    rows["ann"] = replace(rows["ann"], disabled=False, archived=False, role="emperor")
    harness.clock.advance(harness.settings.auth_cache_seconds + 1)
    unknown = await ann.get("/v1/whoami")
    assert (unknown.status_code, "emperor" in unknown.json()["detail"]) == (401, True)


async def test_operators_see_no_environment_of_others(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann, env={"KEY": "of-ann-alone"}))["id"]
    for role in (Role.VIEWER, Role.OPERATOR):
        async with harness.client(await harness.member(f"one-{role}", role=role)) as other:
            assert "of-ann-alone" not in (await other.get(f"/v1/tasks/{task}")).text
            assert "of-ann-alone" not in (await other.get("/v1/tasks")).text
    assert "of-ann-alone" in (await ann.get(f"/v1/tasks/{task}")).text


async def test_the_audit_trail_has_what_was_before_and_after(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    await ann.put(f"/v1/tasks/{task}/priority", json={"priority": "low"})
    await admin.patch("/v1/users/ann", json={"role": "operator"})
    (mine,) = (await ann.get("/v1/tokens")).json()["items"]
    (entry,) = (await admin.get("/v1/audit?action=task.priority")).json()["items"]
    assert (entry["who"], entry["token"], entry["address"]) == ("ann", mine["id"], "127.0.0.1")
    assert (entry["before"], entry["after"]) == ({"priority": "normal"}, {"priority": "low"})
    (entry,) = (await admin.get("/v1/audit?action=user.change&target=ann")).json()["items"]
    assert (entry["before"]["role"], entry["after"]["role"]) == ("user", "operator")


async def test_the_audit_trail_is_filtered(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    await harness.submitted(ann)
    before = harness.clock.now()
    harness.clock.advance(60)
    task = (await harness.submitted(ann))["id"]

    async def found(query: str) -> list[str]:
        reply = await admin.get(f"/v1/audit?{query}")
        assert reply.status_code == 200, reply.text
        return [each["target"] for each in reply.json()["items"]]

    later = before.isoformat().replace("+00:00", "Z")
    assert await found(f"who=ann&from={later}&action=task.") == [task]
    assert task not in await found(f"who=ann&to={later}")
    await harness.member("bob")
    assert await found("who=bob") == []
    assert await found("outcome=forbidden") == []
    wrong = await admin.get("/v1/audit?from=yesterday")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "from")


async def test_tasks_that_name_no_group_and_priority_get_their_owners_defaults(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.project(a_node("n0"))
    async with harness.client(await harness.member("ann", team="vision")) as ann:
        assert (await harness.submitted(ann))["priority"] == "normal"
        wrong = await admin.patch("/v1/teams/vision", json={"default_group": "nowhere"})
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "default_group")
        changed = await admin.patch("/v1/teams/vision", json={"default_priority": "low"})
        assert changed.json()["default_priority"] == "low"
        assert (await harness.submitted(ann))["priority"] == "low"
        assert (await ann.get("/v1/whoami")).json()["default_priority"] == "low"
        # The user's own come first, and what the task names before both.
        await admin.patch("/v1/users/ann", json={"default_priority": "high"})
        assert (await harness.submitted(ann))["priority"] == "high"
        assert (await harness.submitted(ann, priority="idle"))["priority"] == "idle"
        await admin.patch("/v1/users/ann", json={"default_priority": ""})
        assert (await harness.submitted(ann))["priority"] == "low"
    (entry,) = (await admin.get("/v1/audit?action=team.change")).json()["items"]
    assert (entry["before"]["default_priority"], entry["after"]["default_priority"]) == (
        None,
        "low",
    )


async def test_the_removal_of_a_quota_by_time_is_in_the_audit_trail(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    quota = m.Quota(user="ann", unit=m.Unit.GPUS, limit=4)
    at = harness.clock.now()
    first = m.QuotaChanged(
        group_token="all", quota=quota, version=90, changed_by="olga", changed_at=at
    )
    gone = first.model_copy(update={"removed": True, "expired": True, "version": 91})
    await harness.project(first, gone)
    for _ in range(2):
        entries = (await admin.get("/v1/audit?action=quota.expire")).json()["items"]
        assert [(each["who"], each["before"]["limit"]) for each in entries] == [("quota", 4)]
        assert "user=ann" in entries[0]["target"]
        # The same again changes nothing.
        await harness.publish(gone)


@pytest.mark.parametrize("before_the_reply", [True, False], ids=["dies", "no reply"])
async def test_a_change_whose_outcome_is_unknown_is_in_the_audit_trail(
    harness: GatewayHarness,
    admin: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    *,
    before_the_reply: bool,
) -> None:
    reply = Commands.reply

    async def lost(commands: Commands, command: Message, kind: type[Message]) -> Message:
        await reply(commands, command, kind)
        raise asyncio.CancelledError if before_the_reply else ProblemError(UNAVAILABLE, "no reply")

    await harness.member("ann")
    monkeypatch.setattr(Commands, "reply", lost)
    body = {"user": "ann", "limit": 4}
    if before_the_reply:
        with pytest.raises(asyncio.CancelledError):
            await admin.put("/v1/quotas", json=body)
    else:
        assert (await admin.put("/v1/quotas", json=body)).status_code == 503
    monkeypatch.undo()
    (entry,) = (await admin.get("/v1/audit?action=quota")).json()["items"]
    assert entry["outcome"] == ("started" if before_the_reply else "unknown")
    assert (entry["before"], entry["after"]["limit"], entry["who"]) == (None, 4, "admin")


async def test_a_repeated_key_gives_the_same_task_after_the_owners_defaults_have_changed(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    async with harness.client(await harness.member("ann")) as ann:
        key = {"idempotency-key": "k1"}
        body = {"command": ["true"]}
        first = await ann.post("/v1/tasks", json=body, headers=key)
        await admin.patch("/v1/users/ann", json={"default_priority": "low"})
        again = await ann.post("/v1/tasks", json=body, headers=key)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        assert (await ann.post("/v1/tasks", json=body)).json()["priority"] == "low"


async def test_the_next_team_of_a_name_gets_nothing_of_the_one_before(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await admin.post("/v1/teams", json={"name": "vision"})
    quota = {"team": "vision", "grant": True, "unlimited": True}
    await admin.put("/v1/quotas", json=quota)

    async def rows() -> list[Any]:
        return (await admin.get("/v1/quotas")).json()["items"]

    await until(rows)
    kept = await admin.delete("/v1/teams/vision")
    assert (kept.status_code, kept.json()["errors"][0]["message"]) == (409, "has quotas")
    # A row may also be set for a name that is to come.
    await admin.put("/v1/quotas?force=true", json={**quota, "team": "nlp"})
    await until(lambda: rows_of_team(harness, "nlp"))
    refused = await admin.post("/v1/teams", json={"name": "nlp"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (409, "name")
    assert (await admin.post("/v1/teams?force=true", json={"name": "nlp"})).status_code == 201


async def granted(client: httpx.AsyncClient, number: int) -> bool:
    rows = (await client.get("/v1/quotas?user=eve")).json()["items"]
    return sum(row["grant"] for row in rows) == number


async def test_a_disabled_user_gets_no_first_quota(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """It could arrive after the user was removed, and would be the next one's of that name."""
    await harness.member("eve")
    cap = {"user": "eve", "limit": 1, "unit": "gpus"}
    grant = {"user": "eve", "grant": True, "unlimited": True}
    assert (await admin.put("/v1/quotas", json=cap)).status_code == 200

    async def quotas() -> int:
        return len((await admin.get("/v1/quotas?user=eve")).json()["items"])

    await until(quotas)
    await admin.patch("/v1/users/eve", json={"disabled": True})
    refused = await admin.put("/v1/quotas", json=grant)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (409, "user")
    # The row of one level says nothing of the others.
    low = {**grant, "priority": "low"}
    assert (await admin.put("/v1/quotas?force=true", json=low)).status_code == 200
    await until(lambda: granted(admin, 1))
    assert (await admin.put("/v1/quotas", json=low)).status_code == 200
    assert (await admin.put("/v1/quotas", json={**grant, "priority": "high"})).status_code == 409
    # What there is can be changed and removed: it holds the removal of the user up.
    assert (await admin.put("/v1/quotas", json={**cap, "limit": 2})).status_code == 200
    removed = {"user": "eve", "unit": "gpus", "remove": True}
    assert (await admin.put("/v1/quotas", json=removed)).status_code == 200
    assert (await admin.put("/v1/quotas?force=true", json=grant)).status_code == 200


@pytest.mark.parametrize(("kind", "path"), [(UserRow, "users"), (TeamRow, "teams")])
async def test_a_row_that_cannot_be_read_is_set_apart_in_the_list(
    harness: GatewayHarness, admin: httpx.AsyncClient, kind: type[Any], path: str
) -> None:
    for name in ("one", "two"):
        assert (await admin.post(f"/v1/{path}", json={"name": name})).status_code == 201
    harness.database.break_row(TABLES, kind, "one", column="created_at")
    page = (await admin.get(f"/v1/{path}")).json()
    assert "two" in {each["name"] for each in page["items"]}
    (apart,) = page["unreadable"]
    assert (apart["id"], "cannot be read" in apart["problem"]) == ("one", True)


def rows_of_team(harness: GatewayHarness, team: str) -> bool:
    rows = harness.database.rows(TABLES, QuotaRow).values()
    return any(row.team == team for row in rows)


async def test_the_admin_tokens_file_has_the_team_and_defaults_of_the_user_admin(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await admin.post("/v1/teams", json={"name": "vision"})
    await admin.patch("/v1/users/admin", json={"team": "vision", "default_priority": "low"})
    me = (await admin.get("/v1/whoami")).json()
    assert (me["team"], me["default_priority"]) == ("vision", "low")

    async def down(point: Point, schema: str) -> None:
        if schema == "gateway" and point is Point.BEGIN:
            raise StoreUnavailableError("down")

    harness.clock.advance(60)
    harness.database.fault = down
    assert (await admin.get("/v1/whoami")).status_code == 200
    harness.database.fault = no_fault


async def test_a_revoked_token_is_invalid_although_the_clock_was_set_back(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    assert (await ann.get("/v1/whoami")).status_code == 200
    harness.clock.advance(-3600)
    async with harness.store(TABLES).transaction() as tx:
        row = await tx.get(UserRow, "ann")
        assert row is not None
        tx.put(replace(row, disabled=True))
    assert (await ann.get("/v1/whoami")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/teams/vision", {"default_group": "nowhere"}),
        ("PATCH", "/v1/users/admin", {"default_group": "nowhere"}),
        ("POST", "/v1/users", {"name": "eve", "default_group": "nowhere"}),
        ("GET", "/v1/quotas/explain?group=nowhere", None),
        ("PUT", "/v1/quotas", {"group": "nowhere", "limit": 1}),
    ],
)
async def test_an_unknown_group_may_be_forced_only_where_force_is_taken(
    harness: GatewayHarness, admin: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    await harness.project(a_node("n0"))
    await admin.post("/v1/teams", json={"name": "vision"})
    reply = await admin.request(method, path, json=body)
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["message"] == 'there is no group "nowhere"'
    assert ("force" in reply.text) == (method == "PUT")


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\x9bb", "a\u202eb", "a\x7f"])
async def test_what_a_terminal_obeys_is_in_no_name_of_a_token(
    harness: GatewayHarness, admin: httpx.AsyncClient, name: str
) -> None:
    reply = await admin.post("/v1/tokens", json={"name": name})
    (error,) = reply.json()["errors"]
    assert (reply.status_code, error["field"]) == (422, "name")
    assert error["message"] == f"has the character U+{ord(name[1]):04X}, which is not shown"
    query = {"challenge": "c" * 43, "name": name}
    async with harness.client(None) as browser:
        assert (await browser.get("/v1/login/cli", params=query)).status_code == 422
    fine = await admin.post("/v1/tokens", json={"name": "Ännes Rechner (büro)"})
    assert fine.status_code == 201


async def test_environments_and_life_states_need_a_scope_of_their_own(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann, env={"KEY": "hush"}))["id"]
    await harness.project(state(task, m.TaskState.STOPPED, 2))
    makers = {"ann": ann, "admin": admin}
    for maker, scopes, sees in (
        ("admin", [], True),
        ("ann", [], True),
        ("admin", ["read"], False),
        ("ann", ["tasks"], False),
        ("admin", [scope for scope in Scope if scope is not Scope.SECRETS], False),
        ("admin", ["secrets"], True),
        ("ann", ["tasks", "secrets"], True),
    ):
        made = (await makers[maker].post("/v1/tokens", json={"scopes": scopes})).json()
        async with harness.client(made["token"]) as client:
            shown = await client.get(f"/v1/tasks/{task}")
            assert (shown.status_code, "hush" in shown.text) == (200, sees), (maker, scopes)
            listed = await client.get("/v1/tasks?all=1")
            assert ("hush" in listed.text) == sees
            kept = await client.get(f"/v1/tasks/{task}/state")
            assert kept.status_code == (200 if sees else 403)
            # Neither does submitting it again show them.
            again = await client.post(f"/v1/tasks/{task}/retry")
            if again.status_code == 201:
                assert ("hush" in again.text) == sees


async def test_a_dry_run_of_a_change_of_a_user_checks_all_and_changes_nothing(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    before = (await admin.get("/v1/users/ann")).json()
    entries = (await admin.get("/v1/audit")).json()["items"]
    checked = await admin.patch("/v1/users/ann?dry_run=true", json={"disabled": True})
    assert (checked.status_code, checked.json()["disabled"]) == (200, True)
    assert (await admin.get("/v1/users/ann")).json() == before
    assert (await ann.get("/v1/whoami")).status_code == 200
    assert (await admin.get("/v1/audit")).json()["items"] == entries
    for path, body in (
        ("/v1/users/admin", {"disabled": True}),
        ("/v1/users/nobody", {"disabled": True}),
        ("/v1/users/ann", {"team": "none"}),
    ):
        wanted = await admin.patch(path, json=body)
        found = await admin.patch(f"{path}?dry_run=true", json=body)
        assert wanted.status_code >= 400
        assert (found.status_code, found.json()) == (wanted.status_code, wanted.json())
    assert (
        await ann.patch("/v1/users/bob?dry_run=true", json={"disabled": True})
    ).status_code == 403


async def test_the_members_of_a_team_that_cannot_be_removed_are_named(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await admin.post("/v1/teams", json={"name": "vision"})
    for count, wanted in (
        (1, "m10 is in vision"),
        (3, "m10, m11, m12 are in vision"),
        (11, ", ".join(f"m{each}" for each in range(10, 20)) + " and more are in vision"),
    ):
        for each in range(10, 10 + count):
            await admin.post("/v1/users", json={"name": f"m{each}", "team": "vision"})
        refused = await admin.delete("/v1/teams/vision")
        assert (refused.status_code, refused.json()["errors"][0]["message"]) == (409, wanted)
