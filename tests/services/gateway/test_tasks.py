"""Submitting, listing, showing and changing tasks over HTTP, with the real submit behind."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from libs.bus.memory_broker import Faults
from libs.contracts import messages as m
from services.gateway import store as rows_of
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    NEW,
    SEES_ALL,
    GatewayHarness,
    assigned,
    exited,
    state,
)


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


@SEES_ALL
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
    assert await names("label=b") == ["one"]
    assert await names("label=a&label=b!=2") == ["two"]
    assert await names("label=a!=1") == ["three"]
    assert await names("label=a!=2&label=b=2") == ["one"]
    assert await names("name_prefix=t") == ["three", "two"]
    assert await names("name_prefix=tw&label=a") == ["two"]
    assert await names("group=elsewhere") == []
    assert await names("state=queued&sort=-priority") == ["one"]


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
        ("label==1", "label"),
        ("label=!=1", "label"),
        ("&".join(f"label=a{number}" for number in range(33)), "label"),
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
async def test_pages_join_to_the_whole_list_although_tasks_are_added_meanwhile(
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
    # No task is missing and none appears twice; the new one may be among them.
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
        """Once submit has received the end, too."""
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


@SEES_ALL
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


async def test_a_task_shows_each_state_of_its_life(
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
        "task": None,
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


async def test_running_times_are_summed_on_request(
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
