"""Has the nodes' kernels enforce the cluster's NetworkPolicies: look, work out the rules, set them.

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
from tools.cluster.policies import Pod, World, pods_of, ruleset
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
        # On its usual port it is judged by the policies; on another one no policy can name it.
        host = layout.host_address
        self._passing = [
            f"ip daddr {host} {protocol} dport {dns_port}"
            for protocol in ("udp", "tcp")
            if dns_port != dns.PORT
        ]
        # What each node's kernel was told last, by the node's first process: a new one knows none.
        self._told: dict[int, str] = {}

    def look(self) -> None:
        """Compare and set.

        Raises:
            ApiError: The API server does not answer.
            SystemFailure: A node's kernel does not take its rules, or would judge wrongly by them.
        """
        world = self._world()
        told: dict[int, str] = {}
        for node in self._nodes:
            try:
                pid = node.init_pid
            except LookupError:
                continue
            if pid not in self._told and not network.sees_bridged_traffic(pid):
                # Then Services hide who asks (see Node), and who may ask would be refused.
                raise SystemFailure(NOT_ENFORCED)
            told[pid] = text = ruleset(world, node.plan.name, self._passing)
            if self._told.get(pid) != text:
                inside = ("nsenter", "--target", str(pid), "--net", "--")
                run(*inside, "nft", "--file", "-", standard_input=text)
        self._told = told

    def _world(self) -> World:
        pods = list(pods_of(self._items(PODS)))
        # DNS is a process of this machine; policies know it as the pods it is elsewhere.
        pods.append(Pod("kube-system", {"k8s-app": "kube-dns"}, self._layout.host_address, ""))
        namespaces = {
            one["metadata"]["name"]: one["metadata"].get("labels") or {}
            for one in self._items(NAMESPACES)
        }
        return World(self._items(POLICIES), namespaces, pods)

    def _items(self, path: str) -> list[dict[str, Any]]:
        # From the API server's memory: etcd is not asked.
        return self._api.items(path, resourceVersion="0")

    def run(self) -> None:
        """Look until the process is ended; a failure is said once and tried again."""
        said = ""
        while True:
            try:
                self.look()
                problem = ""
            except (ApiError, SystemFailure) as failure:
                problem = str(failure)
                self._told = {}
            if problem != said:
                print(problem or "rules are set again", file=sys.stderr, flush=True)
            said = problem
            time.sleep(LOOK_SECONDS)
