"""The cluster of this machine: a control plane, DNS, and real nodes; up, down, and what it is like.

Everything it makes is either in its folder, in name spaces that end with its processes, or listed
here to be taken back: control groups, one bridge, settings of the kernel, an empty folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tools.cluster import access, cgroups, configs, dns, images, network, nodes, prerequisites
from tools.cluster.api import ApiError, wait_until
from tools.cluster.control_plane import ControlPlane, Options, free_ports, is_free
from tools.cluster.enforcing import Enforcer
from tools.cluster.layout import API_PORT, Layout, NodePlan, default_folder
from tools.cluster.programs import program, programs
from tools.cluster.simulated import NODES, ready_nodes
from tools.cluster.system import Switches, switch

NODE_SECONDS = 90.0
DNS, POLICIES = "coredns", "policies"
NODE_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "kubelet",
    "kube-proxy",
    "coredns",
    "pause",
    "gpus",
)
# The kubelet sets these for the whole machine; what they were is put back.
SET_BY_KUBELETS = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)
# Two nodes and everything that follows logs on them need more of these than one desktop.
WATCHERS = "fs.inotify.max_user_instances"
WATCHERS_NEEDED = 1024


class Cluster:
    """The cluster in a folder. Blocking."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout.read(default_folder())
        options = Options(
            listen=self.layout.host_address,
            port=API_PORT,
            simulated_nodes=False,
            node_grace_seconds=12,
            node_monitor_seconds=1,
            service_subnet=str(self.layout.service_subnet),
            pod_subnet=str(self.layout.pod_subnet),
            nodes=tuple(plan.name for plan in self.layout.nodes),
        )
        self.exists = (self.layout.folder / "plane").exists()
        self._options = options
        self._plane: ControlPlane | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def plane(self) -> ControlPlane:
        """The control plane."""
        if self._plane is None:
            self._plane = ControlPlane(self.layout.folder / "plane", self._options)
        return self._plane

    @property
    def nodes(self) -> list[nodes.Node]:
        """The nodes."""
        plane = self.plane
        return [
            nodes.Node(self.layout, plan, url=plane.url, authority=plane.authority)
            for plan in self.layout.nodes
        ]

    def node(self, name: str) -> nodes.Node:
        """The node of this name."""
        plan: NodePlan = self.layout.node(name)
        return next(node for node in self.nodes if node.plan == plan)

    def is_up(self) -> bool:
        """Whether every program runs, the API server answers and every node is Ready."""
        if not self.exists or not self.layout.kubeconfig.exists() or self.ended():
            return False
        try:
            return {plan.name for plan in self.layout.nodes} <= ready_nodes(self.plane.api)
        except (ApiError, FileNotFoundError):
            return False

    def ended(self) -> list[str]:
        """The programs that should run and do not."""
        plane = self.plane.processes
        wanted = [(name, plane.is_running(name)) for name in (*self.plane.wanted(), DNS, POLICIES)]
        for node in self.nodes:
            wanted += [(node.named(name), node.is_running(name)) for name in node.wanted()]
        return [name for name, runs in wanted if not runs]

    def up(self) -> None:
        """Start what does not run, and wait until every node is Ready and pods can start.

        Raises:
            CannotRunError: This machine cannot run nodes.
        """
        prerequisites.install_missing()
        prerequisites.check(self.layout)
        programs(NODE_PROGRAMS)
        with self._alone():
            self._up()

    def _up(self) -> None:
        layout = self.layout
        self._prepare()
        self.exists = True
        network.ensure_bridge(layout)
        self.plane.start()
        self._start_dns()
        tokens = json.loads((self.plane.folder / "tokens.json").read_text("utf-8"))
        for node in self.nodes:
            node.start(tokens)
            images.load_program(node, "pause", configs.PAUSE_IMAGE)
        self.plane.processes.start_command(POLICIES, "policies")
        try:
            wait_until(self._nodes_ready, "nodes Ready", seconds=NODE_SECONDS)
        except TimeoutError as problem:
            raise TimeoutError("\n".join([str(problem), *self.status()])) from problem
        text = self.plane.kubeconfig.read_text("utf-8")
        access.write_secret(layout.kubeconfig, text)

    def enforce(self) -> None:
        """Have the nodes enforce NetworkPolicies until this process is ended."""
        port, _ = self._dns_ports()
        Enforcer(self.layout, self.nodes, self.plane.api, port).run()

    def close(self) -> None:
        """Close our own connections; the cluster runs on."""
        if self._plane is not None:
            self._plane.close()

    def down(self) -> list[str]:
        """End everything and take everything back; what could not be, in words (usually none)."""
        with self._alone():
            return self._down() if self.layout.folder.exists() else []

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One at a time: starting and ending touch the machine."""
        parent = os.open(self.layout.folder.parent, os.O_RDONLY)
        try:
            fcntl.flock(parent, fcntl.LOCK_EX)
            yield
        finally:
            os.close(parent)

    def _down(self) -> list[str]:
        left: list[str] = []
        if self.exists:
            self.plane.processes.stop(POLICIES)
            for node in self.nodes:
                node.stop()
            self.plane.processes.stop(DNS)
            self.plane.stop()
        network.remove()
        left += [f"control group {path}" for path in cgroups.remove()]
        Switches(self.layout.folder / "switches.json").restore()
        for folder in self._made():
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
        if not left:
            nodes.remove_folder(self.layout.folder)
        self._plane, self.exists = None, False
        return left

    def status(self) -> list[str]:
        """The programs that run and those that do not, a line each."""
        if not self.exists:
            return ["not started"]
        ended = self.ended()
        lines = [f"{name:<28} does not run" for name in ended]
        if not ended:
            lines.append(f"{'every program':<28} runs")
        try:
            ready = ready_nodes(self.plane.api)
        except ApiError as problem:
            return [*lines, str(problem)]
        lines += [
            f"{plan.name:<28} {'Ready' if plan.name in ready else 'NOT READY'}"
            for plan in self.layout.nodes
        ]
        return lines

    def stop_kubelet(self, name: str, *, kill: bool = False) -> None:
        """Stop the node's kubelet; its containers go on."""
        self.node(name).stop_program(nodes.KUBELET, kill=kill)

    def start_kubelet(self, name: str) -> None:
        """Start a stopped kubelet, and wait until the node is Ready with its GPUs again."""
        self.node(name).start_program(nodes.KUBELET)
        wait_until(self._nodes_ready, f"{name} Ready", seconds=NODE_SECONDS)

    def load(self, names: list[str]) -> None:
        """Bring images from this machine's podman to every node."""
        images.load(self.nodes, names)

    def _nodes_ready(self) -> bool:
        if not {plan.name for plan in self.layout.nodes} <= ready_nodes(self.plane.api):
            return False
        for plan in self.layout.nodes:
            if self.layout.gpus:
                there = self.plane.api.get(f"{NODES}/{plan.name}")["status"]["allocatable"]
                if there.get(self.layout.gpu_resource) != str(self.layout.gpus):
                    return False
        return True

    def _prepare(self) -> None:
        folder = self.layout.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.layout.shared.mkdir(exist_ok=True)
        # World-writable like a scratch file system: pods of any user store their checkpoints here.
        self.layout.shared.chmod(0o1777)
        self.layout.write()
        (folder / "resolv.conf").write_text("", "utf-8")
        wanted = dict.fromkeys(SET_BY_KUBELETS)
        if switch(WATCHERS) < WATCHERS_NEEDED:
            wanted[WATCHERS] = str(WATCHERS_NEEDED)
        Switches(folder / "switches.json").remember(wanted)
        kubelet = Path(configs.KUBELET)
        if not kubelet.exists():
            made = [*self._made(), kubelet]
            (folder / "made.json").write_text(json.dumps([str(path) for path in made]), "utf-8")
            kubelet.mkdir()

    def _made(self) -> list[Path]:
        path = self.layout.folder / "made.json"
        return [Path(one) for one in json.loads(path.read_text("utf-8"))] if path.exists() else []

    def _start_dns(self) -> None:
        plane, folder = self.plane, self.layout.folder / "dns"
        folder.mkdir(exist_ok=True)
        port, health = self._dns_ports()
        config = folder / "kubeconfig"
        access.write_secret(config, plane.kubeconfig_text("coredns"))
        text = dns.corefile(self.layout, kubeconfig=str(config), port=port, health_port=health)
        (folder / "Corefile").write_text(text, "utf-8")
        for path, body in dns.objects(self.layout, port):
            plane.api.apply(path, body)
        plane.processes.start(DNS, [program(DNS), "-conf", folder / "Corefile"])

    def _dns_ports(self) -> tuple[int, int]:
        """The ports of DNS: for queries, and for its health."""
        path = self.layout.folder / "dns" / "ports.json"
        if not path.exists():
            port, health = free_ports(2)
            if is_free(self.layout.host_address, dns.PORT):
                port = dns.PORT
            path.write_text(json.dumps([port, health]), "utf-8")
        port, health = json.loads(path.read_text("utf-8"))
        return port, health
