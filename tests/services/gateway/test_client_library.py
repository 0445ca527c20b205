"""The client library against a real gateway: it has every operation of the OpenAPI document, and
each of its methods works."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from shiftwork import AsyncClient, Client
from shiftwork.client import ApiError, AsyncListing, Invalid, Listing, NotFound

from libs.contracts import messages as m
from services.gateway.api.app import application
from services.gateway.api.description import names_of
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    a_node,
    run_token,
    served,
)

BROWSERS = {"login_oidc", "login_oidc_callback", "login_cli"}
DOCUMENT = application().openapi()
# What others need comes first, and what removes it last.
ORDER = {"dry_run": 0, "create": 1, "delete": 3, "discard": 3}
# Refusals that show that the method reached its route: nothing here lets them succeed.
REFUSED = {
    "tasks_retry": 409,
    "tasks_continue": 409,
    "users_delete": 409,
    # Examples are no addresses of webhooks, so there is no notification.
    "notifications_set": 422,
    "notifications_delete": 404,
    "notifications_undelivered": 404,
    "notifications_replay": 404,
    "teams_delete": 409,
    "dead_letters_replay": 404,
    "dead_letters_discard": 404,
    # A token has no session, and nobody has logged in.
    "session_clear": 409,
    "sessions_delete": 404,
    "users_set_password": 404,
    "login_password": 404,
    "login_token": 401,
}


def operations() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """The resource, the method's name, the HTTP method and the description of each operation."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            resource, _ = names_of(method.upper(), path)
            verb = operation["operationId"].removeprefix(f"{resource}_")
            # Pages and redirects are for browsers alone.
            if operation["operationId"] in BROWSERS:
                continue
            yield resource, {"continue": "continue_"}.get(verb, verb), method, operation


def python_name(wire: str) -> str:
    return {"from": "from_"}.get(wire, wire.lower().replace("-", "_"))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_each_operation_is_a_method_with_the_same_parameters(kind: type[Any]) -> None:
    client = kind("http://127.0.0.1:1", "swt_x")
    found: dict[str, set[str]] = {}
    for resource, verb, _, operation in operations():
        known = inspect.signature(getattr(getattr(client, resource), verb)).parameters
        wanted = {python_name(each["name"]) for each in operation.get("parameters", ())}
        wanted |= {"body"} if "requestBody" in operation else set()
        assert set(known) == wanted, operation["operationId"]
        found.setdefault(resource, set()).add(verb)
        content = operation["responses"].get("200", {}).get("content", {})
        found[resource] |= {f"{verb}_csv"} if "text/csv" in content else set()
        found[resource] |= {f"{verb}_text"} if "text/plain" in content else set()
        if "text/event-stream" in content:
            found[resource].add("follow" if verb == "list" else f"follow_{verb}")
    for resource, verbs in found.items():
        methods = {name for name in dir(getattr(client, resource)) if not name.startswith("_")}
        assert methods == verbs, resource


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_each_method_works(harness: GatewayHarness, kind: type[Any]) -> None:
    task = await prepare(harness)
    wanted = sorted(operations(), key=lambda each: ORDER.get(each[1], 2))
    refused: dict[str, int] = {}
    async with served(harness) as url:
        people, run = kind(url, ADMIN_TOKEN), kind(url, run_token(task))
        token = (await result(people.tokens.create, {"name": "spare"}))["id"]
        known = {"task_id": task, "node_id": "n0", "token_id": token, "group": "default"}
        known["session_id"] = "none"
        for resource, verb, _, operation in wanted:
            client = run if resource == "run" else people
            known["name"] = "vision" if resource == "teams" else "ann"
            given = [each for each in operation.get("parameters", ()) if each["in"] == "path"]
            arguments = [known[each["name"]] for each in given]
            required = {"service": "gateway"} if resource == "dead_letters" else {}
            if "requestBody" in operation:
                arguments.append({**body_of(operation), **required})
                required = {}
            try:
                await result(getattr(getattr(client, resource), verb), *arguments, **required)
            except ApiError as error:
                refused[operation["operationId"]] = error.status
        await result(people.close)
        await result(run.close)
    assert refused == REFUSED


async def prepare(harness: GatewayHarness) -> str:
    """A running task, a node, a team, and what the other services know."""
    async with harness.client() as admin:
        task = (await harness.submitted(admin, name="first"))["id"]
        (await admin.post("/v1/teams", json={"name": "vision"})).raise_for_status()
    await harness.project(a_node("n0"))
    others = harness.others
    others.nodes.add("n0")
    others.live_attempts[task] = 1
    others.explanation = m.ExplainReply()
    others.outputs[1, 0] = b"one\n"
    others.policies = [m.PolicyRecord(group="default", document="{}")]
    return task


def body_of(operation: dict[str, Any]) -> Any:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema.get("$ref", "").rpartition("/")[2]
    return DOCUMENT["components"]["schemas"][name]["examples"][0] if name else {}


async def result(method: Any, *arguments: Any, **named: Any) -> Any:
    """What a method of either client returns; of a list the first page, as a client reads it."""

    def call() -> Any:
        found = method(*arguments, **named)
        return found.page() if isinstance(found, Listing) else found

    found = await asyncio.to_thread(call)
    if isinstance(found, AsyncListing):
        return await found.page()
    return await found if inspect.isawaitable(found) else found


async def test_refusals_are_exceptions_with_their_fields(harness: GatewayHarness) -> None:
    async with served(harness) as url:
        client = AsyncClient(url, ADMIN_TOKEN)
        with pytest.raises(Invalid, match="nodes: ") as refused:
            await client.tasks.create({"command": ["true"], "nodes": -1})
        (error,) = refused.value.errors
        assert (error.field, error.value, refused.value.type) == ("nodes", "-1", "invalid")
        assert error.fix
        with pytest.raises(NotFound):
            await client.tasks.get("tnone")
        assert ADMIN_TOKEN not in repr(client) + str(refused.value) + repr(vars(refused.value))
        await client.close()


async def test_a_list_brings_all_pages_and_the_position_behind_it(harness: GatewayHarness) -> None:
    async with harness.client() as admin:
        made = [(await harness.submitted(admin, name=f"t{n}"))["id"] for n in range(5)]

    def read(url: str) -> tuple[list[str], int]:
        with Client(url, ADMIN_TOKEN) as client:
            tasks = client.tasks.list(limit=2, sort="submitted_at")
            return [task["id"] for task in tasks], tasks.position

    async with served(harness) as url:
        found, position = await asyncio.to_thread(read, url)
        client = AsyncClient(url, ADMIN_TOKEN)
        assert [
            task["id"] async for task in client.tasks.list(limit=2, sort="submitted_at")
        ] == made
        async with harness.client() as admin:
            later = (await harness.submitted(admin))["id"]
        async with aclosing(client.events.follow(from_=str(position))) as events:
            assert (await anext(events))["task"] == later
        await client.close()
    assert found == made


async def test_a_state_is_waited_for(harness: GatewayHarness) -> None:
    async with harness.client() as admin:
        task = (await harness.submitted(admin))["id"]
    async with served(harness) as url:
        client = AsyncClient(url, ADMIN_TOKEN)
        with pytest.raises(TimeoutError, match="queued"):
            await client.wait(task, timeout_seconds=0.05)
        assert (await client.wait(task, ["queued"]))["state"] == "queued"
        await client.close()


async def test_a_cancelled_stream_ends_its_request(harness: GatewayHarness) -> None:
    async with served(harness) as url:
        client = AsyncClient(url, ADMIN_TOKEN)
        events = client.events.follow(from_="latest")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(events)
        await events.aclose()
        await client.close()
