"""What dry runs report of the cluster, and what they cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway import capacity
from services.gateway.capacity import Summary
from tests.services.gateway.gateway_harness import GatewayHarness, a_node, assigned, state

DRY_RUN = "/v1/tasks:dry-run"
NEW: dict[str, Any] = {"command": ["true"], "gpus_per_node": 1}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows of each kind are read for summaries."""
    found: Counter[str] = Counter()
    keyset = capacity.keyset

    async def counting(tx: Any, kind: type[Any], *rest: Any, **more: Any) -> Any:
        rows = await keyset(tx, kind, *rest, **more)
        found[kind.__name__] += len(rows)
        return rows

    monkeypatch.setattr(capacity, "keyset", counting)
    return found


async def test_many_dry_runs_at_once_read_the_cluster_once(
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    bob: httpx.AsyncClient,
    read: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "KEEP_SECONDS", 600)
    await harness.project(*(a_node(f"n{number}") for number in range(5)))
    await harness.project(assigned("t1"))
    asked = [client.post(DRY_RUN, json=NEW) for client in (ann, bob) for _ in range(10)]
    answers = await asyncio.gather(*asked)
    assert {each.json()["free_nodes"] for each in answers} == {5}
    assert read == {"NodeRow": 5, "RunRow": 1, "TaskRow": 0}
    harness.clock.advance(600)
    await ann.post(DRY_RUN, json=NEW)
    assert read["NodeRow"] == 10


async def test_free_nodes_and_waiting_tasks_are_counted_over_all_pages(
    harness: GatewayHarness, ann: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "PAGE_ROWS", 2)
    gpu = {"zone": "a"}
    await harness.project(*(a_node(f"n{number}", labels=gpu) for number in range(4)))
    await harness.project(
        a_node("n4", taints=("a/b",)),
        a_node("n5", taints=("a", "b=c")),
        a_node("n6", gpus=8),
        a_node("n7", schedulable=False),
        a_node("n8", group="other"),
        a_node("n9", removed=True),
    )
    # Two GPUs each of n0, n1 and n2, and two more of n0.
    await harness.project(assigned("t1", nodes=("n0",)), assigned("t2", nodes=("n1", "n2")))
    await harness.project(assigned("t3", nodes=("n3",)))
    for number in range(3):
        task = await harness.submitted(ann, priority="high" if number else "low")
        await harness.project(state(task["id"], m.TaskState.QUEUED, 1))

    async def reply(**fields: Any) -> tuple[int, int]:
        found = (await ann.post(DRY_RUN, json={"command": ["true"], **fields})).json()
        return found["free_nodes"], found["ahead"]

    assert await reply(gpus_per_node=2) == (5, 2)
    assert await reply(gpus_per_node=3, priority="low") == (1, 3)
    assert await reply(gpus_per_node=2, node_selector=gpu) == (4, 2)
    assert await reply(gpus_per_node=4, tolerations=["a/b"]) == (2, 2)
    assert await reply(gpus_per_node=4, tolerations=["a", "b"], priority="very_high") == (2, 0)
    assert (await reply())[0] == 1
    assert (await reply(tolerations=["a/b", "a", "b=c"]))[0] == 2


@pytest.mark.parametrize("gang", [{"replicas": 1}, {"replicas": 2, "spread": True}], ids=str)
@pytest.mark.parametrize(
    ("size", "free"), [({"gpus": 3}, 1), ({"gpus": 0}, 4), ({"cpus": 1.0}, 3)], ids=str
)
async def test_free_nodes_are_those_with_enough_for_the_size_of_a_role(
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    gang: dict[str, Any],
    size: dict[str, Any],
    free: int,
) -> None:
    await harness.project(*(a_node(f"n{number}", gpus=2) for number in range(3)))
    await harness.project(a_node("n3", gpus=4))
    role = {"name": "worker", "command": ["true"], **gang, **size}
    # The task's amount is another one.
    common = {"gpus_per_node": 4} if "gpus" in size else {}
    found = (await ann.post(DRY_RUN, json={"roles": [role], **common})).json()
    assert found["free_nodes"] == free


async def test_a_cluster_that_is_too_large_is_not_counted(
    harness: GatewayHarness,
    ann: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    read: Counter[str],
) -> None:
    await harness.project(*(a_node(f"n{number}") for number in range(9)))
    for _ in range(2):
        task = await harness.submitted(ann)
        await harness.project(state(task["id"], m.TaskState.QUEUED, 1))
    monkeypatch.setattr(capacity, "ROWS_MAX", 1)
    monkeypatch.setattr(capacity, "PAGE_ROWS", 2)
    found = (await ann.post(DRY_RUN, json=NEW)).json()
    assert (found["free_nodes"], found["ahead"]) == (None, None)
    assert read == {"NodeRow": 2, "RunRow": 0, "TaskRow": 2}


@pytest.mark.parametrize(
    "harness", [{"dry_runs_burst": 3, "dry_runs_per_second": 1}], indirect=True
)
async def test_dry_runs_are_rate_limited_for_each_user(
    harness: GatewayHarness, ann: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    codes = [(await ann.post(DRY_RUN, json=NEW)).status_code for _ in range(4)]
    assert codes == [200, 200, 200, 429]
    refused = await ann.post(DRY_RUN, json=NEW)
    assert refused.headers["retry-after"] == "1"
    assert (await bob.post(DRY_RUN, json=NEW)).status_code == 200
    harness.clock.advance(1)
    assert (await ann.post(DRY_RUN, json=NEW)).status_code == 200


async def test_an_expensive_summary_is_cached_for_longer(
    harness: GatewayHarness, ann: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summaries take a bounded part of the gateway's time, also for large clusters."""
    summaries: list[Summary] = []
    waiting = capacity.Capacity._waiting

    async def slow(self: Any) -> Any:
        found = await waiting(self)
        summaries.append(Summary(None, found))
        harness.clock.advance(3)
        return found

    monkeypatch.setattr(capacity.Capacity, "_waiting", slow)
    for seconds, computed in ((0, 1), (50, 1), (11, 2)):
        harness.clock.advance(seconds)
        await ann.post(DRY_RUN, json=NEW)
        assert len(summaries) == computed
