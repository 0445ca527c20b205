"""Run modes over HTTP: submitted, changed, shown, refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from libs.contracts import messages as m
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import SEES_ALL, GatewayHarness
from tests.services.gateway.test_handlers import state

if TYPE_CHECKING:
    import httpx

BODY = {"roles": [{"name": "w", "replicas": 1, "command": ["x"]}]}


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("normal", ("queued", "run", "normal", False)),
        ("debug", ("queued", "run", "debug", True)),
        ("pause", ("paused", "pause", "pause", False)),
    ],
)
async def test_a_task_is_submitted_in_a_mode(
    harness: GatewayHarness, ann: httpx.AsyncClient, mode: str, shown: tuple[object, ...]
) -> None:
    before = await harness.position()
    made = (await ann.post("/v1/tasks", json={**BODY, "run_mode": mode})).json()
    await until(lambda: harness.reached(before + 1))
    for task in (made, (await ann.get(f"/v1/tasks/{made['id']}")).json()):
        assert (task["state"], task["goal"], task["run_mode"], task["debug"]) == shown
    dry = (await ann.post("/v1/tasks:dry-run", json={**BODY, "run_mode": mode})).json()["task"]
    assert (dry["state"], dry["run_mode"]) == (shown[0], mode)


@SEES_ALL
async def test_modes_are_changed_by_the_owner_and_audited(
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
    admin: httpx.AsyncClient,
) -> None:
    task = await harness.submitted(ann)
    path = f"/v1/tasks/{task['id']}"
    refused = await bob.post(f"{path}/mode", json={"mode": "debug"})
    assert (refused.status_code, "change its mode" in refused.json()["detail"]) == (403, True)
    before = await harness.position()
    for body, revision in (
        ({"mode": "debug"}, 2),
        ({"mode": "debug"}, 2),
        ({"mode": "pause"}, 3),
    ):
        reply = await ann.post(f"{path}/mode", json=body)
        assert (reply.status_code, reply.json()) == (
            202,
            {"task": task["id"], "revision": revision},
        )
    await until(lambda: harness.reached(before + 2))
    shown = (await ann.get(path)).json()
    assert (shown["run_mode"], shown["debug"], shown["goal"]) == ("pause", True, "pause")
    await ann.post(f"{path}/mode", json={"mode": "normal", "stay_paused": True})
    reply = await ann.post(f"{path}/mode", json={"mode": "normal"})
    assert reply.json()["revision"] == 5
    await until(lambda: harness.reached(before + 4))
    shown = (await ann.get(path)).json()
    assert (shown["run_mode"], shown["debug"], shown["goal"]) == ("normal", False, "run")
    audit = (await admin.get("/v1/audit", params={"limit": 100})).json()["items"]
    actions = {each["action"] for each in audit if each["target"] == task["id"]}
    assert {"task.mode.debug", "task.mode.pause", "task.mode.normal"} <= actions


async def test_an_unknown_mode_is_refused_with_the_known_ones(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    for reply, field in (
        (await ann.post(f"/v1/tasks/{task['id']}/mode", json={"mode": "off"}), "mode"),
        (await ann.post("/v1/tasks", json={**BODY, "run_mode": "off"}), "run_mode"),
    ):
        (error,) = reply.json()["errors"]
        assert (reply.status_code, error["field"], error["value"]) == (422, field, "off")
        assert error["fix"] == "give one of 'normal', 'debug' or 'pause'"


@pytest.mark.parametrize("mode", ["debug", "pause"])
async def test_staying_paused_goes_with_the_normal_mode_only(
    harness: GatewayHarness, ann: httpx.AsyncClient, mode: str
) -> None:
    task = await harness.submitted(ann)
    path = f"/v1/tasks/{task['id']}/mode"
    refused = await ann.post(path, json={"mode": mode, "stay_paused": True})
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["field"], error["value"]) == (422, "stay_paused", "true")
    assert error["message"] == "goes with the mode normal only"
    assert error["fix"] == "leave it out"
    assert (await ann.post(path, json={"mode": mode, "stay_paused": False})).status_code == 202


async def test_a_retry_is_neither_paused_nor_in_debug_mode(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    made = (await ann.post("/v1/tasks", json={**BODY, "run_mode": "pause"})).json()
    await harness.project(state(made["id"], m.TaskState.STOPPED, 2))

    async def retried() -> bool:
        reply = await ann.post(f"/v1/tasks/{made['id']}/retry")
        return reply.status_code == 201 and reply.json()["run_mode"] == "normal"

    await until(retried)
