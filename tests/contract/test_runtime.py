"""What every runtime promises the launcher, tested with real processes, pods of a real API server
and the fake.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
import pytest_asyncio

from libs.contracts.ids import RunId
from services.launcher.domain.model import Listing, ObservedRank, RankState
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeCluster, Script
from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.runtimes.port import (
    RunOrder,
    Runtime,
    RuntimeDeniedError,
    RuntimeUnavailableError,
)
from services.launcher.runtimes.process import ProcessRuntime
from tests.kit.freezing import freeze
from tests.kit.launcher_builders import a_machine, a_node, an_order, run_id
from tests.kubernetes.cluster_harness import ClusterHarness
from tools.cluster.control_plane import ControlPlane

NODES = 2
BOTH = frozenset({"local-0", "local-1"})
RUN = run_id()


class Backend(Protocol):
    """What surrounds a runtime: what its tasks do, and how its nodes misbehave."""

    def handle(self) -> Runtime:
        """Another launcher's handle on the same nodes."""
        ...

    def endless(self, run: RunId = RUN, ranks: int = NODES) -> RunOrder:
        """A gang that stays until it is ended."""
        ...

    def leaving(self, code: int) -> RunOrder:
        """A gang of one that leaves at once."""
        ...

    def starts(self) -> int:
        """How many processes ever began."""
        ...

    async def silence(self, node_id: str) -> None:
        """The node stops answering."""
        ...

    def was_killed(self, rank: ObservedRank) -> bool:
        """Whether the rank is over because we ended it."""
        ...


@dataclass
class Processes:
    folder: Path
    handles: list[ProcessRuntime] = field(default_factory=list)

    def handle(self) -> Runtime:
        machine = a_machine(
            self.folder,
            call_seconds=2.0,
            retry_seconds=0.05,
            listing_seconds=0.3,
            idle_seconds=2.0,
            # Here a supervisor that is frozen hangs at once.
            hung_seconds=0.0,
        )
        plans = [NodePlan(a_node(f"local-{number}")) for number in range(NODES)]
        self.handles.append(ProcessRuntime(machine, plans))
        return self.handles[-1]

    def endless(self, run: RunId = RUN, ranks: int = NODES) -> RunOrder:
        starts = self.folder / "starts"
        return an_order(run, ["sh", "-c", f"echo x >> {starts}; exec sleep 300"], ranks=ranks)

    def leaving(self, code: int) -> RunOrder:
        return an_order(RUN, ["sh", "-c", f"exit {code}"])

    def starts(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((self.folder / "starts").read_text()) // 2
        return 0

    async def silence(self, node_id: str) -> None:
        holder = proc.by_signature((self.folder / "nodes" / node_id / "lock").read_text())
        assert holder is not None
        freeze(holder.pid)

    def was_killed(self, rank: ObservedRank) -> bool:
        return rank.signal == signal.SIGKILL

    async def close(self) -> None:
        # A node that a test left silent is fenced, then everything is ended.
        runtime = self.handle()
        await runtime.lead(1000)
        listing = await runtime.list()
        for node_id, node in listing.nodes.items():
            if not node.node.ready:
                await runtime.fence(node_id)
        for run, seen in (await runtime.list()).runs.items():
            await runtime.end(run, seen.node_ids, grace_seconds=0)
        for handle in self.handles:
            await handle.close()


class Nobody:
    """A platform that requests nothing and accepts everything."""

    def should_preempt(self, run_id: RunId) -> bool:
        del run_id
        return False

    async def save(self, run_id: RunId, step: int) -> bool:
        del run_id, step
        return True


class Fakes:
    def __init__(self) -> None:
        self.scripts: dict[RunId, Script] = {}
        self.cluster = FakeCluster(
            [a_node(f"local-{number}") for number in range(NODES)],
            platform=Nobody(),
            script_of=lambda order: self.scripts[order.run_id],
            now=lambda: datetime.now(UTC),
            rng=Random(1),
        )

    def handle(self) -> Runtime:
        return FakeRuntime(self.cluster)

    def endless(self, run: RunId = RUN, ranks: int = NODES) -> RunOrder:
        self.scripts[run] = Script(steps=10_000, step_seconds=0.02)
        return an_order(run, ["endless"], ranks=ranks)

    def leaving(self, code: int) -> RunOrder:
        self.scripts[RUN] = Script(steps=1, step_seconds=0.01, code=code)
        return an_order(RUN, ["leaving"])

    def starts(self) -> int:
        return len(self.cluster.starts)

    async def silence(self, node_id: str) -> None:
        self.cluster.silence(node_id)

    def was_killed(self, rank: ObservedRank) -> bool:
        return rank.signal == signal.SIGKILL


class Pods:
    """kwok's kubelets remove pods at once and do not report how they ended."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.cluster = ClusterHarness(plane, folder)

    def handle(self) -> Runtime:
        return self.cluster.handle()

    def endless(self, run: RunId = RUN, ranks: int = NODES) -> RunOrder:
        return self.cluster.order(run, ranks)

    def leaving(self, code: int) -> RunOrder:
        return self.cluster.order(image=f"simulated/exits:{code}")

    def starts(self) -> int:
        return len(self.cluster.pods_created())

    async def silence(self, node_id: str) -> None:
        await asyncio.to_thread(self.cluster.silence, node_id)

    def was_killed(self, rank: ObservedRank) -> bool:
        return rank.state is RankState.EXITED and rank.note == "ended by the platform"


@pytest_asyncio.fixture(
    params=["process", "fake", pytest.param("kubernetes", marks=pytest.mark.kubernetes)]
)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "process":
        processes = Processes(tmp_path / "machine")
        yield processes
        await processes.close()
        return
    if request.param == "kubernetes":
        pods = Pods(request.getfixturevalue("control_plane"), tmp_path)
        yield pods
        await pods.cluster.close()
        return
    fakes = Fakes()
    playing = asyncio.ensure_future(fakes.cluster.run())
    yield fakes
    playing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await playing


@pytest_asyncio.fixture
async def runtime(backend: Backend) -> AsyncIterator[Runtime]:
    made = backend.handle()
    await made.lead(1)
    await made.list()
    yield made
    await made.close()


async def until(
    runtime: Runtime, true: Callable[[Listing], bool], *, seconds: float = 20
) -> Listing:
    before = Listing()
    async with asyncio.timeout(seconds):
        while not true(listing := await runtime.list()):
            if listing.number and listing.number == before.number + 1:
                every = before.runs.keys() | listing.runs.keys()
                differs = {run for run in every if before.runs.get(run) != listing.runs.get(run)}
                assert differs <= {*listing.changed}
            before = listing
            await asyncio.sleep(0.01)
        return listing


async def until_launched(runtime: Runtime, order: RunOrder) -> None:
    """Launch as the launcher does: what is not possible now is tried again."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await runtime.launch(order)
            except RuntimeUnavailableError:
                await asyncio.sleep(0.05)


def begun_on(rank: ObservedRank) -> frozenset[str]:
    return frozenset({rank.node_id})


def over(listing: Listing, run: RunId = RUN) -> bool:
    found = listing.runs.get(run)
    return found is not None and all(rank.over for rank in found.ranks.values())


def running(listing: Listing, run: RunId = RUN, ranks: int = NODES) -> bool:
    found = listing.runs.get(run)
    return (
        found is not None
        and len(found.ranks) == ranks
        and all(rank.state is RankState.RUNNING for rank in found.ranks.values())
    )


def rank_of(listing: Listing, rank: int = 0, run: RunId = RUN) -> ObservedRank:
    return listing.runs[run].ranks[rank]


async def test_a_gang_runs_once_launched(backend: Backend, runtime: Runtime) -> None:
    await runtime.launch(backend.endless())
    # From the very return on, every rank is there, running or pending.
    assert set((await runtime.list()).runs[RUN].ranks) == {0, 1}
    listing = await until(runtime, running)
    assert {rank: seen.state for rank, seen in listing.runs[RUN].ranks.items()} == {
        0: RankState.RUNNING,
        1: RankState.RUNNING,
    }
    assert listing.runs[RUN].node_ids == BOTH
    assert all(node.node.ready for node in listing.nodes.values())
    assert rank_of(listing, 1).node_id == "local-1"


async def test_launching_again_finds_the_first(backend: Backend, runtime: Runtime) -> None:
    order = backend.endless()
    await asyncio.gather(*(runtime.launch(order) for _ in range(5)))
    await runtime.launch(order)
    await asyncio.sleep(0.2)
    assert backend.starts() == NODES


async def test_half_a_gang_is_completed(backend: Backend, runtime: Runtime) -> None:
    order = backend.endless()
    await runtime.launch(replace(order, ranks=order.ranks[:1]))
    await runtime.launch(order)
    assert set((await runtime.list()).runs[RUN].ranks) == {0, 1}
    await asyncio.sleep(0.2)
    assert backend.starts() == NODES


async def test_only_ranks_that_are_to_start_begin(backend: Backend, runtime: Runtime) -> None:
    order = backend.endless()
    some = replace(order, ranks=order.ranks[1:], world_size=2, build_gang=lambda: order.ranks)
    await runtime.launch(some)
    assert set((await runtime.list()).runs[RUN].ranks) == {1}
    await runtime.launch(order)
    assert set((await runtime.list()).runs[RUN].ranks) == {0, 1}
    await asyncio.sleep(0.2)
    assert backend.starts() == NODES


async def test_some_ranks_are_ended_before_the_others(backend: Backend, runtime: Runtime) -> None:
    await runtime.launch(backend.endless())
    await until(runtime, running)
    some = frozenset({1})
    await runtime.end(RUN, frozenset({"local-1"}), grace_seconds=5, ranks=some)
    await runtime.end(RUN, frozenset({"local-1"}), grace_seconds=5, ranks=some)
    listing = await until(runtime, lambda seen: rank_of(seen, 1).over)
    assert backend.was_killed(rank_of(listing, 1))
    assert rank_of(listing, 0).state is RankState.RUNNING
    await runtime.end(RUN, BOTH, grace_seconds=5)
    listing = await until(runtime, over)
    assert all(backend.was_killed(rank_of(listing, rank)) for rank in (0, 1))


async def test_a_rank_is_started_again_in_its_place(backend: Backend, runtime: Runtime) -> None:
    await runtime.launch(backend.leaving(3))
    await until(runtime, over)
    order = backend.endless(ranks=1)
    again = replace(order, ranks=tuple(replace(rank, start=1) for rank in order.ranks))
    await until_launched(runtime, again)
    listing = await until(runtime, lambda seen: rank_of(seen).state is RankState.RUNNING)
    begun = rank_of(listing)
    assert (begun.start, begun.code) == (1, None)
    # Neither the same order nor a late one of the first process starts another one.
    await runtime.launch(again)
    await runtime.launch(order)
    assert rank_of(await runtime.list()) == begun
    successor = backend.handle()
    await successor.lead(2)
    assert rank_of(await successor.list()) == begun
    await successor.end(RUN, begun_on(begun), grace_seconds=5)
    listing = await until(successor, over)
    assert backend.was_killed(rank_of(listing))
    assert rank_of(listing).start == 1
    await successor.close()


async def test_a_rank_is_not_started_again_while_its_process_runs(
    backend: Backend, runtime: Runtime
) -> None:
    order = backend.endless()
    await runtime.launch(order)
    before = await until(runtime, running)
    again = replace(order, ranks=tuple(replace(rank, start=1) for rank in order.ranks))
    with contextlib.suppress(RuntimeUnavailableError):
        await runtime.launch(again)
    await asyncio.sleep(0.2)
    assert (await runtime.list()).runs[RUN].ranks == before.runs[RUN].ranks
    assert backend.starts() == NODES


@pytest.mark.parametrize("code", [0, 3, 75])
async def test_exit_codes(backend: Backend, runtime: Runtime, code: int) -> None:
    await runtime.launch(backend.leaving(code))
    rank = rank_of(await until(runtime, over))
    assert (rank.state, rank.code, rank.signal) == (RankState.EXITED, code, None)
    assert rank.exited_at is not None
    assert rank.started_at is not None
    assert rank.exited_at >= rank.started_at


async def test_a_signal_reaches_the_main_process(backend: Backend, runtime: Runtime) -> None:
    await runtime.launch(backend.endless())
    await until(runtime, running)
    await runtime.signal(RUN, BOTH, signal.SIGUSR1)
    listing = await until(runtime, over)
    assert [rank_of(listing, rank).signal for rank in (0, 1)] == [signal.SIGUSR1] * 2


async def test_end_kills(backend: Backend, runtime: Runtime) -> None:
    await runtime.launch(backend.endless())
    await until(runtime, running)
    await runtime.end(RUN, BOTH, grace_seconds=5)
    await runtime.end(RUN, BOTH, grace_seconds=5)
    listing = await until(runtime, over)
    assert all(backend.was_killed(rank_of(listing, rank)) for rank in (0, 1))


async def test_a_run_that_was_ended_never_begins(backend: Backend, runtime: Runtime) -> None:
    await runtime.end(RUN, BOTH, grace_seconds=5)
    with pytest.raises(RuntimeDeniedError):
        await runtime.launch(backend.endless())
    listing = await runtime.list()
    assert listing.runs[RUN].ranks == {}
    assert backend.starts() == 0
    await runtime.forget(RUN, BOTH, keep=True)
    assert RUN not in (await runtime.list()).runs


@pytest.mark.parametrize("keep", [True, False])
async def test_only_ended_runs_can_be_forgotten(
    backend: Backend, runtime: Runtime, keep: bool
) -> None:
    await runtime.launch(backend.endless())
    with pytest.raises(RuntimeUnavailableError):
        await runtime.forget(RUN, BOTH, keep=keep)
    await runtime.end(RUN, BOTH, grace_seconds=5)
    await until(runtime, over)
    await runtime.forget(RUN, BOTH, keep=keep)
    await runtime.forget(RUN, BOTH, keep=keep)
    assert (await runtime.list()).runs == {}


async def test_runs_do_not_affect_each_other(backend: Backend, runtime: Runtime) -> None:
    other = run_id("other")
    await runtime.launch(backend.endless())
    await runtime.launch(backend.endless(other))
    await runtime.end(RUN, BOTH, grace_seconds=5)
    listing = await until(runtime, over)
    assert not over(listing, other)


async def test_a_change_is_hinted(backend: Backend, runtime: Runtime) -> None:
    hinted = asyncio.Event()
    runtime.on_change(hinted.set)
    await runtime.launch(backend.leaving(0))
    async with asyncio.timeout(5):
        while not over(await runtime.list()):
            hinted.clear()
            if not over(await runtime.list()):
                await hinted.wait()


async def test_another_launcher_takes_the_runs_up(backend: Backend, runtime: Runtime) -> None:
    await runtime.launch(backend.endless())
    before = await until(runtime, running)
    successor = backend.handle()
    await successor.lead(2)
    assert rank_of(await successor.list()) == rank_of(before)
    await successor.launch(backend.endless())
    await asyncio.sleep(0.1)
    assert backend.starts() == NODES
    await successor.end(RUN, BOTH, grace_seconds=5)
    assert backend.was_killed(rank_of(await until(successor, over)))
    await successor.close()


async def test_an_old_leader_is_refused(backend: Backend, runtime: Runtime) -> None:
    successor = backend.handle()
    await successor.lead(2)
    await successor.list()
    with pytest.raises((RuntimeDeniedError, RuntimeUnavailableError)):
        await runtime.launch(backend.endless())
    with pytest.raises((RuntimeDeniedError, RuntimeUnavailableError)):
        await runtime.launch(backend.endless())
    assert (await successor.list()).runs == {}
    assert backend.starts() == 0
    await successor.close()


async def test_a_silent_node_reports_no_ranks_until_it_is_fenced(
    backend: Backend, runtime: Runtime
) -> None:
    await runtime.launch(backend.endless())
    await until(runtime, running)
    await backend.silence("local-1")
    listing = await until(runtime, lambda seen: not seen.nodes["local-1"].node.ready)
    assert set(listing.runs[RUN].ranks) == {0}
    assert listing.nodes["local-0"].node.ready
    assert listing.nodes["local-1"].problem
    with pytest.raises(RuntimeUnavailableError):
        await runtime.end(RUN, BOTH, grace_seconds=5)
    await runtime.fence("local-1")
    listing = await until(runtime, over)
    assert backend.was_killed(rank_of(listing, 0))
    assert rank_of(listing, 1).state is RankState.LOST
    await runtime.end(RUN, BOTH, grace_seconds=5)
    await runtime.forget(RUN, BOTH, keep=True)
