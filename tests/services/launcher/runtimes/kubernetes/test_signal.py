"""The preemption signal, where pods of the run are still to start."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any, cast

import pytest

from libs.kube.client import KubeClient
from services.launcher.domain.model import ObservedRank, RankState
from services.launcher.runtimes.kubernetes.pods import Pod
from services.launcher.runtimes.kubernetes.runtime import KubePolicy, KubernetesRuntime
from services.launcher.runtimes.port import RuntimeUnavailableError
from tests.kit.launcher_builders import run_id

RUN = run_id()
HERE = frozenset({"n0"})


class SignalsOnly:
    """A cluster's API that only runs commands in pods."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def run_in(self, path: str, _container: str, words: list[str], _seconds: float) -> str:
        self.sent.append((path.rsplit("/", 1)[-1], words[-1]))
        return ""


def a_pod(rank: int, state: RankState) -> Pod:
    return Pod(
        name=f"pod-{rank}",
        uid=f"uid-{rank}",
        version=1,
        run_id=RUN,
        owner_uid="",
        bound=True,
        gpus=(),
        observed=ObservedRank(rank, "n0", state),
        over=state is RankState.EXITED,
        only_others=False,
        deleting=None,
    )


async def test_pods_that_start_later_get_the_signal_and_the_others_get_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, pods = SignalsOnly(), [a_pod(0, RankState.RUNNING), a_pod(1, RankState.PENDING)]

    async def nothing(*_: Any) -> None: ...

    runtime = KubernetesRuntime(
        cast("KubeClient", api),
        KubePolicy(),
        cast("Any", None),
        at_start=cast("Any", nothing),
        now=lambda: datetime.now(UTC),
        rng=Random(1),
    )
    monkeypatch.setattr(runtime._fence, "check", nothing)
    monkeypatch.setattr(runtime.cache.runs, "pods_of", lambda _: pods)
    for _ in range(2):
        with pytest.raises(RuntimeUnavailableError, match="pod-1 gets the signal once it has"):
            await runtime.signal(RUN, HERE, 10)
    assert api.sent == [("pod-0", "kill -10 1")]
    pods[1] = replace(pods[1], observed=ObservedRank(1, "n0", RankState.RUNNING))
    await runtime.signal(RUN, HERE, 10)
    assert api.sent == [("pod-0", "kill -10 1"), ("pod-1", "kill -10 1")]
    # One that is deleted before it starts gets nothing.
    pods.append(replace(a_pod(2, RankState.PENDING), deleting=30))
    await runtime.signal(RUN, HERE, 10)
    assert len(api.sent) == 2
