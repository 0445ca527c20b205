"""Has the nodes' kernels enforce the cluster's NetworkPolicies: list, compute rules, set them.

Runs as a process of the machine beside the nodes, for all of them. What was set stays if it ends.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tools.cluster import dns, network
from tools.cluster.api import Api, ApiError
from tools.cluster.layout import Layout
from tools.cluster.nodes import Node
from tools.cluster.policies import Pod, PolicyInputs, pods_of, ruleset
from tools.cluster.system import SystemFailure, run

LOOK_SECONDS = 0.5
NOT_ENFORCED = (
    "NetworkPolicies are not enforced: the kernel does not show its rules what goes over a bridge "
    "(modprobe br_netfilter)"
)
NAMESPACES = "/api/v1/namespaces"
PODS = "/api/v1/pods"
POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"


class Enforcer:
    """The rules of every node, brought up to date again and again. Blocking."""

    def __init__(self, layout: Layout, nodes: list[Node], api: Api, dns_port: int) -> None:
        self._layout = layout
        self._nodes = nodes
        self._api = api
        # On its usual port DNS is subject to the policies; on another one no policy can name it.
        host = layout.host_address
        self._passing = [
            f"ip daddr {host} {protocol} dport {dns_port}"
            for protocol in ("udp", "tcp")
            if dns_port != dns.PORT
        ]
        # The last rules of each node's kernel, by the node's first process: a new one has none.
        self._applied: dict[int, str] = {}

    def look(self) -> None:
        """Compare and set.

        Raises:
            ApiError: The API server does not answer.
            SystemFailure: A node's kernel does not take its rules, or would apply them wrongly.
        """
        inputs = self._inputs()
        applied: dict[int, str] = {}
        for node in self._nodes:
            try:
                pid = node.init_pid
            except LookupError:
                continue
            if pid not in self._applied and not network.sees_bridged_traffic(pid):
                # Then Services hide the client (see Node), and permitted clients would be refused.
                raise SystemFailure(NOT_ENFORCED)
            applied[pid] = text = ruleset(inputs, node.plan.name, self._passing)
            if self._applied.get(pid) != text:
                inside = ("nsenter", "--target", str(pid), "--net", "--")
                run(*inside, "nft", "--file", "-", standard_input=text)
        self._applied = applied

    def _inputs(self) -> PolicyInputs:
        pods = list(pods_of(self._items(PODS)))
        # DNS is a process of this machine; policies know it as the pods it is elsewhere.
        pods.append(Pod("kube-system", {"k8s-app": "kube-dns"}, self._layout.host_address, ""))
        namespaces = {
            one["metadata"]["name"]: one["metadata"].get("labels") or {}
            for one in self._items(NAMESPACES)
        }
        return PolicyInputs(self._items(POLICIES), namespaces, pods)

    def _items(self, path: str) -> list[dict[str, Any]]:
        # From the API server's memory: etcd is not asked.
        return self._api.items(path, resourceVersion="0")

    def run(self) -> None:
        """Update the rules until the process ends; a failure is printed once and tried again."""
        reported = ""
        while True:
            try:
                self.look()
                problem = ""
            except (ApiError, SystemFailure) as failure:
                problem = str(failure)
                self._applied = {}
            if problem != reported:
                print(problem or "rules are set again", file=sys.stderr, flush=True)
            reported = problem
            time.sleep(LOOK_SECONDS)
