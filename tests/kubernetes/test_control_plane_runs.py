"""Runs from their assignment to oblivion, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.messages import (
    CheckpointSaved,
    ExitKind,
    PreemptMode,
    RunDelayed,
    RunExited,
    RunStarted,
)
from tests.kit.launcher_builders import a_kill, a_preemption
from tests.kubernetes.launcher_on_cluster import LauncherOnCluster, a_launcher
from tools.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes


@pytest_asyncio.fixture
async def world(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(control_plane, tmp_path) as made:
        yield made


async def nothing_is_left(world: LauncherOnCluster) -> None:
    await world.until(lambda: not world.cluster_harness.left())


async def test_a_run_of_one_pod(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(image="simulated/exits:0"))
    await world.until_started()
    pod = world.cluster_harness.pod("task-1-0")
    assert pod["spec"]["nodeName"] == "local-0"
    assert world.cluster_harness.left() == {
        "pods": ["task-1-0"],
        "configmaps": ["task-1"],
        "secrets": ["task-1"],
    }
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.OK
    assert [rank.code for rank in exited.exit.ranks] == [0]
    await nothing_is_left(world)


async def test_a_gang_has_names_for_its_ranks(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(4))
    await world.until_started()
    pods = [world.cluster_harness.pod(f"task-1-{rank}") for rank in range(4)]
    assert [pod["spec"]["nodeName"] for pod in pods] == ["local-0", "local-1"] * 2
    assert {pod["spec"]["subdomain"] for pod in pods} == {"task-1"}
    assert [pod["spec"]["hostname"] for pod in pods] == [f"task-1-{rank}" for rank in range(4)]
    assert world.cluster_harness.names("services") == ["task-1"]
    env = {each["name"]: each.get("value") for each in pods[3]["spec"]["containers"][0]["env"]}
    assert env["MASTER_ADDR"] == "task-1-0.task-1"
    assert 20_000 <= int(env["MASTER_PORT"] or 0) <= 27_999
    owners = {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]}
    assert len(owners) == 1
    await world.handle(a_kill())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await nothing_is_left(world)
    assert sorted(world.cluster_harness.pods_created()) == [f"task-1-{rank}" for rank in range(4)]


@pytest.mark.parametrize("code", [3, 75])
async def test_a_failing_rank_ends_the_gang(world: LauncherOnCluster, code: int) -> None:
    await world.handle(world.assignment(2, image=f"simulated/exits:{code}"))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert f"ended with code {code}" in exited.exit.detail
    await nothing_is_left(world)


async def test_out_of_memory_is_said(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(image="simulated/oom"))
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert "out of memory" in exited.exit.detail


async def test_preempted_with_an_acknowledgement(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(2))
    await world.until_started()
    await world.handle(a_preemption())
    for _ in range(20):
        await world.run_loops()
        await asyncio.sleep(0.05)
    pods = [world.cluster_harness.pod(f"task-1-{rank}") for rank in range(2)]
    assert all("deletionTimestamp" not in pod["metadata"] for pod in pods)
    acked_at = world.clock.now()
    await world.acknowledge("task", 1, 10)
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    [saved] = await world.published(CheckpointSaved)
    assert exited.checkpoint == saved.checkpoint
    # The grace of a second after the acknowledgement, and the pods are gone.
    assert world.clock.now() - acked_at >= timedelta(seconds=1)
    assert world.cluster_harness.names("pods") == []


async def test_a_program_that_leaves_by_itself_after_its_acknowledgement(
    world: LauncherOnCluster,
) -> None:
    await world.handle(world.assignment(image="simulated/exits:75"))
    await world.until_started()
    await world.handle(a_preemption())
    await world.acknowledge("task", 1, 10)
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert [rank.code for rank in exited.exit.ranks] == [75]


async def test_pods_stay_for_a_while_unless_they_made_room(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """What a preempted run leaves is deleted at once; what ended by itself can be looked at."""
    async with a_launcher(control_plane, tmp_path) as world:
        world.cluster_harness.settings = {"kube_pods_keep_seconds": 3600}
        await world.restart()
        for task in ("leaves", "fails"):
            await world.handle(world.assignment(task=task, image="simulated/exits:75"))
            await world.until_started(task=task)
        await world.handle(a_preemption(task="leaves"))
        await world.acknowledge("leaves", 1, 10)
        kinds = [(await world.until_exited(task=each)).exit.kind for each in ("leaves", "fails")]
        assert kinds == [ExitKind.PREEMPTED, ExitKind.FAILED]
        await world.until(lambda: world.cluster_harness.names("pods") == ["fails-1-0"])
        await world.run_loops(3)
        assert world.cluster_harness.names("pods") == ["fails-1-0"]
        # A late launch of it finds its run object, which says that it was over.
        assert world.cluster_harness.names("configmaps") == ["fails-1", "leaves-1"]


async def test_preempted_without_an_acknowledgement(world: LauncherOnCluster) -> None:
    """The scheduler's deadline is over: the pods have their grace, and are gone before it is
    said that the run is over."""
    await world.handle(world.assignment(2, image="simulated/stubborn"))
    await world.until_started()
    await world.handle(a_preemption())
    await world.run_loops(5)
    await world.handle(a_kill())
    asked_at = world.clock.now()
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    # Moments of Kubernetes are whole seconds.
    assert world.clock.now() - asked_at >= timedelta(seconds=1)
    assert world.cluster_harness.names("pods") == []


async def test_an_acknowledgement_that_comes_late_counts(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment(image="simulated/stubborn"))
    await world.until_started()
    await world.handle(a_preemption(), a_kill())
    await world.run_loops(2)
    reply = await world.acknowledge("task", 1, 10)
    assert reply.checkpoint is not None
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert exited.checkpoint == reply.checkpoint


async def test_signal_mode(world: LauncherOnCluster) -> None:
    spec = world.spec(2, mode=PreemptMode.SIGNAL, signal="TERM")
    await world.handle(world.assignment(2, spec=spec))
    await world.until_started()
    await world.handle(a_preemption())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert [rank.signal for rank in exited.exit.ranks] == [15, 15]


async def test_killed_before_its_assignment_makes_no_pod(world: LauncherOnCluster) -> None:
    await world.handle(a_kill())
    await world.handle(world.assignment())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await nothing_is_left(world)
    assert world.cluster_harness.pods_created() == []


async def test_what_cannot_start_is_taken_back_whole(world: LauncherOnCluster) -> None:
    """One rank that never starts: the start deadline (a kill) leaves nothing of the gang."""
    await world.handle(world.assignment(3, image="simulated/hangs"))
    for _ in range(20):
        await world.run_loops()
        await asyncio.sleep(0.1)
    assert len(world.cluster_harness.names("pods")) == 3
    assert await world.published(RunStarted) == []
    delayed = await world.published(RunDelayed)
    assert delayed[-1].ranks == 3
    await world.handle(a_kill())
    exited = await world.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await nothing_is_left(world)


async def test_a_newer_attempt_takes_the_place_of_the_older(world: LauncherOnCluster) -> None:
    await world.handle(world.assignment())
    await world.until_started()
    await world.handle(world.assignment(attempt=2))
    first = await world.until_exited()
    assert first.exit.kind is ExitKind.KILLED
    await world.until_started(attempt=2)
    await world.handle(a_kill(attempt=2))
    await world.until_exited(attempt=2)
    assert len(await world.published(RunExited)) == 2
