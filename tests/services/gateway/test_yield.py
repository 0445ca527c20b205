"""The routes by which a run hands its nodes over, keeps a state and changes its own priority; and
tasks that go on with ended ones."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from libs.contracts.limits import LIFE_STATE_BYTES_MAX
from tests.kit.clock import at
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    SEES_ALL,
    GatewayHarness,
    assigned,
    exited,
    run_token,
    state,
)

SAVED = m.Checkpoint(no=3, attempt=2, step=300, uri="/c/300", digest="d", saved_at=at(9))


def yielded(task_id: str, reason: str = "") -> m.RunYielded:
    return m.RunYielded(task_id=task_id, attempt=1, reason=reason, requested_at=at(5))


def of_runs(harness: GatewayHarness) -> list[Any]:
    return [command for command in harness.others.asked if not isinstance(command, m.Reemit)]


async def test_a_run_hands_its_nodes_over_and_all_its_ranks_are_asked_to_leave(
    harness: GatewayHarness,
) -> None:
    harness.others.live_attempts = {"tt": 1}
    await harness.project(assigned("tt"))
    async with harness.client(run_token("tt")) as run:
        before = (await run.get("/v1/run")).json()
        reply = await run.post("/v1/run/yield", json={"reason": "no data"})
        assert (reply.status_code, reply.json()["preempt"]) == (202, True)
        asked = m.YieldRun(task_id="tt", attempt=1, reason="no data")
        assert of_runs(harness) == [asked]
        await harness.project(yielded("tt", "no data"))
        after = (await run.get(f"/v1/run?wait_seconds=5&seen={before['revision']}")).json()
        assert (before["preempt"], after["preempt"]) == (False, True)
        # The other ranks' calls cost the launcher nothing.
        assert (await run.post("/v1/run/yield", json={})).status_code == 202
        assert of_runs(harness) == [asked]
        # A checkpoint of a rank that is still saving acknowledges no request: there was none.
        await run.post("/v1/run/checkpoints", json={"step": 1, "uri": "/c"})
        assert harness.others.asked[-1].preempt_requested is False  # type: ignore[attr-defined]


async def test_a_yield_is_shown_with_its_run_and_in_the_events(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    await harness.project(assigned(task), yielded(task, "no data"))
    (run,) = (await ann.get(f"/v1/tasks/{task}/runs")).json()["items"]
    assert run["yielded"] == {"requested_at": "2026-01-01T00:00:05Z", "reason": "no data"}
    (event,) = (await ann.get(f"/v1/events?task={task}&type=run.yielded")).json()["items"]
    assert event["data"]["reason"] == "no data"


async def test_a_reason_that_is_too_long_is_refused(harness: GatewayHarness) -> None:
    async with harness.client(run_token("tt")) as run:
        reply = await run.post("/v1/run/yield", json={"reason": "x" * 201})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "reason"


async def test_a_run_that_is_over_can_do_nothing_of_this(harness: GatewayHarness) -> None:
    await harness.project(assigned("tt"), exited("tt"))
    async with harness.client(run_token("tt")) as run:
        replies = [
            await run.post("/v1/run/yield", json={}),
            await run.get("/v1/run/state"),
            await run.put("/v1/run/state", json={"data": ""}),
            await run.put("/v1/run/priority", json={"priority": "low"}),
        ]
    assert {(reply.status_code, reply.json()["type"]) for reply in replies} == {(409, "superseded")}
    assert of_runs(harness) == []


async def test_a_life_state_is_kept_by_the_launcher_and_read_by_run_and_owner(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    harness.others.live_attempts = {task: 1}
    await harness.project(assigned(task))
    data = b64encode(b'{"seen": 3}').decode()
    async with harness.client(run_token(task)) as run:
        nothing = await run.get("/v1/run/state")
        assert (nothing.json()["version"], nothing.json()["data"]) == (0, None)
        body = {"data": data, "media_type": "application/json"}
        kept = await run.put("/v1/run/state", json=body)
        assert (kept.status_code, kept.json(), kept.headers["etag"]) == (200, {"version": 1}, '"1"')
        found = await run.get("/v1/run/state")
    assert found.headers["etag"] == '"1"'
    assert {**body, "version": 1, "bytes": 11, "attempt": 1}.items() <= found.json().items()
    assert (await ann.get(f"/v1/tasks/{task}/state")).json() == found.json()
    # The task itself shows size and time alone.
    saved = m.LifeStateSaved(task_id=task, attempt=1, version=1, size=11, saved_at=at(1))
    old = saved.model_copy(update={"version": 0, "size": 5})
    await harness.project(saved, old)
    shown = (await ann.get(f"/v1/tasks/{task}")).json()["life_state"]
    assert shown == {
        "version": 1,
        "bytes": 11,
        "attempt": 1,
        "saved_at": "2026-01-01T00:00:01Z",
    }


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"data": b64encode(b"x" * (LIFE_STATE_BYTES_MAX + 1)).decode()}, "data"),
        ({"data": "not base64!"}, "data"),
        ({"data": "", "media_type": "text/html"}, "media_type"),
        ({}, "data"),
    ],
)
async def test_the_error_of_a_life_state_names_the_field(
    harness: GatewayHarness, body: dict[str, Any], field: str
) -> None:
    async with harness.client(run_token("tt")) as run:
        reply = await run.put("/v1/run/state", json=body)
    assert reply.status_code == 422
    (error,) = reply.json()["errors"]
    assert error["field"] == field
    if len(body.get("data", "")) > LIFE_STATE_BYTES_MAX:
        assert error["message"] == "has 65537 bytes"
        assert error["fix"] == "give at most 65536, and keep more in a checkpoint"
    elif body.get("data"):
        assert error["message"] == "is not base64"
        assert error["fix"] == "encode the content in base64"


@pytest.mark.parametrize(
    "harness", [{"run_writes_burst": 1, "run_writes_per_second": 1.0}], indirect=True
)
async def test_a_task_that_writes_its_state_too_often_is_asked_to_wait(
    harness: GatewayHarness,
) -> None:
    harness.others.live_attempts = {"tt": 1}
    async with harness.client(run_token("tt")) as run:
        replies = [await run.put("/v1/run/state", json={"data": ""}) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 429]
        assert replies[1].headers["retry-after"] == "1"
        # Other writes have a rate of their own.
        assert (await run.post("/v1/run/yield", json={})).status_code == 202


async def test_a_program_changes_its_own_priority_with_its_owners_rights(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann, gpus_per_node=2))["id"]
    async with harness.client(run_token(task)) as run:
        reply = await run.put("/v1/run/priority", json={"priority": "low"})
        assert reply.status_code == 202
        await until(lambda: harness.reached(2))
        assert (await ann.get(f"/v1/tasks/{task}")).json()["priority"] == "low"
        (event,) = (await ann.get("/v1/events?type=task.priority_changed")).json()["items"]
        assert event["data"]["changed_by"] == "its program (attempt 1)"
        # What the owner may not do by hand is refused with the same error.
        limit = {
            "user": "ann",
            "priority": "very_high",
            "group": "default",
            "unit": "gpus",
            "limit": 1,
        }
        reply = await admin.put("/v1/quotas?force=true", json=limit)
        assert reply.status_code == 200, reply.text
        await until(lambda: harness.reached(3))
        by_hand = await ann.put(f"/v1/tasks/{task}/priority", json={"priority": "very_high"})
        by_itself = await run.put("/v1/run/priority", json={"priority": "very_high"})
        assert by_hand.status_code == by_itself.status_code == 422
        assert by_hand.json()["errors"] == by_itself.json()["errors"]
    entries = (await admin.get("/v1/audit")).json()["items"]
    own = [each for each in entries if each["action"].startswith("task.own_priority")]
    assert [(each["who"], each["target"], each["outcome"]) for each in own] == [
        ("ann", task, "invalid"),
        ("ann", task, "done"),
    ]
    assert own[1]["detail"] == "by its program (attempt 1)"


async def test_the_program_of_a_disabled_owner_changes_nothing(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    task = (await harness.submitted(ann))["id"]
    await admin.patch("/v1/users/ann", json={"disabled": True})
    async with harness.client(run_token(task)) as run:
        reply = await run.put("/v1/run/priority", json={"priority": "low"})
    assert reply.status_code == 422
    assert "ann, the owner of the task, is disabled" in reply.json()["detail"]


async def ended(
    harness: GatewayHarness, client: httpx.AsyncClient, attempt: int = 1, **fields: Any
) -> str:
    task = (await harness.submitted(client, **fields))["id"]
    await harness.project(state(task, m.TaskState.FAILED, 1, attempt=attempt))
    return task


async def test_an_ended_task_goes_on_as_a_new_one_of_its_chain(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    first = await ended(harness, ann, env={"A": "secret"})
    harness.others.ended = {first: SAVED}
    key = {"idempotency-key": "on"}
    made, same = [await ann.post(f"/v1/tasks/{first}/continue", headers=key) for _ in range(2)]
    assert (made.status_code, same.status_code) == (201, 200)
    second = made.json()
    assert second["id"] == same.json()["id"] != first
    assert (second["chain"], second["continues"], second["env"]) == (first, first, {"A": "secret"})
    assert (second["checkpoint"]["step"], second["checkpoint"]["task"]) == (300, first)
    assert "retry-of" not in second["labels"]
    await until(lambda: harness.reached(3))
    (event,) = (await ann.get(f"/v1/events?task={second['id']}")).json()["items"]
    continues = event["data"]["spec"]["continues"]
    assert (continues["task_id"], continues["state_of"]) == (first, first)
    # The third goes on with the second, which saved nothing of its own, and with the chain.
    await harness.project(state(second["id"], m.TaskState.STOPPED, 1, attempt=1))
    inherited = SAVED.model_copy(update={"task_id": first})
    harness.others.ended[second["id"]] = inherited
    third = (await ann.post(f"/v1/tasks/{second['id']}/continue")).json()
    assert (third["chain"], third["continues"]) == (first, second["id"])
    assert third["checkpoint"]["task"] == first
    await until(lambda: harness.reached(5))
    listed = (await ann.get(f"/v1/tasks?chain={first}")).json()["items"]
    assert [each["id"] for each in listed] == [third["id"], second["id"], first]


async def test_a_task_that_never_ran_is_gone_on_with_from_where_it_would_have_begun(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    first = await ended(harness, ann)
    harness.others.ended = {first: SAVED}
    second = (await ann.post(f"/v1/tasks/{first}/continue")).json()["id"]
    await until(lambda: harness.reached(3))
    await harness.project(state(second, m.TaskState.STOPPED, 1))
    third = (await ann.post(f"/v1/tasks/{second}/continue")).json()
    assert third["checkpoint"]["step"] == 300
    await until(lambda: harness.reached(5))
    (event,) = (await ann.get(f"/v1/events?task={third['id']}")).json()["items"]
    assert event["data"]["spec"]["continues"]["state_of"] == first


@SEES_ALL
async def test_what_cannot_be_gone_on_with_says_what_to_do(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    live = (await harness.submitted(ann))["id"]
    refused = await ann.post(f"/v1/tasks/{live}/continue")
    assert refused.status_code == 409
    assert "if it is paused, resume it" in refused.json()["detail"]
    forgotten = await ended(harness, ann, name="forgotten")
    refused = await ann.post(f"/v1/tasks/{forgotten}/continue")
    assert refused.status_code == 409
    assert "ended too long ago" in refused.json()["detail"]
    async with harness.client(await harness.member("bob")) as bob:
        assert (await bob.post(f"/v1/tasks/{forgotten}/continue")).status_code == 403
        assert (await bob.get(f"/v1/tasks/{forgotten}/state")).status_code == 403


async def test_a_task_without_a_checkpoint_goes_on_from_the_beginning(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    first = await ended(harness, ann)
    harness.others.ended = {first: None}
    made = await ann.post(f"/v1/tasks/{first}/continue")
    assert (made.status_code, made.json()["checkpoint"]) == (201, None)


async def test_a_retry_of_a_task_that_went_on_begins_at_the_beginning(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    first = await ended(harness, ann)
    harness.others.ended = {first: SAVED}
    second = (await ann.post(f"/v1/tasks/{first}/continue")).json()["id"]
    await until(lambda: harness.reached(3))
    await harness.project(state(second, m.TaskState.FAILED, 1, attempt=1))
    again = (await ann.post(f"/v1/tasks/{second}/retry")).json()
    assert (again["checkpoint"], again["continues"], again["chain"]) == (None, None, again["id"])
