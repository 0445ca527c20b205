"""Submitting, listing, showing and changing tasks over HTTP, with the real submit behind."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from libs.bus.memory_broker import Faults
from libs.contracts import messages as m
from services.gateway import store as rows_of
from services.gateway.capacity import KEEP_SECONDS
from services.gateway.rows import TaskRow
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness, a_node, assigned, exited, state

NEW = {"command": ["python", "train.py"], "name": "first"}


async def test_a_new_task_is_complete_at_once(ann: httpx.AsyncClient) -> None:
    made = await ann.post(
        "/v1/tasks",
        json={
            **NEW,
            "nodes": 2,
            "gpus_per_node": 4,
            "priority": "very_high",
            "env": {"A": "1"},
            "labels": {"team": "vision"},
            "max_run_seconds": 3600,
            "preemption": {"mode": "signal", "signal": "TERM", "ack_deadline_seconds": 30},
            "retry": {"max_retries": 2},
        },
    )
    assert made.status_code == 201, made.text
    task = made.json()
    assert made.headers["location"] == f"/v1/tasks/{task['id']}"
    assert {
        "name": "first",
        "owner": "ann",
        "group": "default",
        "priority": "very_high",
        "labels": {"team": "vision"},
        "nodes": 2,
        "gpus_per_node": 4,
        "goal": "run",
        "state": "queued",
        "attempt": 0,
        "started_at": None,
        "finished_at": None,
        "checkpoint": None,
        "exit": None,
        "revision": 1,
        "observed_revision": 0,
        "env": {"A": "1"},
        "max_run_seconds": 3600.0,
        "retry": {"max_retries": 2},
    }.items() <= task.items()
    (role,) = task["roles"]
    assert role == {
        "name": "worker",
        "replicas": 2,
        "command": ["python", "train.py"],
        "image": "",
        "env": {},
    }
    assert task["preemption"] == {
        "mode": "signal",
        "signal": "TERM",
        "ack_deadline_seconds": 30.0,
    }
    assert task["reason"]["code"] == "queued"
    assert task["reason"]["text"]
    assert task["submitted_at"].endswith("Z")


async def test_a_task_is_readable_and_listed_before_its_event_is_projected(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    harness.broker.faults = Faults(lose_delivery=1.0)
    made = await ann.post("/v1/tasks", json=NEW)
    task = made.json()
    shown = await ann.get(f"/v1/tasks/{task['id']}")
    assert shown.status_code == 200
    assert shown.json() == task
    listed = (await ann.get("/v1/tasks")).json()["items"]
    assert [each["id"] for each in listed] == [task["id"]]
    assert await harness.position() == 0


async def test_projection_replaces_the_accepted_row_without_a_trace(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    before = await ann.post("/v1/tasks", json=NEW)
    task = before.json()

    await until(lambda: harness.reached(1))
    after = (await ann.get(f"/v1/tasks/{task['id']}")).json()
    # The reason is the scheduler's to give; until it does there is none.
    assert {**after, "reason": None} == {**task, "reason": None}
    assert len((await ann.get("/v1/tasks")).json()["items"]) == 1


async def test_the_same_key_is_the_same_task(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    key = {"idempotency-key": "once"}
    first = await ann.post("/v1/tasks", json=NEW, headers=key)
    again = await ann.post("/v1/tasks", json=NEW, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    # Submit's own fact first: only then does the next one heard have to be the scheduler's.
    await until(lambda: harness.reached(1))
    await harness.project(state(first.json()["id"], m.TaskState.RUNNING, 5, attempt=1))
    later = await ann.post("/v1/tasks", json=NEW, headers=key)
    assert later.status_code == 200
    assert later.json()["state"] == "running"
    assert len((await ann.get("/v1/tasks")).json()["items"]) == 1


async def test_a_dry_run_says_what_would_be_and_stores_nothing(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    await harness.project(a_node("n0"), a_node("n1"))
    audited = (await admin.get("/v1/audit")).json()["items"]
    reply = await ann.post("/v1/tasks:dry-run", json={**NEW, "gpus_per_node": 1})
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert (found["task"]["id"], found["task"]["priority"]) == ("", "normal")
    assert (found["free_nodes"], found["ahead"]) == (2, 0)
    refused = await ann.post("/v1/tasks:dry-run", json={**NEW, "name": "Not A Name!"})
    assert refused.status_code == 422
    assert (await ann.get("/v1/tasks")).json()["items"] == []
    assert (await admin.get("/v1/audit")).json()["items"] == audited
    waiting = await harness.submitted(ann)
    await until(lambda: harness.reached(3))
    await harness.project(state(waiting["id"], m.TaskState.QUEUED, 1))
    harness.clock.advance(KEEP_SECONDS)
    assert (await ann.post("/v1/tasks:dry-run", json=NEW)).json()["ahead"] == 1


async def test_a_task_is_submitted_again_as_its_owners(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    first = (await ann.post("/v1/tasks", json={**NEW, "env": {"A": "secret"}})).json()
    await until(lambda: harness.reached(1))
    path = f"/v1/tasks/{first['id']}/retry"
    assert (await ann.post(path)).status_code == 409
    await harness.project(state(first["id"], m.TaskState.FAILED, 1, attempt=1))
    key = {"idempotency-key": "again"}
    made, same = [await admin.post(path, headers=key) for _ in range(2)]
    assert (made.status_code, same.status_code) == (201, 200)
    again = made.json()
    assert again["id"] == same.json()["id"] != first["id"]
    copied = ("name", "owner", "roles", "env", "nodes", "gpus_per_node", "preemption")
    assert {name: again[name] for name in copied} == {name: first[name] for name in copied}
    assert again["labels"] == {"retry-of": first["id"]}


async def ended(
    harness: GatewayHarness, client: httpx.AsyncClient, **fields: Any
) -> dict[str, Any]:
    task = await harness.submitted(client, **fields)
    await harness.project(state(task["id"], m.TaskState.FAILED, 1, attempt=1))
    return task


async def test_a_task_is_submitted_again_in_the_present_team_of_its_owner(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    for team in ("red", "blue"):
        assert (await admin.post("/v1/teams", json={"name": team})).status_code == 201
    async with harness.client(await harness.member("eve", "red")) as eve:
        task = await ended(harness, eve)
        assert task["team"] == "red"
        assert (await admin.patch("/v1/users/eve", json={"team": "blue"})).status_code == 200
        made = await eve.post(f"/v1/tasks/{task['id']}/retry")
        assert (made.status_code, made.json()["team"]) == (201, "blue")


async def test_a_task_of_a_disabled_owner_is_not_submitted_again(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    task = await ended(harness, ann)
    await admin.patch("/v1/users/ann", json={"disabled": True})
    refused = await admin.post(f"/v1/tasks/{task['id']}/retry")
    assert refused.status_code == 409
    assert f"ann, the owner of {task['id']}, is disabled" in refused.json()["detail"]
    assert "shiftwork user set ann --enable" in refused.json()["detail"]
    assert (await admin.get("/v1/audit")).json()["items"][0]["outcome"] == "conflict"
    await admin.patch("/v1/users/ann", json={"disabled": False})
    assert (await admin.post(f"/v1/tasks/{task['id']}/retry")).status_code == 201


async def test_a_task_with_as_many_labels_as_there_may_be_is_submitted_again(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await ended(harness, ann, labels={f"l{number}": "" for number in range(64)})
    again = await ann.post(f"/v1/tasks/{task['id']}/retry")
    assert again.status_code == 201, again.text
    assert again.json()["labels"] == {**task["labels"], "retry-of": task["id"]}


async def test_a_task_without_a_name_has_one_of_its_own_when_submitted_again(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    live = await harness.submitted(ann)
    assert (await ann.post(f"/v1/tasks/{live['id']}/retry")).status_code == 409
    task = await ended(harness, ann)
    assert task["name"] == f"train-{task['id'][-6:]}"
    again = (await ann.post(f"/v1/tasks/{task['id']}/retry")).json()
    assert again["name"] == f"train-{again['id'][-6:]}" != task["name"]


async def test_another_task_under_a_used_key_is_refused(ann: httpx.AsyncClient) -> None:
    key = {"idempotency-key": "once"}
    await ann.post("/v1/tasks", json=NEW, headers=key)
    other = await ann.post("/v1/tasks", json={"command": ["other"], "name": "x"}, headers=key)
    assert other.status_code == 409
    assert other.json()["type"] == "conflict"


async def test_a_refusal_of_submit_names_field_value_and_fix(ann: httpx.AsyncClient) -> None:
    refused = await ann.post("/v1/tasks", json={**NEW, "name": "Not A Name!"})
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert set(problem) == {"type", "title", "status", "detail", "errors"}
    (error,) = problem["errors"]
    assert error["field"] == "name"
    assert error["value"] == "Not A Name!"
    assert error["message"]
    assert error["fix"]


BAD_BODIES: list[tuple[dict[str, Any], str, str]] = [
    ({"command": "python"}, "command", "give a list"),
    ({"command": ["x"], "nodes": -1}, "nodes", "give 0 or more"),
    ({"command": ["x"], "nodez": 1}, "nodez", "leave this field out"),
    ({"command": ["x"], "priority": "urgent"}, "priority", "extreme_high"),
    ({"roles": [{"name": "a", "command": []}]}, "roles[0].command", "give at least 1"),
    ({"roles": [{"name": "a"}]}, "roles[0].command", "give this field"),
    ({"command": ["x"], "preemption": {"mode": "ask"}}, "preemption.mode", "signal"),
    ({"command": ["x"], "roles": [{"command": ["y"]}]}, "command", "not both"),
    ({"command": ["x"], "max_run_seconds": "soon"}, "max_run_seconds", "give a number"),
]


LOOSE: list[tuple[str, str, dict[str, Any], str]] = [
    ("PUT", "/v1/tasks/t1/goal", {"goal": "stop"}, "now"),
    ("POST", "/v1/tasks", NEW, "wait_for_nodes"),
    ("PUT", "/v1/nodes/n1/schedulable", {}, "schedulable"),
    ("PUT", "/v1/nodes/n1/schedulable", {"schedulable": False}, "drain"),
    ("PUT", "/v1/quotas", {}, "unlimited"),
    ("PATCH", "/v1/users/ann", {}, "disabled"),
]


@pytest.mark.parametrize(("method", "path", "body", "field"), LOOSE)
async def test_what_is_true_or_false_is_not_guessed(
    admin: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    for value in ("yes", 1):
        refused = await admin.request(method, path, json={**body, field: value})
        assert refused.status_code == 422, refused.text
        (error,) = refused.json()["errors"]
        assert (error["field"], error["fix"]) == (field, "give true or false")


@pytest.mark.parametrize(("body", "field", "fix"), BAD_BODIES)
async def test_a_wrong_field_is_named_with_its_fix(
    ann: httpx.AsyncClient, body: dict[str, Any], field: str, fix: str
) -> None:
    refused = await ann.post("/v1/tasks", json=body)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["field"] == field
    assert fix in error["fix"]


async def test_no_value_of_an_environment_comes_back_in_an_error(ann: httpx.AsyncClient) -> None:
    for env in ({"TOKEN": 12345678}, {"TOKEN": ["12345678"]}):
        refused = await ann.post("/v1/tasks", json={**NEW, "env": env})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "env.TOKEN"
        assert "12345678" not in refused.text


async def test_a_body_that_is_no_json_is_malformed(ann: httpx.AsyncClient) -> None:
    refused = await ann.post(
        "/v1/tasks", content=b"{", headers={"content-type": "application/json"}
    )
    assert refused.status_code == 400
    assert refused.json()["type"] == "malformed"


async def test_batch_accepts_and_refuses_one_by_one(ann: httpx.AsyncClient) -> None:
    tasks = [
        {"command": ["a"], "name": "a", "idempotency_key": "k"},
        {"command": ["a"], "name": "bad name"},
        {"command": ["c"], "name": "c"},
    ]
    reply = await ann.post("/v1/tasks:batch", json={"tasks": tasks})
    assert reply.status_code == 200
    items = reply.json()["items"]
    assert [item["status"] for item in items] == [201, 422, 201]
    assert items[0]["task"]["name"] == "a"
    assert items[1]["problem"]["errors"][0]["field"] == "name"
    again = await ann.post("/v1/tasks:batch", json={"tasks": tasks[:1]})
    assert [item["status"] for item in again.json()["items"]] == [200]


@pytest.mark.parametrize("harness", [{"batch_tasks_max": 2}], indirect=True)
async def test_a_batch_has_a_most(ann: httpx.AsyncClient) -> None:
    reply = await ann.post("/v1/tasks:batch", json={"tasks": [{"command": ["a"]}] * 3})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "tasks"


async def test_filters(
    harness: GatewayHarness, ann: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    one = await harness.submitted(ann, name="one", priority="high", labels={"a": "1", "b": "2"})
    two = await harness.submitted(ann, name="two", labels={"a": "1"})
    three = await harness.submitted(bob, name="three")
    await harness.project(state(two["id"], m.TaskState.RUNNING, 2, attempt=1))
    await harness.project(state(three["id"], m.TaskState.SUCCEEDED, 2, attempt=1))

    async def names(query: str) -> list[str]:
        reply = await ann.get(f"/v1/tasks?{query}")
        assert reply.status_code == 200, reply.text
        return [task["name"] for task in reply.json()["items"]]

    assert await names("") == ["three", "two", "one"]
    assert await names("sort=submitted_at") == ["one", "two", "three"]
    assert await names("sort=name") == ["one", "three", "two"]
    assert await names("sort=-priority") == ["one", "two", "three"]
    assert await names("state=running,queued") == ["two", "one"]
    assert await names("all=false") == ["two", "one"]
    assert await names("mine=1") == ["two", "one"]
    assert await names("owner=bob") == ["three"]
    assert await names("name=two") == ["two"]
    assert await names(f"id_prefix={one['id'][:-1]}") in (["one"], ["two", "one"])
    assert await names(f"id_suffix={one['id'][-6:]}") == ["one"]
    assert await names(f"id_suffix={one['id']}") == ["one"]
    assert await names("id_suffix=000000") == []
    assert await names("priority=high") == ["one"]
    assert await names("label=a=1") == ["two", "one"]
    assert await names("label=a=1&label=b=2") == ["one"]
    assert await names("group=elsewhere") == []
    queue = (await ann.get("/v1/queue")).json()["items"]
    assert [task["name"] for task in queue] == ["one"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=1001", "limit"),
        ("limit=0", "limit"),
        ("id_suffix=abcde", "id_suffix"),
        (f"id_suffix={'a' * 27}", "id_suffix"),
        ("state=resting", "state"),
        ("priority=urgent", "priority"),
        ("sort=colour", "sort"),
        ("label=a", "label"),
        ("cursor=nonsense", "cursor"),
    ],
)
async def test_wrong_queries_name_the_field(ann: httpx.AsyncClient, query: str, field: str) -> None:
    refused = await ann.get(f"/v1/tasks?{query}")
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["field"] == field
    assert error["fix"]


@pytest.mark.parametrize("sort", ["-submitted_at", "submitted_at", "name", "-priority", "state"])
async def test_pages_join_to_the_list_whatever_comes_meanwhile(
    harness: GatewayHarness, ann: httpx.AsyncClient, sort: str
) -> None:
    levels = ["low", "high", "normal"]
    for number in range(7):
        await harness.submitted(ann, name=f"task-{number}", priority=levels[number % 3])
    whole = (await ann.get(f"/v1/tasks?sort={sort}")).json()["items"]
    found: list[str] = []
    cursor = ""
    while True:
        page = (await ann.get(f"/v1/tasks?sort={sort}&limit=2&cursor={cursor}")).json()
        found += [task["id"] for task in page["items"]]
        assert len(page["items"]) <= 2
        cursor = page["next_cursor"]
        if cursor is None:
            break
        if len(found) == 2:
            await harness.submitted(ann, name="newcomer", priority="normal")
    # Nobody is missing and nobody comes twice; the newcomer may be among them.
    old = [each for each in found if each in {task["id"] for task in whole}]
    assert old == [task["id"] for task in whole]
    assert len(found) == len(set(found))


async def test_a_cursor_of_another_order_is_refused(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    for name in ("a", "b"):
        await harness.submitted(ann, name=name)
    cursor = (await ann.get("/v1/tasks?limit=1")).json()["next_cursor"]
    assert (await ann.get(f"/v1/tasks?sort=name&cursor={cursor}")).status_code == 422


async def test_goal_and_priority_are_stored_and_shown_when_applied(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    path = f"/v1/tasks/{task['id']}"
    before = await harness.position()
    reply = await ann.put(f"{path}/goal", json={"goal": "pause"})
    assert (reply.status_code, reply.json()) == (202, {"task": task["id"], "revision": 2})
    reply = await ann.put(f"{path}/priority", json={"priority": "low"})
    assert (reply.status_code, reply.json()["revision"]) == (202, 3)
    await until(lambda: harness.reached(before + 2))
    shown = (await ann.get(path)).json()
    assert (shown["goal"], shown["priority"]) == ("pause", "low")
    assert (shown["revision"], shown["observed_revision"]) == (3, 0)
    await harness.project(state(task["id"], m.TaskState.PAUSED, 2, observed_revision=3))
    shown = (await ann.get(path)).json()
    assert (shown["state"], shown["observed_revision"]) == ("paused", 3)


async def test_a_goal_of_an_ended_task_is_a_conflict(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    await harness.project(state(task["id"], m.TaskState.SUCCEEDED, 2, finished_at=at(9)))

    async def refused() -> bool:
        """Once submit has heard of the end, too."""
        reply = await ann.put(f"/v1/tasks/{task['id']}/goal", json={"goal": "pause"})
        return (reply.status_code, reply.json().get("type")) == (409, "conflict")

    await until(refused)


@pytest.mark.parametrize(
    "path", ["", "/explain", "/runs", "/decisions", "/logs", "/metrics", "/goal"]
)
async def test_an_unknown_task_is_not_found(ann: httpx.AsyncClient, path: str) -> None:
    if path == "/goal":
        reply = await ann.put("/v1/tasks/nobody/goal", json={"goal": "run"})
    else:
        reply = await ann.get(f"/v1/tasks/nobody{path}")
    assert reply.status_code == 404
    assert reply.json()["type"] == "not-found"
    assert "nobody" in reply.json()["detail"]


async def test_only_owner_and_admin_see_the_environment(
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
    admin: httpx.AsyncClient,
) -> None:
    role = {"name": "w", "replicas": 1, "command": ["x"], "env": {"B": "hush"}}
    task = (await ann.post("/v1/tasks", json={"roles": [role], "env": {"A": "hush"}})).json()
    path = f"/v1/tasks/{task['id']}"
    for client in (ann, admin):
        shown = (await client.get(path)).json()
        assert shown["env"] == {"A": "hush"}
        assert shown["roles"][0]["env"] == {"B": "hush"}
    assert "hush" not in (await bob.get(path)).text
    assert "hush" not in (await bob.get("/v1/tasks")).text
    await harness.project(assigned(task["id"]))
    assert "hush" not in (await ann.get("/v1/events")).text
    assert "hush" not in (await ann.get(f"{path}/runs")).text


async def test_what_is_asked_of_pods_is_stored_and_shown(
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
    admin: httpx.AsyncClient,
) -> None:
    variable = {"name": "A", "value": "hush"}
    template = {"spec": {"containers": [{"name": "main", "env": [variable]}]}}
    pod = {
        "image": "example/train:1",
        "shm_bytes": 1024,
        "env_from": [{"name": "KEY", "secret": "user.ann.key", "key": "k"}],
        "template": template,
    }
    role = {"name": "w", "replicas": 1, "command": ["x"], "image": "example/other:1"}
    task = await harness.submitted(ann, command=[], roles=[role], pod=pod)
    async with harness.gateway.ports.store.transaction() as tx:
        row = await tx.get(TaskRow, task["id"])
    assert row is not None
    assert row.spec is not None
    assert row.spec.roles[0].image == "example/other:1"
    assert row.spec.pod == m.PodRequest(
        image="example/train:1",
        shm_bytes=1024,
        env_from=(m.EnvSource(name="KEY", secret="user.ann.key", key="k"),),
        template=json.dumps(template, sort_keys=True),
    )
    for who in (ann, admin):
        shown = (await who.get(f"/v1/tasks/{task['id']}")).json()
        assert {name: shown["pod"][name] for name in pod if name != "env_from"} == {
            name: value for name, value in pod.items() if name != "env_from"
        }
        assert shown["roles"][0]["image"] == "example/other:1"
    assert "hush" not in (await bob.get(f"/v1/tasks/{task['id']}")).text
    events = await bob.get("/v1/events")
    assert "example/train:1" in events.text
    assert "hush" not in events.text


async def test_a_pod_template_that_is_not_allowed_is_refused_with_its_path(
    ann: httpx.AsyncClient,
) -> None:
    pod = {"template": {"spec": {"hostNetwork": True}}}
    refused = await ann.post("/v1/tasks", json={**NEW, "pod": pod})
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["field"] == "pod.template.spec.hostNetwork"
    assert error["fix"] == "leave it out, or ask an administrator to allow host_network"
    refused = await ann.post("/v1/tasks", json={**NEW, "pod": {"template": "hush"}})
    assert refused.json()["errors"][0]["field"] == "pod.template"
    assert "hush" not in refused.text
    refused = await ann.post("/v1/tasks", json={**NEW, "pod": {"immage": "x"}})
    assert refused.json()["errors"][0]["field"] == "pod.immage"


async def test_a_whole_life_as_the_task_shows_it(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    tid = task["id"]
    saved = m.Checkpoint(no=1, attempt=1, step=100, uri="/c/1", digest="d", saved_at=at(25))
    await harness.project(
        assigned(tid),
        state(tid, m.TaskState.STARTING, 2, attempt=1, held_gpus=2),
        m.RunStarted(task_id=tid, attempt=1, started_at=at(15)),
        state(tid, m.TaskState.RUNNING, 3, attempt=1, started_at=at(15)),
        m.CheckpointSaved(task_id=tid, attempt=1, checkpoint=saved),
        exited(tid, 1, m.ExitKind.FAILED, 3),
        state(tid, m.TaskState.FAILED, 4, attempt=1, started_at=at(15), finished_at=at(60)),
    )
    shown = (await ann.get(f"/v1/tasks/{tid}")).json()
    assert shown["state"] == "failed"
    assert shown["attempt"] == 1
    assert shown["started_at"] == "2026-01-01T00:00:15Z"
    assert shown["finished_at"] == "2026-01-01T00:01:00Z"
    assert shown["checkpoint"] == {
        "no": 1,
        "attempt": 1,
        "step": 100,
        "uri": "/c/1",
        "digest": "d",
        "saved_at": "2026-01-01T00:00:25Z",
    }
    assert {"kind": "failed", "code": 3, "text": "ended"}.items() <= shown["exit"].items()
    assert shown["exit"]["failed_rank"] is None
    (run,) = (await ann.get(f"/v1/tasks/{tid}/runs")).json()["items"]
    assert run["id"] == f"{tid}.1"
    assert run["placements"][0] == {
        "rank": 0,
        "role": "worker",
        "role_index": 0,
        "node": "n0",
        "gpus": [0, 1],
    }
    assert (run["live"], run["finished_at"]) == (False, "2026-01-01T00:01:00Z")
    assert run["checkpoint"]["step"] == 100


async def test_running_times_are_summed_where_asked_for(
    harness: GatewayHarness, ann: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await harness.submitted(ann, name=f"t{number}"))["id"] for number in range(3)]
    again = assigned(ids[0]).model_copy(update={"attempt": 2})
    await harness.project(
        assigned(ids[0]),
        m.RunStarted(task_id=ids[0], attempt=1, started_at=at(15)),
        exited(ids[0], 1, m.ExitKind.PREEMPTED, 75),
        m.RunResumed(**dict(again)),
        m.RunStarted(task_id=ids[0], attempt=2, started_at=at(50)),
        exited(ids[0], 2, m.ExitKind.OK, 0),
        assigned(ids[1]),
        m.RunStarted(task_id=ids[1], attempt=1, started_at=at(20)),
    )

    async def reply() -> list[float | None]:
        query = {"run_seconds": "true", "sort": "submitted_at"}
        items = (await ann.get("/v1/tasks", params=query)).json()["items"]
        return [item["run_seconds"] for item in items]

    # Both attempts ended at 60 s; one that runs and one that never ran have nothing to show.
    assert await reply() == [45.0 + 10.0, 0.0, 0.0]
    assert "run_seconds" not in (await ann.get("/v1/tasks")).json()["items"][0]
    monkeypatch.setattr(rows_of, "RUNS_SUMMED_MAX", 2)
    assert (await reply())[0] is None


async def test_explain_of_a_task_whose_row_the_scheduler_cannot_read_shows_the_known_state(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    harness.others.explanation = m.ExplainReply(
        reason=m.Reason(code=m.ReasonCode.ROW_SET_APART, names={"row": "Task t"}),
        explained_at=at(3),
    )
    reply = (await ann.get(f"/v1/tasks/{task['id']}/explain")).json()
    assert reply["state"] == "queued"
    assert reply["reason"]["code"] == "row_set_apart"


async def test_explain_is_the_schedulers_answer(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    path = f"/v1/tasks/{task['id']}/explain"
    early = (await ann.get(path)).json()
    assert (early["state"], early["position"]) == ("queued", 0)
    harness.others.explanation = m.ExplainReply(
        state=m.TaskState.QUEUED,
        reason=m.Reason(
            code=m.ReasonCode.WAITS_FOR_CAPACITY, numbers={"free_gpus": 2.0, "gpus": 8.0}
        ),
        position=2,
        queue_length=5,
        victims=("v1",),
        remedies=("wait",),
        explained_at=at(3),
        order=m.OrderPlace(
            level=m.Priority.HIGH, policy="timeshare", above=1, key=7.0, submitted_at=at(1)
        ),
        promised=(m.PromisedNode(node_id="n0", gpus=(0, 1), held_by=("v1",)),),
        chosen=(
            m.ChosenVictim(
                task_id="v1",
                level=m.Priority.LOW,
                reason=m.Reason(code=m.ReasonCode.PREEMPTED_BY),
                nodes=1.0,
                cost_node_seconds=60.0,
                deadline_at=at(9),
                why="it costs least",
            ),
        ),
        forecast=m.Forecast(starts_at=at(9), assumptions=("nothing fails",)),
    )
    reply = (await ann.get(path)).json()
    assert reply["reason"]["code"] == "waits_for_capacity"
    assert reply["reason"]["free_gpus"] == 2.0
    assert reply["reason"]["text"]
    assert (reply["position"], reply["queue_length"]) == (2, 5)
    assert (reply["victims"], reply["remedies"]) == (["v1"], ["wait"])
    order = reply["order"]
    assert (order["level"], order["policy"], order["above"]) == ("high", "timeshare", 1)
    assert order["submitted_at"].endswith("Z")
    assert reply["promised"] == [{"node": "n0", "gpus": [0, 1], "held_by": ["v1"]}]
    (chosen,) = reply["chosen"]
    assert (chosen["task"], chosen["level"], chosen["why"]) == ("v1", "low", "it costs least")
    assert chosen["reason"]["code"] == "preempted_by"
    assert reply["forecast"]["assumptions"] == ["nothing fails"]
    assert reply["beneficiary"] is None


async def test_decisions_come_in_pages(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    task = await harness.submitted(ann)
    harness.others.decisions = [
        m.DecisionRecord(
            no=number,
            decided_at=at(number),
            task_id=task["id"],
            attempt=1,
            kind="assign",
            reason=m.Reason(code=m.ReasonCode.PLACED),
        )
        for number in range(1, 6)
    ]
    found: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await ann.get(f"/v1/tasks/{task['id']}/decisions?limit=2&cursor={cursor}")).json()
        found += [each["no"] for each in page["items"]]
        cursor = page["next_cursor"]
    assert found == [1, 2, 3, 4, 5]


async def test_a_service_that_does_not_answer_is_a_503(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    harness.broker.partition("submit")
    for reply in (
        await ann.post("/v1/tasks", json={"command": ["x"]}),
        await ann.put(f"/v1/tasks/{task['id']}/goal", json={"goal": "stop"}),
    ):
        assert reply.status_code == 503
        assert reply.json()["type"] == "unavailable"
        assert int(reply.headers["retry-after"]) >= 1
    harness.broker.heal()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/tasks", None),
        ("POST", "/v1/tasks:batch", {"tasks": [{"command": ["x"]}]}),
    ],
)
async def test_a_database_that_does_not_answer_is_a_503(
    harness: GatewayHarness, ann: httpx.AsyncClient, method: str, path: str, body: Any
) -> None:
    assert (await ann.get("/v1/tasks")).status_code == 200
    harness.database.stop()
    reply = await ann.request(method, path, json=body)
    harness.database.start()
    assert reply.status_code == 503
    assert reply.headers["retry-after"]
    assert reply.json()["type"] == "unavailable"
