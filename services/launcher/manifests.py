"""Builds the Kubernetes objects of a run from its order, as plain dicts and without I/O. The
Kubernetes runtime creates them. The same order always yields the same bytes.

The run object (a ConfigMap) comes first and owns the rest, so that deleting it leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from libs.contracts.ids import RunId
from libs.contracts.task_contracts import TORCH, contract_of
from libs.contracts.variables import RUN_TOKEN
from libs.pods.field_errors import PodRefusedError
from libs.pods.kubernetes_names import (
    DOMAIN,
    MANAGED_BY,
    MANAGER,
    TASKS_NAMESPACE,
    label_value,
    pod_name,
    run_name,
)
from libs.pods.pod_policy import PodPolicy
from libs.pods.pod_template import merged, read_template
from libs.pods.request_validation import check_pod
from libs.pods.requester import Requester
from libs.pods.role_requests import request_of
from services.launcher.hosts import has_names
from services.launcher.pod_spec import (
    TOKEN_KEY,
    PodPlan,
    compact,
    context_key,
    file_key,
    pod_spec,
)
from services.launcher.runtimes.port import RankOrder, RunOrder

Json = dict[str, Any]

# A Secret holds at most 1 MiB; this leaves space for names and base64.
SECRET_RANKS_MAX = 400
SECRET_BYTES_MAX = 512 * 1024


@dataclass(frozen=True, slots=True)
class PodSite:
    """Settings for pods beside the policy."""

    namespace: str = TASKS_NAMESPACE


@dataclass(frozen=True, slots=True)
class RunManifests:
    """All objects of one run, in the order of their creation."""

    run_object: Json
    secrets: tuple[Json, ...]
    # Only gangs and pods that serve others have one.
    service: Json | None
    pods: tuple[Json, ...]

    def owned_by(self, uid: str) -> RunManifests:
        """The same objects, owned by the run object, whose uid is known once it exists."""
        name: str = self.run_object["metadata"]["name"]
        owner: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": name,
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

        def owned(thing: Json) -> Json:
            return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner]}}

        return replace(
            self,
            secrets=tuple(owned(each) for each in self.secrets),
            service=owned(self.service) if self.service else None,
            pods=tuple(owned(each) for each in self.pods),
        )


def run_labels(run_id: RunId) -> dict[str, str]:
    """The labels of a run's objects."""
    return {
        MANAGED_BY: MANAGER,
        f"{DOMAIN}/task": run_id.task_id,
        f"{DOMAIN}/attempt": str(run_id.attempt),
    }


def build_manifests(
    order: RunOrder,
    policy: PodPolicy,
    site: PodSite,
    node_labels: Mapping[str, Mapping[str, str]] | None = None,
) -> RunManifests:
    """Build the run object, Secrets, Service and pods of a run. ``node_labels`` are the known
    labels of the nodes in the order. Raises ``PodRefusedError`` if the policy forbids the pods.
    """
    assert order.spec is not None, "an order for pods has its specification"
    requester = Requester.of(order.spec, order.owner, order.team)
    errors = check_pod(order.spec, requester, policy, needs_image=True)
    if errors:
        raise PodRefusedError(errors)
    plan = _plan(order, requester, policy)
    make = _Maker(
        order,
        plan,
        site.namespace,
        {name: read_template(each.template) for name, each in plan.requests.items()},
        read_template(order.spec.pod.template if order.spec.pod else ""),
    )
    secrets, secret_of = make.secrets()
    labels_by_node = node_labels or {}
    return RunManifests(
        run_object=make.run_object(),
        secrets=tuple(secrets),
        service=make.service() if plan.has_names else None,
        pods=tuple(
            make.pod(rank, secret_of[rank.rank], labels_by_node.get(rank.node_id, {}))
            for rank in order.ranks
        ),
    )


def _plan(order: RunOrder, requester: Requester, policy: PodPolicy) -> PodPlan:
    assert order.spec is not None, "an order for pods has its specification"
    name = run_name(order.run_id)
    return PodPlan(
        name=name,
        has_names=has_names(order.spec, order.size),
        spec=order.spec,
        requests={role.name: request_of(order.spec, role) for role in order.spec.roles},
        requester=requester,
        policy=policy,
        roles={role.name: role for role in order.spec.roles},
        token_secret=name,
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes one run's objects."""

    order: RunOrder
    plan: PodPlan
    namespace: str
    # The task's own part of a pod, by role; and for ranks of no role.
    templates: Mapping[str, Json]
    template: Json

    def metadata(self, name: str, **labels: str) -> Json:
        """The metadata of an object; annotations hold values that are no valid labels."""
        requester = self.plan.requester
        more = {f"{DOMAIN}/{key}": value for key, value in labels.items()}
        annotations = {
            "task-name": self.plan.spec.name,
            "owner": requester.owner,
            "team": requester.team,
            "group": requester.group,
        }
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": {
                **run_labels(self.order.run_id),
                f"{DOMAIN}/owner": label_value(requester.owner),
                **more,
            },
            "annotations": {
                f"{DOMAIN}/{key}": value for key, value in annotations.items() if value
            },
        }

    def run_object(self) -> Json:
        """The object that exists as long as anything of the run does."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self.metadata(self.plan.name),
            "data": {"ranks": str(self.order.size)},
        }

    def secrets(self) -> tuple[list[Json], dict[int, str]]:
        """The Secrets with token, context files and files of the contract, as few as possible, and
        each rank's Secret."""
        ranks = self.order.gang()
        data: dict[str, str] = {TOKEN_KEY: ranks[0].env.get(RUN_TOKEN, "") if ranks else ""}
        size, held, secret_of = 0, [data], dict[int, str]()
        for rank in ranks:
            texts = {context_key(rank.rank): rank.context}
            texts |= {file_key(rank.rank, name): text for name, text in rank.files.items()}
            length = sum(len(text.encode()) for text in texts.values())
            full = len(data) > SECRET_RANKS_MAX or size + length > SECRET_BYTES_MAX
            if full and size:
                data, size = dict[str, str](), 0
                held.append(data)
            data |= texts
            size += length
            secret_of[rank.rank] = self._secret_name(len(held) - 1)
        return [self._secret(index, data) for index, data in enumerate(held)], secret_of

    def _secret_name(self, index: int) -> str:
        return f"{self.plan.name}-c{index}" if index else self.plan.name

    def _secret(self, index: int, data: Mapping[str, str]) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": self.metadata(self._secret_name(index)),
            "stringData": data,
        }

    def service(self) -> Json:
        """The Service that gives each rank a name, which resolves before the rank is ready."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(self.plan.name),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": run_labels(self.order.run_id),
                **self._service_ports(),
            },
        }

    def _service_ports(self) -> Json:
        """The port of rank 0, or of all ranks; a Service without cluster IP needs none."""
        contract = contract_of(self.plan.spec.contract)
        name = "master" if contract is TORCH else contract.word.replace("_", "-")
        ports = [{"name": name, "port": port} for port in self.order.ports]
        return {"ports": ports} if ports else {}

    def pod(self, rank: RankOrder, secret: str, node_labels: Mapping[str, str]) -> Json:
        """One rank, with the task's own template merged in."""
        plan, policy = self.plan, self.plan.policy
        name = pod_name(self.order.run_id, rank.rank)
        topology = {key: node_labels[key] for key in policy.node_labels if key in node_labels}
        metadata = self.metadata(name, rank=str(rank.rank), role=label_value(rank.role))
        metadata["labels"] = {**policy.labels, **metadata["labels"]}
        metadata["annotations"] = {
            **policy.annotations,
            **metadata["annotations"],
            f"{DOMAIN}/node": rank.node_id,
            f"{DOMAIN}/gpus": ",".join(str(gpu) for gpu in rank.gpus),
            **({f"{DOMAIN}/restarts": str(rank.start)} if rank.start else {}),
            **({f"{DOMAIN}/topology": compact(topology)} if topology else {}),
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": pod_spec(plan, rank, name, secret, topology),
        }
        return merged(pod, self.templates.get(rank.role, self.template), policy)
