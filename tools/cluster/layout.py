"""What the cluster of this machine is made of: its folder, its nodes, their addresses."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

FOLDER_VARIABLE = "SHIFTWORK_CLUSTER_DIR"
DEFAULT_FOLDER = Path("/var/lib/shiftwork-cluster")
KEPT = ("node_count", "gpus", "gpu_resource")
BRIDGE = "shiftwork0"
NODE_SUBNET = IPv4Network("10.243.0.0/24")
POD_SUBNET = IPv4Network("10.244.0.0/16")
SERVICE_SUBNET = IPv4Network("10.96.0.0/16")
DNS_HOST = 10
FIRST_NODE_HOST = 11
API_PORT = 6443


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: everything about it that is known before it runs."""

    number: int
    name: str
    address: str
    pods: IPv4Network
    folder: Path

    @property
    def cable(self) -> str:
        """The host's end of the node's network cable."""
        return f"shiftwork-n{self.number}"

    @property
    def cgroup(self) -> str:
        """The control group of the node's pods, below every controller's root."""
        return f"/shiftwork-cluster/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The whole cluster. The subnets are this machine's own: nothing of them leaves it."""

    folder: Path = DEFAULT_FOLDER
    node_count: int = 2
    # GPUs that each node's device plugin offers, though there are none; 0: no plugin.
    gpus: int = 2
    gpu_resource: str = "nvidia.com/gpu"
    node_subnet: IPv4Network = NODE_SUBNET
    pod_subnet: IPv4Network = POD_SUBNET
    service_subnet: IPv4Network = SERVICE_SUBNET

    @property
    def host_address(self) -> str:
        """Where nodes and pods reach the API server and DNS."""
        return str(self.node_subnet[1])

    @property
    def dns_address(self) -> str:
        """The Service address of DNS."""
        return str(self.service_subnet[DNS_HOST])

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def shared(self) -> Path:
        """A folder that every node sees under the same path, as network storage would be."""
        return self.folder / "shared"

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """The nodes, in order."""
        subnets = list(self.pod_subnet.subnets(new_prefix=24))
        return tuple(
            NodePlan(
                number=number,
                name=f"node-{number}",
                address=str(self.node_subnet[FIRST_NODE_HOST - 1 + number]),
                pods=subnets[number],
                folder=self.folder / "nodes" / f"node-{number}",
            )
            for number in range(1, self.node_count + 1)
        )

    def write(self) -> None:
        """Write down what may differ, so that every later command means the same cluster."""
        kept = {name: getattr(self, name) for name in KEPT}
        (self.folder / "layout.json").write_text(json.dumps(kept), "utf-8")

    @staticmethod
    def read(folder: Path) -> Layout:
        """The cluster in this folder; the default one where there is none yet."""
        path = folder / "layout.json"
        kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return Layout(folder=folder, **kept)

    def node(self, name: str) -> NodePlan:
        """The node of this name.

        Raises:
            KeyError: There is none.
        """
        for plan in self.nodes:
            if plan.name == name:
                return plan
        known = ", ".join(plan.name for plan in self.nodes)
        raise KeyError(f"no node {name!r}; there are {known}")


def default_folder() -> Path:
    """The default folder of the cluster's state."""
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
