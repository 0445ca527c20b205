"""Runs from their assignment to the deletion of their objects, on a real API server."""

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
async def harness(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(control_plane, tmp_path) as made:
        yield made


async def nothing_is_left(harness: LauncherOnCluster) -> None:
    await harness.until(lambda: not harness.cluster_harness.left())


async def test_a_run_of_one_pod(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(image="simulated/exits:0"))
    await harness.until_started()
    pod = harness.cluster_harness.pod("task-1-0")
    assert pod["spec"]["nodeName"] == "local-0"
    assert harness.cluster_harness.left() == {
        "pods": ["task-1-0"],
        "configmaps": ["task-1"],
        "secrets": ["task-1"],
    }
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.OK
    assert [rank.code for rank in exited.exit.ranks] == [0]
    await nothing_is_left(harness)


async def test_a_gang_has_names_for_its_ranks(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(4))
    await harness.until_started()
    pods = [harness.cluster_harness.pod(f"task-1-{rank}") for rank in range(4)]
    assert [pod["spec"]["nodeName"] for pod in pods] == ["local-0", "local-1"] * 2
    assert {pod["spec"]["subdomain"] for pod in pods} == {"task-1"}
    assert [pod["spec"]["hostname"] for pod in pods] == [f"task-1-{rank}" for rank in range(4)]
    assert harness.cluster_harness.names("services") == ["task-1"]
    env = {each["name"]: each.get("value") for each in pods[3]["spec"]["containers"][0]["env"]}
    assert env["MASTER_ADDR"] == "task-1-0.task-1"
    assert 20_000 <= int(env["MASTER_PORT"] or 0) <= 27_999
    owners = {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]}
    assert len(owners) == 1
    await harness.handle(a_kill())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await nothing_is_left(harness)
    assert sorted(harness.cluster_harness.pods_created()) == [f"task-1-{rank}" for rank in range(4)]


@pytest.mark.parametrize("code", [3, 75])
async def test_a_failing_rank_ends_the_gang(harness: LauncherOnCluster, code: int) -> None:
    await harness.handle(harness.assignment(2, image=f"simulated/exits:{code}"))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert f"ended with code {code}" in exited.exit.detail
    await nothing_is_left(harness)


async def test_out_of_memory_is_reported(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(image="simulated/oom"))
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.FAILED
    assert "out of memory" in exited.exit.detail


async def test_preempted_with_an_acknowledgement(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(2))
    await harness.until_started()
    await harness.handle(a_preemption())
    for _ in range(20):
        await harness.run_loops()
        await asyncio.sleep(0.05)
    pods = [harness.cluster_harness.pod(f"task-1-{rank}") for rank in range(2)]
    assert all("deletionTimestamp" not in pod["metadata"] for pod in pods)
    acked_at = harness.clock.now()
    await harness.acknowledge("task", 1, 10)
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    [saved] = await harness.published(CheckpointSaved)
    assert exited.checkpoint == saved.checkpoint
    # The grace of a second after the acknowledgement, and the pods are gone.
    assert harness.clock.now() - acked_at >= timedelta(seconds=1)
    assert harness.cluster_harness.names("pods") == []


async def test_a_program_that_leaves_by_itself_after_its_acknowledgement(
    harness: LauncherOnCluster,
) -> None:
    await harness.handle(harness.assignment(image="simulated/exits:75"))
    await harness.until_started()
    await harness.handle(a_preemption())
    await harness.acknowledge("task", 1, 10)
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert [rank.code for rank in exited.exit.ranks] == [75]


async def test_ended_pods_are_kept_for_a_while_unless_the_run_was_preempted(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The pods of a preempted run are deleted at once; those of other ended runs are kept."""
    async with a_launcher(control_plane, tmp_path) as harness:
        harness.cluster_harness.settings = {"kube_pods_keep_seconds": 3600}
        await harness.restart()
        for task in ("leaves", "fails"):
            await harness.handle(harness.assignment(task=task, image="simulated/exits:75"))
            await harness.until_started(task=task)
        await harness.handle(a_preemption(task="leaves"))
        await harness.acknowledge("leaves", 1, 10)
        kinds = [(await harness.until_exited(task=each)).exit.kind for each in ("leaves", "fails")]
        assert kinds == [ExitKind.PREEMPTED, ExitKind.FAILED]
        await harness.until(lambda: harness.cluster_harness.names("pods") == ["fails-1-0"])
        await harness.run_loops(3)
        assert harness.cluster_harness.names("pods") == ["fails-1-0"]
        # A late launch of it finds its run object, which records that it is over.
        assert harness.cluster_harness.names("configmaps") == ["fails-1", "leaves-1"]


async def test_preempted_without_an_acknowledgement(harness: LauncherOnCluster) -> None:
    """The scheduler's deadline is over: the pods get their grace period, and are gone before the
    launcher publishes the end of the run."""
    await harness.handle(harness.assignment(2, image="simulated/stubborn"))
    await harness.until_started()
    await harness.handle(a_preemption())
    await harness.run_loops(5)
    await harness.handle(a_kill())
    asked_at = harness.clock.now()
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    # Kubernetes' times are whole seconds.
    assert harness.clock.now() - asked_at >= timedelta(seconds=1)
    assert harness.cluster_harness.names("pods") == []


async def test_an_acknowledgement_that_comes_late_counts(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment(image="simulated/stubborn"))
    await harness.until_started()
    await harness.handle(a_preemption(), a_kill())
    await harness.run_loops(2)
    reply = await harness.acknowledge("task", 1, 10)
    assert reply.checkpoint is not None
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert exited.checkpoint == reply.checkpoint


async def test_signal_mode(harness: LauncherOnCluster) -> None:
    spec = harness.spec(2, mode=PreemptMode.SIGNAL, signal="TERM")
    await harness.handle(harness.assignment(2, spec=spec))
    await harness.until_started()
    await harness.handle(a_preemption())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.PREEMPTED
    assert [rank.signal for rank in exited.exit.ranks] == [15, 15]


async def test_killed_before_its_assignment_makes_no_pod(harness: LauncherOnCluster) -> None:
    await harness.handle(a_kill())
    await harness.handle(harness.assignment())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await nothing_is_left(harness)
    assert harness.cluster_harness.pods_created() == []


async def test_what_cannot_start_is_taken_back_whole(harness: LauncherOnCluster) -> None:
    """One rank that never starts: the start deadline (a kill) leaves nothing of the gang."""
    await harness.handle(harness.assignment(3, image="simulated/hangs"))
    for _ in range(20):
        await harness.run_loops()
        await asyncio.sleep(0.1)
    assert len(harness.cluster_harness.names("pods")) == 3
    assert await harness.published(RunStarted) == []
    delayed = await harness.published(RunDelayed)
    assert delayed[-1].ranks == 3
    await harness.handle(a_kill())
    exited = await harness.until_exited()
    assert exited.exit.kind is ExitKind.KILLED
    await nothing_is_left(harness)


async def test_a_newer_attempt_takes_the_place_of_the_older(harness: LauncherOnCluster) -> None:
    await harness.handle(harness.assignment())
    await harness.until_started()
    await harness.handle(harness.assignment(attempt=2))
    first = await harness.until_exited()
    assert first.exit.kind is ExitKind.KILLED
    await harness.until_started(attempt=2)
    await harness.handle(a_kill(attempt=2))
    await harness.until_exited(attempt=2)
    assert len(await harness.published(RunExited)) == 2
