"""What an operator must be allowed to do on a cluster, and the launcher's account once it is there.

Asked of the API server in reviews, never tried. Part of ``preflight.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shiftwork.cli.failures import Failure

from services.allinone.findings import Finding
from services.allinone.kubernetes.kubectl import Kubectl
from services.allinone.kubernetes.reach import Installed


@dataclass(frozen=True, slots=True)
class Right:
    """Something that the operator must be allowed to do. ``where``: platform, tasks or cluster."""

    group: str
    resource: str
    where: str
    verbs: tuple[str, ...] = ("create", "patch")


# What the charts consist of, and what `up`, `status` and `down` do beside helm.
RIGHTS: tuple[Right, ...] = (
    *(
        Right("", resource, "platform", ("get", "create", "patch", "delete"))
        for resource in ("services", "configmaps", "serviceaccounts")
    ),
    # helm keeps its releases in Secrets, and the platform's passwords are some.
    Right("", "secrets", "platform", ("get", "list", "create", "patch", "delete")),
    Right("", "pods", "platform", ("get", "list")),
    Right("", "events", "platform", ("list",)),
    Right("", "pods/log", "platform", ("get",)),
    Right("", "pods/portforward", "platform", ("create",)),
    *(
        Right("apps", resource, "platform", ("get", "list", "create", "patch", "delete"))
        for resource in ("deployments", "statefulsets", "daemonsets")
    ),
    Right("batch", "jobs", "platform", ("get", "list", "create", "patch", "delete")),
    Right("policy", "poddisruptionbudgets", "platform"),
    Right("networking.k8s.io", "networkpolicies", "platform"),
    Right("networking.k8s.io", "networkpolicies", "tasks"),
    Right("rbac.authorization.k8s.io", "roles", "tasks"),
    Right("rbac.authorization.k8s.io", "rolebindings", "tasks"),
    Right("rbac.authorization.k8s.io", "clusterroles", "cluster"),
    Right("rbac.authorization.k8s.io", "clusterrolebindings", "cluster"),
    Right("", "nodes", "cluster", ("list",)),
)
NAMESPACES = Right("", "namespaces", "cluster", ("create",))


def operators(kubectl: Kubectl, tasks: str, *, has_namespace: bool) -> Iterator[Finding]:
    """The rights of the user that runs the command, checked in one call."""
    spaces = {"platform": kubectl.to.namespace, "tasks": tasks, "cluster": ""}
    wanted = [
        Asked(right.group, right.resource, verb, spaces[right.where])
        for right in (*RIGHTS, *(() if has_namespace else (NAMESPACES,)))
        for verb in right.verbs
    ]
    lacking = _lacking(kubectl, wanted, "SelfSubjectAccessReview", {})
    for what, verbs in lacking.items():
        fix = "ask the cluster's administrator, or use another kubeconfig"
        yield Finding("bad", f"you may not {', '.join(verbs)} {what}", fix)
    if not lacking:
        yield Finding("ok", f"you have the {len(wanted)} rights that an installation needs")


def launchers(kubectl: Kubectl, it: Installed) -> Iterator[Finding]:
    """The account of the launcher, as the chart gives it its rights."""
    from services.launcher.runtimes.kubernetes.cluster_check import RIGHTS as LAUNCHERS  # noqa: PLC0415 - imports the service

    wanted = [
        Asked("", right.resource, verb, it.tasks_namespace if right.within else "")
        for right in LAUNCHERS
        for verb in right.verbs
    ]
    user = f"system:serviceaccount:{it.to.namespace}:{it.prefix}-launcher"
    groups = ["system:serviceaccounts", "system:authenticated"]
    try:
        lacking = _lacking(kubectl, wanted, "SubjectAccessReview", {"user": user, "groups": groups})
    except Failure as problem:
        yield Finding("warn", f"what the launcher may do cannot be asked: {problem.what}")
        return
    for what, verbs in lacking.items():
        fix = "`shiftwork k8s up` gives it its rights again"
        yield Finding("bad", f"the launcher may not {', '.join(verbs)} {what}", fix)
    if not lacking:
        yield Finding("ok", f"the launcher has the {len(wanted)} rights that it needs")


@dataclass(frozen=True, slots=True)
class Asked:
    """One question. ``namespace`` empty: in the whole cluster."""

    group: str
    resource: str
    verb: str
    namespace: str

    @property
    def what(self) -> str:
        """The right as text for people, without the verb."""
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{name} {where}"

    def attributes(self) -> dict[str, str]:
        """The right as the attributes of an access review."""
        resource, _, sub = self.resource.partition("/")
        found = {"group": self.group, "resource": resource, "verb": self.verb}
        found |= {"subresource": sub} if sub else {}
        return found | ({"namespace": self.namespace} if self.namespace else {})


def _lacking(
    kubectl: Kubectl, wanted: Sequence[Asked], kind: str, subject: Mapping[str, Any]
) -> dict[str, list[str]]:
    """What is refused, with its verbs."""
    answers = kubectl.create(
        [
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": kind,
                "spec": {**subject, "resourceAttributes": each.attributes()},
            }
            for each in wanted
        ]
    )
    refused: Iterable[Asked] = (
        each
        for each, answer in zip(wanted, answers, strict=True)
        if not answer["status"].get("allowed")
    )
    found: dict[str, list[str]] = {}
    for each in refused:
        found.setdefault(each.what, []).append(each.verb)
    return found
