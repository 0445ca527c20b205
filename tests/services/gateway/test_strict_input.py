"""Requests that no honest client sends: each is refused with 4xx, and spoils nothing for others.

On PostgreSQL, because a database refuses what memory takes: NUL, numbers beyond 64 bits.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from libs.contracts import messages as m
from libs.service.wiring import Wiring
from libs.store.connections import Address, connect
from services.gateway.main import WIRING
from services.gateway.rows import AcceptedRow, EventRow, MetricsRow, NodeRow, RunRow, TaskRow
from services.gateway.store import After, Sort
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    a_node,
    a_spec,
    assigned,
    run_token,
)

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.server

SURROGATE = b'"\\ud800"'
NUL = b'"a\\u0000b"'


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest_asyncio.fixture
async def harness(tmp_path: Path, address: Address) -> AsyncIterator[GatewayHarness]:
    async with GatewayHarness(tmp_path, address=address).running() as running:
        running.others.nodes = {"n0"}
        running.others.live_attempts = {"tt": 1}
        await running.project(a_node("n0"), assigned("tt"))
        yield running


# Places of texts in bodies, with %s where the text goes.
PLACES = [
    ("POST", "/v1/tasks", b'{"command":["x"],"pod":{"template":{"metadata":{"labels":{"a":%s}}}}}'),
    ("POST", "/v1/tasks", b'{"command":[%s]}'),
    ("POST", "/v1/tasks", b'{"command":["x"],"labels":{"a":%s}}'),
    ("POST", "/v1/tasks", b'{"command":["x"],"labels":{%s:"a"}}'),
    ("POST", "/v1/tasks", b'{"command":["x"],"env":{"A":%s}}'),
    ("POST", "/v1/tasks", b'{"command":["x"],"working_directory":%s}'),
    ("POST", "/v1/tasks:dry-run", b'{"command":["x"],"labels":{"a":%s}}'),
    ("POST", "/v1/tasks:batch", b'{"tasks":[{"command":[%s]}]}'),
    ("POST", "/v1/tasks:batch", b'{"tasks":[{"command":["x"],"idempotency_key":%s}]}'),
    ("PUT", "/v1/nodes/n0/labels", b'{"set":{"a":%s}}'),
    ("PUT", "/v1/nodes/n0/taints", b'{"set":[%s]}'),
    ("PUT", "/v1/quotas", b'{"limit":1,"group":%s}'),
    ("PUT", "/v1/policies", b'{"groups":{%s:{"policy":"fifo"}}}'),
    ("PUT", "/v1/policies/training", b'{"policy":%s}'),
    ("POST", "/v1/policies:dry-run", b'{"groups":{%s:{"policy":"fifo"}}}'),
    ("POST", "/v1/tokens", b'{"user":"admin","name":%s}'),
    ("POST", "/v1/run/checkpoints", b'{"step":1,"uri":%s}'),
    ("POST", "/v1/run/checkpoints", b'{"step":1,"uri":"/c","digest":%s}'),
    ("POST", "/v1/run/ready", b'{"rank":%s}'),
    ("POST", "/v1/run/metrics", b'{"samples":[{"values":{%s:1}}]}'),
    ("POST", "/v1/dead-letters:replay", b'{"service":"quota","ids":[%s]}'),
]


async def test_text_that_cannot_be_stored_is_refused_in_every_body(harness: GatewayHarness) -> None:
    headers = {"content-type": "application/json"}
    async with harness.client(run_token("tt")) as run, harness.client() as admin:
        described = (await admin.get("/v1/openapi.json")).json()["paths"]
        every_route = [
            (method.upper(), re.sub(r"{\w+}", "x", path), body)
            for path, methods in described.items()
            for method, operation in methods.items()
            if "requestBody" in operation
            for body in (b'{"x":%s}', b"{%s:1}")
        ]
        assert len(every_route) > 20
        for method, path, body in (*every_route, *PLACES):
            for text in (SURROGATE, NUL):
                client = run if path.startswith("/v1/run") else admin
                reply = await client.request(method, path, content=body % text, headers=headers)
                assert reply.status_code == 400, (path, body, text, reply.text)
                assert reply.json()["type"] == "malformed"
                assert reply.json()["errors"][0]["fix"]


TARGETS = [
    "/v1/tasks/{}",
    "/v1/tasks/{}/explain",
    "/v1/tasks/{}/decisions",
    "/v1/tasks/{}/runs",
    "/v1/tasks/{}/metrics",
    "/v1/tasks/{}/logs",
    "/v1/nodes/{}",
    "/v1/users/{}",
    "/v1/policies/{}",
    "/v1/tasks?owner={}",
    "/v1/tasks?name={}",
    "/v1/tasks?group={}",
    "/v1/tasks?id_prefix={}",
    "/v1/tasks?id_suffix=abcdef{}",
    "/v1/tasks?label=a={}",
    "/v1/tasks?label=a{}",
    "/v1/tasks?label=a!={}",
    "/v1/tasks?name_prefix={}",
    "/v1/queue?group={}",
    "/v1/nodes?group={}",
    "/v1/quotas?user={}",
    "/v1/events?task={}",
]


async def test_text_that_cannot_be_stored_is_refused_in_every_path_and_query(
    harness: GatewayHarness,
) -> None:
    async with harness.client() as admin:
        for target in TARGETS:
            for text in ("%00", "a%00b", "%ff", "%ed%a0%80"):
                reply = await admin.get(target.format(text))
                assert reply.status_code == 400, (target, text, reply.text)


LISTS = [
    ("/v1/tasks", "-task_id", "tt", "tt"),
    ("/v1/tasks?sort=-priority", "-priority_order", 4, "tt"),
    ("/v1/nodes", "node_id", "n", "n"),
    ("/v1/quotas", "version", 5, 5),
    ("/v1/policies", "group", "g", "g"),
    ("/v1/users", "name", "a", "a"),
    ("/v1/teams", "name", "a", "a"),
    ("/v1/tokens", "-id", "a", "a"),
    ("/v1/audit", "-id", "a", "a"),
]
WRONG = [5, 2.5, True, None, [], {}, 10**30, float("nan"), "a\0b", "\ud800", 2**63, -(2**70)]


async def test_a_cursor_of_another_type_is_refused(harness: GatewayHarness) -> None:
    async with harness.client() as admin:
        for path, name, good, good_key in LISTS:
            pairs = [(wrong, good_key) for wrong in WRONG] + [(good, wrong) for wrong in WRONG]
            raws = [json.dumps([name, *pair]).encode() for pair in pairs]
            for raw in (*raws, b"[" * 1400, b"\xff", b"{}", b'"x"', b"[1,2]"):
                cursor = base64.urlsafe_b64encode(raw).decode()
                reply = await admin.get(httpx.URL(path).copy_add_param("cursor", cursor))
                fits = raw in (b'["version", 5, 5]', b'["-priority_order", 5, "tt"]')
                assert reply.status_code == (200 if fits else 422), (path, raw[:80], reply.text)
            cursor = base64.urlsafe_b64encode(json.dumps([name, good, good_key]).encode()).decode()
            reply = await admin.get(httpx.URL(path).copy_add_param("cursor", cursor))
            assert reply.status_code == 200, (path, reply.text)


def test_a_cursor_that_was_written_is_read() -> None:
    sort = Sort("priority_order", True, "task_id", False)
    after = After(-3, "täsk")
    assert After.read(after.write(sort), sort) == after


FAR = [
    "/v1/tasks/tt/runs?cursor=9999999999999999999",
    "/v1/tasks/tt/metrics?cursor=9999999999999999999",
    "/v1/tasks/tt/decisions?cursor=9223372036854775808",
    "/v1/events?from=99999999999999999999",
    "/v1/events?cursor=99999999999999999999",
    "/v1/events?from=-9999999999999999999",
    "/v1/tasks/tt/logs?since=0001-01-01T00:00:00%2B14:00",
    "/v1/tasks/tt/logs?since=9999-12-31T23:59:59-14:00",
    "/v1/tasks/tt/logs?since=1969-12-31T23:59:59Z",
    "/v1/tasks?limit=99999999999999999999",
    "/v1/tasks?sort=state,name",
    "/v1/tasks?sort=",
    "/v1/tasks?label==b",
    "/v1/tasks/tt/logs?rank=0&offset=9223372036854775808",
]


async def test_numbers_and_dates_beyond_every_bound_are_not_5xx(harness: GatewayHarness) -> None:
    async with harness.client(run_token("tt")) as run, harness.client() as admin:
        for target in FAR:
            reply = await admin.get(target)
            assert reply.status_code < 500, (target, reply.text)
        for timestamp in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", 1e300, -1):
            body = {"samples": [{"at": timestamp, "values": {"a": 1}}]}
            reply = await run.post("/v1/run/metrics", json=body)
            assert reply.status_code == 422, reply.text
            assert reply.json()["errors"][0]["field"] == "samples[0].at"


async def test_every_float_that_is_reported_reads_back(harness: GatewayHarness) -> None:
    await harness.project(
        m.TaskSubmitted(task_id="tt", owner="ann", spec=a_spec(), submitted_at=at(0), revision=1)
    )
    values = {"big": 1e20, "huge": 1e308, "tiny": 5e-324, "none": "NaN", "up": "Infinity"}
    values |= {"down": "-Infinity", "half": 0.5}
    async with harness.client(run_token("tt")) as run:
        for second in (1, 2):
            body = {"samples": [{"at": at(second).isoformat(), "values": values}]}
            reply = await run.post("/v1/run/metrics", json=body)
            assert reply.status_code == 202, reply.text
    async with harness.client() as admin:
        reply = await admin.get("/v1/tasks/tt/metrics")
    assert reply.status_code == 200, reply.text
    (row,) = reply.json()["items"]
    assert row["latest"] == values
    assert [point["values"] for point in row["points"]] == [values, values]


@pytest.mark.parametrize(
    ("kind", "column", "path"),
    [
        (TaskRow, "spec", "/v1/tasks?limit=1"),
        (TaskRow, "labels", "/v1/tasks?sort=-priority"),
        (NodeRow, "node", "/v1/nodes"),
        (NodeRow, "node", "/v1/nodes?limit=1"),
        (EventRow, "data", "/v1/events?from=0&limit=500"),
        (RunRow, "placements", "/v1/tasks/{task}/runs"),
        (MetricsRow, "points", "/v1/tasks/{task}/metrics"),
    ],
)
async def test_a_list_survives_a_row_that_cannot_be_read(
    harness: GatewayHarness, address: Address, kind: type[Any], column: str, path: str
) -> None:
    """One row of each list has a column that somebody changed by hand; it is named, and the
    others are shown."""
    async with harness.client() as admin:
        tasks = [await harness.submitted(admin, name=f"t{n}") for n in range(3)]
        task_id = tasks[0]["id"]
        for number in range(3):
            await harness.project(a_node(f"n{number + 1}"))
        for attempt in (1, 2):
            await harness.project(assigned(task_id, attempt))
        async with harness.gateway.ports.store.transaction() as tx:
            for rank in range(2):
                tx.put(MetricsRow(task_id, rank, 1, harness.clock.now(), {}, [], 1, 0))
            # What the task's POST wrote may still be there, on another page than its row.
            row = await tx.get(TaskRow, task_id)
            names = [column.name for column in fields(AcceptedRow)]
            if await tx.get(AcceptedRow, task_id) is None:
                tx.put(AcceptedRow(**{name: getattr(row, name) for name in names}))
        expected = await whole_list(admin, path.format(task=task_id))
        broken = await break_first(address, kind, column, task_id)
        found = await whole_list(admin, path.format(task=task_id))
        assert len(found.items) == len(expected.items) - 1
        assert found.unreadable == {broken}
        assert expected.unreadable == set()


async def test_a_task_that_cannot_be_read_is_there_for_those_who_see_it_alone(
    harness: GatewayHarness, address: Address
) -> None:
    tokens = {name: await harness.member(name, team) for name, team in TEAMS.items()}
    async with harness.client(tokens["ann"]) as ann:
        task = await harness.submitted(ann)
    await break_first(address, TaskRow, "labels", task["id"])
    found: dict[str, list[int]] = {}
    for name, token in {**tokens, "admin": ADMIN_TOKEN}.items():
        async with harness.client(token) as client:
            page = (await client.get("/v1/tasks")).json()
            reply = await client.get(f"/v1/tasks/{task['id']}")
            found[name] = [reply.status_code, len(page.get("unreadable", []))]
    assert found == {"ann": [500, 1], "bob": [500, 1], "eve": [404, 0], "admin": [500, 1]}


TEAMS = {"ann": "red", "bob": "red", "eve": None}


async def break_first(address: Address, kind: type[Any], column: str, task_id: str) -> str:
    """Change a column of one row by hand; the row's key as text. A column of tasks, runs and
    metrics: of this task."""
    shape = TABLES.shape(kind)
    table, key = f"gateway.{shape.table}", " || '/' || ".join(f"{name}::text" for name in shape.key)
    first = f"SELECT min({key}) FROM {table}"
    if "task_id" in shape.key:
        first += f" WHERE task_id = '{task_id}'"
    connection = await connect(address)
    try:
        return await connection.fetchval(
            f"UPDATE {table} SET \"{column}\" = '1' WHERE {key} = ({first}) RETURNING {key}"
        )
    finally:
        await connection.close()


@dataclass
class Listed:
    items: list[Any] = field(default_factory=list[Any])
    unreadable: set[str] = field(default_factory=set[str])


async def whole_list(client: httpx.AsyncClient, path: str) -> Listed:
    """Every page of a list."""
    listed, cursor = Listed(), None
    while True:
        more = f"{'&' if '?' in path else '?'}cursor={cursor}" if cursor else ""
        reply = await client.get(path + more)
        assert reply.status_code == 200, reply.text
        page = reply.json()
        listed.items += page["items"]
        listed.unreadable |= {each["id"] for each in page.get("unreadable", [])}
        cursor = page["next_cursor"]
        if not cursor or "events" in path:
            return listed


async def test_a_list_survives_a_row_that_cannot_be_shown(harness: GatewayHarness) -> None:
    """A row from before bodies were read strictly: a template with half a character."""
    async with harness.client() as admin:
        good = await harness.submitted(admin, name="good")
        pod = m.PodRequest(template='{"metadata": {"labels": {"a": "\\ud800"}}}')
        spec = a_spec(name="bad", pod=pod)
        await harness.project(
            m.TaskSubmitted(task_id="zz", owner="ann", spec=spec, submitted_at=at(0), revision=1)
        )
        for path in (
            "/v1/tasks",
            "/v1/tasks?sort=-priority",
            "/v1/tasks?limit=1",
            "/v1/tasks?sort=name",
        ):
            items: list[str] = []
            unreadable: list[Any] = []
            cursor: str | None = ""
            while cursor is not None:
                url = httpx.URL(path)
                reply = await admin.get(url.copy_add_param("cursor", cursor) if cursor else url)
                assert reply.status_code == 200, reply.text
                page = reply.json()
                items += [each["id"] for each in page["items"]]
                unreadable += page.get("unreadable", [])
                cursor = page["next_cursor"]
                if path.endswith("limit=1") and cursor:
                    path = "/v1/tasks"  # noqa: PLW2901 - the cursor goes on from here
            assert items == [good["id"]]
            assert [each["id"] for each in unreadable] == ["zz"]
            assert unreadable[0]["problem"]
        reply = await admin.get("/v1/tasks/zz")
        assert (reply.status_code, reply.json()["type"]) == (500, "internal")
        assert "zz" in reply.json()["detail"]
        counted = await admin.get("/v1/events?task=zz")
        assert counted.status_code == 200


NO_JSON = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 5000,
    b"NaN",
    b"1e999",
    b"\xff\xfe",
    b'{"samples":[{"values":{"a":NaN}}]}',
    b'{"samples":[{"values":{"a":1e999}}]}',
]


async def test_a_body_that_is_not_json_is_refused_with_the_reason(harness: GatewayHarness) -> None:
    headers = {"content-type": "application/json"}
    async with harness.client(run_token("tt")) as run, harness.client() as admin:
        for body in NO_JSON:
            for path in ("/v1/tasks", "/v1/tasks:batch", "/v1/run/metrics"):
                client = run if path.startswith("/v1/run") else admin
                reply = await client.post(path, content=body, headers=headers)
                assert reply.status_code in (400, 422), (path, body[:60], reply.text)


async def test_an_error_names_a_bounded_number_of_fields(harness: GatewayHarness) -> None:
    """A body of unknown keys costs about what a good body costs, and so does its answer."""
    body = {"command": ["x"], **{f"k{number}": 1 for number in range(15_000)}}
    async with harness.client() as admin:
        reply = await admin.post("/v1/tasks", json=body)
        assert reply.status_code == 422
        assert len(reply.json()["errors"]) <= 50
        assert "14950 more" in reply.json()["detail"] or "more" in reply.json()["detail"]
        many = {"command": ["x"], "env": {f"k{number}": "1" for number in range(30_000)}}
        reply = await admin.post("/v1/tasks", json=many)
        assert reply.status_code in (400, 422)
        assert len(reply.text) < 20_000


async def test_quoted_text_in_a_query_is_accepted(harness: GatewayHarness) -> None:
    """A backslash before u0000 makes it text like any other."""
    async with harness.client() as admin:
        labels = {"a": "\\u0000é\U0001f600"}
        made = await admin.post("/v1/tasks", json={"command": ["x"], "labels": labels})
        assert made.status_code == 201, made.text
        assert made.json()["labels"] == labels
        found = await admin.get(f"/v1/tasks?label=a={quote(made.json()['labels']['a'])}")
        assert [each["id"] for each in found.json()["items"]] == [made.json()["id"]]


@pytest.mark.parametrize(
    "body",
    [
        b'{"command":["x"],"priority":"low","priority":"high"}',
        b'{"command":["x"],"env":{"A":"1","A":"2"}}',
        b'{"command":["x"],"pod":{"template":{"spec":{"a":[{"b":1,"c":1e5,"b":2}]}}}}',
        # The same name, written in two ways.
        b'{"command":["x"],"env":{"A":"1","\\u0041":"2"}}',
    ],
)
async def test_a_name_that_stands_twice_is_refused(harness: GatewayHarness, body: bytes) -> None:
    """JSON parsers differ in which of the two values they use."""
    async with harness.client() as client:
        headers = {"content-type": "application/json"}
        reply = await client.post("/v1/tasks", content=body, headers=headers)
    assert (reply.status_code, reply.json()["type"]) == (400, "malformed"), reply.text
    assert "stands twice in one object" in reply.json()["detail"]


async def test_the_same_key_in_several_objects_is_accepted(harness: GatewayHarness) -> None:
    body = b'{"command":["x"],"env":{"name":"1"},"labels":{"name":"1"},"name":"n"}'
    async with harness.client() as client:
        headers = {"content-type": "application/json"}
        reply = await client.post("/v1/tasks", content=body, headers=headers)
    assert reply.status_code == 201, reply.text


async def test_a_range_that_ends_before_it_begins_is_refused_on_every_route_that_takes_one(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(admin))["id"]
    await harness.project(a_node("n1"))
    paths = (await admin.get("/v1/openapi.json")).json()["paths"]
    ranges = {"from": "to", "since": "until"}
    tried = set[str]()
    for path, methods in paths.items():
        names = {each["name"] for each in methods.get("get", {}).get("parameters", ())}
        for begin, end in ranges.items():
            if not {begin, end} <= names:
                continue
            tried.add(path)
            filled = path.replace("{task_id}", task).replace("{node_id}", "n1")
            query = {begin: "2026-01-02T00:00:00Z", end: "2026-01-01T00:00:00Z"}
            query |= {"rank": "0"} if path.endswith("/logs") else {}
            reply = await admin.get(filled, params=query)
            assert reply.status_code == 422, (path, reply.text)
            (error,) = reply.json()["errors"]
            assert (error["field"], error["value"]) == (begin, query[begin]), path
            assert error["message"] == f"is not before the end of the range, {query[end]}"
    assert {"/v1/audit", "/v1/usage", "/v1/tasks/{task_id}/logs"} <= tried
