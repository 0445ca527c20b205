"""Whether a cluster can take the platform: ``doctor --kubernetes``, and the first step of ``up``.

Reads only; rights are asked of the API server (SelfSubjectAccessReview), not tried.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shiftwork.cli.failures import REFUSED, UNREACHABLE, Failure
from shiftwork.cli.parse import fields, listed

from libs.contracts.wording import counted
from libs.pods.kubernetes_names import TASKS_NAMESPACE
from services.allinone.findings import Finding
from services.allinone.kubernetes import programs, reach, rights, workload_status
from services.allinone.kubernetes.choices import VOLUMES
from services.allinone.kubernetes.helm import BUSY, Helm
from services.allinone.kubernetes.kubectl import Json, Kubectl, Target
from services.allinone.setting_relations import broken_relations

# As in the charts.
VERSION_MIN = (1, 30)
# As kubectl's errors are worded.
SILENT = "does not answer"
GPUS = "nvidia.com/gpu"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True, slots=True)
class Wants:
    """What an installation will need of the cluster."""

    gpu_resource: str = GPUS
    tasks_namespace: str = TASKS_NAMESPACE
    # Which class of volumes; empty: the default one. None: no volumes at all.
    storage_class: str | None = ""
    # What is wrong with the values themselves.
    problems: tuple[Finding, ...] = ()


def wants_of(documents: Sequence[Json]) -> Wants:
    """What values ask of a cluster; later documents go before earlier ones."""
    found: Json = {}
    for each in documents:
        found = _merged(found, each)

    def value_at(*path: str) -> Any:  # noqa: ANN401 - any value
        at = found
        for name in path[:-1]:
            at = fields(at.get(name))
        return at.get(path[-1])

    classes = [
        value_at(chart, section, "storageClass") or ""
        for chart, section in VOLUMES
        if value_at(chart, "enabled") is not False
        and value_at(chart, section, "enabled") is not False
        and not value_at(chart, section, "existingClaim")
    ]
    return Wants(
        gpu_resource=value_at("global", "podPolicy", "gpu_resource") or GPUS,
        tasks_namespace=value_at("global", "tasks", "namespace") or TASKS_NAMESPACE,
        # The one that must be looked up: the default class if any volume leaves it open.
        storage_class=min(classes, default=None),
        problems=tuple(broken_relations(lambda service, name: value_at(service, "settings", name))),
    )


def _merged(one: Json, other: Json) -> Json:
    """Merge values as helm does."""
    found = dict(one)
    for key, value in other.items():
        under = fields(one.get(key))
        found[key] = _merged(under, fields(value)) if under and fields(value) else value
    return found


def examine(to: Target, wants: Wants) -> list[Finding]:
    """Whether an installation can be made: every finding, in the order of the checks."""
    return _until_failure(_checks(to, wants))[0]


def _until_failure(checks: Iterator[Finding]) -> tuple[list[Finding], bool]:
    """Return the findings up to the first check that cannot be made, which is the last finding, and
    False in that case."""
    findings: list[Finding] = []
    try:
        for finding in checks:
            findings.append(finding)  # noqa: PERF402 - what came before a failure stays
    except Failure as problem:
        where = f" ({problem.where})" if problem.where else ""
        findings.append(Finding("bad", problem.what + where, problem.fix))
        return findings, False
    return findings, True


def reported_before(to: Target) -> list[Json]:
    """The values of the release that is there; none if there is none, or it cannot be asked."""
    try:
        helm = Helm(to)
        return [helm.values()] if helm.release() else []
    except Failure:
        # The checks explain it better.
        return []


def doctor(to: Target, gpu_resource: str = "", storage_class: str = "") -> list[Finding]:
    """The same as the release has it that is there, or as the charts; and how that one fares."""
    found = wants_of(reported_before(to))
    if gpu_resource:
        found = replace(found, gpu_resource=gpu_resource)
    if storage_class:
        found = replace(found, storage_class=storage_class)
    findings, whole = _until_failure(_checks(to, found))
    return findings + _until_failure(_installed(to))[0] if whole else findings


def exit_code(bad: Sequence[Finding]) -> int:
    """How a command ends that cannot go on because of these."""
    silent = any(SILENT in finding.what for finding in bad)
    return UNREACHABLE if silent else REFUSED


def _checks(to: Target, wants: Wants) -> Iterator[Finding]:
    yield from wants.problems
    yield from _programs()
    kubectl = Kubectl(to)
    yield from _kubeconfig(to)
    yield from _server(kubectl)
    namespace = kubectl.maybe("namespace", to.namespace)
    yield from rights.operators(kubectl, wants.tasks_namespace, has_namespace=namespace is not None)
    yield from _namespace(to, namespace)
    yield from _nodes(kubectl, wants)
    yield from _storage(kubectl, wants)
    yield from _release(to)


def _programs() -> Iterator[Finding]:
    missing: list[Failure] = []
    for name in programs.FIXES:
        try:
            yield Finding("ok", f"{name}: {programs.find(name)}")
        except Failure as problem:
            missing.append(problem)
    for problem in missing:
        yield Finding("bad", problem.what, problem.fix)


def _kubeconfig(to: Target) -> Iterator[Finding]:
    named = to.kubeconfig or os.environ.get("KUBECONFIG", "")
    for file in named.split(":") if named else []:
        if not os.path.exists(file):  # noqa: PTH110 - as kubectl looks
            fix = "name another file: --kubeconfig FILE, or set KUBECONFIG"
            yield Finding("bad", f"the kubeconfig {file} is not there", fix)


def _server(kubectl: Kubectl) -> Iterator[Finding]:
    # This request needs a login, while anybody may read the version.
    kubectl.run("auth", "can-i", "get", "namespaces", codes=(0, 1))
    versions: Json = json.loads(kubectl.run("version", "-o", "json"))
    text = str(fields(versions.get("serverVersion")).get("gitVersion", ""))
    found = re.match(r"v?(\d+)\.(\d+)", text)
    version = tuple(int(part) for part in found.groups()) if found else ()
    wanted = ".".join(map(str, VERSION_MIN))
    if version < VERSION_MIN:
        yield Finding("bad", f"Kubernetes {text} is too old", f"upgrade to {wanted} or newer")
    else:
        yield Finding("ok", f"Kubernetes {text}")


def _namespace(to: Target, found: Json | None) -> Iterator[Finding]:
    if found is None:
        yield Finding("ok", f"namespace {to.namespace} is not there yet: `shiftwork k8s up`")
    elif found["status"].get("phase") == "Terminating":
        fix = "wait until it is gone, or find what keeps it: kubectl describe namespace"
        yield Finding("bad", f"namespace {to.namespace} is being deleted", fix)


def _nodes(kubectl: Kubectl, wants: Wants) -> Iterator[Finding]:
    nodes = kubectl.get("nodes")["items"]
    ready = [node for node in nodes if _is_ready(node)]
    if not ready:
        yield Finding("bad", f"none of {len(nodes)} nodes is ready", "kubectl describe nodes")
        return
    level = "ok" if len(ready) == len(nodes) else "warn"
    yield Finding(level, f"{len(ready)} of {len(nodes)} nodes are ready")
    offered = {
        node["metadata"]["name"]: int(node["status"]["allocatable"].get(wants.gpu_resource, 0))
        for node in ready
    }
    with_gpus = [name for name, count in offered.items() if count]
    if with_gpus:
        total = sum(offered.values())
        text = f"{total} {wants.gpu_resource} on {counted(len(with_gpus), 'node')}"
        yield Finding("ok", text)
        return
    others = sorted({name for node in ready for name in _gpu_like(node)})
    known = f"; nodes offer {', '.join(others)}: --gpu-resource NAME" if others else ""
    yield Finding(
        "warn",
        f"no ready node offers {wants.gpu_resource}: only tasks without GPUs can run",
        f"install the vendor's device plugin{known}",
    )


def _is_ready(node: Json) -> bool:
    conditions = listed(node["status"].get("conditions"))
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _gpu_like(node: Json) -> Iterator[str]:
    for name in fields(node["status"].get("allocatable")):
        if "/" in name and re.search(r"gpu|npu|tpu|xpu|mlu|gcu", name):
            yield name


def _storage(kubectl: Kubectl, wants: Wants) -> Iterator[Finding]:
    if wants.storage_class is None:
        return
    classes = kubectl.get("storageclasses")["items"]
    names = [each["metadata"]["name"] for each in classes]
    if wants.storage_class:
        if wants.storage_class not in names:
            fix = f"choose of {', '.join(names) or 'none: install a provisioner'}"
            yield Finding("bad", f"there is no StorageClass {wants.storage_class}", fix)
        else:
            yield Finding("ok", f"StorageClass {wants.storage_class}")
        return
    default = [
        each["metadata"]["name"]
        for each in classes
        if fields(each["metadata"].get("annotations")).get(DEFAULT_CLASS) == "true"
    ]
    if default:
        yield Finding("ok", f"StorageClass {default[0]} (the default)")
    else:
        choose = (
            f"--storage-class NAME (of {', '.join(names)})" if names else "install a provisioner"
        )
        fix = f"{choose}; or use servers of your own; for a trial: --no-persistence"
        yield Finding("bad", "no StorageClass is the default: no volumes", fix)


def _release(to: Target) -> Iterator[Finding]:
    release = Helm(to).release()
    if release is None:
        yield Finding("ok", "not installed: shiftwork k8s up")
        return
    state = str(release["info"]["status"])
    text = f"release {to.release}, revision {release['version']}: {state}"
    if state in BUSY:
        yield Finding("bad", text, f"helm rollback {to.release} -n {to.namespace}")
    else:
        yield Finding("ok" if state == "deployed" else "warn", text)


def _installed(to: Target) -> Iterator[Finding]:
    """How what is installed fares; nothing if nothing is."""
    kubectl, helm = Kubectl(to), Helm(to)
    if helm.release() is None:
        return
    yield from rights.launchers(kubectl, reach.installed(to, helm))
    for part in workload_status.parts(kubectl.items(workload_status.KINDS)):
        if part.is_ready:
            yield Finding("ok", part.line)
        else:
            fix = f"kubectl describe pods -n {to.namespace}"
            yield Finding("bad", f"not ready: {part.line}", fix)
