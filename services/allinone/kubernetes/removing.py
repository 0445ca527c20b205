"""Removes a release: lets running tasks save first, and reports or deletes what stays.

Called by ``shiftwork k8s down``. Without ``--purge``, these outlive a removal: volumes, the Secrets
that belong to the data, the namespace of tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass

import httpx
from shiftwork.cli.failures import Failure
from shiftwork.cli.parse import fields

from libs.pods.kubernetes_names import DOMAIN, EPOCH_MAP, MANAGED_BY, MANAGER
from services.allinone.client import client_of
from services.allinone.kubernetes import reach, workload_status
from services.allinone.kubernetes.installing import DRAINED, remember_drained
from services.allinone.kubernetes.kubectl import Json, Kubectl
from services.allinone.stopping import drain_nodes

Report = Callable[[str], None]

# What the launcher labels everything of a run with.
OF_RUNS = f"{MANAGED_BY}={MANAGER},{DOMAIN}/task"
# Pods have their own grace period, by default half a minute.
LEAVE_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Kept:
    """One object that a removal leaves."""

    kind: str
    name: str
    namespace: str

    def document(self) -> dict[str, str]:
        """The result as an object for scripts."""
        return asdict(self)

    @property
    def line(self) -> str:
        """The result as text for people."""
        return f"{self.kind} {self.name}" + (f" in {self.namespace}" if self.namespace else "")


def save_first(kubectl: Kubectl, it: reach.Installed, report: Report) -> None:
    """Ask everything that runs to save and leave. Failure if that cannot be."""
    try:
        with reach.front_door(kubectl, it) as (url, token):
            asyncio.run(_drain(kubectl, it, url, token, report))
    except (httpx.HTTPError, TimeoutError) as problem:
        raise Failure(
            f"not every task could save: {problem or type(problem).__name__}",
            where=it.to.where,
            fix="try again, or do not wait for them: `shiftwork k8s down --now`",
        ) from problem
    except Failure as problem:
        raise Failure(
            f"running tasks cannot be asked to save: {problem.what}",
            where=problem.where,
            fix="mend that (`shiftwork k8s status`), or do not wait for them: "
            "`shiftwork k8s down --now`",
            code=problem.code,
        ) from problem


async def _drain(
    kubectl: Kubectl, it: reach.Installed, url: str, token: str, report: Report
) -> None:
    async with client_of(url, token) as client:
        await drain_nodes(client, lambda nodes: remember_drained(kubectl, it, nodes), report)


def sweep(kubectl: Kubectl, it: reach.Installed, report: Report) -> None:
    """Clear away the pods of tasks and what belongs to them; no launcher creates them again."""
    report(f"clearing namespace {it.tasks_namespace}")
    where = ("-n", it.tasks_namespace, "-l", OF_RUNS, "--ignore-not-found")
    # A run's own object first, so that nothing of it is taken for something that lives.
    kubectl.run("delete", "configmaps", *where, "--wait=false")
    seconds = f"--timeout={LEAVE_SECONDS}s"
    kubectl.run("delete", "pods", *where, seconds, seconds_max=LEAVE_SECONDS + 30)
    kubectl.run("delete", "secrets,services", *where)
    kubectl.run("delete", "configmap", EPOCH_MAP, "-n", it.tasks_namespace, "--ignore-not-found")


def kept(kubectl: Kubectl, it: reach.Installed) -> list[Kept]:
    """What is left of the release: its data."""
    found = [
        Kept(one["kind"], one["metadata"]["name"], kubectl.to.namespace)
        for one in kubectl.items("persistentvolumeclaims,secrets,configmaps")
        if _is_ours(one, it)
    ]
    spaces = kubectl.get("namespaces", "-l", workload_status.SELECTOR)["items"]
    found += [Kept("Namespace", one["metadata"]["name"], "") for one in spaces if _is_ours(one, it)]
    return found


def _is_ours(one: Json, it: reach.Installed) -> bool:
    name = str(one["metadata"]["name"])
    labels = fields(one["metadata"].get("labels"))
    key, _, value = workload_status.SELECTOR.partition("=")
    # Claims are made by their StatefulSet, with the labels that it selects by.
    labelled = labels.get(key) == value or one["kind"] == "PersistentVolumeClaim"
    own = labelled and labels.get("app.kubernetes.io/instance") == it.prefix
    # Another release of that name may be in another namespace.
    by = fields(one["metadata"].get("annotations")).get("meta.helm.sh/release-namespace")
    return (own and by in (None, it.to.namespace)) or name == f"{it.prefix}-{DRAINED}"


def purge(kubectl: Kubectl, found: list[Kept], report: Report) -> None:
    """Delete what was kept, for good."""
    for one in found:
        report(f"deleting {one.line}")
        where = ("-n", one.namespace) if one.namespace else ()
        kubectl.run(
            *("delete", one.kind, one.name, "--ignore-not-found", "--timeout=120s", *where),
            seconds_max=150,
        )
