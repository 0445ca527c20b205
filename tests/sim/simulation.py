"""One simulation: every service's real build on memory adapters, in one loop of virtual time.

First a phase with faults in which nothing may ever be wrong, then everything is healed and
everything has to end within a bound of virtual time. ``endings.py`` checks the final state.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from libs.bus.memory_broker import Faults, MemoryBroker
from libs.bus.port import BusUnavailableError
from libs.contracts.base import Message
from libs.contracts.ids import RunId
from libs.contracts.messages import Node
from libs.service.loop import pause
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from libs.store.memory import MemoryStore
from libs.store.memory_database import MemoryDatabase
from libs.store.port import DatabaseFaultError, StoreUnavailableError
from services.allinone.composition import WIRINGS
from services.gateway.listeners import Listeners
from services.gateway.rows import RunRow
from services.gateway.tables import TABLES as GATEWAY
from services.launcher import loop as launcher_loop
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.sources.memory import MemorySource
from tests.kit.checkers import Ack, History
from tests.kit.virtual_time import LoopClock, virtually
from tests.sim import endings, strikes
from tests.sim.people import People
from tests.sim.plan import NODE_CPUS, NODE_MEMORY_BYTES, Job, Plan, Points, draw
from tests.sim.process import Process
from tests.sim.programs import SimCluster
from tests.sim.quiet import quiet

LIVENESS_SECONDS_MAX = 1_500.0
RESTART_SECONDS_MAX = 4.0
# A command that began in time, behind others of its transaction.
LATE_SECONDS_MAX = 0.1
COMPLAINTS_MAX = 100
EVENTS_MAX = 4_000
HEALTHY = Faults(latency_s_max=0.01)
# Any text will do as the key of the run tokens: here nobody checks them.
KEY_FILE = Path(__file__)


class StormError(Exception):
    """The simulation does not come to rest."""


@dataclass(frozen=True)
class Outcome:
    """What became of one sim."""

    seed: int
    complaints: tuple[str, ...]
    digest: str
    events: int
    tasks: int
    runs: int
    virtual_seconds: float
    lines: tuple[str, ...] = field(repr=False, default=())


class Simulation:
    """Everything that outlives the processes, and the processes."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = Random(f"fate {plan.seed}")
        self.true_clock = LoopClock()
        self.jobs: Mapping[str, Job] = {job.name: job for job in plan.jobs}
        # While faults happen: what goes wrong at which point of a process.
        self.points: Points | None = None
        self.complaints: list[str] = []
        self.notes: list[str] = []
        self.accepted: dict[str, Job] = {}
        self.acks: list[Ack] = []
        # By the command's identity: itself, and until when its requester waits.
        self.waits: dict[int, tuple[Message, float | None]] = {}
        # Runs whose first poll was answered, and when.
        self.listened: dict[RunId, float] = {}
        self.polls = Random(f"polls {plan.seed}")
        self.storage: dict[str, tuple[int, str]] = {}
        self.source, self.archive = MemorySource(), MemoryArchive()
        self.database = MemoryDatabase()
        self.broker = MemoryBroker(
            Random(f"bus {plan.seed}"), HEALTHY, ack_wait_s=plan.ack_wait_seconds
        )
        self.settings = {wiring.name: _settings(plan, wiring) for wiring in WIRINGS}
        nodes = [_node(plan, f"node-{number}") for number in range(plan.nodes)]
        self.cluster = SimCluster(self, nodes)
        self.cluster.pending_seconds_max = plan.pending_seconds_max
        self.cluster.kill_seconds_max = plan.kill_seconds_max
        self.cluster.ready_seconds_max = plan.ready_seconds_max
        self.cluster.node_skew = timedelta(seconds=plan.node_skew_seconds)
        self.cluster.exit_seconds_max = plan.exit_seconds_max
        self.processes = [
            Process(self, wiring, number)
            for wiring in WIRINGS
            for number in range(plan.processes[wiring.name])
        ]
        self.people = People(self)
        self.healed = False
        # How far ahead of the true time any service's clock has ever been.
        self.furthest_skew = 0.0
        self._aside: list[asyncio.Task[object]] = []

    # For the parts of the simulation

    def store_of(self, reach: object, tables: object, **more: object) -> MemoryStore:
        """A process's handle on its schema (planted defects give another one)."""
        return MemoryStore(reach, tables, **more)  # type: ignore[arg-type]

    def complain(self, text: str) -> None:
        """Something is wrong for certain."""
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)
            self.note(f"WRONG: {text}")

    def carried_out(self, command: Message) -> None:
        """A service begins to carry out a command."""
        _, until = self.waits.get(id(command), (command, None))
        late = 0.0 if until is None else asyncio.get_running_loop().time() - until
        if late > LATE_SECONDS_MAX:
            kind = type(command).__name__
            self.complain(f"late: {kind} is carried out {late:.1f} s after its requester had gone")

    def note(self, text: str) -> None:
        """For the record that ``--verbose`` prints."""
        self.notes.append(f"{asyncio.get_running_loop().time():10.3f}  {text}")

    def of(self, name: str) -> list[Process]:
        """A service's processes."""
        return [process for process in self.processes if process.name == name]

    def revive(self, process: Process) -> None:
        """Somebody restarts a dead process after a while."""
        seconds = self.rng.uniform(0.05, RESTART_SECONDS_MAX)
        asyncio.get_running_loop().call_later(seconds, process.start)

    def aside(self, work: Coroutine[Any, Any, object]) -> None:
        """Do something beside; it is awaited before the simulation may end."""
        self._aside.append(asyncio.get_running_loop().create_task(work))

    def note_clocks(self) -> None:
        """Remember the clock that was furthest ahead."""
        skews = (process.clock.skew_seconds for process in self.processes)
        self.furthest_skew = max(self.furthest_skew, *skews)

    def join(self, node_id: str) -> None:
        """A node is in the inventory, perhaps again."""
        self.cluster.join(_node(self.plan, node_id))

    async def ask(self, command: Message, timeout_s: float) -> Message:
        """Send a command as the gateway does. Raises ``BusUnavailableError`` without a reply."""
        alive = [process for process in self.of("gateway") if process.alive]
        if not alive:
            raise BusUnavailableError("no gateway")
        gateway = self.rng.choice(alive)
        start = gateway.starts
        reply = await gateway.bus.request(command, timeout_s=timeout_s)
        if not gateway.alive or gateway.starts != start:
            raise BusUnavailableError("the gateway died before it answered")
        return reply

    async def poll(self, run_id: RunId) -> None:
        """The run calls ``should_preempt``, and the gateway reports that the run listens."""
        alive = [process for process in self.of("gateway") if process.alive]
        if run_id in self.listened or not alive:
            return
        process = self.polls.choice(alive)
        with contextlib.suppress(StoreUnavailableError, DatabaseFaultError):
            await Listeners(process.store).report(run_id)
            self.listened.setdefault(run_id, asyncio.get_running_loop().time())

    def should_preempt(self, task_id: str, attempt: int) -> bool:
        """The answer of the gateway's long-poll to the run."""
        if not any(process.alive for process in self.of("gateway")):
            return False
        shape = GATEWAY.shape(RunRow)
        run = self.database.schema("gateway").table(shape).rows.get((task_id, attempt))
        return run is not None and run.preempt_requested_at is not None  # type: ignore[attr-defined]

    def acked_step(self, task_id: str) -> int | None:
        """The last step that the platform acknowledged to the task."""
        acks = [ack for ack in self.acks if ack.task_id == task_id]
        return max(acks, key=lambda ack: ack.no).step if acks else None

    def history(self) -> History:
        """The history that the checks evaluate."""
        return History(
            envelopes=list(self.broker.history),
            spans=self.cluster.spans(),
            acks=self.acks,
            accepted=set(self.accepted),
        )

    # The two phases

    async def run(self) -> None:
        """From the start to the verdict; complaints are collected."""
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self.cluster.run()), group.create_task(self._guard())]
                for process in self.processes:
                    process.start()
                lives = group.create_task(self.people.live())
                await self._with_faults()
                await self._healthy(lives)
                for task in (lives, *beside):
                    task.cancel()
        except* StormError:
            self.complain(f"more than {EVENTS_MAX} events: something repeats itself without end")
        endings.check_all(self)

    async def _guard(self) -> None:
        """No simulation needs a tenth of these events."""
        while len(self.broker.history) < EVENTS_MAX:
            self.cluster.note_leaving()
            await pause(0.5)
        raise StormError

    async def _with_faults(self) -> None:
        begin = asyncio.get_running_loop().time()
        self.points = self.plan.points
        self.broker.faults = self.plan.faults
        self.cluster.failure_rate = self.plan.runtime_failure
        self.cluster.refusal_rate = self.plan.refusal
        for strike in self.plan.strikes:
            await pause(max(0.0, begin + strike.at - asyncio.get_running_loop().time()))
            strikes.strike(self, strike)
        await pause(max(0.0, begin + self.plan.fault_seconds - asyncio.get_running_loop().time()))

    async def _healthy(self, lives: asyncio.Task[None]) -> None:
        self.note("everything is healed")
        self.healed = True
        self.points = None
        self.broker.faults = HEALTHY
        self.cluster.failure_rate = self.cluster.refusal_rate = 0.0
        strikes.heal_all(self)
        try:
            async with asyncio.timeout(LIVENESS_SECONDS_MAX):
                await asyncio.wait([lives, *self._aside])
                await self.people.settle()
                while endings.unfinished(self):
                    await pause(2.0)
        except TimeoutError:
            for text in endings.unfinished(self)[:8]:
                self.complain(f"liveness: {text}")

    def digest(self) -> str:
        """A fingerprint of everything that happened, and when."""
        found = hashlib.sha256()
        for envelope in self.broker.history:
            found.update(f"{envelope.id} {envelope.time.isoformat()} ".encode())
            found.update(envelope.message.to_json())
        found.update(repr((self.cluster.spans(), self.acks)).encode())
        return found.hexdigest()[:16]


def _settings(plan: Plan, wiring: Wiring) -> BaseServiceSettings:
    own: dict[str, object] = {
        "launcher": {"run_token_key_file": KEY_FILE},
        "log_collector": {"runs_dir": Path("/nowhere"), "logs_dir": Path("/nowhere")},
    }.get(wiring.name, {})
    return wiring.settings(database_url="-", nats_url="-", **{**plan.settings[wiring.name], **own})


def _node(plan: Plan, node_id: str) -> Node:
    return Node(
        id=node_id,
        group="default",
        gpus=plan.gpus,
        cpus=NODE_CPUS,
        memory_bytes=NODE_MEMORY_BYTES,
        schedulable=True,
        ready=True,
    )


def run_simulation(
    seed: int,
    simulation_type: type[Simulation] = Simulation,
    bend: Callable[[Plan], Plan] = lambda plan: plan,
) -> Outcome:
    """Run the simulation of a seed and its checks; ``bend`` may change its plan."""
    plan = bend(draw(seed))
    made: list[Simulation] = []

    async def main() -> float:
        sim = simulation_type(plan)
        made.append(sim)
        # A crash leaves unfinished work behind that nothing waits for any more.
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        begin = asyncio.get_running_loop().time()
        await sim.run()
        return asyncio.get_running_loop().time() - begin

    free, launcher_loop.is_free = launcher_loop.is_free, lambda _: True
    try:
        with quiet(made):
            seconds = virtually(main())
    finally:
        launcher_loop.is_free = free
    sim = made[0]
    return Outcome(
        seed=seed,
        complaints=tuple(sim.complaints),
        digest=sim.digest(),
        events=len(sim.broker.history),
        tasks=len(sim.accepted),
        runs=len({(run.run_id) for run, _ in sim.cluster.processes}),
        virtual_seconds=seconds,
        lines=tuple(endings.story(sim)),
    )
