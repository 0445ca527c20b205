from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
import structlog

from libs.contracts.messages import (
    CheckpointSaved,
    Contract,
    ExitKind,
    InventoryListed,
    NodeChanged,
    PreemptMode,
    ReadyProbe,
    ReportReady,
    Role,
    RunAssigned,
    RunDelayed,
    RunExited,
    RunStarted,
    StartCondition,
    StartsAfter,
)
from libs.service.loop import Loop, pause
from libs.store.memory_database import Point
from libs.store.port import StoreUnavailableError
from services.launcher.domain import worklist
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import (
    Fault,
    Listing,
    PastRun,
    PortLease,
    ReadyReport,
    Run,
    RunState,
)
from services.launcher.loop import FAILED_STEPS, PAUSE_SECONDS_MIN
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import Script
from services.launcher.runtimes.port import RuntimeDeniedError, RuntimeUnavailableError
from tests.kit.launcher_builders import (
    a_kill,
    a_preemption,
    a_spec,
    an_assignment,
    run_id,
)
from tests.kit.virtual_time import virtually
from tests.services.launcher.launcher_harness import LauncherHarness, limits, running_cluster

RUN = run_id()
ENDLESS = Script(steps=100_000, step_seconds=0.5)


def with_a_harness(
    **more: Any,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test with a harness on virtual time."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(**arguments: Any) -> None:
            async def main() -> None:
                async with running_cluster(LauncherHarness(**more)) as harness:
                    await test(harness, **arguments)

            work: Coroutine[Any, Any, None] = main()
            virtually(work)

        # pytest provides the fixtures of the remaining signature.
        import inspect

        signature = inspect.signature(test)
        parameters = [p for name, p in signature.parameters.items() if name != "harness"]
        run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


async def runs(harness: LauncherHarness) -> list[Run]:
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        return await tx.select(Run)


@with_a_harness()
async def test_the_inventory_is_published(harness: LauncherHarness) -> None:
    nodes = await harness.published(NodeChanged)
    assert [(node.node_id, node.version, node.node.ready) for node in nodes] == [
        (f"local-{number}", 1, True) for number in range(4)
    ]
    [listed] = await harness.published(InventoryListed)
    assert listed.node_ids == tuple(f"local-{number}" for number in range(4))
    await harness.run_loops(5)
    assert len(await harness.published(NodeChanged)) == 4
    assert len(await harness.published(InventoryListed)) == 1


@with_a_harness()
async def test_a_node_that_returns_after_a_commit_without_an_answer_is_listed_again(
    harness: LauncherHarness,
) -> None:
    async def no_answer(point: Point, _schema: str) -> None:
        if point is Point.AFTER_COMMIT:
            raise StoreUnavailableError("struck")

    node = harness.cluster.nodes["local-3"]
    harness.cluster.delete("local-3")
    await harness.launcher.act(harness.epoch)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(harness.platform.database, "fault", no_answer)
        with pytest.raises(StoreUnavailableError):
            await harness.launcher.reconcile(harness.epoch)
    harness.cluster.join(node)
    await harness.launcher.act(harness.epoch)
    with contextlib.suppress(StoreUnavailableError):  # an earlier transaction did commit
        await harness.launcher.reconcile(harness.epoch)
    await harness.launcher.reconcile(harness.epoch)
    listed = await harness.published(InventoryListed)
    assert [len(each.node_ids) for each in listed] == [4, 3, 4]


@with_a_harness()
async def test_a_run_from_assignment_to_its_forgotten_state(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(ranks=3))
    started = await harness.until_started()
    assert len(started.placements) == 3
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.OK
    assert [rank.code for rank in exited.exit.ranks] == [0, 0, 0]
    assert exited.checkpoint is None
    await harness.run_loops(4)
    assert await runs(harness) == []
    assert harness.cluster.runs == {}
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        assert await tx.select(PortLease) == []
        past = await tx.get(PastRun, "task")
    assert past is not None
    assert past.attempt == 1


@with_a_harness(script=ENDLESS)
async def test_preemption_after_the_acknowledgement(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    await harness.handle(a_preemption())
    harness.wanted.add(RUN)
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    [saved] = await harness.published(CheckpointSaved)
    assert exited.checkpoint == saved.checkpoint
    assert saved.checkpoint.no == 1


@with_a_harness(
    script=Script(steps=100_000, step_seconds=0.5, save_every=1, obeys_preemption=False)
)
async def test_a_gang_that_acknowledges_and_stays_is_ended_after_the_grace(
    harness: LauncherHarness,
) -> None:
    await harness.handle(an_assignment())
    await harness.until_started()
    await harness.handle(a_preemption())
    before = harness.clock.now()
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert timedelta(seconds=2) <= exited.exit.exited_at - before < timedelta(seconds=3.5)
    assert exited.checkpoint is not None
    # The event contains everything that the task saved until its exit was recorded.
    assert harness.saved[-1] == (RUN, exited.checkpoint.step)


@with_a_harness(script=ENDLESS)
async def test_a_victim_without_an_acknowledgement_is_killed_on_the_schedulers_request(
    harness: LauncherHarness,
) -> None:
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    await harness.handle(a_preemption())
    await harness.run_loops(50)
    assert await harness.published(RunExited) == []
    await harness.handle(a_kill())
    assert (await harness.until_exited()).exit.kind is ExitKind.KILLED


@with_a_harness(script=ENDLESS)
async def test_signal_mode(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(spec=a_spec(2, mode=PreemptMode.SIGNAL), ranks=2))
    await harness.until_started()
    await harness.handle(a_preemption())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert [rank.signal for rank in exited.exit.ranks] == [10, 10]


@with_a_harness(script=Script(steps=2, step_seconds=0.5, code=3, failing_rank=1))
async def test_a_failing_rank_ends_the_gang(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(ranks=3))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert exited.exit.detail == "rank 1 ended with code 3"


@with_a_harness()
async def test_a_run_that_is_killed_before_its_assignment_never_starts(
    harness: LauncherHarness,
) -> None:
    await harness.handle(a_kill())
    await harness.run_loops(3)
    [request] = await runs(harness)
    assert request.state is RunState.EARLY_REQUEST
    await harness.handle(an_assignment())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    assert harness.cluster.starts == []
    assert await harness.published(RunStarted) == []


@with_a_harness(script=ENDLESS)
async def test_killed_while_its_launch_is_under_way(harness: LauncherHarness) -> None:
    """The kill is recorded after the launch was asked for and before it was carried out."""
    await harness.handle(an_assignment())
    await harness.launcher.reconcile(harness.epoch)
    await harness.handle(a_kill())
    # The two loops may interleave so: the launch is sent while the end is being decided.
    acting = asyncio.ensure_future(harness.launcher.act(harness.epoch))
    await pause(0)
    await harness.launcher.reconcile(harness.epoch)
    await harness.launcher.reconcile(harness.epoch)
    assert await harness.published(RunExited) == []
    await acting
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    assert not any(
        rank.running for run in harness.cluster.runs.values() for rank in run.ranks.values()
    )


@with_a_harness(script=ENDLESS)
async def test_a_node_lost_with_its_power(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    harness.cluster.power_off("local-1")
    lost_at = harness.clock.now()
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert harness.clock.now() - lost_at >= timedelta(seconds=6)
    changed = [
        c for c in await harness.published(NodeChanged, node_id="local-1") if not c.node.ready
    ]
    assert timedelta(seconds=3) <= changed[0].changed_at - lost_at < timedelta(seconds=4)
    harness.cluster.heal("local-1")
    await harness.run_loops(3)
    assert (await harness.published(NodeChanged, node_id="local-1"))[-1].node.ready


@with_a_harness(script=Script(steps=8, step_seconds=0.5))
async def test_a_short_silence_costs_nothing(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    harness.cluster.silence("local-1")
    for _ in range(20):
        await harness.run_loops()
        await pause(0.1)
    harness.cluster.heal("local-1")
    assert (await harness.until_exited()).exit.kind is ExitKind.OK
    assert len(await harness.published(NodeChanged)) == 4


@with_a_harness()
async def test_calls_that_fail_are_tried_again(harness: LauncherHarness) -> None:
    harness.cluster.failure_rate = 0.5
    await harness.handle(*(an_assignment(task=f"task{letter}", ranks=2) for letter in "abcd"))
    for letter in "abcd":
        exited = await harness.until_exited(task=f"task{letter}")
        assert exited.exit.kind is ExitKind.OK
    assert len(harness.cluster.starts) == len(set(harness.cluster.starts)) == 8


@with_a_harness()
async def test_a_failed_action_that_is_no_longer_wanted_is_not_due_for_ever(
    harness: LauncherHarness,
) -> None:
    harness.cluster.failure_rate = 1.0
    await harness.handle(an_assignment())
    await harness.run_loops(4)
    assert harness.launcher._failed
    harness.cluster.failure_rate = 0.0
    await harness.handle(a_kill())
    await harness.until_exited()
    await harness.run_loops(4)
    await pause(10)
    asked = await harness.launcher.reconcile(harness.epoch)
    assert asked is None or asked > 0


@with_a_harness()
async def test_a_timer_that_ended_a_hair_early_is_followed_by_a_pause(
    harness: LauncherHarness,
) -> None:
    harness.cluster.failure_rate = 1.0
    await harness.handle(an_assignment())
    await harness.run_loops(4)
    [(launch, (count, _))] = harness.launcher._failed.items()
    harness.cluster.failure_rate = 0.0
    now = asyncio.get_running_loop().time()
    harness.launcher._failed[launch] = (count, math.nextafter(now, math.inf))
    asked = await harness.launcher.reconcile(harness.epoch)
    # Less than the clock's error would be no pause, and the loop would turn as fast as it can.
    assert asked is not None
    assert asked >= PAUSE_SECONDS_MIN
    await harness.run_loops()
    assert harness.cluster.starts == []
    await pause(asked)
    await harness.run_loops(2)
    assert harness.cluster.starts == [(RUN, 0)]


@with_a_harness(script=ENDLESS)
async def test_a_run_without_a_row_is_ended(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        tx.delete(Run, "task", 1)
    await harness.until(lambda: harness.cluster.runs == {})


async def steps_within(harness: LauncherHarness, seconds: float) -> int:
    """How many steps both loops make by themselves in this time."""
    count = 0

    async def run(loop: Loop) -> None:
        nonlocal count
        while True:
            count += 1
            asked = await loop.step(harness.epoch)
            # Virtual time stands still for a loop that never pauses.
            assert count < 1_000, "the loops turn without pause"
            await loop.wake.wait(loop.tick_seconds if asked is None else asked)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for loop in harness.launcher.loops(1.0, 1.0):
                group.create_task(run(loop))
    return count


@with_a_harness(script=ENDLESS)
async def test_ending_a_run_without_a_row_pauses_between_tries(
    harness: LauncherHarness,
) -> None:
    harness.cluster.kill_seconds_max = 60.0
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        tx.delete(Run, "task", 1)
    assert await steps_within(harness, 5.0) < 50
    await steps_within(harness, 115.0)
    assert harness.cluster.runs == {}


@with_a_harness(script=ENDLESS)
async def test_a_deposed_launcher_that_may_not_fence_a_node_goes_on(
    harness: LauncherHarness,
) -> None:
    await harness.handle(an_assignment())
    await harness.until_started()
    await FakeRuntime(harness.cluster).lead(harness.epoch + 1)
    harness.cluster.silence("local-0")
    harness.launcher._fences = {"local-0"}
    # Its own leadership ends when its next transaction is refused, or when it learns of it.
    await harness.launcher.act(harness.epoch)
    assert "local-0" not in harness.cluster.fenced


@with_a_harness(script=ENDLESS)
async def test_ports_are_leased_apart(harness: LauncherHarness) -> None:
    await harness.handle(*(an_assignment(task=f"task{letter}") for letter in "abc"))
    await harness.run_loops(3)
    ports = {run.ranks[0].order.env["MASTER_PORT"] for run in harness.cluster.runs.values()}
    assert len(ports) == 3


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port that this test has, whose successor nobody has: below those that systems hand out."""
    for port in range(20_000, 30_000, 2):
        with socket.socket() as taken, socket.socket() as successor:
            try:
                taken.bind(("127.0.0.1", port))
                successor.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            successor.close()
            taken.listen()
            yield port
            return
    raise AssertionError("no two ports side by side are free")


@pytest.mark.enable_socket
def test_a_port_of_another_program_is_skipped() -> None:
    async def main() -> None:
        with taken_port() as port:
            ports = PortRange(port, port + 1)
            async with running_cluster(
                LauncherHarness(limits=limits(ports=ports), script=ENDLESS)
            ) as harness:
                await harness.handle(an_assignment())
                await harness.until_started()
                env = harness.cluster.runs[RUN].ranks[0].order.env
                assert env["MASTER_PORT"] == str(port + 1)

    virtually(main())


def ports_of(harness: LauncherHarness, task: str) -> list[str]:
    """The port of each rank, of a run with the contract rank."""
    ranks = harness.cluster.runs[run_id(task)].ranks
    master, *workers = [ranks[rank].order.env for rank in sorted(ranks)]
    return [master["MASTER_PORT"], *(env["WORKER_PORT"] for env in workers)]


@with_a_harness(script=ENDLESS)
async def test_every_rank_has_a_port_of_its_own_where_the_contract_says_so(
    harness: LauncherHarness,
) -> None:
    spec = a_spec(3, contract=Contract.RANK)
    tasks = ("taska", "taskb")
    await harness.handle(*(an_assignment(task=task, spec=spec, ranks=3) for task in tasks))
    await harness.run_loops(3)
    found = [ports_of(harness, task) for task in tasks]
    assert len({port for ports in found for port in ports}) == 6
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        leases = await tx.select(PortLease)
    leased = sorted((each.task_id, each.rank, str(each.port)) for each in leases)
    assert leased == [
        (task, rank, port)
        for task, ports in zip(tasks, found, strict=True)
        for rank, port in enumerate(ports)
    ]


@pytest.mark.enable_socket
def test_only_the_port_of_another_program_is_replaced() -> None:
    async def main() -> None:
        with taken_port() as port:
            ports = PortRange(port - 1, port + 2)
            async with running_cluster(
                LauncherHarness(limits=limits(ports=ports), script=ENDLESS)
            ) as harness:
                spec = a_spec(2, contract=Contract.RANK)
                await harness.handle(an_assignment(spec=spec, ranks=2))
                await harness.until_started()
                assert str(port) not in ports_of(harness, "task")
                async with harness.store.transaction(epoch=harness.epoch) as tx:
                    leases = await tx.select(PortLease)
                assert {each.port for each in leases} == set(map(int, ports_of(harness, "task")))

    virtually(main())


@with_a_harness(script=ENDLESS, limits=limits(ports=PortRange(23_000, 23_002)))
async def test_a_gang_that_waits_for_ports_holds_none(harness: LauncherHarness) -> None:
    spec = a_spec(2, contract=Contract.RANK)
    await harness.handle(
        *(an_assignment(task=task, spec=spec, ranks=2) for task in ("taska", "taskb")),
        an_assignment(task="taskc"),
    )
    await harness.run_loops(5)
    assert {str(run) for run in harness.cluster.runs} == {"taska.1", "taskc.1"}
    await harness.handle(a_kill(task="taska"))
    await harness.until_started(task="taskb")


@with_a_harness(script=ENDLESS, limits=limits(ports=PortRange(23_000, 23_000)))
async def test_without_a_free_port_a_gang_waits(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(task="taska"), an_assignment(task="taskb"))
    await harness.run_loops(5)
    assert len(harness.cluster.runs) == 1
    await harness.handle(a_kill(task="taska"))
    await harness.until_exited(task="taska")
    await harness.until_started(task="taskb")


@with_a_harness(script=Script(steps=3, step_seconds=0.5))
async def test_a_gang_whose_ranks_are_pending_for_a_while(harness: LauncherHarness) -> None:
    harness.cluster.pending_seconds_max = 20.0
    await harness.handle(an_assignment(ranks=3))
    started = await harness.until_started()
    delayed = await harness.published(RunDelayed)
    assert delayed
    assert all(event.noted_at <= started.started_at for event in delayed)
    assert delayed[0].detail == "rank 0 on local-0: not started yet"
    # It is published only when it changes.
    texts = [(event.ranks, event.detail) for event in delayed]
    assert all(one != other for one, other in itertools.pairwise(texts))
    times = [event.noted_at for event in delayed]
    assert all(b - a >= timedelta(seconds=5) for a, b in itertools.pairwise(times))
    assert (await harness.until_exited()).exit.kind is ExitKind.OK


@with_a_harness(script=ENDLESS)
async def test_a_pending_gang_that_is_killed(harness: LauncherHarness) -> None:
    harness.cluster.pending_seconds_max = 50.0
    await harness.handle(an_assignment(ranks=3))
    await harness.run_loops(3)
    await harness.handle(a_kill())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await pause(60)
    assert harness.cluster.starts == []
    await harness.until(lambda: harness.cluster.runs == {})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Fault.OVER_QUOTA, ExitKind.LOST), (Fault.INVALID_POD, ExitKind.FAILED)],
)
def test_a_refused_launch_is_cleaned_up(fault: Fault, kind: ExitKind) -> None:
    async def main() -> None:
        async with running_cluster(LauncherHarness(script=ENDLESS)) as harness:
            harness.cluster.refusal_rate, harness.cluster.refusals = 1.0, (fault,)
            await harness.handle(an_assignment(ranks=3))
            exited = await harness.until_exited()
            assert (exited.exit.kind, exited.exit.detail) == (kind, f"{fault}, says the cluster")
            assert await harness.published(RunStarted) == []
            await harness.until(lambda: harness.cluster.runs == {})
            await harness.run_loops(3)
            assert await runs(harness) == []

    virtually(main())


@with_a_harness(script=ENDLESS, limits=limits(actions_parallel_max=1))
async def test_a_flood_of_launches_does_not_delay_ends(harness: LauncherHarness) -> None:
    await harness.handle(an_assignment(task="first"))
    await harness.until_started(task="first")
    tasks = [f"t{letter}" for letter in "abcdefghijklmnopqrst"]
    await harness.handle(*(an_assignment(task=task) for task in tasks))
    await harness.launcher.reconcile(harness.epoch)
    # It launches some of them before the next scan, and the loop continues at once.
    assert await harness.launcher.act(harness.epoch) == 0.0
    launched = len(harness.cluster.runs) - 1
    assert 0 < launched < 8
    await harness.handle(a_kill(task="first"))
    await harness.launcher.reconcile(harness.epoch)
    await harness.launcher.act(harness.epoch)
    assert not any(rank.running for rank in harness.cluster.runs[run_id("first")].ranks.values())
    for task in tasks:
        await harness.until_started(task=task)


@with_a_harness()
async def test_a_runtime_that_cannot_be_scanned(harness: LauncherHarness) -> None:
    """The launcher concludes nothing and scans again."""
    await harness.handle(an_assignment())
    await harness.until_started()

    async def blind() -> Listing:
        raise RuntimeUnavailableError("the cluster does not answer")

    runtime = harness.launcher.runtime
    harness.launcher.runtime = _Blind(runtime, blind)  # type: ignore[assignment]
    for _ in range(3):
        assert await harness.launcher.act(harness.epoch) == harness.limits.retry_most_seconds
        await harness.launcher.reconcile(harness.epoch)
    assert await harness.published(RunExited) == []
    harness.launcher.runtime = runtime
    assert (await harness.until_exited()).exit.kind is ExitKind.OK


class _Blind:
    """A runtime that cannot be scanned."""

    def __init__(self, runtime: Any, scan: Any) -> None:
        self._runtime, self.list = runtime, scan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


# Crashes: at every call of the runtime, before and after it took effect; at every commit.


async def whole_story(harness: LauncherHarness) -> None:
    """Two attempts of a gang: preempted with a checkpoint, then resumed to its end."""
    harness.script = Script(steps=6, step_seconds=0.3)
    await harness.handle(an_assignment(ranks=2))
    await harness.until_started()
    await harness.handle(a_preemption())
    harness.wanted.add(RUN)
    first = await harness.until_exited()
    assert first.exit.kind is ExitKind.PREEMPTED
    assert first.checkpoint is not None
    await harness.handle(an_assignment(2, ranks=2, resume_from=first.checkpoint))
    second = await harness.until_exited(2)
    assert second.exit.kind is ExitKind.OK
    assert second.checkpoint == first.checkpoint
    for _ in range(6):
        await harness.run_loops()
        await pause(0.2)


async def check_story(harness: LauncherHarness) -> None:
    assert len(await harness.published(RunStarted)) == 2
    assert len(await harness.published(RunExited)) == 2
    assert len(harness.cluster.starts) == len(set(harness.cluster.starts)) == 4
    assert await runs(harness) == []
    assert harness.cluster.runs == {}
    assert harness.saved == [(RUN, step) for _, step in harness.saved]


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_call_of_the_runtime(after: bool) -> None:
    async def main(call: int) -> bool:
        async with running_cluster(LauncherHarness(crash_after=after)) as harness:
            harness.calls_left = call
            await whole_story(harness)
            await check_story(harness)
            return harness.calls_left < 0

    call = 1
    while virtually(main(call)):
        # Every call in the beginning, where most happens; then some.
        call += 1 if call < 40 else 7
    assert call > 40


async def ordered_story(harness: LauncherHarness) -> None:
    """Servers, then workers that wait for them; a kill ends them in the reverse order."""
    harness.script = ENDLESS
    harness.cluster.ready_seconds_max = 0.5
    ready = StartsAfter(role="ps", condition=StartCondition.READY)
    roles = Role(name="ps", replicas=2), Role(name="worker", replicas=2, starts_after=(ready,))
    spec = a_spec(4).model_copy(update={"roles": roles})
    assigned = an_assignment(ranks=4, spec=spec)
    places = tuple(
        place.model_copy(update={"role": "ps" if place.rank < 2 else "worker"})
        for place in assigned.placements
    )
    await harness.handle(assigned.model_copy(update={"placements": places}))
    await harness.until_started()
    ranks = harness.cluster.runs[RUN].ranks
    assert len(ranks) == 2
    await harness.until(lambda: all(rank in ranks for rank in range(4)))
    begun = [ranks[rank].started_at for rank in range(4)]
    assert max(filter(None, begun[:2])) <= min(filter(None, begun[2:]))
    await harness.handle(a_kill())
    ended = await harness.until_exited()
    assert ended.exit.kind is ExitKind.KILLED
    over = [ranks[rank].exited_at for rank in range(4)]
    assert max(filter(None, over[2:])) <= min(filter(None, over[:2]))
    assert len(harness.cluster.starts) == len(set(harness.cluster.starts)) == 4
    assert len(await harness.published(RunStarted)) == 1


async def leaving_story(harness: LauncherHarness) -> None:
    """Servers are asked to leave while the worker waits: rank 0 saves, and no worker starts."""
    harness.cluster.ready_seconds_max = 1e9
    await harness.handle(servers_that_report(2))
    await harness.until_started()
    await harness.handle(a_preemption())
    reply = await harness.acknowledge("task", 1, 7)
    assert reply.checkpoint is not None
    for rank in (0, 1):
        await harness.command(ReportReady(task_id="task", attempt=1, rank=rank))
    ended = await harness.until_exited()
    assert (ended.exit.kind, ended.checkpoint) == (ExitKind.PREEMPTED, reply.checkpoint)
    assert sorted(harness.cluster.starts) == [(RUN, 0), (RUN, 1)]
    assert len(await harness.published(RunStarted)) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("story", [ordered_story, leaving_story])
def test_the_order_of_roles_survives_a_crash_at_any_call_of_the_runtime(
    story: Callable[[LauncherHarness], Awaitable[None]], after: bool
) -> None:
    async def main(call: int) -> bool:
        async with running_cluster(LauncherHarness(crash_after=after)) as harness:
            harness.calls_left = call
            await story(harness)
            return harness.calls_left < 0

    call = 1
    while virtually(main(call)):
        call += 1
    assert call > 6


async def checked_story(harness: LauncherHarness) -> None:
    await whole_story(harness)
    await check_story(harness)


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
@pytest.mark.parametrize("story", [checked_story, ordered_story, leaving_story])
def test_a_crash_at_any_commit_of_the_loop(
    story: Callable[[LauncherHarness], Awaitable[None]], point: Point
) -> None:
    async def main(commit: int) -> bool:
        async with running_cluster(LauncherHarness()) as harness:
            left = commit
            deciding = False

            async def fault(found: Point, _schema: str) -> None:
                nonlocal left
                if deciding and found is point:
                    left -= 1
                    if left == 0:
                        raise StoreUnavailableError("struck")

            async def run_loops(times: int = 1) -> None:
                nonlocal deciding
                for _ in range(times):
                    await harness.launcher.act(harness.epoch)
                    deciding = True
                    try:
                        await harness.launcher.reconcile(harness.epoch)
                    except StoreUnavailableError:
                        await harness.restart()
                    finally:
                        deciding = False

            harness.platform.database.fault = fault
            harness.run_loops = run_loops  # type: ignore[method-assign]
            await story(harness)
            return left <= 0

    commit = 1
    while virtually(main(commit)):
        commit += 1
    # A start, an exit and what lies between at the least.
    assert commit > 3


class ObeysAnother(FakeRuntime):
    """A runtime that may obey a later leader."""

    obeys = False
    asked = 0

    async def list(self) -> Listing:
        if self.obeys:
            return await super().list()
        self.asked += 1
        await pause(0.001)
        # Like a connection that the other side ends.
        self._cluster.changed()
        raise RuntimeDeniedError("epoch 1 is over, 57 commands this node")


async def turn_for_ever(loop: Loop, epoch: int) -> None:
    while True:
        seconds = await loop.step(epoch)
        await loop.wake.wait(loop.tick_seconds if seconds is None else seconds)


@with_a_harness()
async def test_a_runtime_that_obeys_another_launcher_is_retried_and_reported(
    harness: LauncherHarness,
) -> None:
    runtime = ObeysAnother(harness.cluster)
    harness.make_runtime = lambda: runtime
    await harness.restart()
    await harness.handle(an_assignment())
    with structlog.testing.capture_logs() as logs:
        loops = [
            asyncio.ensure_future(turn_for_ever(loop, harness.epoch))
            for loop in harness.launcher.loops(1.0, 5.0)
        ]
        await pause(30)
    assert "57 commands this node" in harness.launcher.problem
    # Every second, as often as the limits of this harness allow.
    assert 10 < runtime.asked < 50
    published = [each["event"] for each in logs if each["log_level"] in ("warning", "error")]
    assert published == ["the runtime obeys another launcher"]
    delayed = await harness.published(RunDelayed)
    assert "57 commands this node" in delayed[-1].detail
    runtime.obeys = True
    await pause(5)
    assert harness.launcher.problem == ""
    assert await harness.published(RunStarted)
    for loop in loops:
        loop.cancel()


REPORTING = Script(steps=100_000, step_seconds=0.5)


def servers_that_report(ranks: int) -> RunAssigned:
    """Servers that report when they are ready, and a worker that waits for that."""
    ready = StartsAfter(role="ps", condition=StartCondition.READY)
    roles = Role(name="ps", replicas=ranks), Role(name="worker", starts_after=(ready,))
    assigned = an_assignment(
        ranks=ranks + 1, spec=a_spec(ranks + 1).model_copy(update={"roles": roles})
    )
    places = tuple(
        place.model_copy(
            update={
                "role": "ps" if place.rank < ranks else "worker",
                "node_id": f"local-{place.rank % 4}",
            }
        )
        for place in assigned.placements
    )
    return assigned.model_copy(update={"placements": places})


@with_a_harness(script=REPORTING)
async def test_many_reports_of_readiness_write_the_row_of_the_run_once(
    harness: LauncherHarness,
) -> None:
    harness.cluster.ready_seconds_max = 1e9
    await harness.handle(servers_that_report(50))
    await harness.until_started()
    for _ in range(3):
        await harness.run_loops()
        await pause(0.1)
    written: list[Run] = []
    harness.store.observe(lambda delta: written.extend(r for r in delta.put if type(r) is Run))
    for rank in range(50):
        await harness.command(ReportReady(task_id="task", attempt=1, rank=rank))
        await harness.launcher.reconcile(harness.epoch)
    assert written == []
    # What was reported outlives the launcher.
    await harness.restart()
    await harness.until(lambda: 50 in harness.cluster.runs[RUN].ranks)
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        assert await tx.select(ReadyReport) == []
    [run] = await runs(harness)
    assert run.ready_ranks == tuple(range(50))


@with_a_harness(script=REPORTING)
async def test_a_report_for_a_run_that_is_over_is_dropped(harness: LauncherHarness) -> None:
    harness.cluster.ready_seconds_max = 1e9
    await harness.handle(servers_that_report(2))
    await harness.until_started()
    await harness.command(ReportReady(task_id="task", attempt=1, rank=0))
    await harness.handle(a_kill())
    await harness.until_exited()
    for _ in range(6):
        await harness.run_loops()
        await pause(0.1)
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        assert await tx.select(ReadyReport) == []


@with_a_harness(script=REPORTING)
async def test_what_later_roles_wait_for_is_published_until_they_run(
    harness: LauncherHarness,
) -> None:
    harness.cluster.ready_seconds_max = 1e9
    await harness.handle(servers_that_report(2))
    started = await harness.until_started()
    assert len(started.placements) == 3
    await pause(6)
    await harness.run_loops(3)
    *_, delayed = await harness.published(RunDelayed)
    assert delayed.detail == "role worker waits until role ps is ready (0 of 2 ranks so far)"
    assert (delayed.ranks, delayed.running) == (1, True)
    for rank in (0, 1):
        await harness.command(ReportReady(task_id="task", attempt=1, rank=rank))
    await harness.until(lambda: 2 in harness.cluster.runs[RUN].ranks)
    await harness.run_loops(4)
    *_, cleared = await harness.published(RunDelayed)
    assert (cleared.detail, cleared.ranks, cleared.running) == ("", 0, True)


@with_a_harness(script=REPORTING)
async def test_a_new_leader_repeats_no_report_of_a_delay_and_publishes_its_end(
    harness: LauncherHarness,
) -> None:
    harness.cluster.ready_seconds_max = 1e9
    await harness.handle(servers_that_report(2))
    await harness.until_started()
    await pause(6)
    await harness.run_loops(3)
    reports = await harness.published(RunDelayed)
    await harness.restart()
    await pause(6)
    await harness.run_loops(3)
    assert await harness.published(RunDelayed) == reports
    for rank in (0, 1):
        await harness.command(ReportReady(task_id="task", attempt=1, rank=rank))
    await harness.until(lambda: 2 in harness.cluster.runs[RUN].ranks)
    await harness.run_loops(4)
    *_, cleared = await harness.published(RunDelayed)
    assert (cleared.detail, cleared.noted_at > reports[-1].noted_at) == ("", True)


@with_a_harness()
async def test_a_defect_in_the_step_of_one_run_stops_only_that_run(
    harness: LauncherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, broken = worklist.step, {"broken"}

    def step(run: Run, *rest: Any) -> worklist.Step:
        if run.task_id in broken:
            raise StopIteration
        return honest(run, *rest)

    monkeypatch.setattr(worklist, "step", step)
    before = FAILED_STEPS._value.get()  # type: ignore[attr-defined]
    await harness.handle(an_assignment().model_copy(update={"task_id": "broken"}))
    await harness.handle(an_assignment())
    with structlog.testing.capture_logs() as logs:
        await harness.until_started()
    assert "broken" not in {each.task_id for each in await harness.published(RunStarted)}
    assert FAILED_STEPS._value.get() > before  # type: ignore[attr-defined]
    assert {each["run"] for each in logs if "cannot be evaluated" in each["event"]} == {"broken.1"}
    broken.clear()
    await asyncio.sleep(60)
    await harness.run_loops(5)
    assert "broken" in {each.task_id for each in await harness.published(RunStarted)}


@with_a_harness()
async def test_time_in_which_no_launcher_runs_ends_no_run(harness: LauncherHarness) -> None:
    """The platform is down while an awaited program becomes ready, for longer than its time."""
    harness.script = ENDLESS
    probe = ReadyProbe(within_seconds=15)
    roles = (
        Role(name="ps", replicas=1, command=("x",), ready=probe),
        Role(
            name="it",
            replicas=1,
            command=("x",),
            starts_after=(StartsAfter(role="ps", condition=StartCondition.READY),),
        ),
    )
    spec = a_spec(2).model_copy(update={"roles": roles})
    places = tuple(
        place.model_copy(update={"role": role.name, "role_index": 0})
        for place, role in zip(an_assignment(ranks=2).placements, roles, strict=True)
    )
    assigned = an_assignment(ranks=2)
    await harness.handle(assigned.model_copy(update={"spec": spec, "placements": places}))
    await harness.until_started()
    await asyncio.sleep(1000)
    await harness.restart()
    await harness.run_loops(5)
    await asyncio.sleep(10)
    await harness.command(ReportReady(task_id="task", attempt=1, rank=0))
    await asyncio.sleep(1)
    await harness.run_loops(10)
    (run,) = await runs(harness)
    assert (run.state, run.ready_ranks) == (RunState.RUNNING, (0,))
    assert {rank for each in harness.cluster.runs.values() for rank in each.ranks} == {0, 1}
