from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from libs.contracts.base import Message
from libs.contracts.messages import (
    AckCheckpoint,
    AckCheckpointReply,
    CheckpointSaved,
    ExitKind,
    InventoryListed,
    NodeChanged,
    PreemptMode,
    Reemit,
    ReemitReply,
    RefusalCode,
    RunExit,
    RunExited,
    RunResumed,
    RunStarted,
    SetNodeMarks,
    SetNodeMarksReply,
    SetSchedulable,
    SetSchedulableReply,
)
from libs.store.connections import Address, connect
from libs.store.memory import MemoryDatabase, MemoryStore
from libs.store.migrate import check, upgrade
from libs.store.port import Store
from libs.store.sql import SqlStore
from libs.store.tables import LEADER
from services.launcher import store as tables
from services.launcher.domain.model import CheckpointRow, NodeRow, PastRun, Run, RunState
from services.launcher.handlers import HANDLERS, Commands
from services.launcher.main import WIRING
from services.launcher.tables import TABLES
from tests.kit.clock import START, at
from tests.kit.launcher_builders import (
    a_checkpoint,
    a_kill,
    a_node,
    a_preemption,
    a_run,
    a_spec,
    an_assignment,
)
from tests.kit.servers import run_apart

if TYPE_CHECKING:
    from tests.kit.postgres import PostgresServer


class Clock:
    seconds = 0.0

    def now(self) -> Any:
        return at(self.seconds)


class Desk:
    """The leader's transactions over one store."""

    def __init__(self, store: Store, clock: Clock, epoch: int) -> None:
        self.store, self.clock, self.epoch = store, clock, epoch
        self.commands = Commands(runtime="fake", reemit_runs_max=10).table()

    async def handle_events(self, *events: Message) -> None:
        for event in events:
            async with self.store.transaction(epoch=self.epoch) as tx:
                await HANDLERS[type(event)](tx, event)

    async def ask(self, command: Message) -> Any:
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await self.commands[type(command)](tx, command)

    async def put(self, *rows: object) -> None:
        async with self.store.transaction(epoch=self.epoch) as tx:
            tx.put(*rows)

    async def run(self, attempt: int = 1) -> Run | None:
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await tx.get(Run, "task", attempt)

    async def published(self) -> Sequence[Message]:
        return [envelope.message for _, envelope in await self.store.outgoing(100)]


@pytest.fixture(scope="module")
def address(postgres_server: PostgresServer) -> Address:
    """A database with the service's schema, for all tests; each empties it first."""

    async def prepare() -> Address:
        role = await (await postgres_server.database()).role("launcher")
        made = Address(role.url, role.password)
        await upgrade(made, TABLES, WIRING.migrations)
        await upgrade(made, TABLES, WIRING.migrations)
        assert await check(made, TABLES) == []
        return made

    return run_apart(prepare())


@pytest.fixture(params=["memory", pytest.param("sql", marks=pytest.mark.server)])
def where(request: pytest.FixtureRequest) -> Address | None:
    return None if request.param == "memory" else request.getfixturevalue("address")


@pytest_asyncio.fixture
async def desk(where: Address | None) -> AsyncIterator[Desk]:
    clock, ids = Clock(), itertools.count(1)
    more: Any = {"clock": clock, "source": "launcher", "new_id": lambda: f"e{next(ids)}"}
    store: Store
    if where is None:
        store = MemoryStore(MemoryDatabase(), TABLES, **more)
    else:
        connection = await connect(where)
        for table in TABLES.metadata.tables.values():
            if table.name != LEADER:
                await connection.execute(f'TRUNCATE "{table.schema}"."{table.name}"')
        await connection.close()
        store = SqlStore(where, TABLES, **more)
    leadership = await store.lead()
    await tables.load(store)
    yield Desk(store, clock, leadership.epoch)
    await leadership.release()
    await store.close()


async def test_an_assignment_is_recorded_whole(desk: Desk) -> None:
    event = an_assignment(ranks=2, resume_from=a_checkpoint(3))
    await desk.handle_events(event)
    run = await desk.run()
    assert run is not None
    assert (run.state, run.owner, run.spec) == (RunState.ASSIGNED, "ada", event.spec)
    assert (run.placements, run.resume_from) == (event.placements, event.resume_from)


async def test_a_resumed_run_is_recorded_like_an_assigned_one(desk: Desk) -> None:
    await desk.handle_events(RunResumed(**dict(an_assignment(2))))
    run = await desk.run(2)
    assert run is not None
    assert run.state is RunState.ASSIGNED


async def test_a_repeated_assignment_changes_nothing(desk: Desk) -> None:
    await desk.handle_events(an_assignment())
    running = replace(a_run(), owner="ada")
    await desk.put(running)
    await desk.handle_events(an_assignment())
    assert await desk.run() == running


async def test_an_older_attempt_is_dropped(desk: Desk) -> None:
    await desk.handle_events(an_assignment(3))
    await desk.handle_events(an_assignment(2), a_kill(2), a_preemption(1))
    assert await desk.run(2) is None
    assert await desk.run(1) is None


async def test_a_forgotten_attempt_is_dropped(desk: Desk) -> None:
    await desk.put(past(2))
    await desk.handle_events(an_assignment(2), an_assignment(1), a_kill(2), a_preemption(2))
    assert await desk.run(2) is None
    await desk.handle_events(an_assignment(3))
    assert await desk.run(3) is not None


def past(attempt: int) -> PastRun:
    end = RunExit(attempt=attempt, kind=ExitKind.OK, exited_at=START)
    return PastRun("task", attempt, (), START, end, a_checkpoint(5), START)


async def test_early_requests_are_kept(desk: Desk) -> None:
    await desk.handle_events(a_preemption(), a_kill())
    stone = await desk.run()
    assert stone is not None
    assert stone.state is RunState.EARLY_REQUEST
    await desk.handle_events(an_assignment())
    run = await desk.run()
    assert run is not None
    assert run.state is RunState.ASSIGNED
    assert None not in (run.preempt_requested_at, run.kill_requested_at, run.spec)


async def test_the_first_request_stays(desk: Desk) -> None:
    await desk.handle_events(an_assignment(), a_preemption(), a_kill())
    first = await desk.run()
    desk.clock.seconds = 9
    await desk.handle_events(a_preemption(), a_kill())
    assert await desk.run() == first


async def test_requests_for_what_is_over_are_dropped(desk: Desk) -> None:
    end = RunExit(attempt=1, kind=ExitKind.OK, exited_at=START)
    over = a_run(RunState.EXITED, exit=end, exited_at=START)
    await desk.put(over)
    await desk.handle_events(a_preemption(), a_kill())
    assert await desk.run() == over


async def test_a_signal_that_is_none_cannot_be_handled(desk: Desk) -> None:
    spec = a_spec(mode=PreemptMode.SIGNAL, signal="NOPE")
    with pytest.raises(ValueError, match="NOPE"):
        await desk.handle_events(an_assignment(spec=spec))
    assert await desk.run() is None


def ack(step: int = 10, attempt: int = 1) -> AckCheckpoint:
    return AckCheckpoint(task_id="task", attempt=attempt, step=step, uri=f"/c/{step}", digest="d")


async def test_a_checkpoint_is_stored_published_and_answered(desk: Desk) -> None:
    await desk.put(a_run())
    reply: AckCheckpointReply = await desk.ask(ack())
    assert reply.checkpoint is not None
    assert (reply.checkpoint.no, reply.refusal) == (1, None)
    async with desk.store.transaction() as tx:
        assert await tx.get(CheckpointRow, "task", 1) == CheckpointRow(
            "task", 1, 1, reply.checkpoint
        )
    published = [CheckpointSaved(task_id="task", attempt=1, checkpoint=reply.checkpoint)]
    assert await desk.published() == published
    assert await desk.ask(ack()) == reply
    assert await desk.published() == published


async def test_the_acknowledgement_is_the_first_save_after_the_request(desk: Desk) -> None:
    await desk.put(a_run())
    await desk.ask(ack(10))
    await desk.handle_events(a_preemption())
    run = await desk.run()
    assert run is not None
    assert run.acked_at is None
    desk.clock.seconds = 5
    await desk.ask(ack(11))
    desk.clock.seconds = 6
    await desk.ask(ack(12))
    run = await desk.run()
    assert run is not None
    assert run.acked_at == at(5)


async def test_a_run_may_acknowledge_a_request_before_the_launcher_receives_it(desk: Desk) -> None:
    await desk.put(a_run())
    desk.clock.seconds = 5
    await desk.ask(ack(10).model_copy(update={"preempt_requested": True}))
    desk.clock.seconds = 6
    await desk.handle_events(a_preemption())
    run = await desk.run()
    assert run is not None
    assert (run.preempt_requested_at, run.acked_at) == (at(5), at(5))
    assert run.preempt_deadline_at == a_preemption().deadline_at


async def test_checkpoint_numbers_continue_per_task_and_old_ones_are_dropped(desk: Desk) -> None:
    await desk.put(a_run())
    for step in range(tables.CHECKPOINTS_KEPT + 5):
        await desk.ask(ack(step))
    async with desk.store.transaction() as tx:
        kept = await tables.newest_checkpoints(tx, "task")
        assert len(await tx.select(CheckpointRow)) == tables.CHECKPOINTS_KEPT
    assert kept[0].no == tables.CHECKPOINTS_KEPT + 5
    end = RunExit(attempt=1, kind=ExitKind.KILLED, exited_at=START)
    await desk.put(a_run(RunState.EXITED, exit=end))
    await desk.handle_events(an_assignment(2))
    reply: AckCheckpointReply = await desk.ask(ack(1, attempt=2))
    assert reply.checkpoint is not None
    assert reply.checkpoint.no == kept[0].no + 1
    refused: AckCheckpointReply = await desk.ask(ack(999))
    assert refused.refusal is not None
    assert refused.refusal.code is RefusalCode.SUPERSEDED


async def test_cordon(desk: Desk) -> None:
    row = NodeRow("local-0", 1, a_node(), removed=False, cordoned=False, changed_at=START)
    await desk.put(row)
    reply: SetSchedulableReply = await desk.ask(
        SetSchedulable(node_id="local-0", schedulable=False)
    )
    assert reply.refusal is None
    await desk.ask(SetSchedulable(node_id="local-0", schedulable=False))
    [changed] = await desk.published()
    assert isinstance(changed, NodeChanged)
    assert (changed.version, changed.node.schedulable) == (2, False)
    missing: SetSchedulableReply = await desk.ask(SetSchedulable(node_id="x", schedulable=True))
    assert missing.refusal is not None
    assert missing.refusal.code is RefusalCode.NOT_FOUND
    assert missing.refusal.errors[0].field == "node_id"
    near: SetSchedulableReply = await desk.ask(SetSchedulable(node_id="locl-0", schedulable=True))
    assert near.refusal is not None
    assert near.refusal.detail == 'there is no node "locl-0"; did you mean local-0?'
    assert near.refusal.errors[0].fix == "did you mean local-0? GET /v1/nodes lists them"


async def test_drain(desk: Desk) -> None:
    row = NodeRow("local-0", 1, a_node(), removed=False, cordoned=False, changed_at=START)
    await desk.put(row)
    await desk.ask(SetSchedulable(node_id="local-0", schedulable=False, drain=True))
    [changed] = await desk.published()
    assert isinstance(changed, NodeChanged)
    assert (changed.node.schedulable, changed.node.draining) == (False, True)


async def test_labels_and_taints(desk: Desk) -> None:
    row = NodeRow("local-0", 1, a_node(), removed=False, cordoned=False, changed_at=START)
    await desk.put(row)
    command = SetNodeMarks(node_id="local-0", labels={"zone": "a"}, taints=("flaky",))
    for _ in range(2):
        reply: SetNodeMarksReply = await desk.ask(command)
        assert reply == SetNodeMarksReply(labels={"zone": "a"}, taints=("flaky",))
    [changed] = await desk.published()
    assert isinstance(changed, NodeChanged)
    assert (changed.version, changed.node.labels, changed.node.taints) == (
        2,
        {"zone": "a"},
        ("flaky",),
    )
    wrong: SetNodeMarksReply = await desk.ask(SetNodeMarks(node_id="local-0", taints=("=",)))
    assert wrong.refusal is not None
    assert wrong.refusal.code is RefusalCode.INVALID
    missing: SetNodeMarksReply = await desk.ask(SetNodeMarks(node_id="x", labels={"a": "b"}))
    assert missing.refusal is not None
    assert missing.refusal.code is RefusalCode.NOT_FOUND


async def test_before_the_first_scan_a_reemit_publishes_no_empty_inventory(
    desk: Desk,
) -> None:
    reply: ReemitReply = await desk.ask(Reemit(service="launcher"))
    assert (reply.events, await desk.published()) == (0, [])


async def test_reemit_publishes_the_facts_again(desk: Desk) -> None:
    row = NodeRow("local-0", 4, a_node(), removed=False, cordoned=False, changed_at=START)
    gone = replace(row, node_id="local-9", removed=True)
    other = replace(a_run(), task_id="other")
    await desk.put(row, gone, past(3), other)
    reply: ReemitReply = await desk.ask(Reemit(service="launcher"))
    published = await desk.published()
    assert reply.events == len(published)
    assert [type(message) for message in published] == [
        NodeChanged,
        NodeChanged,
        InventoryListed,
        RunStarted,
        CheckpointSaved,
        RunExited,
        RunStarted,
    ]
    listed, exited = published[2], published[5]
    assert isinstance(listed, InventoryListed)
    assert listed.node_ids == ("local-0",)
    assert isinstance(exited, RunExited)
    assert (exited.attempt, exited.checkpoint) == (3, a_checkpoint(5))


async def test_pruning(desk: Desk) -> None:
    stone = Run("stone", 1, RunState.EARLY_REQUEST, kill_requested_at=START)
    young = replace(past(1), task_id="young", forgotten_at=at(100))
    await desk.put(past(1), young, stone, CheckpointRow("task", 5, 1, a_checkpoint(5)))
    async with desk.store.transaction(epoch=desk.epoch) as tx:
        assert await tables.drop_past_runs(tx, at(50), 10) == 1
        assert await tables.drop_early_requests(tx, at(50), 10) == 1
    async with desk.store.transaction(epoch=desk.epoch) as tx:
        assert [row.task_id for row in await tx.select(PastRun)] == ["young"]
        assert await tx.select(CheckpointRow) == []
        assert await tx.select(Run) == []


async def test_a_later_request_may_only_shorten_the_deadline(desk: Desk) -> None:
    await desk.put(a_run())
    await desk.handle_events(a_preemption())
    for seconds, deadline in ((30, 30), (90, 30)):
        later = a_preemption().model_copy(update={"deadline_at": at(seconds)})
        await desk.handle_events(later)
        run = await desk.run()
        assert run is not None
        assert run.preempt_deadline_at == at(deadline)


async def test_past_rows_of_running_tasks_do_not_stop_pruning(desk: Desk) -> None:
    live = [replace(a_run(), task_id=f"live{number}") for number in range(3)]
    pasts = [replace(past(1), task_id=each.task_id, forgotten_at=at(-9)) for each in live]
    await desk.put(*live, *pasts, replace(past(1), task_id="over", forgotten_at=at(-8)))
    for _ in range(2):
        async with desk.store.transaction(epoch=desk.epoch) as tx:
            await tables.drop_past_runs(tx, at(-5), 3)
    async with desk.store.transaction(epoch=desk.epoch) as tx:
        assert await tx.get(PastRun, "over") is None
        assert len(await tx.select(PastRun)) == 3


async def test_removed_nodes_are_dropped_after_a_while(desk: Desk) -> None:
    row = NodeRow("local-0", 4, a_node(), removed=False, cordoned=False, changed_at=START)
    gone = replace(row, node_id="local-8", removed=True)
    just = replace(gone, node_id="local-9", changed_at=at(100))
    await desk.put(row, gone, just)
    async with desk.store.transaction(epoch=desk.epoch) as tx:
        assert await tables.drop_removed_nodes(tx, at(50), 10) == 1
        assert sorted(each.node_id for each in await tx.select(NodeRow)) == ["local-0", "local-9"]
