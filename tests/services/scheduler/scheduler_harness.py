"""The scheduler alone on the memory store: facts in, decisions out, time in the test's hands."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import Faults, MemoryBroker
from libs.contracts.base import Message
from libs.contracts.messages import Explain, ExplainReply, InventoryListed, NodeChanged
from libs.contracts.messages import Node as NodeFact
from libs.service.definition import Ports, Service
from libs.store.memory import MemoryDatabase, MemoryStore
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.main import build
from services.scheduler.settings import SchedulerSettings
from services.scheduler.tables import TABLES
from tests.kit.builders import START, at

ROUNDS_MAX = 20


class Hands:
    """A clock that stands until the test moves it."""

    def __init__(self) -> None:
        self.moment = START

    def now(self) -> datetime:
        return self.moment

    def to(self, seconds: float) -> None:
        self.moment = at(seconds)


def node_changed(node: Node) -> NodeChanged:
    return NodeChanged(
        node_id=node.id,
        version=node.version,
        node=NodeFact(
            id=node.id,
            group=node.group,
            gpus=node.gpus,
            cpus=node.cpus,
            schedulable=node.schedulable,
            ready=node.ready,
            unusable_gpus=node.unusable_gpus,
            draining=node.draining,
            labels=dict(node.labels),
            taints=node.taints,
        ),
        removed=node.removed,
        changed_at=START,
    )


def inventory_of(*nodes: Node, listed: float = 0.0, version: int = 0) -> InventoryListed:
    ids = tuple(node.id for node in nodes)
    return InventoryListed(runtime="process", node_ids=ids, listed_at=at(listed), version=version)


class World:
    """One database, one living scheduler; ``restart`` is a crash and a new one."""

    def __init__(self, dumps: Path | None = None, **settings: object) -> None:
        self.clock = Hands()
        self.database = MemoryDatabase()
        # The clock stands, so decisions wait for further nodes only where a test asks for it.
        settings = {"node_settle_seconds": 0.0, **settings}
        self.settings = SchedulerSettings(database_url="-", nats_url="-", dumps=dumps, **settings)
        self._ids = itertools.count(1)
        self._read = 0
        self.store: MemoryStore
        self.service: Service
        self.epoch = 0

    async def start(self) -> World:
        self.store = MemoryStore(
            self.database,
            TABLES,
            clock=self.clock,
            source="scheduler",
            new_id=lambda: f"e{next(self._ids)}",
        )
        bus = MemoryBus(MemoryBroker(Random(1), Faults()), "scheduler")
        self.service = build(self.settings, Ports(self.store, bus, self.clock))
        self.leadership = await self.store.lead()
        self.epoch = self.leadership.epoch
        assert self.service.on_lead is not None
        await self.service.on_lead(self.epoch)
        return self

    async def restart(self) -> None:
        await self.leadership.release()
        await self.store.close()
        await self.start()

    async def hear(self, *events: Message) -> None:
        """Handle a batch of events in one transaction."""
        async with self.store.transaction(epoch=self.epoch) as tx:
            for event in events:
                await self.service.handlers[type(event)](tx, event)

    async def ask(self, command: Message) -> Message:
        query = self.service.queries.get(type(command))
        if query is not None:
            return await query(command)
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await self.service.commands[type(command)](tx, command)

    async def step(self) -> float | None:
        """One round of the decision loop."""
        return await self.service.loops[0].step(self.epoch)

    async def settle(self) -> None:
        """Rounds until nothing more is decided."""
        for _ in range(ROUNDS_MAX):
            if await self.step() != 0.0:
                return
        raise AssertionError(f"still deciding after {ROUNDS_MAX} rounds")

    async def said(self) -> Sequence[Message]:
        """What was said since the last call."""
        found = [(row, each) for row, each in await self.store.outgoing(10_000) if row > self._read]
        self._read = max((row for row, _ in found), default=self._read)
        return [envelope.message for _, envelope in found]

    async def tasks(self) -> dict[str, Task]:
        async with self.store.transaction() as tx:
            return {task.id: task for task in await tx.select(Task)}

    async def task(self, task_id: str) -> Task:
        return (await self.tasks())[task_id]

    async def explained(self, task_id: str) -> ExplainReply:
        reply = await self.ask(Explain(task_id=task_id))
        assert isinstance(reply, ExplainReply)
        return reply
