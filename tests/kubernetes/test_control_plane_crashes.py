"""The launcher dies at every call of a launch and of a deletion; another one takes over.

At the end each rank had exactly one pod ever, or the run is over and nothing of it is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.contracts.messages import ExitKind, RunExited, RunStarted
from tests.kit.launcher_builders import a_kill
from tests.kubernetes.launcher_on_cluster import LauncherOnCluster, a_launcher
from tools.cluster.control_plane import ControlPlane

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600, func_only=True)]

RANKS = 2
# More calls than the longest test makes; the tests check that.
CALLS_MAX = 60


@pytest_asyncio.fixture
async def harness(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LauncherOnCluster]:
    async with a_launcher(control_plane, tmp_path) as made:
        yield made


def name(call: int) -> str:
    """A task's name for each call at which one dies."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "t" + letters[call // 26] + letters[call % 26]


@pytest.mark.parametrize("after", [False, True])
async def test_dying_at_every_call_of_a_launch(harness: LauncherOnCluster, after: bool) -> None:
    for call in range(1, CALLS_MAX):
        task = name(call)
        crash = harness.crash_at(call, after=after)
        await harness.handle(harness.assignment(RANKS, task=task))
        await harness.until_started(task=task)
        pods = [each for each in harness.cluster_harness.pods_created() if each.startswith(task)]
        assert sorted(pods) == [f"{task}-1-{rank}" for rank in range(RANKS)]
        await harness.handle(a_kill(task=task))
        exited = await harness.until_exited(task=task)
        assert exited.exit.kind is ExitKind.KILLED
        if crash.left > 0:
            break
    else:
        pytest.fail("no launch came through without dying")
    # The run object, Secret, Service and two pods, and the checks before them.
    assert call > 6
    assert harness.deaths == call - 1
    assert (
        len(await harness.published(RunStarted)) == len(await harness.published(RunExited)) == call
    )
    await harness.until(lambda: not harness.cluster_harness.left())


@pytest.mark.parametrize("after", [False, True])
async def test_dying_at_every_call_of_a_deletion(harness: LauncherOnCluster, after: bool) -> None:
    for call in range(1, CALLS_MAX):
        task = name(call)
        await harness.handle(harness.assignment(RANKS, task=task))
        await harness.until_started(task=task)
        crash = harness.crash_at(call, after=after)
        await harness.handle(a_kill(task=task))
        exited = await harness.until_exited(task=task)
        assert exited.exit.kind is ExitKind.KILLED
        await harness.until(lambda: not harness.cluster_harness.left())
        if crash.left > 0:
            break
    else:
        pytest.fail("no deletion came through without dying")
    assert call > 6
    assert (
        len(await harness.published(RunStarted)) == len(await harness.published(RunExited)) == call
    )
    assert sorted(harness.cluster_harness.pods_created()) == sorted(
        f"{name(each)}-1-{rank}" for each in range(1, call + 1) for rank in range(RANKS)
    )


async def test_a_pod_made_by_an_outdated_leader_is_ended(harness: LauncherOnCluster) -> None:
    """It had passed its checks before the run was ended, and its request arrives after."""
    await harness.handle(harness.assignment(RANKS))
    await harness.until_started()
    late = harness.cluster_harness.pod("task-1-0")
    await harness.handle(a_kill())
    await harness.until_exited()
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            key: late["metadata"][key]
            for key in ("name", "namespace", "labels", "annotations", "ownerReferences")
        },
        "spec": {key: value for key, value in late["spec"].items() if key != "nodeName"},
    }
    harness.cluster_harness.api.create(harness.cluster_harness.path("pods"), made)
    await harness.until(lambda: not harness.cluster_harness.left())
    assert len(await harness.published(RunExited)) == 1
