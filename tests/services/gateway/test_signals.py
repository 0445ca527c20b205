"""What was sampled and what was reported comes from one route, as series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from libs.bus.port import BusUnavailableError
from libs.contracts.envelope import Envelope
from libs.contracts.messages import (
    GpuSample,
    GpuValues,
    NodeSampled,
    NodeValues,
    RankSample,
    RankValues,
    ReadSeries,
    RunStarted,
)
from tests.kit.clock import at
from tests.services.gateway.gateway_harness import (
    GatewayHarness,
    a_node,
    assigned,
    run_token,
)

if TYPE_CHECKING:
    import httpx


async def sample(harness: GatewayHarness, task: str, seconds: float, ranks: int = 1) -> None:
    """The launcher publishes what it measured of node n0."""
    message = NodeSampled(
        node_id="n0",
        sampled_at=at(seconds),
        values=NodeValues(cpu_percent=10.0 + seconds),
        gpus=(
            GpuSample(index=0, uuid="GPU-a", model="H100", values=GpuValues(gpu_percent=seconds)),
        ),
        ranks=tuple(
            RankSample(
                task_id=task,
                attempt=1,
                rank=rank,
                gpus=(0,) if rank == 0 else (),
                values=RankValues(cpu_cores=float(rank + 1), processes=2.0),
            )
            for rank in range(ranks)
        ),
    )
    envelope = Envelope(f"s{seconds}", "launcher", message.sampled_at, message)
    await harness.connection("launcher").send_telemetry(envelope)


def series_of(item: dict[str, Any]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    return {
        (each["source"], each["signal"]): [
            (point["at_seconds"] - at(0).timestamp(), point["average"]) for point in each["points"]
        ]
        for each in item["series"]
    }


async def a_run(harness: GatewayHarness, ann: httpx.AsyncClient) -> str:
    """A task of ann's that runs, was sampled, and has reported."""
    task = (await harness.submitted(ann, nodes=2))["id"]
    run = assigned(task, nodes=("n0", "n1"))
    started = RunStarted(task_id=task, attempt=1, placements=run.placements, started_at=at(0))
    await harness.project(run, started)
    for seconds in (0, 10):
        await sample(harness, task, seconds, ranks=2)
    async with harness.client(run_token(task)) as program:
        samples = [{"at": at(5).isoformat(), "values": {"loss": 0.5}}]
        await program.post("/v1/run/metrics", json={"rank": 0, "samples": samples})
    harness.clock.move_to(20)
    return task


async def test_one_route_has_what_was_sampled_and_what_was_reported(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await a_run(harness, ann)
    page = (await ann.get(f"/v1/tasks/{task}/metrics?series=true")).json()
    assert "series_problem" not in page
    first, second = page["items"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["latest"] == {"loss": 0.5}
    assert second["latest"] == {}
    found = series_of(first)
    assert found["reported", "loss"] == [(5.0, 0.5)]
    assert found["sampled", "cpu_cores"] == [(0.0, 1.0), (10.0, 1.0)]
    assert found["sampled", "gpu_percent"] == [(0.0, 0.0), (10.0, 10.0)]
    assert series_of(second)["sampled", "cpu_cores"] == [(0.0, 2.0), (10.0, 2.0)]
    assert ("sampled", "gpu_percent") not in series_of(second)


async def test_signals_range_rank_and_step_select(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await a_run(harness, ann)
    path = f"/v1/tasks/{task}/metrics"
    page = (await ann.get(f"{path}?signal=loss,cpu_cores&rank=1")).json()
    assert [series_of(each) for each in page["items"]] == [
        {("sampled", "cpu_cores"): [(0.0, 2.0), (10.0, 2.0)]}
    ]
    begin = at(10).isoformat().replace("+00:00", "Z")
    page = (await ann.get(f"{path}?from={begin}&signal=cpu_cores&signal=loss")).json()
    assert series_of(page["items"][0]) == {("sampled", "cpu_cores"): [(10.0, 1.0)]}
    page = (await ann.get(f"{path}?step_seconds=60&signal=gpu_percent")).json()
    (series,) = page["items"][0]["series"]
    (point,) = series["points"]
    assert (series["step_seconds"], point["minimum"], point["average"], point["maximum"]) == (
        60,
        0.0,
        5.0,
        10.0,
    )
    page = (await ann.get(f"{path}?series=true&attempt=2")).json()
    assert [each["series"] for each in page["items"]] == [[]]


async def test_ranks_are_paged_whether_they_reported_or_not(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await a_run(harness, ann)
    await sample(harness, task, 20, ranks=5)
    ranks: list[int] = []
    cursor = ""
    while True:
        query = f"series=true&limit=2{cursor and '&cursor='}{cursor}"
        page = (await ann.get(f"/v1/tasks/{task}/metrics?{query}")).json()
        ranks += [each["rank"] for each in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert ranks == [0, 1, 2, 3, 4]


async def test_what_was_reported_is_there_without_the_monitor(
    harness: GatewayHarness, ann: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await a_run(harness, ann)
    ask = harness.gateway.ports.bus.request

    async def without_monitor(command: object, *, timeout_s: float) -> object:
        if isinstance(command, ReadSeries):
            raise BusUnavailableError("nobody answers")
        return await ask(command, timeout_s=timeout_s)

    monkeypatch.setattr(harness.gateway.ports.bus, "request", without_monitor)
    page = (await ann.get(f"/v1/tasks/{task}/metrics?series=true")).json()
    assert "the monitor does not answer" in page["series_problem"]
    assert [series_of(each) for each in page["items"]] == [{("reported", "loss"): [(5.0, 0.5)]}]


async def test_a_node_has_its_series(harness: GatewayHarness, ann: httpx.AsyncClient) -> None:
    await a_run(harness, ann)
    await harness.project(a_node("n0"))
    document = (await ann.get("/v1/nodes/n0/metrics?signal=cpu_percent,gpu_percent")).json()
    found = series_of(document)
    assert found["sampled", "cpu_percent"] == [(0.0, 10.0), (10.0, 20.0)]
    assert [each["gpu"] for each in document["series"]] == [None, 0]
    wrong = await ann.get("/v1/nodes/n0/metrics?signal=cpu")
    assert wrong.status_code == 422
    assert "cpu_percent" in wrong.json()["errors"][0]["fix"]
    assert (await ann.get("/v1/nodes/n9/metrics")).status_code == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=yesterday", "from"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("from=2020-01-01T00:00:00Z", "from"),
        ("step_seconds=0", "step_seconds"),
        ("rank=-1", "rank"),
        ("attempt=0", "attempt"),
    ],
)
async def test_a_wrong_question_names_its_field(
    harness: GatewayHarness, ann: httpx.AsyncClient, query: str, field: str
) -> None:
    task = await a_run(harness, ann)
    reply = await ann.get(f"/v1/tasks/{task}/metrics?{query}")
    assert reply.status_code == 422, reply.text
    assert reply.json()["errors"][0]["field"] == field


async def test_utilization_of_nodes_and_of_tasks_that_the_caller_sees(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    task = await a_run(harness, ann)
    found = (await ann.get(f"/v1/utilization?node=n0,n1&task={task}&task=unknown")).json()
    (node,) = found["nodes"]
    assert (node["node"], node["cpu_percent"], node["gpus"][0]["gpu_percent"]) == ("n0", 20.0, 10.0)
    (used,) = found["tasks"]
    assert (used["task"], used["ranks"], used["gpus"]) == (task, 2, 1)
    assert (used["cpu_cores"], used["gpu_percent"], used["memory_bytes"]) == (3.0, 10.0, None)
