"""One process of one service: the real build on memory adapters; it can crash at any time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from libs.bus.command_replies import answer_until
from libs.bus.memory import MemoryBus
from libs.bus.port import CommandHandler as BusCommandHandler
from libs.contracts.base import Message
from libs.service.definition import CommandHandler, Ports, Service
from libs.service.loop import pause
from libs.service.runner import Runner
from libs.service.wiring import Wiring
from libs.store.memory_database import Point, Schema
from libs.store.port import StoreUnavailableError, Tx
from services.gateway.ids import Mint
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeCluster
from services.submit.ids import TimeSortedIds
from tests.kit.virtual_time import LoopClock

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Process:
    """Starts, crashes and starts again; what outlives it is in the simulation."""

    def __init__(self, sim: Simulation, wiring: Wiring, number: int) -> None:
        self.sim = sim
        self.wiring = wiring
        self.name = wiring.name
        self.number = number
        self.rng = Random(f"{sim.plan.seed} {wiring.name} {number}")
        self.clock = LoopClock()
        self.starts = 0
        self.task: asyncio.Task[None] | None = None
        self.alive = False

    def start(self) -> None:
        """A fresh process over what is kept."""
        if self.alive:
            return
        self.starts += 1
        self.alive = True
        ids = itertools.count(1)
        prefix = f"{self.name}-{self.number}.{self.starts}"
        self.store = self.sim.store_of(
            _Reach(self),
            self.wiring.tables,
            clock=self.clock,
            source=self.name,
            new_id=lambda: f"{prefix}-{next(ids)}",
        )
        self.bus = NotingBus(self.sim, self.name, tuple(self.wiring.consumes))
        settings = self.sim.settings[self.name]
        ports = Ports(self.store, self.bus, self.clock)
        built: Service = self.wiring.build(settings, ports, **self._replacements())
        commands = {kind: self._noting(each) for kind, each in built.commands.items()}
        self.service = replace(built, commands=commands)
        runner = Runner(self.service, settings)
        self.task = asyncio.get_running_loop().create_task(self._run(runner, self.starts))

    def _noting(self, handler: CommandHandler) -> CommandHandler:
        async def noting(tx: Tx, command: Message) -> Message:
            self.sim.carried_out(command)
            return await handler(tx, command)

        return noting

    async def _run(self, runner: Runner, start: int) -> None:
        try:
            await runner.run()
        except asyncio.CancelledError:
            if self.alive and self.starts == start:
                raise
        except BaseException as problem:  # noqa: BLE001 - whatever it is, it is a finding
            if self.alive and self.starts == start:
                self.sim.complain(f"process {self.name} died by itself: {_causes(problem)}")
                self.crash()

    def crash(self) -> None:
        """Kill the process: everything that its tasks still try fails."""
        if not self.alive:
            return
        self.alive = False
        self.store.crash()
        self.bus._closed = True
        self.sim.broker.changed()
        assert self.task is not None, "it was started"
        self.task.cancel()
        self.sim.revive(self)

    async def meet(self, point: Point) -> None:
        """What may happen at this place of a transaction or of the relay."""
        points = self.sim.points
        if points is None:
            return
        if self.rng.random() < points.slow:
            await pause(self.rng.uniform(0, points.slow_seconds_max))
        if self.rng.random() < points.crash[point]:
            self.sim.note(f"{self.name} crashes at {point.value}")
            await self.die()
        if self.rng.random() < points.fail[point]:
            raise StoreUnavailableError(f"the simulation: {point.value}")

    async def die(self) -> None:
        """Crash in the middle of something; never returns."""
        self.crash()
        # The process's own tasks are cancelled here; nobody else may wait for a dead process.
        await pause(0.01)
        raise StoreUnavailableError("the process is dead")

    def _replacements(self) -> dict[str, Any]:
        sim, numbers = self.sim, itertools.count(1)
        found: dict[str, Callable[[], dict[str, Any]]] = {
            "submit": lambda: {"make_id": TimeSortedIds(self.rng.getrandbits)},
            "launcher": lambda: {"runtime": MortalRuntime(sim.cluster, self)},
            "log_collector": lambda: {"source": sim.source, "archive": sim.archive},
            "gateway": lambda: {
                "mint": Mint(
                    secret=lambda: f"secret-{next(numbers)}", id=lambda: f"id-{next(numbers)}"
                )
            },
        }
        return found.get(self.name, dict)()


def _causes(problem: BaseException) -> str:
    if isinstance(problem, BaseExceptionGroup):
        return "; ".join(_causes(each) for each in problem.exceptions)
    return repr(problem)


class NotingBus(MemoryBus):
    """Records how long the requester of each command waits."""

    def __init__(self, sim: Simulation, service: str, consumes: tuple[type[Message], ...]) -> None:
        super().__init__(sim.broker, service, consumes)
        self._sim = sim

    @contextlib.asynccontextmanager
    async def serve(
        self, handlers: Mapping[type[Message], BusCommandHandler]
    ) -> AsyncGenerator[None]:
        def noting(handler: BusCommandHandler) -> BusCommandHandler:
            async def noted(command: Message) -> Message:
                # The same object reaches the service's handler.
                self._sim.waits[id(command)] = (command, answer_until.get())
                try:
                    return await handler(command)
                finally:
                    self._sim.waits.pop(id(command), None)

            return noted

        async with super().serve({kind: noting(each) for kind, each in handlers.items()}):
            yield


class _Reach:
    """The database as one process reaches it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._database = process.sim.database

    @property
    def down(self) -> bool:
        return self._database.down

    @property
    def starts(self) -> int:
        return self._database.starts

    def schema(self, name: str) -> Schema:
        return self._database.schema(name)

    async def reach(self, point: Point, schema: str) -> None:
        await self._database.reach(point, schema)
        await self._process.meet(point)


class MortalRuntime(FakeRuntime):
    """A runtime whose launcher can crash before or after the effect of a call."""

    def __init__(self, cluster: FakeCluster, process: Process) -> None:
        super().__init__(cluster)
        self._process = process
        self._start = process.starts

    async def _call(self, node_ids: Any, effect: Callable[[], None]) -> None:
        await self._maybe_die()
        await super()._call(node_ids, partial(self._alone, effect))
        await self._maybe_die()

    def _alone(self, effect: Callable[[], None]) -> None:
        """A dead process does nothing more."""
        if self._process.alive and self._process.starts == self._start:
            effect()

    async def _maybe_die(self) -> None:
        process, points = self._process, self._process.sim.points
        if points is not None and process.rng.random() < points.runtime_crash:
            process.sim.note("launcher crashes in a call of the runtime")
            await process.die()
