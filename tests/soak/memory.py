"""All services on memory adapters and virtual time: many tasks, then a pause in which all that
is kept for a while grows old. After each pause the platform holds what it held after the first."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from libs.bus import memory_broker
from libs.bus.port import BusError
from libs.contracts.ids import RunId
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    CreateTask,
    CreateTaskReply,
    Goal,
    Node,
    PreemptionPolicy,
    PreemptMode,
    Priority,
    Quota,
    RetryPolicy,
    Role,
    SetGoal,
    SetQuota,
    TaskSpec,
    Unit,
)
from libs.service.loop import pause
from libs.service.runner import Runner
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from libs.store import columns, core
from libs.store.recent import Recent
from services.allinone.composition import WIRINGS
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeCluster, Script
from services.launcher.runtimes.port import RunOrder
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.sources.memory import MemorySource
from tests.kit.memory import MemoryPlatform, running
from tests.kit.virtual_time import LoopClock, virtually
from tests.soak.growth import SLACK, Samples, of_objects

# What is kept is kept so long, and the platform rests for longer after each part.
KEEP_SECONDS = 30.0
REST_SECONDS, RESTS = 3 * KEEP_SECONDS, 12
NODES, IN_FLIGHT = 16, 64
USERS = tuple(f"user{number}" for number in range(8))
ASK_SECONDS = 5.0
RECENT_ROWS_MAX = 64
Leak = Callable[["Soak"], None]


def short_retention(wiring: Wiring) -> dict[str, float]:
    """Every setting of a service that says how long something is kept, as short as possible; found
    by its name, so that a new one is short as well."""
    names = wiring.settings.model_fields
    kept: dict[str, float] = {
        name: KEEP_SECONDS
        for name in names
        # Series are kept for two blocks at least, and nothing is sampled here.
        if name.endswith("_keep_seconds") and not name.startswith(("kube_", "outbox", "series_"))
    }
    kept |= {"outbox_keep_seconds": 2.0, "outbox_period_seconds": 1.0, "prune_tick_seconds": 1.0}
    kept |= {"republish_window_seconds": 1.0, "prune_days_per_hour": 0}
    if "keep_days" in names:
        kept["keep_days"] = KEEP_SECONDS / 86_400
    return kept


class Soak:
    """The platform, the machines, and the people who submit."""

    def __init__(self, tasks: int, per_sample: int, leak: Leak | None = None) -> None:
        self.tasks, self.per_sample = tasks, per_sample
        self.clock = LoopClock()
        self.platform = MemoryPlatform(self.clock)
        self.source, self.archive = MemorySource(), MemoryArchive()
        self.rng = Random(1)
        self.samples = Samples()
        self.cluster = FakeCluster(
            [_node(number) for number in range(NODES)],
            platform=self,
            script_of=self.script_of,
            now=self.clock.now,
            rng=Random(2),
        )
        self.runners = [self._runner(wiring) for wiring in WIRINGS]
        self._leak = leak
        self._done = self._extra = 0

    def _runner(self, wiring: Wiring) -> Runner:
        replacements: dict[str, dict[str, Any]] = {
            "launcher": {"runtime": FakeRuntime(self.cluster)},
            "log_collector": {"source": self.source, "archive": self.archive},
        }
        own: dict[str, Any] = {
            "launcher": {"run_token_key_file": Path(__file__)},
            "log_collector": {"runs_dir": Path("/nowhere"), "logs_dir": Path("/nowhere")},
        }.get(wiring.name, {})
        settings: BaseServiceSettings = wiring.settings(
            **{"database_url": "-", "nats_url": "-", **short_retention(wiring), **own}
        )
        service = self.platform.build(wiring, settings, **replacements.get(wiring.name, {}))
        return Runner(service, settings)

    # What the programs do

    def script_of(self, order: RunOrder) -> Script:
        """One in eight fails once or for good, one in four saves."""
        number = sum(order.run_id.task_id.encode())
        return Script(steps=3, step_seconds=0.2, save_every=2, code=int(number % 8 == 0))

    def should_preempt(self, run_id: RunId) -> bool:
        """Programs here do not listen."""
        del run_id
        return False

    async def save(self, run_id: RunId, step: int) -> bool:
        """Report a checkpoint."""
        command = AckCheckpoint(
            task_id=run_id.task_id, attempt=run_id.attempt, step=step, uri=f"/c/{step}"
        )
        try:
            reply = await self.bus.request(command, timeout_s=ASK_SECONDS)
        except BusError:
            return True
        assert isinstance(reply, AckCheckpointReply)
        return reply.checkpoint is not None

    # What people do

    async def person(self, user: str, numbers: asyncio.Queue[int]) -> None:
        """Submit one task after the other; stop some of them; change a quota now and then."""
        while True:
            number = await numbers.get()
            spec = TaskSpec(
                name=f"t{number}",
                group="default",
                priority=self.rng.choice((Priority.LOW, Priority.NORMAL, Priority.HIGH)),
                roles=(Role(name="worker", replicas=1, command=("true",)),),
                gpus_per_node=self.rng.choice((1, 4, 8)),
                retry=RetryPolicy(max_retries=1),
                preemption=PreemptionPolicy(mode=PreemptMode.SDK, ack_deadline_seconds=5),
            )
            command = CreateTask(
                spec=spec, owner=user, team="team", client_key=f"k{number}", asked_by=user
            )
            reply = await self.bus.request(command, timeout_s=ASK_SECONDS)
            assert isinstance(reply, CreateTaskReply), reply
            assert reply.refusal is None, reply.refusal
            if number % 10 == 0:
                await pause(0.3)
                stop = SetGoal(task_id=reply.task_id, goal=Goal.STOP, asked_by=user)
                await self.bus.request(stop, timeout_s=ASK_SECONDS)
            if number % 50 == 0:
                quota = Quota(user=f"guest{number}", unit=Unit.GPUS, limit=4)
                for removed in (False, True):
                    change = SetQuota(quota=quota, remove=removed, asked_by="root")
                    await self.bus.request(change, timeout_s=ASK_SECONDS)
            await self._ended(reply.task_id)
            numbers.task_done()

    async def _ended(self, task_id: str) -> None:
        tasks = self.platform.database.schema("scheduler").tables["task"].rows
        while task_id in tasks or not self._queued_once(task_id):
            await pause(0.5)

    def _queued_once(self, task_id: str) -> bool:
        tables = self.platform.database.schema("scheduler").tables
        ended = tables.get("endedtask")
        return ended is not None and task_id in ended.rows

    async def run(self) -> Samples:
        """Submit, rest and count, until all tasks are through."""
        self.bus = self.platform.connection("gateway")
        async with running(*self.runners), asyncio.TaskGroup() as group:
            beside = [group.create_task(self.cluster.run())]
            numbers: asyncio.Queue[int] = asyncio.Queue()
            beside += [
                group.create_task(self.person(USERS[number % len(USERS)], numbers))
                for number in range(IN_FLIGHT)
            ]
            for first in range(0, self.tasks, self.per_sample):
                for number in range(first, min(first + self.per_sample, self.tasks)):
                    numbers.put_nowait(number)
                await numbers.join()
                await self._rest(numbers)
                if self._leak is not None:
                    self._leak(self)
                self._forget_history()
                self.samples.add(self.rows(), of_objects())
                self._done = min(first + self.per_sample, self.tasks)
                self._report()
            for task in beside:
                task.cancel()
        return self.samples

    async def _rest(self, numbers: asyncio.Queue[int]) -> None:
        """Everything that is kept for a while grows old; the services' ticks delete it. A task now
        and then, because the outbox counts time in which something is published."""
        for _ in range(RESTS):
            self._extra += 1
            numbers.put_nowait(self.tasks + self._extra)
            await numbers.join()
            await pause(REST_SECONDS / RESTS)

    def _forget_history(self) -> None:
        """What the adapters keep for checks, and a real server deletes."""
        broker, cluster = self.platform.broker, self.cluster
        broker.history.clear()
        broker._known.clear()
        cluster.starts.clear()
        cluster._refusals.clear()
        durables = broker._durables.values()
        read = min((each.position for each in durables), default=0)
        del broker._stream[:read]
        for each in durables:
            each.position -= read

    def rows(self) -> Counter[str]:
        """Rows of each table, the inbox and the outbox included, and messages of the stream."""
        found: Counter[str] = Counter()
        for wiring in WIRINGS:
            schema = self.platform.database.schema(wiring.name)
            for name, table in schema.tables.items():
                found[f"rows {wiring.name}.{name}"] = len(table.rows)
            found[f"rows {wiring.name}.inbox"] = len(schema.inbox)
            found[f"rows {wiring.name}.outbox"] = len(schema.outbox)
        found["messages of the stream"] = len(self.platform.broker._stream)
        return found

    def _report(self) -> None:
        last = self.samples.taken[-1]
        rows = sum(count for name, count in last.items() if name.startswith("rows "))
        print(f"{self._done} tasks: {rows} rows, {sum(last.values())} objects", flush=True)


def _node(number: int) -> Node:
    return Node(
        id=f"node-{number}",
        group="default",
        gpus=8,
        cpus=64,
        memory_bytes=1 << 36,
        schedulable=True,
        ready=True,
    )


def soak(
    tasks: int, per_sample: int, leak: Leak | None = None, *, slack: int | None = None
) -> tuple[list[str], Samples]:
    """Run it; what grows by more than ``slack``, and all numbers."""
    begin = time.monotonic()
    # Rows in memory that are kept for their number alone: few, so that they are full at once.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "Recent", partial(Recent, rows_max=RECENT_ROWS_MAX))
        patch.setattr(columns, "TEXTS_MAX", RECENT_ROWS_MAX)
        # The adapter remembers deliveries for a restart that loses them; here is none.
        patch.setattr(memory_broker, "SETTLED_KEPT_S", 0.0)
        samples = virtually(Soak(tasks, per_sample, leak).run())
    print(f"{time.monotonic() - begin:.0f} s", flush=True)
    return samples.growing(max(SLACK, tasks // 200) if slack is None else slack), samples
