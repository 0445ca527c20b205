from __future__ import annotations

from datetime import timedelta

import pytest

from libs.contracts.messages import Node, Refusal, SetNodeMarks
from services.launcher.domain.inventory import LeasePolicy, update_inventory
from services.launcher.domain.model import Listing, NodeRow, ObservedNode
from services.launcher.domain.node_labels import LABELS_MAX, apply_command
from tests.kit.clock import at

POLICY = LeasePolicy(lease=timedelta(seconds=5), fence=timedelta(seconds=15))
OWN = Node(
    id="local-0",
    group="default",
    gpus=2,
    schedulable=True,
    ready=True,
    labels={"disk": "nvme"},
    taints=("old",),
)


def observed(rows: list[NodeRow], node: Node = OWN, *, retired: bool = False) -> list[NodeRow]:
    """The rows after one scan of the runtime."""
    listing = Listing({"local-0": ObservedNode(node, retired=retired)})
    return list(update_inventory(rows, listing, lambda _: False, at(1), POLICY).rows) or rows


def changed_by(row: NodeRow, **changes: object) -> NodeRow:
    """The row after an operator's command."""
    after = apply_command(
        row, SetNodeMarks.model_validate({"node_id": "local-0", **changes}), at(2)
    )
    assert isinstance(after, NodeRow), after
    return after


def test_operators_labels_are_added_to_the_nodes_own() -> None:
    [row] = observed([])
    row = changed_by(row, labels={"zone": "a"}, taints=["flaky", "reserved=vision"])
    assert row.node.labels == {"disk": "nvme", "zone": "a"}
    assert row.node.taints == ("flaky", "old", "reserved=vision")
    assert row.version == 2
    assert observed([row]) == [row], "the next scan finds nothing new"
    row = changed_by(row, labels={"zone": "b"}, taints=["reserved=nlp"], untaint=["flaky"])
    assert row.node.labels == {"disk": "nvme", "zone": "b"}
    assert row.node.taints == ("old", "reserved=nlp"), "one for each key"
    row = changed_by(row, unlabel=["zone", "never"], untaint=["reserved"])
    assert (row.node.labels, row.node.taints) == (OWN.labels, OWN.taints)
    assert observed([row]) == [row]


def test_operators_labels_survive_changes_of_the_node() -> None:
    [row] = observed([])
    row = changed_by(row, labels={"zone": "a"}, taints=["flaky"])
    [row] = observed([row], OWN.model_copy(update={"gpus": 4, "labels": {"disk": "hdd"}}))
    assert (row.node.gpus, row.node.labels) == (4, {"disk": "hdd", "zone": "a"})
    [row] = observed([row], retired=True)
    [row] = observed([row])
    assert row.node.labels == {"disk": "nvme", "zone": "a"}
    assert row.node.taints == ("flaky", "old")


def test_a_repeated_command_changes_nothing() -> None:
    [row] = observed([])
    row = changed_by(row, labels={"zone": "a"}, taints=["flaky"])
    assert changed_by(row, labels={"zone": "a"}, taints=["flaky"], untaint=["other"]) is row


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"labels": {"disk": "hdd"}}, "labels", "disk"),
        ({"unlabel": ["disk"]}, "labels", "disk"),
        ({"taints": ["old=new"]}, "taints", "old"),
        ({"untaint": ["old"]}, "taints", "old"),
        ({"labels": {"a b": "c"}}, "labels", "a b"),
        ({"labels": {"a": "-"}}, "labels.a", "-"),
        ({"taints": ["a="]}, "taints", "a="),
        ({"labels": {"a": "b"}, "unlabel": ["a"]}, "labels", "a"),
        ({"taints": ["a=b"], "untaint": ["a"]}, "taints", "a"),
        ({"labels": {f"l{n}": "" for n in range(LABELS_MAX + 1)}}, "labels", "65"),
    ],
)
def test_a_wrong_label_is_refused_with_field_value_and_fix(
    changes: dict[str, object], field: str, value: str
) -> None:
    [row] = observed([])
    command = SetNodeMarks.model_validate({"node_id": "local-0", **changes})
    refusal = apply_command(row, command, at(2))
    assert isinstance(refusal, Refusal)
    assert [(error.field, error.value) for error in refusal.errors] == [(field, value)]
    assert refusal.errors[0].fix
