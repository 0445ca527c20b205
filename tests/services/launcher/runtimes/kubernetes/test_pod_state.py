from __future__ import annotations

from typing import Any

import pytest

from services.launcher.domain.model import Fault, ObservedRank, RankState
from services.launcher.runtimes.kubernetes.pod_state import (
    Place,
    main_is_over,
    only_others_run,
    rank_of,
    vanished,
)

PLACE = Place(3, "n7")
STARTED = {"startedAt": "2026-01-01T00:00:01Z"}
ENDED = {**STARTED, "finishedAt": "2026-01-01T00:00:05Z"}


def a_pod(
    phase: str = "Pending", *, bound: bool = True, conditions: Any = (), **status: Any
) -> dict[str, Any]:
    return {
        "spec": {
            "nodeName": "n7" if bound else "",
            "containers": [
                {"name": "main", "image": "img", "resources": {"limits": {"memory": "1Gi"}}}
            ],
        },
        "status": {"phase": phase, "conditions": list(conditions), **status},
    }


def main(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "img", "state": state}]


def waits(reason: str, message: str = "", *, init: bool = False) -> dict[str, Any]:
    what = "initContainerStatuses" if init else "containerStatuses"
    state = {"waiting": {"reason": reason, "message": message}}
    return a_pod(**{what: [{"name": "main", "image": "img:1", "state": state}]})


def ended(
    code: int | None,
    *,
    phase: str = "Failed",
    reason: str = "",
    message: str = "",
    conditions: Any = (),
    **more: Any,
) -> ObservedRank:
    state = {} if code is None else {"terminated": {"exitCode": code, **ENDED, **more}}
    pod = a_pod(
        phase,
        containerStatuses=main(**state),
        reason=reason,
        message=message,
        conditions=conditions,
    )
    return rank_of(pod, PLACE)


@pytest.mark.parametrize(
    ("probe", "reported", "ready"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_only_a_rank_that_its_kubelet_probes_is_observed_ready(
    probe: bool, reported: bool, ready: bool
) -> None:
    pod = a_pod("Running", containerStatuses=main(running=STARTED))
    pod["status"]["containerStatuses"][0]["ready"] = reported
    if probe:
        pod["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 80}}
    rank = rank_of(pod, Place(3, "n7", start=2))
    assert (rank.state, rank.ready, rank.start) == (RankState.RUNNING, ready, 2)


def test_every_observed_state_has_the_number_of_its_process() -> None:
    place = Place(3, "n7", start=2)
    running = rank_of(a_pod("Running", containerStatuses=main(running=STARTED)), place)
    states = [
        rank_of(a_pod(bound=False), place),
        running,
        rank_of(a_pod("Failed", containerStatuses=main(terminated={"exitCode": 1})), place),
        rank_of(a_pod("Succeeded", containerStatuses=main(terminated={"exitCode": 0})), place),
        rank_of(a_pod("Failed", reason="Evicted"), place),
        vanished(None, running, ordered=True),
        vanished(None, running, ordered=False),
    ]
    assert [state.start for state in states] == [2] * len(states)


def test_a_pod_that_is_not_bound_is_pending() -> None:
    rank = rank_of(a_pod(bound=False), PLACE)
    assert (rank.rank, rank.node_id, rank.state) == (3, "n7", RankState.PENDING)
    assert rank.note == "waits to be bound to its node"


def test_unschedulable_in_the_clusters_words() -> None:
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available: 1 Insufficient nvidia.com/gpu.",
    }
    rank = rank_of(a_pod(bound=False, conditions=[why]), PLACE)
    assert rank.fault is Fault.UNSCHEDULABLE
    assert "Insufficient nvidia.com/gpu" in rank.note


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("ContainerCreating", Fault.BEING_MADE),
        ("PodInitializing", Fault.BEING_MADE),
        ("ErrImagePull", Fault.IMAGE_PULL),
        ("ImagePullBackOff", Fault.IMAGE_PULL),
        ("InvalidImageName", Fault.INVALID_IMAGE),
        ("CreateContainerConfigError", Fault.BAD_REFERENCE),
        ("CreateContainerError", Fault.NOT_CREATED),
        ("AReasonOfTomorrow", Fault.BEING_MADE),
    ],
)
@pytest.mark.parametrize("init", [False, True])
def test_waiting(reason: str, fault: Fault, init: bool) -> None:
    rank = rank_of(waits(reason, "some\nwords", init=init), PLACE)
    assert (rank.state, rank.fault) == (RankState.PENDING, fault)
    assert "some words" in rank.note


def test_an_image_is_named() -> None:
    assert rank_of(waits("ErrImagePull", "not found"), PLACE).note == (
        "the image cannot be pulled: image img:1: not found"
    )


def test_the_clusters_messages_are_bounded() -> None:
    assert len(rank_of(waits("ErrImagePull", "x" * 5000), PLACE).note) < 400


def test_running() -> None:
    rank = rank_of(a_pod("Running", containerStatuses=main(running=STARTED)), PLACE)
    assert rank.state is RankState.RUNNING
    assert rank.started_at is not None


def test_a_rank_runs_while_other_containers_of_its_pod_do() -> None:
    pod = a_pod("Running", containerStatuses=main(terminated={"exitCode": 0, **ENDED}))
    assert rank_of(pod, PLACE).state is RankState.RUNNING
    assert main_is_over(pod)
    beside = pod["status"]["containerStatuses"]
    assert not only_others_run(pod)
    beside.append({"name": "proxy", "state": {"running": STARTED}})
    assert only_others_run(pod)
    beside[-1]["state"] = {"terminated": {"exitCode": 143, **ENDED}}
    assert not only_others_run(pod)
    # Once they are gone, it ended as the main container did.
    last = vanished(pod, rank_of(pod, PLACE), ordered=True)
    assert (last.state, last.code) == (RankState.EXITED, 0)


def test_exits() -> None:
    good = ended(0, phase="Succeeded")
    assert (good.state, good.code, good.fault) == (RankState.EXITED, 0, None)
    assert good.started_at is not None
    assert good.exited_at is not None
    assert good.exited_at > good.started_at
    bad = ended(3, reason="", message="")
    assert (bad.state, bad.code, bad.note) == (RankState.EXITED, 3, "")
    by_signal = ended(137, signal=9)
    assert (by_signal.code, by_signal.signal) == (None, 9)


def test_the_programs_termination_message_is_reported() -> None:
    pod = a_pod(
        "Failed",
        containerStatuses=main(terminated={"exitCode": 1, "message": "NaN in layer 3", **ENDED}),
    )
    assert rank_of(pod, PLACE).note == "NaN in layer 3"


def test_out_of_memory() -> None:
    pod = a_pod(
        "Failed",
        containerStatuses=main(terminated={"exitCode": 137, "reason": "OOMKilled", **ENDED}),
    )
    rank = rank_of(pod, PLACE)
    assert (rank.state, rank.code, rank.fault) == (RankState.EXITED, 137, Fault.OUT_OF_MEMORY)
    assert rank.note == "out of memory: its limit is 1Gi"


def test_a_command_that_cannot_be_run() -> None:
    end = {"exitCode": 128, "reason": "StartError", "message": 'exec: "trian": not found', **ENDED}
    rank = rank_of(a_pod("Failed", containerStatuses=main(terminated=end)), PLACE)
    assert (rank.code, rank.fault) == (128, Fault.CANNOT_RUN)
    assert '"trian": not found' in rank.note


def test_an_init_container_that_fails() -> None:
    state = {"terminated": {"exitCode": 4, "message": "no disk", **ENDED}}
    pod = a_pod("Failed", initContainerStatuses=[{"name": "fetch", "state": state}])
    rank = rank_of(pod, PLACE)
    assert (rank.state, rank.code, rank.fault) == (RankState.EXITED, 4, Fault.INIT_FAILED)
    assert rank.note == "an init container failed: fetch ended with code 4 no disk"


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        ("Evicted", Fault.EVICTED),
        ("NodeLost", Fault.NODE_LOST),
        ("UnexpectedAdmissionError", Fault.NODE_REFUSED),
        ("NodeShutdown", Fault.NODE_DOWN),
        ("AReasonOfTomorrow", Fault.NODE_REFUSED),
    ],
)
def test_faults_of_the_site_end_as_lost(reason: str, fault: Fault) -> None:
    rank = ended(None, reason=reason, message="so it is")
    assert (rank.state, rank.fault) == (RankState.LOST, fault)
    assert "so it is" in rank.note


def test_a_deadline_of_the_pods_own_is_its_own_fault() -> None:
    rank = ended(None, reason="DeadlineExceeded", message="was active too long")
    assert (rank.state, rank.fault) == (RankState.EXITED, Fault.OVER_TIME)


@pytest.mark.parametrize("code", [143, 75, None])
def test_a_disruption_is_a_loss_whatever_the_code(code: int | None) -> None:
    why = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempting to accommodate a higher priority pod",
    }
    rank = ended(code, conditions=[why])
    assert (rank.state, rank.fault) == (RankState.LOST, Fault.DISPLACED)
    assert "higher priority pod" in rank.note


def test_a_finished_rank_is_not_disrupted() -> None:
    why = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    assert ended(0, phase="Succeeded", conditions=[why]).code == 0


RUNNING = ObservedRank(3, "n7", RankState.RUNNING)


def test_a_pod_that_is_gone() -> None:
    deleted = vanished(None, RUNNING, ordered=False)
    assert (deleted.state, deleted.fault) == (RankState.LOST, Fault.DELETED)
    ours = vanished(None, RUNNING, ordered=True)
    assert (ours.state, ours.code, ours.note) == (RankState.EXITED, None, "ended by the platform")
    evicted = a_pod(
        "Running",
        conditions=[
            {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        ],
    )
    assert vanished(evicted, RUNNING, ordered=False).fault is Fault.EVICTED
    failed = a_pod("Failed", containerStatuses=main(terminated={"exitCode": 9, **ENDED}))
    assert vanished(failed, RUNNING, ordered=True).code == 9
    exited = ObservedRank(3, "n7", RankState.EXITED, 0)
    assert vanished(None, exited, ordered=False) is exited
