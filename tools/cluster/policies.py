"""What NetworkPolicies mean for the pods of one node, as rules of the kernel's packet filter.

As https://kubernetes.io/docs/concepts/services-networking/network-policies/ defines them: a pod
that a policy selects for a direction may do in it what the union of its policies' rules allows, and
nothing else; answers to what was allowed always pass. Each node filters the traffic to and from its
own pods, with the addresses that pods have (Services are resolved before). Pure: objects of the API
in, text for ``nft --file`` out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Labels = Mapping[str, str]
Object = Mapping[str, Any]

TABLE = "shiftwork_policies"


@dataclass(frozen=True, slots=True)
class Direction:
    """Ingress or egress: its name, its fields in a policy, and whose the addresses are."""

    name: str
    rules: str
    peers: str
    own: str
    other: str


INGRESS = Direction("Ingress", "ingress", "from", own="daddr", other="saddr")
EGRESS = Direction("Egress", "egress", "to", own="saddr", other="daddr")
OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pod:
    """The fields of a pod that policies match; ``ports``: its named ones, by (name, protocol)."""

    namespace: str
    labels: Labels
    address: str
    node: str
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """The objects that rules depend on: policies, all pods, and the labels of all namespaces."""

    policies: Sequence[Object]
    namespaces: Mapping[str, Labels]
    pods: Sequence[Pod]


def pods_of(items: Iterable[Object]) -> Iterator[Pod]:
    """The pods with an address of their own that are not over."""
    for one in items:
        spec, status = one["spec"], one.get("status", {})
        address = status.get("podIP")
        if not address or spec.get("hostNetwork") or status.get("phase") in OVER:
            continue
        named = {
            (port["name"], port.get("protocol", "TCP")): int(port["containerPort"])
            for container in spec["containers"]
            for port in container.get("ports", ())
            if port.get("name")
        }
        meta = one["metadata"]
        yield Pod(
            meta["namespace"], meta.get("labels") or {}, address, spec.get("nodeName", ""), named
        )


def matches(selector: Object, labels: Labels) -> bool:
    """Whether a label selector selects these labels; an empty one selects all."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(expression: Object, labels: Labels) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


@dataclass(frozen=True, slots=True)
class Peer:
    """The peers of a rule: these pods, or (None) the addresses of the match; "" matches all."""

    pods: Sequence[Pod] | None = None
    match: str = ""


ANYBODY = Peer()


def ruleset(inputs: PolicyInputs, node: str, passing: Sequence[str] = ()) -> str:
    """The rules of a node, replacing those it has at once; ``passing`` are matches let through."""
    hook = "type filter hook forward priority -10; policy accept;"  # before the rules of Services
    forward = [hook, "ct state established,related accept"]
    forward += [f"{match} accept" for match in passing]
    chains: list[str] = []
    for pod in inputs.pods:
        for direction in (INGRESS, EGRESS) if pod.node == node else ():
            policies = [one for one in inputs.policies if _selects(one, direction, pod)]
            if not policies:
                continue
            name = f"{direction.rules}_{pod.address.replace('.', '_')}"
            forward.append(f"ip {direction.own} {pod.address} jump {name}")
            allowed = [match for one in policies for match in _allowed(inputs, one, direction, pod)]
            lines = [f"{match} return".lstrip() for match in dict.fromkeys(allowed)]
            chains.append(_chain(name, [*lines, "drop"]))
    body = "\n".join([*chains, _chain("forward", forward)])
    return f"table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{body}\n}}\n"


def _chain(name: str, lines: Iterable[str]) -> str:
    return "\n".join([f"  chain {name} {{", *(f"    {line}" for line in lines), "  }"])


def _selects(policy: Object, direction: Direction, pod: Pod) -> bool:
    spec = policy["spec"]
    implied = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return (
        direction.name in (spec.get("policyTypes") or implied)
        and policy["metadata"]["namespace"] == pod.namespace
        and matches(spec.get("podSelector") or {}, pod.labels)
    )


def _allowed(inputs: PolicyInputs, policy: Object, direction: Direction, pod: Pod) -> Iterator[str]:
    """What one policy lets a pod do in one direction, a match each."""
    for rule in policy["spec"].get(direction.rules) or ():
        listed = rule.get(direction.peers)
        peers = [_peer(inputs, policy, one, direction) for one in listed] if listed else [ANYBODY]
        for peer in peers:
            for port in rule.get("ports") or [{}]:
                if not isinstance(port.get("port"), str):
                    yield from _from_to(peer, direction, _port(port, port.get("port")))
                elif direction is INGRESS:
                    number = pod.ports.get((port["port"], port.get("protocol", "TCP")))
                    if number is not None:
                        yield from _from_to(peer, direction, _port(port, number))
                else:
                    yield from _named(inputs.pods if peer is ANYBODY else peer.pods or (), port)


def _named(pods: Iterable[Pod], port: Object) -> Iterator[str]:
    """The way to a port by name: its number may be another one for each pod."""
    numbers: dict[int, list[Pod]] = {}
    for pod in pods:
        number = pod.ports.get((port["port"], port.get("protocol", "TCP")))
        if number is not None:
            numbers.setdefault(number, []).append(pod)
    for number, there in numbers.items():
        yield from _from_to(Peer(there), EGRESS, _port(port, number))


def _from_to(peer: Peer, direction: Direction, port: str) -> Iterator[str]:
    match = peer.match
    if peer.pods is not None:
        if not peer.pods:
            return
        addresses = ", ".join(sorted({pod.address for pod in peer.pods}))
        match = f"ip {direction.other} {{ {addresses} }}"
    yield f"{match} {port}".strip()


def _port(port: Object, number: int | None) -> str:
    if not port:
        return ""
    protocol = port.get("protocol", "TCP").lower()
    if number is None:
        return f"meta l4proto {protocol}"
    end = port.get("endPort")
    return f"{protocol} dport {number}-{end}" if end else f"{protocol} dport {number}"


def _peer(inputs: PolicyInputs, policy: Object, peer: Object, direction: Direction) -> Peer:
    block = peer.get("ipBlock")
    if block:
        but = block.get("except") or ()
        match = f"ip {direction.other} {block['cidr']}"
        return Peer(
            match=match + (f" ip {direction.other} != {{ {', '.join(but)} }}" if but else "")
        )
    spaces = peer.get("namespaceSelector")
    home = policy["metadata"]["namespace"]
    return Peer(
        [
            pod
            for pod in inputs.pods
            if matches(peer.get("podSelector") or {}, pod.labels)
            and (
                pod.namespace == home
                if spaces is None
                else matches(spaces, inputs.namespaces.get(pod.namespace, {}))
            )
        ]
    )
