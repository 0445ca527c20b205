"""Whose tasks users see: every route x setting x role, lists, streams, and the one rule of both."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import cycle, product
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import websockets
from fastapi.routing import APIWebSocketRoute
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import messages as m
from libs.store.rows import select
from libs.store.terms import Query
from services.gateway import eventlog
from services.gateway.api.app import ROUTERS
from services.gateway.api.tasks import SORTS
from services.gateway.event_stream import EventFilter, Reader, Readers
from services.gateway.permissions import Reach, Role, Visibility, reach_of
from services.gateway.rows import AcceptedRow, EventRow, TaskRow
from services.gateway.sight import Sight
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    a_node,
    a_spec,
    assigned,
    preemption,
    served,
    sse,
    state,
)
from tests.services.gateway.test_access import CASES, Case, actions

# Of the task: ann's, of the team red.
PEOPLE = {
    "ann": (Role.USER, "red"),
    "bob": (Role.USER, "red"),
    "vic": (Role.VIEWER, "red"),
    "eve": (Role.USER, None),
    "dan": (Role.USER, "blue"),
    "olga": (Role.OPERATOR, None),
}
SEES = {
    Visibility.OWN: {"ann", "olga", "admin"},
    Visibility.TEAM: {"ann", "bob", "vic", "olga", "admin"},
    Visibility.ALL: {*PEOPLE, "admin"},
}
EACH_SETTING = pytest.mark.parametrize(
    "harness",
    [
        pytest.param(
            {"visibility": each.value},
            id=each.value,
            marks=() if each is Visibility.TEAM else pytest.mark.slow,
        )
        for each in Visibility
    ],
    indirect=True,
)
# Names that are in no answer to who may not see the task.
HIDDEN = ("hidden-name", "hidden-label", "hidden-command")
FIELDS = {"name": HIDDEN[0], "labels": {"a": HIDDEN[1]}, "command": [HIDDEN[2]]}


async def everybody(harness: GatewayHarness) -> dict[str, str]:
    """The tokens of all."""
    found = {name: await harness.member(name, team, role) for name, (role, team) in PEOPLE.items()}
    return {**found, "admin": ADMIN_TOKEN}


async def hidden_task(harness: GatewayHarness, token: str, *nodes: str) -> str:
    """A running task of ann's."""
    async with harness.client(token) as ann:
        task = (await harness.submitted(ann, **FIELDS))["id"]
    await harness.project(
        *(a_node(node) for node in nodes or ("n0",)),
        assigned(task, nodes=nodes or ("n0",)),
        state(task, m.TaskState.RUNNING, 2, attempt=1),
    )
    harness.others.nodes = {"n0"}
    harness.others.live_attempts = {task: 1}
    return task


def another(task: str) -> str:
    """An id of the same form that no task has."""
    return task[:-6] + ("222222" if not task.endswith("222222") else "333333")


def answered(reply: httpx.Response, task: str) -> tuple[int, list[tuple[str, str]], str]:
    """A whole answer, without the id that was asked for."""
    return reply.status_code, sorted(reply.headers.items()), reply.text.replace(task, "ID")


def expected(case: Case, who: str, role: Role) -> int:
    """What a user gets who sees the task."""
    reach = reach_of(actions()[case.route], role, (), Visibility.ALL)
    if reach is Reach.NONE:
        return 403
    return case.ok if reach is Reach.ALL or who == "ann" else case.foreign


@EACH_SETTING
async def test_a_task_that_is_not_seen_is_a_task_that_does_not_exist(
    harness: GatewayHarness,
) -> None:
    """On each route with a task's id: the same status, headers and body."""
    tokens = await everybody(harness)
    task = await hidden_task(harness, tokens["ann"])
    seen_by = SEES[harness.settings.visibility]
    of_a_task = [case for case in CASES if "{task}" in case.path]
    assert len(of_a_task) >= 12
    for who, token in tokens.items():
        role = PEOPLE[who][0] if who in PEOPLE else Role.ADMIN
        async with harness.client(token) as client:
            for case in of_a_task:
                replies = [
                    answered(
                        await client.request(
                            case.method, case.path.format(task=each, token=""), json=case.body
                        ),
                        each,
                    )
                    for each in (task, another(task))
                ]
                if who in seen_by:
                    assert replies[0][0] == expected(case, who, role), (who, case)
                else:
                    assert replies[0][0] == 404, (who, case)
                    assert replies[0] == replies[1], (who, case)


@EACH_SETTING
async def test_no_answer_names_a_task_that_is_not_seen(harness: GatewayHarness) -> None:
    """On each route that reads anything, also those about nodes, queues and amounts."""
    tokens = await everybody(harness)
    task = await hidden_task(harness, tokens["ann"])
    async with harness.client(tokens["ann"]) as ann:
        row = await harness.submitted(ann, **{**FIELDS, "name": "hidden-name-2"})
    waiting = row["id"]
    harness.others.queue = [
        m.WaitingTask(
            task_id=waiting,
            name=row["name"],
            owner=row["owner"],
            team=row["team"],
            group=row["group"],
            position=1,
            priority=m.Priority.NORMAL,
            level=m.Priority.NORMAL,
            submitted_at=harness.clock.now(),
            waiting_since=harness.clock.now(),
            reason=m.Reason(code=m.ReasonCode.WAITS_FOR_CAPACITY),
        )
    ]
    seen_by = SEES[harness.settings.visibility]
    reads = [case for case in CASES if case.method == "GET" and "/run" not in case.path]
    shown: set[str] = set()
    for who, token in tokens.items():
        async with harness.client(token) as client:
            for case in reads:
                reply = await client.get(case.path.format(task=task, token=""))
                named = [name for name in (*HIDDEN, waiting) if name in reply.text]
                if "{task}" not in case.path and task in reply.text:
                    named.append(task)
                if who not in seen_by:
                    assert not named, (who, case, reply.text)
                elif named:
                    shown.add(case.path)
            for query in ("name=hidden-name", f"id_prefix={task}", f"id_suffix={task[-8:]}"):
                found = (await client.get(f"/v1/tasks?{query}")).json()["items"]
                assert len(found) == (who in seen_by), (who, query)
    # What the test looks for is there to be found.
    assert {"/v1/tasks", "/v1/queue", "/v1/events", "/v1/nodes", "/v1/occupancy"} <= shown


@pytest.mark.parametrize("harness", [{"visibility": "own"}], indirect=True)
async def test_amounts_stay_without_the_tasks_that_hold_them(harness: GatewayHarness) -> None:
    tokens = await everybody(harness)
    task = await hidden_task(harness, tokens["ann"])
    shown: list[Any] = []
    for who in ("ann", "bob"):
        async with harness.client(tokens[who]) as client:
            (node,) = (await client.get("/v1/nodes")).json()["items"]
            assert node == (await client.get("/v1/nodes/n0")).json()
            (holder,) = (await client.get("/v1/occupancy")).json()["tasks"]
            (group,) = (await client.get("/v1/groups")).json()["items"]
            shown.append((node["held"], node["tasks"], node["hidden_tasks"], holder["id"]))
            assert (node["free_gpus"], group["used_nodes"], group["used_gpus"]) == (2, 1, 2)
    assert shown == [
        ({"0": task, "1": task}, [task], 0, task),
        ({"0": None, "1": None}, [], 1, None),
    ]


async def test_explain_names_only_tasks_that_are_seen(harness: GatewayHarness) -> None:
    tokens = await everybody(harness)
    hidden = await hidden_task(harness, tokens["ann"])
    async with harness.client(tokens["eve"]) as eve:
        own = (await harness.submitted(eve))["id"]
        harness.others.explanation = m.ExplainReply(
            state=m.TaskState.QUEUED,
            position=2,
            queue_length=3,
            victims=(hidden, own),
            remedies=(f"stop {hidden}, or wait",),
            holders=(m.Holder(task_id=hidden, nodes=1.0),),
            holders_count=1,
        )
        found = (await eve.get(f"/v1/tasks/{own}/explain")).json()
    assert list(found["tasks"]) == [own]
    # An id tells when its task was submitted.
    assert hidden not in str(found)
    assert (found["victims"], found["remedies"]) == (["hidden-1", own], ["stop hidden-1, or wait"])
    assert found["holders"][0]["task"] == "hidden-1"
    assert (found["position"], found["queue_length"], found["holders_count"]) == (2, 3, 1)


@pytest.mark.parametrize("preemptor_of", ["ann", "dan"])
async def test_reasons_name_only_tasks_that_are_seen(
    harness: GatewayHarness, preemptor_of: str
) -> None:
    """In each answer that has reasons, pages and live streams. ann's task is preempted for another
    one of hers, or for one of dan's, which she does not see."""
    tokens = await everybody(harness)
    task = await hidden_task(harness, tokens["ann"])
    async with harness.client(tokens[preemptor_of]) as client:
        preemptor = (await harness.submitted(client))["id"]
    names = {"task": preemptor, "priority": "PRIORITY_HIGH"}
    reason = m.Reason(code=m.ReasonCode.PREEMPTED_BY, names=names)
    harness.others.decisions.append(
        m.DecisionRecord(
            no=1, decided_at=at(1), task_id=task, attempt=1, kind="preempt", reason=reason
        )
    )
    paths = [
        *(f"/v1/tasks/{task}", "/v1/tasks?state=preempting", f"/v1/tasks/{task}/decisions"),
        *(f"/v1/tasks/{task}/runs", "/v1/events?type=preemption_requested"),
        f"/v1/events?task={task}&type=run",
    ]
    streams = ("type=preemption_requested", f"type=preemption_requested&task={task}")
    answers: list[tuple[str, str, Any]] = []
    async with served(harness) as url, AsyncExitStack() as stack, asyncio.timeout(20):
        live = [
            (who, query, await stack.enter_async_context(opened))
            for who, query in product(("ann", "olga"), streams)
            for opened in [events_of(url, tokens[who], f"from=latest&{query}")]
        ]
        await until(lambda: sum(each.is_idle for each in harness_readers(harness)) == len(live))
        await harness.project(
            preemption(task).model_copy(update={"reason": reason}),
            state(task, m.TaskState.PREEMPTING, 3, attempt=1, reason=reason),
        )
        answers += [(who, query, (await anext(stream)).data) for who, query, stream in live]
        for who, query in product(("ann", "olga"), streams):
            async with socket_at(url, f"/v1/events?{query}", tokens[who]) as socket:
                answers.append((who, "socket", json.loads(await socket.recv())))
        for who, path in product(("ann", "olga"), paths):
            async with harness.client(tokens[who]) as client:
                answers.append((who, path, (await client.get(path)).json()))
    for who, source, answer in answers:
        named = "hidden-1" if (who, preemptor_of) == ("ann", "dan") else preemptor
        assert f"for task {named} at level high" in str(answer), (who, source, answer)
        assert f"'task': '{named}'" in str(answer), (who, source)
        assert (preemptor in str(answer)) == (named == preemptor), (who, source)


# Streams


def routes_of_sockets() -> set[str]:
    return {
        route.path
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIWebSocketRoute)
    }


@asynccontextmanager
async def socket_at(url: str, path: str, token: str) -> AsyncIterator[Any]:
    headers = {"authorization": f"Bearer {token}"}
    address = url.replace("http", "ws", 1) + path
    async with websockets.connect(address, additional_headers=headers) as socket:
        yield socket


async def denied(url: str, path: str, token: str) -> tuple[int, str]:
    with pytest.raises(websockets.InvalidStatus) as refusal:
        async with socket_at(url, path, token):
            pass
    return refusal.value.response.status_code, (refusal.value.response.body or b"").decode()


async def test_sockets_show_what_the_user_sees(harness: GatewayHarness) -> None:
    assert routes_of_sockets() == {"/events", "/tasks/{task_id}/exec"}
    tokens = await everybody(harness)
    task = await hidden_task(harness, tokens["ann"])
    async with served(harness) as url:
        for who in ("eve", "dan"):
            found = [
                (status, body.replace(each, "ID"))
                for each in (task, another(task))
                for status, body in [await denied(url, f"/v1/tasks/{each}/exec", tokens[who])]
            ]
            assert found[0][0] == 404
            assert found[0] == found[1]
        assert (await denied(url, f"/v1/tasks/{task}/exec", tokens["bob"]))[0] == 403
        for who, types in (
            ("bob", ["task.submitted", "node.changed", "run.assigned", "task.state_changed"]),
            ("eve", ["node.changed"]),
        ):
            async with socket_at(url, "/v1/events", tokens[who]) as socket:
                async with asyncio.timeout(10):
                    events = [json.loads(await socket.recv()) for _ in types]
                assert [event["type"] for event in events] == types


@asynccontextmanager
async def events_of(url: str, token: str, query: str) -> AsyncIterator[AsyncIterator[Any]]:
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(timeout=10, headers=headers) as client,
        client.stream("GET", f"{url}/v1/events?{query}") as reply,
    ):
        assert reply.status_code == 200, await reply.aread()
        yield sse(reply)


async def test_live_events_reach_who_sees_them_and_a_changed_team_ends_the_stream(
    harness: GatewayHarness,
) -> None:
    tokens = await everybody(harness)
    async with (
        served(harness) as url,
        events_of(url, tokens["bob"], "from=latest") as of_bob,
        events_of(url, tokens["eve"], "from=latest") as of_eve,
        harness.client(tokens["ann"]) as ann,
        harness.client() as admin,
        asyncio.timeout(20),
    ):
        await until(lambda: sum(1 for _ in harness_readers(harness)) == 2)
        task = (await harness.submitted(ann, **FIELDS))["id"]
        await harness.project(a_node("n0"))
        first = await anext(of_bob)
        assert (first.data["task"], first.data["owner"], first.data["team"]) == (task, "ann", "red")
        assert first.data["group"] == "default"
        assert (await anext(of_bob)).data["type"] == "node.changed"
        assert (await anext(of_eve)).data["type"] == "node.changed"
        await admin.patch("/v1/users/bob", json={"team": "blue"})
        assert [each.data async for each in of_bob] == []
        async with harness.client(tokens["bob"]) as bob:
            assert (await bob.get(f"/v1/tasks/{task}")).status_code == 404


def harness_readers(harness: GatewayHarness) -> Iterator[Reader]:
    """The open readers of the gateway."""
    live: Any = next(
        each.__self__ for each in harness.gateway.tasks if each.__qualname__ == "LiveEvents.run"
    )
    return iter(live._readers)


async def test_a_followed_output_ends_with_the_right_to_see_it(harness: GatewayHarness) -> None:
    tokens = await everybody(harness)
    task = await hidden_task(harness, tokens["ann"])
    harness.others.outputs = {(1, 0): b"one\n"}
    async with served(harness) as url, asyncio.timeout(20):
        headers = {"authorization": f"Bearer {tokens['bob']}"}
        async with (
            httpx.AsyncClient(timeout=10, headers=headers) as bob,
            bob.stream("GET", f"{url}/v1/tasks/{task}/logs?follow=1") as reply,
            harness.client() as admin,
        ):
            pieces = sse(reply)
            assert "one" in str((await anext(pieces)).data)
            await admin.patch("/v1/users/bob", json={"role": "viewer", "team": ""})
            assert [each.event async for each in pieces] == []


# Filters of events


async def test_events_are_filtered_by_owner_team_group_and_task(harness: GatewayHarness) -> None:
    tokens = await everybody(harness)
    made: dict[str, str] = {}
    for who in ("ann", "dan"):
        async with harness.client(tokens[who]) as client:
            made[who] = (await harness.submitted(client))["id"]
    await harness.project(a_node("n0", group="other"), assigned(made["dan"]))

    async def found(who: str, query: str) -> list[tuple[str, str | None]]:
        async with harness.client(tokens[who]) as client:
            reply = await client.get(f"/v1/events?{query}")
        assert reply.status_code == 200, reply.text
        return [(event["type"], event["owner"]) for event in reply.json()["items"]]

    of_dan = [("task.submitted", "dan"), ("run.assigned", "dan")]
    assert await found("olga", "owner=dan") == of_dan
    assert await found("olga", "team=blue") == of_dan
    assert await found("olga", "team=blue&type=run") == of_dan[1:]
    assert await found("olga", "group=other") == [("node.changed", None)]
    assert await found("olga", "group=default") == [("task.submitted", "ann"), *of_dan]
    assert await found("olga", "owner=ann&team=blue") == []
    assert await found("bob", "owner=dan") == []
    assert await found("bob", "owner=ann") == [("task.submitted", "ann")]
    assert await found("bob", "") == [("task.submitted", "ann"), ("node.changed", None)]
    assert await found("dan", "limit=2") == [("task.submitted", "dan"), ("node.changed", None)]


async def test_events_that_come_before_their_tasks_submission_get_its_owner(
    harness: GatewayHarness,
) -> None:
    tokens = await everybody(harness)
    early = state("tlate", m.TaskState.RUNNING, 2, attempt=1)
    await harness.project(early)
    async with harness.client(tokens["bob"]) as bob:
        assert (await bob.get("/v1/events")).json()["items"] == []
        await harness.project(
            m.TaskSubmitted(
                task_id="tlate",
                owner="ann",
                team="red",
                spec=a_spec(),
                submitted_at=at(1),
                revision=1,
            )
        )
        events = (await bob.get("/v1/events")).json()["items"]
    assert [(event["type"], event["owner"], event["group"]) for event in events] == [
        ("task.state_changed", "ann", "default"),
        ("task.submitted", "ann", "default"),
    ]


async def test_a_leader_adds_the_owners_that_an_older_version_left_out(
    harness: GatewayHarness,
) -> None:
    known = TaskRow("tknown", submitted_at=at(0), owner="ann", team="red", group="train")
    async with harness.gateway.ports.store.transaction() as tx:
        tx.put(known, an_event(1, "", "", task="tknown"), an_event(2, "", "", task="tpruned"))
    async with harness.gateway.ports.store.transaction() as tx:
        assert await eventlog.claim_all(tx, 10) == 1
    async with harness.gateway.ports.store.transaction() as tx:
        rows = await tx.select(EventRow)
        assert await eventlog.claim_all(tx, 10) == 0
    assert [(row.owner, row.team, row.group) for row in rows] == [
        ("ann", "red", "train"),
        ("", "", ""),
    ]


# The rule


OWNERS, TEAMS = ("ann", "bob", "eve"), ("", "red", "blue")
SIGHTS = [Sight(), *(Sight(user, team) for user, team in product(OWNERS, TEAMS))]


def an_event(number: int, owner: str, team: str, group: str = "", task: str = "t") -> EventRow:
    row = EventRow(number, "run.exited", f"f{number}", task, 1, at(0), {})
    return replace(row, owner=owner, team=team, group=group)


@pytest.mark.parametrize("sight", SIGHTS, ids=repr)
def test_conditions_and_rows_have_the_same_rule(sight: Sight) -> None:
    """Each row that is seen meets one alternative, and each other row none."""
    rows = [
        TaskRow(f"t{number}", owner=owner, team=team)
        for number, (owner, team) in enumerate(product(OWNERS, TEAMS))
    ]
    shape = TABLES.shape(TaskRow)
    found = [row for each in sight.alternatives() for row in select(shape, rows, Query(where=each))]
    assert len(found) == len({row.task_id for row in found})
    seen = {row.task_id for row in rows if sight.shows(row)}
    assert {row.task_id for row in found} == seen
    by_hand = {
        row.task_id
        for row in rows
        if not sight.user or row.owner == sight.user or (row.team and row.team == sight.team)
    }
    assert seen == by_hand


NAMES = st.sampled_from(("", "ann", "red"))
FILTERS = st.builds(
    EventFilter,
    task_id=st.sampled_from(("", "t", "u")),
    types=st.sampled_from((frozenset[str](), frozenset({"run.exited"}), frozenset({"run"}))),
    owner=NAMES,
    team=NAMES,
    group=NAMES,
    sight=st.sampled_from((Sight(), Sight("ann"), Sight("ann", "red"))),
)
EVENTS = st.lists(
    st.builds(an_event, st.just(0), NAMES, NAMES, NAMES, st.sampled_from(("", "t", "u"))),
    max_size=8,
).map(lambda rows: [replace(row, position=no) for no, row in enumerate(rows)])


@settings(max_examples=60)
@given(wanted=st.lists(FILTERS, max_size=4), rows=EVENTS)
def test_live_readers_get_what_the_table_has(
    wanted: list[EventFilter], rows: list[EventRow]
) -> None:
    readers = Readers()
    opened = [Reader("ann", each, 10) for each in wanted]
    for reader in opened:
        readers.add(reader)
    shape = TABLES.shape(EventRow)
    for reader in opened:
        stored = [
            row.position
            for each in reader.wanted.seen()
            for row in select(shape, rows, Query(where=(*reader.wanted.where(), *each)))
        ]
        fed = [row.position for row in rows if reader in readers.of(row)]
        assert sorted(stored) == fed
    for reader in opened:
        readers.discard(reader)
    assert list(readers) == []


def test_an_event_costs_what_its_own_readers_cost() -> None:
    readers = Readers()
    tested: list[EventFilter] = []

    class Counted(EventFilter):
        def takes(self, row: EventRow) -> bool:
            tested.append(self)
            return super().takes(row)

    for number in range(1000):
        readers.add(Reader("ann", Counted(owner=f"u{number}"), 10))
        readers.add(Reader("ann", Counted(sight=Sight(f"u{number}", f"t{number}")), 10))
        readers.add(Reader("ann", Counted(task_id=f"t{number}"), 10))
    assert len(readers.of(an_event(1, "u7", "t7", task="t7"))) == 3
    assert len(tested) <= 4


# Pages


async def stored_tasks(harness: GatewayHarness) -> list[TaskRow]:
    """Tasks of all owners and teams, projected and on their way, with many equals."""
    rows: list[TaskRow] = []
    for number, (owner, team, level) in enumerate(product(OWNERS, TEAMS, (10, 20))):
        kind = AcceptedRow if number % 5 == 4 else TaskRow
        rows.append(
            kind(
                f"t{(number * 7) % 18:02}",
                submitted_at=at(number),
                owner=owner,
                team=team,
                name=f"n{number % 4}",
                group=f"g{number % 2}",
                priority="high" if level == 10 else "low",
                priority_order=level,
                state=("queued", "running", "failed")[number % 3],
                labels={"a": str(number % 2)},
            )
        )
    async with harness.gateway.ports.store.transaction() as tx:
        tx.put(*rows)
    return rows


async def paged(client: httpx.AsyncClient, query: str, limit: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        reply = await client.get(f"/v1/tasks?{query}&limit={limit}{cursor}")
        assert reply.status_code == 200, reply.text
        page = reply.json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        assert len(page["items"]) == limit
        cursor = f"&cursor={quote(page['next_cursor'])}"


async def test_pages_in_each_order_have_each_matching_task_once(harness: GatewayHarness) -> None:
    rows = await stored_tasks(harness)
    tokens = {
        "ann": await harness.member("ann", "red"),
        "eve": await harness.member("eve"),
        "admin": ADMIN_TOKEN,
    }
    sights = {"ann": Sight("ann", "red"), "eve": Sight("eve"), "admin": Sight()}
    filters: dict[str, Any] = {
        "": lambda _: True,
        "team=red": lambda row: row.team == "red",
        "owner=eve&group=g1": lambda row: (row.owner, row.group) == ("eve", "g1"),
        "state=queued,failed&label=a=1&priority=low": lambda row: (
            row.state != "running" and row.labels["a"] == "1" and row.priority == "low"
        ),
    }
    for who, token in tokens.items():
        async with harness.client(token) as client:
            # Each order, with the filters in turn.
            for (query, holds), (name, sort) in zip(cycle(filters.items()), SORTS.items()):
                found = await paged(client, f"{query}&sort={name}", limit=3)
                seen = [row for row in rows if sights[who].shows(row) and holds(row)]
                seen.sort(key=lambda row: row.task_id, reverse=sort.key_descending)
                seen.sort(key=lambda row: getattr(row, sort.column), reverse=sort.descending)
                ids = [item["id"] for item in found]
                assert ids == [row.task_id for row in seen], (who, query, name)


async def test_a_cursor_of_another_order_or_filter_is_refused(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await stored_tasks(harness)
    first = (await admin.get("/v1/tasks?sort=name&team=red&limit=2")).json()["next_cursor"]
    for query, message in (
        ("sort=name&team=blue", "belongs to a list with other filters"),
        ("sort=name", "belongs to a list with other filters"),
        ("sort=-name&team=red", "belongs to another order (name)"),
        ("sort=priority&team=red", "belongs to another order (name)"),
    ):
        reply = await admin.get(f"/v1/tasks?{query}&cursor={first}")
        assert reply.status_code == 422
        (error,) = reply.json()["errors"]
        assert (error["field"], error["message"]) == ("cursor", message)
    assert (await admin.get(f"/v1/tasks?sort=name&team=red&cursor={first}")).status_code == 200
    whole = (await admin.get("/v1/tasks?limit=2")).json()["next_cursor"]
    reply = await admin.get(f"/v1/tasks?team=red&cursor={whole}")
    assert reply.json()["errors"][0]["message"] == "belongs to a list with other filters"


def test_each_order_of_tasks_has_an_index() -> None:
    indexes = {tuple(each.columns) for each in TABLES.shape(TaskRow).indexes}
    for name, sort in SORTS.items():
        if sort.column == sort.key:
            continue
        parts = (sort.column, sort.descending), (sort.key, sort.key_descending)
        ways = {
            tuple(f"{column}{' DESC' * (falls is not back)}" for column, falls in parts)
            for back in (False, True)
        }
        assert ways & indexes, name


# People


async def test_who_sees_no_accounts_learns_no_other_team_no_amount_and_no_name(
    harness: GatewayHarness,
) -> None:
    tokens = await everybody(harness)
    grant = m.Quota(grant=True, team="red", limit=8, unit=m.Unit.GPUS)
    cap = m.Quota(team="red", limit=6, unit=m.Unit.GPUS)
    harness.others.permissions = (
        m.QuotaAllowance(
            group="default",
            priority=m.Priority.NORMAL,
            decides=m.HeldQuota(quota=grant, held=5),
            caps=(m.HeldQuota(quota=cap, held=4),),
            gpus=3,
            nodes=2,
        ),
    )

    async def get(who: str, path: str) -> httpx.Response:
        async with harness.client(tokens[who]) as client:
            return await client.get(path)

    for who in ("ann", "olga", "admin"):
        found = (await get(who, "/v1/quotas/explain?user=ann")).json()
        (each,) = found["permissions"]
        # Of the cap, which binds first: the grant leaves 3.
        assert (found["team"], each["held"], each["free"]) == ("red", 4, 2), who
        assert (each["granted"]["held"], each["granted"]["free"]) == (5, 3), who
        assert (each["gpus_held"], each["nodes_held"]) == (3, 2)
        assert (each["caps"][0]["team"], each["caps"][0]["held"]) == ("red", 4)
        assert "red" in each["because"]
    # bob and vic are in the same team, and vic looks only.
    for who in ("bob", "vic", "eve"):
        reply = await get(who, "/v1/quotas/explain?user=ann")
        (each,) = reply.json()["permissions"]
        # The team of the caller is no secret.
        assert ("red" in reply.text) == (who != "eve"), who
        assert {each[name] for name in ("held", "free", "gpus_held", "nodes_held")} == {None}
        assert (each["limit"], each["caps"][0]["limit"], each["binds"]) == (6, 6, "cap")
        for row in (each["granted"], each["caps"][0]):
            assert (row["held"], row["free"]) == (None, None)
    # Neither are names suggested, nor does a list tell which there are.
    for who, is_told in (("olga", True), ("bob", False)):
        explained = await get(who, "/v1/quotas/explain?user=ane")
        assert (explained.status_code, "did you mean" in explained.text) == (404, is_told)
        listed = await get(who, "/v1/tasks?owner=ane")
        assert listed.status_code == (422 if is_told else 200)
    same = [(await get("eve", f"/v1/tasks?owner={name}")).json() for name in ("ann", "ane")]
    assert same[0] == same[1]


def filters(described: Mapping[str, Any], *names: str) -> Iterator[tuple[str, str]]:
    """Each list of the API with each of these filters that it has."""
    for path, methods in described["paths"].items():
        if path != "/v1/quotas/explain" and "{" not in path:
            for each in methods.get("get", {}).get("parameters", ()):
                if each["in"] == "query" and each["name"] in names:
                    yield path, each["name"]


async def test_no_filter_tells_who_sees_no_accounts_which_users_there_are(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """On each list: the same answer for a user who is there as for one who is not."""
    tokens = await everybody(harness)
    described = (await admin.get("/v1/openapi.json")).json()
    lists = [*filters(described, "owner", "user", "who", "requester")]
    assert {path for path, _ in lists} >= {"/v1/tasks", "/v1/events", "/v1/quotas", "/v1/usage"}
    for who in ("vic", "bob"):
        async with harness.client(tokens[who]) as client:
            for path, name in lists:
                replies = [await client.get(f"{path}?{name}={user}") for user in ("dan", "daan")]
                first, second = (
                    (each.status_code, re.sub('[^,]*_at".*|"(from|to)":[^,]*', "", each.text))
                    for each in replies
                )
                assert (first[0], first[1]) == (second[0], second[1].replace("daan", "dan")), path
                assert "did you mean" not in replies[1].text, path


@pytest.mark.parametrize("harness", [{"visibility": "own"}], indirect=True)
async def test_a_filter_does_not_tell_of_tasks_that_are_not_seen(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    """On each list: a team or a group that was removed is known where a task that is seen names
    it."""
    tokens = await everybody(harness)
    await hidden_task(harness, tokens["ann"])
    async with harness.store(TABLES).transaction() as tx:
        (row,) = await tx.select(TaskRow)
        tx.put(replace(row, team="gone", group="gone"))
    lists = [*filters((await admin.get("/v1/openapi.json")).json(), "team", "group")]
    checked: set[str] = set()
    for path, name in lists:
        found: dict[str, int] = {}
        for who in ("ann", "bob", "olga"):
            async with harness.client(tokens[who]) as client:
                url = f"{path}?{name}=gone" + ("&name=nothing" if path == "/v1/tasks" else "")
                found[who] = (await client.get(url)).status_code
        # Usage of a team is its members', and users are listed to those who see accounts.
        if found["olga"] == 200 and found["bob"] != 403:
            expected = {"ann": 200, "bob": 422, "olga": 200}
            assert found == expected, (path, name)
            checked.add(f"{path} {name}")
    assert {
        f"/v1/{each} group" for each in ("tasks", "queue", "nodes", "events", "usage")
    } < checked
    assert {"/v1/tasks team", "/v1/quotas team", "/v1/events team"} < checked
