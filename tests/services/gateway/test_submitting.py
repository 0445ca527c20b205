"""Submitting tasks: one, several, again, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway.capacity import KEEP_SECONDS
from services.gateway.rows import TaskRow
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import NEW, SEES_ALL, GatewayHarness, a_node, state
from tests.services.gateway.test_yield import SAVED


async def test_a_role_declares_ports(ann: httpx.AsyncClient) -> None:
    ports = [{"name": "a", "port": 6006}, {"name": "b"}]
    role = {"name": "worker", "command": ["serve"], "ports": ports}
    made = await ann.post("/v1/tasks", json={"roles": [role]})
    assert made.status_code == 201, made.text
    (shown,) = made.json()["roles"]
    assert shown["ports"] == [{"name": "a", "port": 6006}, {"name": "b", "port": None}]
    # What is shown can be submitted again.
    again = await ann.post("/v1/tasks", json={"roles": [shown]})
    assert again.status_code == 201, again.text
    refused = await ann.post("/v1/tasks", json={"roles": [{**role, "ports": [{"port": 6006}]}]})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "roles[0].ports[0].name"


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
            "retry": {"max_retries": 2, "transient": 5},
            "contract": "coordinator",
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
        "retry": {
            "max_retries": 2,
            "user": None,
            "transient": 5,
            "platform": None,
            "unknown": None,
        },
        "retries_used": {
            "max_retries": 0,
            "user": 0,
            "transient": 0,
            "platform": 0,
            "unknown": 0,
        },
        "contract": "coordinator",
    }.items() <= task.items()
    (role,) = task["roles"]
    assert role == {
        "name": "worker",
        "replicas": 2,
        "command": ["python", "train.py"],
        "image": "",
        "env": {},
        "gpus": None,
        "cpus": None,
        "memory_bytes": None,
        "spread": None,
        "auxiliary": False,
        "working_directory": "",
        "ports": [],
        "args": [],
        "pod": None,
        "cpus_request": None,
        "memory_request_bytes": None,
        "restart": None,
        "starts_after": [],
        "ready": None,
        "debug": None,
        "resume": None,
    }
    assert task["preemption"] == {
        "mode": "signal",
        "signal": "TERM",
        "ack_deadline_seconds": 30.0,
    }
    assert task["reason"]["code"] == "queued"
    assert task["reason"]["text"]
    assert task["submitted_at"].endswith("Z")


async def test_the_same_key_is_the_same_task(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    key = {"idempotency-key": "once"}
    first = await ann.post("/v1/tasks", json=NEW, headers=key)
    again = await ann.post("/v1/tasks", json=NEW, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    # Submit's own event first: only then must the next event be the scheduler's.
    await until(lambda: harness.reached(1))
    await harness.project(state(first.json()["id"], m.TaskState.RUNNING, 5, attempt=1))
    later = await ann.post("/v1/tasks", json=NEW, headers=key)
    assert later.status_code == 200
    assert later.json()["state"] == "running"
    assert len((await ann.get("/v1/tasks")).json()["items"]) == 1


async def test_a_dry_run_reports_what_would_happen_and_stores_nothing(
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


@pytest.mark.parametrize("how", ["retry", "continue"])
async def test_a_task_that_is_submitted_again_is_warned_of_nothing_that_nobody_said(
    harness: GatewayHarness, ann: httpx.AsyncClient, how: str
) -> None:
    role = {"name": "a", "replicas": 2, "gpus": 1, "command": ["a"]}
    task = await ended(
        harness, ann, command=[], roles=[role], preemption={"mode": "kill"}, gpus_per_node=None
    )
    assert task["warnings"] == []
    harness.others.ended = {task["id"]: SAVED}
    made = (await ann.post(f"/v1/tasks/{task['id']}/{how}")).json()
    assert (made["warnings"], made["nodes"], made["preemption"]) == ([], 2, task["preemption"])


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
    ({"command": ["x"], "nodes": -1}, "nodes", "give 1 or more"),
    ({"command": ["x"], "nodez": 1}, "nodez", "leave this field out"),
    ({"command": ["x"], "priority": "urgent"}, "priority", "extreme_high"),
    ({"roles": [{"name": "a", "command": []}]}, "roles[0].command", "give the program"),
    ({"roles": [{"name": "a"}]}, "roles[0].command", "give the program"),
    ({"command": ["x"], "preemption": {"mode": "ask"}}, "preemption.mode", "signal"),
    ({"command": ["x"], "contract": "tfconfig"}, "contract", "did you mean tf_config?"),
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
async def test_a_flag_that_is_not_a_boolean_is_refused(
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


async def test_errors_never_contain_values_of_the_environment(ann: httpx.AsyncClient) -> None:
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


async def test_a_batch_accepts_and_refuses_its_tasks_individually(ann: httpx.AsyncClient) -> None:
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
async def test_a_batch_has_a_maximum_of_tasks(ann: httpx.AsyncClient) -> None:
    reply = await ann.post("/v1/tasks:batch", json={"tasks": [{"command": ["a"]}] * 3})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "tasks"


@SEES_ALL
async def test_a_pod_request_is_stored_and_shown(
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
    for client in (ann, admin):
        shown = (await client.get(f"/v1/tasks/{task['id']}")).json()
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


async def test_warnings_stay_with_the_task(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    body = {**NEW, "preemption": {"mode": "kill"}, "fence_after_seconds": 30.0}
    dry = (await ann.post("/v1/tasks:dry-run", json=body)).json()["task"]["warnings"]
    made = (await ann.post("/v1/tasks", json=body)).json()
    assert made["warnings"] == dry
    (warning,) = dry
    assert (warning["code"], warning["field"], warning["value"]) == (
        "fence-needs-sdk",
        "fence_after_seconds",
        "30.0",
    )
    # Before and after its event is projected.
    assert (await ann.get(f"/v1/tasks/{made['id']}")).json()["warnings"] == dry
    await until(lambda: harness.reached(1))
    assert (await ann.get(f"/v1/tasks/{made['id']}")).json()["warnings"] == dry
    (event,) = (await ann.get("/v1/events", params={"task": made["id"]})).json()["items"]
    assert event["data"]["warnings"] == dry


@pytest.mark.parametrize(
    ("path", "whose", "option"),
    [
        ("/v1/teams/vision", "team vision", "PATCH /v1/teams/vision with another default_priority"),
        ("/v1/users/ann", "ann", "PATCH /v1/users/ann with another default_priority"),
    ],
)
async def test_a_refusal_names_the_default_that_it_is_about(
    harness: GatewayHarness, admin: httpx.AsyncClient, path: str, whose: str, option: str
) -> None:
    await harness.project(a_node("n0"))
    async with harness.client(await harness.member("ann", team="vision")) as ann:
        grant = {"grant": True, "unlimited": True, "level_max": "normal"}
        assert (await admin.put("/v1/quotas", json=grant)).status_code == 200
        assert (await admin.patch(path, json={"default_priority": "high"})).status_code == 200
        refused: list[httpx.Response] = []

        async def refuses() -> bool:
            refused.append(await ann.post("/v1/tasks", json={"command": ["true"]}))
            return refused[-1].status_code == 422

        await until(refuses)
        (error,) = refused[-1].json()["errors"]
        assert error["field"] == "priority"
        assert error["message"].endswith(f"; high is the default of {whose}")
        assert error["fix"].endswith(f"; an administrator changes it: {option}")
        assert error["message"] in refused[-1].json()["detail"]
        given = await ann.post("/v1/tasks", json={"command": ["true"], "priority": "high"})
        assert "default of" not in given.text.replace("the site's default", "")
