"""Why a part is not ready, in words: from objects as the API server gives them."""

from __future__ import annotations

from typing import Any

import pytest

from services.allinone.kubernetes.workload_status import Part, parts

OURS = {"app.kubernetes.io/part-of": "shiftwork"}
LABELS = {**OURS, "app.kubernetes.io/component": "launcher", "app": "launcher"}


def deployment(ready: int, wanted: int = 2, **status: Any) -> dict[str, Any]:
    reported = {
        "observedGeneration": 3,
        "updatedReplicas": wanted,
        "readyReplicas": ready,
        **status,
    }
    return {
        "kind": "Deployment",
        "metadata": {"name": "shiftwork-launcher", "labels": LABELS, "generation": 3},
        "spec": {"replicas": wanted, "selector": {"matchLabels": {"app": "launcher"}}},
        "status": reported,
    }


def pod(name: str = "p1", *, node: str = "n1", **status: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"nodeName": node} if node else {},
        "status": status,
    }


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "launcher", "image": "a/b:1", "state": state, "ready": False, **more}


def warning(kind: str, name: str, reason: str, message: str, at: str = "") -> dict[str, Any]:
    return {
        "kind": "Event",
        "metadata": {"name": f"{name}.{at}"},
        "type": "Warning",
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


def only(*objects: dict[str, Any]) -> Part:
    (found,) = parts(objects)
    return found


def test_workloads_of_other_applications_do_not_count() -> None:
    other = deployment(0)
    other["metadata"]["labels"] = {"app": "somebody else's"}
    assert parts([other]) == ()


def test_a_workload_is_ready_when_all_its_new_pods_are() -> None:
    assert only(deployment(2)).is_ready
    assert only(deployment(2)).line == "launcher 2/2"
    # The controllers have not seen the change yet, or old pods still serve.
    assert not only(deployment(2, observedGeneration=2)).is_ready
    assert only(deployment(2, updatedReplicas=1)).ready == 1


WAITING = {"waiting": {"reason": "ContainerCreating"}}
CRASHED = {"terminated": {"exitCode": 2, "reason": "Error"}}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            pod(
                containerStatuses=[
                    container({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})
                ]
            ),
            "p1 image a/b:1 cannot be pulled: not found",
        ),
        (
            pod(
                containerStatuses=[
                    container(
                        {"waiting": {"reason": "CrashLoopBackOff"}},
                        restartCount=3,
                        lastState=CRASHED,
                    )
                ]
            ),
            "p1 crashes: ended with code 2, 3 times",
        ),
        (
            pod(
                containerStatuses=[
                    container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
                ]
            ),
            "p1 crashes: ended with code 137 (OOMKilled), once",
        ),
        (
            pod(
                containerStatuses=[
                    container(
                        {
                            "waiting": {
                                "reason": "CreateContainerConfigError",
                                "message": 'secret "x" not found',
                            }
                        }
                    )
                ]
            ),
            'p1 cannot be made: secret "x" not found',
        ),
        (
            pod(containerStatuses=[container({"running": {}}, restartCount=1)]),
            "p1 runs, is not ready yet (restarted once)",
        ),
        (
            pod(
                node="",
                conditions=[
                    {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: taints"}
                ],
            ),
            "p1 has no node: 0/3 nodes: taints",
        ),
        (pod(containerStatuses=[container(WAITING)]), "p1 is being created"),
        (pod(node=""), "p1 waits for a node"),
        (
            pod(reason="Evicted", message="low on disk"),
            "p1 Evicted: low on disk",
        ),
    ],
)
def test_what_keeps_a_pod_from_being_ready_is_reported(given: dict[str, Any], problem: str) -> None:
    found = only(deployment(1), given)
    assert found.line == f"launcher 1/2: {problem}"
    assert not found.failed


def test_the_worst_comes_first_and_leaving_pods_do_not_count() -> None:
    leaving = pod("gone", containerStatuses=[container(CRASHED)])
    leaving["metadata"]["deletionTimestamp"] = "now"
    ready = pod("good", conditions=[{"type": "Ready", "status": "True"}])
    found = only(
        deployment(0),
        pod("p1"),
        pod("p2", containerStatuses=[container(CRASHED)]),
        leaving,
        ready,
    )
    assert [each.name for each in found.troubled] == ["p2", "p1"]
    assert found.troubled[0].container == "launcher"


def test_the_newest_warning_explains_what_the_status_does_not() -> None:
    found = only(
        deployment(1),
        pod(containerStatuses=[container(WAITING)]),
        warning("Pod", "p1", "FailedMount", "old", "2026-01-01T00:00:00Z"),
        warning("Pod", "p1", "FailedMount", 'secret "k" not found', "2026-01-01T00:00:09Z"),
        warning("Pod", "p2", "FailedMount", "another's", "2026-01-01T00:00:10Z"),
    )
    assert found.line == 'launcher 1/2: p1 FailedMount: secret "k" not found'


def test_a_workload_whose_pods_are_refused_is_reported() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    assert only(deployment(0, conditions=[refused])).line == (
        "launcher 0/2: pods are refused: exceeded quota"
    )
    stateful = deployment(0) | {"kind": "StatefulSet"}
    event = warning("StatefulSet", "shiftwork-launcher", "FailedCreate", "violates PodSecurity")
    assert only(stateful, event).line == "launcher 0/2: FailedCreate: violates PodSecurity"


def daemon_set(seen: int, **status: Any) -> dict[str, Any]:
    it = deployment(0) | {"kind": "DaemonSet"}
    return it | {"status": {"observedGeneration": seen, **status}}


def test_a_daemon_set_is_as_wide_as_there_are_nodes() -> None:
    assert only(daemon_set(3, desiredNumberScheduled=0)).is_ready
    part = only(daemon_set(3, desiredNumberScheduled=4, updatedNumberScheduled=4, numberReady=3))
    assert (part.ready, part.wanted) == (3, 4)
    assert not only(daemon_set(2)).is_ready


def job(name: str, made: str, **status: Any) -> dict[str, Any]:
    return {
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**OURS, "app.kubernetes.io/component": "provision"},
            "creationTimestamp": made,
        },
        "spec": {"selector": {"matchLabels": {"job": name}}},
        "status": status,
    }


def test_only_the_newest_job_of_a_component_counts() -> None:
    failed = {"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}
    old = job("provision-1", "2026-01-01T00:00:00Z", failed=6, conditions=[failed])
    new = job("provision-2", "2026-01-02T00:00:00Z", succeeded=1)
    assert only(old, new).is_ready
    found = only(old)
    assert found.failed
    assert found.line == "provision 0/1: failed for good: BackoffLimitExceeded"
