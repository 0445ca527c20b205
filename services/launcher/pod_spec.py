"""Builds the ``spec`` of a rank's pod, before the task's own template is merged in. Pure; called by
``manifests.py``.

Without grants, the pod meets the Pod Security profile "restricted".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libs.contracts.messages import EnvSource, PodRequest, Role, TaskSpec
from libs.contracts.rank_sizes import sizes_of
from libs.contracts.variables import RUN_TOKEN
from libs.pods.kubernetes_names import CONTEXT_FOLDER, HOME_FOLDER, MAIN, SDK_CONTAINER, SDK_FOLDER
from libs.pods.pod_policy import Identity, PodPolicy
from libs.pods.requester import Requester
from libs.pods.role_requests import image_of
from libs.pods.storage_mounts import mounts_of
from services.launcher.runtimes.port import RankOrder

Json = dict[str, Any]

TOKEN_KEY = "run-token"  # noqa: S105 - the key's name
CONTEXT_PATH = f"{CONTEXT_FOLDER}/context.json"
# Where the image of the SDK holds the Python package.
SDK_IN_IMAGE = "/opt/shiftwork/sdk"
SDK_BYTES_MAX = 64 << 20
PROBE_SECONDS = 2
# The platform decides when a node is lost: it waits and fences by its own clock.
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# Kubernetes expands $(NAME) and turns $$ into $; the users' text must arrive unchanged.
_EXPANDED = re.compile(r"\$+(?=\()|\${2,}")


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The values that all ranks of a run share."""

    # The run's own name; a Service of this name gives its pods theirs.
    name: str
    has_names: bool
    spec: TaskSpec
    # By role.
    requests: Mapping[str, PodRequest]
    requester: Requester
    policy: PodPolicy
    roles: Mapping[str, Role]
    # The Secret with the run token.
    token_secret: str

    def request_of(self, rank: RankOrder) -> PodRequest:
        """What is requested for the pod of this rank."""
        return self.requests.get(rank.role) or self.spec.pod or PodRequest()


def pod_spec(
    plan: PodPlan, rank: RankOrder, hostname: str, secret: str, topology: Mapping[str, str]
) -> Json:
    """The spec of a rank. ``secret`` holds its context file; it gets ``topology`` as a variable."""
    policy, request = plan.policy, plan.request_of(rank)
    mounts = mounts_of(request.storage, plan.requester, policy)
    own = list(_volumes(plan, rank, secret))
    spec: Json = {
        "restartPolicy": "Never",
        "hostname": hostname,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": policy.termination_grace_seconds,
        "securityContext": _pod_security(policy.identity_of(plan.requester.owner)),
        "affinity": _on_node(rank.node_id),
        "tolerations": list(_tolerations(plan)),
        "containers": [
            {
                **_image(plan, rank),
                "name": MAIN,
                # Without a command of its own, the image's program gets the arguments.
                "args" if rank.of_image else "command": [literal(word) for word in rank.argv],
                **({"workingDir": rank.cwd} if rank.cwd else {}),
                "env": list(_env(plan, rank, topology)),
                **_ports(rank),
                **_readiness(rank),
                "resources": _resources(plan, rank),
                "securityContext": _security(request.capabilities, policy),
                "volumeMounts": [*(_mount(each) for each in own), *(m.mount for m in mounts)],
            }
        ],
        "volumes": [*(each.volume for each in own), *(each.volume for each in mounts)],
    }
    named = {
        "subdomain": plan.name if plan.has_names else "",
        "serviceAccountName": policy.service_account,
        "priorityClassName": policy.priority_class,
        "schedulerName": policy.scheduler_name,
        "runtimeClassName": policy.runtime_class,
    }
    pull_secrets = dict.fromkeys((*policy.image_pull_secrets, *request.image_pull_secrets))
    if pull_secrets:
        spec["imagePullSecrets"] = [{"name": each} for each in pull_secrets]
    if policy.sdk_image:
        spec["initContainers"] = [_sdk(policy)]
    return {**spec, **{key: value for key, value in named.items() if value}}


def context_key(rank: int) -> str:
    """The key of a rank's context file in its Secret."""
    return f"context-{rank}"


def file_key(rank: int, name: str) -> str:
    """The key of a file of the contract."""
    return f"file-{rank}-{name}"


def _ports(rank: RankOrder) -> Json:
    ports = [{"name": name, "containerPort": port} for name, port in rank.ports.items()]
    return {"ports": ports} if ports else {}


def _readiness(rank: RankOrder) -> Json:
    """The kubelet's probe for a rank that declares one."""
    probe = rank.ready
    port = rank.ports.get(probe.port) if probe is not None else None
    if probe is None or port is None:
        return {}
    path = {"path": probe.path} if probe.path else {}
    how: Json = {"httpGet" if path else "tcpSocket": {**path, "port": port}}
    period = math.ceil(probe.period_seconds)
    return {"readinessProbe": {**how, "periodSeconds": period, "timeoutSeconds": PROBE_SECONDS}}


def literal(text: str) -> str:
    """Escape a text so that Kubernetes does not change it."""
    return _EXPANDED.sub(lambda found: found[0] * 2, text)


def compact(value: object) -> str:
    """JSON in one form only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _image(plan: PodPlan, rank: RankOrder) -> Json:
    image = image_of(plan.spec, plan.roles.get(rank.role) or Role()) or plan.policy.default_image
    pull = plan.request_of(rank).image_pull_policy or plan.policy.image_pull_policy
    return {"image": image, **({"imagePullPolicy": pull} if pull else {})}


def _on_node(node_id: str) -> Json:
    """Select the node through the cluster's scheduler, which binds devices and volumes."""
    field = {"key": "metadata.name", "operator": "In", "values": [node_id]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _tolerations(plan: PodPlan) -> Iterator[Json]:
    """The task's taints and the site's, whatever their effect."""
    for taint in dict.fromkeys((*plan.spec.tolerations, *plan.policy.tolerate)):
        key, sign, value = taint.partition("=")
        if sign:
            yield {"key": key, "operator": "Equal", "value": value}
        else:
            yield {"key": key, "operator": "Exists"}
    for key in LOST_NODE_TAINTS:
        yield {"key": key, "operator": "Exists", "effect": "NoExecute"}


def _pod_security(identity: Identity) -> Json:
    return {
        "runAsNonRoot": True,
        "runAsUser": identity.user,
        "runAsGroup": identity.group,
        "fsGroup": identity.group,
        # Files of a large volume are not walked through at every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        **({"supplementalGroups": list(identity.groups)} if identity.groups else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _security(capabilities: Sequence[str], policy: PodPolicy) -> Json:
    added = sorted(set(capabilities))
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        **({"readOnlyRootFilesystem": True} if policy.read_only_root else {}),
    }


def _resources(plan: PodPlan, rank: RankOrder) -> Json:
    """What the plan counts is requested, and the limits are the rank's. Of other resources and of
    GPUs, requests equal limits."""
    both: dict[str, str] = dict(plan.request_of(rank).resources)
    if rank.gpus:
        both[plan.policy.gpu_resource] = str(len(rank.gpus))
    limits: dict[str, float | None] = {"cpu": rank.cpus, "memory": rank.memory_bytes}
    wanted = {"cpu": rank.cpus_request, "memory": rank.memory_request_bytes}
    requests = {name: limits[name] if each is None else each for name, each in wanted.items()}
    size = sizes_of(plan.spec).get(rank.role)
    if (plan.spec.gpus_per_node if size is None else size.gpus) == 0:
        only = plan.policy.cpu_only
        for name, amount in (("cpu", only.cpus), ("memory", only.memory_bytes)):
            if requests[name] is None:
                requests[name] = limits[name] = amount
    found = {"limits": {**both, **_amounts(limits)}, "requests": {**both, **_amounts(requests)}}
    return {kind: dict(sorted(amounts.items())) for kind, amounts in found.items() if amounts}


def _amounts(wanted: Mapping[str, float | None]) -> dict[str, str]:
    """Amounts as Kubernetes writes them, without those that are left open."""
    return {
        name: _cores(amount) if name == "cpu" else str(amount)
        for name, amount in wanted.items()
        if amount is not None
    }


def _cores(cpus: float) -> str:
    thousandths = max(1, round(cpus * 1000))
    whole, rest = divmod(thousandths, 1000)
    return str(whole) if not rest else f"{thousandths}m"


@dataclass(frozen=True, slots=True)
class _Volume:
    """A volume of the platform's own, and where the main container has it."""

    volume: Json
    path: str
    read_only: bool = False


def _mount(each: _Volume) -> Json:
    mount: Json = {"name": each.volume["name"], "mountPath": each.path}
    return {**mount, "readOnly": True} if each.read_only else mount


def _volumes(plan: PodPlan, rank: RankOrder, secret: str) -> Iterator[_Volume]:
    items = [{"key": context_key(rank.rank), "path": "context.json"}]
    items += [{"key": file_key(rank.rank, name), "path": name} for name in rank.files]
    held = {"secretName": secret, "items": items}
    yield _Volume({"name": "shiftwork-context", "secret": held}, CONTEXT_FOLDER, read_only=True)
    yield _Volume({"name": "shiftwork-home", "emptyDir": {}}, HOME_FOLDER)
    shm = {"medium": "Memory", "sizeLimit": str(_shm_bytes(plan, rank))}
    yield _Volume({"name": "shiftwork-shm", "emptyDir": shm}, "/dev/shm")  # noqa: S108 - as named
    if plan.policy.sdk_image:
        size = {"sizeLimit": str(SDK_BYTES_MAX)}
        yield _Volume({"name": SDK_CONTAINER, "emptyDir": size}, SDK_FOLDER, read_only=True)
    if plan.policy.read_only_root:
        yield _Volume({"name": "shiftwork-tmp", "emptyDir": {}}, "/tmp")  # noqa: S108 - as named


def _shm_bytes(plan: PodPlan, rank: RankOrder) -> int:
    """The requested size, else the site's, at most the rank's memory, in which it counts."""
    request = plan.request_of(rank)
    if request.shm_bytes is not None:
        return request.shm_bytes
    most = plan.policy.shm_bytes
    return most if rank.memory_bytes is None else min(most, rank.memory_bytes)


def _sdk(policy: PodPolicy) -> Json:
    """The init container that copies the SDK to where the task's Python finds it."""
    size = {"cpu": "100m", "memory": str(SDK_BYTES_MAX)}
    return {
        "name": SDK_CONTAINER,
        "image": policy.sdk_image,
        **({"imagePullPolicy": policy.image_pull_policy} if policy.image_pull_policy else {}),
        "command": ["cp", "-R", f"{SDK_IN_IMAGE}/.", SDK_FOLDER],
        "resources": {"limits": size, "requests": dict(size)},
        "securityContext": _security((), policy),
        "volumeMounts": [{"name": SDK_CONTAINER, "mountPath": SDK_FOLDER}],
    }


def _env(plan: PodPlan, rank: RankOrder, topology: Mapping[str, str]) -> Iterator[Json]:
    """Every variable, by name; values from Secrets and ConfigMaps are references."""
    policy = plan.policy
    values = {"HOME": HOME_FOLDER, **policy.env, **rank.env}
    values |= {name: f"{CONTEXT_FOLDER}/{file}" for name, file in rank.paths.items()}
    values["SHIFTWORK_CONTEXT"] = CONTEXT_PATH
    if topology:
        values["SHIFTWORK_TOPOLOGY"] = compact(topology)
    if policy.sdk_image:
        values["PYTHONPATH"] = ":".join(filter(None, (SDK_FOLDER, values.get("PYTHONPATH"))))
    if not rank.gpus:
        # Some images request every GPU of the node; a rank without GPUs gets none.
        values["NVIDIA_VISIBLE_DEVICES"] = "void"
    found: dict[str, Json] = {name: {"value": literal(text)} for name, text in values.items()}
    for source in plan.request_of(rank).env_from:
        found[source.name] = {"valueFrom": _value_from(source)}
    token = {"name": plan.token_secret, "key": TOKEN_KEY}
    found[RUN_TOKEN] = {"valueFrom": {"secretKeyRef": token}}
    for name in sorted(found):
        yield {"name": name, **found[name]}


def _value_from(source: EnvSource) -> Json:
    optional = {"optional": True} if source.optional else {}
    if source.secret:
        return {"secretKeyRef": {"name": source.secret, "key": source.key, **optional}}
    if source.config_map:
        return {"configMapKeyRef": {"name": source.config_map, "key": source.key, **optional}}
    if source.field.startswith(("limits.", "requests.")):
        return {"resourceFieldRef": {"containerName": MAIN, "resource": source.field}}
    return {"fieldRef": {"fieldPath": source.field}}
