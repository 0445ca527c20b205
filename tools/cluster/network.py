"""The cables between this machine and its nodes: one bridge, one veth pair for each node.

Every node has a network name space of its own, in which its pods' bridge and the rules of its
Services are; nothing of that is on the machine. On the machine are the bridge, the routes to pods
and Services (so that people and tests reach them), and, only where the machine's firewall would
drop it, two rules for traffic on that bridge.
"""

from __future__ import annotations

import json
from ipaddress import IPv4Network, ip_network

from tools.cluster.layout import BRIDGE, Layout, NodePlan
from tools.cluster.system import run, succeeds

COMMENT = ("-m", "comment", "--comment", "shiftwork-cluster")
RULES = {
    "INPUT": ("-i", BRIDGE, *COMMENT, "-j", "ACCEPT"),
    "FORWARD": ("-i", BRIDGE, "-o", BRIDGE, *COMMENT, "-j", "ACCEPT"),
}


def ensure_bridge(layout: Layout) -> None:
    """Make the bridge with the machine's address on it."""
    if not succeeds("ip", "link", "show", BRIDGE):
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    prefix = layout.node_subnet.prefixlen
    run("ip", "address", "replace", f"{layout.host_address}/{prefix}", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for chain, rule in RULES.items():
        drops = run("iptables", "-S", chain).startswith(f"-P {chain} ACCEPT") is False
        if drops and not succeeds("iptables", "-C", chain, *rule):
            run("iptables", "-I", chain, *rule)


def plug_in(layout: Layout, node: NodePlan, init_pid: int) -> None:
    """Connect a node's name space (found by its first process) with the bridge."""
    inside = ("nsenter", "--target", str(init_pid), "--net", "--mount", "--")
    if not succeeds("ip", "link", "show", node.cable):
        peer = ("peer", "name", "eth0", "netns", str(init_pid))
        run("ip", "link", "add", node.cable, "type", "veth", *peer)
    run("ip", "link", "set", node.cable, "master", BRIDGE, "up")
    prefix = layout.node_subnet.prefixlen
    run(*inside, "ip", "link", "set", "lo", "up")
    run(*inside, "ip", "address", "replace", f"{node.address}/{prefix}", "dev", "eth0")
    run(*inside, "ip", "link", "set", "eth0", "up")
    run(*inside, "ip", "route", "replace", "default", "via", layout.host_address)
    for other in layout.nodes:
        if other != node:
            run(*inside, "ip", "route", "replace", str(other.pods), "via", other.address)
    run(*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    run("ip", "route", "replace", str(node.pods), "via", node.address, "dev", BRIDGE)
    if node.number == 1:
        subnet = str(layout.service_subnet)
        run("ip", "route", "replace", subnet, "via", node.address, "dev", BRIDGE)


def sees_bridged_traffic(init_pid: int) -> bool:
    """Whether the node's rules see what goes from pod to pod over the node's own bridge."""
    switch = "/proc/sys/net/bridge/bridge-nf-call-iptables"
    return succeeds(
        *("nsenter", "--target", str(init_pid), "--net", "--mount", "--"),
        *("sh", "-c", f"echo 1 > {switch} && grep -q 1 {switch}"),
    )


def cut(node: NodePlan, *, off: bool = True) -> None:
    """Pull the node's cable, or plug it in again."""
    run("ip", "link", "set", node.cable, "down" if off else "up")


def remove() -> None:
    """Remove the bridge, the cables, the routes and the rules."""
    for chain, rule in RULES.items():
        while succeeds("iptables", "-C", chain, *rule):
            run("iptables", "-D", chain, *rule)
    links = json.loads(run("ip", "-json", "link", "show", "type", "veth") or "[]")
    for link in links:
        if link["ifname"].startswith("shiftwork-n"):
            run("ip", "link", "delete", link["ifname"], check=False)
    if succeeds("ip", "link", "show", BRIDGE):
        # Routes by way of a link go with it.
        run("ip", "link", "delete", BRIDGE)


def taken(layout: Layout) -> list[str]:
    """Which of our subnets this machine already has routes into (by other links than ours)."""
    routes = json.loads(run("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    others: list[IPv4Network] = [
        ip_network(route["dst"], strict=False)
        for route in routes
        if route["dst"] != "default" and route.get("dev") != BRIDGE
    ]
    return [
        str(ours)
        for ours in (layout.node_subnet, layout.pod_subnet, layout.service_subnet)
        if any(ours.overlaps(other) for other in others)
    ]
