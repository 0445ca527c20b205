"""What the Kubernetes benchmarks share: a control plane with simulated nodes, the platform on it,
and how much each user of the API server wrote.

The control plane is real (etcd, API server, controllers, scheduler); kwok plays the kubelets. The
platform runs outside, as ``shiftwork up`` does, with a launcher that has exactly the rights that
its chart gives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Platform
from tools.cluster import simulated
from tools.cluster.control_plane import (
    API_SERVER,
    CONTROLLERS,
    ETCD,
    KWOK,
    SCHEDULER,
    ControlPlane,
    Options,
)

NAMESPACE = "shiftwork-tasks"
LAUNCHER = "launcher"
# Not one of kwok's misbehaving images: it runs until it is deleted.
IMAGE = "benchmark/program:1"
USED = {API_SERVER, CONTROLLERS, ETCD, KWOK, SCHEDULER}
# A thousand nodes that renew a lease every ten seconds would be what is measured.
LEASE_SECONDS, GRACE_SECONDS = 1_200, 3_600
# Users with fewer writes for each pod are not shown.
SHOWN_MIN = 0.01

RULES = (
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["secrets", "services"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
)
CLUSTER_RULES = (
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster as the platform is configured for it."""

    # The administrator's kubeconfig, and the launcher's own.
    kubeconfig: Path
    launcher: Path
    # The pod policy of the site.
    policy: Path
    node_ids: tuple[str, ...]
    namespace: str = NAMESPACE
    # Where the gateway listens: an address that pods reach, if they are real.
    host: str = "127.0.0.1"

    def environment(self, **more: object) -> dict[str, str]:
        """The variables of the platform's process; ``more`` are further launcher settings."""
        launcher = {
            "runtime": "kubernetes",
            "kube_namespace": self.namespace,
            "kube_config": self.launcher,
            "pod_policy_file": self.policy,
            **more,
        }
        variables = {
            f"SHIFTWORK_LAUNCHER_{key.upper()}": str(value) for key, value in launcher.items()
        }
        return variables | {"SHIFTWORK_SUBMIT_POD_POLICY_FILE": str(self.policy)}


@dataclass(frozen=True, kw_only=True)
class Kube(Cluster):
    """A control plane of our own with simulated nodes."""

    plane: ControlPlane

    def writes(self) -> Writes:
        """Count what is written from now on."""
        return Writes(self.plane.audit_log, self.plane.audit_log.stat().st_size)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time of each program of the control plane since it began."""
        found: dict[str, float] = {}
        for name in sorted(USED):
            identity = self.plane.processes.identity(name)
            if identity is not None:
                found[name] = cpu_seconds_of(identity.pid)
        return found


def cpu_seconds_of(pid: int) -> float:
    """Processor time of a process since it began; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:13]) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Writes:
    """The audit log from a given position on."""

    log: Path
    begin: int

    def entries(self) -> Iterator[Write]:
        """Every successful one."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                entry: dict[str, Any] = json.loads(line)
                if entry.get("responseStatus", {}).get("code", 0) < 300:
                    yield _write(entry)

    def per(self, count: int) -> dict[str, float]:
        """Writes by user, for each of so many."""
        users = Counter(each.user for each in self.entries())
        return {user: found / count for user, found in users.items() if found >= count * SHOWN_MIN}

    def of_tasks(
        self, user: str, tasks: Collection[str], verbs: Collection[str] = ()
    ) -> Counter[tuple[str, str]]:
        """One user's writes to the objects of these tasks: (verb, resource) -> how many."""
        return Counter(
            (each.verb, each.resource)
            for each in self.entries()
            if each.user == user
            and each.name.partition("-")[0] in tasks
            and (not verbs or each.verb in verbs)
        )


@dataclass(frozen=True, slots=True)
class Write:
    """One line of the audit log."""

    user: str
    verb: str
    resource: str
    name: str


def _write(entry: dict[str, Any]) -> Write:
    what = entry.get("objectRef", {})
    return Write(
        # Of a ServiceAccount, its own name.
        user=entry["user"]["username"].rpartition(":")[2],
        verb=entry["verb"],
        resource="/".join(filter(None, (what.get("resource"), what.get("subresource")))),
        name=what.get("name", ""),
    )


@contextlib.contextmanager
def kubernetes(nodes: int, *, gpus: int = 8, **options: Any) -> Generator[Kube]:  # noqa: ANN401
    """A control plane with so many simulated nodes; it goes, with its folder, at the end."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-kube-"))
    given: dict[str, Any] = {
        "audit": True,
        "simulated_lease_seconds": LEASE_SECONDS,
        "node_grace_seconds": GRACE_SECONDS,
        **options,
    }
    try:
        with ControlPlane(folder / "plane", Options(**given)) as plane:
            plane.end_with(os.getpid())
            names = tuple(f"n{number:05d}" for number in range(nodes))
            simulated.add_nodes(plane.api, names, gpus=gpus, seconds=600)
            plane.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
            launcher = plane.service_account(
                NAMESPACE, LAUNCHER, RULES, cluster_rules=CLUSTER_RULES
            )
            policy = folder / "pod-policy.json"
            policy.write_text(json.dumps({"default_image": IMAGE}))
            yield Kube(
                kubeconfig=plane.kubeconfig,
                launcher=launcher,
                policy=policy,
                node_ids=names,
                plane=plane,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def platform_on(
    cluster: Cluster,
    *,
    apart: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Generator[Platform]:
    """A platform whose launcher commands this cluster, not started yet. ``apart``: services that
    are processes of their own; ``settings``: the launcher's, beside where the cluster is."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-"))
    options = [word for name in apart for word in ("--apart", name)]
    command = [sys.executable, "-m", "benchmarks.kube_platform", "--host", cluster.host, *options]
    variables = cluster.environment(**(settings or {})) | dict(environment or {})
    made = Platform(folder, command, variables)
    try:
        yield made
    finally:
        made.stop()
        made.keep_log()
        shutil.rmtree(folder, ignore_errors=True)
