from __future__ import annotations

import pytest

from libs.kube.client import ApiError
from services.launcher.domain.model import Fault
from services.launcher.runtimes.kubernetes.run_objects import name_taken, refusal
from services.launcher.runtimes.port import LaunchRefusedError, RuntimeUnavailableError

ADMISSION = 'pods "task-1-0" is forbidden: '


@pytest.mark.parametrize(
    ("status", "message", "fault"),
    [
        (422, 'Pod "task-1-0" is invalid: spec.containers[0].image: Required', Fault.INVALID_POD),
        (400, "strict decoding error: unknown field", Fault.INVALID_POD),
        (413, "request entity too large", Fault.INVALID_POD),
        (403, ADMISSION + "exceeded quota: some, requested: pods=1", Fault.OVER_QUOTA),
        (403, ADMISSION + 'violates PodSecurity "restricted:latest"', Fault.NOT_ADMITTED),
        (403, ADMISSION + "no PriorityClass with name x was found", Fault.NOT_ADMITTED),
        (409, "object is being deleted", Fault.NAME_TAKEN),
    ],
)
def test_an_invalid_or_forbidden_pod_is_refused_for_good(
    status: int, message: str, fault: Fault
) -> None:
    found = refusal(ApiError(status, "Forbidden", message), "Pod task-1-0", "ns")
    assert isinstance(found, LaunchRefusedError)
    assert found.refused.fault is fault
    assert message in found.refused.text
    assert "Pod task-1-0" in found.refused.text


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'pods is forbidden: User "x" cannot create resource "pods" in API group ""'),
        (403, ADMISSION + "error looking up service account ns/default: not found"),
        (403, 'pods "x" is forbidden: namespace ns is being terminated'),
        (404, 'namespaces "ns" not found'),
    ],
)
def test_a_temporary_refusal_is_tried_again(status: int, message: str) -> None:
    found = refusal(ApiError(status, "Forbidden", message), "Pod task-1-0", "ns")
    assert isinstance(found, RuntimeUnavailableError)
    assert message in str(found)


def test_the_refusal_for_a_missing_namespace_says_what_to_do() -> None:
    found = refusal(ApiError(404, "NotFound", 'namespaces "ns" not found'), "Pod x", "ns")
    assert "Create it" in str(found)


def test_a_foreign_object_with_the_name_refuses_the_launch() -> None:
    assert (
        name_taken("Pod x").refused.text == "another object has the name: Pod x is not of this run"
    )
