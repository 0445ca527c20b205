"""How the programs of a control plane are called. Pure: values in, arguments out.

``ControlPlane`` writes the files that are named here and starts the programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cluster.simulated import LABEL

LOCAL = "127.0.0.1"
ETCD, ETCD_PEER, API_SERVER = "etcd", "etcd-peer", "kube-apiserver"
CONTROLLERS, SCHEDULER, KWOK = "kube-controller-manager", "kube-scheduler", "kwok"
API_NAMES = (
    "localhost",
    LOCAL,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a control plane is set up. The defaults are for tests: quick, and lost with the power."""

    # Where the API server listens. Pods reach it there unless it is loopback.
    listen: str = LOCAL
    port: int = 0
    controllers: bool = True
    scheduler: bool = True
    simulated_nodes: bool = True
    # etcd waits for the disk before it answers; without, a power cut loses seconds.
    durable: bool = False
    watch_cache: bool = True
    # When a node whose kubelet is silent counts as not ready, and how often nodes are checked.
    node_grace_seconds: int = 50
    node_monitor_seconds: int = 2
    # The lease of a simulated node, renewed four times in it.
    simulated_lease_seconds: int = 40
    service_subnet: str = "10.96.0.0/16"
    pod_subnet: str = "10.244.0.0/16"
    # Kubelets of these names may join.
    nodes: tuple[str, ...] = ()
    # The audit log: one JSON line for each request that writes.
    audit: bool = False
    api_server_flags: tuple[str, ...] = ()
    controller_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one control plane keeps its files, and on which ports of this machine it listens."""

    folder: Path
    ports: Mapping[str, int]

    @property
    def certificates(self) -> Path:
        """The authority's certificate, and what it signed."""
        return self.folder / "certificates"

    @property
    def signing_key(self) -> Path:
        """The key of ServiceAccounts' tokens."""
        return self.folder / "service-accounts.key"

    @property
    def tokens(self) -> Path:
        """The API server's first users."""
        return self.folder / "tokens.csv"

    @property
    def audit_log(self) -> Path:
        """With ``Options.audit``: one JSON line for each request that wrote."""
        return self.folder / "audit.jsonl"

    @property
    def audit_policy(self) -> Path:
        """What is written down there."""
        return self.folder / "audit-policy.json"

    @property
    def scheduler(self) -> Path:
        """The scheduler's configuration."""
        return self.folder / "scheduler.json"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of a user of the token file."""
        return self.folder / "kubeconfigs" / user


AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


def scheduler_configuration(place: Place) -> dict[str, Any]:
    """The scheduler's configuration file."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(place.kubeconfig("scheduler")),
            "qps": 1000,
            "burst": 2000,
        },
        "leaderElection": {"leaderElect": False},
    }


def etcd(options: Options, place: Place) -> list[str]:
    """etcd, for this control plane alone."""
    client = f"http://{LOCAL}:{place.ports[ETCD]}"
    peer = f"http://{LOCAL}:{place.ports[ETCD_PEER]}"
    return [
        f"--data-dir={place.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--quota-backend-bytes=8589934592",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=10m",
        "--log-level=warn",
        f"--unsafe-no-fsync={_word(not options.durable)}",
    ]


def api_server(options: Options, place: Place) -> list[str]:
    """kube-apiserver, with RBAC, tokens from a file, and the way to kubelets."""
    certificates, key = place.certificates, place.signing_key
    flags = [
        f"--etcd-servers=http://{LOCAL}:{place.ports[ETCD]}",
        f"--bind-address={options.listen}",
        f"--secure-port={place.ports[API_SERVER]}",
        f"--advertise-address={options.listen}",
        f"--tls-cert-file={certificates / 'server.crt'}",
        f"--tls-private-key-file={certificates / 'server.key'}",
        f"--kubelet-client-certificate={certificates / 'kubelet-client.crt'}",
        f"--kubelet-client-key={certificates / 'kubelet-client.key'}",
        f"--token-auth-file={place.tokens}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={options.service_subnet}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--watch-cache={_word(options.watch_cache)}",
        "--kubelet-preferred-address-types=InternalIP",
        # A loopback address cannot be the endpoint of the Service `kubernetes`.
        f"--endpoint-reconciler-type={'none' if options.listen == LOCAL else 'lease'}",
        "--profiling=false",
    ]
    if options.audit:
        flags += [
            f"--audit-policy-file={place.audit_policy}",
            f"--audit-log-path={place.audit_log}",
        ]
    return [*flags, *options.api_server_flags]


def controllers(options: Options, place: Place) -> list[str]:
    """kube-controller-manager, every controller with its own limited user."""
    return [
        f"--kubeconfig={place.kubeconfig('controller-manager')}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={place.signing_key}",
        f"--root-ca-file={place.certificates / 'ca.crt'}",
        f"--bind-address={LOCAL}",
        f"--secure-port={place.ports[CONTROLLERS]}",
        f"--cert-dir={place.certificates / CONTROLLERS}",
        "--leader-elect=false",
        f"--node-monitor-period={options.node_monitor_seconds}s",
        f"--node-monitor-grace-period={options.node_grace_seconds}s",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
        *options.controller_flags,
    ]


def scheduler(options: Options, place: Place) -> list[str]:
    """kube-scheduler; the rest is in its configuration file."""
    del options
    return [
        f"--config={place.scheduler}",
        f"--bind-address={LOCAL}",
        f"--secure-port={place.ports[SCHEDULER]}",
        f"--cert-dir={place.certificates / SCHEDULER}",
    ]


def kwok(options: Options, place: Place, stages: Sequence[Path]) -> list[str]:
    """kwok, for the nodes that carry its label; ``stages`` define how they and their pods act."""
    return [
        f"--kubeconfig={place.kubeconfig('kwok')}",
        f"--manage-nodes-with-label-selector={LABEL}=fake",
        f"--cidr={options.pod_subnet}",
        "--node-ip=10.0.0.1",
        f"--node-lease-duration-seconds={options.simulated_lease_seconds}",
        f"--server-address={LOCAL}:{place.ports[KWOK]}",
        *(f"--config={stage}" for stage in stages),
    ]


def _word(value: bool) -> str:
    return "true" if value else "false"
