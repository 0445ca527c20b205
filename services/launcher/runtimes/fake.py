"""The runtime of the simulation and of tests: one launcher's handle on a ``FakeCluster``, with that
launcher's epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from libs.contracts.ids import RunId
from libs.service.loop import pause
from services.launcher.domain.model import (
    Listing,
    ObservedNode,
    ObservedRank,
    ObservedRun,
    RankState,
)
from services.launcher.runtimes.fake_cluster import FakeCluster, FakeRank, FakeRun
from services.launcher.runtimes.port import (
    LaunchRefusedError,
    RankOrder,
    RunOrder,
    RuntimeDeniedError,
    RuntimeUnavailableError,
    StartFailedError,
)


class FakeRuntime:
    """``port.Runtime`` on a ``FakeCluster``, for one launcher."""

    name = "fake"
    shares_ports = True
    probes = True

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._epoch = 0
        self._hint: Callable[[], None] | None = None

    async def lead(self, epoch: int) -> None:
        """See ``port.Runtime``."""
        self._epoch = epoch
        self._cluster.epoch = max(self._cluster.epoch, epoch)

    async def run(self) -> None:
        """See ``port.Runtime``. The cluster lives by itself."""
        await asyncio.Event().wait()

    async def launch(self, order: RunOrder) -> None:
        """See ``port.Runtime``."""
        run = self._cluster.runs.get(order.run_id)
        wanted = order.ranks
        there = [rank for rank in wanted if self._cluster.accepts_launches(rank.node_id)]
        reachable = [rank for rank in there if rank.node_id not in self._cluster.unable]
        if run is not None and run.ended & {rank.node_id for rank in wanted}:
            raise RuntimeDeniedError(f"run {order.run_id} was ended")
        await self._call([], lambda: self._launch(order, reachable))
        if len(reachable) < len(there):
            unable = {rank.node_id for rank in there} & self._cluster.unable
            raise StartFailedError(frozenset(unable), "a node cannot start it")
        if len(reachable) < len(wanted):
            raise RuntimeUnavailableError("a node of the gang does not answer")

    def _launch(self, order: RunOrder, reachable: list[RankOrder]) -> None:
        """Make what can be made; a refusal may leave half a gang, which has to be ended."""
        cluster = self._cluster
        fault = cluster.refusal(order.run_id)
        if fault is not None:
            reachable = reachable[: cluster.rng.randint(0, len(reachable) - 1)] if reachable else []
        if reachable:
            cluster.launch(replace(order, ranks=tuple(reachable), world_size=order.size))
        if fault is not None:
            raise LaunchRefusedError(fault, f"{fault}, says the cluster")

    async def signal(self, run_id: RunId, node_ids: frozenset[str], signal: int) -> None:
        """See ``port.Runtime``."""

        def send() -> None:
            run = self._cluster.runs.get(run_id)
            for rank in run.ranks.values() if run else ():
                if rank.order.node_id in node_ids and rank.running:
                    rank.signals.append(signal)

        await self._call(node_ids, send)

    async def end(
        self,
        run_id: RunId,
        node_ids: frozenset[str],
        *,
        grace_seconds: float,
        ranks: frozenset[int] | None = None,
        asks: bool = False,
    ) -> None:
        """See ``port.Runtime``."""
        del grace_seconds, asks

        def end() -> None:
            for node_id in filter(self._cluster.is_visible, sorted(node_ids)):
                # The node remembers it, so that no later launch begins anything there.
                run = self._cluster.runs.setdefault(run_id, FakeRun(run_id))
                run.ended.add(node_id)
                self._cluster.kill(run, node_id, ranks)

        await self._call(node_ids, end)

    async def forget(self, run_id: RunId, node_ids: frozenset[str], *, keep: bool) -> None:
        """See ``port.Runtime``."""
        del keep

        def forget() -> None:
            run = self._cluster.runs.get(run_id)
            if run is None or not all(map(self._cluster.is_visible, node_ids)):
                return
            if any(rank.exited_at is None for rank in run.ranks.values()):
                raise RuntimeUnavailableError(f"run {run_id} is not over")
            del self._cluster.runs[run_id]
            self._cluster.changed()

        await self._call(node_ids, forget)

    async def fence(self, node_id: str) -> None:
        """See ``port.Runtime``. The node stays silent, but what ran there is seen gone."""
        await self._call([], lambda: None)
        self._cluster.lose_ranks(node_id)
        self._cluster.fenced.add(node_id)
        self._cluster.changed()

    async def list(self) -> Listing:
        """See ``port.Runtime``."""
        cluster = self._cluster
        cluster.clear_retired()
        nodes = {
            node_id: ObservedNode(
                node.model_copy(update={"ready": node_id not in cluster.silent}),
                problem="silent" if node_id in cluster.silent else "",
                retired=node_id in cluster.retired,
            )
            for node_id, node in cluster.nodes.items()
        }
        runs = {
            run_id: seen for run_id in cluster.runs if (seen := self._observe(run_id)) is not None
        }
        return Listing(nodes, runs)

    def on_change(self, hint: Callable[[], None]) -> None:
        """See ``port.Runtime``."""
        self._hint = hint
        self._cluster.hints.append(hint)

    async def close(self) -> None:
        """See ``port.Runtime``."""
        if self._hint is not None and self._hint in self._cluster.hints:
            self._cluster.hints.remove(self._hint)

    def _observe(self, run_id: RunId) -> ObservedRun | None:
        """A run as the nodes that answer report it."""
        run = self._cluster.runs[run_id]
        ranks = {
            number: _observed(rank, self._cluster.node_skew)
            for number, rank in run.ranks.items()
            if self._cluster.is_visible(rank.order.node_id)
        }
        where = {rank.node_id for rank in ranks.values()}
        where |= set(filter(self._cluster.is_visible, run.ended))
        return ObservedRun(run_id, ranks, frozenset(where)) if where else None

    async def _call(self, node_ids: Iterable[str], effect: Callable[[], None]) -> None:
        """Carry out an order as a network would: perhaps not, perhaps without an answer."""
        cluster = self._cluster
        # Give the loop a turn, as a real call does.
        await pause(0)
        if cluster.rng.random() < cluster.failure_rate / 2:
            raise RuntimeUnavailableError("the call was lost")
        if self._epoch < cluster.epoch:
            raise RuntimeDeniedError("a newer leader commands this cluster")
        effect()
        silent = sorted(node_id for node_id in node_ids if not cluster.is_visible(node_id))
        if silent:
            raise RuntimeUnavailableError(f"{', '.join(silent)} does not answer")
        if cluster.rng.random() < cluster.failure_rate / 2:
            raise RuntimeUnavailableError("the answer was lost")


def _observed(rank: FakeRank, skew: timedelta) -> ObservedRank:
    state = RankState.PENDING if rank.started_at is None else RankState.RUNNING
    if rank.exited_at is not None:
        state = RankState.LOST if rank.lost else RankState.EXITED
    return ObservedRank(
        rank=rank.order.rank,
        node_id=rank.order.node_id,
        state=state,
        code=None if rank.lost else rank.code,
        signal=None if rank.lost else rank.signal,
        started_at=rank.started_at + skew if rank.started_at is not None else None,
        exited_at=rank.exited_at + skew if rank.exited_at is not None else None,
        start=rank.order.start,
        ready=rank.ready,
    )
