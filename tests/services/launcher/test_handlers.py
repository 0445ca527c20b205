from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

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
    ReportReady,
    ReportReadyReply,
    Role,
    RunExit,
    RunExited,
    RunResumed,
    RunStarted,
    SetNodeMarks,
    SetNodeMarksReply,
    SetSchedulable,
    SetSchedulableReply,
    StartCondition,
    StartsAfter,
    YieldRun,
)
from libs.service.definition import Ports, Service
from libs.store.port import Store
from services.launcher import store as tables
from services.launcher.domain.model import (
    CheckpointRow,
    EndCause,
    NodeRow,
    PastRun,
    RankRestart,
    ReadyReport,
    Run,
    RunState,
)
from services.launcher.handlers import HANDLERS, Commands
from services.launcher.main import WIRING
from services.launcher.run_masks import RunMasks
from services.launcher.settings import LauncherSettings
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
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.services.launcher.launcher_harness import SITE

if TYPE_CHECKING:
    from libs.service.wiring import Wiring


class Handlers(ServiceHarness):
    """The handlers and commands, without loops and a runtime."""

    def _build(self, store: Store | None = None) -> Service:
        assert store is not None
        return Service(
            name=WIRING.name,
            ports=Ports(store, self.platform.bus(WIRING.name), self.clock),
            handlers=HANDLERS,
            commands=Commands("fake", 10, RunMasks(SITE)).table(),
            on_lead=lambda _epoch: tables.load(store),
        )

    async def run(self, attempt: int = 1) -> Run | None:
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await tx.get(Run, "task", attempt)


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest_asyncio.fixture
async def service(platform: MemoryPlatform, store: Store, tmp_path: Path) -> Handlers:
    settings = LauncherSettings(
        database_url="-", nats_url="-", run_token_key_file=tmp_path, data_folder=tmp_path
    )
    made = Handlers(platform, WIRING, settings, store=store)
    await made.lead()
    return made


async def test_an_assignment_is_recorded_whole(service: Handlers) -> None:
    event = an_assignment(ranks=2, resume_from=a_checkpoint(3))
    await service.handle(event)
    run = await service.run()
    assert run is not None
    assert (run.state, run.owner, run.spec) == (RunState.ASSIGNED, "ada", event.spec)
    assert (run.placements, run.resume_from) == (event.placements, event.resume_from)


async def test_a_resumed_run_is_recorded_like_an_assigned_one(service: Handlers) -> None:
    await service.handle(RunResumed(**dict(an_assignment(2))))
    run = await service.run(2)
    assert run is not None
    assert run.state is RunState.ASSIGNED


async def test_a_repeated_assignment_changes_nothing(service: Handlers) -> None:
    await service.handle(an_assignment())
    running = replace(a_run(), owner="ada")
    await service.put(running)
    await service.handle(an_assignment())
    assert await service.run() == running


async def test_an_older_attempt_is_dropped(service: Handlers) -> None:
    await service.handle(an_assignment(3))
    await service.handle(an_assignment(2), a_kill(2), a_preemption(1))
    assert await service.run(2) is None
    assert await service.run(1) is None


async def test_a_forgotten_attempt_is_dropped(service: Handlers) -> None:
    await service.put(past(2))
    await service.handle(an_assignment(2), an_assignment(1), a_kill(2), a_preemption(2))
    assert await service.run(2) is None
    await service.handle(an_assignment(3))
    assert await service.run(3) is not None


def past(attempt: int) -> PastRun:
    end = RunExit(attempt=attempt, kind=ExitKind.OK, exited_at=START)
    return PastRun("task", attempt, (), START, end, a_checkpoint(5), START)


async def test_early_requests_are_kept(service: Handlers) -> None:
    await service.handle(a_preemption(), a_kill())
    stone = await service.run()
    assert stone is not None
    assert stone.state is RunState.EARLY_REQUEST
    await service.handle(an_assignment())
    run = await service.run()
    assert run is not None
    assert run.state is RunState.ASSIGNED
    assert None not in (run.preempt_requested_at, run.kill_requested_at, run.spec)


async def test_the_first_request_stays(service: Handlers) -> None:
    await service.handle(an_assignment(), a_preemption(), a_kill())
    first = await service.run()
    service.clock.move_to(9)
    await service.handle(a_preemption(), a_kill())
    assert await service.run() == first


async def test_requests_for_what_is_over_are_dropped(service: Handlers) -> None:
    end = RunExit(attempt=1, kind=ExitKind.OK, exited_at=START)
    over = a_run(RunState.EXITED, exit=end, exited_at=START)
    await service.put(over)
    await service.handle(a_preemption(), a_kill())
    assert await service.run() == over


async def test_a_signal_that_is_none_cannot_be_handled(service: Handlers) -> None:
    spec = a_spec(mode=PreemptMode.SIGNAL, signal="NOPE")
    with pytest.raises(ValueError, match="NOPE"):
        await service.handle(an_assignment(spec=spec))
    assert await service.run() is None


def ack(step: int = 10, attempt: int = 1) -> AckCheckpoint:
    return AckCheckpoint(task_id="task", attempt=attempt, step=step, uri=f"/c/{step}", digest="d")


async def test_a_checkpoint_is_stored_published_and_answered(service: Handlers) -> None:
    await service.put(a_run())
    reply: AckCheckpointReply = await service.ask(ack())
    assert reply.checkpoint is not None
    assert (reply.checkpoint.no, reply.refusal) == (1, None)
    async with service.store.transaction() as tx:
        assert await tx.get(CheckpointRow, "task", 1) == CheckpointRow(
            "task", 1, 1, reply.checkpoint
        )
    published = [CheckpointSaved(task_id="task", attempt=1, checkpoint=reply.checkpoint)]
    assert await service.published() == published
    assert await service.ask(ack()) == reply
    assert await service.published() == []


async def test_the_acknowledgement_is_the_first_save_after_the_request(service: Handlers) -> None:
    await service.put(a_run())
    await service.ask(ack(10))
    await service.handle(a_preemption())
    run = await service.run()
    assert run is not None
    assert run.acked_at is None
    service.clock.move_to(5)
    await service.ask(ack(11))
    service.clock.move_to(6)
    await service.ask(ack(12))
    run = await service.run()
    assert run is not None
    assert run.acked_at == at(5)


async def test_a_run_may_acknowledge_a_request_before_the_launcher_receives_it(
    service: Handlers,
) -> None:
    await service.put(a_run())
    service.clock.move_to(5)
    await service.ask(ack(10).model_copy(update={"preempt_requested": True}))
    service.clock.move_to(6)
    await service.handle(a_preemption())
    run = await service.run()
    assert run is not None
    assert (run.preempt_requested_at, run.acked_at) == (at(5), at(5))
    assert run.preempt_deadline_at == a_preemption().deadline_at


async def test_checkpoint_numbers_continue_per_task_and_old_ones_are_dropped(
    service: Handlers,
) -> None:
    await service.put(a_run())
    for step in range(tables.CHECKPOINTS_KEPT + 5):
        await service.ask(ack(step))
    async with service.store.transaction() as tx:
        kept = await tables.newest_checkpoints(tx, "task")
        assert len(await tx.select(CheckpointRow)) == tables.CHECKPOINTS_KEPT
    assert kept[0].no == tables.CHECKPOINTS_KEPT + 5
    end = RunExit(attempt=1, kind=ExitKind.KILLED, exited_at=START)
    await service.put(a_run(RunState.EXITED, exit=end))
    await service.handle(an_assignment(2))
    reply: AckCheckpointReply = await service.ask(ack(1, attempt=2))
    assert reply.checkpoint is not None
    assert reply.checkpoint.no == kept[0].no + 1
    refused: AckCheckpointReply = await service.ask(ack(999))
    assert refused.refusal is not None
    assert refused.refusal.code is RefusalCode.SUPERSEDED


def waiting_run() -> Run:
    """The role of rank 1 waits for the readiness of that of rank 0."""
    spec = a_spec(2)
    after = StartsAfter(role="ps", condition=StartCondition.READY)
    roles = Role(name="ps"), Role(name="worker", starts_after=(after,))
    run = a_run(RunState.ASSIGNED, ranks=2, spec=spec.model_copy(update={"roles": roles}))
    first, second = run.placements
    return replace(run, placements=(first.model_copy(update={"role": "ps"}), second))


async def test_readiness_is_recorded_where_a_role_waits_for_it(service: Handlers) -> None:
    await service.put(waiting_run())
    for rank in (0, 0, 1):
        command = ReportReady(task_id="task", attempt=1, rank=rank)
        reply: ReportReadyReply = await service.ask(command)
        assert reply.refusal is None
    async with service.store.transaction() as tx:
        reports = await tx.select(ReadyReport)
    # One row for each rank, and the run's row is not written again.
    assert [(each.rank, each.restarts) for each in reports] == [(0, 0)]
    assert await service.run() == waiting_run()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (ReportReady(task_id="task", attempt=2, rank=0), RefusalCode.SUPERSEDED),
        (ReportReady(task_id="other", attempt=1, rank=0), RefusalCode.SUPERSEDED),
        (ReportReady(task_id="task", attempt=1, rank=2), RefusalCode.NOT_FOUND),
        # It was restarted since then.
        (ReportReady(task_id="task", attempt=1, rank=0), RefusalCode.SUPERSEDED),
    ],
)
async def test_a_report_of_readiness_that_is_not_of_a_live_process_is_refused(
    service: Handlers, command: ReportReady, code: RefusalCode
) -> None:
    await service.put(replace(waiting_run(), restarts=(RankRestart(0, 1, START),)))
    reply: ReportReadyReply = await service.ask(command)
    assert reply.refusal is not None
    assert reply.refusal.code is code
    async with service.store.transaction() as tx:
        assert await tx.select(ReadyReport) == []


async def test_cordon(service: Handlers) -> None:
    row = NodeRow("local-0", 1, a_node(), removed=False, cordoned=False, changed_at=START)
    await service.put(row)
    reply: SetSchedulableReply = await service.ask(
        SetSchedulable(node_id="local-0", schedulable=False)
    )
    assert reply.refusal is None
    await service.ask(SetSchedulable(node_id="local-0", schedulable=False))
    [changed] = await service.published()
    assert isinstance(changed, NodeChanged)
    assert (changed.version, changed.node.schedulable) == (2, False)
    missing: SetSchedulableReply = await service.ask(SetSchedulable(node_id="x", schedulable=True))
    assert missing.refusal is not None
    assert missing.refusal.code is RefusalCode.NOT_FOUND
    assert missing.refusal.errors[0].field == "node_id"
    near: SetSchedulableReply = await service.ask(
        SetSchedulable(node_id="locl-0", schedulable=True)
    )
    assert near.refusal is not None
    assert near.refusal.detail == 'there is no node "locl-0"; did you mean local-0?'
    assert near.refusal.errors[0].fix == "did you mean local-0? GET /v1/nodes lists them"


async def test_drain(service: Handlers) -> None:
    row = NodeRow("local-0", 1, a_node(), removed=False, cordoned=False, changed_at=START)
    await service.put(row)
    await service.ask(SetSchedulable(node_id="local-0", schedulable=False, drain=True))
    [changed] = await service.published()
    assert isinstance(changed, NodeChanged)
    assert (changed.node.schedulable, changed.node.draining) == (False, True)


async def test_labels_and_taints(service: Handlers) -> None:
    row = NodeRow("local-0", 1, a_node(), removed=False, cordoned=False, changed_at=START)
    await service.put(row)
    command = SetNodeMarks(node_id="local-0", labels={"zone": "a"}, taints=("flaky",))
    for _ in range(2):
        reply: SetNodeMarksReply = await service.ask(command)
        assert reply == SetNodeMarksReply(labels={"zone": "a"}, taints=("flaky",))
    [changed] = await service.published()
    assert isinstance(changed, NodeChanged)
    assert (changed.version, changed.node.labels, changed.node.taints) == (
        2,
        {"zone": "a"},
        ("flaky",),
    )
    wrong: SetNodeMarksReply = await service.ask(SetNodeMarks(node_id="local-0", taints=("=",)))
    assert wrong.refusal is not None
    assert wrong.refusal.code is RefusalCode.INVALID
    missing: SetNodeMarksReply = await service.ask(SetNodeMarks(node_id="x", labels={"a": "b"}))
    assert missing.refusal is not None
    assert missing.refusal.code is RefusalCode.NOT_FOUND


async def test_before_the_first_scan_a_reemit_publishes_no_empty_inventory(
    service: Handlers,
) -> None:
    reply: ReemitReply = await service.ask(Reemit(service="launcher"))
    assert (reply.events, await service.published()) == (0, [])


async def test_reemit_publishes_the_facts_again(service: Handlers) -> None:
    row = NodeRow("local-0", 4, a_node(), removed=False, cordoned=False, changed_at=START)
    gone = replace(row, node_id="local-9", removed=True)
    other = replace(a_run(), task_id="other")
    await service.put(row, gone, past(3), other)
    reply: ReemitReply = await service.ask(Reemit(service="launcher"))
    published = await service.published()
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


async def test_pruning(service: Handlers) -> None:
    stone = Run("stone", 1, RunState.EARLY_REQUEST, kill_requested_at=START)
    young = replace(past(1), task_id="young", forgotten_at=at(100))
    await service.put(past(1), young, stone, CheckpointRow("task", 5, 1, a_checkpoint(5)))
    async with service.store.transaction(epoch=service.epoch) as tx:
        assert await tables.drop_past_runs(tx, at(50), 10) == 1
        assert await tables.drop_early_requests(tx, at(50), 10) == 1
    async with service.store.transaction(epoch=service.epoch) as tx:
        assert [row.task_id for row in await tx.select(PastRun)] == ["young"]
        assert await tx.select(CheckpointRow) == []
        assert await tx.select(Run) == []


async def test_a_request_waits_for_its_assignment_as_long_as_the_inbox_knows_events() -> None:
    keep, inbox_keep = timedelta(seconds=1), timedelta(days=15)
    rules = {each.what: each.keep for each in tables.prune_rules(keep, inbox_keep, keep)}
    assert rules == {"past runs": keep, "requests": inbox_keep, "removed nodes": keep}


async def test_a_later_request_may_only_shorten_the_deadline(service: Handlers) -> None:
    await service.put(a_run())
    await service.handle(a_preemption())
    for seconds, deadline in ((30, 30), (90, 30)):
        later = a_preemption().model_copy(update={"deadline_at": at(seconds)})
        await service.handle(later)
        run = await service.run()
        assert run is not None
        assert run.preempt_deadline_at == at(deadline)


async def test_past_rows_of_running_tasks_do_not_stop_pruning(service: Handlers) -> None:
    live = [replace(a_run(), task_id=f"live{number}") for number in range(3)]
    pasts = [replace(past(1), task_id=each.task_id, forgotten_at=at(-9)) for each in live]
    await service.put(*live, *pasts, replace(past(1), task_id="over", forgotten_at=at(-8)))
    for _ in range(2):
        async with service.store.transaction(epoch=service.epoch) as tx:
            await tables.drop_past_runs(tx, at(-5), 3)
    async with service.store.transaction(epoch=service.epoch) as tx:
        assert await tx.get(PastRun, "over") is None
        assert len(await tx.select(PastRun)) == 3


async def test_removed_nodes_are_dropped_after_a_while(service: Handlers) -> None:
    row = NodeRow("local-0", 4, a_node(), removed=False, cordoned=False, changed_at=START)
    gone = replace(row, node_id="local-8", removed=True)
    just = replace(gone, node_id="local-9", changed_at=at(100))
    await service.put(row, gone, just)
    async with service.store.transaction(epoch=service.epoch) as tx:
        assert await tables.drop_removed_nodes(tx, at(50), 10) == 1
        assert sorted(each.node_id for each in await tx.select(NodeRow)) == ["local-0", "local-9"]


async def test_requests_during_the_end_are_later_than_it_whatever_the_clock_says(
    service: Handlers,
) -> None:
    """The leader that decided the end had a clock an hour ahead."""
    ending = a_run(RunState.ENDING, ending_at=at(3600), end_cause=EndCause.RANK_FAILED)
    await service.put(ending)
    await service.handle(a_preemption())
    run = await service.run()
    assert run is not None
    assert run.preempt_requested_at is not None
    assert run.preempt_requested_at > at(3600)
    await service.ask(YieldRun(task_id="task", attempt=1))
    run = await service.run()
    assert run is not None
    assert run.yield_requested_at is not None
    assert run.yield_requested_at > at(3600)


async def test_a_kill_after_a_yield_is_later_than_it_whatever_the_clock_says(
    service: Handlers,
) -> None:
    await service.put(a_run(yield_requested_at=at(3600)))
    await service.handle(a_kill())
    run = await service.run()
    assert run is not None
    assert run.kill_requested_at is not None
    assert run.kill_requested_at > at(3600)
