"""Whether this machine can run real nodes, and in clear words what it lacks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.cluster import network
from tools.cluster.layout import BRIDGE, Layout
from tools.cluster.system import find, run, succeeds

# Tool -> the package that holds it on Debian and Ubuntu.
TOOLS = {
    "runc": "runc",
    "iptables": "iptables",
    "nft": "nftables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_NEEDED = ("bridge", "host-local", "loopback", "portmap")
CNI_PACKAGE = "containernetworking-plugins"
WAY_OUT = (
    "A cluster that you have works as well (kind, minikube, k3s, a cloud): set KUBECONFIG to its "
    "kubeconfig and run the same command again."
)


class CannotRunError(RuntimeError):
    """This machine cannot run real nodes; the message has the reason and the remedy."""


def cni_folder() -> Path | None:
    """Where the network plugins are."""
    for folder in CNI_FOLDERS:
        if all((folder / name).exists() for name in CNI_NEEDED):
            return folder
    return None


def missing_packages() -> list[str]:
    """The Debian packages whose tools are not there."""
    missing = {package for tool, package in TOOLS.items() if find(tool) is None}
    if cni_folder() is None:
        missing.add(CNI_PACKAGE)
    return sorted(missing)


def install_missing() -> None:
    """In CI, as root on Debian or Ubuntu: install what is missing. Elsewhere nothing."""
    missing = missing_packages()
    ours = os.environ.get("CI") == "true" and os.geteuid() == 0 and find("apt-get") is not None
    if not missing or not ours:
        return
    print(f"CI: installing {' '.join(missing)}", file=sys.stderr, flush=True)
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def check(layout: Layout) -> None:
    """Raise unless real nodes can run here.

    Raises:
        CannotRunError: With every reason that was found, and the ways out.
    """
    reasons = list(_reasons(layout))
    if reasons:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        raise CannotRunError(f"Real nodes cannot run on this machine:\n{listed}\n{WAY_OUT}")


def _reasons(layout: Layout) -> list[str]:
    if sys.platform != "linux":
        return [f"nodes need Linux, this is {sys.platform}"]
    if os.geteuid() != 0:
        return ["nodes need root (name spaces, mounts, bridges); you are not root"]
    missing = missing_packages()
    if missing:
        return [f"packages are missing; on Debian and Ubuntu: apt-get install {' '.join(missing)}"]
    reasons: list[str] = []
    unshare = ("unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--mount-proc")
    if not succeeds(*unshare, "true"):
        reasons.append("this machine does not let us make name spaces (is it a container?)")
    if not succeeds("iptables", "-t", "nat", "-S"):
        reasons.append("iptables does not work here (kernel modules or rights are missing)")
    if not succeeds("nft", "list", "tables"):
        reasons.append("nft does not work here (kernel modules or rights are missing)")
    if not os.access("/sys/fs/cgroup", os.W_OK):
        reasons.append("/sys/fs/cgroup is read-only, so pods cannot have limits")
    if not succeeds("ip", "link", "show", BRIDGE):
        subnets = network.taken(layout)
        if subnets:
            reasons.append(f"this machine already has routes into {', '.join(subnets)}")
    return reasons


def snapshotter(folder: Path) -> str:
    """How images are laid on one another here: by the kernel, or (slower) by copies."""
    lower, upper, work, merged = (folder / ".try" / name for name in ("l", "u", "w", "m"))
    for path in (lower, upper, work, merged):
        path.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    works = succeeds("mount", "-t", "overlay", "overlay", "-o", options, merged)
    if works:
        run("umount", merged)
    run("rm", "-rf", folder / ".try")
    return "overlayfs" if works else "native"
