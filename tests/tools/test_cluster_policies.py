"""NetworkPolicies as rules of a node: the cases of the API's definition."""

from __future__ import annotations

from typing import Any

import pytest

from tools.cluster.policies import Pod, PolicyInputs, matches, pods_of, ruleset

NAMESPACES = {"shop": {"team": "a"}, "bank": {"team": "b"}, "yard": {}}
WEB = Pod("shop", {"app": "web"}, "10.0.1.1", "n1", {("http", "TCP"): 8080})
NEW_WEB = Pod("shop", {"app": "web", "new": ""}, "10.0.2.1", "n2", {("http", "TCP"): 9090})
STORE = Pod("shop", {"app": "store"}, "10.0.1.2", "n1")
TELLER = Pod("bank", {"app": "teller"}, "10.0.2.2", "n2")
PODS = [WEB, NEW_WEB, STORE, TELLER]


def policy(select: dict[str, Any], namespace: str = "shop", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": select, **spec}}


def chain(name: str, *policies: dict[str, Any], node: str = "n1") -> list[str] | None:
    """The rules of one chain; None: nothing is isolated there."""
    text = ruleset(PolicyInputs(policies, NAMESPACES, PODS), node)
    _, found, rest = text.partition(f"chain {name} {{\n")
    return (
        [line.strip() for line in rest.partition("}\n  ")[0].splitlines()][:-1] if found else None
    )


def of_web(*policies: dict[str, Any]) -> list[str]:
    """What may go to the pod, and then nothing else."""
    found = chain("ingress_10_0_1_1", *policies)
    assert found is not None
    lines = [line for line in found if line != "}"]
    assert lines[-1] == "drop"
    return lines[:-1]


IN_WEB = {"matchLabels": {"app": "web"}}


def test_without_policies_everything_passes() -> None:
    text = ruleset(PolicyInputs([], NAMESPACES, PODS), "n1")
    assert "drop" not in text
    assert "policy accept" in text


def test_a_policy_without_rules_isolates_what_it_selects_and_nothing_else() -> None:
    one = policy(IN_WEB)
    assert of_web(one) == []
    for other in ("egress_10_0_1_1", "ingress_10_0_1_2", "ingress_10_0_2_1", "ingress_10_0_2_2"):
        assert chain(other, one) is None
    assert chain("ingress_10_0_2_1", one, node="n2") is not None


def test_answers_pass_before_any_policy_applies() -> None:
    forward = chain("forward", policy({}))
    assert forward is not None
    assert forward[1] == "ct state established,related accept"
    assert "ip daddr 10.0.1.1 jump ingress_10_0_1_1" in forward


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ({}, ["return"]),
        ({"from": []}, ["return"]),
        ({"ports": []}, ["return"]),
        ({"from": [{"podSelector": {}}]}, ["ip saddr { 10.0.1.1, 10.0.1.2, 10.0.2.1 } return"]),
        (
            {"from": [{"podSelector": {"matchLabels": {"app": "store"}}}]},
            ["ip saddr { 10.0.1.2 } return"],
        ),
        (
            {"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}]},
            ["ip saddr { 10.0.2.2 } return"],
        ),
        # Both in one peer: pods of those namespaces that have those labels.
        (
            {
                "from": [
                    {"namespaceSelector": {"matchLabels": {"team": "b"}}, "podSelector": IN_WEB}
                ]
            },
            [],
        ),
        # Two peers: either.
        (
            {
                "from": [
                    {"namespaceSelector": {"matchLabels": {"team": "b"}}},
                    {"podSelector": IN_WEB},
                ]
            },
            ["ip saddr { 10.0.2.2 } return", "ip saddr { 10.0.1.1, 10.0.2.1 } return"],
        ),
        ({"from": [{"podSelector": {"matchLabels": {"app": "nobody"}}}]}, []),
        (
            {
                "from": [
                    {"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.1.0/24", "10.9.2.0/24"]}}
                ]
            },
            ["ip saddr 10.9.0.0/16 ip saddr != { 10.9.1.0/24, 10.9.2.0/24 } return"],
        ),
        ({"from": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}, ["ip saddr 10.9.0.0/16 return"]),
        ({"ports": [{"port": 80}]}, ["tcp dport 80 return"]),
        ({"ports": [{"protocol": "UDP"}]}, ["meta l4proto udp return"]),
        (
            {"ports": [{"port": 30000, "endPort": 30100, "protocol": "UDP"}]},
            ["udp dport 30000-30100 return"],
        ),
        # The name is this pod's.
        ({"ports": [{"port": "http"}]}, ["tcp dport 8080 return"]),
        ({"ports": [{"port": "http", "protocol": "UDP"}]}, []),
        (
            {"ports": [{"port": 80}, {"port": 81}], "from": [{"podSelector": IN_WEB}]},
            [
                "ip saddr { 10.0.1.1, 10.0.2.1 } tcp dport 80 return",
                "ip saddr { 10.0.1.1, 10.0.2.1 } tcp dport 81 return",
            ],
        ),
    ],
)
def test_ingress_rules(rule: dict[str, Any], lines: list[str]) -> None:
    assert of_web(policy(IN_WEB, ingress=[rule])) == lines


def test_policies_add_up() -> None:
    first, second = (policy(IN_WEB, ingress=[{"ports": [{"port": port}]}]) for port in (80, 81))
    assert of_web(first, second, first) == ["tcp dport 80 return", "tcp dport 81 return"]


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, ["udp dport 53 return"]),
        ({"to": [{"podSelector": IN_WEB}]}, ["ip daddr { 10.0.1.1, 10.0.2.1 } return"]),
        # On the way out a name is each destination's own.
        (
            {"to": [{"podSelector": IN_WEB}], "ports": [{"port": "http"}]},
            [
                "ip daddr { 10.0.1.1 } tcp dport 8080 return",
                "ip daddr { 10.0.2.1 } tcp dport 9090 return",
            ],
        ),
        (
            {"ports": [{"port": "http"}]},
            [
                "ip daddr { 10.0.1.1 } tcp dport 8080 return",
                "ip daddr { 10.0.2.1 } tcp dport 9090 return",
            ],
        ),
    ],
)
def test_egress_rules(rule: dict[str, Any], lines: list[str]) -> None:
    one = policy({"matchLabels": {"app": "store"}}, policyTypes=["Egress"], egress=[rule])
    assert chain("egress_10_0_1_2", one) == [*lines, "drop"]
    assert chain("ingress_10_0_1_2", one) is None


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        ({}, {"ingress"}),
        ({"egress": []}, {"ingress"}),
        ({"egress": [{}]}, {"ingress", "egress"}),
        ({"policyTypes": ["Egress"]}, {"egress"}),
        ({"policyTypes": ["Ingress"], "egress": [{}]}, {"ingress"}),
    ],
)
def test_directions_that_a_policy_does_not_name(spec: dict[str, Any], kinds: set[str]) -> None:
    one = policy(IN_WEB, **spec)
    found = {kind for kind in ("ingress", "egress") if chain(f"{kind}_10_0_1_1", one) is not None}
    assert found == kinds


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["a", "b"], {"a", "b"}),
        ("NotIn", ["a"], {"b", ""}),
        ("Exists", None, {"a", "b"}),
        ("DoesNotExist", None, {""}),
    ],
)
def test_expressions(operator: str, values: list[str] | None, selected: set[str]) -> None:
    expression = {"key": "team", "operator": operator} | ({"values": values} if values else {})
    found = {
        team
        for team in ("a", "b", "")
        if matches({"matchExpressions": [expression]}, {"team": team} if team else {})
    }
    assert found == selected


def test_pods_without_an_address_of_their_own_are_no_peers() -> None:
    def pod(name: str, **of: Any) -> dict[str, Any]:
        status = {"podIP": "10.0.0.1", "phase": of.pop("phase", "Running")}
        ports = [{"name": "http", "containerPort": 80}, {"containerPort": 81}]
        return {
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"nodeName": "n1", "containers": [{"ports": ports}, {}], **of},
            "status": status,
        }

    new = pod("new")
    new["status"] = {}
    assert list(pods_of([pod("host", hostNetwork=True), pod("over", phase="Failed"), new])) == []
    assert list(pods_of([pod("one")])) == [Pod("shop", {}, "10.0.0.1", "n1", {("http", "TCP"): 80})]
