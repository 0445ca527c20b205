"""Before the routes: the requester is known before a body is read; wrong tokens are bounded,
refusals are audited, and streams end with the right to read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from libs.contracts import messages as m
from libs.store.memory_database import Point, no_fault
from libs.store.port import DatabaseFaultError, StoreUnavailableError
from services.allinone.stopping import drain_nodes
from services.gateway.auth import Authenticator, token_hash
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.permissions import Visibility
from services.gateway.rows import AuditRow, TokenRow, UserRow
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    a_node,
    a_spec,
    assigned,
    run_token,
    served,
    state,
)


async def test_the_body_of_an_unauthenticated_request_is_not_read(harness: GatewayHarness) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(8):
            read += 1
            yield b" " * 100_000

    assert harness.gateway.app is not None
    for token in (None, "swt_false", "srt_false"):
        async with harness.client(token) as client:
            reply = await client.post("/v1/tasks:batch", content=body())
        assert reply.status_code == 401
    assert read == 0


@pytest.mark.parametrize("harness", [{"body_seconds_max": 0.2}], indirect=True)
async def test_a_body_that_does_not_arrive_in_time_ends_the_request(
    harness: GatewayHarness,
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    async with harness.client() as client:
        headers = {"content-type": "application/json"}
        reply = await client.post("/v1/tasks", content=body(), headers=headers)
    assert (reply.status_code, reply.json()["type"]) == (408, "timeout")


@pytest.mark.parametrize("harness", [{"wrong_tokens_burst": 3}], indirect=True)
async def test_wrong_tokens_of_an_address_are_bounded(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    assert (await ann.get("/v1/whoami")).status_code == 200
    statuses: list[int] = []
    for number in range(6):
        async with harness.client(f"swt_{number}") as wrong:
            statuses.append((await wrong.get("/v1/whoami")).status_code)
    assert statuses == [401, 401, 401, 429, 429, 429]
    # Known users, the administrator's token and tokens of genuine runs are still admitted.
    assert (await ann.get("/v1/whoami")).status_code == 200
    async with harness.client() as admin, harness.client(run_token("tt")) as run:
        assert (await admin.get("/v1/whoami")).status_code == 200
        assert (await run.get("/v1/run")).status_code == 200
    harness.clock.advance(10)
    async with harness.client("swt_again") as wrong:
        assert (await wrong.get("/v1/whoami")).status_code == 401


def client_at(harness: GatewayHarness, address: str, token: str | None) -> httpx.AsyncClient:
    assert harness.gateway.app is not None
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=harness.gateway.app, client=(address, 1)),
        base_url="http://gateway",
        headers={"authorization": f"Bearer {token}"} if token else {},
    )


@pytest.mark.parametrize(
    "harness", [{"wrong_tokens_burst": 3, "logins_burst": 3, "passwords": True}], indirect=True
)
@pytest.mark.parametrize("path", ["/v1/whoami", f"/v1/login/cli?challenge={'c' * 43}"])
async def test_limits_by_address_hold_for_a_network_of_ipv6(
    harness: GatewayHarness, path: str
) -> None:
    """One customer has 2**64 addresses."""
    statuses: list[int] = []
    for number in range(6):
        async with client_at(harness, f"2001:db8::{number + 1:x}", "swt_wrong") as client:
            statuses.append((await client.get(path)).status_code)
    assert statuses[3:] == [429] * 3
    assert 429 not in statuses[:3]
    async with client_at(harness, "2001:db8:0:1::1", "swt_wrong") as client:
        assert (await client.get(path)).status_code != 429


@pytest.mark.parametrize("harness", [{"wrong_tokens_burst": 1}], indirect=True)
async def test_a_right_token_is_accepted_however_many_wrong_ones_its_address_shows(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """This holds after a change of a user or token, and for a user that was never seen before."""
    for number in range(4):
        async with harness.client(f"swt_{number}") as wrong:
            await wrong.get("/v1/whoami")
    assert (await ann.get("/v1/whoami")).status_code == 200
    async with harness.client(await harness.member("bob")) as bob:
        assert (await bob.get("/v1/whoami")).status_code == 200
    assert (await ann.get("/v1/whoami")).status_code == 200


async def test_few_tokens_of_one_address_are_looked_up_at_a_time(harness: GatewayHarness) -> None:
    inside, most = 0, 0
    blocked = asyncio.Event()

    async def slow(point: Point, schema: str) -> None:
        nonlocal inside, most
        if schema == "gateway" and point is Point.BEGIN:
            inside += 1
            most = max(most, inside)
            await blocked.wait()
            inside -= 1

    async def ask(number: int) -> int:
        async with harness.client(f"swt_{number}") as wrong:
            return (await wrong.get("/v1/whoami")).status_code

    harness.database.fault = slow
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(number)) for number in range(20)]
        await asyncio.sleep(0.1)
        harness.database.fault = no_fault
        blocked.set()
    assert {each.result() for each in asked} == {401}
    assert most <= harness.settings.lookups_per_address_max + 2  # the gateway's own


@pytest.mark.parametrize(
    "harness", [{"wrong_tokens_burst": 5, "refusals_seconds": 0.05}], indirect=True
)
async def test_requests_without_a_token_are_bounded_and_leave_few_entries(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    """They bring no text of their own into the audit trail, and hide no refusals of others."""
    statuses: list[int] = []
    async with harness.client(None) as nobody:
        for number in range(60):
            path = f"/v1/%1b%5d0;pwn{number}%07" if number % 2 else f"/v1/nodes/n{number}/labels"
            statuses.append((await nobody.get(path)).status_code)
    assert statuses == [401] * 5 + [429] * 55
    assert (await ann.get("/v1/audit")).status_code == 403
    assert (await ann.get("/v1/tokens?user=bob")).status_code in (200, 403)

    async def entered() -> bool:
        trail = (await admin.get("/v1/audit")).json()["items"]
        return "ann" in {each["who"] for each in trail if each["action"] == "request"}

    await until(entered)
    trail = (await admin.get("/v1/audit")).json()["items"]
    nobodys = [each for each in trail if each["who"] == ""]
    assert {each["target"] for each in nobodys} <= {"GET none", "GET /v1/nodes/{node_id}/labels"}
    assert len(nobodys) <= 5


@pytest.mark.parametrize(
    "harness", [{"refusal_entries_burst": 3, "refusals_seconds": 0.02}], indirect=True
)
async def test_refused_changes_of_one_user_leave_few_entries(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    for _ in range(40):
        assert (await ann.put("/v1/quotas", json={"limit": 1})).status_code == 403
    await asyncio.sleep(0.2)
    trail = (await admin.get("/v1/audit?limit=1000")).json()["items"]
    assert len([each for each in trail if each["who"] == "ann"]) <= 4
    # They are counted, and entered once the limit allows it.
    harness.clock.advance(3600)

    async def counted() -> bool:
        trail = (await admin.get("/v1/audit?limit=1000")).json()["items"]
        mine = [each for each in trail if each["who"] == "ann"]
        return any("37 times" in each["detail"] for each in mine)

    await until(counted)


async def test_a_wrong_token_is_401_on_every_route(harness: GatewayHarness) -> None:
    for token in ("swt_false", "srt_false", "", "x" * 1000):
        async with harness.client(token) as client:
            for path in ("/v1/run", "/v1/tasks", "/v1/nothing"):
                assert (await client.get(path)).status_code == 401, (token, path)


@pytest.mark.parametrize("harness", [{"refusals_seconds": 0.05}], indirect=True)
async def test_refused_requests_are_in_the_audit_trail_summed_up(
    harness: GatewayHarness, admin: httpx.AsyncClient, ann: httpx.AsyncClient
) -> None:
    for _ in range(20):
        assert (await ann.get("/v1/audit")).status_code == 403
        async with harness.client("swt_false") as wrong:
            await wrong.get("/v1/tasks")

    async def entries() -> list[dict[str, Any]]:
        trail = (await admin.get("/v1/audit")).json()["items"]
        return [each for each in trail if each["action"] == "request"]

    async def complete() -> bool:
        times = [each["detail"].split(" ")[0] for each in await entries()]
        return sum(1 if each == "once" else int(each) for each in times) == 40

    await until(complete)
    found = await entries()
    assert len(found) < 20
    assert {(each["who"], each["target"], each["outcome"]) for each in found} == {
        ("ann", "GET /v1/audit", "forbidden"),
        ("", "GET /v1/tasks", "unauthenticated"),
    }
    assert "127.0.0.1" in found[0]["detail"]
    # The refusal of a change is one entry, with the change.
    await ann.put("/v1/quotas", json={"limit": 1})
    await asyncio.sleep(0.2)
    trail = (await admin.get("/v1/audit")).json()["items"]
    assert [each["action"] for each in trail if each["who"] == "ann"].count("quota.set") == 1
    assert not any("/v1/quotas" in each["target"] for each in trail)


async def forever(socket: ClientConnection) -> bool:
    await socket.recv()
    return False


@pytest.mark.parametrize("how", ["token", "user", "role", "elsewhere"])
async def test_streams_end_with_the_right_to_read_them(harness: GatewayHarness, how: str) -> None:
    """Events as server-sent events and by WebSocket, and followed output."""
    secret = await harness.member("ann")
    async with harness.client(secret) as ann, harness.client() as admin:
        task = await harness.submitted(ann)
        (token,) = (await ann.get("/v1/tokens")).json()["items"]
        headers = {"authorization": f"Bearer {secret}"}
        ended: list[str] = []

        async def read(client: httpx.AsyncClient, url: str) -> None:
            async with client.stream("GET", url, headers=headers) as stream:
                assert stream.status_code == 200
                async for _ in stream.aiter_bytes():
                    opened.add(url)
            ended.append(url)

        async def talk(url: str) -> None:
            async with connect(url, additional_headers=headers) as socket:
                await socket.recv()
                opened.add(url)
                with pytest.raises(ConnectionClosed, match="1008"):
                    await until(partial(forever, socket))
            ended.append(url)

        opened: set[str] = set()
        async with served(harness) as url, httpx.AsyncClient(timeout=20) as client:
            urls = [f"{url}/v1/events?follow=1", f"{url}/v1/tasks/{task['id']}/logs?follow=1"]
            async with asyncio.TaskGroup() as group:
                for each in urls:
                    group.create_task(read(client, each))
                group.create_task(talk(f"{url.replace('http', 'ws')}/v1/events"))
                await until(lambda: len(opened) == 3)
                await asyncio.sleep(0.2)
                assert ended == []
                if how == "token":
                    await admin.delete(f"/v1/tokens/{token['id']}")
                elif how == "user":
                    await admin.patch("/v1/users/ann", json={"disabled": True})
                elif how == "role":
                    await admin.patch("/v1/users/ann", json={"role": "admin"})
                else:
                    # Another process revoked it: this one has not seen the commit.
                    rows = harness.database.schema("gateway").table(TABLES.shape(TokenRow)).rows
                    rows.clear()
                await until(lambda: len(ended) == 3, 4)


async def test_a_drain_does_not_depend_on_fields_that_tasks_set(
    harness: GatewayHarness,
) -> None:
    pod = m.PodRequest(template='{"metadata": {"labels": {"a": "\\ud800"}}}')
    spec = a_spec(name="bad", pod=pod)
    harness.others.nodes = {"n0"}
    await harness.project(
        a_node("n0"),
        a_node("n1"),  # the launcher refuses to close this one
        m.TaskSubmitted(task_id="zz", owner="ann", spec=spec, submitted_at=at(0), revision=1),
        assigned("zz"),
        state("zz", m.TaskState.RUNNING, 2, attempt=1),
    )
    reply: list[str] = []
    remembered: list[str] = []
    async with harness.client() as client:
        drain = asyncio.ensure_future(drain_nodes(client, remembered.extend, reply.append))
        await until(
            lambda: any(isinstance(each, m.SetSchedulable) for each in harness.others.asked)
        )
        await until(lambda: any("waiting" in each for each in reply))
        assert not drain.done()
        await harness.project(state("zz", m.TaskState.PAUSED, 3, attempt=1))
        await drain
    assert remembered == ["n0", "n1"]
    assert "n1 cannot be drained" in "".join(reply)
    assert ADMIN_TOKEN not in "".join(reply)


@pytest.mark.parametrize("harness", [{"lookups_waiting_max": 5}], indirect=True)
async def test_the_queue_of_tokens_to_look_up_is_bounded(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """Requests beyond the limit must retry; a token that was valid before has a queue of its own,
    also after a look-up that the database did not answer."""
    assert (await ann.get("/v1/whoami")).status_code == 200
    harness.clock.advance(60)
    blocked = asyncio.Event()

    async def down(point: Point, schema: str) -> None:
        if schema == "gateway" and point is Point.BEGIN:
            raise StoreUnavailableError("down")

    async def slow(point: Point, schema: str) -> None:
        if schema == "gateway" and point is Point.BEGIN:
            await blocked.wait()

    async def ask(number: int) -> httpx.Response:
        # A customer with IPv6 has many addresses.
        async with client_at(harness, f"2001:db8::{number + 1:x}", f"swt_{number}") as wrong:
            return await wrong.get("/v1/whoami")

    harness.database.fault = down
    assert (await ann.get("/v1/whoami")).status_code == 503
    harness.database.fault = slow
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(number)) for number in range(8)]
        await asyncio.sleep(0.1)
        right = group.create_task(ann.get("/v1/whoami"))
        await asyncio.sleep(0.1)
        done = [each.result() for each in asked if each.done()]
        assert [(each.status_code, each.headers["retry-after"]) for each in done] == [
            (429, "1")
        ] * 3
        assert not right.done()
        harness.database.fault = no_fault
        blocked.set()
    assert sorted(each.result().status_code for each in asked) == [401] * 5 + [429] * 3
    assert right.result().status_code == 200


@pytest.mark.parametrize("harness", [{"refusals_seconds": 0.02}], indirect=True)
async def test_an_error_of_the_audit_table_does_not_stop_the_gateway(
    harness: GatewayHarness,
) -> None:
    """The refusals are entered later."""
    struck = 0

    async def faulty(point: Point, schema: str) -> None:
        nonlocal struck
        if schema == "gateway" and point is Point.BEFORE_COMMIT:
            struck += 1
            raise DatabaseFaultError("permission denied (SQLSTATE 42501)")

    harness.database.fault = faulty
    async with harness.client("swt_wrong") as wrong:
        assert (await wrong.get("/v1/whoami")).status_code == 401
    await until(lambda: struck >= 3)
    harness.database.fault = no_fault
    await until(
        lambda: any(
            row.action == "request" for row in harness.database.rows(TABLES, AuditRow).values()
        )
    )


async def test_an_unreadable_token_or_user_ends_no_stream_and_no_watch(
    harness: GatewayHarness,
) -> None:
    tokens = [await harness.member(name) for name in ("ann", "bob", "cem")]
    authenticator = Authenticator(
        harness.gateway.ports.store,
        harness.clock,
        admin_token=None,
        run_token_key=None,
        cache_seconds=5,
        cache_max=10,
        lookups=ConcurrencyLimit(3, 2),
        lookups_waiting_max=10,
        uses_seconds=60,
        session_idle_seconds=60,
        visibility=Visibility.TEAM,
    )
    people = [await authenticator.person(token, "here") for token in tokens]
    database = harness.database.schema("gateway")
    database.table(TABLES.shape(TokenRow)).broken[token_hash(tokens[0])] = "column id"
    database.table(TABLES.shape(UserRow)).broken["bob"] = "column role"
    with ExitStack() as stack:
        open_now = [stack.enter_context(authenticator.lasting(each)) for each in people]
        watch = asyncio.create_task(authenticator.watch())
        async with harness.client() as admin:
            reply = await admin.patch("/v1/users/cem", json={"disabled": True})
            assert reply.status_code == 200
        await until(open_now[2].over.is_set)
        assert [each.over.is_set() for each in open_now] == [False, False, True]
        assert not watch.done()
        watch.cancel()


@pytest.mark.parametrize(
    "harness", [{"requests_burst": 4, "requests_per_second": 2.0}], indirect=True
)
async def test_a_token_that_is_used_too_often_waits_and_others_do_not(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    async with harness.client(await harness.member("ann")) as ann:
        statuses = [(await ann.get("/v1/whoami")).status_code for _ in range(6)]
        assert statuses == [200, 200, 200, 200, 429, 429]
        refused = await ann.get("/v1/whoami")
        assert refused.headers["retry-after"] == "1"
        assert "more than 2 requests a second" in refused.json()["detail"]
        harness.clock.advance(60)
        assert (await ann.get("/v1/whoami")).status_code == 200
    assert (await admin.get("/v1/whoami")).status_code == 200
