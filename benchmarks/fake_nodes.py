"""Nodes without processes, for benchmarks of everything else: a runtime that only keeps time.

A rank runs for ``DURATION_S`` seconds (from its environment) of the real clock and exits with 0.
Unlike the simulation's cluster it has no faults and no programs, and a scan of it costs only what
changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from libs.contracts.ids import RunId
from libs.contracts.messages import Node
from services.launcher.domain.model import (
    Listing,
    ObservedNode,
    ObservedRank,
    ObservedRun,
    RankState,
)
from services.launcher.runtimes.port import RunOrder, RuntimeDeniedError

DURATION = "DURATION_S"
KILL_SIGNAL = 9
GIB = 1 << 30


@dataclass
class _Run:
    """One gang: as it is seen, and what will end it."""

    seen: ObservedRun
    timer: asyncio.TimerHandle | None = None
    # Ended by order: it may not begin any more.
    ended: bool = False


def now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def nodes_of(groups: Mapping[str, int], gpus: int = 1) -> list[Node]:
    """So many like nodes in each group."""
    return [
        Node(
            id=f"{group}-{number:03d}",
            group=group,
            gpus=gpus,
            cpus=8.0,
            memory_bytes=64 * GIB,
            schedulable=True,
            ready=True,
        )
        for group, count in groups.items()
        for number in range(count)
    ]


class FakeNodes:
    """``services.launcher.runtimes.port.Runtime`` over nodes that are not there."""

    name = "timed"
    # A rank that only keeps time opens no port.
    shares_ports = False
    # Nor does it become ready.
    probes = True

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.id: ObservedNode(node) for node in nodes}
        self._runs: dict[RunId, _Run] = {}
        self._epoch = 0
        self._hints: list[Callable[[], None]] = []

    async def lead(self, epoch: int) -> None:
        """See ``port.Runtime``."""
        self._epoch = max(self._epoch, epoch)

    async def run(self) -> None:
        """See ``port.Runtime``. The timers run in the event loop."""
        await asyncio.Event().wait()

    async def launch(self, order: RunOrder) -> None:
        """See ``port.Runtime``: every rank begins now and ends together with the others."""
        known = self._runs.get(order.run_id)
        if known is not None:
            if known.ended and not known.seen.ranks:
                raise RuntimeDeniedError(f"run {order.run_id} was ended")
            return
        at = now()
        ranks = {
            each.rank: ObservedRank(each.rank, each.node_id, RankState.RUNNING, started_at=at)
            for each in order.ranks
        }
        where = frozenset(each.node_id for each in order.ranks)
        run = self._runs[order.run_id] = _Run(ObservedRun(order.run_id, ranks, where))
        seconds = float(order.ranks[0].env.get(DURATION, "0"))
        loop = asyncio.get_running_loop()
        run.timer = loop.call_later(seconds, self._finish, run, 0, None)
        self._changed()

    async def signal(self, run_id: RunId, node_ids: frozenset[str], signal: int) -> None:
        """See ``port.Runtime``: what only keeps time dies of a signal."""
        del node_ids
        run = self._runs.get(run_id)
        if run is not None:
            self._finish(run, None, signal)

    async def end(
        self,
        run_id: RunId,
        node_ids: frozenset[str],
        *,
        grace_seconds: float,
        ranks: frozenset[int] | None = None,
        asks: bool = False,
    ) -> None:
        """See ``port.Runtime``: the ranks of a run end together."""
        del grace_seconds, ranks, asks
        run = self._runs.setdefault(run_id, _Run(ObservedRun(run_id, {}, node_ids)))
        run.ended = True
        self._finish(run, None, KILL_SIGNAL)

    async def forget(self, run_id: RunId, node_ids: frozenset[str], *, keep: bool) -> None:
        """See ``port.Runtime``."""
        del node_ids, keep
        if self._runs.pop(run_id, None) is not None:
            self._changed()

    async def fence(self, node_id: str) -> None:
        """See ``port.Runtime``: no node is ever silent."""

    async def list(self) -> Listing:
        """See ``port.Runtime``."""
        return Listing(self._nodes, {run_id: run.seen for run_id, run in self._runs.items()})

    def on_change(self, hint: Callable[[], None]) -> None:
        """See ``port.Runtime``."""
        self._hints.append(hint)

    async def close(self) -> None:
        """See ``port.Runtime``."""
        self._hints.clear()

    def _finish(self, run: _Run, code: int | None, signal: int | None) -> None:
        """Every rank that runs ends now."""
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        at = now()
        ranks = {
            number: replace(rank, state=RankState.EXITED, code=code, signal=signal, exited_at=at)
            if rank.state is RankState.RUNNING
            else rank
            for number, rank in run.seen.ranks.items()
        }
        run.seen = replace(run.seen, ranks=ranks)
        self._changed()

    def _changed(self) -> None:
        for hint in self._hints:
            hint()
