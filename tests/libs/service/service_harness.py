"""A little service on the memory adapters: it counts goals per task and replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from libs.bus.memory_broker import Faults
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.runner import Runner
from libs.service.settings import BaseServiceSettings
from libs.store.port import Tx
from libs.store.tables import Tables, table
from tests.kit import waiting
from tests.kit.clock import START
from tests.kit.memory import MemoryPlatform
from tests.kit.virtual_time import LoopClock


@dataclass(frozen=True, slots=True)
class Count:
    group: str
    seen: int


TABLES = Tables("quota", table(Count, "count", key="group"))


class CountingService(MemoryPlatform):
    """The service's processes, on virtual time."""

    def __init__(
        self,
        faults: Faults | None = None,
        seed: int = 1,
        broken: Callable[[m.RunStarted], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(LoopClock(), faults=faults, seed=seed)
        self.broken = broken
        self.commands_carried_out = 0
        self.settings = BaseServiceSettings(database_url="-", nats_url="-")
        self.launcher = self.bus("launcher")
        self.gateway = self.bus("gateway")

    def runner(
        self,
        *,
        loops: tuple[Loop, ...] = (),
        leader_commands: bool = True,
        checkpoints: bool = False,
    ) -> Runner:
        """With ``checkpoints`` it also handles those, as a second type of events."""
        handlers = {m.RunStarted: self.on_run_started}
        handlers |= {m.CheckpointSaved: self.on_checkpoint_saved} if checkpoints else {}
        ports = Ports(self.store(TABLES), self.bus("quota", handlers), self.clock)
        service = Service(
            name="quota",
            ports=ports,
            handlers=handlers,
            commands={m.SetQuota: self.on_set_quota},
            loops=loops,
            commands_on_leader_only=leader_commands,
        )
        return Runner(service, self.settings)

    async def on_run_started(self, tx: Tx, event: m.RunStarted) -> None:
        if self.broken is not None:
            await self.broken(event)
        row = await tx.get(Count, event.task_id) or Count(event.task_id, 0)
        tx.put(Count(event.task_id, row.seen + 1))
        tx.emit(
            m.UsageRecorded(
                group=event.task_id, attempt=row.seen + 1, started_at=START, ended_at=START
            )
        )

    async def on_checkpoint_saved(self, tx: Tx, event: m.CheckpointSaved) -> None:
        tx.put(Count(event.task_id, 1))

    async def on_set_quota(self, tx: Tx, command: m.SetQuota) -> m.SetQuotaReply:
        self.commands_carried_out += 1
        if command.quota.limit < 0:
            return m.SetQuotaReply(refusal=m.Refusal(code=m.RefusalCode.INVALID, detail="limit"))
        tx.put(Count(command.quota.group, command.quota.limit))
        return m.SetQuotaReply(version=7)

    async def start_runs(self, *names: str, prefix: str = "s") -> None:
        await self.launcher.publish(
            [
                Envelope(
                    id=f"{prefix}-{name}-{number}",
                    source="launcher",
                    time=START,
                    message=m.RunStarted(task_id=name, attempt=1, started_at=START),
                )
                for number, name in enumerate(names)
            ]
        )

    async def publish_saved(self, name: str) -> None:
        checkpoint = m.Checkpoint(step=1, uri="file:///x", saved_at=START)
        message = m.CheckpointSaved(task_id=name, attempt=1, checkpoint=checkpoint)
        await self.launcher.publish([Envelope(f"saved-{name}", "launcher", START, message)])

    def counts(self) -> dict[str, int]:
        return {row.group: row.seen for row in self.database.rows(TABLES, Count).values()}

    def usages(self) -> list[m.UsageRecorded]:
        history = [envelope.message for envelope in self.broker.history]
        return [each for each in history if isinstance(each, m.UsageRecorded)]


# On virtual time.
async def until(holds: Callable[[], object], seconds_max: float = 600.0) -> None:
    """Wait, on virtual time, until it holds."""
    await waiting.until(holds, seconds_max, pause=0.05)
