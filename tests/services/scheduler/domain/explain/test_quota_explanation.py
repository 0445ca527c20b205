"""What ``quota explain`` says is what ``decide`` counts."""

from __future__ import annotations

from libs.contracts.messages import Priority, QuotaAllowance, Unit
from services.scheduler.domain.explain.quota_explanation import permissions
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.rows import Limit
from tests.kit.builders import a_limit, a_node, a_snapshot, a_task, running

HIGH, NORMAL = Priority.HIGH, Priority.NORMAL


def a_platform(*limits: Limit) -> Snapshot:
    tasks = [
        running(a_task("a", owner="ann", team="vision"), {"n0": (0, 1)}),
        running(a_task("b", owner="bob", team="vision"), {"n0": (2,)}),
    ]
    return a_snapshot(tasks, [a_node("n0"), a_node("d0", group="dev")], limits=limits)


def at(snapshot: Snapshot, group: str, level: Priority) -> QuotaAllowance:
    found = permissions(snapshot.index, "ann", "vision", group)
    return next(each for each in found if each.priority is level)


def test_without_rows_nothing_decides_and_what_is_held_is_shown() -> None:
    row = at(a_platform(), "default", NORMAL)
    assert (row.decides, row.caps, row.forbidden, row.gpus) == (None, (), False, 2)
    assert at(a_platform(), "default", HIGH).gpus == 0


def test_every_group_of_nodes_or_rows_is_listed() -> None:
    snapshot = a_platform(a_limit(1, group="to-come", grant=True))
    found = permissions(snapshot.index, "ann", "", "")
    assert sorted({row.group for row in found}) == ["default", "dev", "to-come"]


def test_the_grant_that_decides_and_the_caps_have_what_is_held_of_them() -> None:
    snapshot = a_platform(
        a_limit(4, user="ann", grant=True),
        a_limit(9, grant=True),
        a_limit(8, team="vision"),
        a_limit(1, user="bob"),
    )
    row = at(snapshot, "default", HIGH)
    assert row.decides is not None
    assert (row.decides.quota.user, row.decides.quota.limit, row.decides.held) == ("ann", 4, 2)
    assert [(cap.quota.team, cap.quota.limit, cap.held) for cap in row.caps] == [("vision", 8, 3)]
    other = at(snapshot, "dev", HIGH)
    assert other.decides is not None
    assert other.decides.held == 0


def test_a_level_above_the_sites_default_is_not_permitted() -> None:
    site = a_limit(0, unit=Unit.UNSPECIFIED, grant=True, unlimited=True, level_max=NORMAL)
    snapshot = a_platform(site)
    assert at(snapshot, "default", HIGH).forbidden
    assert not at(snapshot, "default", NORMAL).forbidden
