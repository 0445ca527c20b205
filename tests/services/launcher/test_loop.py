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
    ExitKind,
    InventoryListed,
    NodeChanged,
    PreemptMode,
    RunDelayed,
    RunExited,
    RunStarted,
)
from libs.service.loop import Loop, pause
from libs.store.memory_database import Point
from libs.store.port import StoreUnavailableError
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import Fault, Listing, PastRun, PortLease, Run, RunState
from services.launcher.loop import PAUSE_SECONDS_MIN
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import Script
from services.launcher.runtimes.port import RuntimeDeniedError, RuntimeUnavailableError
from tests.harness.virtual_time import virtually
from tests.services.launcher.launcher_harness import World, limits, playing
from tests.services.launcher.makers import (
    a_kill,
    a_preemption,
    a_spec,
    an_assignment,
    run_id,
)

RUN = run_id()
ENDLESS = Script(steps=100_000, step_seconds=0.5)


def in_a_world(
    **more: Any,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test in a world on virtual time."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def run(**arguments: Any) -> None:
            async def main() -> None:
                async with playing(World(**more)) as world:
                    await test(world, **arguments)

            work: Coroutine[Any, Any, None] = main()
            virtually(work)

        # pytest asks for what is left of the signature.
        import inspect

        signature = inspect.signature(test)
        parameters = [p for name, p in signature.parameters.items() if name != "world"]
        run.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


async def runs(world: World) -> list[Run]:
    async with world.store.transaction(epoch=world.epoch) as tx:
        return await tx.select(Run)


@in_a_world()
async def test_the_inventory_is_told(world: World) -> None:
    nodes = await world.said(NodeChanged)
    assert [(node.node_id, node.version, node.node.ready) for node in nodes] == [
        (f"local-{number}", 1, True) for number in range(4)
    ]
    [listed] = await world.said(InventoryListed)
    assert listed.node_ids == tuple(f"local-{number}" for number in range(4))
    await world.turn(5)
    assert len(await world.said(NodeChanged)) == 4
    assert len(await world.said(InventoryListed)) == 1


@in_a_world()
async def test_a_run_from_assignment_to_oblivion(world: World) -> None:
    await world.tell(an_assignment(ranks=3))
    started = await world.until_started()
    assert len(started.placements) == 3
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.OK
    assert [rank.code for rank in exited.exit.ranks] == [0, 0, 0]
    assert exited.checkpoint is None
    await world.turn(4)
    assert await runs(world) == []
    assert world.cluster.runs == {}
    async with world.store.transaction(epoch=world.epoch) as tx:
        assert await tx.select(PortLease) == []
        past = await tx.get(PastRun, "task")
    assert past is not None
    assert past.attempt == 1


@in_a_world(script=ENDLESS)
async def test_preemption_after_the_acknowledgement(world: World) -> None:
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    await world.tell(a_preemption())
    world.wanted.add(RUN)
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    [saved] = await world.said(CheckpointSaved)
    assert exited.checkpoint == saved.checkpoint
    assert saved.checkpoint.no == 1


@in_a_world(script=Script(steps=100_000, step_seconds=0.5, save_every=1, obeys_preemption=False))
async def test_a_gang_that_acknowledges_and_stays_is_ended_after_the_grace(world: World) -> None:
    await world.tell(an_assignment())
    await world.until_started()
    await world.tell(a_preemption())
    before = world.clock.now()
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert timedelta(seconds=2) <= exited.exit.exited_at - before < timedelta(seconds=3.5)
    assert exited.checkpoint is not None
    # Everything it saved until its exit was recorded is in what is said.
    assert world.saved[-1] == (RUN, exited.checkpoint.step)


@in_a_world(script=ENDLESS)
async def test_a_silent_victim_is_killed_when_the_scheduler_says_so(world: World) -> None:
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    await world.tell(a_preemption())
    await world.turn(50)
    assert await world.said(RunExited) == []
    await world.tell(a_kill())
    assert (await world.until_exited()).exit.kind is ExitKind.KILLED


@in_a_world(script=ENDLESS)
async def test_signal_mode(world: World) -> None:
    await world.tell(an_assignment(spec=a_spec(2, mode=PreemptMode.SIGNAL), ranks=2))
    await world.until_started()
    await world.tell(a_preemption())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert [rank.signal for rank in exited.exit.ranks] == [10, 10]


@in_a_world(script=Script(steps=2, step_seconds=0.5, code=3, failing_rank=1))
async def test_a_failing_rank_ends_the_gang(world: World) -> None:
    await world.tell(an_assignment(ranks=3))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert exited.exit.detail == "rank 1 ended with code 3"


@in_a_world()
async def test_killed_before_it_was_assigned(world: World) -> None:
    await world.tell(a_kill())
    await world.turn(3)
    [stone] = await runs(world)
    assert stone.state is RunState.EARLY_REQUEST
    await world.tell(an_assignment())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    assert world.cluster.starts == []
    assert await world.said(RunStarted) == []


@in_a_world(script=ENDLESS)
async def test_killed_while_its_launch_is_under_way(world: World) -> None:
    """The kill is recorded after the launch was asked for and before it was carried out."""
    await world.tell(an_assignment())
    await world.launcher.reconcile(world.epoch)
    await world.tell(a_kill())
    # As the two loops may fall: the launch goes out while the end is being decided.
    acting = asyncio.ensure_future(world.launcher.act(world.epoch))
    await pause(0)
    await world.launcher.reconcile(world.epoch)
    await world.launcher.reconcile(world.epoch)
    assert await world.said(RunExited) == []
    await acting
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    assert not any(
        rank.running for run in world.cluster.runs.values() for rank in run.ranks.values()
    )


@in_a_world(script=ENDLESS)
async def test_a_node_lost_with_its_power(world: World) -> None:
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    world.cluster.power_off("local-1")
    lost_at = world.clock.now()
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.LOST
    assert world.clock.now() - lost_at >= timedelta(seconds=6)
    changed = [c for c in await world.said(NodeChanged, node_id="local-1") if not c.node.ready]
    assert timedelta(seconds=3) <= changed[0].changed_at - lost_at < timedelta(seconds=4)
    world.cluster.heal("local-1")
    await world.turn(3)
    assert (await world.said(NodeChanged, node_id="local-1"))[-1].node.ready


@in_a_world(script=Script(steps=8, step_seconds=0.5))
async def test_a_short_silence_costs_nothing(world: World) -> None:
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    world.cluster.silence("local-1")
    for _ in range(20):
        await world.turn()
        await pause(0.1)
    world.cluster.heal("local-1")
    assert (await world.until_exited()).exit.kind is ExitKind.OK
    assert len(await world.said(NodeChanged)) == 4


@in_a_world()
async def test_calls_that_fail_are_tried_again(world: World) -> None:
    world.cluster.failure_rate = 0.5
    await world.tell(*(an_assignment(task=f"task{letter}", ranks=2) for letter in "abcd"))
    for letter in "abcd":
        exited = await world.until_exited(task=f"task{letter}")
        assert exited.exit.kind is ExitKind.OK
    assert len(world.cluster.starts) == len(set(world.cluster.starts)) == 8


@in_a_world()
async def test_a_failed_action_that_is_no_longer_wanted_is_not_due_for_ever(world: World) -> None:
    world.cluster.failure_rate = 1.0
    await world.tell(an_assignment())
    await world.turn(4)
    assert world.launcher._failed
    world.cluster.failure_rate = 0.0
    await world.tell(a_kill())
    await world.until_exited()
    await world.turn(4)
    await pause(10)
    asked = await world.launcher.reconcile(world.epoch)
    assert asked is None or asked > 0


@in_a_world()
async def test_a_timer_that_ended_a_hair_early_is_followed_by_a_pause(world: World) -> None:
    world.cluster.failure_rate = 1.0
    await world.tell(an_assignment())
    await world.turn(4)
    [(launch, (count, _))] = world.launcher._failed.items()
    world.cluster.failure_rate = 0.0
    now = asyncio.get_running_loop().time()
    world.launcher._failed[launch] = (count, math.nextafter(now, math.inf))
    asked = await world.launcher.reconcile(world.epoch)
    # Less than the clock's error would be no pause, and the loop would turn as fast as it can.
    assert asked is not None
    assert asked >= PAUSE_SECONDS_MIN
    await world.turn()
    assert world.cluster.starts == []
    await pause(asked)
    await world.turn(2)
    assert world.cluster.starts == [(RUN, 0)]


@in_a_world(script=ENDLESS)
async def test_what_nobody_knows_is_ended(world: World) -> None:
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    async with world.store.transaction(epoch=world.epoch) as tx:
        tx.delete(Run, "task", 1)
    await world.until(lambda: world.cluster.runs == {})


async def steps_within(world: World, seconds: float) -> int:
    """How many steps both loops make by themselves in this time."""
    count = 0

    async def run(loop: Loop) -> None:
        nonlocal count
        while True:
            count += 1
            asked = await loop.step(world.epoch)
            # Virtual time stands still for a loop that never pauses.
            assert count < 1_000, "the loops turn without pause"
            await loop.wake.wait(loop.tick_seconds if asked is None else asked)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for loop in world.launcher.loops(1.0, 1.0):
                group.create_task(run(loop))
    return count


@in_a_world(script=ENDLESS)
async def test_what_nobody_knows_is_not_ended_without_pause_while_it_dies(world: World) -> None:
    world.cluster.kill_seconds_max = 60.0
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    async with world.store.transaction(epoch=world.epoch) as tx:
        tx.delete(Run, "task", 1)
    assert await steps_within(world, 5.0) < 50
    await steps_within(world, 115.0)
    assert world.cluster.runs == {}


@in_a_world(script=ENDLESS)
async def test_a_deposed_launcher_that_may_not_fence_a_node_goes_on(world: World) -> None:
    await world.tell(an_assignment())
    await world.until_started()
    await FakeRuntime(world.cluster).lead(world.epoch + 1)
    world.cluster.silence("local-0")
    world.launcher._fences = {"local-0"}
    # Its own leadership ends when its next transaction is refused, or when it learns of it.
    await world.launcher.act(world.epoch)
    assert "local-0" not in world.cluster.fenced


@in_a_world(script=ENDLESS)
async def test_ports_are_leased_apart(world: World) -> None:
    await world.tell(*(an_assignment(task=f"task{letter}") for letter in "abc"))
    await world.turn(3)
    ports = {run.ranks[0].order.env["MASTER_PORT"] for run in world.cluster.runs.values()}
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
def test_a_port_that_somebody_else_has_is_passed_over() -> None:
    async def main() -> None:
        with taken_port() as port:
            ports = PortRange(port, port + 1)
            async with playing(World(limits=limits(ports=ports), script=ENDLESS)) as world:
                await world.tell(an_assignment())
                await world.until_started()
                env = world.cluster.runs[RUN].ranks[0].order.env
                assert env["MASTER_PORT"] == str(port + 1)

    virtually(main())


@in_a_world(script=ENDLESS, limits=limits(ports=PortRange(23_000, 23_000)))
async def test_without_a_free_port_a_gang_waits(world: World) -> None:
    await world.tell(an_assignment(task="taska"), an_assignment(task="taskb"))
    await world.turn(5)
    assert len(world.cluster.runs) == 1
    await world.tell(a_kill(task="taska"))
    await world.until_exited(task="taska")
    await world.until_started(task="taskb")


@in_a_world(script=Script(steps=3, step_seconds=0.5))
async def test_a_gang_whose_ranks_are_pending_for_a_while(world: World) -> None:
    world.cluster.pending_seconds_max = 20.0
    await world.tell(an_assignment(ranks=3))
    started = await world.until_started()
    delayed = await world.said(RunDelayed)
    assert delayed
    assert all(event.noted_at <= started.started_at for event in delayed)
    assert delayed[0].detail == "rank 0 on local-0: not started yet"
    # Said only when it changes, and not all the time.
    texts = [(event.ranks, event.detail) for event in delayed]
    assert all(one != other for one, other in itertools.pairwise(texts))
    times = [event.noted_at for event in delayed]
    assert all(b - a >= timedelta(seconds=5) for a, b in itertools.pairwise(times))
    assert (await world.until_exited()).exit.kind is ExitKind.OK


@in_a_world(script=ENDLESS)
async def test_a_pending_gang_that_is_killed(world: World) -> None:
    world.cluster.pending_seconds_max = 50.0
    await world.tell(an_assignment(ranks=3))
    await world.turn(3)
    await world.tell(a_kill())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await pause(60)
    assert world.cluster.starts == []
    await world.until(lambda: world.cluster.runs == {})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Fault.OVER_QUOTA, ExitKind.LOST), (Fault.INVALID_POD, ExitKind.FAILED)],
)
def test_a_launch_that_is_refused_is_taken_back(fault: Fault, kind: ExitKind) -> None:
    async def main() -> None:
        async with playing(World(script=ENDLESS)) as world:
            world.cluster.refusal_rate, world.cluster.refusals = 1.0, (fault,)
            await world.tell(an_assignment(ranks=3))
            exited = await world.until_exited()
            assert (exited.exit.kind, exited.exit.detail) == (kind, f"{fault}, says the cluster")
            assert await world.said(RunStarted) == []
            await world.until(lambda: world.cluster.runs == {})
            await world.turn(3)
            assert await runs(world) == []

    virtually(main())


@in_a_world(script=ENDLESS, limits=limits(actions_parallel_max=1))
async def test_a_flood_of_launches_holds_up_no_end(world: World) -> None:
    await world.tell(an_assignment(task="first"))
    await world.until_started(task="first")
    tasks = [f"t{letter}" for letter in "abcdefghijklmnopqrst"]
    await world.tell(*(an_assignment(task=task) for task in tasks))
    await world.launcher.reconcile(world.epoch)
    # Some of them before the next look, and the loop asks to go on at once.
    assert await world.launcher.act(world.epoch) == 0.0
    launched = len(world.cluster.runs) - 1
    assert 0 < launched < 8
    await world.tell(a_kill(task="first"))
    await world.launcher.reconcile(world.epoch)
    await world.launcher.act(world.epoch)
    assert not any(rank.running for rank in world.cluster.runs[run_id("first")].ranks.values())
    for task in tasks:
        await world.until_started(task=task)


@in_a_world()
async def test_a_runtime_that_cannot_be_looked_at(world: World) -> None:
    """Nothing is concluded, and it is looked at again."""
    await world.tell(an_assignment())
    await world.until_started()

    async def blind() -> Listing:
        raise RuntimeUnavailableError("the cluster does not answer")

    runtime = world.launcher.runtime
    world.launcher.runtime = _Blind(runtime, blind)  # type: ignore[assignment]
    for _ in range(3):
        assert await world.launcher.act(world.epoch) == world.limits.retry_most_seconds
        await world.launcher.reconcile(world.epoch)
    assert await world.said(RunExited) == []
    world.launcher.runtime = runtime
    assert (await world.until_exited()).exit.kind is ExitKind.OK


class _Blind:
    """A runtime that cannot be looked at."""

    def __init__(self, runtime: Any, look: Any) -> None:
        self._runtime, self.list = runtime, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


# Crashes: at every call of the runtime, before and after it took effect; at every commit.


async def whole_story(world: World) -> None:
    """Two attempts of a gang: preempted with a checkpoint, then resumed to its end."""
    world.script = Script(steps=6, step_seconds=0.3)
    await world.tell(an_assignment(ranks=2))
    await world.until_started()
    await world.tell(a_preemption())
    world.wanted.add(RUN)
    first = await world.until_exited()
    assert first.exit.kind is ExitKind.PREEMPTED
    assert first.checkpoint is not None
    await world.tell(an_assignment(2, ranks=2, resume_from=first.checkpoint))
    second = await world.until_exited(2)
    assert second.exit.kind is ExitKind.OK
    assert second.checkpoint == first.checkpoint
    for _ in range(6):
        await world.turn()
        await pause(0.2)


async def check_story(world: World) -> None:
    assert len(await world.said(RunStarted)) == 2
    assert len(await world.said(RunExited)) == 2
    assert len(world.cluster.starts) == len(set(world.cluster.starts)) == 4
    assert await runs(world) == []
    assert world.cluster.runs == {}
    assert world.saved == [(RUN, step) for _, step in world.saved]


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_call_of_the_runtime(after: bool) -> None:
    async def main(call: int) -> bool:
        async with playing(World(crash_after=after)) as world:
            world.calls_left = call
            await whole_story(world)
            await check_story(world)
            return world.calls_left < 0

    call = 1
    while virtually(main(call)):
        # Every call in the beginning, where most happens; then some.
        call += 1 if call < 40 else 7
    assert call > 40


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
def test_a_crash_at_any_commit_of_the_loop(point: Point) -> None:
    async def main(commit: int) -> bool:
        async with playing(World()) as world:
            left = commit
            deciding = False

            async def fault(found: Point, _schema: str) -> None:
                nonlocal left
                if deciding and found is point:
                    left -= 1
                    if left == 0:
                        raise StoreUnavailableError("struck")

            async def turn(times: int = 1) -> None:
                nonlocal deciding
                for _ in range(times):
                    await world.launcher.act(world.epoch)
                    deciding = True
                    try:
                        await world.launcher.reconcile(world.epoch)
                    except StoreUnavailableError:
                        await world.restart()
                    finally:
                        deciding = False

            world.database.fault = fault
            world.turn = turn  # type: ignore[method-assign]
            await whole_story(world)
            await check_story(world)
            return left <= 0

    commit = 1
    while virtually(main(commit)):
        commit += 1
    # Two starts, two exits, two oblivions at the least.
    assert commit > 6


class ObeysAnother(FakeRuntime):
    """A runtime that may obey a later leader."""

    obeys = False
    asked = 0

    async def list(self) -> Listing:
        if self.obeys:
            return await super().list()
        self.asked += 1
        await pause(0.001)
        # As a connection that the other side ends.
        self._cluster.changed()
        raise RuntimeDeniedError("epoch 1 is over, 57 commands this node")


async def turn_for_ever(loop: Loop, epoch: int) -> None:
    while True:
        seconds = await loop.step(epoch)
        await loop.wake.wait(loop.tick_seconds if seconds is None else seconds)


@in_a_world()
async def test_a_runtime_that_obeys_another_launcher_is_asked_now_and_then_and_all_hear_of_it(
    world: World,
) -> None:
    runtime = ObeysAnother(world.cluster)
    world.handle = lambda: runtime
    await world.restart()
    await world.tell(an_assignment())
    with structlog.testing.capture_logs() as logs:
        loops = [
            asyncio.ensure_future(turn_for_ever(loop, world.epoch))
            for loop in world.launcher.loops(1.0, 5.0)
        ]
        await pause(30)
    assert "57 commands this node" in world.launcher.problem
    # Every second, the most that this world's limits say.
    assert 10 < runtime.asked < 50
    said = [each["event"] for each in logs if each["log_level"] in ("warning", "error")]
    assert said == ["the runtime obeys another launcher"]
    delayed = await world.said(RunDelayed)
    assert "57 commands this node" in delayed[-1].detail
    runtime.obeys = True
    await pause(5)
    assert world.launcher.problem == ""
    assert await world.said(RunStarted)
    for loop in loops:
        loop.cancel()
