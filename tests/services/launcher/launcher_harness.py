"""A launcher on a store and a fake cluster, turned by hand on virtual time; it crashes anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from libs.contracts.base import Message
from libs.contracts.ids import RunId
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    RunExited,
    RunStarted,
)
from libs.service.loop import pause
from libs.store.port import Store, StoreUnavailableError
from services.launcher.domain.inventory import LeasePolicy, QuarantinePolicy
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.reconcile import Policy
from services.launcher.handlers import HANDLERS, Commands
from services.launcher.loop import Launcher, Limits
from services.launcher.run_masks import RunMasks
from services.launcher.run_orders import Site
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeCluster, Script
from services.launcher.runtimes.port import RunOrder, Runtime
from services.launcher.tables import TABLES
from tests.kit.launcher_builders import KEY, a_node
from tests.kit.memory import MemoryPlatform
from tests.kit.virtual_time import LoopClock

M = TypeVar("M", bound=Message)
SITE = Site(
    url="http://127.0.0.1:8642",
    token_key=KEY,
    path="/usr/bin:/bin",
    lang="C.UTF-8",
    master_addr="127.0.0.1",
)


def limits(**more: Any) -> Limits:
    return Limits(
        **{
            "policy": Policy(exit_grace=timedelta(seconds=2)),
            "leases": LeasePolicy(timedelta(seconds=3), timedelta(seconds=6)),
            "ports": PortRange(23_000, 23_999),
            "actions_parallel_max": 8,
            "retry_first_seconds": 0.1,
            "retry_most_seconds": 1.0,
            "quarantine": QuarantinePolicy(3, 600.0, 14_400.0),
            **more,
        }
    )


class CrashError(Exception):
    """The launcher's process is gone."""


@dataclass
class LauncherHarness:
    """A launcher and its platform; all but the launcher survives ``crash``."""

    nodes: int = 4
    clock: LoopClock = field(default_factory=LoopClock)
    script: Script = field(default_factory=lambda: Script(steps=3, step_seconds=0.5))
    # Calls of the runtime until a crash, before or after the call took effect.
    calls_left: int = -1
    crash_after: bool = False
    make_runtime: Callable[[], Runtime] | None = None
    limits: Limits = field(default_factory=limits)
    epoch: int = 0
    saved: list[tuple[RunId, int]] = field(default_factory=list)
    wanted: set[RunId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cluster = FakeCluster(
            [a_node(f"local-{number}") for number in range(self.nodes)],
            platform=self,
            script_of=self.script_of,
            now=self.clock.now,
            rng=Random(7),
        )
        self.platform = MemoryPlatform(self.clock)

    def script_of(self, order: RunOrder) -> Script:
        del order
        return self.script

    # The calls of the SDK

    def should_preempt(self, run_id: RunId) -> bool:
        return run_id in self.wanted

    async def save(self, run_id: RunId, step: int) -> bool:
        reply = await self.acknowledge(run_id.task_id, run_id.attempt, step)
        if reply.checkpoint is not None:
            self.saved.append((run_id, step))
        return reply.checkpoint is not None

    async def acknowledge(self, task: str, attempt: int, step: int) -> AckCheckpointReply:
        command = AckCheckpoint(
            task_id=task, attempt=attempt, step=step, uri=f"/c/{attempt}/{step}"
        )
        reply = await self.command(command)
        assert isinstance(reply, AckCheckpointReply)
        return reply

    # The launcher

    async def start(self) -> None:
        """A fresh launcher over what there is."""
        self.store: Store = self.platform.store(TABLES)
        leadership = await self.store.lead()
        self.epoch = leadership.epoch
        runtime = (
            self.make_runtime() if self.make_runtime is not None else FakeRuntime(self.cluster)
        )
        self.launcher = Launcher(self.store, _CrashingRuntime(self, runtime), SITE, self.limits)
        await self.launcher.on_lead(self.epoch)

    async def restart(self) -> None:
        """The process died and another one leads."""
        await self.store.close()
        await self.start()

    async def handle(self, *events: Message) -> None:
        for event in events:
            async with self.store.transaction(epoch=self.epoch) as tx:
                await HANDLERS[type(event)](tx, event)

    async def command(self, command: Message) -> Message:
        table = Commands("fake", 100, RunMasks(SITE)).table()
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await table[type(command)](tx, command)

    async def run_loops(self, times: int = 1) -> None:
        """Run all loops in turn; a crash starts a fresh launcher."""
        for _ in range(times):
            try:
                await self.launcher.act(self.epoch)
                await self.launcher.probe(self.epoch)
                await self.launcher.reconcile(self.epoch)
            except (CrashError, StoreUnavailableError):
                await self.restart()

    async def until(self, true: Callable[[], bool], *, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not true():
                await self.run_loops()
                await pause(0.05)

    async def published(self, kind: type[M], **fields: object) -> list[M]:
        """Every event of a type that is in the outbox, in order."""
        return [
            envelope.message
            for _, envelope in await self.store.outgoing(10_000)
            if isinstance(envelope.message, kind)
            and all(getattr(envelope.message, name) == value for name, value in fields.items())
        ]

    async def until_published(self, kind: type[M], attempt: int, task: str) -> M:
        """The one event of this type about this run, when it is in the outbox."""
        found: Sequence[M] = []
        async with asyncio.timeout(120):
            while not found:
                await self.run_loops()
                await pause(0.05)
                found = await self.published(kind, task_id=task, attempt=attempt)
        assert len(found) == 1
        return found[0]

    async def until_exited(self, attempt: int = 1, task: str = "task") -> RunExited:
        return await self.until_published(RunExited, attempt, task)

    async def until_started(self, attempt: int = 1, task: str = "task") -> RunStarted:
        return await self.until_published(RunStarted, attempt, task)


class _CrashingRuntime:
    """A runtime in whose calls the launcher can die."""

    def __init__(self, harness: LauncherHarness, runtime: Runtime) -> None:
        self._harness, self._runtime = harness, runtime

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        if name not in {"launch", "signal", "end", "forget", "fence", "list"}:
            return found

        async def call(*arguments: Any, **more: Any) -> Any:
            harness = self._harness
            harness.calls_left -= 1
            dies = harness.calls_left == 0
            if dies and not harness.crash_after:
                raise CrashError(name)
            answer = await found(*arguments, **more)
            if dies:
                raise CrashError(name)
            return answer

        return call


@contextlib.asynccontextmanager
async def running_cluster(harness: LauncherHarness) -> AsyncIterator[LauncherHarness]:
    """The cluster plays its programs while the context is open."""
    task = asyncio.ensure_future(harness.cluster.run())
    try:
        await harness.start()
        await harness.run_loops()
        yield harness
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
