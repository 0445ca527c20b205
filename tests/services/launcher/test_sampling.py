"""What the launcher publishes of its machine: real ranks under a real supervisor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from libs.contracts.messages import (
    GpuSample,
    GpuValues,
    NodeSampled,
    NodeValues,
    Placement,
    RankSample,
    RankValues,
)
from services.launcher import sampling
from services.launcher.domain.model import Run, RunState
from services.launcher.runtimes.kubernetes.runtime import KubernetesRuntime
from services.launcher.runtimes.port import RunOrder
from services.launcher.runtimes.process import ProcessRuntime
from services.launcher.runtimes.sample_port import HeldGpus, SampledRuntime
from services.launcher.tables import TABLES
from tests.kit.launcher_builders import an_order, run_id
from tests.kit.memory import MemoryPlatform
from tests.services.launcher.runtimes.test_process import Box

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK = str(run_id().task_id)


def two_ranks(argv: list[str]) -> RunOrder:
    """Two ranks on one node."""
    order = an_order(run_id(), argv, ranks=2)
    ranks = [
        replace(each, node_id="local-0", env={**each.env, "SHIFTWORK_RANK": str(each.rank)})
        for each in order.ranks
    ]
    return replace(order, ranks=tuple(ranks))


async def test_the_ranks_of_this_machine_are_measured_while_they_run(tmp_path: Path) -> None:
    box = Box(tmp_path / "machine")
    await box.lead()
    try:
        # One rank computes, and the other sleeps.
        program = 'test "$SHIFTWORK_RANK" = 1 && exec sleep 60; while :; do :; done'
        await box.runtime.launch(two_ranks(["sh", "-c", program]))
        assert isinstance(box.runtime, SampledRuntime)
        held = {(TASK, 1, 0): (0, 1), (TASK, 1, 1): (2,)}
        await box.runtime.sample(NOW, held)
        await asyncio.sleep(0.4)
        (node,) = await box.runtime.sample(NOW + timedelta(seconds=10), held)
        assert (node.node_id, node.sampled_at) == ("local-0", NOW + timedelta(seconds=10))
        assert node.values.memory_total_bytes
        busy, asleep = sorted(node.ranks, key=lambda each: each.rank)
        assert (busy.task_id, busy.attempt, busy.rank, asleep.rank) == (TASK, 1, 0, 1)
        assert (busy.gpus, asleep.gpus) == ((0, 1), (2,))
        assert (busy.values.cpu_cores or 0) > 0.1
        assert asleep.values.cpu_cores == pytest.approx(0, abs=0.05)
        assert asleep.values.memory_bytes
        await box.runtime.end(run_id(), frozenset({"local-0"}), grace_seconds=0)
        await box.until(
            lambda listing: all(each.over for each in listing.runs[run_id()].ranks.values())
        )
        (node,) = await box.runtime.sample(NOW + timedelta(seconds=20), held)
        assert node.ranks == ()
    finally:
        await box.clear()


def a_rank(rank: int) -> RankSample:
    return RankSample(task_id=TASK, attempt=1, rank=rank, values=RankValues(cpu_cores=1.0))


def a_sample(ranks: int) -> NodeSampled:
    return NodeSampled(
        node_id="local-0",
        sampled_at=NOW,
        values=NodeValues(cpu_percent=50.0),
        gpus=(GpuSample(index=0, uuid="GPU-a", values=GpuValues()),),
        ranks=tuple(a_rank(rank) for rank in range(ranks)),
    )


def test_a_rank_holds_the_gpus_of_its_placement() -> None:
    places = (
        Placement(rank=0, node_id="local-0", gpus=(0, 1)),
        Placement(rank=1, node_id="local-0", gpus=(2,)),
    )
    run = Run(task_id=TASK, attempt=1, state=RunState.RUNNING, placements=places)
    assert sampling.held_gpus([run]) == {(TASK, 1, 0): (0, 1), (TASK, 1, 1): (2,)}


def test_a_node_with_many_ranks_is_cut_into_messages_and_nothing_comes_twice() -> None:
    most = sampling.RANKS_PER_MESSAGE_MAX
    first, second, third = sampling.pieces([a_sample(2 * most + 1)])
    assert [len(each.ranks) for each in (first, second, third)] == [most, most, 1]
    assert (first.values, len(first.gpus)) == (NodeValues(cpu_percent=50.0), 1)
    assert (third.values, third.gpus) == (NodeValues(), ())


class Broken:
    """A runtime in which measuring fails."""

    async def sample(self, now: datetime, held: HeldGpus) -> list[NodeSampled]:
        del held
        raise RuntimeError(f"nothing is measured at {now}")


async def test_a_defect_of_a_sampler_does_not_end_the_leader() -> None:
    platform = MemoryPlatform()
    bus, store = platform.bus("launcher"), platform.store(TABLES)
    loop = sampling.Sampling(bus, store, Broken(), lambda: NOW, 10.0).loop()
    assert await loop.step(1) == 10.0


def test_both_runtimes_are_sampled() -> None:
    assert issubclass(ProcessRuntime, SampledRuntime)
    assert issubclass(KubernetesRuntime, SampledRuntime)
