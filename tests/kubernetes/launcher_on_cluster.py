"""A real launcher on memory tables and a real API server; it crashes at chosen calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from libs.contracts.messages import Placement, PodRequest, RunAssigned, TaskSpec
from libs.service.clock import SystemClock
from services.launcher.domain.grace_periods import GracePeriods
from services.launcher.domain.inventory import LeasePolicy
from services.launcher.domain.rank_faults import PendingLimits
from services.launcher.domain.reconcile import Policy
from services.launcher.domain.start_delays import DelayPolicy
from tests.kit.launcher_builders import a_spec, an_assignment
from tests.kubernetes.cluster_harness import RUNS, ClusterHarness, Crash, CrashError
from tests.services.launcher.launcher_harness import LauncherHarness, limits
from tools.cluster.control_plane import ControlPlane


class LauncherOnCluster(LauncherHarness):
    """A harness in which one launcher at a time lives; a crash starts the next one."""

    def __init__(self, cluster: ClusterHarness, **more: Any) -> None:
        self.cluster_harness = cluster
        second = timedelta(seconds=1)
        super().__init__(
            nodes=0,
            clock=SystemClock(),  # type: ignore[arg-type]
            make_runtime=cluster.handle,
            limits=limits(
                policy=Policy(
                    exit_grace=second,
                    grace=GracePeriods(acked=1, mates=1, full=2),
                    pending_limits=PendingLimits(image_pull=second, create=second),
                ),
                leases=LeasePolicy(second, 2 * second),
                delays=DelayPolicy(first=second / 2, again=second / 2),
                **more,
            ),
        )
        self.deaths = 0

    async def start(self) -> None:
        if self.cluster_harness.handles:
            await self.cluster_harness.stop()
        await super().start()

    async def run_loops(self, times: int = 1) -> None:
        """Both loops; dying anywhere in them starts a fresh launcher."""
        for _ in range(times):
            beside = self.cluster_harness.running[-1]
            try:
                await self.launcher.act(self.epoch)
                await self.launcher.reconcile(self.epoch)
                died = beside.done()
            except CrashError:
                died = True
            if died:
                self.deaths += 1
                await self.restart()

    def crash_at(self, call: int, *, after: bool) -> Crash:
        """Crash at the call of an order with this number, counted from now on."""
        crash = Crash(call, after)
        self.cluster_harness.transports[-1].crash = crash
        return crash

    def spec(self, ranks: int = 1, *, image: str = RUNS, gpus: int = 1, **more: Any) -> TaskSpec:
        return a_spec(ranks, gpus_per_node=gpus, pod=PodRequest(image=image), **more)

    def assignment(
        self,
        ranks: int = 1,
        *,
        task: str = "task",
        attempt: int = 1,
        spec: TaskSpec | None = None,
        nodes: list[str] | None = None,
        gpus: int = 1,
        **how: Any,
    ) -> RunAssigned:
        """A gang round the nodes, from the first GPU on."""
        names = nodes or list(self.cluster_harness.node_names)
        placed = tuple(
            Placement(
                rank=rank,
                role="worker",
                role_index=rank,
                node_id=names[rank % len(names)],
                gpus=tuple(range(rank // len(names) * gpus, (rank // len(names) + 1) * gpus)),
            )
            for rank in range(ranks)
        )
        spec = spec or self.spec(ranks, gpus=gpus, **how)
        made = an_assignment(attempt, task=task, spec=spec, ranks=ranks)
        return made.model_copy(update={"placements": placed, "assigned_at": self.clock.now()})


@asynccontextmanager
async def a_launcher(
    plane: ControlPlane, folder: Path, *, nodes: int = 2, **more: Any
) -> AsyncIterator[LauncherOnCluster]:
    """A launcher that leads, with nodes of its own."""
    cluster = ClusterHarness(plane, folder, tuple(f"local-{number}" for number in range(nodes)))
    harness = LauncherOnCluster(cluster, **more)
    try:
        await harness.start()
        await harness.run_loops(2)
        yield harness
    finally:
        await cluster.close()
