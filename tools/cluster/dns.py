"""The cluster's names: CoreDNS as a process beside the nodes, and what the API server knows of it.

It answers on the machine's own address; its Service has no selector, and its one endpoint is
written by us. Pure: values in, text and objects out.
"""

from __future__ import annotations

from typing import Any

from tools.cluster.access import DNS_USER
from tools.cluster.layout import Layout

# Where it answers if it can: policies and people expect it there.
PORT = 53
RBAC = "rbac.authorization.k8s.io"
ROLE = "shiftwork:coredns"
PROTOCOLS = {"dns": "UDP", "dns-tcp": "TCP"}
READS = (
    ("", ("endpoints", "services", "pods", "namespaces")),
    ("discovery.k8s.io", ("endpointslices",)),
)


def corefile(layout: Layout, *, kubeconfig: str, port: int, health_port: int) -> str:
    """CoreDNS: the cluster's names, fresh at every question, and no way to the outside."""
    ours = "cluster.local in-addr.arpa ip6.arpa"
    return f"""{" ".join(f"{zone}:{port}" for zone in ours.split())} {{
    bind {layout.host_address}
    errors
    health 127.0.0.1:{health_port} {{
        lameduck 0s
    }}
    kubernetes {ours} {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 1
    }}
}}
.:{port} {{
    bind {layout.host_address}
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def objects(layout: Layout, port: int) -> list[tuple[str, dict[str, Any]]]:
    """The objects for the API server: (path, object), to be applied."""
    space = "namespaces/kube-system"
    return [
        (f"/apis/{RBAC}/v1/clusterroles/{ROLE}", _role()),
        (f"/apis/{RBAC}/v1/clusterrolebindings/{ROLE}", _binding()),
        (f"/api/v1/{space}/services/kube-dns", _service(layout, port)),
        (f"/apis/discovery.k8s.io/v1/{space}/endpointslices/kube-dns", _endpoint(layout, port)),
    ]


def _role() -> dict[str, Any]:
    rules = [
        {"apiGroups": [group], "resources": list(resources), "verbs": ["list", "watch"]}
        for group, resources in READS
    ]
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ROLE},
        "rules": rules,
    }


def _binding() -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": DNS_USER}],
    }


def _service(layout: Layout, port: int) -> dict[str, Any]:
    ports = [
        {"name": name, "port": 53, "protocol": protocol, "targetPort": port}
        for name, protocol in PROTOCOLS.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": layout.dns_address, "ports": ports},
    }


def _endpoint(layout: Layout, port: int) -> dict[str, Any]:
    ports = [
        {"name": name, "port": port, "protocol": protocol} for name, protocol in PROTOCOLS.items()
    ]
    labels = {"kubernetes.io/service-name": "kube-dns"}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [layout.host_address], "conditions": {"ready": True}}],
        "ports": ports,
    }
