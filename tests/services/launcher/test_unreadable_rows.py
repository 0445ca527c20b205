"""A row that cannot be decoded harms only what it describes, which is left alone."""

from __future__ import annotations

from typing import Any

from libs.contracts.messages import (
    InventoryListed,
    NodeChanged,
    Reemit,
    RunStarted,
    SetNodeMarks,
    SetSchedulable,
)
from libs.service.loop import pause
from services.launcher.domain.model import NodeRow, PastRun, PortLease, Run
from services.launcher.runtimes.fake_cluster import Script
from services.launcher.tables import TABLES
from tests.harness.virtual_time import virtually
from tests.services.launcher.launcher_harness import World, playing
from tests.services.launcher.makers import an_assignment


def break_row(world: World, kind: type[Any], *key: object, column: str) -> None:
    world.database.break_row(TABLES, kind, *key, column=column)


def repair(world: World, kind: type[Any]) -> None:
    world.database.schema(TABLES.schema).table(TABLES.shape(kind)).broken.clear()


async def past_run(world: World, task: str = "task") -> PastRun | None:
    async with world.store.transaction() as tx:
        return await tx.get(PastRun, task)


def test_a_cordon_in_a_row_that_cannot_be_read_is_not_lifted() -> None:
    async def main() -> None:
        world = World(nodes=2)
        await world.start()
        await world.turn(2)
        await world.command(SetSchedulable(node_id="local-0", schedulable=False))
        await world.command(SetNodeMarks(node_id="local-0", labels={"rack": "a"}))
        await world.turn(2)
        said = len(await world.said(NodeChanged))
        break_row(world, NodeRow, "local-0", column="labels")
        await world.restart()
        await world.turn(3)
        assert len(await world.said(NodeChanged)) == said
        assert [each.id for each in world.store.unreadable(NodeRow)] == ["local-0"]
        # The other node is looked after as ever.
        await world.command(SetSchedulable(node_id="local-1", schedulable=False))
        assert len(await world.said(NodeChanged)) == said + 1
        repair(world, NodeRow)
        await world.restart()
        await world.turn(2)
        row = world.store.resident(NodeRow)["local-0"]
        assert row.cordoned
        assert row.labels == {"rack": "a"}

    virtually(main())


def test_a_node_that_cannot_be_read_is_still_listed_when_everything_is_said_again() -> None:
    async def main() -> None:
        world = World(nodes=2)
        await world.start()
        await world.turn(2)
        break_row(world, NodeRow, "local-0", column="labels")
        await world.restart()
        await world.command(Reemit(service="launcher"))
        assert (await world.said(InventoryListed))[-1].node_ids == ("local-0", "local-1")

    virtually(main())


def test_runs_start_and_end_on_a_node_that_cannot_be_read() -> None:
    async def main() -> None:
        async with playing(World(nodes=1)) as world:
            await world.tell(an_assignment())
            await world.turn()
            # It is started, and nobody notes it: the next leader's first look shows it.
            await world.launcher.act(world.epoch)
            break_row(world, NodeRow, "local-0", column="labels")
            assert not await world.said(RunStarted)
            await world.restart()
            await world.until_started()
            await world.until_exited()
            assert [each.id for each in world.store.unreadable(NodeRow)] == ["local-0"]

    virtually(main())


def test_a_run_stays_while_the_row_that_is_to_remember_it_cannot_be_read() -> None:
    async def main() -> None:
        async with playing(World(nodes=1)) as world:
            await world.tell(an_assignment())
            await world.until_exited()
            await world.until(lambda: not world.store.resident(Run))
            first = await past_run(world)
            assert first is not None
            await world.tell(an_assignment(attempt=2), an_assignment(task="other"))
            break_row(world, PastRun, "task", column="exit")
            await world.restart()
            await world.until_exited(attempt=2)
            await world.until_exited(task="other")
            for _ in range(40):
                await world.turn()
                await pause(0.1)
            assert [run.task_id for run in world.store.resident(Run).values()] == ["task"]
            repair(world, PastRun)
            assert await past_run(world) == first
            await world.restart()
            await world.until(lambda: not world.store.resident(Run))
            past = await past_run(world)
            assert past is not None
            assert past.attempt == 2
            assert len(await world.said(RunStarted, task_id="task", attempt=2)) == 1

    virtually(main())


def test_a_port_in_a_lease_that_cannot_be_read_is_not_leased_again() -> None:
    async def main() -> None:
        world = World(nodes=2, script=Script(steps=100_000, step_seconds=0.5))
        await world.start()
        await world.turn(2)
        await world.tell(an_assignment())
        await world.until_started()
        (lease,) = world.store.resident(PortLease).values()
        break_row(world, PortLease, lease.port, column="task_id")
        await world.restart()
        await world.turn(2)
        await world.tell(an_assignment(task="other"))
        await world.until_started(task="other")
        assert [each.key for each in world.store.unreadable(PortLease)] == [(lease.port,)]

    virtually(main())
