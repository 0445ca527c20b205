"""The objects of runs before a real API server, which stores nothing of them (dry run): it takes
them, and its Pod Security admission agrees with our oracle about every pod.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from libs.contracts.messages import PodRequest
from libs.pods.pod_policy import PodPolicy
from services.launcher.manifests import PodSite, build_manifests
from tests.libs.pods.makers import OPEN
from tests.libs.pods.oracle import violations
from tests.libs.pods.test_pod_template import GRANTABLE
from tests.services.launcher.manifest_cases import CASES, an_order
from tests.services.launcher.test_manifests import TAKEN, UID, documents
from tools.cluster.api import Api, ApiError
from tools.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes

Json = dict[str, Any]
PATHS = {"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services", "Pod": "pods"}
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Api:
    """With one namespace for each profile, and what the policies of the cases name."""
    for profile in ("restricted", "privileged"):
        control_plane.ensure_namespace(f"pods-{profile}", {ENFORCE: profile})
        for name in ("tasks", "admin"):
            found = {"metadata": {"name": name}}
            control_plane.api.create(f"/api/v1/namespaces/pods-{profile}/serviceaccounts", found)
    control_plane.api.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": "training"}, "value": 1000},
    )
    control_plane.api.create(
        "/apis/node.k8s.io/v1/runtimeclasses",
        {"metadata": {"name": "nvidia"}, "handler": "nvidia"},
    )
    return control_plane.api


def create(api: Api, thing: Json) -> Json:
    namespace = thing["metadata"]["namespace"]
    path = f"/api/v1/namespaces/{namespace}/{PATHS[thing['kind']]}"
    made: Json = api.request("POST", path, thing, query=STRICT)
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_real_api_server_accepts_every_object(api: Api, name: str) -> None:
    case = CASES[name]
    site = PodSite(namespace="pods-restricted" if case.restricted else "pods-privileged")
    for thing in documents(case.objects(site).owned_by(UID)):
        create(api, thing)


def templates() -> list[tuple[Json, PodPolicy]]:
    granted = [(template, OPEN) for template, _, _ in GRANTABLE]
    return [*((template, PodPolicy()) for template in TAKEN), *granted]


@pytest.mark.parametrize(("template", "policy"), templates(), ids=lambda each: str(each)[:60])
def test_pod_security_admission_agrees_with_the_test_oracle(
    api: Api, template: Json, policy: PodPolicy
) -> None:
    order = an_order(pod=PodRequest(image="x:1", template=json.dumps(template)))
    [pod] = build_manifests(order, policy, PodSite(namespace="pods-restricted")).pods
    if violations(pod):
        with pytest.raises(ApiError, match=r"403: .*violates PodSecurity"):
            create(api, pod)
    else:
        create(api, pod)
    # Where the namespace does not stand in the way, what was granted is a valid pod.
    create(api, {**pod, "metadata": {**pod["metadata"], "namespace": "pods-privileged"}})
