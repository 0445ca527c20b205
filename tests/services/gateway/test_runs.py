"""Tests the SDK's routes (long-poll, checkpoints, metrics) for live and for ended runs."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest
import shiftwork
from shiftwork import training

from libs.contracts import messages as m
from libs.contracts.ids import RunId, TaskId
from libs.contracts.limits import CHECKPOINT_URI_BYTES_MAX
from libs.store.port import StoreUnavailableError
from services.gateway import reports
from services.gateway.listeners import Listeners
from services.gateway.tables import TABLES
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    GatewayHarness,
    assigned,
    exited,
    placements,
    preemption,
    run_token,
    served,
    state,
)


async def test_a_delayed_start_is_explained_until_the_run_has_started(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    tid, why = task["id"], "rank 0 on n0: image a/b cannot be pulled: not found"
    delayed = m.RunDelayed(task_id=tid, attempt=1, ranks=1, detail=why, noted_at=at(12))
    starting = state(tid, m.TaskState.STARTING, 2, attempt=1)
    await harness.project(assigned(tid), starting, delayed)
    shown = {"detail": why, "ranks": 1, "noted_at": "2026-01-01T00:00:12Z"}
    assert await _delayed(ann, tid) == (shown, shown)
    # No rank is delayed any more, although ``RunStarted`` is not published yet.
    await harness.project(delayed.model_copy(update={"ranks": 0, "detail": "", "noted_at": at(14)}))
    assert await _delayed(ann, tid) == (None, None)
    await harness.project(
        delayed.model_copy(update={"noted_at": at(16)}),
        m.RunStarted(task_id=tid, attempt=1, started_at=at(20)),
    )
    assert await _delayed(ann, tid) == (None, None)
    listed = (await ann.get(f"/v1/events?task={tid}&type=run.delayed")).json()["items"]
    assert [each["data"]["ranks"] for each in listed] == [1, 0, 1]


async def test_a_live_run_has_its_endpoints(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    tid = task["id"]
    endpoint = m.Endpoint(rank=0, role="worker", name="board", address="127.0.0.1", port=20_001)
    started = m.RunStarted(task_id=tid, attempt=1, started_at=at(20), endpoints=(endpoint,))
    await harness.project(assigned(tid), started)
    shown = {
        "rank": 0,
        "role": "worker",
        "name": "board",
        "address": "127.0.0.1",
        "port": 20_001,
    }
    assert await _endpoints(ann, tid) == [shown]
    (event,) = (await ann.get(f"/v1/events?task={tid}&type=run.started")).json()["items"]
    assert event["data"]["endpoints"] == [shown]
    await harness.project(exited(tid))
    assert await _endpoints(ann, tid) == []


async def test_the_end_of_an_earlier_run_leaves_the_endpoints_of_the_live_one(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    tid = (await harness.submitted(ann))["id"]
    ports = [
        m.Endpoint(rank=0, role="worker", name="board", address="127.0.0.1", port=port)
        for port in (20_001, 20_002)
    ]
    for attempt, endpoint in enumerate(ports, 1):
        await harness.project(
            assigned(tid, attempt),
            m.RunStarted(
                task_id=tid, attempt=attempt, started_at=at(20 + attempt), endpoints=(endpoint,)
            ),
        )
    await harness.project(exited(tid, 1))
    shown = (await ann.get(f"/v1/tasks/{tid}")).json()["endpoints"]
    assert [each["port"] for each in shown] == [20_002]


async def test_a_start_that_arrives_after_the_end_has_no_endpoints(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    endpoint = m.Endpoint(rank=0, role="worker", name="board", address="127.0.0.1", port=20_001)
    started = m.RunStarted(task_id=task["id"], attempt=1, started_at=at(20), endpoints=(endpoint,))
    await harness.project(assigned(task["id"]), exited(task["id"]), started)
    assert await _endpoints(ann, task["id"]) == []


async def _endpoints(client: httpx.AsyncClient, task: str) -> Any:
    (run,) = (await client.get(f"/v1/tasks/{task}/runs")).json()["items"]
    shown = (await client.get(f"/v1/tasks/{task}")).json()
    assert shown["endpoints"] == run["endpoints"]
    return run["endpoints"]


async def _delayed(client: httpx.AsyncClient, task: str) -> tuple[Any, Any]:
    (run,) = (await client.get(f"/v1/tasks/{task}/runs")).json()["items"]
    explained = (await client.get(f"/v1/tasks/{task}/explain")).json()
    return run["delayed"], explained["delayed"]


async def test_the_poll_of_a_run_without_a_preemption_request_reports_none(
    harness: GatewayHarness,
) -> None:
    async with harness.client(run_token("tt")) as run:
        early = (await run.get("/v1/run")).json()
        await harness.project(assigned("tt"))
        reply = (await run.get("/v1/run")).json()
    # The process may poll before its assignment is projected.
    assert early == reply
    assert reply == {
        "attempt": 1,
        "revision": 1,
        "preempt": False,
        "deadline_at": None,
        "superseded": False,
    }


def reported(harness: GatewayHarness) -> list[tuple[str, int]]:
    """Return the attempts for which the gateway has published ``RunListened``."""
    sent = harness.database.schema("gateway").outbox.values()
    found = [each.envelope.message for each in sent]
    return [(each.task_id, each.attempt) for each in found if isinstance(each, m.RunListened)]


async def test_the_first_poll_of_an_attempt_is_reported_once(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    tid = (await harness.submitted(ann))["id"]
    await harness.project(assigned(tid))

    async def polled(attempt: int = 1) -> list[tuple[str, int]]:
        async with harness.client(run_token(tid, attempt)) as run:
            await asyncio.gather(run.get("/v1/run"), run.get("/v1/run"))
        return reported(harness)

    (run,) = (await ann.get(f"/v1/tasks/{tid}/runs")).json()["items"]
    assert run["listening_at"] is None
    assert await polled() == [(tid, 1)]
    assert await polled() == [(tid, 1)]

    async def shown() -> bool:
        (run,) = (await ann.get(f"/v1/tasks/{tid}/runs")).json()["items"]
        return run["listening_at"] is not None

    await until(shown)
    # The poll of an ended attempt is not reported.
    await harness.project(exited(tid), assigned(tid, 2))
    assert await polled() == [(tid, 1)]
    assert await polled(2) == [(tid, 1), (tid, 2)]


async def test_reports_and_checkpoints_alone_do_not_count_as_polling(
    harness: GatewayHarness,
) -> None:
    await harness.project(assigned("tt"))
    harness.others.live_attempts = {"tt": 1}
    async with harness.client(run_token("tt")) as run:
        await run.post("/v1/run/metrics", json={"samples": [{"values": {"a": 1}}]})
        await run.post("/v1/run/checkpoints", json={"step": 1, "uri": "/c"})
    assert reported(harness) == []


async def test_a_first_poll_that_was_not_stored_is_reported_at_the_next_one() -> None:
    platform = MemoryPlatform()
    database = platform.database
    listeners, run = Listeners(platform.store(TABLES)), RunId(TaskId("tt"), 1)
    database.stop()
    with pytest.raises(StoreUnavailableError):
        await listeners.report(run)
    database.start()
    for _ in range(2):
        await listeners.report(run)
    assert len(database.schema("gateway").outbox) == 1


async def test_the_long_poll_waits_no_longer_than_requested(harness: GatewayHarness) -> None:
    async with harness.client(run_token("tt")) as run:
        began = time.monotonic()
        reply = await run.get("/v1/run?wait_seconds=0.1&seen=1")
        waited = time.monotonic() - began
    assert reply.json()["revision"] == 1
    # No change releases the poll, so it lasts the whole requested time.
    assert waited > 0.09


async def test_a_preemption_releases_the_long_poll_at_once(harness: GatewayHarness) -> None:
    await harness.project(assigned("tt"))
    async with served(harness) as url, httpx.AsyncClient(timeout=20) as client:
        headers = {"authorization": f"Bearer {run_token('tt')}"}
        released: list[float] = []

        async def rank(seen: int = 1) -> dict[str, Any]:
            reply = await client.get(f"{url}/v1/run?wait_seconds=10&seen={seen}", headers=headers)
            released.append(time.monotonic())
            return reply.json()

        # Measure four polls that need not wait, under the present load of this machine.
        began = time.monotonic()
        await asyncio.gather(*(rank(seen=0) for _ in range(4)))
        floor = time.monotonic() - began
        released.clear()
        async with asyncio.TaskGroup() as group:
            ranks = [group.create_task(rank()) for _ in range(4)]
            await asyncio.sleep(0.2)
            assert released == []
            await harness.project(preemption("tt"))
            projected = time.monotonic()
    assert max(released) - projected < max(0.5, 10 * floor)
    for task in ranks:
        assert task.result() == {
            "attempt": 1,
            "revision": 2,
            "preempt": True,
            "deadline_at": "2026-01-01T00:01:30Z",
            "superseded": False,
        }


async def test_a_known_revision_does_not_release_the_long_poll(harness: GatewayHarness) -> None:
    await harness.project(assigned("tt"), preemption("tt"))
    async with harness.client(run_token("tt")) as run:
        at_once = await run.get("/v1/run?wait_seconds=10&seen=1")
        assert at_once.json()["preempt"] is True
        began = time.monotonic()
        await run.get(f"/v1/run?wait_seconds=0.1&seen={at_once.json()['revision']}")
        assert time.monotonic() - began > 0.09


async def test_an_older_attempt_is_superseded(harness: GatewayHarness) -> None:
    await harness.project(assigned("tt"))
    async with harness.client(run_token("tt", 1)) as old, harness.client(run_token("tt", 2)) as new:
        waiting = asyncio.ensure_future(old.get("/v1/run?wait_seconds=10&seen=1"))
        await asyncio.sleep(0.05)
        await harness.project(exited("tt", 1, m.ExitKind.LOST), assigned("tt", 2))
        assert (await waiting).json()["superseded"] is True
        reply = await old.get("/v1/run")
        assert (reply.status_code, reply.json()["type"]) == (409, "superseded")
        assert (await new.get("/v1/run")).json()["superseded"] is False
        reply = await old.post("/v1/run/metrics", json={"samples": [{"values": {"a": 1}}]})
        assert (reply.status_code, reply.json()["type"]) == (409, "superseded")


async def test_the_token_of_an_ended_run_is_rejected(harness: GatewayHarness) -> None:
    await harness.project(assigned("tt"), exited("tt"))
    metrics = {"samples": [{"values": {"a": 1}}]}
    async with harness.client(run_token("tt")) as run:
        for reply in (
            await run.get("/v1/run?wait_seconds=10"),
            await run.post("/v1/run/metrics", json=metrics),
            await run.post("/v1/run/checkpoints", json={"step": 1, "uri": "/c"}),
            await run.post("/v1/run/ready", json={"rank": 0}),
        ):
            assert (reply.status_code, reply.json()["type"]) == (409, "superseded")


async def test_a_preemption_of_another_attempt_does_not_release_the_long_poll(
    harness: GatewayHarness,
) -> None:
    await harness.project(preemption("tt", 1), assigned("tt", 2))
    async with harness.client(run_token("tt", 2)) as run:
        assert (await run.get("/v1/run")).json()["preempt"] is False


@pytest.mark.parametrize("query", ["wait_seconds=61", "wait_seconds=-1", "seen=x"])
async def test_waits_are_bounded(harness: GatewayHarness, query: str) -> None:
    async with harness.client(run_token("tt")) as run:
        reply = await run.get(f"/v1/run?{query}")
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == query.partition("=")[0]


async def test_a_ready_rank_is_reported_to_the_launcher(harness: GatewayHarness) -> None:
    harness.others.live_attempts = {"tt": 2}
    await harness.project(assigned("tt", 1), exited("tt", 1), assigned("tt", 2))
    body = {"rank": 0, "restarts": 1}
    async with harness.client(run_token("tt", 2)) as run:
        reply = await run.post("/v1/run/ready", json=body)
        assert (reply.status_code, reply.json()) == (200, {"ready": True})
        command = harness.others.asked[-1]
        assert command == m.ReportReady(task_id="tt", attempt=2, rank=0, restarts=1)
        # A rank that the attempt does not have, and one that reports again and again.
        refused = await run.post("/v1/run/ready", json={"rank": 7})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "rank")
        for field in ("rank", "restarts"):
            for value in ("0", True, 0.5, None, -1):
                refused = await run.post("/v1/run/ready", json={**body, field: value})
                (error,) = refused.json()["errors"]
                assert (refused.status_code, error["field"]) == (422, field)
        assert harness.others.asked[-1] == command
        replies = [await run.post("/v1/run/ready", json=body) for _ in range(80)]
        assert replies[-1].status_code == 429
    async with harness.client(run_token("tt", 1)) as old:
        refused = await old.post("/v1/run/ready", json=body)
    assert (refused.status_code, refused.json()["type"]) == (409, "superseded")


async def test_a_restart_of_a_rank_is_an_event(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    tid = (await harness.submitted(ann))["id"]
    restarted = m.RankRestarted(
        task_id=tid,
        attempt=1,
        rank=1,
        role="ps",
        restarts=1,
        restarts_max=3,
        detail="rank 1 ended with code 1",
        noted_at=at(12),
    )
    await harness.project(assigned(tid), restarted)
    (event,) = (await ann.get(f"/v1/events?task={tid}&type=run.rank_restarted")).json()["items"]
    assert event["at"] == "2026-01-01T00:00:12Z"
    assert (event["data"]["rank"], event["data"]["restarts"]) == (1, 1)


async def test_a_checkpoint_is_acknowledged_by_the_launcher(harness: GatewayHarness) -> None:
    harness.others.live_attempts = {"tt": 2}
    body = {"step": 100, "uri": "/c/100", "digest": "sha256:1"}
    async with harness.client(run_token("tt", 2)) as run:
        reply = await run.post("/v1/run/checkpoints", json=body)
    assert reply.status_code == 201
    assert {"no": 1, "attempt": 2, **body}.items() <= reply.json().items()
    command = harness.others.asked[-1]
    assert command == m.AckCheckpoint(
        task_id="tt", attempt=2, step=100, uri="/c/100", digest="sha256:1"
    )
    async with harness.client(run_token("tt", 1)) as old:
        refused = await old.post("/v1/run/checkpoints", json=body)
    assert (refused.status_code, refused.json()["type"]) == (409, "superseded")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"uri": "/c"}, "step"),
        ({"step": -1, "uri": "/c"}, "step"),
        ({"step": 1, "uri": ""}, "uri"),
        ({"step": 1, "uri": "x" * 1025}, "uri"),
        ({"step": 1, "uri": "\U0001f600" * 300}, "uri"),
        ({"step": 1, "uri": "/c", "size": 1}, "size"),
    ],
)
async def test_the_error_of_an_invalid_checkpoint_names_the_field(
    harness: GatewayHarness, body: dict[str, Any], field: str
) -> None:
    async with harness.client(run_token("tt")) as run:
        reply = await run.post("/v1/run/checkpoints", json=body)
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == field


async def test_the_sdk_refuses_the_checkpoint_uris_that_the_platform_refuses() -> None:
    assert training.URI_BYTES_MAX == CHECKPOINT_URI_BYTES_MAX
    with pytest.raises(ValueError, match="1 to 1024 bytes, not 1200"):
        shiftwork.checkpoint_saved(1, "\U0001f600" * 300)


async def test_a_task_that_saves_each_second_is_not_rate_limited(harness: GatewayHarness) -> None:
    harness.others.live_attempts = {"tt": 1}
    async with harness.client(run_token("tt")) as run:
        for step in range(200):
            reply = await run.post("/v1/run/checkpoints", json={"step": step, "uri": "/c"})
            assert reply.status_code == 201
            harness.clock.advance(1)


@pytest.mark.parametrize("harness", [{"checkpoints_burst": 5}], indirect=True)
async def test_a_task_that_saves_without_pause_is_rate_limited(harness: GatewayHarness) -> None:
    harness.others.live_attempts = {"tt": 1, "t2": 1}
    body = {"step": 1, "uri": "/c"}
    async with harness.client(run_token("tt")) as run, harness.client(run_token("t2")) as other:
        replies = [await run.post("/v1/run/checkpoints", json=body) for _ in range(20)]
        assert [each.status_code for each in replies] == [201] * 5 + [429] * 15
        assert (replies[-1].json()["type"], replies[-1].headers["retry-after"]) == ("too-many", "1")
        assert (await other.post("/v1/run/checkpoints", json=body)).status_code == 201
        harness.clock.advance(1)
        assert (await run.post("/v1/run/checkpoints", json=body)).status_code == 201


SAVES = """
import shiftwork
for step in range(4):
    shiftwork.checkpoint_saved(step, f"/c/{step}")
"""


@pytest.mark.parametrize(
    "harness", [{"checkpoints_burst": 1, "checkpoints_per_second": 100.0}], indirect=True
)
async def test_the_sdk_waits_until_its_checkpoints_are_accepted(harness: GatewayHarness) -> None:
    harness.others.live_attempts = {"tt": 1}
    await harness.project(assigned("tt"))
    async with served(harness) as url:
        training_code = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SAVES,
            env={
                "SHIFTWORK_TASK": "tt",
                "SHIFTWORK_ATTEMPT": "1",
                "SHIFTWORK_RANK": "0",
                "SHIFTWORK_WORLD_SIZE": "1",
                "SHIFTWORK_URL": url,
                "SHIFTWORK_RUN_TOKEN": run_token("tt"),
            },
            stderr=asyncio.subprocess.PIPE,
        )
        # Each answer moves the clock a little, so that the rate limit admits more after a few.
        _, errors = await asyncio.wait_for(training_code.communicate(), 60)
    assert (errors, training_code.returncode) == (b"", 0)
    assert harness.others.checkpoints == 4


async def test_reported_metrics_are_listed_by_rank(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann, nodes=2)
    async with harness.client(run_token(task["id"])) as run:
        for rank in (0, 1):
            samples = [
                {"at": at(step).isoformat(), "values": {"step": step, "loss": 1 / (step + 1)}}
                for step in range(3)
            ]
            body = {"rank": rank, "samples": samples}
            reply = await run.post("/v1/run/metrics", json=body)
            assert reply.status_code == 202, reply.text
            await run.post("/v1/run/metrics", json=body)  # the answer was lost
    page = (await ann.get(f"/v1/tasks/{task['id']}/metrics?limit=1")).json()
    assert page["next_cursor"] == "1"
    (first,) = page["items"]
    assert (first["rank"], first["attempt"]) == (0, 1)
    assert first["latest"] == {"step": 2.0, "loss": 1 / 3}
    assert [point["values"]["step"] for point in first["points"]] == [0.0, 1.0, 2.0]
    page = (await ann.get(f"/v1/tasks/{task['id']}/metrics?cursor=1")).json()
    assert [each["rank"] for each in page["items"]] == [1]


async def test_the_tasks_progress_shows_the_latest_values_of_rank_0(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task, quiet = await harness.submitted(ann, nodes=2), await harness.submitted(ann)
    assert (await ann.get(f"/v1/tasks/{task['id']}")).json()["progress"] is None
    async with harness.client(run_token(task["id"])) as run:

        async def report(rank: int, second: int, **values: object) -> None:
            samples = [{"at": at(second).isoformat(), "values": values}]
            reply = await run.post("/v1/run/metrics", json={"rank": rank, "samples": samples})
            assert reply.status_code == 202, reply.text

        await report(1, 1, step=9, loss=9.0)
        await report(0, 2, zeta=1, alpha=2, loss="NaN", **{f"m{n}": n for n in range(4)})
        await report(0, 3, lr=0.1, step=7)
        await report(0, 1, step=1)  # late
    values = {"step": 7, "loss": "NaN", "lr": 0.1, "alpha": 2, "m0": 0, "m1": 1, "m2": 2, "m3": 3}
    found = (await ann.get(f"/v1/tasks/{task['id']}")).json()["progress"]
    assert (found["attempt"], found["values"]) == (1, values)
    assert at(3) == datetime.fromisoformat(found["at"])
    assert list(found["values"])[:4] == ["step", "loss", "lr", "alpha"]
    listed = (await ann.get("/v1/tasks")).json()["items"]
    assert {each["id"]: each["progress"] for each in listed} == {
        task["id"]: found,
        quiet["id"]: None,
    }


@pytest.mark.parametrize(
    "harness", [{"metric_samples_max": 2, "metric_names_max": 2}], indirect=True
)
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"samples": []}, "samples"),
        ({"samples": [{"values": {}}]}, "samples[0].values"),
        ({"samples": [{"values": {"a": "x"}}]}, "samples[0].values.a"),
        ({"samples": [{"values": {"a\x1b": 1}}]}, "samples[0].values.a\x1b.[key]"),
        ({"samples": [{"values": {"a": 1}}] * 3}, "samples"),
        ({"samples": [{"values": {"a": 1, "b": 2, "c": 3}}]}, "samples[0].values"),
        ({"samples": [{"at": "2026-01-01T00:00:00", "values": {"a": 1}}]}, "samples[0].at"),
    ],
)
async def test_the_error_of_invalid_metrics_names_the_field(
    harness: GatewayHarness, body: dict[str, Any], field: str
) -> None:
    async with harness.client(run_token("tt")) as run:
        reply = await run.post("/v1/run/metrics", json=body)
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == field


def test_a_long_history_is_thinned_and_keeps_its_span() -> None:
    row = None
    for number in range(1000):
        row = reports.add(
            row,
            task_id="tt",
            rank=0,
            attempt=1,
            samples=[(at(number), {"step": float(number)})],
            limits=reports.Limits(points_max=50, names_max=64, values_max=8192),
        )
    assert row is not None
    steps = [values["step"] for _, _, values in row.points]
    assert 25 <= len(steps) <= 50
    assert steps[0] == 0
    assert steps[-1] >= 1000 - row.stride
    assert {after - before for before, after in pairwise(steps)} == {row.stride}
    assert row.latest == {"step": 999.0}


@pytest.mark.parametrize("harness", [{"metric_ranks_per_replica_max": 1}], indirect=True)
async def test_metrics_of_a_rank_that_the_run_does_not_have_are_rejected(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    body = {"samples": [{"values": {"loss": 1}}]}
    task = await harness.submitted(ann, nodes=2, gpus_per_node=2)
    async with harness.client(run_token(task["id"])) as run:
        # Before the run is projected, the task's size determines the ranks; then its placements do.
        for messages in ((), (assigned(task["id"], nodes=("n0", "n1")),)):
            await harness.project(*messages)
            for rank, status in ((0, 202), (3, 202), (4, 422), (2**31 - 1, 422)):
                reply = await run.post("/v1/run/metrics", json={**body, "rank": rank})
                assert reply.status_code == status, reply.text
        assert reply.json()["errors"][0]["field"] == "rank"
    async with harness.client(run_token("unknown")) as run:
        assert (await run.post("/v1/run/metrics", json=body)).status_code == 503
    kept = (await ann.get(f"/v1/tasks/{task['id']}/metrics")).json()["items"]
    assert [row["rank"] for row in kept] == [0, 3]


async def test_processes_without_gpus_report_under_their_own_ranks(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann, nodes=2, gpus_per_node=0)
    found = assigned(task["id"]).model_copy(update={"placements": placements(("n0", "n1"), ())})
    await harness.project(found)
    async with harness.client(run_token(task["id"])) as run:
        for rank, status in ((15, 202), (16, 422)):
            body = {"rank": rank, "samples": [{"values": {"loss": 1}}]}
            assert (await run.post("/v1/run/metrics", json=body)).status_code == status


async def test_processes_that_report_at_the_same_time_never_conflict(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    async with harness.client(run_token(task["id"])) as run:

        async def process(number: int) -> list[httpx.Response]:
            samples = [{"at": at(100).isoformat(), "values": {f"process-{number}": 1.0}}]
            body = {"samples": samples}
            return [await run.post("/v1/run/metrics", json=body) for _ in range(10)]

        answers = await asyncio.gather(*(process(number) for number in range(4)))
    replies = [each for process in answers for each in process]
    assert {each.status_code for each in replies} == {202}, [each.text for each in replies]


@pytest.mark.parametrize(
    "harness", [{"waits_per_task_max": 2, "ask_again_seconds": 7.0}], indirect=True
)
async def test_a_task_with_too_many_waiting_processes_is_answered_at_once(
    harness: GatewayHarness,
) -> None:
    await harness.project(assigned("tt"), assigned("other"))
    path = "/v1/run?wait_seconds=5&seen=1"
    async with harness.client(run_token("tt")) as run, harness.client(run_token("other")) as other:
        waiting = [asyncio.ensure_future(run.get(path)) for _ in range(2)]
        await asyncio.sleep(0.1)
        reply = await run.get(path)
        # The third poll is answered while the first two still wait.
        assert not any(each.done() for each in waiting)
        assert reply.status_code == 200
        assert reply.json()["ask_again_seconds"] == 7.0
        # The limit of one task does not apply to the polls of another.
        theirs = asyncio.ensure_future(other.get(path))
        await asyncio.sleep(0.1)
        assert not theirs.done()
        await harness.project(preemption("tt"), preemption("other"))
        answers = [each.json() for each in await asyncio.gather(*waiting, theirs)]
    assert [each["preempt"] for each in answers] == [True] * 3
    assert not any("ask_again_seconds" in each for each in answers)


async def test_a_report_has_a_bounded_number_of_names(harness: GatewayHarness) -> None:
    await harness.project(assigned("tt"))
    samples = [{"values": {f"name-{number}": 1.0}} for number in range(65)]
    async with harness.client(run_token("tt")) as run:
        reply = await run.post("/v1/run/metrics", json={"samples": samples})
    assert reply.status_code == 422
    assert "64 names" in reply.json()["detail"]


def test_a_row_is_bounded_in_names_points_and_values() -> None:
    limits = reports.Limits(points_max=50, names_max=64, values_max=500)
    row = None
    for number in range(200):
        samples = [
            (at(number * 10 + each), {f"n{number}-{name}": 1.0 for name in range(64)})
            for each in range(10)
        ]
        row = reports.add(row, task_id="tt", rank=0, attempt=1, samples=samples, limits=limits)
        assert row is not None
        assert len(row.latest) <= 64
        assert len(row.points) <= 50
        assert sum(len(values) for _, _, values in row.points) <= 500
        assert set(samples[-1][1]) <= set(row.latest)


def test_earlier_metric_names_stay_up_to_the_maximum() -> None:
    limits = reports.Limits(points_max=50, names_max=3, values_max=500)

    def report(row: Any, second: int, *names: str) -> Any:
        values = dict.fromkeys(names, 1.0)
        sample = [(at(second), values)]
        return reports.add(row, task_id="t", rank=0, attempt=1, samples=sample, limits=limits)

    row = report(report(None, 1, "a", "b"), 2, "c")
    assert set(row.latest) == {"a", "b", "c"}
    assert set(report(row, 3, "d", "b").latest) == {"a", "b", "d"}


@pytest.mark.parametrize("harness", [{"checkpoints_burst": 2}], indirect=True)
async def test_an_ended_attempt_does_not_use_the_live_attempts_rate_limit(
    harness: GatewayHarness,
) -> None:
    harness.others.live_attempts = {"tt": 2}
    await harness.project(assigned("tt"), exited("tt"), assigned("tt", 2))
    body = {"step": 1, "uri": "/c"}
    async with harness.client(run_token("tt")) as old, harness.client(run_token("tt", 2)) as live:
        replies = [await old.post("/v1/run/checkpoints", json=body) for _ in range(5)]
        assert [each.status_code for each in replies] == [409] * 5
        assert (await live.post("/v1/run/checkpoints", json=body)).status_code == 201


async def test_a_failed_run_has_its_error_lines(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    tid = (await harness.submitted(ann))["id"]
    lines = m.RankErrorLines(rank=3, role="worker", kind="cuda", offset=7, lines=("CUDA error",))
    found = m.ErrorLinesFound(task_id=tid, attempt=1, ranks=(lines,), found_at=at(61))
    # Whatever comes first.
    await harness.project(found, assigned(tid), exited(tid, kind=m.ExitKind.FAILED, code=1))
    (run,) = (await ann.get(f"/v1/tasks/{tid}/runs")).json()["items"]
    shown = {"rank": 3, "role": "worker", "kind": "cuda", "offset": 7, "lines": ["CUDA error"]}
    assert (run["error_lines"], run["exit"]["kind"]) == ([shown], "failed")
    events = (await ann.get(f"/v1/events?task={tid}")).json()["items"]
    assert [each["type"] for each in events].count("run.error_lines_found") == 1
