"""One real node: a machine within the machine, with containerd, kubelet and kube-proxy.

A node has mount, network, process and host name spaces of its own, held open by one first process.
In them it looks like a machine: its own /run, /var/log, /var/lib/kubelet, its own pods' bridge and
Service rules. Ending the first process ends every process of the node, its containers included, and
with the last one go its mounts and its network, so nothing of it can be left behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import cgroups, configs, network
from tools.cluster.access import kubeconfig, write_secret
from tools.cluster.api import wait_until
from tools.cluster.layout import Layout, NodePlan
from tools.cluster.prerequisites import cni_folder, snapshotter
from tools.cluster.processes import Processes, children_of
from tools.cluster.programs import program
from tools.cluster.system import SYSTEM_PATH, find, run, succeeds

SPACES = ("--mount", "--net", "--pid", "--uts")
INIT = "init"
CONTAINERD, KUBELET, PROXY, GPUS = "containerd", "kubelet", "kube-proxy", "gpus"
READY_MARK = "/run/shiftwork-node"
CONTAINERD_SECONDS = 60.0
STOP_SECONDS = 20.0


class Node:
    """One node of the cluster. Blocking."""

    def __init__(self, layout: Layout, plan: NodePlan, *, url: str, authority: Path) -> None:
        self.layout = layout
        self.plan = plan
        self.processes = Processes(layout.folder)
        self._url = url
        self._authority = authority

    @property
    def init(self) -> str:
        """The name of the process that holds the node's name spaces."""
        return self.named(INIT)

    def named(self, program_name: str) -> str:
        """The name of a process; it distinguishes the programs of the node."""
        return f"{self.plan.name}-{program_name}"

    def wanted(self) -> list[str]:
        """The programs of the node, in the order of their start."""
        return [INIT, CONTAINERD, PROXY, KUBELET, *([GPUS] if self.layout.gpus else [])]

    def start(self, tokens: dict[str, str]) -> None:
        """Start what does not run of the node; its kubelet then registers it."""
        self._write_configs(tokens)
        cgroups.make(self.plan.cgroup)
        unshare = [find("unshare") or "unshare", *SPACES, "--fork", "--kill-child", "--mount-proc"]
        self.processes.start(self.init, [*unshare, program("pause")])
        wait_until(self._init_children, self.init, seconds=10, every=0.02)
        self._mount()
        network.plug_in(self.layout, self.plan, self.init_pid)
        self._write_proxy_config(tokens)
        for name in self.wanted()[1:]:
            self.start_program(name)

    def _init_children(self) -> list[int]:
        identity = self.processes.identity(self.init)
        return [] if identity is None else children_of(identity.pid)

    @property
    def init_pid(self) -> int:
        """The first process of the node, as the machine numbers it.

        Raises:
            LookupError: The node does not run.
        """
        children = self._init_children() if self.processes.is_running(self.init) else []
        if not children:
            raise LookupError(f"{self.plan.name} does not run")
        return children[0]

    def _enter(self) -> list[str]:
        return [find("nsenter") or "nsenter", "--target", str(self.init_pid), *SPACES, "--"]

    def run(self, *command: str | Path, check: bool = True) -> str:
        """Run a command inside the node; returns its output."""
        return run(*self._enter(), *command, check=check)

    def ctr(self, *arguments: str | Path) -> str:
        """Ask the node's containerd, in the kubelet's name space of it."""
        return self.run(
            program("ctr"), "--address", configs.CONTAINERD_SOCKET, "-n", "k8s.io", *arguments
        )

    def start_program(self, name: str) -> None:
        """Start one of the node's programs inside of it, unless it runs."""
        environment = {"PATH": f"{program(CONTAINERD).parent}:{SYSTEM_PATH}"}
        arguments: Sequence[str] = {
            CONTAINERD: self._containerd,
            KUBELET: self._kubelet,
            PROXY: self._proxy,
            GPUS: self._gpus,
        }[name]()
        command = [*self._enter(), program(name), *arguments]
        self.processes.start(self.named(name), command, environment, wrapped=True)
        if name == CONTAINERD:
            wait_until(
                lambda: succeeds(*self._enter(), program("ctr"), "version"),
                f"{self.plan.name}: containerd",
                seconds=CONTAINERD_SECONDS,
            )

    def stop_program(self, name: str, *, kill: bool = False) -> None:
        """Stop one of the node's programs; what it started (containers) goes on."""
        self.processes.stop(self.named(name), grace_seconds=STOP_SECONDS, kill=kill)

    def is_running(self, name: str) -> bool:
        """Whether one of the node's programs runs."""
        return self.processes.is_running(self.named(name))

    def stop(self) -> None:
        """End the node: all its processes at once, containers included."""
        for name in (KUBELET, GPUS, PROXY):
            self.stop_program(name, kill=True)
        # The kernel ends everything in the name space of processes with its first one.
        self.processes.stop(self.init, kill=True)
        self.stop_program(CONTAINERD, kill=True)

    def _mount(self) -> None:
        if succeeds(*self._enter(), "test", "-e", READY_MARK):
            return
        folder = self.plan.folder
        for name in ("log", "kubelet", "containerd"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        steps = [
            # Mounts of the machine do not come in, and the node's do not get out; containers may
            # ask that the node's own go further.
            ("mount", "--make-rprivate", "/"),
            ("mount", "--make-rshared", "/"),
            ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"),
            ("mkdir", "-p", "/run/lock"),
            ("mount", "--bind", folder / "log", "/var/log"),
            ("mount", "--bind", folder / "kubelet", configs.KUBELET),
            # Nobody outside is asked for a name: an image that is not here is not found at once.
            ("mount", "--bind", self.layout.folder / "resolv.conf", "/etc/resolv.conf"),
            ("hostname", self.plan.name),
            ("touch", READY_MARK),
        ]
        for step in steps:
            self.run(*step)

    def _write_configs(self, tokens: dict[str, str]) -> None:
        folder = self.plan.folder
        (folder / "cni").mkdir(parents=True, exist_ok=True)
        (folder / "cni" / "10-pods.conflist").write_text(configs.cni(self.plan), "utf-8")
        text = configs.containerd(
            self.plan,
            snapshotter=snapshotter(self.layout.folder),
            runc=find("runc") or "runc",
            cni_programs=str(cni_folder()),
        )
        (folder / "containerd.toml").write_text(text, "utf-8")
        text = configs.kubelet(self.layout, self.plan, cgroup_version=cgroups.version())
        (folder / "kubelet.json").write_text(text, "utf-8")
        for user in (f"kubelet-{self.plan.name}", "kube-proxy"):
            made = kubeconfig(url=self._url, authority=self._authority, token=tokens[user])
            write_secret(folder / f"{user}.kubeconfig", made)

    def _write_proxy_config(self, tokens: dict[str, str]) -> None:
        del tokens
        text = configs.kube_proxy(
            self.layout,
            self.plan,
            kubeconfig=str(self.plan.folder / "kube-proxy.kubeconfig"),
            masquerade_all=not network.sees_bridged_traffic(self.init_pid),
        )
        (self.plan.folder / "kube-proxy.json").write_text(text, "utf-8")

    def _containerd(self) -> list[str]:
        return ["--config", str(self.plan.folder / "containerd.toml")]

    def _kubelet(self) -> list[str]:
        folder = self.plan.folder
        return [
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={folder / f'kubelet-{self.plan.name}.kubeconfig'}",
            f"--hostname-override={self.plan.name}",
            f"--node-ip={self.plan.address}",
        ]

    def _proxy(self) -> list[str]:
        return [f"--config={self.plan.folder / 'kube-proxy.json'}"]

    def _gpus(self) -> list[str]:
        return ["-resource", self.layout.gpu_resource, "-count", str(self.layout.gpus)]


def remove_folder(folder: Path) -> None:
    """Remove a folder, unless something is still mounted in it.

    Raises:
        RuntimeError: A mount is left; removing would reach into it.
    """
    mounts = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    inside = [
        where for line in mounts if (where := line.split()[4]).startswith(f"{folder}{os.sep}")
    ]
    if inside:
        raise RuntimeError(f"still mounted below {folder}: {', '.join(inside)}")
    shutil.rmtree(folder, ignore_errors=True)
