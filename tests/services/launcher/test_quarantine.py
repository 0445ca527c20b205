"""A node on which starts fail in a row takes no new runs for a while, and says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from libs.contracts.messages import (
    ExitKind,
    NodeChanged,
    Placement,
    RunExit,
    SetSchedulable,
)
from services.launcher.domain.inventory import (
    LeasePolicy,
    QuarantinePolicy,
    cordon,
    start_failed,
    start_worked,
    take_stock,
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
from tests.builders import a_spec
from tests.services.launcher.makers import a_listing, a_node, at
from tests.services.launcher.world import World

POLICY = QuarantinePolicy(after=3, seconds=600.0, seconds_max=1000.0)
LEASES = LeasePolicy(lease=timedelta(seconds=5), fence=timedelta(seconds=15))


def a_row() -> NodeRow:
    return NodeRow("local-0", 1, a_node("local-0"), False, False, at(0))


def after_failures(row: NodeRow, *task_ids: str, seconds: float = 0.0) -> NodeRow:
    for task_id in task_ids:
        row = start_failed(row, task_id, at(seconds), POLICY)
    return row


def looked_at(row: NodeRow, seconds: float) -> NodeRow:
    stock = take_stock([row], a_listing(nodes=1), lambda _: False, at(seconds), LEASES)
    return stock.rows[0] if stock.rows else row


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
    assert looked_at(row, 599).node.quarantined
    stock = take_stock([row], a_listing(nodes=1), lambda _: False, at(599), LEASES)
    assert stock.due_at == at(600)
    row = looked_at(row, 600)
    assert (row.node.schedulable, row.node.quarantined, row.version) == (True, False, 3)
    row = after_failures(row, "t4", seconds=700)
    assert row.quarantined_until == at(700 + 1000)


def test_uncordon_ends_a_quarantine_and_forgets_the_failures() -> None:
    row = cordon(after_failures(a_row(), "t1", "t2", "t3"), True, at(5))
    assert (row.node.schedulable, row.node.quarantined, row.failed_starts) == (True, False, 0)
    assert looked_at(row, 6) == row


def test_a_cordoned_node_stays_cordoned_when_its_quarantine_ends() -> None:
    row = cordon(after_failures(a_row(), "t1", "t2", "t3"), False, at(5))
    assert row.node.quarantined
    row = looked_at(row, 700)
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


async def test_failed_starts_are_recorded_said_and_taken_back_by_an_operator() -> None:
    world = World()
    await world.start()
    async with world.store.transaction(epoch=world.epoch) as tx:
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
        async with world.store.transaction(epoch=world.epoch) as tx:
            await record(tx, {run.id: run}, [over], POLICY)
    async with world.store.transaction(epoch=world.epoch) as tx:
        row = await tx.get(NodeRow, "local-0")
        assert row is not None
        assert row.node.quarantined
        await set_schedulable(tx, SetSchedulable(node_id="local-0", schedulable=True))
    said = [each.message for _, each in await world.store.outgoing(1000)]
    changes = [each.node.quarantined for each in said if isinstance(each, NodeChanged)]
    assert changes == [True, False]
