from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from libs.contracts.messages import (
    Checkpoint,
    CheckpointSaved,
    ExitKind,
    KillRequested,
    PodRequest,
    PreemptionRequested,
    Priority,
    Role,
    RunAssigned,
    RunResumed,
    TaskSpec,
    TaskState,
    TaskStateChanged,
)
from libs.store.port import NotLeaderError
from services.scheduler import replay
from services.scheduler.domain.decide import decide
from services.scheduler.domain.disciplines.timeshare.discipline import features_of
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Plan
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.loop import CONFLICT_PAUSE_SECONDS, REFUSED, VIOLATIONS, Brain
from services.scheduler.store import SlotRow
from tests.kit.builders import (
    a_checkpoint,
    a_node,
    a_snapshot,
    a_spec,
    a_task,
    exited_event,
    listened_event,
    some_nodes,
    started_event,
    submitted_event,
)
from tests.kit.clock import at
from tests.services.scheduler.scheduler_harness import SchedulerHarness, inventory_of, node_changed


async def a_scheduler(nodes: int = 1, dumps: Path | None = None) -> SchedulerHarness:
    return await SchedulerHarness(dumps).start(*some_nodes(nodes))


def refused(why: str) -> float:
    return REFUSED.labels(why)._value.get()


async def test_preempt_save_exit_swap_and_resume() -> None:
    """The whole hand-over: asked, saved, ended, the newcomer placed, the victim back again."""
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    scheduler.clock.move_to(20)
    await scheduler.handle(submitted_event(a_task("high", priority=Priority.HIGH)))
    await scheduler.published()
    await scheduler.settle()
    asked = [each for each in await scheduler.published() if isinstance(each, PreemptionRequested)]
    assert [(each.task_id, each.attempt, each.deadline_at) for each in asked] == [
        ("low", 1, at(80))
    ]

    saved = CheckpointSaved(task_id="low", attempt=1, checkpoint=a_checkpoint(1))
    await scheduler.handle(saved)
    await scheduler.settle()
    assert not [each for each in await scheduler.published() if isinstance(each, RunAssigned)]
    low = await scheduler.task("low")
    await scheduler.handle(
        exited_event(low, ExitKind.PREEMPTED, now=21, checkpoint=a_checkpoint(1))
    )
    await scheduler.settle()
    published = await scheduler.published()
    assert [each.task_id for each in published if isinstance(each, RunAssigned)] == ["high"]
    await scheduler.handle(exited_event(await scheduler.task("high"), now=30))
    await scheduler.settle()
    (resumed,) = [each for each in await scheduler.published() if isinstance(each, RunResumed)]
    assert (resumed.task_id, resumed.attempt, resumed.resume_from) == ("low", 2, a_checkpoint(1))


async def test_a_run_that_misses_its_deadline_is_killed_and_resumes_from_the_last_checkpoint() -> (
    None
):
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    await scheduler.handle(listened_event(await scheduler.task("low"), now=0))
    await scheduler.handle(CheckpointSaved(task_id="low", attempt=1, checkpoint=a_checkpoint(1)))
    await scheduler.handle(submitted_event(a_task("high", priority=Priority.HIGH, submitted=1)))
    await scheduler.settle()
    await scheduler.published()
    scheduler.clock.move_to(59)
    assert await scheduler.step() == 1.0
    assert await scheduler.published() == []
    scheduler.clock.move_to(60)
    await scheduler.settle()
    assert isinstance((await scheduler.published())[0], KillRequested)
    low = await scheduler.task("low")
    await scheduler.handle(exited_event(low, ExitKind.KILLED, now=61))
    low = await scheduler.task("low")
    assert (low.state, low.checkpoint) == (TaskState.QUEUED, a_checkpoint(1))


async def test_nothing_is_decided_while_nothing_changes() -> None:
    calls: list[datetime] = []

    def counted(snapshot: Snapshot, now: datetime) -> Plan:
        calls.append(now)
        return decide(snapshot, now)

    scheduler = await a_scheduler()
    brain = Brain(scheduler.service.ports, scheduler.settings, policy_function=counted)
    await brain.lead(scheduler.epoch)
    await scheduler.handle(
        submitted_event(a_task(spec=a_spec(nodes=9))), submitted_event(a_task("b"))
    )
    for _ in range(2):
        await brain.step(scheduler.epoch)
    rounds = len(calls)
    assert rounds == 2, "one that decides, one that finds nothing more"
    for second in range(100):
        scheduler.clock.move_to(float(second))
        assert await brain.step(scheduler.epoch) == 1.0
    assert len(calls) == rounds
    scheduler.clock.move_to(299.5)
    assert await brain.step(scheduler.epoch) == 0.5, "the start deadline of b"
    scheduler.clock.move_to(300)
    await brain.step(scheduler.epoch)
    assert len(calls) > rounds


async def test_a_bad_plan_is_refused_counted_and_kept_for_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def careless(snapshot: Snapshot, now: datetime) -> Plan:
        plan = decide(snapshot, now)
        twisted = [
            replace(each, attempt=each.attempt + 1) if isinstance(each, Assign) else each
            for each in plan.decisions
        ]
        return replace(plan, decisions=tuple(twisted))

    scheduler = await a_scheduler()
    brain = Brain(
        scheduler.service.ports,
        scheduler.settings.model_copy(update={"dumps": tmp_path / "dumps", "dumps_max": 1}),
        policy_function=careless,
    )
    await brain.lead(scheduler.epoch)
    await scheduler.handle(submitted_event(a_task()))
    await scheduler.published()
    before, faults = refused("violation"), VIOLATIONS.labels("wrong_attempt")._value.get()
    for minute in range(3):
        scheduler.clock.move_to(60 * minute)
        await brain.step(scheduler.epoch)
    assert (await scheduler.task("t1")).state is TaskState.QUEUED
    assert await scheduler.published() == []
    assert refused("violation") == before + 3
    assert VIOLATIONS.labels("wrong_attempt")._value.get() == faults + 3
    (file,) = (tmp_path / "dumps").iterdir()
    assert "WRONG_ATTEMPT t1" in capsys.readouterr().out
    assert replay.main([str(file)]) == 0, "the policy itself has nothing wrong with it"
    assert capsys.readouterr().out == (
        "assign t1.1 n0[0,1,2,3,4,5,6,7]: starts on 1 whole node in group default\n"
    )


async def test_a_plan_is_made_again_if_the_tables_changed_meanwhile() -> None:
    scheduler = await a_scheduler()
    brain = Brain(scheduler.service.ports, scheduler.settings)
    await brain.lead(scheduler.epoch)
    await scheduler.handle(submitted_event(a_task()))
    snapshot = brain.snapshot()
    plan = decide(snapshot, at(1))
    await scheduler.handle(submitted_event(a_task("t2")))
    before = refused("conflict")
    assert not await brain._commit(plan, scheduler.epoch)
    assert refused("conflict") == before + 1
    assert (await scheduler.task("t1")).state is TaskState.QUEUED


async def test_the_database_refuses_what_check_did_not_see() -> None:
    """A slot row that the working set does not know: the plan fails, the tables are believed."""
    scheduler = await a_scheduler()
    async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
        tx.put(SlotRow("ghost", 1, "n0", 5))
    await scheduler.handle(submitted_event(a_task()))
    before = refused("conflict")
    # Soon again, but not without a pause: a refusal that stays must not spin.
    assert await scheduler.step() == CONFLICT_PAUSE_SECONDS
    assert refused("conflict") == before + 1
    assert (await scheduler.task("t1")).state is TaskState.QUEUED
    async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
        tx.delete(SlotRow, "ghost", 1, "n0", 5)
    await scheduler.settle()
    assert (await scheduler.task("t1")).state is TaskState.STARTING


async def test_only_one_of_two_schedulers_decides() -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task()))
    await scheduler.leadership.release()
    successor = await SchedulerHarness(platform=scheduler.platform).start()
    assert successor.store is not scheduler.store
    with pytest.raises(NotLeaderError):
        await scheduler.step()
    await successor.settle()
    assert (await successor.task("t1")).attempt == 1
    published = [each for each in await successor.published() if isinstance(each, RunAssigned)]
    assert len(published) == 1


async def test_after_a_restart_everything_is_loaded_and_nothing_new_is_decided() -> None:
    scheduler = await a_scheduler(nodes=2)
    tasks = [a_task(f"t{number}", submitted=number) for number in range(4)]
    await scheduler.handle(*(submitted_event(task) for task in tasks))
    await scheduler.settle()
    await scheduler.published()
    before = await scheduler.tasks()
    await scheduler.restart()
    await scheduler.settle()
    assert await scheduler.published() == []
    assert await scheduler.tasks() == before


async def test_after_a_restart_only_new_tasks_are_evaluated_individually() -> None:
    scheduler = await a_scheduler()
    waiting = [a_task(f"t{number}", submitted=number) for number in range(6)]
    await scheduler.handle(*(submitted_event(task) for task in waiting))
    await scheduler.settle()
    # Comes, and its leader dies before it decides anything.
    await scheduler.handle(submitted_event(a_task("late", priority=Priority.HIGH)))
    await scheduler.restart()
    brain = scheduler.service.loops[0].step.__self__
    assert isinstance(brain, Brain)
    assert set(brain.snapshot().pools["default"].arrived) == {"late"}
    await scheduler.published()
    await scheduler.settle()
    # It is seen, takes the place of the one that runs, and the others wait as they did.
    published = await scheduler.published()
    assert [
        each.task_id for each in published if isinstance(each, KillRequested | PreemptionRequested)
    ]
    changed = {each.task_id for each in published if isinstance(each, TaskStateChanged)}
    assert not changed & {f"t{number}" for number in range(1, 6)}


async def test_a_dry_run_knows_what_was_learned_and_changes_nothing() -> None:
    """Other policies are tried on rows of their own, with what the pools learned so far."""
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task("t0")))
    await scheduler.settle()
    brain = scheduler.service.loops[0].step.__self__
    assert isinstance(brain, Brain)
    present = brain.snapshot()
    pool = present.pools["default"]
    pool.history.ended(features_of(pool, present.tasks["t0"]), 700.0)
    other = GroupPolicy("default", version=1, policy="fifo")
    tried = brain.snapshot_with({"default": other})
    assert tried.pools["default"].history.mean_seconds == 700.0
    assert tried.pools["default"].policy is other
    assert decide(tried, scheduler.clock.now()).scans
    assert pool.policy.policy == "timeshare"
    assert decide(present, scheduler.clock.now()).decisions == ()


async def test_the_owner_of_a_silent_run_is_warned_of_lost_work() -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task()))
    for lost in (1, 2):
        await scheduler.settle()
        await scheduler.handle(started_event(await scheduler.task("t1")))
        await scheduler.handle(exited_event(await scheduler.task("t1"), ExitKind.LOST))
        changes = [
            each for each in await scheduler.published() if isinstance(each, TaskStateChanged)
        ]
        assert changes[-1].attempts_without_progress == lost


async def test_old_decisions_are_pruned_in_pages() -> None:
    scheduler = await SchedulerHarness(
        prune_rows_max=2, prune_days_per_hour=0, decisions_keep_seconds=100.0
    ).start()
    await scheduler.handle(*(submitted_event(a_task(f"t{number}")) for number in range(3)))
    await scheduler.settle()
    scheduler.clock.move_to(200)
    prune = next(loop for loop in scheduler.service.loops if loop.name == "prune")
    assert await prune.step(scheduler.epoch) == 0.0
    assert await prune.step(scheduler.epoch) is None


def test_a_dump_reads_back_as_it_was_written() -> None:
    async def dumped() -> tuple[bytes, Snapshot]:
        scheduler = await a_scheduler(nodes=2)
        task = a_task(priority=Priority.LOW)
        await scheduler.handle(
            submitted_event(task), submitted_event(a_task("w", nodes=2, submitted=1))
        )
        await scheduler.settle()
        await scheduler.handle(started_event(await scheduler.task("t1")))
        brain = Brain(scheduler.service.ports, scheduler.settings)
        await brain.lead(scheduler.epoch)
        snapshot = brain.snapshot()
        return replay.dump(snapshot, at(5)), snapshot

    data, snapshot = asyncio.run(dumped())
    read = replay.read_dump(data)
    again = read.snapshot()
    assert again.tasks == {key: replay.redacted(task) for key, task in snapshot.tasks.items()}
    assert again.nodes == snapshot.nodes
    assert decide(again, at(5)) == decide(snapshot, at(5))


def test_a_dump_holds_no_variable_command_template_or_uri() -> None:
    secret = "hunter2"
    task = a_task()
    spec = task.spec.model_copy(
        update={
            "env": {"KEY": secret},
            "working_directory": secret,
            "labels": {"note": secret},
            "pod": PodRequest(image=secret, template=secret),
            "roles": (
                Role(name="w", replicas=1, command=(secret,), env={"A": secret}, image=secret),
            ),
        }
    )
    checkpoint = Checkpoint(no=1, attempt=1, step=7, uri=secret, digest=secret, saved_at=at(0))
    snapshot = Snapshot.of(tasks=[replace(task, spec=spec, checkpoint=checkpoint)])
    data = replay.dump(snapshot, at(5))
    assert secret.encode() not in data
    (kept,) = replay.read_dump(data).tasks
    assert kept.spec.roles[0].replicas == 1
    assert kept.checkpoint is not None
    assert kept.checkpoint.step == 7


def test_a_dump_keeps_the_sizes_of_roles() -> None:
    """Four ranks of one GPU share a node of four; as ranks of whole nodes they would never fit."""
    role = Role(name="w", replicas=4, gpus=1, cpus=1.0, memory_bytes=1, command=("true",))
    board = Role(name="board", replicas=1, auxiliary=True, spread=False, command=("true",))
    gang = a_task("gang", accepted=False, spec=a_spec(roles=(role, board)))
    snapshot = a_snapshot([gang], [a_node("n0", gpus=4, cpus=8.0, memory_bytes=100)])
    again = replay.read_dump(replay.dump(snapshot, at(5))).snapshot()
    plan = decide(again, at(5))
    assert [type(each) for each in plan.decisions] == [Assign]
    assert plan == decide(snapshot, at(5))


def test_a_dump_keeps_that_a_task_waits_for_nodes() -> None:
    spec = a_spec(nodes=2).model_copy(update={"wait_for_nodes": True})
    snapshot = a_snapshot([a_task("gang", accepted=False, spec=spec)], some_nodes(1))
    again = replay.read_dump(replay.dump(snapshot, at(5))).snapshot()
    assert decide(again, at(5)) == decide(snapshot, at(5))


def test_each_field_of_a_task_is_kept_in_dumps_or_left_out_on_purpose() -> None:
    """A new field belongs to one of the two: kept if ``decide`` reads it, and never if it may
    contain a secret."""
    left_out = {"args", "command", "env", "image", "pod", "working_directory", "ports"}
    left_out |= {"debug", "restart", "resume"}
    assert set(Role.model_fields) == {*replay.KEPT_ROLE_FIELDS, *left_out}
    left_out = {"completion", "continues", "contract", "env", "labels", "pod", "secret_env"}
    left_out |= {"working_directory"}
    assert set(TaskSpec.model_fields) == {*replay.KEPT_FIELDS, "roles", *left_out}


def test_a_full_or_broken_dump_folder_stops_nothing(tmp_path: Path) -> None:
    snapshot = Snapshot.of()
    assert replay.write_dump(tmp_path, snapshot, at(0), files_max=0) is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert replay.write_dump(blocked, snapshot, at(0), files_max=5) is None


async def test_nodes_that_come_back_in_a_burst_are_decided_on_together() -> None:
    """Otherwise a run would start on the first node and be preempted when the next is there."""
    scheduler = await SchedulerHarness(node_settle_seconds=0.5).start()
    some = some_nodes(3)
    await scheduler.handle(node_changed(some[0]), inventory_of(*some))
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await scheduler.handle(submitted_event(a_task("gang", priority=Priority.HIGH, nodes=3)))
    assert await scheduler.step() == pytest.approx(0.5)
    scheduler.clock.move_to(0.3)
    await scheduler.handle(node_changed(some[1]))
    scheduler.clock.move_to(0.6)
    await scheduler.handle(node_changed(some[2]))
    await scheduler.settle()
    assert (await scheduler.task("low")).state is TaskState.QUEUED
    scheduler.clock.move_to(1.2)
    await scheduler.settle()
    states = {task.id: task.state for task in (await scheduler.tasks()).values()}
    assert states == {"low": TaskState.QUEUED, "gang": TaskState.STARTING}


async def test_a_steady_stream_of_new_nodes_does_not_delay_decisions_forever() -> None:
    scheduler = await SchedulerHarness(node_settle_seconds=0.5).start()
    some = some_nodes(9)
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    for number, node in enumerate(some):
        scheduler.clock.move_to(number * 0.4)
        await scheduler.handle(node_changed(node), inventory_of(*some))
        await scheduler.settle()
        waits = (await scheduler.task("low")).state is TaskState.QUEUED
        assert waits is (number * 0.4 < 2.0), number


async def test_a_change_of_an_open_node_delays_no_decision() -> None:
    scheduler = await SchedulerHarness(node_settle_seconds=0.5).start()
    (node,) = some_nodes(1)
    await scheduler.handle(node_changed(node), inventory_of(node))
    scheduler.clock.move_to(5)
    await scheduler.handle(submitted_event(a_task("one")))
    await scheduler.handle(
        node_changed(replace(node, version=node.version + 1, labels=(("a", "b"),)))
    )
    await scheduler.settle()
    assert (await scheduler.task("one")).state is TaskState.STARTING
