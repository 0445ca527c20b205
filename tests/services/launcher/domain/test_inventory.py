from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from services.launcher.domain.inventory import (
    InventoryChanges,
    LeasePolicy,
    changed_events,
    cordon,
    update_inventory,
)
from services.launcher.domain.model import Listing, NodeRow, ObservedNode
from tests.kit.clock import at
from tests.kit.launcher_builders import a_listing, a_node

POLICY = LeasePolicy(lease=timedelta(seconds=5), fence=timedelta(seconds=15))


class Inventory:
    """The rows, as the loop would keep them."""

    def __init__(self) -> None:
        self.rows: dict[str, NodeRow] = {}
        self.published: list[tuple[str, int, bool, bool]] = []

    def observe(
        self, seconds: float, listing: Listing, busy: Sequence[str] = ()
    ) -> InventoryChanges:
        changes = update_inventory(
            self.rows.values(), listing, set(busy).__contains__, at(seconds), POLICY
        )
        self.published += [
            (m.node_id, m.version, m.node.ready, m.removed)
            for m in changed_events(self.rows, changes.rows)
        ]
        self.rows |= {row.node_id: row for row in changes.rows}
        return changes


def test_nodes_are_published_once() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=2))
    inventory.observe(1, a_listing(nodes=2))
    assert inventory.published == [("local-0", 1, True, False), ("local-1", 1, True, False)]


def test_a_silent_node_keeps_its_lease_then_is_not_ready_then_is_fenced() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1))
    silent = a_listing(nodes=1, silent=["local-0"])
    assert inventory.observe(1, silent).due_at == at(6)
    assert inventory.observe(5.9, silent).rows == ()
    assert inventory.observe(6, silent).due_at == at(16)
    assert inventory.published[-1] == ("local-0", 2, False, False)
    assert inventory.observe(15.9, silent, ["local-0"]).fence == ()
    assert inventory.observe(16, silent, ["local-0"]).fence == ("local-0",)
    assert inventory.observe(16, silent).fence == ()
    inventory.observe(17, a_listing(nodes=1))
    assert inventory.published[-1] == ("local-0", 3, True, False)
    assert inventory.rows["local-0"].silent_since is None


def test_a_node_that_answers_within_its_lease_causes_no_event() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1))
    inventory.observe(1, a_listing(nodes=1, silent=["local-0"]))
    inventory.observe(4, a_listing(nodes=1))
    assert len(inventory.published) == 1
    # The next silence has a lease of its own.
    assert inventory.observe(5, a_listing(nodes=1, silent=["local-0"])).due_at == at(10)


def test_a_node_first_seen_silent_is_not_ready() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1, silent=["local-0"]))
    assert inventory.published == [("local-0", 1, False, False)]


def test_a_node_that_went_is_removed_once_and_may_come_back() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=2))
    inventory.observe(1, a_listing(nodes=1))
    inventory.observe(2, a_listing(nodes=1))
    assert inventory.published[2:] == [("local-1", 2, True, True)]
    inventory.observe(3, a_listing(nodes=2))
    assert inventory.published[3:] == [("local-1", 3, True, False)]


def test_a_retired_node_is_removed_though_it_still_runs_something() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1))
    retired = Listing({"local-0": ObservedNode(a_node(), retired=True)})
    inventory.observe(1, retired)
    assert inventory.published[-1] == ("local-0", 2, True, True)
    fresh = Inventory()
    fresh.observe(0, retired)
    assert fresh.published == []


def test_a_node_that_its_own_cluster_has_cordoned() -> None:
    def listing(schedulable: bool) -> Listing:
        node = a_node("local-0").model_copy(update={"schedulable": schedulable})
        return Listing({"local-0": ObservedNode(node)})

    inventory = Inventory()
    inventory.observe(0, listing(False))
    assert not inventory.rows["local-0"].node.schedulable
    # The operator's word does not open what the cluster has closed, and the other way round.
    row = cordon(inventory.rows["local-0"], schedulable=False, now=at(1))
    row = cordon(row, schedulable=True, now=at(2))
    assert not row.node.schedulable
    inventory.rows["local-0"] = row
    inventory.observe(3, listing(True))
    assert inventory.rows["local-0"].node.schedulable
    inventory.rows["local-0"] = cordon(inventory.rows["local-0"], schedulable=False, now=at(4))
    inventory.observe(5, listing(False))
    inventory.observe(6, listing(True))
    assert not inventory.rows["local-0"].node.schedulable
    opened = cordon(inventory.rows["local-0"], schedulable=True, now=at(7))
    assert opened.node.schedulable


def test_a_cordon_survives_changes_from_the_runtime() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1))
    row = cordon(inventory.rows["local-0"], schedulable=False, now=at(1))
    assert (row.version, row.node.schedulable) == (2, False)
    assert cordon(row, schedulable=False, now=at(2)) == row
    inventory.rows["local-0"] = row
    assert inventory.observe(3, a_listing(nodes=1)).rows == ()
    changed = Listing({"local-0": ObservedNode(a_node().model_copy(update={"gpus": 8}))})
    inventory.observe(4, changed)
    assert inventory.rows["local-0"].node.gpus == 8
    assert not inventory.rows["local-0"].node.schedulable


def test_a_drained_node_stays_drained_until_an_operator_changes_it() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1))
    row = cordon(inventory.rows["local-0"], schedulable=False, now=at(1), drain=True)
    assert (row.version, row.node.schedulable, row.node.draining) == (2, False, True)
    assert cordon(row, schedulable=False, now=at(2), drain=True) == row
    inventory.rows["local-0"] = row
    assert inventory.observe(3, a_listing(nodes=1)).rows == ()
    cordoned = cordon(row, schedulable=False, now=at(4))
    assert (cordoned.version, cordoned.node.schedulable, cordoned.node.draining) == (
        3,
        False,
        False,
    )
    opened = cordon(row, schedulable=True, now=at(4), drain=True)
    assert (opened.version, opened.node.schedulable, opened.node.draining) == (3, True, False)


def test_the_event_has_the_rows_content() -> None:
    inventory = Inventory()
    inventory.observe(0, a_listing(nodes=1))
    row = inventory.rows["local-0"]
    [message] = changed_events({}, [row])
    assert (message.node, message.version) == (row.node, row.version)
    assert changed_events({row.node_id: row}, [replace(row, silent_since=at(1))]) == []
