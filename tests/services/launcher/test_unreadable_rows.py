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
from tests.kit.launcher_builders import an_assignment
from tests.kit.virtual_time import virtually
from tests.services.launcher.launcher_harness import LauncherHarness, running_cluster


def break_row(harness: LauncherHarness, kind: type[Any], *key: object, column: str) -> None:
    harness.platform.database.break_row(TABLES, kind, *key, column=column)


def repair(harness: LauncherHarness, kind: type[Any]) -> None:
    harness.platform.database.schema(TABLES.schema).table(TABLES.shape(kind)).broken.clear()


async def past_run(harness: LauncherHarness, task: str = "task") -> PastRun | None:
    async with harness.store.transaction() as tx:
        return await tx.get(PastRun, task)


def test_a_cordon_in_a_row_that_cannot_be_read_is_not_lifted() -> None:
    async def main() -> None:
        harness = LauncherHarness(nodes=2)
        await harness.start()
        await harness.run_loops(2)
        await harness.command(SetSchedulable(node_id="local-0", schedulable=False))
        await harness.command(SetNodeMarks(node_id="local-0", labels={"rack": "a"}))
        await harness.run_loops(2)
        published = len(await harness.published(NodeChanged))
        break_row(harness, NodeRow, "local-0", column="labels")
        await harness.restart()
        await harness.run_loops(3)
        assert len(await harness.published(NodeChanged)) == published
        assert [each.id for each in harness.store.unreadable(NodeRow)] == ["local-0"]
        # The other node is managed as before.
        await harness.command(SetSchedulable(node_id="local-1", schedulable=False))
        assert len(await harness.published(NodeChanged)) == published + 1
        repair(harness, NodeRow)
        await harness.restart()
        await harness.run_loops(2)
        row = harness.store.resident(NodeRow)["local-0"]
        assert row.cordoned
        assert row.labels == {"rack": "a"}

    virtually(main())


def test_a_node_with_an_unreadable_row_is_still_listed_by_reemit() -> None:
    async def main() -> None:
        harness = LauncherHarness(nodes=2)
        await harness.start()
        await harness.run_loops(2)
        break_row(harness, NodeRow, "local-0", column="labels")
        await harness.restart()
        await harness.command(Reemit(service="launcher"))
        assert (await harness.published(InventoryListed))[-1].node_ids == ("local-0", "local-1")

    virtually(main())


def test_runs_start_and_end_on_a_node_that_cannot_be_read() -> None:
    async def main() -> None:
        async with running_cluster(LauncherHarness(nodes=1)) as harness:
            await harness.handle(an_assignment())
            await harness.run_loops()
            # It starts before a leader records it: the next leader's first scan shows it.
            await harness.launcher.act(harness.epoch)
            break_row(harness, NodeRow, "local-0", column="labels")
            assert not await harness.published(RunStarted)
            await harness.restart()
            await harness.until_started()
            await harness.until_exited()
            assert [each.id for each in harness.store.unreadable(NodeRow)] == ["local-0"]

    virtually(main())


def test_a_run_stays_while_the_row_that_is_to_remember_it_cannot_be_read() -> None:
    async def main() -> None:
        async with running_cluster(LauncherHarness(nodes=1)) as harness:
            await harness.handle(an_assignment())
            await harness.until_exited()
            await harness.until(lambda: not harness.store.resident(Run))
            first = await past_run(harness)
            assert first is not None
            await harness.handle(an_assignment(attempt=2), an_assignment(task="other"))
            break_row(harness, PastRun, "task", column="exit")
            await harness.restart()
            await harness.until_exited(attempt=2)
            await harness.until_exited(task="other")
            for _ in range(40):
                await harness.run_loops()
                await pause(0.1)
            assert [run.task_id for run in harness.store.resident(Run).values()] == ["task"]
            repair(harness, PastRun)
            assert await past_run(harness) == first
            await harness.restart()
            await harness.until(lambda: not harness.store.resident(Run))
            past = await past_run(harness)
            assert past is not None
            assert past.attempt == 2
            assert len(await harness.published(RunStarted, task_id="task", attempt=2)) == 1

    virtually(main())


def test_a_port_in_a_lease_that_cannot_be_read_is_not_leased_again() -> None:
    async def main() -> None:
        harness = LauncherHarness(nodes=2, script=Script(steps=100_000, step_seconds=0.5))
        await harness.start()
        await harness.run_loops(2)
        await harness.handle(an_assignment())
        await harness.until_started()
        (lease,) = harness.store.resident(PortLease).values()
        break_row(harness, PortLease, lease.port, column="task_id")
        await harness.restart()
        await harness.run_loops(2)
        await harness.handle(an_assignment(task="other"))
        await harness.until_started(task="other")
        assert [each.key for each in harness.store.unreadable(PortLease)] == [(lease.port,)]

    virtually(main())
