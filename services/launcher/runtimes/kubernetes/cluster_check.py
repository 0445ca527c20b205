"""Checks whether the launcher can do its work on a cluster, with the launcher's own credentials.

``runtime.py`` calls ``check`` when a launcher starts. It changes nothing: it requests the
launcher's rights from the API server and does not try them out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from libs.kube.client import (
    FORBIDDEN,
    NOT_FOUND,
    ApiError,
    KubeClient,
)
from services.launcher.runtimes.kubernetes.cluster_nodes import CONTROL_PLANE_LABEL, quantity
from services.launcher.runtimes.port import RuntimeUnavailableError
from services.launcher.settings import LauncherSettings

Json = dict[str, Any]
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NODES_CHECKED_MAX = 5000


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Literal["ok", "warn", "bad"]
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Right:
    """The verbs that the launcher uses on one resource."""

    resource: str
    verbs: tuple[str, ...]
    # In the namespace of the tasks; else in the whole cluster.
    within: bool = True
    # The feature that does not work without it.
    needed_for: str = ""


# The whole of it; the chart gives exactly these.
RIGHTS: tuple[Right, ...] = (
    Right("pods", ("get", "list", "watch", "create", "delete"), needed_for="runs"),
    Right("configmaps", ("get", "list", "watch", "create", "patch", "delete"), needed_for="runs"),
    # Never read; they go with the run object that owns them.
    Right("secrets", ("create",), needed_for="the tokens of runs"),
    Right("services", ("create",), needed_for="the names of ranks"),
    Right("events", ("list",), needed_for="reporting why a pod is not created yet"),
    Right("pods/exec", ("get", "create"), needed_for="preemption by signal, and sessions in ranks"),
    Right("nodes", ("list", "watch"), within=False, needed_for="the inventory"),
    Right("pods", ("list", "watch"), within=False, needed_for="what others use of nodes"),
)


async def check(settings: LauncherSettings, client: KubeClient) -> list[Finding]:
    """Run the checks in order. A call that fails becomes the last finding."""
    findings: list[Finding] = []
    try:
        async for finding in _checks(settings, client):
            findings.append(finding)  # noqa: PERF401 - what came before a failure stays
    except RuntimeUnavailableError as problem:
        findings.append(Finding("bad", str(problem), _fix_of(str(problem), settings)))
    except ApiError as problem:
        findings.append(Finding("bad", f"the API call failed: {problem}", "ask the operators"))
    return findings


def _fix_of(problem: str, settings: LauncherSettings) -> str:
    where = settings.kube_config or "the ServiceAccount's token, or KUBECONFIG"
    if "credentials" in problem:
        return f"renew the token in {where}"
    if "cannot be used" in problem:
        return "name a kubeconfig: SHIFTWORK_LAUNCHER_KUBE_CONFIG=FILE"
    return f"see that the address in {where} is the API server's and can be reached from here"


async def _checks(settings: LauncherSettings, client: KubeClient) -> AsyncIterator[Finding]:
    namespace = settings.kube_namespace
    version = await client.get("/version")
    yield Finding("ok", f"the API server answers: {version.get('gitVersion')}")
    yield await _namespace(client, namespace)
    async for finding in _rights(client, namespace):
        yield finding
    async for finding in _nodes(settings, client):
        yield finding


async def _namespace(client: KubeClient, namespace: str) -> Finding:
    fix = f"kubectl create namespace {namespace}, or set SHIFTWORK_LAUNCHER_KUBE_NAMESPACE"
    try:
        # A list of ConfigMaps would be empty for a namespace that does not exist.
        found = await client.get(f"/api/v1/namespaces/{namespace}")
    except ApiError as problem:
        if problem.status == NOT_FOUND:
            return Finding("bad", f"there is no namespace {namespace}", fix)
        if problem.status == FORBIDDEN:
            return Finding("warn", f"the launcher may not get namespace {namespace}")
        raise
    if found.get("status", {}).get("phase") == "Terminating":
        return Finding("bad", f"namespace {namespace} is being deleted", "wait, then create it")
    return Finding("ok", f"namespace {namespace}")


async def _rights(client: KubeClient, namespace: str) -> AsyncIterator[Finding]:
    for right in RIGHTS:
        where = f"in namespace {namespace}" if right.within else "in the cluster"
        missing = [verb for verb in right.verbs if not await _may(client, right, verb, namespace)]
        if missing:
            what = f"the launcher may not {', '.join(missing)} {right.resource} {where}"
            kind = "Role" if right.within else "ClusterRole"
            fix = (
                f"add verbs [{', '.join(missing)}] for {right.resource} to its {kind},"
                f" needed for {right.needed_for}; the chart does"
            )
            yield Finding("bad", what, fix)
        else:
            yield Finding("ok", f"may {', '.join(right.verbs)} {right.resource} {where}")


async def _may(client: KubeClient, right: Right, verb: str, namespace: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes: Json = {"resource": resource, "subresource": subresource, "verb": verb}
    if right.within:
        attributes["namespace"] = namespace
    review: Json = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(REVIEWS, review)
    return bool(answer.get("status", {}).get("allowed"))


async def _nodes(settings: LauncherSettings, client: KubeClient) -> AsyncIterator[Finding]:
    selector = settings.kube_node_selector or f"!{CONTROL_PLANE_LABEL}"
    count = gpus = offering = 0
    async for items, _ in client.pages("/api/v1/nodes", labelSelector=selector):
        count += len(items)
        found = list(_offered(items, settings.pod_policy().gpu_resource))
        gpus, offering = gpus + sum(found), offering + len(found)
        if count >= NODES_CHECKED_MAX:
            break
    resource = settings.pod_policy().gpu_resource
    if not count:
        fix = "set SHIFTWORK_LAUNCHER_KUBE_NODE_SELECTOR, or label nodes so that it selects some"
        yield Finding("bad", f"no node is selected by {selector!r}", fix)
    elif not offering:
        fix = (
            "install the GPUs' device plugin, or name its resource: gpu_resource in the pod policy;"
            " tasks with 0 GPUs run all the same"
        )
        yield Finding("warn", f"none of {count} nodes offers {resource}", fix)
    else:
        yield Finding("ok", f"{offering} of {count} nodes offer {resource}: {gpus} in all")


def _offered(items: Iterable[Json], resource: str) -> Iterable[int]:
    for node in items:
        offers: Json = node.get("status", {}).get("allocatable") or {}
        if gpus := int(quantity(offers.get(resource))):
            yield gpus
