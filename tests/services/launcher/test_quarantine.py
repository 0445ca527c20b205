"""A node on which starts fail in a row takes no new runs for a while, which is published."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import (
    ExitKind,
    NodeChanged,
    Placement,
    ReasonCode,
    Role,
    RunExit,
    SetSchedulable,
    StartsAfter,
)
from services.launcher.domain.inventory import (
    LeasePolicy,
    QuarantinePolicy,
    cordon,
    start_failed,
    start_worked,
    update_inventory,
)
from services.launcher.domain.model import (
    Fault,
    NodeRow,
    ObservedRank,
    RankState,
    Run,
    RunState,
)
from services.launcher.domain.reconcile import failed_nodes_of
from services.launcher.handlers import set_schedulable
from services.launcher.recording import record
from services.launcher.runtimes.fake_cluster import Script
from services.launcher.tables import TABLES
from tests.kit.builders import a_spec
from tests.kit.clock import at
from tests.kit.launcher_builders import a_kill, a_listing, a_node, an_assignment
from tests.kit.virtual_time import virtually
from tests.services.launcher.launcher_harness import LauncherHarness, running_cluster

POLICY = QuarantinePolicy(after=3, seconds=600.0, seconds_max=1000.0)
LEASES = LeasePolicy(lease=timedelta(seconds=5), fence=timedelta(seconds=15))


def a_row() -> NodeRow:
    return NodeRow("local-0", 1, a_node("local-0"), False, False, at(0))


def after_failures(row: NodeRow, *task_ids: str, seconds: float = 0.0) -> NodeRow:
    for task_id in task_ids:
        row = start_failed(row, task_id, at(seconds), POLICY)
    return row


def observed(row: NodeRow, seconds: float) -> NodeRow:
    changes = update_inventory([row], a_listing(nodes=1), lambda _: False, at(seconds), LEASES)
    return changes.rows[0] if changes.rows else row


def test_a_node_is_quarantined_after_failed_starts_of_different_tasks_in_a_row() -> None:
    row = after_failures(a_row(), "t1", "t2")
    assert (row.node.schedulable, row.version) == (True, 1)
    row = after_failures(row, "t3")
    assert (row.node.schedulable, row.node.quarantined, row.version) == (False, True, 2)
    assert row.quarantined_until == at(600)


def test_one_task_that_fails_again_and_again_quarantines_nothing() -> None:
    row = after_failures(a_row(), "t1", "t1", "t1", "t1")
    assert row.failed_starts == 1


def test_a_start_that_works_forgets_the_failures() -> None:
    row = start_worked(after_failures(a_row(), "t1", "t2"))
    assert (row.failed_starts, row.failed_task) == (0, "")
    assert after_failures(row, "t3", "t4").quarantined_until is None


def test_a_quarantine_ends_by_itself_and_the_next_one_is_longer_up_to_the_most() -> None:
    row = after_failures(a_row(), "t1", "t2", "t3")
    assert observed(row, 599).node.quarantined
    changes = update_inventory([row], a_listing(nodes=1), lambda _: False, at(599), LEASES)
    assert changes.due_at == at(600)
    row = observed(row, 600)
    assert (row.node.schedulable, row.node.quarantined, row.version) == (True, False, 3)
    row = after_failures(row, "t4", seconds=700)
    assert row.quarantined_until == at(700 + 1000)


def test_uncordon_ends_a_quarantine_and_forgets_the_failures() -> None:
    row = cordon(after_failures(a_row(), "t1", "t2", "t3"), True, at(5))
    assert (row.node.schedulable, row.node.quarantined, row.failed_starts) == (True, False, 0)
    assert observed(row, 6) == row


def test_a_cordoned_node_stays_cordoned_when_its_quarantine_ends() -> None:
    row = cordon(after_failures(a_row(), "t1", "t2", "t3"), False, at(5))
    assert row.node.quarantined
    row = observed(row, 700)
    assert (row.node.schedulable, row.node.quarantined) == (False, False)


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        (None, True),
        (Fault.NODE_REFUSED, True),
        (Fault.NODE_DOWN, True),
        (Fault.DELETED, False),
        (Fault.DISPLACED, False),
        (Fault.OVER_QUOTA, False),
    ],
)
def test_only_faults_of_the_node_count_and_only_before_a_rank_began(
    fault: Fault | None, blamed: bool
) -> None:
    run = Run("t", 1, RunState.ENDING)
    lost = ObservedRank(0, "local-0", RankState.LOST, fault=fault)
    other = ObservedRank(1, "local-1", RankState.EXITED, signal=9)
    found = failed_nodes_of(run, ExitKind.LOST, [lost, other])
    assert found == (("local-0",) if blamed else ())
    assert failed_nodes_of(run, ExitKind.KILLED, [lost, other]) == ()
    began = replace(lost, started_at=at(1))
    assert failed_nodes_of(replace(run, started_at=at(1)), ExitKind.LOST, [began]) == ()


async def test_failed_starts_are_recorded_and_published_and_reset_by_an_operator() -> None:
    harness = LauncherHarness()
    await harness.start()
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        tx.put(a_row())
    place = (Placement(rank=0, role="worker", node_id="local-0"),)
    for number in range(3):
        run = Run(f"t{number}", 1, RunState.ENDING, spec=a_spec(), placements=place)
        lost = RunExit(attempt=1, kind=ExitKind.LOST, exited_at=at(1))
        over = replace(
            run,
            state=RunState.EXITED,
            exit=lost,
            exited_at=at(1),
            failed_nodes=("local-0",),
        )
        async with harness.store.transaction(epoch=harness.epoch) as tx:
            await record(tx, {run.id: run}, [over], POLICY)
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        row = await tx.get(NodeRow, "local-0")
        assert row is not None
        assert row.node.quarantined
        await set_schedulable(tx, SetSchedulable(node_id="local-0", schedulable=True))
    published = [each.message for _, each in await harness.store.outgoing(1000)]
    changes = [each.node.quarantined for each in published if isinstance(each, NodeChanged)]
    assert changes == [True, False]


async def hang(harness: LauncherHarness, *tasks: str, nodes: tuple[int, ...] = (0,)) -> set[str]:
    """Starts of these tasks (OWNER-NUMBER) hang until the scheduler ends them. Returns the nodes in
    quarantine."""
    for task in tasks:
        places = tuple(
            Placement(rank=rank, role="worker", node_id=f"local-{node}")
            for rank, node in enumerate(nodes)
        )
        changes = {"task_id": task, "owner": task[:3], "placements": places}
        await harness.handle(an_assignment(ranks=len(nodes)).model_copy(update=changes))
        await harness.run_loops(5)
        await harness.handle(a_kill(task=task, code=ReasonCode.START_EXPIRED))
        ended = await harness.until_exited(task=task)
        assert ended.exit.kind is ExitKind.KILLED
    rows = harness.platform.database.rows(TABLES, NodeRow).values()
    return {row.node_id for row in rows if row.quarantined_until is not None}


async def a_harness_in_which_nothing_starts() -> LauncherHarness:
    harness = LauncherHarness(nodes=3)
    harness.cluster.pending_seconds_max = 1e9
    await harness.start()
    await harness.run_loops(3)
    return harness


def test_a_node_on_which_starts_hang_is_quarantined() -> None:
    async def main() -> None:
        harness = await a_harness_in_which_nothing_starts()
        assert await hang(harness, "adaa", "bobb") == set()
        assert await hang(harness, "annc") == {"local-0"}

    virtually(main())


def test_one_owner_whose_starts_hang_everywhere_takes_one_node_from_the_others() -> None:
    async def main() -> None:
        harness = await a_harness_in_which_nothing_starts()
        assert await hang(harness, "adaa", "adab", "adac") == {"local-0"}
        for node in (1, 2):
            tasks = [f"ada{letter}{'abc'[node]}" for letter in "defgh"]
            assert await hang(harness, *tasks, nodes=(node,)) == {"local-0"}
        assert await hang(harness, "annx", "boby", nodes=(1,)) == {"local-0", "local-1"}

    virtually(main())


async def hang_later(harness: LauncherHarness, *tasks: str, node: int) -> set[str]:
    """The first role of each of these tasks starts on local-0, the later one hangs on a node until
    the launcher ends the run. Returns the nodes in quarantine."""
    roles = (
        Role(name="ps", replicas=1, command=("x",)),
        Role(name="it", replicas=1, command=("x",), starts_after=(StartsAfter(role="ps"),)),
    )
    places = tuple(
        Placement(rank=rank, role=role.name, node_id=f"local-{0 if rank == 0 else node}")
        for rank, role in enumerate(roles)
    )
    assigned = an_assignment(ranks=2)
    spec = assigned.spec.model_copy(update={"roles": roles})
    for task in tasks:
        changes = {"task_id": task, "owner": task[:3], "placements": places, "spec": spec}
        await harness.handle(assigned.model_copy(update=changes))
        await harness.until_started(task=task)
        await asyncio.sleep(300)
        ended = await harness.until_exited(task=task)
        assert (ended.exit.kind, ended.exit.start_failed) == (ExitKind.LOST, True)
    rows = harness.platform.database.rows(TABLES, NodeRow).values()
    return {row.node_id for row in rows if row.quarantined_until is not None}


def test_one_owner_whose_later_roles_hang_everywhere_takes_one_node_from_the_others() -> None:
    async def main() -> None:
        harness = LauncherHarness(nodes=3, script=Script(steps=100_000))
        harness.cluster.pending_seconds_max = 1e9
        harness.cluster.pending_nodes = frozenset({"local-1", "local-2"})
        harness.limits = replace(harness.limits, quarantine=QuarantinePolicy(3, 1e6, 1e6))
        async with running_cluster(harness):
            assert await hang_later(harness, "adaa", "adab", "adac", node=1) == {"local-1"}
            assert await hang_later(harness, "adad", "adae", "adaf", node=2) == {"local-1"}
            found = await hang_later(harness, "annx", "boby", node=2)
            assert found == {"local-1", "local-2"}

    virtually(main())


def test_of_a_gang_only_the_nodes_that_have_not_begun_count() -> None:
    async def main() -> None:
        harness = await a_harness_in_which_nothing_starts()
        harness.cluster.pending_nodes = frozenset({"local-1"})
        assert await hang(harness, "adaa", "bobb", "annc", nodes=(0, 1)) == {"local-1"}

    virtually(main())


def test_a_run_that_somebody_ends_before_it_begins_counts_against_no_node() -> None:
    async def main() -> None:
        harness = await a_harness_in_which_nothing_starts()
        for task in ("adaa", "bobb", "annc", "eved"):
            await harness.handle(
                an_assignment().model_copy(update={"task_id": task, "owner": task})
            )
            await harness.run_loops(5)
            await harness.handle(a_kill(task=task))
            await harness.until_exited(task=task)
        assert await hang(harness) == set()

    virtually(main())


def test_a_node_that_cannot_start_a_run_is_quarantined() -> None:
    """A supervisor without space for its records behaves so: it answers, and nothing starts."""

    async def main() -> None:
        harness = LauncherHarness(nodes=3)
        harness.cluster.unable = {"local-2"}
        await harness.start()
        await harness.run_loops(3)
        assert await hang(harness, "adaa", "bobb", "annc", nodes=(1, 2)) == {"local-2"}

    virtually(main())
