"""The machine below a container, for ``MachineSampler``.

A container's own /proc has the processors, memory, load and disks of the whole machine, but the
network of the pod alone. One file of the host, /proc/1/net/dev, has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

# Devices that pass on what a device of the machine receives or sends: it would count twice.
PASSING_ON = (
    *("veth", "cali", "cilium", "lxc", "cni", "docker", "br-", "bridge", "virbr", "kube-"),
    *("flannel", "vxlan", "geneve", "genev_", "tunl", "ip6tnl", "gre", "sit", "wg", "tun", "tap"),
    *("bond", "team", "dummy", "ifb", "nodelocaldns", "antrea", "ovs", "weave", "gw"),
)
COLUMNS = 16
RECEIVED, SENT = 0, 8


class Traffic(NamedTuple):
    """What one network device has passed so far, with psutil's names."""

    bytes_recv: float
    bytes_sent: float


class HostSystem:
    """psutil's functions, with the network devices of the host. ``net_dev``: the host's
    /proc/1/net/dev; without it the network is not measured."""

    cpu_times = staticmethod(psutil.cpu_times)
    getloadavg = staticmethod(psutil.getloadavg)
    virtual_memory = staticmethod(psutil.virtual_memory)
    disk_io_counters = staticmethod(psutil.disk_io_counters)

    def __init__(self, net_dev: Path) -> None:
        self._net_dev = net_dev

    def net_io_counters(self, pernic: bool = False) -> Any:  # noqa: ANN401 - as psutil's
        """The devices that connect the machine. OSError, ValueError if there is no such file."""
        assert pernic
        return devices(self._net_dev.read_text())


def devices(text: str) -> Mapping[str, Traffic]:
    """The machine's own devices in the text of /proc/net/dev. ValueError if it is another text."""
    found: dict[str, Traffic] = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = rest.split()
        if len(columns) < COLUMNS:
            raise ValueError(f"{line[:80]!r} is no line of /proc/net/dev")
        found[name.strip()] = Traffic(float(columns[RECEIVED]), float(columns[SENT]))
    own = {name: each for name, each in found.items() if not name.startswith(PASSING_ON)}
    # A VLAN's traffic passes the device that its name begins with.
    return {
        name: each
        for name, each in own.items()
        if name.partition(".")[0] not in own.keys() - {name}
    }
