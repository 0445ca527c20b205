"""The scheduler alone on the memory store: facts in, decisions out, and a fake clock."""

from __future__ import annotations

from pathlib import Path

from libs.contracts.base import Message
from libs.contracts.messages import Explain, ExplainReply, InventoryListed, NodeChanged
from libs.contracts.messages import Node as NodeFact
from libs.store.port import Store
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.main import WIRING
from services.scheduler.settings import SchedulerSettings
from tests.kit.clock import START, at
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness

ROUNDS_MAX = 20


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


class SchedulerHarness(ServiceHarness):
    """One database and one living scheduler."""

    def __init__(
        self,
        dumps: Path | None = None,
        *,
        platform: MemoryPlatform | None = None,
        store: Store | None = None,
        **settings: object,
    ) -> None:
        # The clock stands, so decisions wait for further nodes only where a test requests it.
        settings = {"node_settle_seconds": 0.0, **settings}
        made = SchedulerSettings(database_url="-", nats_url="-", dumps=dumps, **settings)
        super().__init__(platform or MemoryPlatform(), WIRING, made, store=store)

    async def start(self, *nodes: Node) -> SchedulerHarness:
        """Lead; the inventory has these nodes."""
        await self.lead()
        if nodes:
            await self.handle(*(node_changed(node) for node in nodes), inventory_of(*nodes))
        return self

    async def handle(self, *events: Message) -> None:
        """Handle a batch of events in one transaction."""
        await self.handle_batch(*events)

    async def settle(self) -> None:
        """Rounds until nothing more is decided."""
        for _ in range(ROUNDS_MAX):
            if await self.step() != 0.0:
                return
        raise AssertionError(f"still deciding after {ROUNDS_MAX} rounds")

    async def tasks(self) -> dict[str, Task]:
        return {task.id: task for task in await self.rows(Task)}

    async def task(self, task_id: str) -> Task:
        return (await self.tasks())[task_id]

    async def explained(self, task_id: str) -> ExplainReply:
        reply = await self.ask(Explain(task_id=task_id))
        assert isinstance(reply, ExplainReply)
        return reply
