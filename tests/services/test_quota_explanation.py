"""What the API says is free is what the scheduler admits, whatever grants and caps apply."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.messages import Priority, Unit
from services.gateway import views
from services.scheduler.domain.explain.quota_explanation import User, permissions
from services.scheduler.domain.limits.quota_usage import Need
from services.scheduler.domain.model.rows import Limit
from tests.kit.builders import a_limit, a_node, a_snapshot, a_task, running
from tests.kit.strategies import LIMIT, drawn_limit

NORMAL = Priority.NORMAL
ANN = User("ann", "vision", "default")
HELD = running(a_task("a", owner="ann", team="vision", priority=NORMAL), {"n0": (0, 1)})
# More than any limit that is drawn.
MANY = 20
UNITS_OF_GPUS = st.sampled_from([Unit.GPUS, Unit.GPUS_OR_NODES])


def explained(*limits: Limit) -> tuple[dict[str, Any], list[int]]:
    """The API's row at normal, and how many GPUs a further run of ann may have there."""
    snapshot = a_snapshot([HELD], [a_node("n0")], limits=limits)
    usage = snapshot.index.quota_usage
    rows = permissions(snapshot.index, *ANN)
    row = next(each for each in rows if each.priority is NORMAL)
    sizes = range(1, MANY + 1)
    admitted = [gpus for gpus in sizes if usage.excess(ANN, NORMAL, Need(gpus, 1)) is None]  # type: ignore[arg-type]
    return views.permission(row), admitted


@given(st.lists(st.fixed_dictionaries({**LIMIT, "unit": UNITS_OF_GPUS}), max_size=4))
def test_what_is_free_is_what_is_admitted(drawn: list[dict[str, Any]]) -> None:
    limits = {each.key: each for each in (drawn_limit(**fields) for fields in drawn)}
    row, admitted = explained(*limits.values())
    free = row["free"]
    assert (MANY if free is None else free) == len(admitted)
    if row["binds"] == "cap":
        assert [row[name] for name in ("limit", "free")] == [
            row["caps"][0][name] for name in ("limit", "free")
        ]
    elif row["binds"] == "grant":
        assert {name: row[name] for name in row["granted"]} == row["granted"]


@pytest.mark.parametrize("team", ["", "vision"])
def test_the_grants_own_number_stands_beside_that_of_an_exhausted_cap(team: str) -> None:
    cap = a_limit(2, user="" if team else "ann", team=team, priority=NORMAL)
    row, admitted = explained(a_limit(8, priority=NORMAL, grant=True), cap, a_limit(30))
    assert admitted == []
    assert (row["permitted"], row["binds"]) == (True, "cap")
    assert (row["limit"], row["held"], row["free"]) == (2, 2, 0)
    assert row["granted"] == {"limit": 8, "unit": "gpus", "held": 2, "free": 6}
    assert [(each["limit"], each["free"]) for each in row["caps"]] == [(2, 0), (30, 28)]


def test_an_exhausted_row_binds_before_those_of_other_units() -> None:
    row, _ = explained(a_limit(8, grant=True), a_limit(1, user="ann", unit=Unit.NODES))
    assert (row["binds"], row["unit"], row["limit"], row["free"]) == ("cap", "nodes", 1, 0)
    row, _ = explained(a_limit(8, grant=True), a_limit(3, user="ann", unit=Unit.NODES))
    assert (row["binds"], row["unit"], row["limit"], row["free"]) == ("grant", "gpus", 8, 6)


def test_a_row_that_is_exceeded_binds_before_one_that_is_exhausted() -> None:
    """Runs that began before the row came go on; more of them must end."""
    row, _ = explained(a_limit(2, grant=True), a_limit(1, user="ann"))
    assert (row["binds"], row["limit"], row["held"], row["free"]) == ("cap", 1, 2, 0)


def test_a_level_that_is_not_permitted_is_so_whatever_a_cap_leaves() -> None:
    site = a_limit(
        0, unit=Unit.UNSPECIFIED, grant=True, unlimited=True, level_max=Priority.BELOW_NORMAL
    )
    row, admitted = explained(site, a_limit(0, user="ann"))
    assert admitted == []
    assert (row["permitted"], row["binds"], row["free"]) == (False, "grant", 0)


@given(st.lists(st.fixed_dictionaries({**LIMIT, "unit": UNITS_OF_GPUS}), max_size=4))
def test_without_amounts_the_limit_is_that_of_the_row_that_permits_least(
    drawn: list[dict[str, Any]],
) -> None:
    limits = {each.key: each for each in (drawn_limit(**fields) for fields in drawn)}
    snapshot = a_snapshot([HELD], [a_node("n0")], limits=tuple(limits.values()))
    rows = permissions(snapshot.index, *ANN)
    row = views.permission(next(each for each in rows if each.priority is NORMAL), amounts=False)
    own = [] if row["granted"] is None else [row["granted"]]
    least = min((each["limit"] for each in [*own, *row["caps"]]), default=None)
    assert row["limit"] == (0 if own and not row["permitted"] else least)
    held = {each[name] for each in [row, *own, *row["caps"]] for name in ("held", "free")}
    assert held <= {None}
